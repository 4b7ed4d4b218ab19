package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// simDisk is a disk in memory that forgets. What a file holds is durable after
// Sync, and a name after SyncDir of its directory. A crash keeps what is
// durable and any part of the rest: of names each for itself, of contents any
// sector of 512 bytes, as disks and journals do.
type simDisk struct {
	mu    sync.Mutex
	names map[string]*inode // as the process sees them
	kept  map[string]*inode // durable
	dirs  map[string]bool   // true: durable

	ops     int      // that changed something
	journal []string // their names
	crash   int      // the operation before which the machine stops; −1 never
	down    bool
	refuse  func(op, name string) error // fails an operation

	opens  int         // of files and directories, to change or to read
	scarce func() bool // no descriptor is left to open one
}

// descriptor counts an opening.
func (d *simDisk) descriptor(op, name string) error {
	d.opens++
	if d.scarce != nil && d.scarce() {
		return &fs.PathError{Op: op, Path: name, Err: syscall.EMFILE}
	}
	return nil
}

type inode struct {
	data   []byte
	synced []byte // durable
}

var errCrashed = errors.New("simulated crash")

// newSimDisk is an empty disk with one directory.
func newSimDisk(root string) *simDisk {
	d := &simDisk{names: map[string]*inode{}, kept: map[string]*inode{}, dirs: map[string]bool{}, crash: -1}
	for ; len(root) > 1; root = filepath.Dir(root) {
		d.dirs[root] = true
	}
	return d
}

const sector = 512

// do counts an operation that changes something, and stops at the crash.
func (d *simDisk) do(op, name string) error {
	if d.down || d.ops == d.crash {
		d.down = true
		return errCrashed
	}
	if d.refuse != nil {
		if err := d.refuse(op, name); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	d.ops++
	d.journal = append(d.journal, op+" "+filepath.Base(name))
	return nil
}

// The modes of a crash: what was not synced is lost, has all arrived, or any
// part of it has.
const (
	crashLost = iota
	crashArrived
	crashMixed
	crashModes
)

// reboot is the disk after a crash, as the next process finds it.
func (d *simDisk) reboot(mode int, rng *rand.Rand) *simDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	arrives := func() bool { return mode == crashArrived || mode == crashMixed && rng.IntN(2) == 0 }
	n := newSimDisk("/")
	var dirs []string
	for dir := range d.dirs {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs) // parents first, and a fixed order of random numbers
	for _, dir := range dirs {
		if parent := filepath.Dir(dir); d.dirs[dir] || arrives() {
			if _, known := d.dirs[parent]; !known || n.dirs[parent] {
				n.dirs[dir] = true
			}
		}
	}
	all := map[string]bool{}
	for name := range d.names {
		all[name] = true
	}
	for name := range d.kept {
		all[name] = true
	}
	contents := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		i := d.kept[name]
		if arrives() {
			i = d.names[name]
		}
		if i == nil || !n.dirs[filepath.Dir(name)] {
			continue
		}
		if contents[i] == nil {
			data := survives(i, mode, rng)
			contents[i] = &inode{data: data, synced: bytes.Clone(data)}
		}
		n.names[name], n.kept[name] = contents[i], contents[i]
	}
	return n
}

// survives returns what a crash leaves of a file.
func survives(i *inode, mode int, rng *rand.Rand) []byte {
	switch mode {
	case crashLost:
		return bytes.Clone(i.synced)
	case crashArrived:
		return bytes.Clone(i.data)
	}
	size := len(i.data)
	if rng.IntN(2) == 0 {
		size = len(i.synced)
	}
	out := make([]byte, size)
	copy(out, i.synced)
	for at := 0; at < min(size, len(i.data)); at += sector {
		if rng.IntN(2) == 0 {
			copy(out[at:min(at+sector, size)], i.data[at:])
		}
	}
	return out
}

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (d *simDisk) open(op, name string, create, exclusive bool) (*inode, error) {
	i := d.names[name]
	switch {
	case i != nil && exclusive:
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrExist}
	case i != nil:
		return i, nil
	case !create:
		return nil, missing(op, name)
	}
	if _, ok := d.dirs[filepath.Dir(name)]; !ok {
		return nil, missing(op, name)
	}
	if err := d.do(op, name); err != nil {
		return nil, err
	}
	i = &inode{}
	d.names[name] = i
	return i, nil
}

func (d *simDisk) Create(name string) (file, error) { return d.file("create", name, true, false) }
func (d *simDisk) Append(name string) (file, error) { return d.file("append", name, false, true) }
func (d *simDisk) Overwrite(name string) (file, error) {
	return d.file("overwrite", name, false, false)
}

