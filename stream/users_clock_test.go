package stream

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"streamdp/config"
	"streamdp/internal/kafka"
)

// usersOn makes a daemon protect persons, as a manifest's configuration asks for it.
func usersOn(t testing.TB, user string) func(*Options) {
	return func(o *Options) {
		was := o.Config.Streams[0]
		s, err := config.StreamOf(was.Name, []byte(strings.TrimSuffix(string(was.Canonical(0)), "}")+`,"user":`+user+"}"))
		must(t, err)
		s.Output, s.MergeAhead, s.Input.Partitions = was.Output, was.MergeAhead, was.Input.Partitions
		o.Config.Streams[0] = s
	}
}

// sendUsers appends n records of nine persons, one of whom is nobody, to a partition of "orders".
func (r *rig) sendUsers(partition, first, n int) {
	r.t.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Value: orderRecord(first + i), Time: time.UnixMilli(1)}
		if u := (first + i) * 7 % 19 % 10; u > 0 {
			list[i].Key = fmt.Append(nil, "u", u)
		}
	}
	if n == 0 {
		return
	}
	if _, err := r.client.Produce(r.t.Context(), "orders", int32(partition), list); err != nil {
		r.t.Fatal(err)
	}
}

// TestClockUsers: by the clock, persons are held to their rule whatever is read ahead. A task
// that is stopped after every step makes the bytes of a copy that reads all steps at once. Where a
// snapshot is due nothing is read ahead of it.
func TestClockUsers(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{
		"cap":        `{"cap":3,"key":"record-key","max_users":7,"partitioner":"none","per_step":2,"population":"orders","separation":2}`,
		"separation": `{"cap":0,"key":"record-key","max_users":90,"partitioner":"none","per_step":1,"population":"orders","separation":3}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			toml := with(clockStream, `step = "1m"`, "step = \"1m\"\nstep_max = 30\nhorizon = 20")
			r, h := clockRig(t, toml, 1), newHand()
			on := []func(*Options){h.on, usersOn(t, user)}
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
			on[1](&o)
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
		})
	}
}
