package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// TestKillsOfClock kills a daemon at random moments. The daemon has three streams whose steps end ten times a second.
// One merges three partitions, and one partition is quiet. The others read one partition each, and one of them is a
// regression whose windows are the steps. No key has two releases, none is missing, each step begins in each partition
// where the one before ended, and an auditor recomputes every release.
func TestKillsOfClock(t *testing.T) {
	t.Parallel()
	const round = 250
	n := kills(t)
	for i := uint64(0); n > 0 && !t.Failed(); i++ {
		killClock(t, i, min(n, round))
		n -= round
	}
}

func killClock(t *testing.T, round uint64, n int) {
	one := fixtures.With(strings.ReplaceAll(fixtures.ClockStream, "stream.orders", "stream.one"), `topic = "orders.dp"`,
		`topic = "one.dp"`, `step = "1m"`, `step = "100ms"`, "limit_epsilon = 3.0", "limit_epsilon = 20.0")
	merged := fixtures.With(fixtures.MergedClockStream, `step = "1m"`,
		"step = \"100ms\"\nhorizon = 40\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 20.0")
	fit := strings.ReplaceAll(fixtures.ClockRefit(one, ""), "stream.one", "stream.fit")
	r := streamtest.ClockRig(t, merged+one+fixtures.With(fit, `topic = "one.dp"`, `topic = "fit.dp"`), 3)
	r.Commit, r.Real = "10ms", true
	text := kept(r)
	spec := streamtest.ChildSpec{Role: "daemon", Config: text, Seed: r.Seed, Real: true, Fetch: 16 << 10}
	rng := rand.New(rand.NewPCG(34, round))
	var fed [3]int
	begun := time.Now()
	killSome(t, spec, rng, n, false, func() {
		for p := range 2 {
			k := 1 + rng.IntN(60)
			r.SendTo(p, 1000*p+fed[p], k)
			fed[p] += k
		}
	})
	took := time.Since(begun)
	r.SendTo(2, 2000, 3)
	fed[2] = 3
	h := streamtest.NewHand()
	x := r.Start(func(o *stream.Options) {
		o.InsecureSeed = nil
		o.Config.State.EpochSecretRetention = 100 * time.Hour
	}, h.On)
	want := map[string]int64{"orders": int64(fed[0] + fed[1] + fed[2]), "one": int64(fed[0]), "fit": int64(fed[0])}
	x.Until("all run", func(monitor.TaskStatus) bool {
		for _, s := range x.D.Status() {
			if s.State != monitor.StateRunning {
				return false
			}
		}
		return true
	})
	for range want {
		h.Tick()
	}
	for name := range want {
		x.Until(name+" has published all", func(monitor.TaskStatus) bool {
			for _, s := range x.D.Status() {
				if s.Stream == name && s.State == monitor.StateRunning && s.Outbox == 0 && !s.Comparing &&
					s.NextOffset >= want[name] {
					return true
				}
			}
			h.Tick() // a task that compares or rolls over may have missed its own tick
			return false
		})
	}
	x.End()
	cfg, err := config.Parse("kept.toml", []byte(text))
	fixtures.Must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience+time.Duration(n)*time.Second)
	defer cancel()
	total := 0
	for task, topic := range map[core.Task]string{
		fixtures.MergedTask: "orders.dp",
		{Stream: "one"}:     "one.dp",
		{Stream: "fit"}:     "fit.dp",
	} {
		out := r.OutputOf(topic)
		total += len(out)
		all, err := recovery.Verify(ctx,
			recovery.Audit{Config: cfg, Key: connect.InsecureKey(r.Seed),
				Log: slog.New(slog.NewTextHandler(r.Log, nil))}, task)
		fixtures.Must(t, err)
		verified := 0
		next := map[int]int64{}
		for _, e := range all {
			verified += e.Releases
			if e.Difference+e.Unverifiable != "" || e.Missing != 0 {
				t.Errorf("%s: %+v", task, e)
			}
			for step := uint64(1); step <= e.Step; step++ {
				rel := fixtures.ParseClock(t, out[core.Identity(task, e.Epoch, step)])
				if rel.Parts == nil {
					rel.Parts = append(rel.Parts, struct{ Offsets [2]int64 }{rel.Offsets})
				}
				for p, part := range rel.Parts {
					if part.Offsets[0] != next[p] {
						t.Errorf("%s: step %d of epoch %d begins at %d in partition %d, not at %d", task, step, e.Epoch,
							part.Offsets[0], p, next[p])
					}
					next[p] = part.Offsets[1]
				}
			}
		}
		if verified != len(out) || verified == 0 {
			t.Errorf("%s: %d of %d releases were recomputed", task, verified, len(out))
		}
	}
	t.Logf("%d kills in %v: %d releases, of %v records in three partitions", n, took.Round(time.Second), total,
		fmt.Sprint(fed))
}

