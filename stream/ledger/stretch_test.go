package ledger_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
)

// periodEpoch is a test's epoch for persons with a period of 10 steps, and how it closed.
type periodEpoch struct {
	personEpoch
	step  string
	to    int64  // offset at which it closed; 0: it is open
	steps uint64 // number of steps that it had
}

func (p periodEpoch) entry(epoch uint64) ledger.Entry {
	e := p.personEpoch.entry(epoch)
	e.Person.Period, e.Person.Step = 10, p.step
	return e
}

// opened appends the opening of an epoch and, unless it stays open, its closing.
func (p periodEpoch) opened(t testing.TB, l *ledger.Ledger, epoch uint64) {
	t.Helper()
	e := p.entry(epoch)
	_, err := l.Open(e)
	fixtures.Must(t, err)
	if p.to != 0 {
		fixtures.Must(t, l.Append(*e.Closing([]ledger.EntryPart{{Partition: p.partition, End: p.to}}, p.steps)))
	}
}

// TestStretchCharge: a person pays for the epochs of one stretch of a task. A stretch is consecutive epochs that
// together have at least the steps of a period. All epochs of a task add up if they may have the same records, or if
// their settings differ. Different tasks always add up.
func TestStretchCharge(t *testing.T) {
	t.Parallel()
	base := periodEpoch{
		personEpoch: personEpoch{stream: "a", topic: "in", partitioner: "none", partitions: 4, mu: 3,
			adjacency: dp.ZeroOut, end: -1}, step: "1h0m0s", to: 100, steps: 10}
	with := func(change func(*periodEpoch)) periodEpoch {
		p := base
		change(&p)
		return p
	}
	// returns an epoch that begins where base ended, and costs more
	next := func(more ...func(*periodEpoch)) periodEpoch {
		return with(func(p *periodEpoch) {
			p.first, p.to, p.mu = 100, 0, 4
			for _, f := range more {
				f(p)
			}
		})
	}
	short := func(p *periodEpoch) { p.steps = 9 }
	murmur := func(p *periodEpoch) { p.partitioner = "murmur2" }
	for _, c := range []struct {
		name      string
		EpochList []periodEpoch
		want      float64
	}{
		{"one", []periodEpoch{base}, 3},
		{"the second stretch is dearer", []periodEpoch{base, next()}, 4},
		{"the first one is", []periodEpoch{with(func(p *periodEpoch) { p.mu = 5 }), next()}, 5},
		{"both closed", []periodEpoch{base, next(func(p *periodEpoch) { p.to = 200 })}, 4},
		{"many",
			[]periodEpoch{base, next(func(p *periodEpoch) { p.to = 200 }),
				next(func(p *periodEpoch) { p.first, p.to = 200, 300 }), next(func(p *periodEpoch) { p.first = 300 })},
			4},
		{"a step too few", []periodEpoch{with(short), next()}, 5},
		{"several short ones are a stretch",
			[]periodEpoch{with(func(p *periodEpoch) { p.mu, p.steps = 1, 4 }),
				next(func(p *periodEpoch) { p.mu, p.to, p.steps = 2, 200, 6 }),
				next(func(p *periodEpoch) { p.first, p.mu = 200, 2 })}, math.Sqrt(5)},
		{"and add up",
			[]periodEpoch{with(func(p *periodEpoch) { p.mu, p.steps = 2, 4 }),
				next(func(p *periodEpoch) { p.mu, p.to, p.steps = 2, 200, 5 }),
				next(func(p *periodEpoch) { p.first, p.mu = 200, 1 })}, 3},
		{"steps that nobody knows", []periodEpoch{with(func(p *periodEpoch) { p.steps = 0 }), next()}, 5},
		{"an end that nobody knows", []periodEpoch{with(func(p *periodEpoch) { p.to = -1 }), next()}, 5},
		{"an offset again", []periodEpoch{base, next(func(p *periodEpoch) { p.first = 99 })}, 5},
		{"the first stretch again, much later",
			[]periodEpoch{with(func(p *periodEpoch) { p.mu = 1 }), next(func(p *periodEpoch) { p.mu, p.to = 2, 200 }),
				next(func(p *periodEpoch) { p.mu, p.first = 2, 0 })}, 3},
		{"for ever",
			[]periodEpoch{with(func(p *periodEpoch) { p.mu = 1 }),
				next(func(p *periodEpoch) { p.mu, p.first, p.to = 2, 0, 200 }),
				next(func(p *periodEpoch) { p.mu, p.first = 2, 200 })}, 3},
		{"another incarnation", []periodEpoch{base, next(func(p *periodEpoch) { p.incarnation = 2 })}, 5},
		{"another topic", []periodEpoch{base, next(func(p *periodEpoch) { p.topic = "other" })}, 5},
		{"shorter steps", []periodEpoch{base, next(func(p *periodEpoch) { p.step = "1m0s" })}, 5},
		{"steps of an old line", []periodEpoch{with(func(p *periodEpoch) { p.step, p.steps = "", 0 }), next()}, 5},
		// 2·1.5 under replace
		{"another adjacency",
			[]periodEpoch{with(func(p *periodEpoch) { p.mu = 1.5 }),
				next(func(p *periodEpoch) { p.adjacency = dp.Replace })}, 5},
		{"another partition", []periodEpoch{base, next(func(p *periodEpoch) { p.partition = 1 })}, 5},
		{"another stream", []periodEpoch{base, next(func(p *periodEpoch) { p.stream = "b" })}, 5},
		{"two stretches of each of two partitions",
			[]periodEpoch{base, next(func(p *periodEpoch) { p.mu = 1 }),
				with(func(p *periodEpoch) { p.partition, p.mu = 1, 1 }),
				next(func(p *periodEpoch) { p.partition = 1 })}, 5},
		{"enforced, two partitions",
			[]periodEpoch{with(murmur), next(murmur), with(func(p *periodEpoch) { p.partition = 1; murmur(p) })}, 4},
		{"enforced, two streams",
			[]periodEpoch{with(murmur), next(murmur, func(p *periodEpoch) { p.mu = 1 }),
				with(func(p *periodEpoch) { p.stream, p.mu = "b", 4; murmur(p) })}, 5},
		{"one that had no step is none",
			[]periodEpoch{with(short), next(func(p *periodEpoch) { p.to, p.steps = 100, 0 })}, 3},
	} {
		l, numbers := emptyLedger(t), map[core.Task]uint64{}
		a := c.EpochList[len(c.EpochList)-1].adjacency
		for i, p := range c.EpochList {
			task := core.Task{Stream: p.stream, Partition: p.partition}
			numbers[task]++
			e := p.entry(numbers[task])
			if i == len(c.EpochList)-1 { // the charge computed before the opening equals the charge after it
				got, err := dp.Charged(l.Charges(e.Account(), &e, nil), a, 1e-8)
				fixtures.Must(t, err)
				if want := c.want; p.to == 0 && !atLeast(got.Mu, want) {
					t.Errorf("%s: before it opens mu %g would be charged, want %g", c.name, got.Mu, want)
				}
			}
			p.opened(t, l, numbers[task])
		}
		for range 2 { // a query changes nothing
			if got := chargedMu(t, l, a); !atLeast(got, c.want) {
				t.Errorf("%s: mu %g is charged, want %g", c.name, got, c.want)
			}
		}
		data, err := l.Disk.ReadFile(l.Path)
		fixtures.Must(t, err)
		again, err := ledger.Parse(data, nil)
		fixtures.Must(t, err)
		if got, was := chargedMu(t, again, a), chargedMu(t, l, a); got != was {
			t.Errorf("%s: read again, mu %g is charged, not %g", c.name, got, was)
		}
	}
}

