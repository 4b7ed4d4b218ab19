package stream

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
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
	// also is what must hold too before the life is over; nil: nothing.
	also func() bool
	edit func(*Options) // nil: nothing
}

// newScenario starts a broker of its own, which takes a millisecond.
func newScenario(t testing.TB) *scenario {
	t.Helper()
	return newScenarioOf(t, func(*rig) {})
}

// newScenarioOf is newScenario for a rig that is changed before it has records.
func newScenarioOf(t testing.TB, edit func(r *rig)) *scenario {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, b, b.Addr(), rolloverStream)
	r.commit = "0s"
	r.disk = newSimDisk(r.dir)
	edit(r)
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
	var edits []func(*Options)
	if s.edit != nil {
		edits = append(edits, s.edit)
	}
	x, err := s.r.try(edits...)
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
		if st := x.d.Status()[0]; st.Epoch > 0 && st.State == stateRunning && st.NextOffset == scenarioRecords && st.Outbox == 0 && (s.also == nil || s.also()) {
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
	return referenceOf(t, shift, newScenario)
}

func referenceOf(t *testing.T, shift int, newScenario func(testing.TB) *scenario) epochReference {
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

// same fails unless the output of a scenario is that of an uninterrupted run.
func (s *scenario) same(t testing.TB, refs []epochReference) {
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
}

// verify holds the end of a scenario against what must be true after any crash.
func (s *scenario) verify(t testing.TB, refs []epochReference) {
	t.Helper()
	s.same(t, refs)
	d := s.r.disk.(*simDisk)
	data, err := d.ReadFile(filepath.Join(s.r.dir, "state", "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLedger(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries := l.entries
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
	if got, err := l.charged(ofRecords(first.Source), first.Cost.Adjacency, first.LimitDelta, nil); err != nil || got.Mu != first.Cost.Mu {
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
// slots. Every fourth operation takes one of these three losses, drawn, others with slots
// than with a file; with STREAMDP_SLOW=1 each takes all.
func TestDiskCrashes(t *testing.T) {
	slow := os.Getenv("STREAMDP_SLOW") != ""
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
						drawn := rand.New(rand.NewPCG(uint64(k), 99)).IntN(crashModes)
						for mode := range crashModes {
							if !slow && mode != drawn {
								continue
							}
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
			first, every, tries := 0, 1, operations*crashModes
			if !slow {
				every, tries = 4, operations/4
				if slots {
					first = 1
				}
			}
			for k := first; k < operations && !t.Failed(); k += every {
				jobs <- k
			}
			close(jobs)
			wg.Wait()
			t.Logf("%d operations, %d crashes, %d more in the recovery", operations, points, recoveries)
			if points < tries-9 || recoveries < tries/6 {
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
// everything. It takes every second sync, and with STREAMDP_SLOW=1 all.
func TestDiskSyncFails(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0), reference(t, 1)}
	syncs, names := operations(t, func(op string) bool { return strings.HasPrefix(op, "sync") })
	stride := 2
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	for i := 0; i < len(syncs); i += stride {
		k, s := syncs[i], newScenario(t)
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
	t.Logf("of %d syncs one in %d failed", len(syncs), stride)
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
	// All of them take ten seconds; every fifth shows every kind.
	stride := 5
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

// TestDescriptorsOut: a process without a free descriptor, from any opening of a
// file on, waits like one whose disk is full; when there are some it goes on, and
// nothing is lost.
func TestDescriptorsOut(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0)}
	total := 0
	check := func(k int) (met bool) {
		s := newScenario(t)
		defer s.close()
		d := s.r.disk.(*simDisk)
		var free atomic.Bool
		first := 0
		s.r.prepare = func(*Inside) { // before it opens anything more
			d.mu.Lock()
			defer d.mu.Unlock()
			first = d.opens
			d.scarce = func() bool { return d.opens-first > k && !free.Load() }
		}
		x := s.r.start()
		end := func(st TaskStatus) bool {
			return st.State == stateRunning && st.Epoch == 3 && st.NextOffset == scenarioRecords && st.Outbox == 0
		}
		x.until("out of descriptors", func(st TaskStatus) bool {
			met = st.State == stateRetrying && strings.Contains(st.Message, "too many open files")
			return met || end(st)
		})
		free.Store(true)
		x.until("published", end)
		x.end()
		s.verify(t, refs)
		total = d.opens - first
		return met
	}
	check(math.MaxInt)
	stride := 5
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	count := 0
	for k := 0; k < total*3/4; k += stride {
		if !check(k) {
			t.Errorf("nobody noticed that from opening %d of %d on there was no descriptor", k, total)
		}
		count++
	}
	if count < 5 {
		t.Errorf("%d openings in all", total)
	}
	t.Logf("none left at %d of %d openings", count, total)
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
