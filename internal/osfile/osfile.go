// Package osfile contains the file operations that differ between operating systems: it locks files, and makes the
// names in a directory durable.
package osfile

import "errors"

// ErrLocked is the error if another process holds the lock.
var ErrLocked = errors.New("locked by another process")
