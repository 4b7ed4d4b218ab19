package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// newMergedScenario is newScenario for a stream that merges three partitions: a whole epoch
// of three steps, and two steps of the next.
func newMergedScenario(t testing.TB) *scenario {
	t.Helper()
	r := newRigOn(t, with(mergedStream, "step = 100", "step = 5\nhorizon = 3\non_horizon = \"rollover\""), embedded.Options{})
	must(t, r.broker.CreateTopic(t.Context(), "orders", 3, nil))
	r.commit = "0s"
	r.disk = newSimDisk(r.dir)
	r.key = userOf
	for p := range 3 {
		r.sendTo(p, 100*p, scenarioRecords/3+p)
	}
	// Unlike that of a single partition, its checkpoint may have the last position before
	// the last release has left.
	return &scenario{r: r, also: func() bool { return len(r.outputOf("orders.dp")) == 5 }}
}

// TestMergedDiskCrashes crashes before disk operations of a merged stream's life, in its
// openings, commits and closings. Whatever is on disk then: the next start goes on, no key
// has two releases, each partition's records are in one release each, every epoch with a
// release is charged in all partitions, and no record has paid for two epochs.
func TestMergedDiskCrashes(t *testing.T) {
	t.Parallel()
	crashMerged(t, newMergedScenario, 29)
}

// TestClockDiskCrashes is the same with steps by the clock, which hold what those have that
// are so many offsets.
func TestClockDiskCrashes(t *testing.T) {
	t.Parallel()
	crashMerged(t, newMergedClockScenario, 41)
}

// newMergedClockScenario is newMergedScenario with a clock that ends five steps of at most
// five offsets of each partition, and then stands still.
func newMergedClockScenario(t testing.TB) *scenario {
	s := newMergedScenario(t)
	s.r.toml = with(s.r.toml, "step = 5", "step = \"1m\"\nstep_max = 15")
	s.r.boundaries = "bounds"
	s.edit = func(o *Options) {
		last := int64(-1)
		o.Hooks.Beat = func(ctx context.Context) error {
			for {
				end, err := s.r.client.End(ctx, "bounds", 0)
				if err != nil || end > last && end < 5 {
					last = end
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Millisecond): // until the boundary of the last beat is there
				}
			}
		}
	}
	return s
}

// crashMerged crashes before every so-and-so-manieth operation of a scenario, with
// STREAMDP_SLOW=1 before each.
func crashMerged(t *testing.T, scenarioOf func(testing.TB) *scenario, every int) {
	whole := scenarioOf(t)
	must(t, whole.run(t))
	verifyMerged(whole, t)
	operations := whole.r.disk.(*simDisk).ops
	whole.close()
	if os.Getenv("STREAMDP_SLOW") != "" {
		every = 1
	}
	points := 0
	for k := 0; k < operations; k += every {
		rng := rand.New(rand.NewPCG(uint64(k), 18))
		mode := rng.IntN(crashModes)
		s := scenarioOf(t)
		if s.crashed(t, k, mode, rng) {
			points++
			s.r.disk.(*simDisk).crash = -1
			if err := s.run(t); err != nil {
				t.Errorf("operation %d, mode %d: %v", k, mode, err)
			}
			verifyMerged(s, t)
		}
		s.close()
		if t.Failed() {
			t.Fatalf("operation %d, mode %d\n%s", k, mode, s.r.log)
		}
	}
	t.Logf("%d crashes among %d operations", points, operations)
	if points == 0 {
		t.Error("nothing crashed")
	}
}

func verifyMerged(s *scenario, t testing.TB) {
	t.Helper()
	data, err := s.r.disk.ReadFile(s.r.ledgerFile())
	must(t, err)
	l, err := parseLedger(data, newLedgerKey(InsecureKey(s.r.seed)))
	must(t, err)
	next := map[int][]int64{}
	for key, value := range s.r.outputOf("orders.dp") {
		var rel struct {
			Epoch uint64
			Parts []struct {
				Partition int
				Offsets   [2]int64
			}
		}
		must(t, json.Unmarshal([]byte(value), &rel))
		opened := l.opening(mergedTask, rel.Epoch)
		if opened == nil || len(opened.Parts) != 3 || len(rel.Parts) != 3 {
			t.Fatalf("release %s, and the epoch is charged by %+v", key, opened)
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
		src := core.Source{Cluster: l.entries[0].Cluster, Topic: "orders", Partition: p}
		if paid, err := l.epsilon(ofRecords(src), dp.ZeroOut, 1e-8, nil); err != nil || paid < 0.999 || paid > 1.001 {
			t.Errorf("records of partition %d have paid epsilon %g, want that of one epoch; %v", p, paid, err)
		}
	}
}
