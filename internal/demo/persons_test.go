package demo

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestDemoPersons: each stream's mean is close to the true value that it estimates, which the demonstration computes
// independently, and its error is as expected. ε and noise must agree with what the stream protects. The keys are
// fixed.
func TestDemoPersons(t *testing.T) {
	t.Parallel()
	replace := options(2)
	replace.Adjacency, replace.Epsilon = "replace", 2
	for args, o := range map[string]Options{"zero-out": options(1), "replace, ε = 2": replace} {
		o.Persons, o.JSON = true, true
		out, _ := run(t, o)
		var r personsResult
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Streams) != 3 || r.Records != personsStep*personsSteps || !(r.Counted > 0.1 && r.Counted < 0.5) ||
			r.OverRecords < r.OverPersons+5 {
			t.Fatalf("%s: %+v", args, r)
		}
		records, persons, group := r.Streams[0], r.Streams[1], r.Streams[2]
		for _, x := range []struct {
			what             string
			value, truth, se float64
		}{
			{"mean of records", records.Mean, r.OverRecords, records.SE},
			{"mean of what counts", persons.Mean, r.OverCounted, persons.SE},
			{"mean of the group", group.Mean, r.OverRecords, group.SE},
			{"share that counts", persons.Share, r.Counted, persons.ShareSE},
		} {
			if !(math.Abs(x.value-x.truth) < 5*x.se) {
				t.Errorf("%s: %s %g, is %g ± %g", args, x.what, x.value, x.truth, x.se)
			}
		}
		if persons.Unit != "person" || records.Unit != "record" || group.Unit != "record" {
			t.Errorf("%s: units of %+v", args, r.Streams)
		}
		epsilon := records.EpsilonRecord
		if persons.EpsilonPerson != epsilon || !(persons.EpsilonRecord < epsilon/2) ||
			!(group.EpsilonPerson <= epsilon && group.EpsilonPerson > 0.99*epsilon) || !(records.EpsilonPerson > 1000) {
			t.Errorf("%s: epsilons of %+v", args, r.Streams)
		}
		// The error of persons is larger than that of single records, but much smaller than with protection of as many
		// records as the busiest person has.
		if least := 3 * records.SE; persons.SE < least || persons.SE > group.SE/20 {
			t.Errorf("%s: errors of %+v", args, r.Streams)
		}
	}
}

// TestDemoPersonsTable: the output fits into a terminal.
func TestDemoPersonsTable(t *testing.T) {
	t.Parallel()
	o := options(3)
	o.Persons = true
	out, _ := run(t, o)
	for _, text := range []string{"40000 made-up records of 3336 persons", "at most 11 steps", "minus the mean over " +
		"persons, ", "INSECURE"} {
		if !strings.Contains(out, text) {
			t.Errorf("missing %q in\n%s", text, out)
		}
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
