package stream_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

const ()

// TestDiskCrashes stops the machine before operations of the scenario, and once more during the recovery. There are
// three kinds of loss: unsynced data is lost, is complete, or is there in part. The test runs with checkpoints in a
// file and in slots. It crashes before every fourth operation, with one kind of loss drawn at random for file and for
// slots. With STREAMDP_SLOW=1 it crashes before every operation, with all three kinds.
func TestDiskCrashes(t *testing.T) {
	slow := os.Getenv("STREAMDP_SLOW") != ""
	for _, slots := range []bool{false, true} {
		name := "file"
		if slots {
			name = "slots"
		}
		t.Run(name, func(t *testing.T) {
			if slots {
				defer func(n int) { state.SlotBytes = n }(state.SlotBytes)
				state.SlotBytes = 1
			}
			refs := []fixtures.EpochReference{streamtest.Reference(t, 0), streamtest.Reference(t, 1),
				streamtest.Reference(t, 2)}
			operations := 0
			{
				s := streamtest.NewScenario(t)
				if err := s.Run(t); err != nil {
					t.Fatal(err)
				}
				s.Verify(t, refs)
				operations = s.R.Disk.(*simdisk.SimDisk).Ops
				s.Close()
			}
			var mu sync.Mutex
			points, recoveries := 0, 0
			jobs := make(chan int)
			var wg sync.WaitGroup
			for range 3 { // most of a run waits for the network
				wg.Go(func() {
					for k := range jobs {
						drawn := rand.New(rand.NewPCG(uint64(k), 99)).IntN(simdisk.CrashModes)
						for mode := range simdisk.CrashModes {
							if !slow && mode != drawn {
								continue
							}
							rng := rand.New(rand.NewPCG(uint64(k), uint64(mode)))
							s := streamtest.NewScenario(t)
							if s.Crashed(t, k, mode, rng) {
								mu.Lock()
								points++
								mu.Unlock()
								if mode == simdisk.CrashMixed && s.Crashed(t, rng.IntN(30), mode, rng) {
									mu.Lock()
									recoveries++
									mu.Unlock()
								}
								s.R.Disk.(*simdisk.SimDisk).Crash = -1
								if err := s.Run(t); err != nil {
									t.Errorf("operation %d, mode %d: %v", k, mode, err)
								}
								s.Verify(t, refs)
							}
							if t.Failed() {
								t.Logf("operation %d, mode %d", k, mode)
							}
							s.Close()
						}
					}
				})
			}
			first, every, tries := 0, 1, operations*simdisk.CrashModes
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

// operations returns the numbers and names of the scenario's operations that ok accepts, from the first charge to the
// last publication.
func operations(t testing.TB, ok func(op string) bool) (list []int, names []string) {
	t.Helper()
	s := streamtest.NewScenario(t)
	defer s.Close()
	if err := s.Run(t); err != nil {
		t.Fatal(err)
	}
	d := s.R.Disk.(*simdisk.SimDisk)
	begun := false
	for k, op := range d.Journal[:s.Done] {
		begun = begun || strings.HasPrefix(op, "append")
		if begun && ok(op) {
			list, names = append(list, k), append(names, op)
		}
	}
	return list, names
}

// TestDiskSyncFails: after a failed sync the content of the disk is unknown, so the process ends with an error, no
// matter which sync failed. The next process loses nothing. The test lets every second sync fail, one per run; with
// STREAMDP_SLOW=1 it lets each one fail.
func TestDiskSyncFails(t *testing.T) {
	t.Parallel()
	refs := []fixtures.EpochReference{streamtest.Reference(t, 0), streamtest.Reference(t, 1)}
	syncs, names := operations(t, func(op string) bool { return strings.HasPrefix(op, "sync") })
	stride := 2
	if os.Getenv("STREAMDP_SLOW") != "" {
		stride = 1
	}
	for i := 0; i < len(syncs); i += stride {
		k, s := syncs[i], streamtest.NewScenario(t)
		d := s.R.Disk.(*simdisk.SimDisk)
		d.Refuse = func(op, name string) error {
			if d.Ops == k {
				return syscall.EIO
			}
			return nil
		}
		if err := s.Run(t); !errors.Is(err, syscall.EIO) {
			t.Errorf("operation %d, %s, failed, the daemon ended with %v", k, names[i], err)
		}
		d.Refuse = nil
		if err := s.Run(t); err != nil {
			t.Errorf("after a failed %s: %v", names[i], err)
		}
		s.Verify(t, refs)
		s.Close()
	}
	t.Logf("of %d syncs one in %d failed", len(syncs), stride)
}

// TestDiskFull: if the disk is full, from any operation on, a task stops at its last commit. When there is room it
// continues, and nothing is lost.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	refs := []fixtures.EpochReference{streamtest.Reference(t, 0)}
	writes, names := operations(t, func(op string) bool { return !strings.HasPrefix(op, "remove") })
	check := func(k int, name string) {
		s := streamtest.NewScenario(t)
		defer s.Close()
		d := s.R.Disk.(*simdisk.SimDisk)
		var room atomic.Bool
		d.Refuse = func(op, _ string) error {
			if d.Ops >= k && op != "remove" && op != "truncate" && !room.Load() {
				return syscall.ENOSPC
			}
			return nil
		}
		x := s.R.Start()
		x.Until("refused", func(st monitor.TaskStatus) bool {
			return st.State == monitor.StateRetrying && strings.Contains(st.Message, "no space left")
		})
		if code, why := x.Get("/-/ready"); code != 503 || !strings.Contains(why, monitor.StateRetrying) {
			t.Errorf("%s: ready is %d %s", name, code, why)
		}
		if code, _ := x.Get("/-/healthy"); code != 200 {
			t.Errorf("%s: healthy is %d", name, code)
		}
		room.Store(true)
		x.Until("published", func(st monitor.TaskStatus) bool {
			return st.State == monitor.StateRunning && st.Epoch == 3 && st.NextOffset == fixtures.ScenarioRecords &&
				st.Outbox == 0
		})
		x.End()
		s.Verify(t, refs)
	}
	// Testing all operations takes ten seconds. Every fifth one still covers each kind of operation.
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

// TestDescriptorsOut: if a process runs out of file descriptors, at any opening of a file, it waits as for a full disk.
// When descriptors are free again it continues, and nothing is lost.
func TestDescriptorsOut(t *testing.T) {
	t.Parallel()
	refs := []fixtures.EpochReference{streamtest.Reference(t, 0)}
	total := 0
	check := func(k int) (met bool) {
		s := streamtest.NewScenario(t)
		defer s.Close()
		d := s.R.Disk.(*simdisk.SimDisk)
		var free atomic.Bool
		first := 0
		s.R.Prepare = func(*stream.Inside) { // before it opens anything else
			d.Mu.Lock()
			defer d.Mu.Unlock()
			first = d.Opens
			d.Scarce = func() bool { return d.Opens-first > k && !free.Load() }
		}
		x := s.R.Start()
		end := func(st monitor.TaskStatus) bool {
			return st.State == monitor.StateRunning && st.Epoch == 3 && st.NextOffset == fixtures.ScenarioRecords &&
				st.Outbox == 0
		}
		x.Until("out of descriptors", func(st monitor.TaskStatus) bool {
			met = st.State == monitor.StateRetrying && strings.Contains(st.Message, "too many open files")
			return met || end(st)
		})
		free.Store(true)
		x.Until("published", end)
		x.End()
		s.Verify(t, refs)
		total = d.Opens - first
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
			t.Errorf("nothing was reported although from opening %d of %d on there was no descriptor", k, total)
		}
		count++
	}
	if count < 5 {
		t.Errorf("%d openings in all", total)
	}
	t.Logf("none left at %d of %d openings", count, total)
}

// outputIfAny returns the output in a topic that may be missing.
func outputIfAny(r *streamtest.Rig, topic string) []fixtures.Published {
	r.T.Helper()
	c := fixtures.Dial(r.T, r.Addr)
	info, err := c.Topic(r.T.Context(), topic)
	if err != nil {
		r.T.Fatal(err)
	}
	if !info.Exists {
		return nil
	}
	return r.Output(topic)
}
