package streamtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// CrashUsers selects the disk operations that touch a file of persons, and those that directly follow such an
// operation. Before every stride-th of them it stops the machine or fills the disk. With STREAMDP_SLOW=1 it does so
// before each of them.
func CrashUsers(t *testing.T, stride int, begin func(testing.TB) *Scenario, verify func(testing.TB, *Scenario)) {
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	whole := begin(t)
	fixtures.Must(t, whole.Run(t))
	verify(t, whole)
	ops := whole.R.Disk.(*simdisk.SimDisk).Journal
	whole.Close()
	points := 0
	for k := 1; k < len(ops); k++ {
		near := ops[k-1] + " " + ops[k]
		if !strings.Contains(near, state.PersonsPrefix) {
			continue
		}
		if points++; points%stride > 0 {
			continue
		}
		rng := rand.New(rand.NewPCG(uint64(k), 20))
		mode := rng.IntN(simdisk.CrashModes)
		s := begin(t)
		d := s.R.Disk.(*simdisk.SimDisk)
		if points/stride%2 == 0 {
			refused := false
			d.Refuse = func(op, name string) error { // the disk is full once
				if d.Ops == k && op != "remove" && !refused {
					refused = true
					return syscall.ENOSPC
				}
				return nil
			}
		} else if s.Crashed(t, k, mode, rng) {
			s.R.Disk.(*simdisk.SimDisk).Crash = -1
		} else {
			t.Fatalf("operation %d: no crash", k)
		}
		fixtures.Must(t, s.Run(t))
		verify(t, s)
		s.Close()
		if t.Failed() {
			t.Fatalf("operation %d (%s), mode %d\n%s", k, ops[k], mode, s.R.Log)
		}
	}
	t.Logf("%d of %d points", points/stride, points)
	if points < 20 {
		t.Errorf("%d points", points)
	}
}

// Scenario is the whole life of a state directory. A daemon opens an epoch, runs three steps with a commit after each,
// and closes the epoch. It rolls over, does the same again, and then runs one step of a third epoch.
type Scenario struct {
	R    *Rig
	Done int // number of disk operations until everything was published
	// Also is a further condition for the end of the run, or nil.
	Also func() bool
	Edit func(*stream.Options) // changes the options; may be nil
}

// NewScenario starts a separate broker, which takes a millisecond.
func NewScenario(t testing.TB) *Scenario {
	t.Helper()
	return NewScenarioOf(t, func(*Rig) {})
}

// NewScenarioOf does what NewScenario does, but calls edit, which may change the rig before it has records.
func NewScenarioOf(t testing.TB, edit func(r *Rig)) *Scenario {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	r := NewRigAt(t, b, b.Addr(), fixtures.RolloverStream)
	r.Commit = "0s"
	r.Disk = simdisk.NewSimDisk(r.Dir)
	edit(r)
	r.Produce(0, fixtures.ScenarioRecords)
	return &Scenario{R: r}
}

func (s *Scenario) Close() {
	s.R.Client.Close()
	s.R.Broker.Close()
}

// Run runs a daemon until everything is published, or its disk crashes.
func (s *Scenario) Run(t testing.TB) error {
	t.Helper()
	d := s.R.Disk.(*simdisk.SimDisk)
	var edits []func(*stream.Options)
	if s.Edit != nil {
		edits = append(edits, s.Edit)
	}
	x, err := s.R.Try(edits...)
	if err != nil {
		return err
	}
	late := time.NewTimer(fixtures.Patience)
	defer late.Stop()
	for {
		select {
		case <-x.Done:
			return x.Result
		case <-x.Wake:
		case <-late.C:
			t.Fatalf("not done: %+v\n%s\n%s", x.D.Status()[0], d, s.R.Log)
		}
		if st := x.D.Status()[0]; st.Epoch > 0 && st.State == monitor.StateRunning &&
			st.NextOffset == fixtures.ScenarioRecords && st.Outbox == 0 && (s.Also == nil || s.Also()) {
			d.Mu.Lock()
			s.Done = d.Ops
			d.Mu.Unlock()
			x.Stop()
			return x.Ends()
		}
	}
}

// Crashed does what Run does, with a crash before disk operation k. Afterwards it restarts the machine.
func (s *Scenario) Crashed(t testing.TB, k, mode int, rng *rand.Rand) (crashed bool) {
	t.Helper()
	d := s.R.Disk.(*simdisk.SimDisk)
	d.Crash = k
	err := s.Run(t)
	if !d.Down {
		if err != nil {
			t.Fatalf("run: %v", err)
		}
		return false
	}
	if !errors.Is(err, simdisk.ErrCrashed) {
		t.Fatalf("operation %d failed, and the daemon ended with %v", k, err)
	}
	s.R.Disk = d.Reboot(mode, rng)
	return true
}

func Reference(t *testing.T, shift int) fixtures.EpochReference {
	t.Helper()
	return ReferenceOf(t, shift, NewScenario)
}

