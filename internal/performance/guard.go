package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const guardFile = "internal/performance/guard.json"

// kernel is a benchmark whose instructions are counted. The count is the difference between a run of many iterations
// and a run of two, so that the instructions of the setup cancel.
type kernel struct {
	name, pkg, bench string
	runs             int
}

var guarded = []kernel{
	{"noise of 1024 coordinates", "dp", "^BenchmarkStep$/^D=1024$", 100},
	{"BLT 4 over 1000 coordinates", "matfact", "^BenchmarkShaper$/^blt4$/^D=1000$", 300},
	{"record of 16 columns", "moments", "^BenchmarkAdd$/^d=16$", 20_000},
	{"JSON record", "stream/codec", "^BenchmarkCodec$/^json$/^digits17$", 5000},
	{"pass over 36 000 rows of 8", "internal/clipgrad", "^BenchmarkSum$/^36000x8$", 10},
}

// kept holds the stored figures with which guard compares new ones.
type kept struct {
	Go           string
	Instructions map[string]float64 // instructions per iteration of a kernel, counted by valgrind
	Daemon       float64            // processor time of the daemon divided by that of a bare reader
}

// slower is the largest allowed quotient of a new and a stored figure.
const slower = 1.3

// guard fails if a kernel takes 30 % more instructions than the stored number, or if the daemon's processor time
// relative to a bare reader is 30 % above the stored one. With keep it stores the figures instead. Without valgrind it
// returns an exitError with code 77.
//
// Valgrind counts the instructions of the processor that it emulates, which has AVX2 if this processor has. For one
// version of the compiler, the counts of all machines agree within a thousandth.
func guard(keep bool) error {
	if _, err := exec.LookPath("valgrind"); err != nil {
		return &exitError{77, "not run: no valgrind (Debian: valgrind)"}
	}
	data, err := os.ReadFile(guardFile)
	if err != nil {
		return err
	}
	var was, is kept
	if err := json.Unmarshal(data, &was); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "performance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	version, err := exec.Command("go", "env", "GOVERSION").Output()
	if err != nil {
		return err
	}
	is = kept{Go: strings.TrimSpace(string(version)), Instructions: map[string]float64{}}
	if is.Go != was.Go && !keep {
		fmt.Printf("the stored figures were measured with %s, this is %s\n", was.Go, is.Go)
	}
	var worse []string
	compare := func(name, unit string, now, before, ratio float64) {
		verdict := "ok"
		if !(ratio <= slower) && !keep {
			verdict = "SLOWER"
			worse = append(worse, name)
		}
		fmt.Printf("%-30s %12.6g, stored %12.6g %s: %s\n", name, now, before, unit, verdict)
	}
	for _, k := range guarded {
		n, err := instructions(dir, k)
		if err != nil {
			return err
		}
		is.Instructions[k.name] = n
		before := was.Instructions[k.name]
		compare(k.name, "instructions", n, before, n/before)
	}
	if is.Daemon, err = daemonRatio(); err != nil {
		return err
	}
	compare("daemon", "times a bare reader's time", is.Daemon, was.Daemon, is.Daemon/was.Daemon)
	if keep {
		return writeJSON(guardFile, is)
	}
	if worse != nil {
		return fmt.Errorf(
			"slower by more than 30 %%: %s; if this is intended, run go run ./internal/performance -guard -keep",
			strings.Join(worse, ", "))
	}
	return nil
}

// instructions returns the instructions of one iteration of a kernel.
func instructions(dir string, k kernel) (float64, error) {
	test := filepath.Join(dir, strings.ReplaceAll(k.pkg, "/", "_"))
	build := exec.Command("go", "test", "-c", "-o", test, "./"+k.pkg)
	build.Env = append(os.Environ(), "GOAMD64=v1")
	if output, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, output)
	}
	count := func(runs int) (float64, error) {
		// With -benchtime=Nx and N > 1, the framework first makes a separate run of one iteration, with its own setup.
		// With 1x it does not.
		cmd := exec.Command("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", test,
			"-test.run=^$", "-test.bench="+k.bench, "-test.benchtime="+strconv.Itoa(runs)+"x")
		cmd.Dir = k.pkg
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1",
			"STREAMDP_SUBJECT_ONLY=1")
		output, err := cmd.CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("%s: %w\n%s", k.name, err, output)
		}
		found := regexp.MustCompile(`I\s+refs:\s+([\d,]+)`).FindSubmatch(output)
		if found == nil || !bytes.Contains(output, []byte("ns/op")) {
			return 0, fmt.Errorf("%s: no instruction count or no benchmark in the output\n%s", k.name, output)
		}
		return strconv.ParseFloat(strings.ReplaceAll(string(found[1]), ",", ""), 64)
	}
	two, err := count(2)
	if err != nil {
		return 0, err
	}
	all, err := count(2 + k.runs)
	return (all - two) / float64(k.runs), err
}

// daemonRatio returns the processor time per record in the daemon divided by that in the reader alone. It is the
// smallest ratio of three runs, because other processes disturb that one least. Wall-clock times would be disturbed
// even more.
func daemonRatio() (least float64, err error) {
	cmd := exec.Command("go", "test", "-run=^$", "-bench=^BenchmarkDaemon$", "-benchtime=1x", "-count=3", "./stream")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, output)
	}
	for _, m := range regexp.MustCompile(`([\d.]+) cpu-ratio\b`).FindAllStringSubmatch(string(output), -1) {
		x, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		if least == 0 || x < least {
			least = x
		}
	}
	if least == 0 {
		return 0, errors.New("no ratio in the output\n" + string(output))
	}
	return least, nil
}
