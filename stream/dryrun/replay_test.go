package dryrun_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/dryrun"
)

func replayed(t *testing.T, s *config.Stream, seed *uint64, values []string) (releases []string, r *dryrun.Replay) {
	t.Helper()
	r, err := dryrun.NewReplay(nil, s, "v1", seed,
		func(b []byte) error { releases = append(releases, string(b)); return nil })
	fixtures.Must(t, err)
	defer r.Close()
	for _, v := range values {
		if err := r.Add([]byte(v)); errors.Is(err, dp.ErrExhausted) {
			break
		} else {
			fixtures.Must(t, err)
		}
	}
	return releases, r
}

func replayStream(t *testing.T, change string) *config.Stream {
	t.Helper()
	text := strings.Replace(fixtures.OrdersStream, "step   = 100", "step = 3\n"+change, 1)
	if text == fixtures.OrdersStream {
		t.Fatal("the stream has no step")
	}
	c, err := config.Parse("t.toml",
		[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+text))
	fixtures.Must(t, err)
	return c.Streams[0]
}

// TestRecordTooLarge: a record above input.max_record_bytes counts as null, in the daemon and in a replay: the releases
// equal those of a log without the record.
func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	toml := strings.Replace(fixtures.OrdersStream, `codec = "json"`, `codec = "json", max_record_bytes = 100`, 1)
	long := func(b []byte) []byte { return append(b, bytes.Repeat([]byte(" "), 101-len(b))...) }
	run := func(change func([]byte) []byte) (releases []string, metrics string) {
		r := streamtest.NewRig(t, toml)
		var values [][]byte
		for i := range 300 {
			values = append(values, fixtures.OrderRecord(i))
		}
		for _, i := range []int{0, 150, 199, 299} {
			values[i] = change(values[i])
		}
		r.Send(values...)
		x := r.Start()
		x.Published(3)
		_, metrics = x.Get("/metrics")
		x.End()
		for _, rec := range r.Records("orders.dp") {
			releases = append(releases, string(rec.Value))
		}
		return releases, metrics
	}
	null, _ := run(func([]byte) []byte { return nil })
	large, metrics := run(long)
	if len(null) != 3 || !slices.Equal(null, large) {
		t.Errorf("with records that are too large, the releases are\n%s\nwant\n%s", large, null)
	}
	if want :=
		`streamdp_diagnostic_records_rejected_total{partition="0",reason="too-large",stream="orders"} 4`; !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %s", want)
	}
	if fits, _ := run(func(b []byte) []byte { return long(b)[:100] }); slices.Equal(fits, null) {
		t.Error("records of exactly that size are null")
	}

	s, seed := replayStream(t, ""), uint64(4)
	s.Input.MaxRecordBytes = 100
	record := string(fixtures.OrderRecord(1))
	releases, r := replayed(t, s, &seed, []string{record, string(long([]byte(record))), record})
	without, _ := replayed(t, s, &seed, []string{record, "", record})
	if n := r.Rejected()["too-large"]; n != 1 || !slices.Equal(releases, without) {
		t.Errorf("a replay rejects %v", r.Rejected())
	}
}

// TestReplay: the releases of a file equal those of the core over the same records, valid or not, for every complete
// step.
func TestReplay(t *testing.T) {
	t.Parallel()
	s, seed := replayStream(t, ""), uint64(4)
	var records []string
	for i := range 11 {
		records = append(records, fmt.Sprintf(`{"amount": %d, "items": %d, "weight": 1}`, 40+i, i%5))
	}
	records[1], records[5] = "{", `{"amount": 1}` // invalid
	got, r := replayed(t, s, &seed, records)
	if all, open := r.Records(); len(got) != 3 || all != 11 || open != 2 {
		t.Fatalf("%d releases, %d records, %d of them open", len(got), all, open)
	}
	again, _ := replayed(t, s, &seed, records)
	if !slices.Equal(got, again) {
		t.Error("one seed gives two replays")
	}
	other, _ := replayed(t, s, nil, records)
	if other[0] == got[0] || strings.Contains(other[0], "INSECURE") || !strings.Contains(got[0], "INSECURE") {
		t.Error("a run without a seed has the keys or the statement of a seed")
	}
	fresh, _ := replayed(t, s, nil, records)
	if fresh[0] == other[0] {
		t.Error("two runs have the same noise")
	}

	var last struct {
		Step    uint64
		Rows    uint64
		Offsets []int64
		Privacy struct{ Statements []string }
		Values  map[string]struct {
			Data []float64
			SE   json.RawMessage
		}
	}
	for _, text := range got {
		fixtures.Conforms(t, text)
		fixtures.Must(t, json.Unmarshal([]byte(text), &last))
	}
	if last.Step != 3 || last.Rows != 3 || last.Offsets[0] != 6 || last.Offsets[1] != 9 {
		t.Errorf("the last release is %+v", last)
	}
	if !strings.Contains(last.Privacy.Statements[2], "costs its (epsilon, delta) again") {
		t.Errorf("statements %q", last.Privacy.Statements)
	}
	// The noise is large for nine records, but its size is known.
	var se float64
	fixtures.Must(t, json.Unmarshal(last.Values["mean"].SE, &se))
	for _, x := range last.Values["mean"].Data {
		if x == 0 || x < -7*se || x > 7*se+1 {
			t.Errorf("mean %g, standard error %g", x, se)
		}
	}
}

