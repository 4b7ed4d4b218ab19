package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/fault"
)

// configuration returns the configuration of the demonstration's daemon.
func (d *demonstration) configuration(broker, dir string) []byte {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	columns := make([]string, len(d.names))
	for i := range d.names {
		columns[i] = quote(fmt.Sprintf("v%d", i+1))
	}
	decay := 0.99
	if d.live() && d.step == 0 {
		decay = liveDecay
	}
	limit, more, partition, length, topic := 1.0, "", "0", d.o.Step, ""
	if d.live() {
		limit, more = liveLimit, d.liveStreams(quote)
		if d.step == 0 {
			length, topic = quote(length), "boundary_topic = "+quote(liveBoundaries)+"\n"
		}
		partition, length = quote("all"), length+"\nmerge = true"
	}
	return fmt.Appendf(nil, `[kafka]
brokers = [%s]
%s[state]
dir = %s
key_file = "unused"
commit_interval = "50ms"
[http]
listen = %s
[stream.demo]
input = { topic = "demo", partition = %s, codec = "json", columns = [%s] }
output = { topic = "demo.dp" }
centre = %s
scale = %s
step = %s
[stream.demo.privacy]
epsilon = %g
delta = %g
adjacency = %s
limit_epsilon = %g
[stream.demo.moments]
%s%s`, quote(broker), topic, quote(filepath.Join(dir, "state")), quote(d.o.Listen), partition, strings.Join(columns, ", "), tomlNumbers(d.centre), tomlNumbers(d.scale), length,
		d.o.Epsilon, d.o.Delta, quote(d.o.Adjacency), limit*d.o.Epsilon, d.o.moments(decay), more)
}

// moments returns the keys of the table [stream.demo.moments].
func (o *Options) moments(decay float64) string {
	workload, _ := json.Marshal(o.Workload)
	text := fmt.Sprintf("clip = %g\nworkload = %s\n", o.Clip, workload)
	switch o.Workload {
	case "exponential":
		text += fmt.Sprintf("decay = %g\n", decay)
	case "window":
		text += "window = 20\n"
	}
	return text
}

// tomlNumbers writes a list of numbers.
func tomlNumbers(x []float64) string {
	words := make([]string, len(x))
	for i, v := range x {
		words[i] = strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(words[i], ".e") {
			words[i] += ".0"
		}
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// flagOf maps each key of the configuration to the flag of streamdp demo that sets it.
var flagOf = map[string]string{
	"http.listen":                   "--listen",
	"stream.demo.centre":            "--centre",
	"stream.demo.scale":             "--scale",
	"stream.demo.step":              "--step",
	"stream.demo.privacy.epsilon":   "--epsilon",
	"stream.demo.privacy.delta":     "--delta",
	"stream.demo.privacy.adjacency": "--adjacency",
	"stream.demo.moments.clip":      "--clip",
	"stream.demo.moments.workload":  "--workload",
}

// flagFaults converts the faults of the configuration into faults of the flags from which it was made.
func flagFaults(err error) error {
	var faults config.Faults
	errors.As(err, &faults)
	var lines []string
	for _, f := range faults {
		// A key without a flag has a fault only because of a key with a flag.
		if flag := flagOf[f.Key]; flag != "" {
			lines = append(lines, (&fault.Fault{Key: flag, Rule: f.Rule, Value: f.Value}).Error())
		}
	}
	if lines = slices.Compact(lines); len(lines) == 0 {
		return exit.Usage{Err: err}
	}
	return exit.Usagef("%s", strings.Join(lines, "\n"))
}
