package osfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockedByte is the offset of the byte that Lock locks. On Windows a locked byte cannot be read or written by others,
// so the offset is one that no file reaches.
var lockedByte = windows.Overlapped{OffsetHigh: 1 << 30}

// Lock locks an open file for this process, or returns ErrLocked at once. The lock ends with the process, even if the
// process is killed.
func Lock(f *os.File) error {
	at := lockedByte
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY,
		0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}

// Unlock ends the lock.
func Unlock(f *os.File) error {
	at := lockedByte
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &at)
}

// SyncDir makes the names in a directory durable. It needs a handle that allows writing; os.Open returns one that does
// not.
func SyncDir(path string) error {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return &os.PathError{Op: "sync", Path: path, Err: err}
	}
	d, err := windows.CreateFile(name, windows.GENERIC_WRITE,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE, nil,
		windows.OPEN_EXISTING, windows.FILE_FLAG_BACKUP_SEMANTICS, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer windows.CloseHandle(d)
	if err := windows.FlushFileBuffers(d); err != nil {
		return &os.PathError{Op: "sync", Path: path, Err: err}
	}
	return nil
}