// TestStretchMerged: a merged epoch continues the previous one if it begins where that ended in each partition; a new
// partition may begin anywhere.
func TestStretchMerged(t *testing.T) {
	t.Parallel()
	merged := func(epoch uint64, parts ...ledger.EntryPart) ledger.Entry {
		e := periodEpoch{
			personEpoch: personEpoch{stream: "a", topic: "in", partition: core.Merged, partitioner: "none",
				partitions: 3, mu: 3, adjacency: dp.ZeroOut}, step: "1h0m0s"}.entry(epoch)
		e.Incarnation, e.Parts = 0, parts
		e.AddUp()
		return e
	}
	part := func(n int, first, end int64) ledger.EntryPart {
		return ledger.EntryPart{Partition: n, Incarnation: 1, First: first, End: end}
	}
	for _, c := range []struct {
		name   string
		second []ledger.EntryPart
		want   float64
	}{
		{"in each", []ledger.EntryPart{part(0, 100, -1), part(1, 50, -1)}, 3},
		{"with a new one", []ledger.EntryPart{part(0, 100, -1), part(1, 50, -1), part(2, 7, -1)}, 3},
		{"without one", []ledger.EntryPart{part(1, 50, -1)}, 3},
		{"not in the second", []ledger.EntryPart{part(0, 150, -1), part(1, 49, -1)}, math.Sqrt(18)},
		{"not in the first", []ledger.EntryPart{part(0, 99, -1), part(1, 60, -1)}, math.Sqrt(18)},
	} {
		l := emptyLedger(t)
		first := merged(1, part(0, 10, -1), part(1, 20, -1))
		_, err := l.Open(first)
		fixtures.Must(t, err)
		fixtures.Must(t,
			l.Append(*first.Closing([]ledger.EntryPart{{Partition: 0, End: 100}, {Partition: 1, End: 50}}, 25)))
		_, err = l.Open(merged(2, c.second...))
		fixtures.Must(t, err)
		if got := chargedMu(t, l, dp.ZeroOut); !atLeast(got, c.want) {
			t.Errorf("%s: mu %g is charged, want %g", c.name, got, c.want)
		}
	}
}

