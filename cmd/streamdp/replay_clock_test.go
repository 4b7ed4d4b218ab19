package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplayClock: steps by the clock in a file end according to the records' times or to published releases, and
// replay says which.
func TestReplayClock(t *testing.T) {
	s := newSite(t)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	clock := strings.Replace(string(text), "brokers", "boundary_topic = \"b\"\nbrokers", 1)
	i := strings.Index(clock, "step")
	j := i + strings.IndexByte(clock[i:], '\n')
	clock = clock[:i] + "step = \"1m\"" + clock[j:]
	cfg := write(t, "clock.toml", clock)
	// Three minutes have 3, 0 and 2 records. One more record is in a minute that has not ended. A record without a time
	// and a late one belong to the step of the previous record.
	documents, table := "", "amount,ts,items\n"
	for _, at := range []string{"10", "20.5", "", "150", "30", "185"} {
		stamp := ""
		if at != "" {
			stamp = `,"ts":` + at
		}
		documents += `{"amount":0.5,"items":0.25` + stamp + "}\n"
		table += "0.5," + at + ",0.25\n"
	}
	rows := func(out string) (all []int) {
		for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
			var r struct{ Rows int }
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			all = append(all, r.Rows)
		}
		return all
	}
	note := "6 records, 3 releases; the last 1 records belong to a step that has not ended\n" +
		"steps end according to the records' times\n"
	byTime := want(t, exitDone, note, "replay", "-c", cfg, "--insecure-seed", "7", "--time", "ts",
		write(t, "a.ndjson", documents))
	if got := fmt.Sprint(rows(byTime)); got != "[3 0 2]" {
		t.Errorf("steps of %s records", got)
	}
	if got := want(t, exitDone, note, "replay", "-c", cfg, "--insecure-seed", "7", "--time", "ts",
		write(t, "a.csv", table)); got != byTime {
		t.Error("a.csv and a.ndjson give different releases")
	}
	if got := want(t, exitDone,
		"6 records, 3 releases; the last 1 records belong to a step that has not ended\n"+
			"steps end according to the published releases\n",
		"replay", "-c", cfg, "--insecure-seed", "7", "--boundaries", write(t, "out", byTime),
		write(t, "a.ndjson", documents)); got != byTime {
		t.Error("steps by published releases and by times give different releases")
	}
	// A record with a time far ahead is refused, because it would put all later records into the same step.
	for _, far := range []string{"1e6,20", "4070908800,20"} {
		table := "amount,ts,items\n"
		for _, at := range strings.Split("10,"+far, ",") {
			table += "0.5," + at + ",0.25\n"
		}
		want(t, exitFailure, "a record's time is ", "replay", "-c", cfg, "--insecure-seed", "7", "--time", "ts",
			write(t, "far.csv", table))
	}
	lines := strings.SplitAfter(byTime, "\n")
	want(t, exitUsage, "give either --boundaries or --time", "replay", "-c", cfg, write(t, "a.ndjson", documents))
	want(t, exitUsage, "are for steps by the clock", "replay", "-c", s.config, "--stream", "orders", "--time", "ts",
		write(t, "a.ndjson", documents))
	want(t, exitFailure, "step 3, but step 2 is missing", "replay", "-c", cfg, "--boundaries",
		write(t, "gap", lines[0]+lines[2]), write(t, "a.ndjson", documents))
	// A step may include offsets without records, such as those that end transactions; the file then has fewer records.
	wide := strings.NewReplacer(`"offsets":[0,3]`, `"offsets":[0,5]`, `"offsets":[3,3]`, `"offsets":[5,6]`,
		`"offsets":[3,5]`, `"offsets":[6,9]`).Replace(byTime)
	if wide == byTime {
		t.Fatalf("no offsets in %s", byTime)
	}
	if got := want(t, exitDone, "", "replay", "-c", cfg, "--insecure-seed", "7", "--boundaries", write(t, "wide", wide),
		write(t, "a.ndjson", documents)); got != byTime {
		t.Error("offsets without records move records to other steps")
	}
}

