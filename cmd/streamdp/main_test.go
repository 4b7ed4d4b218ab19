package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/race"
)

var update = flag.Bool("update", false, "write the golden files again")

// asProgram makes the test binary run as the program that it tests, so that exit codes, signals and locks are those of
// a real process.
const asProgram = "STREAMDP_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	// Tests mostly wait for other processes, so more of them run in parallel. -parallel overrides this.
	parallel := 4 * runtime.GOMAXPROCS(0)
	if race.Enabled { // with the race detector they mostly compute
		parallel /= 2
	}
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
		panic(err)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// program returns a command that runs streamdp.
func program(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	return c
}

// patience is how long a program may run on a busy machine before it counts as hanging.
const patience = 5 * time.Minute

// call runs the program to its end.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := program(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String(), errs.String()
}

// want runs the program and fails unless it ends with the code and its standard error contains the text.
func want(t *testing.T, code int, text string, args ...string) (stdout string) {
	t.Helper()
	got, out, errs := call(t, args...)
	if got != code || !strings.Contains(errs, text) {
		t.Errorf("streamdp %s: exit code %d, want %d\nstandard error %q\nmust hold %q", strings.Join(args, " "), got,
			code, errs, text)
	}
	return out
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"frobnicate", exitUsage, "streamdp has no command \"frobnicate\"\nstreamdp --help lists commands and flags\n"},
		{"run", exitUsage, "a configuration is required: -c FILE"},
		{"run --config.file x", exitUsage, "the flag is --config, or -c"},
		{"run --nope", exitUsage, "unknown flag: --nope"},
		{"run x -c y", exitUsage, "streamdp: run takes no argument \"x\"\nstreamdp run --help lists its flags\n"},
		{"epoch lst", exitUsage, "streamdp: epoch has no command \"lst\"\n"},
		{"epoch open -c x", exitUsage, "streamdp: epoch open needs STREAM\n"},
		{"completion nosh", exitUsage, "streamdp: completion has no command \"nosh\"\n"},
		{"completion bash x", exitUsage, "takes no argument \"x\"\n"},
		{"run -c /nonexistent/file", exitConfig, "no such file"},
		{"keygen", exitUsage, "streamdp: keygen needs FILE"},
		{"keygen /nonexistent/dir/key", exitFailure, "create its folder first: mkdir -p -m 700 /nonexistent/dir"},
		{"demo --clip x", exitUsage, "invalid argument"},
		{"demo --once --csv x", exitUsage, "--clip is required"},
		{"demo --once --adjacency add-remove", exitUsage, "must be \"zero-out\" or \"replace\""},
		{"demo --once --epsilon -1", exitUsage, "streamdp: --epsilon: must be positive (-1)\nstreamdp"},
		{"demo --once --epsilon 1e9", exitUsage, "--epsilon: must be smaller: with so little noise"},
		{"demo --once --scale 3", exitUsage, "--scale needs --csv"},
		{"feed --csv x", exitUsage, "give --brokers and --topic"},
		{"feed", exitUsage, "give either --csv FILE or --ndjson FILE"},
		{"feed --csv x --codec avro --brokers a:1 --topic t", exitUsage, "--codec is \"avro\""},
		{"plan -c ../../examples/orders.toml --steps 0", exitUsage, "must be a positive number"},
		{"plan -c ../../examples/orders.toml --stream nope", exitUsage, "no stream nope"},
		{"audit", exitUsage, "a configuration is required: -c FILE"},
		{"audit x -c ../../examples/orders.toml", exitUsage, "takes no argument"},
		{"audit --slow", exitUsage, "unknown flag: --slow"},
		{"epoch open nope -c ../../examples/orders.toml", exitUsage, "no stream nope"},
		{"status --url http://127.0.0.1:1", exitFailure, "no daemon answers"},
		{"status --url 127.0.0.1:1", exitFailure, "no daemon answers"},
		{"version --log-level", exitUsage, "flag needs an argument"},
	} {
		want(t, c.code, c.text, strings.Fields(c.args)...)
	}
	if out := want(t, exitDone, "", "version"); !strings.HasPrefix(out, "streamdp ") {
		t.Errorf("version prints %q", out)
	}
	var v map[string]string
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "version", "--json")), &v); err != nil || v["version"] == "" {
		t.Errorf("version --json: %v, %v", v, err)
	}
	if out := want(t, exitDone, "", "completion", "bash"); !strings.Contains(out, "complete") {
		t.Error("completion prints no completion")
	}
	if out := want(t, exitDone, "", "--help"); !strings.Contains(out, "demo --once") {
		t.Error("the help does not begin with the demonstration")
	}
}
