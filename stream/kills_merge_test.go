package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
)

// TestKillsOfMerged kills a daemon of a merged stream at random moments, while its three partitions get records at
// different rates, and its epochs end every few steps. No key has two releases and no release is missing. In each
// partition the epochs follow each other without a gap. Every opening charges all partitions, and an auditor recomputes
// every release.
func TestKillsOfMerged(t *testing.T) {
	t.Parallel()
	const round = 250
	n := kills(t)
	rolls := []string{"limit_epsilon = 3.0", "limit_epsilon = 20.0"}
	for name, toml := range map[string]string{
		"moments": fixtures.With(fixtures.MergedStream,
			append(rolls, "step = 100", "step = 20\nhorizon = 3\non_horizon = \"rollover\"")...),
		// The table of persons is full in some periods. Its files change after each step, and there are snapshots.
		"persons": homed(fixtures.With(fixtures.MergedStream, append(rolls, "step = 100", "step = 20")...), "step = 20",
			"cap = 2, max_users = 2, period = 5"),
		"refits": fixtures.With(fixtures.MergedRefit("window = 20\nstride = 30"),
			append(rolls, "merge = true", "merge = true\nhorizon = 3\non_horizon = \"rollover\"")...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, left := uint64(0), (n+1)/2; left > 0 && !t.Failed(); i++ {
				killMerged(t, toml, i, min(left, round))
				left -= round
			}
		})
	}
}

func killMerged(t *testing.T, toml string, round uint64, n int) {
	r := streamtest.NewMergedRig(t, toml, 3)
	r.Commit, r.Real, r.Key = "0s", true, fixtures.UserOf
	text := kept(r)
	spec := streamtest.ChildSpec{Role: "daemon", Config: text, Seed: r.Seed, Real: true, Fetch: 16 << 10}
	rng := rand.New(rand.NewPCG(33, round))
	var fed [3]int
	feed := func() {
		for p := range fed {
			if behind := fed[p] - min(fed[0], fed[1], fed[2]); behind < 200 {
				k := 1 + rng.IntN(60)
				r.SendTo(p, fed[p], k)
				fed[p] += k
			}
		}
	}
	begun := time.Now()
	killSome(t, spec, rng, n, false, feed)
	took := time.Since(begun)
	// Count steps by their ends. If windows have a stride, they end at other offsets, in epochs of three.
	steps, most := int64(0), int64(min(fed[0], fed[1], fed[2]))
	end := func(step int64) int64 { return 20 * step }
	if strings.Contains(toml, "stride") {
		end = func(step int64) int64 { return step/3*80 + []int64{0, 20, 50}[step%3] }
	}
	for end(steps+1) <= most {
		steps++
	}
	x := r.Start(func(o *stream.Options) {
		o.InsecureSeed = nil
		o.Config.State.EpochSecretRetention = 100 * time.Hour
	})
	x.Until("all is published", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRunning && s.Outbox == 0 && !s.Comparing && s.NextOffset >= 3*end(steps)
	})
	x.End()
	out := r.OutputOf("orders.dp")
	if int64(len(out)) != steps {
		t.Errorf("%d releases, want %d", len(out), steps)
	}
	epochs := 0
	ends := map[int]int64{}
	for _, e := range r.Entries() {
		if e.Kind != ledger.KindOpen && e.Kind != ledger.KindClose {
			continue
		}
		if len(e.Parts) != 3 {
			t.Fatalf("line %d is of %d partitions", e.Seq, len(e.Parts))
		}
		for _, p := range e.Parts {
			if e.Kind == ledger.KindOpen && p.First != ends[p.Partition] {
				t.Errorf("epoch %d begins at offset %d of partition %d, the one before ended at %d", e.Epoch, p.First,
					p.Partition, ends[p.Partition])
			}
			if e.Kind == ledger.KindClose {
				ends[p.Partition] = p.End
			}
		}
		if e.Kind == ledger.KindOpen {
			epochs++
		}
	}
	cfg, err := config.Parse("kept.toml", []byte(text))
	fixtures.Must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience+time.Duration(n)*time.Second)
	defer cancel()
	all, err := recovery.Verify(ctx,
		recovery.Audit{Config: cfg, Key: connect.InsecureKey(r.Seed), Log: slog.New(slog.NewTextHandler(r.Log, nil))},
		fixtures.MergedTask)
	fixtures.Must(t, err)
	verified := 0
	for _, e := range all {
		verified += e.Releases
		if e.Difference+e.Unverifiable != "" || e.Missing != 0 {
			t.Errorf("%+v", e)
		}
	}
	if verified != len(out) || verified == 0 {
		t.Errorf("%d of %d releases were recomputed", verified, len(out))
	}
	for key := range out {
		if !strings.HasPrefix(key, "orders/merged/") {
			t.Errorf("release %s", key)
		}
	}
	t.Logf("%d kills in %v: %d releases in %d epochs, offsets %v of three partitions", n, took.Round(time.Second),
		len(out), epochs, fmt.Sprint(ends))
}