// TestStretchRandom compares the charge with the largest payment of any unit, computed from all lines. It uses random
// epochs of two tasks; some have an unknown number of steps, some read an offset again.
func TestStretchRandom(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(20, 5))
	separate := 0
	for range 150 {
		l := emptyLedger(t)
		of := map[int][]periodEpoch{}
		at := map[int]int64{}
		for range 10 {
			p := periodEpoch{
				personEpoch: personEpoch{stream: "a", topic: "in", partition: rng.IntN(2), partitioner: "none",
					partitions: 2, mu: 0.1 + rng.Float64(), adjacency: dp.ZeroOut, end: -1}, step: "1h0m0s"}
			p.first = at[p.partition]
			if rng.IntN(25) == 0 {
				p.first = max(0, p.first-1)
			}
			p.to, p.steps = p.first+1+int64(rng.IntN(20)), uint64(rng.IntN(14))
			at[p.partition] = p.to
			p.opened(t, l, uint64(len(of[p.partition])+1))
			of[p.partition] = append(of[p.partition], p)

			want := 0.0
			for _, epochs := range of {
				again := slices.ContainsFunc(epochs, func(p periodEpoch) bool {
					return slices.ContainsFunc(epochs,
						func(q periodEpoch) bool { return p != q && p.first < q.to && q.first < p.to })
				})
				worst, sum, steps := 0.0, 0.0, uint64(0)
				for _, p := range epochs {
					if steps >= 10 && !again {
						sum, steps = 0, 0
						separate++
					}
					sum, steps = sum+p.mu*p.mu, steps+p.steps
					worst = max(worst, sum)
				}
				want += worst
			}
			if got := chargedMu(t, l, dp.ZeroOut); !atLeast(got*(1+1e-14), math.Sqrt(want)) {
				t.Fatalf("mu %g is charged, want %g, after %+v", got, math.Sqrt(want), of)
			}
		}
	}
	if separate < 100 {
		t.Errorf("only %d stretches that are not the first", separate)
	}
}

// TestStretchLimit: the last epoch used up the limit. If it had the steps of a whole period, another epoch is allowed,
// both before and after the last one is closed. If it had fewer steps, another epoch is refused. An epoch that reads an
// offset again is always refused.
func TestStretchLimit(t *testing.T) {
	t.Parallel()
	mu, err := dp.Mu(1, 1e-8)
	fixtures.Must(t, err)
	p := periodEpoch{
		personEpoch: personEpoch{stream: "a", topic: "in", partitioner: "none", partitions: 1, mu: mu,
			adjacency: dp.ZeroOut, end: -1}, step: "1h0m0s"}
	limited := func(epoch uint64, first int64) ledger.Entry {
		e := p.entry(epoch)
		e.First, e.LimitEpsilon = first, 1.01
		return e
	}
	l := emptyLedger(t)
	var over *ledger.ErrBudget
	for epoch := uint64(1); epoch <= 5; epoch++ {
		first := int64(100 * epoch)
		e := limited(epoch, first)
		if charged, err := l.Open(e); err != nil || math.Abs(charged-1) > 1e-9 {
			t.Fatalf("epoch %d is charged %g, %v", epoch, charged, err)
		}
		opened := l.Opening(e.Task(), epoch)
		end := []ledger.EntryPart{{End: first + 100}}
		if err := l.Affords(limited(epoch+1, first+100), opened, end, 9); !errors.As(err, &over) {
			t.Errorf("behind epoch %d with 9 steps: %v", epoch, err)
		}
		if err := l.Affords(limited(epoch+1, first+99), opened, end, 10); !errors.As(err, &over) {
			t.Errorf("over an offset of epoch %d: %v", epoch, err)
		}
		if err := l.Affords(limited(epoch+1, first+100), opened, end, 10); err != nil {
			t.Errorf("behind epoch %d with 10 steps: %v", epoch, err)
		}
		fixtures.Must(t, l.Append(*e.Closing(end, 10)))
	}
	if _, err := l.Open(limited(6, 150)); !errors.As(err, &over) || !((*over.Spent()) > 2) {
		t.Errorf("an epoch over the first one's records: %v", err)
	}
	events, err := l.BudgetOf(members, 0)
	fixtures.Must(t, err)
	for _, e := range events {
		if math.Abs(e.ChargedEpsilon-1) > 1e-4 {
			t.Errorf("after %s of epoch %d: epsilon %g", e.Kind, e.Epoch, e.ChargedEpsilon)
		}
	}
}

