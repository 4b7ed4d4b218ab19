package config

import (
	"strings"
	"testing"
	"time"
)

// TestClock checks that a step can be a number of offsets or a period of the clock, and that mechanisms without support
// for a period refuse it.
func TestClock(t *testing.T) {
	text := strings.NewReplacer(`brokers = ["localhost:9092"]`,
		"brokers = [\"localhost:9092\"]\nboundary_topic = \"b\"",
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
	f("[40.0, 3.0, 1.2]", `"auto"`, "stream.orders.step: must be a number of offsets if centre")
	f("clip = 1.0", "clip = 1.0\nmethod = \"pp\"",
		"stream.orders.moments.method: must not be \"pp\" for steps of several slots")
	f("step_max = 5000", "step_max = 0", "stream.orders.step_max: must be 1 to 1099511627776 (0)")
	f("step_max = 5000", "dead_letter = { mode = \"reference\", topic = \"dead\" }",
		"stream.orders.dead_letter.mode: must be \"off\" with steps by the clock")
	f("\"b\"", "\"orders\"", "kafka.boundary_topic: must not be an input topic")
	f("\"b\"", "\"orders.dp\"", "kafka.boundary_topic: must differ from")
	_, err = Parse("f", []byte(strings.Replace(gradients(), "step   = 64", "step = \"1m\"", 1)))
	if err == nil ||
		!strings.Contains(err.Error(),
			"updates.step: must be a number of offsets for adam: the sizes of its steps must be known in advance") {
		t.Errorf("adam: %v", err)
	}
}

// TestClockRefit: a window of a refit is a number of offsets, or a step by the clock with a largest number of offsets.
func TestClockRefit(t *testing.T) {
	hourly := strings.NewReplacer("[state]", "boundary_topic = \"b\"\n[state]", "[stream.weekly.privacy]",
		"step = \"1h\"\nstep_max = 9000\n[stream.weekly.privacy]",
		"window = 5000\n", "").Replace(weekly)
	s := parse(t, hourly).Streams[0]
	if s.Refit.Most != 9000 || s.Refit.Window != 0 || s.Refit.Slots() != 9000 || s.Slots() != 9000 {
		t.Errorf("windows of %+v", s.Refit)
	}
	canonical := string(s.Canonical(0))
	if !strings.Contains(canonical, `"step":"1h0m0s","step_max":9000}`) || strings.Contains(canonical, "window") {
		t.Errorf("canonical %s", canonical)
	}
	// The canonical form omits a value that equals the default. An epoch with that value must still be readable.
	for _, most := range []string{"9000", "10000000"} {
		s := parse(t, strings.Replace(hourly, "9000", most, 1)).Streams[0]
		again, err := StreamOf("weekly", s.Canonical(0))
		if err != nil || again.Refit.Most != s.StepMax {
			t.Errorf("%s: %+v, %v", most, again, err)
		}
	}
	merged := parse(t,
		strings.NewReplacer("columns = [\"price", "partition = \"all\", columns = [\"price", "step_max",
			"merge = true\nstep_max").Replace(hourly)).Streams[0]
	if over := merged.Over([]int{0, 1, 2}); over.Refit.Partitions != 3 || over.Refit.Slots() != 9000 {
		t.Errorf("over three partitions windows of %+v", over.Refit)
	}
	f := func(old, new string, want ...string) {
		t.Helper()
		_, err := Parse("f", []byte(strings.Replace(hourly, old, new, 1)))
		if err == nil || strings.Count(err.Error(), "\n") != len(want)-1 {
			t.Errorf("%s: %v, want %q", new, err, want)
			return
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), "stream.weekly."+w) {
				t.Errorf("%s: %v, want %s", new, err, w)
			}
		}
	}
	f("step_max = 9000\n", "",
		"step_max: required with a step by the clock: it bounds the records of a window, and so its memory")
	f("step_max = 9000", "step_max = 0", "step_max: must be 1 to 1099511627776 (0)")
	f("\"1h\"", "\"often\"", "step: must be")
	f("step_max = 9000", "step_max = 2147483649", "step_max: must be at most 2147483648 for windows (2147483649)")
	f("target =", "window = 100\ntarget =", "refit.window: must not be set: the clock ends windows (100)")
	f("target =", "stride = 200\ntarget =", "refit.stride: must not be set: the clock ends windows (200)")
	f("step = \"1h\"\nstep_max = 9000\n", "", "refit.window: required, or a step by the clock, such as step = \"1h\"")
	f("step = \"1h\"\nstep_max = 9000\n", "step = 100\n",
		"step: must be absent: for refit a step is a window: set refit.window to its number of offsets, or step to a "+
			"period of the clock (100)")
	f("clip_x = 4.0", "clip_x = \"auto\"",
		"step: must be a number of offsets if centre, scale or clip is \"auto\": the length of a warm-up is a number "+
			"of offsets")
	parse(t, strings.Replace(hourly, "target =", "solver = \"ihm\"\ntarget =", 1))
	hourly = strings.Replace(hourly, "step_max", "merge = true\nstep_max", 1)
	f("target =", "solver = \"ihm\"\ntarget =",
		"refit.solver: must be \"newton\", \"adassp\" or \"dp-gd-residual\" with merge = true")
}

// TestClockFaultOnce: a mechanism that does not support steps by the clock reports one fault, with the value as in the
// file.
func TestClockFaultOnce(t *testing.T) {
	_, err := Parse("f",
		[]byte(strings.Replace(demand, "[stream.demand.privacy]", "step = \"1m\"\n[stream.demand.privacy]", 1)))
	if err == nil ||
		!strings.HasSuffix(err.Error(),
			`stream.demand.step: must be absent: sgd chooses the length of its steps ("1m")`) ||
		strings.Contains(err.Error(), "\n") {
		t.Error(err)
	}
}
