package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// TestKillsOfClock kills a daemon at random moments whose steps end ten times a second, of
// three streams: one merges three partitions, of which one is quiet, the others read one, and
// one of these is a regression, whose windows are the steps. No
// key has two releases and none is missing, each step begins in each partition where the
// one before ended, and an auditor works every release out again.
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
	one := with(strings.ReplaceAll(clockStream, "stream.orders", "stream.one"), `topic = "orders.dp"`, `topic = "one.dp"`, `step = "1m"`, `step = "100ms"`, "limit_epsilon = 3.0", "limit_epsilon = 20.0")
	merged := with(mergedClockStream, `step = "1m"`, "step = \"100ms\"\nhorizon = 40\non_horizon = \"rollover\"", "limit_epsilon = 3.0", "limit_epsilon = 20.0")
	fit := strings.ReplaceAll(clockRefit(one, ""), "stream.one", "stream.fit")
	r := clockRig(t, merged+one+with(fit, `topic = "one.dp"`, `topic = "fit.dp"`), 3)
	r.commit, r.real = "10ms", true
	text := kept(r)
	spec := childSpec{Role: "daemon", Config: text, Seed: r.seed, Real: true, Fetch: 16 << 10}
	rng := rand.New(rand.NewPCG(34, round))
	var fed [3]int
	begun := time.Now()
	killSome(t, spec, rng, n, false, func() {
		for p := range 2 {
			k := 1 + rng.IntN(60)
			r.sendTo(p, 1000*p+fed[p], k)
			fed[p] += k
		}
	})
	took := time.Since(begun)
	r.sendTo(2, 2000, 3)
	fed[2] = 3
	h := newHand()
	x := r.start(func(o *Options) { o.InsecureSeed = nil; o.Config.State.EpochSecretRetention = 100 * time.Hour }, h.on)
	want := map[string]int64{"orders": int64(fed[0] + fed[1] + fed[2]), "one": int64(fed[0]), "fit": int64(fed[0])}
	x.until("all run", func(TaskStatus) bool {
		for _, s := range x.d.Status() {
			if s.State != stateRunning {
				return false
			}
		}
		return true
	})
	for range want {
		h.tick()
	}
	for name := range want {
		x.until(name+" has published all", func(TaskStatus) bool {
			for _, s := range x.d.Status() {
				if s.Stream == name && s.State == stateRunning && s.Outbox == 0 && !s.Comparing && s.NextOffset >= want[name] {
					return true
				}
			}
			h.tick() // a task that compares, or that rolls over, may have missed its own
			return false
		})
	}
	x.end()
	cfg, err := config.Parse("kept.toml", []byte(text))
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience+time.Duration(n)*time.Second)
	defer cancel()
	total := 0
	for task, topic := range map[core.Task]string{mergedTask: "orders.dp", {Stream: "one"}: "one.dp", {Stream: "fit"}: "fit.dp"} {
		out := r.outputOf(topic)
		total += len(out)
		all, err := Verify(ctx, Audit{Config: cfg, Key: InsecureKey(r.seed), Log: slog.New(slog.NewTextHandler(r.log, nil))}, task)
		must(t, err)
		verified := 0
		next := map[int]int64{}
		for _, e := range all {
			verified += e.Releases
			if e.Difference+e.Unverifiable != "" || e.Missing != 0 {
				t.Errorf("%s: %+v", task, e)
			}
			for step := uint64(1); step <= e.Step; step++ {
				rel := parseClock(t, out[core.Identity(task, e.Epoch, step)])
				if rel.Parts == nil {
					rel.Parts = append(rel.Parts, struct{ Offsets [2]int64 }{rel.Offsets})
				}
				for p, part := range rel.Parts {
					if part.Offsets[0] != next[p] {
						t.Errorf("%s: step %d of epoch %d begins at %d in partition %d, not at %d", task, step, e.Epoch, part.Offsets[0], p, next[p])
					}
					next[p] = part.Offsets[1]
				}
			}
		}
		if verified != len(out) || verified == 0 {
			t.Errorf("%s: %d of %d releases were worked out again", task, verified, len(out))
		}
	}
	t.Logf("%d kills in %v: %d releases, of %v records in three partitions", n, took.Round(time.Second), total, fmt.Sprint(fed))
}

// TestClockMutant: a copy that decides boundaries anew, because it has none of those that
// were decided, is found. Where the output has a release of the step it makes none; where
// both copies are at work before either has published, one halts before its second release.
func TestClockMutant(t *testing.T) {
	t.Parallel()
	// mutant makes of a copy's state, before its first step, one with a boundary topic of its own.
	mutant := func(r *rig) *rig {
		m := r.sibling(clockStream)
		r.copyState(m)
		m.boundaries = "anew"
		must(t, m.client.CreateTopic(t.Context(), "anew", 1, nil))
		data, err := os.ReadFile(m.file(checkpointName))
		must(t, err)
		cp, err := parseCheckpoint(data)
		must(t, err)
		cp.boundaryTopic, cp.boundary = "anew", unknownBoundary
		must(t, os.WriteFile(m.file(checkpointName), cp.encode(nil), 0o600))
		m.prepare = func(in *Inside) { in.Own.ledger.entries[0].Boundaries = nil } // which would tell
		return m
	}
	begin := func() (*rig, *rig) {
		r := clockRig(t, clockStream, 1)
		x := r.start(newHand().on)
		x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
		x.end()
		return r, mutant(r)
	}
	t.Run("restored", func(t *testing.T) {
		r, m := begin()
		h := newHand()
		x := r.start(h.on)
		x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
		r.sendTo(0, 0, 50)
		h.tick()
		x.published(1)
		x.end()
		r.sendTo(0, 50, 50)
		h.tick()
		x = m.start(h.on)
		x.halts(haltOutput, "holds step 1 of epoch 1, and boundary topic anew holds boundaries up to step 0")
		x.endHalted()
		if out := r.outputOf("orders.dp"); len(out) != 1 {
			t.Errorf("%d releases", len(out))
		}
	})
	t.Run("at once", func(t *testing.T) {
		r, m := begin()
		one, two := newHand(), newHand()
		x, y := r.start(one.on), m.start(two.on)
		for _, d := range []*running{x, y} {
			d.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
		}
		r.sendTo(0, 0, 50)
		one.tick()
		x.published(1)
		r.sendTo(0, 50, 50)
		two.tick() // its first step holds 100 records, that of the other 50
		y.halts(haltOutput)
		y.endHalted()
		one.tick()
		x.published(2)
		x.end()
		forks := 0
		first := map[string]string{}
		must(t, r.client.ReadBack(t.Context(), "orders.dp", 0, 0, func(rec *kafka.Record) error {
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
