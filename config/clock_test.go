package config

import (
	"strings"
	"testing"
	"time"
)

// TestClock: a step is a number of offsets or a period of the clock, and mechanisms that can't
// have the latter say so.
func TestClock(t *testing.T) {
	text := strings.NewReplacer(`brokers = ["localhost:9092"]`, "brokers = [\"localhost:9092\"]\nboundary_topic = \"b\"",
		"step   = 100", "step = \"90s\"\nstep_max = 5000").Replace(orders)
	s := parse(t, text).Streams[0]
	if s.Step.Clock() != 90*time.Second || s.Slots() != 5000 || s.Moments.Step != 5000 {
		t.Errorf("a step is %v of at most %d, the estimator's %d", s.Step.Clock(), s.Slots(), s.Moments.Step)
	}
	canonical := s.Canonical(0)
	if !strings.Contains(string(canonical), `"step":"1m30s","step_max":5000}`) {
		t.Errorf("canonical %s", canonical)
	}
	again, err := StreamOf("orders", canonical)
	if err != nil || again.Step != s.Step || again.StepMax != s.StepMax {
		t.Errorf("%+v, %v", again, err)
	}
	merged := parse(t, strings.Replace(text, "partition = 0", `partition = "all"`, 1)).Streams[0]
	merged.Merge = true
	if over := merged.Over([]int{0, 1, 2}); over.Moments.Step != 5000 || over.Slots() != 5000 {
		t.Errorf("over three partitions a step holds at most %d", over.Moments.Step)
	}
	f := func(old, new, want string) {
		t.Helper()
		_, err := Parse("f", []byte(strings.Replace(text, old, new, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", new, err, want)
		}
	}
	f("[40.0, 3.0, 1.2]", `"auto"`, "stream.orders.step: needs centre, scale and clip that are given")
	f("clip = 1.0", "clip = 1.0\nmethod = \"pp\"", "stream.orders.moments.method: must not be \"pp\" for steps of several slots")
	f("step_max = 5000", "step_max = 0", "stream.orders.step_max: must be 1 to 1099511627776 (0)")
	f("step_max = 5000", "dead_letter = { mode = \"reference\", topic = \"dead\" }", "stream.orders.dead_letter.mode: must be \"off\" with steps by the clock")
	f("\"b\"", "\"orders\"", "kafka.boundary_topic: must not be a topic that is read")
	f("\"b\"", "\"orders.dp\"", "kafka.boundary_topic: must be a topic of its own")
	_, err = Parse("f", []byte(strings.Replace(gradients(), "step   = 64", "step = \"1m\"", 1)))
	if err == nil || !strings.Contains(err.Error(), "updates.step: must be a number of offsets for adam: its steps have sizes that are known") {
		t.Errorf("adam: %v", err)
	}
}
