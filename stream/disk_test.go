package stream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"streamdp/internal/kafka/embedded"
)

// rolloverStream ends its epochs after three steps of ten records and opens the
// next by itself.
var rolloverStream = with(ordersStream, "step   = 100", "step = 10\nhorizon = 3\non_horizon = \"rollover\"")

const (
	scenarioRecords = 75 // two whole epochs, one step of a third, and five left over
	scenarioSteps   = 7
)

// scenario is one life of a state directory: open, three steps with a commit
// each, close, roll over, again, and a step more.
type scenario struct {
	r    *rig
	done int // operations until everything was published
}

// newScenario starts a broker of its own, which takes a millisecond.
func newScenario(t testing.TB) *scenario {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, b, b.Addr(), rolloverStream)
	r.commit = "0s"
	r.disk = newSimDisk(r.dir)
	r.produce(0, scenarioRecords)
	return &scenario{r: r}
}

func (s *scenario) close() {
	s.r.client.Close()
	s.r.broker.Close()
}

// run runs a daemon until everything is published, or its disk crashes.
func (s *scenario) run(t testing.TB) error {
	t.Helper()
	d := s.r.disk.(*simDisk)
	x, err := s.r.try()
	if err != nil {
		return err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case <-x.done:
			return x.result
		case <-x.wake:
		case <-late.C:
			t.Fatalf("not done: %+v\n%s\n%s", x.d.Status()[0], d, s.r.log)
		}
		if st := x.d.Status()[0]; st.Epoch > 0 && st.State == stateRunning && st.NextOffset == scenarioRecords && st.Outbox == 0 {
			d.mu.Lock()
			s.done = d.ops
			d.mu.Unlock()
			x.stop()
			return x.ends()
		}
	}
}

// crashed is run with a crash before operation k, then the machine's start.
func (s *scenario) crashed(t testing.TB, k, mode int, rng *rand.Rand) (crashed bool) {
	t.Helper()
	d := s.r.disk.(*simDisk)
	d.crash = k
	err := s.run(t)
	if !d.down {
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		return false
	}
	if !errors.Is(err, errCrashed) {
		t.Fatalf("operation %d failed, and the daemon ended with %v", k, err)
	}
	s.r.disk = d.reboot(mode, rng)
	return true
}

// epochReference are the releases of an uninterrupted run whose first epoch has
// number 1 + shift, by place of the epoch in the log and step.
type epochReference map[[2]int64]published

func reference(t *testing.T, shift int) epochReference {
	t.Helper()
	s := newScenario(t)
	defer s.close()
	var crashes []int
	for range shift {
		// A crash between charge and secret: the epoch is void.
		probe := newScenario(t)
		for _, k := range crashes {
			probe.crashed(t, k, crashLost, nil)
		}
		probe.r.disk.(*simDisk).crash = -1
		if err := probe.run(t); err != nil {
			t.Fatal(err)
		}
		k := probe.r.disk.(*simDisk).at(1, "create", "secret-")
		probe.close()
		if k < 0 || !s.crashed(t, k, crashLost, nil) {
			t.Fatal("no crash")
		}
		crashes = append(crashes, k)
	}
	s.r.disk.(*simDisk).crash = -1
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	ref := epochReference{}
	for _, p := range s.r.output("orders.dp") {
		if want := uint64(p.parse(t).Covers[0]/30+1) + uint64(shift); p.epoch != want {
			t.Fatalf("release %s has epoch %d, want %d", p.key, p.epoch, want)
		}
		ref[[2]int64{p.parse(t).Covers[0], int64(p.step)}] = p
	}
	if len(ref) != scenarioSteps {
		t.Fatalf("%d releases, want %d", len(ref), scenarioSteps)
	}
	return ref
}

