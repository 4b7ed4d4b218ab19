// Package simdisk simulates a disk that loses data that was not synced, writes parts of files, and fails operations as
// a test demands.
package simdisk

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

	"github.com/streamdp/streamdp/stream/state"
)

// SimDisk is a disk in memory. The contents of a file are durable after Sync, and a name is durable after SyncDir of
// its directory. A crash keeps everything that is durable. It also keeps an arbitrary part of the rest, as real disks
// and journals do: any of the names, and any sectors of 512 bytes of the contents.
type SimDisk struct {
	Mu    sync.Mutex
	Names map[string]*inode // as the running process sees them
	kept  map[string]*inode // the durable names
	Dirs  map[string]bool   // true: the directory is durable

	Ops     int      // operations so far that changed something
	Journal []string // the names of these operations
	Crash   int      // the operation before which the machine crashes; −1: never
	Down    bool
	Refuse  func(op, name string) error // returns an error for an operation that must fail

	Opens  int         // how often a file or directory was opened, for writing or reading
	Scarce func() bool // reports whether the process has no file descriptor left
}

// descriptor counts the opening of a file, and fails if no file descriptor is left.
func (d *SimDisk) descriptor(op, name string) error {
	d.Opens++
	if d.Scarce != nil && d.Scarce() {
		return &fs.PathError{Op: op, Path: name, Err: syscall.EMFILE}
	}
	return nil
}

type inode struct {
	Data   []byte
	synced []byte // the durable contents
}

var ErrCrashed = errors.New("simulated crash")

// NewSimDisk returns an empty disk with one directory.
func NewSimDisk(root string) *SimDisk {
	d := &SimDisk{Names: map[string]*inode{}, kept: map[string]*inode{}, Dirs: map[string]bool{}, Crash: -1}
	for ; len(root) > 1; root = filepath.Dir(root) {
		d.Dirs[root] = true
	}
	return d
}

const sector = 512

// do counts an operation that changes something. After the crash it returns an error.
func (d *SimDisk) do(op, name string) error {
	if d.Down || d.Ops == d.Crash {
		d.Down = true
		return ErrCrashed
	}
	if d.Refuse != nil {
		if err := d.Refuse(op, name); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	d.Ops++
	d.Journal = append(d.Journal, op+" "+filepath.Base(name))
	return nil
}

// These are the modes of a crash: data that was not synced is lost, kept, or partly kept.
const (
	CrashLost = iota
	CrashArrived
	CrashMixed
	CrashModes
)

// Reboot returns the disk after a crash, as the next process finds it.
func (d *SimDisk) Reboot(mode int, rng *rand.Rand) *SimDisk {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	arrives := func() bool { return mode == CrashArrived || mode == CrashMixed && rng.IntN(2) == 0 }
	n := NewSimDisk("/")
	var dirs []string
	for dir := range d.Dirs {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs) // parents first; and rng is used in a fixed order
	for _, dir := range dirs {
		if parent := filepath.Dir(dir); d.Dirs[dir] || arrives() {
			if _, known := d.Dirs[parent]; !known || n.Dirs[parent] {
				n.Dirs[dir] = true
			}
		}
	}
	all := map[string]bool{}
	for name := range d.Names {
		all[name] = true
	}
	for name := range d.kept {
		all[name] = true
	}
	contents := map[*inode]*inode{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		i := d.kept[name]
		if arrives() {
			i = d.Names[name]
		}
		if i == nil || !n.Dirs[filepath.Dir(name)] {
			continue
		}
		if contents[i] == nil {
			data := survives(i, mode, rng)
			contents[i] = &inode{Data: data, synced: bytes.Clone(data)}
		}
		n.Names[name], n.kept[name] = contents[i], contents[i]
	}
	return n
}

// survives returns the contents of a file after a crash.
func survives(i *inode, mode int, rng *rand.Rand) []byte {
	switch mode {
	case CrashLost:
		return bytes.Clone(i.synced)
	case CrashArrived:
		return bytes.Clone(i.Data)
	}
	size := len(i.Data)
	if rng.IntN(2) == 0 {
		size = len(i.synced)
	}
	out := make([]byte, size)
	copy(out, i.synced)
	for at := 0; at < min(size, len(i.Data)); at += sector {
		if rng.IntN(2) == 0 {
			copy(out[at:min(at+sector, size)], i.Data[at:])
		}
	}
	return out
}

func Missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (d *SimDisk) open(op, name string, create, exclusive bool) (*inode, error) {
	i := d.Names[name]
	switch {
	case i != nil && exclusive:
		return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrExist}
	case i != nil:
		return i, nil
	case !create:
		return nil, Missing(op, name)
	}
	if _, ok := d.Dirs[filepath.Dir(name)]; !ok {
		return nil, Missing(op, name)
	}
	if err := d.do(op, name); err != nil {
		return nil, err
	}
	i = &inode{}
	d.Names[name] = i
	return i, nil
}

func (d *SimDisk) Create(name string) (state.File, error) { return d.file("create", name, true, false) }
func (d *SimDisk) Append(name string) (state.File, error) { return d.file("append", name, false, true) }
func (d *SimDisk) Overwrite(name string) (state.File, error) {
	return d.file("overwrite", name, false, false)
}

