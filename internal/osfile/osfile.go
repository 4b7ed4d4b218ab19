// Package osfile does with files what each operating system does in its own way: it locks
// them, and makes the names in a directory durable.
package osfile

import "errors"

// ErrLocked is the error of a lock that another process holds.
var ErrLocked = errors.New("locked by another process")