// verify holds the end of a scenario against what must be true after any crash.
func (s *scenario) verify(t testing.TB, refs []epochReference) {
	t.Helper()
	list := s.r.output("orders.dp")
	v := judge(t, list)
	v.faultless(t)
	if len(v.bytes) != scenarioSteps {
		t.Errorf("%d releases, want %d", len(v.bytes), scenarioSteps)
	}
	for _, p := range v.byKey {
		base := p.parse(t).Covers[0]
		shift := int(p.epoch) - int(base/30+1)
		if shift < 0 || shift >= len(refs) {
			t.Errorf("release %s, from offset %d on", p.key, base)
			continue
		}
		if want := refs[shift][[2]int64{base, int64(p.step)}]; want.hash != p.hash {
			t.Errorf("release %s is not that of the uninterrupted run:\n%s\n%s", p.key, p.value, want.value)
		}
	}

	d := s.r.disk.(*simDisk)
	data, err := d.ReadFile(filepath.Join(s.r.dir, "state", "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	entries, _, err := parseLedger(data)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{entries: entries}
	charges, ended := 0, map[uint64]string{}
	for _, e := range entries {
		switch e.Kind {
		case kindOpen:
			charges++
		case kindVoid:
			charges--
			ended[e.Epoch] = kindVoid
		case kindClose:
			ended[e.Epoch] = kindClose
		case kindDestroyed:
			ended[e.Epoch] = kindDestroyed
		}
	}
	if charges != 3 {
		t.Errorf("%d epochs are charged, want 3: %s", charges, data)
	}
	first := entries[0]
	if got, err := l.charged(first.Source, first.Cost.Adjacency, first.LimitDelta, nil); err != nil || got.Mu != first.Cost.Mu {
		t.Errorf("the worst-off record paid mu %g, an epoch costs %g", got.Mu, first.Cost.Mu)
	}
	// Nothing outlives its epoch.
	open := 0
	for _, e := range entries {
		if e.Kind != kindOpen {
			continue
		}
		secrets := d.holds(secretName(e.Epoch))
		switch ended[e.Epoch] {
		case "":
			open++
			if len(secrets) != 1 {
				t.Errorf("epoch %d is open, secrets %v", e.Epoch, secrets)
			}
		case kindClose:
			t.Errorf("epoch %d is closed and not destroyed", e.Epoch)
		default:
			if len(secrets) != 0 {
				t.Errorf("the secret of epoch %d is still there", e.Epoch)
			}
		}
	}
	if open != 1 {
		t.Errorf("%d epochs are open", open)
	}
	for _, name := range d.holds("checkpoint") {
		data, err := d.ReadFile(filepath.Join(s.r.dir, "state", "tasks", "orders-0", name))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := parseCheckpoint(slotContent(data)); err == nil && ended[c.epoch] != "" {
			t.Errorf("%s is of epoch %d, which has ended", name, c.epoch)
		}
	}
	for _, name := range []string{"checkpoint.tmp", "opening-"} {
		if left := d.holds(name); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// TestDiskCrashes stops the machine before every operation of the scenario, and
// once more somewhere in the recovery. What was not synced is lost, has
// arrived, or any part of it has. It is run with checkpoints in a file and in
// slots.
func TestDiskCrashes(t *testing.T) {
	for _, slots := range []bool{false, true} {
		name := "file"
		if slots {
			name = "slots"
		}
		t.Run(name, func(t *testing.T) {
			if slots {
				defer func(n int) { slotBytes = n }(slotBytes)
				slotBytes = 1
			}
			refs := []epochReference{reference(t, 0), reference(t, 1), reference(t, 2)}
			operations := 0
			{
				s := newScenario(t)
				if err := s.run(t); err != nil {
					t.Fatal(err)
				}
				s.verify(t, refs)
				operations = s.r.disk.(*simDisk).ops
				s.close()
			}
			var mu sync.Mutex
			points, recoveries := 0, 0
			jobs := make(chan int)
			var wg sync.WaitGroup
			for range 3 { // most of a run is waiting for the network
				wg.Go(func() {
					for k := range jobs {
						for mode := range crashModes {
							rng := rand.New(rand.NewPCG(uint64(k), uint64(mode)))
							s := newScenario(t)
							if s.crashed(t, k, mode, rng) {
								mu.Lock()
								points++
								mu.Unlock()
								if mode == crashMixed && s.crashed(t, rng.IntN(30), mode, rng) {
									mu.Lock()
									recoveries++
									mu.Unlock()
								}
								s.r.disk.(*simDisk).crash = -1
								if err := s.run(t); err != nil {
									t.Errorf("operation %d, mode %d: %v", k, mode, err)
								}
								s.verify(t, refs)
							}
							if t.Failed() {
								t.Logf("operation %d, mode %d", k, mode)
							}
							s.close()
						}
					}
				})
			}
			for k := range operations {
				jobs <- k
				if t.Failed() {
					break
				}
			}
			close(jobs)
			wg.Wait()
			t.Logf("%d operations, %d crashes, %d more in the recovery", operations, points, recoveries)
			if points < 3*operations-9 || recoveries < operations/2 {
				t.Errorf("only %d crashes at %d operations, %d in recoveries", points, operations, recoveries)
			}
		})
	}
}

// operations returns the numbers of the scenario's operations that ok takes,
// and their names, from the first charge to the last publication.
func operations(t testing.TB, ok func(op string) bool) (list []int, names []string) {
	t.Helper()
	s := newScenario(t)
	defer s.close()
	if err := s.run(t); err != nil {
		t.Fatal(err)
	}
	d := s.r.disk.(*simDisk)
	begun := false
	for k, op := range d.journal[:s.done] {
		begun = begun || strings.HasPrefix(op, "append")
		if begun && ok(op) {
			list, names = append(list, k), append(names, op)
		}
	}
	return list, names
}

// TestDiskSyncFails: after a sync that failed nothing on the disk is known, so
// the process ends with an error, whichever sync it is; and the next one finds
// everything.
func TestDiskSyncFails(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0), reference(t, 1)}
	syncs, names := operations(t, func(op string) bool { return strings.HasPrefix(op, "sync") })
	for i, k := range syncs {
		s := newScenario(t)
		d := s.r.disk.(*simDisk)
		d.refuse = func(op, name string) error {
			if d.ops == k {
				return syscall.EIO
			}
			return nil
		}
		if err := s.run(t); !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d, %s, failed, the daemon ended with %v", k, names[i], err)
		}
		d.refuse = nil
		if err := s.run(t); err != nil {
			t.Errorf("after a failed %s: %v", names[i], err)
		}
		s.verify(t, refs)
		s.close()
	}
	t.Logf("%d syncs failed", len(syncs))
}

// TestDiskFull: a disk without room, from any operation on, stops a task at its
// last commit; when there is room it goes on, and nothing is lost.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0)}
	writes, names := operations(t, func(op string) bool { return !strings.HasPrefix(op, "remove") })
	check := func(k int, name string) {
		s := newScenario(t)
		defer s.close()
		d := s.r.disk.(*simDisk)
		var room atomic.Bool
		d.refuse = func(op, _ string) error {
			if d.ops >= k && op != "remove" && op != "truncate" && !room.Load() {
				return syscall.ENOSPC
			}
			return nil
		}
		x := s.r.start()
		x.until("refused", func(st TaskStatus) bool {
			return st.State == stateRetrying && strings.Contains(st.Message, "no space left")
		})
		if code, why := x.get("/-/ready"); code != 503 || !strings.Contains(why, stateRetrying) {
			t.Errorf("%s: ready is %d %s", name, code, why)
		}
		if code, _ := x.get("/-/healthy"); code != 200 {
			t.Errorf("%s: healthy is %d", name, code)
		}
		room.Store(true)
		x.until("published", func(st TaskStatus) bool {
			return st.State == stateRunning && st.Epoch == 3 && st.NextOffset == scenarioRecords && st.Outbox == 0
		})
		x.end()
		s.verify(t, refs)
	}
	// All of them take ten seconds; every third shows every kind.
	stride := 3
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	count := 0
	for i := 0; i < len(writes); i += stride {
		check(writes[i], names[i])
		count++
	}
	t.Logf("full at %d operations", count)
}

// outputIfAny is output of a topic that may be missing.
func (r *rig) outputIfAny(topic string) []published {
	r.t.Helper()
	c := dial(r.t, r.addr)
	info, err := c.Topic(r.t.Context(), topic)
	if err != nil {
		r.t.Fatal(err)
	}
	if !info.Exists {
		return nil
	}
	return r.output(topic)
}

// TestStore drives the store alone through commits of sizes around the limit of
// a file, with a crash before each operation: what is loaded is the last commit
// that ended, or the one that was under way.
func TestStore(t *testing.T) {
	defer func(n int) { slotBytes = n }(slotBytes)
	slotBytes = 6 << 10
	dir := "/state/tasks/orders-0"
	sizes := []int{100, 700, 7000, 300, 9000, 20000, 5000, 40}
	script := func(d *simDisk) (done uint64, err error) {
		s, err := openStore(d, dir)
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
			s, err := openStore(d.reboot(mode, rng), dir)
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
			again, err := openStore(s.disk.(*simDisk).reboot(crashLost, nil), dir)
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
			s, err := openStore(d, "/state/tasks/orders-0")
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
	s, err := openStore(d, "/state/tasks/orders-0")
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
	s, err := openStore(osDisk{}, dir)
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