func (d *simDisk) file(op, name string, exclusive, end bool) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, errCrashed
	}
	if err := d.descriptor(op, name); err != nil {
		return nil, err
	}
	i, err := d.open(op, name, true, exclusive)
	if err != nil {
		return nil, err
	}
	f := &simFile{d: d, name: name, i: i}
	if end {
		f.at = len(i.data)
	}
	return f, nil
}

type simFile struct {
	d    *simDisk
	name string
	i    *inode
	at   int
}

func (f *simFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.do("write", f.name); err != nil {
		if !errors.Is(err, errCrashed) {
			// A full disk takes a part.
			f.put(p[:len(p)/2])
		}
		return 0, err
	}
	f.put(p)
	return len(p), nil
}

func (f *simFile) put(p []byte) {
	end := f.at + len(p)
	if end > len(f.i.data) {
		f.i.data = append(bytes.Clone(f.i.data), make([]byte, end-len(f.i.data))...)
	} else {
		f.i.data = bytes.Clone(f.i.data)
	}
	copy(f.i.data[f.at:], p)
	f.at = end
}

func (f *simFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.d.do("sync", f.name); err != nil {
		return err
	}
	f.i.synced = bytes.Clone(f.i.data)
	return nil
}

func (f *simFile) Close() error { return nil }

func (d *simDisk) ReadFile(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, errCrashed
	}
	if err := d.descriptor("read", name); err != nil {
		return nil, err
	}
	i := d.names[name]
	if i == nil {
		return nil, missing("read", name)
	}
	return bytes.Clone(i.data), nil
}

func (d *simDisk) Open(name string) (io.ReadCloser, error) {
	data, err := d.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (d *simDisk) ReadDir(dir string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, errCrashed
	}
	if err := d.descriptor("readdir", dir); err != nil {
		return nil, err
	}
	var list []string
	for name := range d.names {
		if filepath.Dir(name) == dir {
			list = append(list, filepath.Base(name))
		}
	}
	slices.Sort(list)
	return list, nil
}

func (d *simDisk) MkdirAll(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil { // for the lock and the socket
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var absent []string
	for p := dir; len(p) > 1; p = filepath.Dir(p) {
		if _, ok := d.dirs[p]; ok {
			break
		}
		absent = append(absent, p)
	}
	for _, p := range slices.Backward(absent) {
		if err := d.do("mkdir", p); err != nil {
			return err
		}
		d.dirs[p] = false
	}
	return nil
}

func (d *simDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, err := d.open("rename", from, false, false)
	if err != nil {
		return err
	}
	if err := d.do("rename", from); err != nil {
		return err
	}
	d.names[to] = i
	delete(d.names, from)
	return nil
}

func (d *simDisk) Link(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, err := d.open("link", from, false, false)
	if err != nil {
		return err
	}
	if d.names[to] != nil {
		return &fs.PathError{Op: "link", Path: to, Err: fs.ErrExist}
	}
	if err := d.do("link", from); err != nil {
		return err
	}
	d.names[to] = i
	return nil
}

func (d *simDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return errCrashed
	}
	if d.names[name] == nil {
		return missing("remove", name)
	}
	if err := d.do("remove", name); err != nil {
		return err
	}
	delete(d.names, name)
	return nil
}

func (d *simDisk) Truncate(name string, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.descriptor("truncate", name); err != nil {
		return err
	}
	i, err := d.open("truncate", name, false, false)
	if err != nil {
		return err
	}
	if err := d.do("truncate", name); err != nil {
		return err
	}
	i.data = bytes.Clone(i.data[:size])
	i.synced = bytes.Clone(i.data)
	return nil
}

func (d *simDisk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.descriptor("syncdir", dir); err != nil {
		return err
	}
	if err := d.do("syncdir", dir); err != nil {
		return err
	}
	for name := range d.kept {
		if filepath.Dir(name) == dir && d.names[name] == nil {
			delete(d.kept, name)
		}
	}
	for name, i := range d.names {
		if filepath.Dir(name) == dir {
			d.kept[name] = i
		}
	}
	for p := range d.dirs {
		if filepath.Dir(p) == dir {
			d.dirs[p] = true
		}
	}
	return nil
}

// holds lists the durable and visible names whose last element begins so.
func (d *simDisk) holds(prefix string) (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range []map[string]*inode{d.names, d.kept} {
		for name := range m {
			if strings.HasPrefix(filepath.Base(name), prefix) && !slices.Contains(list, filepath.Base(name)) {
				list = append(list, filepath.Base(name))
			}
		}
	}
	slices.Sort(list)
	return list
}

// at returns the number of the n-th operation, from 1, whose text has all the
// words, −1 if there is none.
func (d *simDisk) at(n int, words ...string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
next:
	for i, op := range d.journal {
		for _, w := range words {
			if !strings.Contains(op, w) {
				continue next
			}
		}
		if n--; n == 0 {
			return i
		}
	}
	return -1
}

func (d *simDisk) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprint(d.journal)
}
