package stream_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// TestLedgerReserve: sketches are charged against the part of the limit that the source's first opening reserved. A
// charge is refused if it would fit only by using the part for Gaussian releases.
func TestLedgerReserve(t *testing.T) {
	t.Parallel()
	src := core.Source{Cluster: "c", Topic: "in", Partition: 0}
	sketch := dp.Cost{Adjacency: dp.ZeroOut, Mu: 0.1, Rows: 216, Gamma: 300, BadDelta: 1e-11}
	gauss := func(mu float64) dp.Cost { return dp.Cost{Adjacency: dp.ZeroOut, Mu: mu} }
	reserved, err := dp.Reserve(sketch, 2, 1e-8)
	fixtures.Must(t, err)
	most, err := dp.ReservedMu(reserved, 2, 1e-8)
	fixtures.Must(t, err)
	alone, err := dp.Mu(2, 1e-8)
	fixtures.Must(t, err)
	begin := func() (*ledger.Ledger, func(cost, reserved dp.Cost) error) {
		l, err := ledger.Open(state.OS{}, t.TempDir(), nil)
		fixtures.Must(t, err)
		epoch := uint64(0)
		return l, func(cost, reserved dp.Cost) error {
			epoch++
			_, err := l.Open(
				ledger.Entry{Kind: ledger.KindOpen, Stream: "a", Source: src, Epoch: epoch, Incarnation: 1,
					First: 0, End: -1,
					Mechanism: "m", Cost: cost, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 2, LimitDelta: 1e-8,
					Reserved: reserved})
			return err
		}
	}
	refused := func(what string, err error, words string) {
		t.Helper()
		if budget := (*ledger.ErrBudget)(nil); !errors.As(err, &budget) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want a refusal with %q", what, err, words)
		}
	}

	// Nothing is reserved after the first opening.
	l, open := begin()
	fixtures.Must(t, open(gauss(0.01), dp.Cost{}))
	refused("sketches after Gaussians", open(sketch, reserved), "is set aside for sketches")
	fixtures.Must(t, open(gauss(alone*0.9), dp.Cost{})) // Gaussian releases have the whole limit
	refused("Gaussians beyond the limit", open(gauss(alone*0.9), dp.Cost{}), "above limit_epsilon 2")
	if len(l.All()) != 2 {
		t.Errorf("refused epochs are in the ledger: %v", l.All())
	}

	// The first opening records the reserve, even if its mechanism has no sketches; later ones change nothing.
	l, open = begin()
	fixtures.Must(t, open(gauss(0.01), reserved))
	huge := reserved
	huge.Rows *= 10
	fixtures.Must(t, open(sketch, huge))
	for _, e := range l.All() {
		if first := e.Seq == 1; first != (e.Reserved.Rows == reserved.Rows) {
			t.Errorf("entry %d reserves %+v", e.Seq, e.Reserved)
		}
	}
	copies := reserved.Rows / sketch.Rows
	if copies < 3 {
		t.Fatalf("%d copies are reserved", copies)
	}
	for range copies - 1 {
		fixtures.Must(t, open(sketch, huge))
	}
	refused("one copy more", open(sketch, huge), "has set aside for sketches is spent")
	low := sketch
	low.Gamma *= 0.99
	low.Rows, low.BadDelta = 1, 0
	refused("less gamma", open(low, huge), "has set aside for sketches is spent")
	fixtures.Must(t, open(gauss(0.01), dp.Cost{}))

	// The reserve for sketches is not available for Gaussian releases, even if no sketch was charged.
	l, open = begin()
	fixtures.Must(t, open(gauss(most*0.99), reserved))
	refused("Gaussians for sketches", open(gauss(most*0.5), reserved), "above limit_epsilon 2")
	limit := func(epsilon float64) error {
		s := &config.Stream{Privacy: config.Privacy{LimitEpsilon: epsilon, LimitDelta: 1e-8, Adjacency: dp.ZeroOut}}
		return l.SetLimit(s, &core.Manifest{Stream: "a", Source: src, Epoch: 1})
	}
	if err := limit(1.9); err == nil || !strings.Contains(err.Error(), "not counting what is set aside for sketches") {
		t.Errorf("a limit below what is charged and set aside: %v", err)
	}
	fixtures.Must(t, limit(2.5))

	// An epoch that never began reserves only what its entry says.
	l, open = begin()
	fixtures.Must(t, open(gauss(0.01), dp.Cost{}))
	fixtures.Must(t, l.Append(ledger.Entry{Kind: ledger.KindVoid, Stream: "a", Source: src, Epoch: 1}))
	if !l.Unopened(streamtest.OfRecords(src)) {
		t.Error("an epoch that never began is the first one")
	}
	fixtures.Must(t, open(sketch, reserved))
	if l.Unopened(streamtest.OfRecords(src)) {
		t.Error("a source with an epoch is unopened")
	}
}