func ReferenceOf(t *testing.T, shift int, newScenario func(testing.TB) *Scenario) fixtures.EpochReference {
	t.Helper()
	s := newScenario(t)
	defer s.Close()
	var crashes []int
	for range shift {
		// After a crash between charge and secret, the epoch is void.
		probe := newScenario(t)
		for _, k := range crashes {
			probe.Crashed(t, k, simdisk.CrashLost, nil)
		}
		probe.R.Disk.(*simdisk.SimDisk).Crash = -1
		if err := probe.Run(t); err != nil {
			t.Fatal(err)
		}
		k := probe.R.Disk.(*simdisk.SimDisk).At(1, "create", "secret-")
		probe.Close()
		if k < 0 || !s.Crashed(t, k, simdisk.CrashLost, nil) {
			t.Fatal("no crash")
		}
		crashes = append(crashes, k)
	}
	s.R.Disk.(*simdisk.SimDisk).Crash = -1
	if err := s.Run(t); err != nil {
		t.Fatal(err)
	}
	ref := fixtures.EpochReference{}
	for _, p := range s.R.Output("orders.dp") {
		if want := uint64(p.Parse(t).Covers[0]/30+1) + uint64(shift); p.Epoch != want {
			t.Fatalf("release %s has epoch %d, want %d", p.Key, p.Epoch, want)
		}
		ref[[2]int64{p.Parse(t).Covers[0], int64(p.Step)}] = p
	}
	if len(ref) != fixtures.ScenarioSteps {
		t.Fatalf("%d releases, want %d", len(ref), fixtures.ScenarioSteps)
	}
	return ref
}

// Same fails unless the output of a scenario equals that of an uninterrupted run.
func (s *Scenario) Same(t testing.TB, refs []fixtures.EpochReference) {
	t.Helper()
	list := s.R.Output("orders.dp")
	v := Judge(t, list)
	v.Faultless(t)
	if len(v.Bytes) != fixtures.ScenarioSteps {
		t.Errorf("%d releases, want %d", len(v.Bytes), fixtures.ScenarioSteps)
	}
	for _, p := range v.ByKey {
		base := p.Parse(t).Covers[0]
		shift := int(p.Epoch) - int(base/30+1)
		if shift < 0 || shift >= len(refs) {
			t.Errorf("unexpected release %s, from offset %d on", p.Key, base)
			continue
		}
		if want := refs[shift][[2]int64{base, int64(p.Step)}]; want.Hash != p.Hash {
			t.Errorf("release %s differs from the uninterrupted run:\n%s\n%s", p.Key, p.Value, want.Value)
		}
	}
}

// Verify checks everything that must be true at the end of a scenario, after any crash.
func (s *Scenario) Verify(t testing.TB, refs []fixtures.EpochReference) {
	t.Helper()
	s.Same(t, refs)
	d := s.R.Disk.(*simdisk.SimDisk)
	data, err := d.ReadFile(filepath.Join(s.R.Dir, "state", "ledger.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Parse(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	entries := l.Entries
	charges, ended := 0, map[uint64]string{}
	for _, e := range entries {
		switch e.Kind {
		case ledger.KindOpen:
			charges++
		case ledger.KindVoid:
			charges--
			ended[e.Epoch] = ledger.KindVoid
		case ledger.KindClose:
			ended[e.Epoch] = ledger.KindClose
		case ledger.KindDestroyed:
			ended[e.Epoch] = ledger.KindDestroyed
		}
	}
	if charges != 3 {
		t.Errorf("%d epochs are charged, want 3: %s", charges, data)
	}
	first := entries[0]
	if got, err := l.Charged(OfRecords(first.Source), first.Cost.Adjacency, first.LimitDelta, nil); err != nil ||
		got.Mu != first.Cost.Mu {
		t.Errorf("the worst-off record paid mu %g, an epoch costs %g", got.Mu, first.Cost.Mu)
	}
	// No secret or file of a closed epoch may remain.
	open := 0
	for _, e := range entries {
		if e.Kind != ledger.KindOpen {
			continue
		}
		secrets := d.Holds(state.SecretName(e.Epoch))
		switch ended[e.Epoch] {
		case "":
			open++
			if len(secrets) != 1 {
				t.Errorf("epoch %d is open, secrets %v", e.Epoch, secrets)
			}
		case ledger.KindClose:
			t.Errorf("epoch %d is closed and not destroyed", e.Epoch)
		default:
			if len(secrets) != 0 {
				t.Errorf("the secret of epoch %d is still there", e.Epoch)
			}
		}
	}
	if open != 1 {
		t.Errorf("%d epochs are open, want 1", open)
	}
	for _, name := range d.Holds("checkpoint") {
		data, err := d.ReadFile(filepath.Join(s.R.Dir, "state", "tasks", "orders-0", name))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := state.ParseCheckpoint(state.SlotContent(data)); err == nil && ended[c.Epoch] != "" {
			t.Errorf("%s belongs to epoch %d, which has ended", name, c.Epoch)
		}
	}
	for _, name := range []string{"checkpoint.tmp", "opening-"} {
		if left := d.Holds(name); len(left) > 0 {
			t.Errorf("the files %v were left behind", left)
		}
	}
}

// Uninterrupted runs a daemon over the same input with the same seed, without interruption, with a separate state
// directory and output.
func (r *Rig) Uninterrupted(steps uint64) *Verdict {
	r.T.Helper()
	r.references++
	topic := fmt.Sprintf("reference%d.dp", r.references)
	ref := r.Sibling(fixtures.With(r.Toml, `"orders.dp"`, fmt.Sprintf("%q", topic)))
	ref.Commit = "10ms"
	x := ref.Start()
	x.Published(steps)
	x.End()
	return ref.History(topic)
}
