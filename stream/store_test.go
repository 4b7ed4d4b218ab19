package stream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestStore drives the store alone through commits of sizes around the limit of
// a file, with a crash before each operation: what is loaded is the last commit
// that ended, or the one that was under way.
func TestStore(t *testing.T) {
	defer func(n int) { slotBytes = n }(slotBytes)
	slotBytes = 6 << 10
	dir := "/state/tasks/orders-0"
	sizes := []int{100, 700, 7000, 300, 9000, 20000, 5000, 40}
	script := func(d *simDisk) (done uint64, err error) {
		s, err := openStore(d, dir, nil)
		if err != nil {
			return 0, err
		}
		if _, err := s.load(); err != nil {
			return 0, err
		}
		for i, n := range sizes {
			if err := s.commit(&checkpoint{epoch: 1, step: uint64(i + 1), state: make([]byte, n)}); err != nil {
				return done, err
			}
			done = uint64(i + 1)
		}
		return done, nil
	}
	begin := func() *simDisk {
		d := newSimDisk("/state")
		d.dirs["/state/tasks"] = true
		return d
	}
	d := begin()
	if _, err := script(d); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(d.holds("checkpoint")); got != "[checkpoint.0 checkpoint.1]" {
		t.Errorf("files %s", got)
	}
	total := d.ops
	torn := 0
	for k := range total {
		for round := range 20 {
			mode := round % crashModes
			rng := rand.New(rand.NewPCG(uint64(k), uint64(round)))
			d := begin()
			d.crash = k
			done, err := script(d)
			if !errors.Is(err, errCrashed) {
				t.Fatalf("operation %d: %v", k, err)
			}
			s, err := openStore(d.reboot(mode, rng), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			c, err := s.load()
			if err != nil {
				t.Fatalf("operation %d, round %d: after step %d: %v", k, round, done, err)
			}
			got := uint64(0)
			if c != nil {
				got = c.step
				if len(c.state) != sizes[got-1] {
					t.Fatalf("step %d has a state of %d bytes", got, len(c.state))
				}
			}
			if got != done && got != done+1 {
				t.Fatalf("operation %d, round %d: loaded step %d, %d was committed", k, round, got, done)
			}
			for _, name := range slotNames {
				if data, err := s.disk.ReadFile(s.path(name)); err == nil {
					if _, err := parseCheckpoint(slotContent(data)); err != nil {
						torn++
					}
				}
			}
			// What comes next counts more than whatever the crash left.
			next := &checkpoint{epoch: 1, step: got + 1, state: make([]byte, sizes[min(int(got), len(sizes)-1)])}
			if err := s.commit(next); err != nil {
				t.Fatal(err)
			}
			again, err := openStore(s.disk.(*simDisk).reboot(crashLost, nil), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c, err := again.load(); err != nil || c == nil || c.step != got+1 {
				t.Fatalf("operation %d, round %d: after another commit %v, %v", k, round, c, err)
			}
			if err := again.erase(); err != nil {
				t.Fatal(err)
			}
			if left := again.disk.(*simDisk).holds("checkpoint"); len(left) > 0 {
				t.Fatalf("%v survive", left)
			}
		}
	}
	t.Logf("%d operations, %d torn slots met", total, torn)
	if torn == 0 {
		t.Error("no slot was ever torn")
	}
}

// TestStoreFull: a commit that had no room leaves the one before, and a later
// one counts more than what it left behind.
func TestStoreFull(t *testing.T) {
	defer func(n int) { slotBytes = n }(slotBytes)
	for _, slots := range []int{1, 1 << 20} {
		slotBytes = slots
		for _, at := range []string{"create", "overwrite", "write", "sync", "remove", "link", "rename", "syncdir"} {
			d := newSimDisk("/state/tasks/orders-0")
			s, err := openStore(d, "/state/tasks/orders-0", nil)
			if err != nil {
				t.Fatal(err)
			}
			commit := func(step uint64) error {
				return s.commit(&checkpoint{epoch: 1, step: step, state: make([]byte, 3000)})
			}
			for step := range uint64(3) {
				if err := commit(step + 1); err != nil {
					t.Fatal(err)
				}
			}
			loads := func(want ...uint64) {
				t.Helper()
				// Also after a crash that leaves only what is durable.
				for _, disk := range []*simDisk{d, d.reboot(crashLost, nil)} {
					c, err := (&store{disk: disk, dir: s.dir}).load()
					if err != nil || c == nil || c.step < want[0] || c.step > want[len(want)-1] {
						t.Errorf("%s, slots from %d bytes: loaded %v, %v, want step %d", at, slots, c, err, want)
					}
				}
			}
			refused := false
			d.refuse = func(op, _ string) error {
				if op == at {
					refused = true
					return syscall.ENOSPC
				}
				return nil
			}
			if err := commit(4); refused != (err != nil) || err != nil && !full(err) {
				t.Fatalf("%s: %v", at, err)
			}
			d.refuse = nil
			loads(3, 4)
			if err := commit(5); err != nil {
				t.Fatal(err)
			}
			loads(5)
		}
	}
}

// TestStoreDamaged: bits that rot are noticed; of two slots the other is taken,
// as a restored copy would be.
func TestStoreDamaged(t *testing.T) {
	defer func(n int) { slotBytes = n }(slotBytes)
	slotBytes = 1
	d := newSimDisk("/state/tasks/orders-0")
	s, err := openStore(d, "/state/tasks/orders-0", nil)
	if err != nil {
		t.Fatal(err)
	}
	for step := range uint64(4) {
		if err := s.commit(&checkpoint{epoch: 1, step: step + 1, state: make([]byte, 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	rot := func(slot int) {
		i := d.names[s.path(slotNames[slot])]
		i.data[len(i.data)/2] ^= 1
	}
	rot(s.slot)
	again := &store{disk: d, dir: s.dir}
	if c, err := again.load(); err != nil || c.step != 3 || again.slot == s.slot {
		t.Errorf("loaded %v, %v", c, err)
	}
	rot(1 - s.slot)
	if c, err := again.load(); !errors.Is(err, errCheckpoint) {
		t.Errorf("loaded %v, %v", c, err)
	}
}

// TestStoreOnDisk is the store on the machine's own file system: modes, names,
// and a longer commit overwritten by a shorter one.
func TestStoreOnDisk(t *testing.T) {
	defer func(n int) { slotBytes = n }(slotBytes)
	dir := filepath.Join(t.TempDir(), "orders-0")
	s, err := openStore(osDisk{}, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	slotBytes = 4000
	for step, size := range []int{10, 20, 9000, 5000, 30, 40, 6000} {
		if err := s.commit(&checkpoint{epoch: 1, step: uint64(step), state: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
		c, err := (&store{disk: osDisk{}, dir: dir}).load()
		if err != nil || c.step != uint64(step) || len(c.state) != size {
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
	if err := s.erase(); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("%v survive", entries)
	}
}
