package stream

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// disk is what the daemon does with files. It is an interface so that a test
// can crash before and after every operation, and lose what was not synced.
type disk interface {
	// Create makes a new file, 0600; it fails where the name is taken.
	Create(name string) (file, error)
	// Append opens a file for writing at its end, and makes it, 0600, where it
	// is missing.
	Append(name string) (file, error)
	// Overwrite opens a file for writing over what is in it, from its start,
	// and makes it, 0600, where it is missing. What lies behind stays.
	Overwrite(name string) (file, error)
	ReadFile(name string) ([]byte, error)
	ReadDir(dir string) ([]string, error)
	// MkdirAll makes a directory that is closed to others, and what is missing
	// above it.
	MkdirAll(dir string) error
	Rename(from, to string) error
	Link(from, to string) error
	Remove(name string) error
	// Truncate cuts the file and syncs it.
	Truncate(name string, size int64) error
	// SyncDir makes the names of a directory durable.
	SyncDir(dir string) error
}

type file interface {
	io.WriteCloser
	Sync() error
}

// osDisk is the disk of this machine.
type osDisk struct{}

func (osDisk) Create(name string) (file, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (osDisk) Append(name string) (file, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

func (osDisk) Overwrite(name string) (file, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
}

func (osDisk) ReadFile(name string) ([]byte, error) { return os.ReadFile(name) }
func (osDisk) Rename(from, to string) error         { return os.Rename(from, to) }
func (osDisk) Link(from, to string) error           { return os.Link(from, to) }
func (osDisk) Remove(name string) error             { return os.Remove(name) }

// MkdirAll closes the last directory to others where it was there and open: what
// was restored from a backup has the modes that the copy gave it.
func (osDisk) MkdirAll(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(dir, 0o700)
	}
	return err
}

func (osDisk) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (osDisk) Truncate(name string, size int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

func (osDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// write writes data to a file that was just opened, syncs and closes it.
func write(f file, err error, data []byte) error {
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// temporarySuffix ends the names of writes that did not end.
const temporarySuffix = ".tmp"

// writeNew makes a file durable under a name that is free, all or nothing: a
// file that is there is whole.
func writeNew(d disk, name string, data []byte) error {
	switch _, err := d.ReadFile(name); {
	case err == nil:
		return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	tmp := name + temporarySuffix
	if err := d.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(tmp)
	if err = write(f, err, data); err == nil {
		err = d.Rename(tmp, name)
	}
	if err == nil {
		err = d.SyncDir(filepath.Dir(name))
	}
	if err != nil { // so that it can be tried again
		d.Remove(tmp)
		d.Remove(name)
	}
	return err
}

// removeAll removes names that may be missing, and makes that durable.
func removeAll(d disk, dir string, names ...string) error {
	for _, name := range names {
		if err := d.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.SyncDir(dir)
}

// full reports whether a write failed for want of room, which passes; after any
// other failure of a sync the process must end, because what is on disk is no
// longer known.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
