package stream_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
)

// TestClockUsers: with steps by the clock, the rule for persons holds no matter how far the task reads ahead. A task
// that is stopped after every step makes the same bytes as a copy that reads all steps at once. Nothing is read ahead
// of a due snapshot.
func TestClockUsers(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{
		"cap":        "cap = 3, max_users = 7, per_step = 2, separation = 2",
		"separation": "max_users = 90, separation = 3, period = 5",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			toml := fixtures.With(fixtures.ClockStream, `step = "1m"`,
				"step = \"1m\"\nstep_max = 30\nhorizon = 20\nuser = { key = \"record-key\", "+user+" }", `"zero-out"`,
				`"replace"`)
			r, h := streamtest.ClockRig(t, toml, 1), streamtest.NewHand()
			on := []func(*stream.Options){h.On}
			x := r.Start(on...)
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			first, steps := 0, []int{9, 0, 30, 1, 25, 30, 4, 12}
			copied := r.Sibling(toml)
			for i, n := range steps {
				r.SendUsers(0, first, n)
				first += n
				h.Tick()
				x.Published(uint64(i + 1))
				x.End()
				if i == 0 {
					r.CopyState(copied)
				}
				x = r.Start(on...)
			}
			x.End()
			if out := r.OutputOf("orders.dp"); len(out) != len(steps) {
				t.Fatalf("%d releases", len(out))
			}
			x = copied.Start(on...)
			x.Published(uint64(len(steps)))
			x.End()
			r.OutputOf("orders.dp") // each release once
			o := r.Options()
			all, err := recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
				fixtures.OrdersTask)
			if err != nil || len(all) != 1 || all[0].Releases != len(steps) || all[0].Difference != "" ||
				all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
			for _, r := range []*streamtest.Rig{r, copied} {
				files, err := filepath.Glob(r.File("users-1.*"))
				fixtures.Must(t, err)
				snapshots := 0
				for _, file := range files {
					data, err := os.ReadFile(file)
					fixtures.Must(t, err)
					if bytes.Contains(data[:20], []byte(" s\n")) {
						snapshots++
					}
				}
				if (snapshots > 0) != (name == "cap") {
					t.Errorf("%d snapshots in %v", snapshots, files)
				}
			}
			// A task that has lost its files of persons continues at the same offset as the copy that has them.
			for _, name := range r.HasUsers() {
				fixtures.Must(t, os.Remove(name))
			}
			x = r.Start(on...)
			x.Halts(failure.State, "streamdp recover --stream orders --partition 0")
			x.EndHalted()
			fixtures.Must(t, r.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.Recover(ctx, d, fixtures.OrdersTask, nil)
			}))
			r.SendUsers(0, first, 20)
			h.Tick()
			for _, c := range []*streamtest.Rig{r, copied} {
				x = c.Start(on...)
				x.Published(uint64(len(steps) + 1))
				x.End()
			}
			r.OutputOf("orders.dp") // each release once
			all, err = recovery.Verify(t.Context(), recovery.Audit{Config: o.Config, Key: o.Key, Log: o.Log},
				fixtures.OrdersTask)
			if err != nil || all[0].Releases != len(steps)+1 || all[0].Difference+all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
		})
	}
}