// TestReplayEnds: a replay ends at the horizon, and then fails for later records. It also ends if the receiver of
// releases fails.
func TestReplayEnds(t *testing.T) {
	t.Parallel()
	records := slices.Repeat([]string{`{"amount": 40, "items": 3, "weight": 1}`}, 20)
	got, r := replayed(t, replayStream(t, "horizon = 2"), nil, records)
	if all, open := r.Records(); len(got) != 2 || all != 6 || open != 0 {
		t.Errorf("%d releases, %d records, %d of them open", len(got), all, open)
	}
	if err := r.Add([]byte("x")); !errors.Is(err, dp.ErrExhausted) {
		t.Errorf("a record after the horizon: %v", err)
	}
	full := errors.New("full")
	r, err := dryrun.NewReplay(nil, replayStream(t, ""), "v1", nil, func([]byte) error { return full })
	fixtures.Must(t, err)
	for i := range 3 {
		if err := r.Add(nil); (err != nil) != (i == 2) || err != nil && !errors.Is(err, full) {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

// TestReplayMethods: the releases of a stream with any method name the method, and with "auto" the alternatives.
func TestReplayMethods(t *testing.T) {
	t.Parallel()
	records := slices.Repeat([]string{`{"amount": 40, "items": 3, "weight": 1}`}, 3)
	for method, extra := range map[string]string{
		"jme": "", "ime": "split = 0.3\n", "cs": "tau = 0.5\n", "pp": "", "pp_debiased": "", "combined": "",
		"auto": "factorization = \"identity\"\nmetric = \"sum\"\n",
	} {
		text := strings.Replace(fixtures.OrdersStream, "step   = 100", "step = 1", 1) +
			fmt.Sprintf("method = %q\npsd_floor = 0.01\nproject = true\nvalid_count = true\n%s", method, extra)
		c, err := config.Parse("t.toml",
			[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+text))
		fixtures.Must(t, err)
		got, _ := replayed(t, c.Streams[0], nil, records)
		if len(got) != 3 {
			t.Fatalf("%s: %d releases", method, len(got))
		}
		fixtures.Conforms(t, got[2])
		var r struct {
			Mechanism struct {
				Method string
				Choice *struct {
					Metric       string
					Step         uint64
					Alternatives []struct {
						Method string
						First  float64 `json:"rmse_first"`
						Second float64 `json:"rmse_second"`
					}
				}
			}
			Values map[string]any
		}
		fixtures.Must(t, json.Unmarshal([]byte(got[2]), &r))
		want := method
		if method == "auto" {
			want = "combined"
			c := r.Mechanism.Choice
			if c == nil || c.Metric != "sum" || c.Step != 10000 || len(c.Alternatives) != 3 ||
				c.Alternatives[1].Method != "pp_debiased" {
				t.Fatalf("the choice is %+v", c)
			}
			for _, a := range c.Alternatives {
				if !(a.First > 0) || !(a.Second > 0) {
					t.Errorf("errors %+v", a)
				}
			}
		} else if r.Mechanism.Choice != nil {
			t.Errorf("%s states a choice", method)
		}
		if r.Mechanism.Method != want {
			t.Errorf("%s releases method %s", method, r.Mechanism.Method)
		}
		for _, v := range c.Streams[0].Moments.Values() {
			if r.Values[v] == nil {
				t.Errorf("%s releases no %s", method, v)
			}
		}
	}
}

// TestReplayStatements: the statements of a replay claim no more about the solver's arithmetic than those of the
// daemon.
func TestReplayStatements(t *testing.T) {
	t.Parallel()
	records := slices.Repeat([]string{`{"a":1,"b":2,"c":3}`}, 40)
	for solver, want := range map[string]string{
		"newton": "exact (lattice)",
		"ihm":    "not proven (sketch)",
		"linmix": "not proven (sketch)",
	} {
		c, err := config.Parse("t.toml",
			[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+
				fixtures.RefitOf("window = 40\nsolver = \""+solver+"\"")))
		fixtures.Must(t, err)
		got, _ := replayed(t, c.Streams[0], nil, records)
		if len(got) != 1 || strings.Count(got[0], "Finite precision: ") != 1 ||
			!strings.Contains(got[0], "Finite precision: "+want) {
			t.Errorf("%s: %q", solver, got)
		}
	}
}
