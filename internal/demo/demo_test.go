package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asInstance makes the test binary run an instance with this configuration: an instance that the test kills needs its
// own process.
const asInstance = "STREAMDP_DEMO_INSTANCE"

func TestMain(m *testing.M) {
	if configuration := os.Getenv(asInstance); configuration != "" {
		seed, err := strconv.ParseUint(os.Args[1], 10, 64)
		if err == nil {
			o := Options{Seed: &seed, Log: logTo(os.Stderr)}
			err = RunInstance(context.Background(), configuration, os.Stdin, o)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func logTo(w *os.File) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// patience is how long a demonstration may run on a busy machine before it counts as hanging.
const patience = 5 * time.Minute

// noBar is a bar that shows nothing.
type noBar struct{}

func (noBar) Set64(int64) error { return nil }
func (noBar) Finish() error     { return nil }

// options returns the options of streamdp demo --once, with keys that are derived from a seed; 0: random keys.
func options(seed uint64) Options {
	o := Options{
		Once: true, Step: "100", Workload: "mean", Epsilon: 1, Delta: 1e-8, Adjacency: "zero-out",
		Listen: "127.0.0.1:0",
		Log:    logTo(os.Stderr), Progress: func(int64) Bar { return noBar{} },
		Program: func(configuration string, seed uint64) (*exec.Cmd, error) {
			c := exec.Command(os.Args[0], strconv.FormatUint(seed, 10))
			c.Env = append(os.Environ(), asInstance+"="+configuration)
			return c, nil
		},
	}
	if seed != 0 {
		o.Seed = &seed
	}
	return o
}

// run runs a demonstration to its end.
func run(t *testing.T, o Options) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	o.Stdout, o.Stderr = &out, &errs
	if err := Run(ctx, o); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// compared runs a demonstration and decodes its JSON output.
func compared(t *testing.T, o Options) result {
	t.Helper()
	o.JSON = true
	out, _ := run(t, o)
	var r result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Comparison == nil || !(r.MaxAbsZ < r.Bound) {
		t.Errorf("largest |z| is %.2f, bound %.2f", r.MaxAbsZ, r.Bound)
	}
	return r
}

// TestDemo runs the daemon over TCP with every workload and both adjacencies. By chance, one key in 10⁶ exceeds the
// bound on |z|; the keys are fixed, so the result never varies.
func TestDemo(t *testing.T) {
	all := []struct {
		name   string
		seed   uint64
		change func(o *Options)
	}{
		{"replace", 2, func(o *Options) { o.Adjacency = "replace" }},
		{"sum", 3, func(o *Options) { o.Workload = "sum" }},
		{"step 7", 6, func(o *Options) { o.Step, o.Epsilon = "7", 0.1 }},
		{"mean", 1, func(*Options) {}},
		{"exponential", 4, func(o *Options) { o.Workload = "exponential" }},
		{"window", 5, func(o *Options) { o.Workload = "window" }},
	}
	if os.Getenv("STREAMDP_SLOW") == "" {
		all = all[:2]
	}
	for _, x := range all {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			o := options(x.seed)
			x.change(&o)
			if r := compared(t, o); r.Records != madeUpRows || r.Releases != int(r.Steps) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestDemoIsReproducible: a seed fixes keys and data, and so every number.
func TestDemoIsReproducible(t *testing.T) {
	a, b := compared(t, options(9)), compared(t, options(9))
	if a.MaxAbsZ != b.MaxAbsZ || a.Coverage != b.Coverage {
		t.Errorf("%+v and %+v", a, b)
	}
	if c := compared(t, options(0)); c.MaxAbsZ == a.MaxAbsZ {
		t.Error("a run without a seed repeats a run with a seed")
	}
}

func TestDemoTable(t *testing.T) {
	out, _ := run(t, options(1))
	for _, text := range []string{"40000 records in 400 steps of 100", "mean v9", "second moment v9·v9", "exceeds " +
		"6.58 once in a million runs", "INSECURE"} {
		if !strings.Contains(out, text) {
			t.Errorf("missing %q in\n%s", text, out)
		}
	}
}
