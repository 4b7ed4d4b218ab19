package stream_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

// newMergedScenario is NewScenario for a stream that merges three partitions. It runs a whole epoch of three steps, and
// two steps of the next.
func newMergedScenario(t testing.TB) *streamtest.Scenario {
	t.Helper()
	r := streamtest.NewRigOn(t,
		fixtures.With(fixtures.MergedStream, "step = 100", "step = 5\nhorizon = 3\non_horizon = \"rollover\""),
		embedded.Options{})
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "orders", 3, nil))
	r.Commit = "0s"
	r.Disk = simdisk.NewSimDisk(r.Dir)
	r.Key = fixtures.UserOf
	for p := range 3 {
		r.SendTo(p, 100*p, fixtures.ScenarioRecords/3+p)
	}
	// Unlike the checkpoint of a single partition, this one may have the last position before the last release is
	// published.
	return &streamtest.Scenario{R: r, Also: func() bool { return len(r.OutputOf("orders.dp")) == 5 }}
}

// TestMergedDiskCrashes crashes before disk operations of a merged stream, in openings, commits and closings. After any
// crash the next start continues, no key has two releases, each record of a partition is in one release, every epoch
// with a release is charged in all partitions, and no record is charged for two epochs.
func TestMergedDiskCrashes(t *testing.T) {
	t.Parallel()
	crashMerged(t, newMergedScenario, 29)
}

// TestClockDiskCrashes is TestMergedDiskCrashes with steps by the clock that hold the same offsets.
func TestClockDiskCrashes(t *testing.T) {
	t.Parallel()
	crashMerged(t, newMergedClockScenario, 41)
}

// newMergedClockScenario is newMergedScenario with steps by the clock. The clock ends five steps, of at most five
// offsets of each partition, and then stops.
func newMergedClockScenario(t testing.TB) *streamtest.Scenario {
	s := newMergedScenario(t)
	s.R.Toml = fixtures.With(s.R.Toml, "step = 5", "step = \"1m\"\nstep_max = 15")
	s.R.Boundaries = "bounds"
	s.Edit = func(o *stream.Options) {
		last := int64(-1)
		o.Hooks.Beat = func(ctx context.Context) error {
			for {
				end, err := s.R.Client.End(ctx, "bounds", 0)
				if err != nil || end > last && end < 5 {
					last = end
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Millisecond): // until the boundary of the last beat exists
				}
			}
		}
	}
	return s
}

// crashMerged crashes before one of every `every` operations of a scenario. With STREAMDP_SLOW=1 it crashes before each
// operation.
func crashMerged(t *testing.T, scenarioOf func(testing.TB) *streamtest.Scenario, every int) {
	whole := scenarioOf(t)
	fixtures.Must(t, whole.Run(t))
	verifyMerged(whole, t)
	operations := whole.R.Disk.(*simdisk.SimDisk).Ops
	whole.Close()
	if os.Getenv("STREAMDP_SLOW") != "" {
		every = 1
	}
	points := 0
	for k := 0; k < operations; k += every {
		rng := rand.New(rand.NewPCG(uint64(k), 18))
		mode := rng.IntN(simdisk.CrashModes)
		s := scenarioOf(t)
		if s.Crashed(t, k, mode, rng) {
			points++
			s.R.Disk.(*simdisk.SimDisk).Crash = -1
			if err := s.Run(t); err != nil {
				t.Errorf("operation %d, mode %d: %v", k, mode, err)
			}
			verifyMerged(s, t)
		}
		s.Close()
		if t.Failed() {
			t.Fatalf("operation %d, mode %d\n%s", k, mode, s.R.Log)
		}
	}
	t.Logf("%d crashes among %d operations", points, operations)
	if points == 0 {
		t.Error("nothing crashed")
	}
}

func verifyMerged(s *streamtest.Scenario, t testing.TB) {
	t.Helper()
	data, err := s.R.Disk.ReadFile(s.R.LedgerFile())
	fixtures.Must(t, err)
	l, err := ledger.Parse(data, ledger.NewKey(connect.InsecureKey(s.R.Seed)))
	fixtures.Must(t, err)
	next := map[int][]int64{}
	for key, value := range s.R.OutputOf("orders.dp") {
		var rel struct {
			Epoch uint64
			Parts []struct {
				Partition int
				Offsets   [2]int64
			}
		}
		fixtures.Must(t, json.Unmarshal([]byte(value), &rel))
		opened := l.Opening(fixtures.MergedTask, rel.Epoch)
		if opened == nil || len(opened.Parts) != 3 || len(rel.Parts) != 3 {
			t.Fatalf("release %s exists, but the epoch's charge is %+v", key, opened)
		}
		for _, p := range rel.Parts {
			next[p.Partition] = append(next[p.Partition], p.Offsets[0])
			if p.Offsets[1] != p.Offsets[0]+5 {
				t.Errorf("release %s has %v", key, p)
			}
		}
	}
	for p := range 3 {
		slices.Sort(next[p])
		if !slices.Equal(next[p], []int64{0, 5, 10, 15, 20}) {
			t.Errorf("steps of partition %d begin at %v", p, next[p])
		}
		src := core.Source{Cluster: l.Entries[0].Cluster, Topic: "orders", Partition: p}
		if paid, err := l.Epsilon(streamtest.OfRecords(src), dp.ZeroOut, 1e-8, nil); err != nil || paid < 0.999 ||
			paid > 1.001 {
			t.Errorf("records of partition %d are charged epsilon %g, want that of one epoch; %v", p, paid, err)
		}
	}
}