// TestStretchLines: only the closing of an epoch with a period states its steps, and no opening without a period states
// the length of a step.
func TestStretchLines(t *testing.T) {
	t.Parallel()
	p := periodEpoch{
		personEpoch: personEpoch{stream: "a", topic: "in", partitioner: "none", partitions: 1, mu: 1,
			adjacency: dp.ZeroOut, end: -1}, step: "1h0m0s"}
	e := p.entry(1)
	end := *e.Closing([]ledger.EntryPart{{End: 5}}, 10)
	text := string(rechain(t, []ledger.Entry{e, end}))
	if _, err := ledger.Parse([]byte(text), nil); err != nil ||
		!strings.Contains(text, `"period":10,"step":"1h0m0s"`) || !strings.Contains(text, `"steps":10`) {
		t.Errorf("%s: %v", text, err)
	}
	whole := p.personEpoch.entry(1)
	if c := whole.Closing([]ledger.EntryPart{{End: 5}}, 10); c.Steps != 0 {
		t.Error("the closing of an epoch without a period says its steps")
	}
	length := p.personEpoch.entry(1)
	length.Person.Step = "1h0m0s"
	stepped := e
	stepped.Steps = 3
	for name, lines := range map[string][]ledger.Entry{
		"steps without a period": {whole, end}, "a length without one": {length}, "an opening with steps": {stepped},
	} {
		if _, err := ledger.Parse(rechain(t, lines), nil); !errors.Is(err, ledger.ErrLedger) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStretchRollover: a daemon whose limit is the cost of one epoch continues after the horizon, and after a restart,
// because a period is over. It halts if epochs were closed early and together have fewer steps than a period.
func TestStretchRollover(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, "step   = 100",
			"step = 5\nhorizon = 4\non_horizon = \"rollover\"\n"+
				"user = { key = \"record-key\", max_users = 15, separation = 3, period = 3 }", "limit_epsilon = 3.0",
			"limit_epsilon = 1.3"))
	closings := func() (steps []uint64) {
		for _, e := range r.Entries() {
			switch {
			case e.Kind == ledger.KindOpen && (e.Person.Period != 3 || e.Person.Step != "5 offsets"):
				t.Errorf("opened for %+v", e.Person)
			case e.Kind == ledger.KindClose:
				steps = append(steps, e.Steps)
			}
		}
		return steps
	}
	x := r.Start()
	r.SendUsers(0, 0, 50)
	x.Until("epoch 3", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
	if s := x.D.Status()[0]; math.Abs(s.ChargedEpsilon-1) > 1e-4 {
		t.Errorf("charged %g", s.ChargedEpsilon)
	}
	x.End()
	err := r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	})
	if err == nil || !strings.Contains(err.Error(), "budget of population orders spent") {
		t.Errorf("after two steps: %v", err)
	}
	r.SendUsers(0, 50, 5) // complete the third step of a period
	x = r.Start()
	x.Published(3)
	x.End()
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	}))
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	})) // the epoch had no step
	r.SendUsers(0, 55, 5)
	x = r.Start()
	x.Published(1)
	x.End()
	fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.CloseEpoch(ctx, d, fixtures.OrdersTask, false)
	}))
	if got, want := closings(), []uint64{4, 4, 3, 0, 1}; !slices.Equal(got, want) {
		t.Errorf("epochs had %v steps, want %v", got, want)
	}
	err = r.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
	})
	if err == nil || !strings.Contains(err.Error(), "budget of population orders spent") {
		t.Errorf("behind an epoch of one step: %v", err)
	}
}
