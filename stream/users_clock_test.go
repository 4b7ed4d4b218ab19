package stream

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestClockUsers: by the clock, persons are held to their rule whatever is read ahead. A task
// that is stopped after every step makes the bytes of a copy that reads all steps at once. Where a
// snapshot is due nothing is read ahead of it.
func TestClockUsers(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{
		"cap":        "cap = 3, max_users = 7, per_step = 2, separation = 2",
		"separation": "max_users = 90, separation = 3, period = 5",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			toml := with(clockStream, `step = "1m"`, "step = \"1m\"\nstep_max = 30\nhorizon = 20\nuser = { key = \"record-key\", "+user+" }", `"zero-out"`, `"replace"`)
			r, h := clockRig(t, toml, 1), newHand()
			on := []func(*Options){h.on}
			x := r.start(on...)
			x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
			first, steps := 0, []int{9, 0, 30, 1, 25, 30, 4, 12}
			copied := r.sibling(toml)
			for i, n := range steps {
				r.sendUsers(0, first, n)
				first += n
				h.tick()
				x.published(uint64(i + 1))
				x.end()
				if i == 0 {
					r.copyState(copied)
				}
				x = r.start(on...)
			}
			x.end()
			if out := r.outputOf("orders.dp"); len(out) != len(steps) {
				t.Fatalf("%d releases", len(out))
			}
			x = copied.start(on...)
			x.published(uint64(len(steps)))
			x.end()
			r.outputOf("orders.dp") // each release once
			o := r.options()
			all, err := Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, ordersTask)
			if err != nil || len(all) != 1 || all[0].Releases != len(steps) || all[0].Difference != "" || all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
			for _, r := range []*rig{r, copied} {
				files, err := filepath.Glob(r.file("users-1.*"))
				must(t, err)
				snapshots := 0
				for _, file := range files {
					data, err := os.ReadFile(file)
					must(t, err)
					if bytes.Contains(data[:20], []byte(" s\n")) {
						snapshots++
					}
				}
				if (snapshots > 0) != (name == "cap") {
					t.Errorf("%d snapshots in %v", snapshots, files)
				}
			}
			// Without its files of persons the one goes on where the other, which has them, does.
			for _, name := range r.hasUsers() {
				must(t, os.Remove(name))
			}
			x = r.start(on...)
			x.halts(haltState, "streamdp recover --stream orders --partition 0")
			x.endHalted()
			must(t, r.offline(func(ctx context.Context, d *Daemon) error { return d.Recover(ctx, ordersTask, nil) }))
			r.sendUsers(0, first, 20)
			h.tick()
			for _, c := range []*rig{r, copied} {
				x = c.start(on...)
				x.published(uint64(len(steps) + 1))
				x.end()
			}
			r.outputOf("orders.dp") // each release once
			all, err = Verify(t.Context(), Audit{Config: o.Config, Key: o.Key, Log: o.Log}, ordersTask)
			if err != nil || all[0].Releases != len(steps)+1 || all[0].Difference+all[0].Unverifiable != "" {
				t.Errorf("verify: %+v, %v", all, err)
			}
		})
	}
}