// TestClockMutant: a copy of the state that lacks the existing boundaries and makes its own is detected. If the output
// has a release of the step, the copy publishes none. If both copies run before either has published, one halts before
// its second release.
func TestClockMutant(t *testing.T) {
	t.Parallel()
	// mutant returns a copy of a state before its first step, with a boundary topic of its own.
	mutant := func(r *streamtest.Rig) *streamtest.Rig {
		m := r.Sibling(fixtures.ClockStream)
		r.CopyState(m)
		m.Boundaries = "anew"
		fixtures.Must(t, m.Client.CreateTopic(t.Context(), "anew", 1, nil))
		data, err := os.ReadFile(m.File(state.CheckpointName))
		fixtures.Must(t, err)
		cp, err := state.ParseCheckpoint(data)
		fixtures.Must(t, err)
		cp.BoundaryTopic, cp.Boundary = "anew", state.UnknownBoundary
		fixtures.Must(t, os.WriteFile(m.File(state.CheckpointName), cp.Encode(nil), 0o600))
		m.Prepare = func(in *stream.Inside) { in.Own.Ledger.Entries[0].Boundaries = nil } // it would reveal the change
		return m
	}
	begin := func() (*streamtest.Rig, *streamtest.Rig) {
		r := streamtest.ClockRig(t, fixtures.ClockStream, 1)
		x := r.Start(streamtest.NewHand().On)
		x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		x.End()
		return r, mutant(r)
	}
	t.Run("restored", func(t *testing.T) {
		r, m := begin()
		h := streamtest.NewHand()
		x := r.Start(h.On)
		x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		r.SendTo(0, 0, 50)
		h.Tick()
		x.Published(1)
		x.End()
		r.SendTo(0, 50, 50)
		h.Tick()
		x = m.Start(h.On)
		x.Halts(failure.OutputAhead, "holds step 1 of epoch 1, but boundary topic anew holds boundaries up to step 0")
		x.EndHalted()
		if out := r.OutputOf("orders.dp"); len(out) != 1 {
			t.Errorf("%d releases", len(out))
		}
	})
	t.Run("at once", func(t *testing.T) {
		r, m := begin()
		one, two := streamtest.NewHand(), streamtest.NewHand()
		x, y := r.Start(one.On), m.Start(two.On)
		for _, d := range []*streamtest.Running{x, y} {
			d.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		}
		r.SendTo(0, 0, 50)
		one.Tick()
		x.Published(1)
		r.SendTo(0, 50, 50)
		two.Tick() // its first step holds 100 records, that of the other copy 50
		y.Halts(failure.OutputAhead)
		y.EndHalted()
		one.Tick()
		x.Published(2)
		x.End()
		forks := 0
		first := map[string]string{}
		fixtures.Must(t, r.Client.ReadBack(t.Context(), "orders.dp", 0, 0, func(rec *kafka.Record) error {
			if was, known := first[string(rec.Key)]; known && was != string(rec.Value) {
				forks++
			}
			first[string(rec.Key)] = string(rec.Value)
			return nil
		}))
		if forks > 0 || len(first) != 2 {
			t.Errorf("%d keys have two releases, of %d", forks, len(first))
		}
	})
}
