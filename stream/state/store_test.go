package state_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// TestStore tests the store alone with commits of sizes around the limit of a file, and a crash before each operation:
// Load returns the last commit that ended, or the one in progress.
func TestStore(t *testing.T) {
	defer func(n int) { state.SlotBytes = n }(state.SlotBytes)
	state.SlotBytes = 6 << 10
	dir := "/state/tasks/orders-0"
	sizes := []int{100, 700, 7000, 300, 9000, 20000, 5000, 40}
	script := func(d *simdisk.SimDisk) (done uint64, err error) {
		s, err := state.Open(d, dir, nil)
		if err != nil {
			return 0, err
		}
		if _, err := s.Load(); err != nil {
			return 0, err
		}
		for i, n := range sizes {
			if err := s.Commit(&state.Checkpoint{Epoch: 1, Step: uint64(i + 1), State: make([]byte, n)}); err != nil {
				return done, err
			}
			done = uint64(i + 1)
		}
		return done, nil
	}
	begin := func() *simdisk.SimDisk {
		d := simdisk.NewSimDisk("/state")
		d.Dirs["/state/tasks"] = true
		return d
	}
	d := begin()
	if _, err := script(d); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(d.Holds("checkpoint")); got != "[checkpoint.0 checkpoint.1]" {
		t.Errorf("files %s", got)
	}
	total := d.Ops
	torn := 0
	for k := range total {
		for round := range 20 {
			mode := round % simdisk.CrashModes
			rng := rand.New(rand.NewPCG(uint64(k), uint64(round)))
			d := begin()
			d.Crash = k
			done, err := script(d)
			if !errors.Is(err, simdisk.ErrCrashed) {
				t.Fatalf("operation %d: %v", k, err)
			}
			s, err := state.Open(d.Reboot(mode, rng), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			c, err := s.Load()
			if err != nil {
				t.Fatalf("operation %d, round %d: after step %d: %v", k, round, done, err)
			}
			got := uint64(0)
			if c != nil {
				got = c.Step
				if len(c.State) != sizes[got-1] {
					t.Fatalf("step %d has a state of %d bytes", got, len(c.State))
				}
			}
			if got != done && got != done+1 {
				t.Fatalf("operation %d, round %d: loaded step %d, %d was committed", k, round, got, done)
			}
			for _, name := range state.SlotNames {
				if data, err := s.Disk.ReadFile(s.Path(name)); err == nil {
					if _, err := state.ParseCheckpoint(state.SlotContent(data)); err != nil {
						torn++
					}
				}
			}
			// The next commit has a larger number than any commit that the crash left.
			next := &state.Checkpoint{Epoch: 1, Step: got + 1, State: make([]byte, sizes[min(int(got), len(sizes)-1)])}
			if err := s.Commit(next); err != nil {
				t.Fatal(err)
			}
			again, err := state.Open(s.Disk.(*simdisk.SimDisk).Reboot(simdisk.CrashLost, nil), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c, err := again.Load(); err != nil || c == nil || c.Step != got+1 {
				t.Fatalf("operation %d, round %d: after another commit %v, %v", k, round, c, err)
			}
			if err := again.Erase(); err != nil {
				t.Fatal(err)
			}
			if left := again.Disk.(*simdisk.SimDisk).Holds("checkpoint"); len(left) > 0 {
				t.Fatalf("%v survive", left)
			}
		}
	}
	t.Logf("%d operations, %d torn slots met", total, torn)
	if torn == 0 {
		t.Error("no slot was ever torn")
	}
}

// TestStoreFull: if the disk is full, a commit leaves the previous commit in place. A later commit has a larger number
// than any commit that the failed one left behind.
func TestStoreFull(t *testing.T) {
	defer func(n int) { state.SlotBytes = n }(state.SlotBytes)
	for _, slots := range []int{1, 1 << 20} {
		state.SlotBytes = slots
		for _, at := range []string{"create", "overwrite", "write", "sync", "remove", "link", "rename", "syncdir"} {
			d := simdisk.NewSimDisk("/state/tasks/orders-0")
			s, err := state.Open(d, "/state/tasks/orders-0", nil)
			if err != nil {
				t.Fatal(err)
			}
			commit := func(step uint64) error {
				return s.Commit(&state.Checkpoint{Epoch: 1, Step: step, State: make([]byte, 3000)})
			}
			for step := range uint64(3) {
				if err := commit(step + 1); err != nil {
					t.Fatal(err)
				}
			}
			loads := func(want ...uint64) {
				t.Helper()
				// This also holds after a crash that loses everything that is not durable.
				for _, disk := range []*simdisk.SimDisk{d, d.Reboot(simdisk.CrashLost, nil)} {
					c, err := (&state.Store{Disk: disk, Dir: s.Dir}).Load()
					if err != nil || c == nil || c.Step < want[0] || c.Step > want[len(want)-1] {
						t.Errorf("%s, slots from %d bytes: loaded %v, %v, want step %d", at, slots, c, err, want)
					}
				}
			}
			refused := false
			d.Refuse = func(op, _ string) error {
				if op == at {
					refused = true
					return syscall.ENOSPC
				}
				return nil
			}
			if err := commit(4); refused != (err != nil) || err != nil && !failure.DiskFull(err) {
				t.Fatalf("%s: %v", at, err)
			}
			d.Refuse = nil
			loads(3, 4)
			if err := commit(5); err != nil {
				t.Fatal(err)
			}
			loads(5)
		}
	}
}

// TestStoreDamaged: flipped bits are detected. If one of two slots is damaged, Load returns the commit in the other
// slot, which may be older, as with a restored copy.
func TestStoreDamaged(t *testing.T) {
	defer func(n int) { state.SlotBytes = n }(state.SlotBytes)
	state.SlotBytes = 1
	d := simdisk.NewSimDisk("/state/tasks/orders-0")
	s, err := state.Open(d, "/state/tasks/orders-0", nil)
	if err != nil {
		t.Fatal(err)
	}
	for step := range uint64(4) {
		if err := s.Commit(&state.Checkpoint{Epoch: 1, Step: step + 1, State: make([]byte, 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	rot := func(slot int) {
		i := d.Names[s.Path(state.SlotNames[slot])]
		i.Data[len(i.Data)/2] ^= 1
	}
	rot((*s.Slot()))
	again := &state.Store{Disk: d, Dir: s.Dir}
	if c, err := again.Load(); err != nil || c.Step != 3 || (*again.Slot()) == (*s.Slot()) {
		t.Errorf("loaded %v, %v", c, err)
	}
	rot(1 - (*s.Slot()))
	if c, err := again.Load(); !errors.Is(err, state.ErrCheckpoint) {
		t.Errorf("loaded %v, %v", c, err)
	}
}

// TestStoreOnDisk tests the store on the machine's file system: modes, names, and a longer commit overwritten by a
// shorter one.
func TestStoreOnDisk(t *testing.T) {
	defer func(n int) { state.SlotBytes = n }(state.SlotBytes)
	dir := filepath.Join(t.TempDir(), "orders-0")
	s, err := state.Open(state.OS{}, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	state.SlotBytes = 4000
	for step, size := range []int{10, 20, 9000, 5000, 30, 40, 6000} {
		if err := s.Commit(&state.Checkpoint{Epoch: 1, Step: uint64(step), State: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
		c, err := (&state.Store{Disk: state.OS{}, Dir: dir}).Load()
		if err != nil || c.Step != uint64(step) || len(c.State) != size {
			t.Fatalf("step %d: loaded %v, %v", step, c, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", e.Name(), info.Mode())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v", info.Mode())
	}
	if err := s.Erase(); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("%v survive", entries)
	}
}
