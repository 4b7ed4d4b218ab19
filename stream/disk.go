package stream

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/streamdp/streamdp/internal/osfile"
)

// disk has the file operations of the daemon. It is an interface so that a test can crash
// before and after every operation, and lose what was not synced.
type disk interface {
	// Create makes a new file, 0600. It fails if the name is taken.
	Create(name string) (file, error)
	// Append opens a file for writing at its end. If the file is missing it makes it, 0600.
	Append(name string) (file, error)
	// Overwrite opens a file for writing over its content, from its start. If the file is
	// missing it makes it, 0600. Content behind what is written stays.
	Overwrite(name string) (file, error)
	ReadFile(name string) ([]byte, error)
	// Open opens a file for reading.
	Open(name string) (io.ReadCloser, error)
	ReadDir(dir string) ([]string, error)
	// MkdirAll makes a directory that others cannot access, and the missing ones above it.
	MkdirAll(dir string) error
	Rename(from, to string) error
	Link(from, to string) error
	Remove(name string) error
	// Truncate cuts the file and syncs it.
	Truncate(name string, size int64) error
	// SyncDir makes the entries of a directory durable.
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

func (osDisk) ReadFile(name string) ([]byte, error)    { return os.ReadFile(name) }
func (osDisk) Open(name string) (io.ReadCloser, error) { return os.Open(name) }
func (osDisk) Rename(from, to string) error            { return os.Rename(from, to) }
func (osDisk) Link(from, to string) error              { return os.Link(from, to) }
func (osDisk) Remove(name string) error                { return os.Remove(name) }

// MkdirAll takes other users' access to the last directory away if the directory exists: a
// restored backup may have given it other modes.
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

func (osDisk) SyncDir(dir string) error { return osfile.SyncDir(dir) }

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

// temporarySuffix ends the names of files whose write is not complete.
const temporarySuffix = ".tmp"

// writeNew makes a file durable under a free name. If a file has that name, it is complete.
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

// removeAll removes files, which may be missing, and makes that durable.
func removeAll(d disk, dir string, names ...string) error {
	for _, name := range names {
		if err := d.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.SyncDir(dir)
}

// writeOver makes a file durable in place of the one of that name, if there is one, all
// or nothing.
func writeOver(d disk, name string, data []byte) error {
	tmp := name + temporarySuffix
	if err := d.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(tmp)
	if err = write(f, err, data); err == nil {
		err = d.Rename(tmp, name)
	}
	if err != nil {
		d.Remove(tmp)
		return err
	}
	return d.SyncDir(filepath.Dir(name))
}