func (d *SimDisk) file(op, name string, exclusive, end bool) (state.File, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Down {
		return nil, ErrCrashed
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
		f.at = len(i.Data)
	}
	return f, nil
}

type simFile struct {
	d    *SimDisk
	name string
	i    *inode
	at   int
}

func (f *simFile) Write(p []byte) (int, error) {
	f.d.Mu.Lock()
	defer f.d.Mu.Unlock()
	if err := f.d.do("write", f.name); err != nil {
		if !errors.Is(err, ErrCrashed) {
			// A full disk still stores the first part of a write.
			f.put(p[:len(p)/2])
		}
		return 0, err
	}
	f.put(p)
	return len(p), nil
}

func (f *simFile) put(p []byte) {
	end := f.at + len(p)
	if end > len(f.i.Data) {
		f.i.Data = append(bytes.Clone(f.i.Data), make([]byte, end-len(f.i.Data))...)
	} else {
		f.i.Data = bytes.Clone(f.i.Data)
	}
	copy(f.i.Data[f.at:], p)
	f.at = end
}

func (f *simFile) Sync() error {
	f.d.Mu.Lock()
	defer f.d.Mu.Unlock()
	if err := f.d.do("sync", f.name); err != nil {
		return err
	}
	f.i.synced = bytes.Clone(f.i.Data)
	return nil
}

func (f *simFile) Close() error { return nil }

func (d *SimDisk) ReadFile(name string) ([]byte, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Down {
		return nil, ErrCrashed
	}
	if err := d.descriptor("read", name); err != nil {
		return nil, err
	}
	i := d.Names[name]
	if i == nil {
		return nil, Missing("read", name)
	}
	return bytes.Clone(i.Data), nil
}

func (d *SimDisk) Open(name string) (io.ReadCloser, error) {
	data, err := d.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (d *SimDisk) ReadDir(dir string) ([]string, error) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Down {
		return nil, ErrCrashed
	}
	if err := d.descriptor("readdir", dir); err != nil {
		return nil, err
	}
	var list []string
	for name := range d.Names {
		if filepath.Dir(name) == dir {
			list = append(list, filepath.Base(name))
		}
	}
	slices.Sort(list)
	return list, nil
}

func (d *SimDisk) MkdirAll(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil { // the lock and the socket need a real directory
		return err
	}
	d.Mu.Lock()
	defer d.Mu.Unlock()
	var absent []string
	for p := dir; len(p) > 1; p = filepath.Dir(p) {
		if _, ok := d.Dirs[p]; ok {
			break
		}
		absent = append(absent, p)
	}
	for _, p := range slices.Backward(absent) {
		if err := d.do("mkdir", p); err != nil {
			return err
		}
		d.Dirs[p] = false
	}
	return nil
}

func (d *SimDisk) Rename(from, to string) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	i, err := d.open("rename", from, false, false)
	if err != nil {
		return err
	}
	if err := d.do("rename", from); err != nil {
		return err
	}
	d.Names[to] = i
	delete(d.Names, from)
	return nil
}

func (d *SimDisk) Link(from, to string) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	i, err := d.open("link", from, false, false)
	if err != nil {
		return err
	}
	if d.Names[to] != nil {
		return &fs.PathError{Op: "link", Path: to, Err: fs.ErrExist}
	}
	if err := d.do("link", from); err != nil {
		return err
	}
	d.Names[to] = i
	return nil
}

func (d *SimDisk) Remove(name string) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if d.Down {
		return ErrCrashed
	}
	if d.Names[name] == nil {
		return Missing("remove", name)
	}
	if err := d.do("remove", name); err != nil {
		return err
	}
	delete(d.Names, name)
	return nil
}

func (d *SimDisk) Truncate(name string, size int64) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
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
	i.Data = bytes.Clone(i.Data[:size])
	i.synced = bytes.Clone(i.Data)
	return nil
}

func (d *SimDisk) SyncDir(dir string) error {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	if err := d.descriptor("syncdir", dir); err != nil {
		return err
	}
	if err := d.do("syncdir", dir); err != nil {
		return err
	}
	for name := range d.kept {
		if filepath.Dir(name) == dir && d.Names[name] == nil {
			delete(d.kept, name)
		}
	}
	for name, i := range d.Names {
		if filepath.Dir(name) == dir {
			d.kept[name] = i
		}
	}
	for p := range d.Dirs {
		if filepath.Dir(p) == dir {
			d.Dirs[p] = true
		}
	}
	return nil
}

// Holds lists the durable and the visible names whose last element begins with prefix.
func (d *SimDisk) Holds(prefix string) (list []string) {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	for _, m := range []map[string]*inode{d.Names, d.kept} {
		for name := range m {
			if strings.HasPrefix(filepath.Base(name), prefix) && !slices.Contains(list, filepath.Base(name)) {
				list = append(list, filepath.Base(name))
			}
		}
	}
	slices.Sort(list)
	return list
}

// At returns the number of the n-th operation whose name contains all the words. n counts from 1. At returns −1 if
// there is no such operation.
func (d *SimDisk) At(n int, words ...string) int {
	d.Mu.Lock()
	defer d.Mu.Unlock()
next:
	for i, op := range d.Journal {
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

func (d *SimDisk) String() string {
	d.Mu.Lock()
	defer d.Mu.Unlock()
	return fmt.Sprint(d.Journal)
}
