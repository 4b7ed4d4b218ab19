// Package osfile contains the file operations that differ between operating systems: it locks files, and makes the
// names in a directory durable.
package osfile

import "errors"

// ErrLocked is the error of a lock that another process holds.
var ErrLocked = errors.New("locked by another process")
