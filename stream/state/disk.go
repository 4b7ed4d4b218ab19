package state

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/streamdp/streamdp/internal/osfile"
)

// Disk has the file operations of the daemon. It is an interface so that a test can simulate a crash before and after
// each operation, with the loss of unsynced data.
type Disk interface {
	// Create creates a file with mode 0600. It fails if the name exists.
	Create(name string) (File, error)
	// Append opens a file for writing at its end. If the file is missing, Append creates it with mode 0600.
	Append(name string) (File, error)
	// Overwrite opens a file for writing from its start, without truncating it: old content after the written bytes
	// remains. If the file is missing, Overwrite creates it with mode 0600.
	Overwrite(name string) (File, error)
	ReadFile(name string) ([]byte, error)
	// Open opens a file for reading.
	Open(name string) (io.ReadCloser, error)
	ReadDir(dir string) ([]string, error)
	// MkdirAll creates a directory that others cannot access, and missing parents.
	MkdirAll(dir string) error
	Rename(from, to string) error
	Link(from, to string) error
	Remove(name string) error
	// Truncate shortens the file and syncs it.
	Truncate(name string, size int64) error
	// SyncDir makes the entries of a directory durable.
	SyncDir(dir string) error
}

// File is a file that is open for writing. Sync makes the written bytes durable.
type File interface {
	io.WriteCloser
	Sync() error
}

// OS is the disk of this machine.
type OS struct{}

func (OS) Create(name string) (File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (OS) Append(name string) (File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

func (OS) Overwrite(name string) (File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
}

func (OS) ReadFile(name string) ([]byte, error)    { return os.ReadFile(name) }
func (OS) Open(name string) (io.ReadCloser, error) { return os.Open(name) }
func (OS) Rename(from, to string) error            { return os.Rename(from, to) }
func (OS) Link(from, to string) error              { return os.Link(from, to) }
func (OS) Remove(name string) error                { return os.Remove(name) }

// MkdirAll removes other users' access to the last directory if it exists, because a restored backup may have changed
// its mode.
func (OS) MkdirAll(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(dir, 0o700)
	}
	return err
}

func (OS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (OS) Truncate(name string, size int64) error {
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

func (OS) SyncDir(dir string) error { return osfile.SyncDir(dir) }

// Write writes data to the file f, syncs and closes it. f and err are the results of opening the file.
func Write(f File, err error, data []byte) error {
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

// TemporarySuffix is the suffix of files whose write is not complete.
const TemporarySuffix = ".tmp"

// WriteNew makes a file durable under an unused name. Once a file with that name exists, it is complete.
func WriteNew(d Disk, name string, data []byte) error {
	switch _, err := d.ReadFile(name); {
	case err == nil:
		return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	tmp := name + TemporarySuffix
	if err := d.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(tmp)
	if err = Write(f, err, data); err == nil {
		err = d.Rename(tmp, name)
	}
	if err == nil {
		err = d.SyncDir(filepath.Dir(name))
	}
	if err != nil { // remove the file, so that the caller can try again
		d.Remove(tmp)
		d.Remove(name)
	}
	return err
}

// RemoveAll removes files, which may be missing, and makes that durable.
func RemoveAll(d Disk, dir string, names ...string) error {
	for _, name := range names {
		if err := d.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.SyncDir(dir)
}

// WriteOver makes a file durable under the name, and replaces an existing file. It does so completely or not at all.
func WriteOver(d Disk, name string, data []byte) error {
	tmp := name + TemporarySuffix
	if err := d.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(tmp)
	if err = Write(f, err, data); err == nil {
		err = d.Rename(tmp, name)
	}
	if err != nil {
		d.Remove(tmp)
		return err
	}
	return d.SyncDir(filepath.Dir(name))
}