const reserveStreams = `
[stream.a]
input = { topic = "orders", codec = "json", columns = ["amount", "items"] }
output = { topic = "a.dp" }
step = 100
[stream.a.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.a.moments]
clip = 1.0
[stream.b]
input = { topic = "orders", codec = "json", columns = ["amount", "items"] }
output = { topic = "b.dp" }
[stream.b.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.b.refit]
solver = "ihm"
target = "items"
clip_x = 10.0
clip_y = 10.0
window = 100
`

// TestReserve: the reserve depends only on the configuration, and all streams of the topic fit together.
func TestReserve(t *testing.T) {
	t.Parallel()
	parse := func(toml string) *config.Config {
		t.Helper()
		c, err := config.Parse("test.toml",
			[]byte(
				"[kafka]\nbrokers = [\"127.0.0.1:9092\"]\n[state]\ndir = \"/tmp/x\"\nkey_file = \"/tmp/k\"\n[http]\n"+
					"listen = \"127.0.0.1:0\"\n"+toml))
		fixtures.Must(t, err)
		return c
	}
	c := parse(reserveStreams)
	a, err := core.Reserve(c, c.Stream("a"))
	fixtures.Must(t, err)
	b, err := core.Reserve(c, c.Stream("b"))
	fixtures.Must(t, err)
	if !a.Sketches.Equal(b.Sketches) || a.Mu != b.Mu || a.Sketches.Rows == 0 {
		t.Errorf("two streams of a topic reserve %+v and %+v", a, b)
	}
	d, err := dryrun.Describe(c.Stream("b"))
	fixtures.Must(t, err)
	m, err := core.NewMechanism(c.Stream("a"), nil, nil)
	fixtures.Must(t, err)
	if n := a.Sketches.Rows; n < 216 || !(a.Mu > m.Cost().Mu) || d.Epsilon != 1 {
		t.Errorf("%d rows are reserved, and %g for Gaussian releases", n, a.Mu)
	}
	if text := a.String(); !strings.Contains(text, "rows at gamma") || !strings.Contains(text, "mu at most") {
		t.Errorf("the text is %q", text)
	}
	plain := parse(strings.Replace(reserveStreams, `"ihm"`, `"newton"`, 1))
	r, err := core.Reserve(plain, plain.Stream("b"))
	fixtures.Must(t, err)
	if !r.Sketches.Empty() || r.String() != "" {
		t.Errorf("without sketches %+v is reserved", r)
	}
	tight := parse(strings.ReplaceAll(reserveStreams, "limit_epsilon = 3.0", "limit_epsilon = 1.2"))
	if _, err := core.Reserve(tight, tight.Stream("a")); err == nil ||
		!strings.Contains(err.Error(), "does not cover one epoch of each stream of topic orders (a, b)") {
		t.Errorf("a limit that does not cover both: %v", err)
	}
}

// TestReserveRun: on a topic that a stream of moments has read, a stream with sketches cannot open later. If both are
// configured from the start, both run.
func TestReserveRun(t *testing.T) {
	t.Parallel()
	first, _, _ := strings.Cut(reserveStreams, "[stream.b]")
	r := streamtest.NewRig(t, first)
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()
	r.Toml = reserveStreams
	x = r.Start()
	x.Until("the refit halts", func(monitor.TaskStatus) bool {
		all := x.D.Status()
		return len(all) == 2 && all[1].State == monitor.StateHalted && all[0].State == monitor.StateRunning
	})
	if s := x.D.Status()[1]; s.Reason != failure.Budget ||
		!strings.Contains(s.Message, "is set aside for sketches") {
		t.Errorf("the refit halted with %s: %s", s.Reason, s.Message)
	}
	x.End()

	both := r.Sibling(strings.ReplaceAll(reserveStreams, `.dp"`, `2.dp"`))
	x = both.Start()
	x.Until("both release", func(monitor.TaskStatus) bool {
		all := x.D.Status()
		return len(all) == 2 && all[0].Step >= 2 && all[1].Step >= 2 && all[0].Outbox+all[1].Outbox == 0
	})
	x.End()
	spent, err := streamtest.ReadSpent(both.Dir+"/state", "", nil)
	fixtures.Must(t, err)
	if len(spent) != 1 || spent[0].Reserved.Sketches.Rows == 0 || !(spent[0].Reserved.Mu > 0) {
		t.Errorf("the ledger says %+v", spent)
	}
}
