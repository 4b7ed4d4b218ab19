package stream_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// homed returns a merged stream that protects persons.
func homed(toml, step, user string) string {
	return fixtures.With(toml, step, step+"\nuser = { key = \"record-key\", partitioner = \"murmur2\", "+user+" }")
}

// usersOfMerged returns the names of the files of persons of a merged task's epoch, for a partition.
func usersOfMerged(r *streamtest.Rig, epoch uint64, partition int) []string {
	r.T.Helper()
	names, err := filepath.Glob(
		filepath.Join(r.Dir, "state", "tasks", "orders-merged", fmt.Sprintf("users-%d.p%d.*", epoch, partition)))
	fixtures.Must(r.T, err)
	return names
}

// TestMergedUsers: a merged task that is stopped after every step makes the same bytes as a copy that reads all steps
// at once, and as its auditor. Each partition has its own files of persons. If the files of one partition are lost, the
// request recover restores them, and the releases have the same bytes.
func TestMergedUsers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		toml  string
		clock bool
	}{
		"full tables": {
			toml: homed(fixtures.With(fixtures.MergedStream, "step = 100", "step = 10\nhorizon = 20"), "horizon = 20",
				"cap = 3, max_users = 2, per_step = 2, separation = 2")},
		"separation": {
			toml: homed(fixtures.With(fixtures.MergedStream, "step = 100", "step = 10", `"zero-out"`, `"replace"`),
				"step = 10", "max_users = 30, separation = 3, period = 5")},
		"by the clock": {clock: true,
			toml: homed(
				fixtures.With(fixtures.MergedClockStream, `step = "1m"`, "step = \"1m\"\nstep_max = 30\nhorizon = 20",
					`"zero-out"`, `"replace"`), "horizon = 20",
				"cap = 3, max_users = 600, separation = 2")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := streamtest.NewMergedRig(t, c.toml, 3), streamtest.NewHand()
			var on []func(*stream.Options)
			if c.clock {
				r.Boundaries = "bounds"
				on = append(on, h.On)
			}
			const steps = 8
			x := r.Start(on...)
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			copied := r.Sibling(c.toml)
			sent := [3]int{}
			for i := range steps {
				for p := range sent { // some partitions are ahead of the open step, each at another time
					n := 10*(i+1) + (i+p)%3*4 - sent[p]
					r.SendUsers(p, sent[p], n)
					sent[p] += n
				}
				h.Tick()
				x.Published(uint64(i + 1))
				x.End()
				if i == 0 {
					r.CopyState(copied)
				}
				x = r.Start(on...)
			}
			x.End()
			if out := r.OutputOf("orders.dp"); len(out) != steps {
				t.Fatalf("%d releases", len(out))
			}
			x = copied.Start(on...)
			x.Published(steps)
			x.End()
			r.OutputOf("orders.dp") // each release once
			verify := func(releases int) {
				t.Helper()
				o := r.Options()
				all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
					fixtures.MergedTask)
				if err != nil || len(all) != 1 || all[0].Releases != releases ||
					all[0].Difference+all[0].Unverifiable != "" {
					t.Errorf("verify: %+v, %v", all, err)
				}
			}
			verify(steps)
			for p := range sent {
				for _, r := range []*streamtest.Rig{r, copied} {
					if len(usersOfMerged(r, 1, p)) == 0 {
						t.Errorf("partition %d has no files of persons", p)
					}
				}
			}
			for _, file := range usersOfMerged(r, 1, 1) {
				fixtures.Must(t, os.Remove(file))
			}
			x = r.Start(on...)
			x.Halts(failure.State, "streamdp recover --stream orders")
			x.EndHalted()
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.Recover(ctx, d, fixtures.MergedTask, nil)
			}))
			for p := range sent {
				if files := usersOfMerged(r, 1, p); len(files) != 1 {
					t.Errorf("recover leaves the files %v", files)
				}
				r.SendUsers(p, sent[p], 20)
			}
			h.Tick()
			for _, c := range []*streamtest.Rig{r, copied} {
				x = c.Start(on...)
				x.Published(steps + 1)
				x.End()
			}
			r.OutputOf("orders.dp") // each release once
			verify(len(r.OutputOf("orders.dp")))
			// The persons of all partitions are one account, which is charged once for the epoch.
			spent, err := readPopulations(filepath.Join(r.Dir, "state"), "orders", nil)
			if err != nil || len(spent) != 1 || len(spent[0].Epochs) != 1 || !spent[0].OnePartition ||
				spent[0].ChargedEpsilon < 0.999 || spent[0].ChargedEpsilon > 1.001 {
				t.Errorf("spent %+v, %v", spent, err)
			}
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.CloseEpoch(ctx, d, fixtures.MergedTask, false)
			}))
			for p := range sent {
				if files := usersOfMerged(r, 1, p); len(files) > 0 {
					t.Errorf("after the epoch there are %v", files)
				}
			}
		})
	}
}

// newMergedUsersScenario is newMergedScenario for a stream that protects persons: two epochs, of three steps and of
// two.
func newMergedUsersScenario(t testing.TB) *streamtest.Scenario {
	s := newMergedScenario(t)
	s.R.Toml = homed(s.R.Toml, "step = 5", "cap = 2, max_users = 2")
	return s
}

// TestMergedUsersDiskCrashes stops the machine before operations on files of persons of three partitions and on
// checkpoints, and fills its disk there. The output equals that of a run without a fault, and no file of persons
// outlives its epoch. The test uses every eleventh operation, and with STREAMDP_SLOW=1 each one.
func TestMergedUsersDiskCrashes(t *testing.T) {
	t.Parallel()
	var want map[string]string
	verify := func(t testing.TB, s *streamtest.Scenario) {
		out := s.R.OutputOf("orders.dp")
		if want == nil {
			want = out
		}
		if len(out) != 5 || fmt.Sprint(out) != fmt.Sprint(want) {
			t.Errorf("%d releases, which differ from those without a fault", len(out))
		}
		files := s.R.Disk.(*simdisk.SimDisk).Holds(state.PersonsPrefix)
		for p := range 3 {
			if !slices.ContainsFunc(files,
				func(name string) bool { return strings.HasPrefix(name, fmt.Sprintf("users-2.p%d.", p)) }) {
				t.Errorf("partition %d has no file of persons among %v", p, files)
			}
		}
		if slices.ContainsFunc(files, func(name string) bool { return !strings.HasPrefix(name, state.UsersOf(2)) }) {
			t.Errorf("epoch 2 is open, but there are %v", files)
		}
	}
	streamtest.CrashUsers(t, 11, newMergedUsersScenario, verify)
}
