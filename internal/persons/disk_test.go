package persons

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
)

// simDisk is a directory in memory that loses unsynced data: content is durable after Sync, and a name after SyncDir. A
// crash keeps everything durable and any part of the rest.
type simDisk struct {
	names, kept map[string]*inode
	ops         int   // number of operations that changed something
	crash       int   // number of the operation before which the machine stops; −1: never
	refuse      error // error of that operation instead of a crash
}

type inode struct{ data, synced []byte }

var errCrashed = errors.New("simulated crash")

func newSimDisk() *simDisk {
	return &simDisk{names: map[string]*inode{}, kept: map[string]*inode{}, crash: -1}
}

func (d *simDisk) do() error {
	if d.ops == d.crash {
		if d.refuse != nil {
			d.crash = -1
			return d.refuse
		}
		return errCrashed
	}
	d.ops++
	return nil
}

const (
	crashLost = iota
	crashArrived
	crashMixed
	crashModes
)

// reboot returns the disk after a crash.
func (d *simDisk) reboot(mode int, rng *rand.Rand) *simDisk {
	arrives := func() bool { return mode == crashArrived || mode == crashMixed && rng.IntN(2) == 0 }
	n := newSimDisk()
	all := map[string]bool{}
	for name := range d.names {
		all[name] = true
	}
	for name := range d.kept {
		all[name] = true
	}
	var sorted []string
	for name := range all {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted) // fixes the order, so that random choices are reproducible
	for _, name := range sorted {
		i := d.kept[name]
		if arrives() {
			i = d.names[name]
		}
		if i == nil {
			continue
		}
		data := bytes.Clone(i.synced)
		if arrives() {
			data = bytes.Clone(i.data)
			for at := len(i.synced); at < len(data) && mode == crashMixed; at++ {
				if rng.IntN(50) == 0 { // unsynced content may be arbitrary bytes
					data[at] = 0
				}
			}
		}
		n.names[name] = &inode{data, bytes.Clone(data)}
		n.kept[name] = n.names[name]
	}
	return n
}

type simFile struct {
	d *simDisk
	i *inode
}

func (f simFile) Write(p []byte) (int, error) {
	if err := f.d.do(); err != nil {
		f.i.data = append(bytes.Clone(f.i.data), p[:len(p)/2]...)
		return len(p) / 2, err
	}
	f.i.data = append(bytes.Clone(f.i.data), p...)
	return len(p), nil
}

func (f simFile) Sync() error {
	if err := f.d.do(); err != nil {
		return err
	}
	f.i.synced = bytes.Clone(f.i.data)
	return nil
}

func (f simFile) Close() error { return nil }

func (d *simDisk) Open(name string) (io.ReadCloser, error) {
	if i := d.names[name]; i != nil {
		return io.NopCloser(bytes.NewReader(i.data)), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (d *simDisk) Create(name string) (File, error) {
	if d.names[name] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	if err := d.do(); err != nil {
		return nil, err
	}
	d.names[name] = &inode{}
	return simFile{d, d.names[name]}, nil
}

func (d *simDisk) Append(name string) (File, error) {
	if d.names[name] == nil {
		return nil, &fs.PathError{Op: "append", Path: name, Err: fs.ErrNotExist}
	}
	return simFile{d, d.names[name]}, nil
}

func (d *simDisk) Truncate(name string, size int64) error {
	i := d.names[name]
	if i == nil {
		return &fs.PathError{Op: "truncate", Path: name, Err: fs.ErrNotExist}
	}
	if err := d.do(); err != nil {
		return err
	}
	i.data = bytes.Clone(i.data[:size])
	i.synced = bytes.Clone(i.data)
	return nil
}

func (d *simDisk) Remove(name string) error {
	if d.names[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if err := d.do(); err != nil {
		return err
	}
	delete(d.names, name)
	return nil
}

func (d *simDisk) ReadDir(dir string) (list []string, err error) {
	for name := range d.names {
		if filepath.Dir(name) == dir {
			list = append(list, filepath.Base(name))
		}
	}
	slices.Sort(list)
	return list, nil
}

func (d *simDisk) SyncDir(string) error {
	if err := d.do(); err != nil {
		return err
	}
	clear(d.kept)
	for name, i := range d.names {
		d.kept[name] = i
	}
	return nil
}
