//go:build unix

package osfile

import (
	"errors"
	"os"
	"syscall"
)

// Lock locks an open file for this process, or returns ErrLocked at once. The lock ends with the process, even if the
// process is killed.
func Lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// Unlock ends the lock. Closing the file would not suffice: a process that was forked at this moment would keep the
// lock.
func Unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

// SyncDir makes the names in a directory durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