// TestReplayClockRefit: the windows of a refit end where steps by the clock do. The window of the last record has not
// ended, and a window without records has no solution.
func TestReplayClockRefit(t *testing.T) {
	cfg := write(t, "clock.toml", `[kafka]
brokers = ["localhost:9092"]
boundary_topic = "b"
[state]
dir = "state"
key_file = "key"
[stream.fit]
input = { topic = "sales", columns = ["price", "sold"] }
step = "1h"
step_max = 60
privacy = { epsilon = 1.0, delta = 1e-8, adjacency = "zero-out" }
refit = { target = "sold", clip_x = 1.0, clip_y = 1.0 }
`)
	// The first hour has 40 records, the second none, the third 60, the fourth one.
	table := "price,ts,sold\n"
	for i := range 100 {
		table += fmt.Sprintf("0.5,%d,0.25\n", []int{60, 7260}[min(1, i/40)]+i)
	}
	table += "0.5,10900,0.25\n"
	args := []string{"replay", "-c", cfg, "--insecure-seed", "7"}
	records := write(t, "a.csv", table)
	out := want(t, exitDone, "101 records, 3 releases; the last 1 records", append(args, "--time", "ts", records)...)
	if got := want(t, exitDone, "steps end according to the published releases",
		append(args, "--boundaries", write(t, "out", out), records)...); got != out {
		t.Error("windows by published releases and by times give different releases")
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, rows := range []int{40, 0, 60} {
		var r struct {
			Rows   int
			Failed string
			Values map[string]any
		}
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil {
			t.Fatal(err)
		}
		if r.Rows != rows || (rows == 0) != (r.Failed != "") || (rows == 0) != (len(r.Values) == 0) {
			t.Errorf("window %d: %s", i+1, lines[i])
		}
	}
	want(t, exitFailure, "has more than step_max = 60 records",
		append(args, "--time", "ts", write(t, "b.csv", strings.Replace(table, "0.5,10900", "0.5,10790", 1)))...)
	if out := want(t, exitDone, "", "plan", "-c", cfg); !strings.Contains(out,
		"by the clock, every 1h, each of at most 60 offsets") || !strings.Contains(out, ", window 1h by the clock\n") {
		t.Errorf("plan prints\n%s", out)
	}
}

// TestPlanClock: plan describes steps by the clock, and says for which number of records it computes the errors.
func TestPlanClock(t *testing.T) {
	s := newSite(t)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	clock := strings.Replace(string(text), "brokers", "boundary_topic = \"b\"\nbrokers", 1)
	i := strings.Index(clock, "step")
	j := i + strings.IndexByte(clock[i:], '\n')
	path := filepath.Join(t.TempDir(), "clock.toml")
	if err := os.WriteFile(path, []byte(clock[:i]+"step = \"1m\""+clock[j:]), 0o600); err != nil {
		t.Fatal(err)
	}
	mean := func(config string, args ...string) float64 {
		var all []struct {
			Clock          string
			StepMax        uint64 `json:"step_max"`
			StepRecords    uint64 `json:"step_records"`
			Factorizations []struct {
				Configured bool
				Errors     []struct{ Mean float64 } `json:"standard_errors"`
			}
		}
		out := want(t, exitDone, "",
			append([]string{"plan", "-c", config, "--json", "--stream", "orders", "--steps", "10"}, args...)...)
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatal(err)
		}
		if config == path && (all[0].Clock != "1m0s" || all[0].StepMax != 10_000_000 || all[0].StepRecords == 0) {
			t.Errorf("plan says %+v", all[0])
		}
		for _, f := range all[0].Factorizations {
			if f.Configured {
				return f.Errors[0].Mean
			}
		}
		t.Fatal("no form is configured")
		return 0
	}
	thousand, ten := mean(path), mean(path, "--step-records", "10")
	if r := ten / thousand; r < 99.9 || r > 100.1 {
		t.Errorf("with a hundredth of the records the error is %g times as large", r)
	}
	if by := mean(s.config); by != ten {
		t.Errorf("steps of 10 offsets have error %g, steps by the clock of 10 records %g", by, ten)
	}
	if out := want(t, exitDone, "", "plan", "-c", path, "--stream", "orders"); !strings.Contains(out,
		"by the clock, every 1m, each of at most 10000000 offsets") ||
		!strings.Contains(out, "for 1000 records per step") ||
		!strings.Contains(out, ", step 1m by the clock, ") {
		t.Errorf("plan prints\n%s", out)
	}
	want(t, exitUsage, "--step-records is 1", "plan", "-c", path, "--step-records", "1")
}
