package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/truth"
)

// personsResult is the result of the demonstration of persons. --json prints it in this form.
type personsResult struct {
	Records   int          `json:"records"`
	Steps     int          `json:"steps"`
	Persons   int          `json:"persons"`
	Top       float64      `json:"share_of_busiest_hundredth"`
	Busiest   int          `json:"records_of_busiest"`
	Median    int          `json:"records_of_median"`
	Counted   float64      `json:"share_counted"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	// The next three fields are means of the made-up amounts: over all records, over persons, and over the records that
	// count.
	OverRecords float64          `json:"mean_over_records"`
	OverPersons float64          `json:"mean_over_persons"`
	OverCounted float64          `json:"mean_over_counted"`
	Streams     []personsRelease `json:"streams"`
	Seconds     float64          `json:"seconds"`
	Insecure    bool             `json:"insecure,omitempty"`
}

// personsRelease is the last release of a stream.
type personsRelease struct {
	Stream string `json:"stream"`
	Unit   string `json:"unit"`
	// The next two fields are the cost of one record, and of all records of the busiest person together.
	EpsilonRecord float64 `json:"epsilon_record"`
	EpsilonPerson float64 `json:"epsilon_busiest_person,omitempty"` // absent: there is no finite ε
	Value         string  `json:"value"`
	Mean          float64 `json:"mean"`
	SE            float64 `json:"se"`
	Share         float64 `json:"counted_share,omitempty"`
	ShareSE       float64 `json:"counted_share_se,omitempty"`
}

// judge reads the last release of each stream.
func (l *personLog) judge(ctx context.Context, client *kafka.Client, o *Options) (*personsResult, error) {
	r := &personsResult{
		Records: len(l.records), Steps: personsSteps, Persons: l.persons, Top: l.top, Busiest: l.busiest,
		Median: l.median, Counted: l.counted,
		Delta: o.Delta, OverRecords: l.overRecords, OverPersons: l.overPersons, OverCounted: l.overCounted,
		Insecure: o.Seed != nil,
	}
	if err := r.Adjacency.UnmarshalText([]byte(o.Adjacency)); err != nil {
		return nil, err
	}
	for _, name := range personStreams {
		type release struct {
			truth.Release
			Privacy struct {
				Epsilon, Mu float64
				Unit        string
				Person      *struct {
					EpsilonRecord float64 `json:"epsilon_record"`
				}
			}
		}
		var last release
		err := client.ReadBack(ctx, name+".dp", 0, 0, func(rec *kafka.Record) error {
			last = release{} // clears the values of the previous release
			return json.Unmarshal(rec.Value, &last)
		})
		if err != nil {
			return nil, err
		}
		one := personsRelease{Stream: name, Unit: last.Privacy.Unit, EpsilonRecord: last.Privacy.Epsilon,
			Value: "mean_original"}
		if p := last.Privacy.Person; p != nil {
			one.EpsilonPerson, one.EpsilonRecord, one.Value = last.Privacy.Epsilon, p.EpsilonRecord,
				"mean_counted_original"
			one.Share, one.ShareSE = last.Values["counted_share"].Data.At(0), last.Values["counted_share"].SE.At(0)
		} else if eps, err := (dp.Cost{Adjacency: r.Adjacency, Mu: last.Privacy.Mu}).GroupEpsilon(l.busiest,
			o.Delta); err == nil {
			one.EpsilonPerson = eps
		}
		v := last.Values[one.Value]
		if one.Mean, one.SE = v.Data.At(0), v.SE.At(0); math.IsNaN(one.Mean) || last.Step != personsSteps {
			return nil,
				fmt.Errorf("stream %s: release %d has no %s: the noise is too large for so few records; raise "+
					"--epsilon",
					name, last.Step, one.Value)
		}
		r.Streams = append(r.Streams, one)
	}
	return r, nil
}

// print writes the streams side by side.
func (r *personsResult) print(w io.Writer) error {
	fmt.Fprintf(w, "%d made-up records of %d persons, in %d steps of %d, in %.1f s.\n"+
		"The busiest 1 %% of persons wrote %.0f %% of the records, the busiest person %d;\n"+
		"half of the persons wrote at most %d records each.\n"+
		"The amounts of one person are similar, and busy persons write larger ones.\n"+
		"With persons protected, a person counts in at most %d steps, at least %d\n"+
		"apart, and once in each: %.0f %% of the records count.\n\n",
		r.Records, r.Persons, r.Steps, personsStep, r.Seconds, 100*r.Top, r.Busiest, r.Median, personsCap,
		personsSeparation, 100*r.Counted)
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 2, 0, 3, ' ', tabwriter.AlignRight)
	row := func(label string, cell func(s *personsRelease) string) {
		cells := []string{fmt.Sprintf("%-37s", label)}
		for i := range r.Streams {
			cells = append(cells, cell(&r.Streams[i]))
		}
		fmt.Fprintf(t, "%s\t\n", strings.Join(cells, "\t"))
	}
	row("", func(s *personsRelease) string { return s.Stream })
	row("protects", func(s *personsRelease) string {
		switch s.Stream {
		case "group":
			return fmt.Sprintf("%d records", r.Busiest)
		case "persons":
			return "a person"
		}
		return "a record"
	})
	row("epsilon of one record", func(s *personsRelease) string { return threeDigits(s.EpsilonRecord) })
	row("epsilon of the busiest person", func(s *personsRelease) string { return threeDigits(s.EpsilonPerson) })
	row("mean, released", func(s *personsRelease) string { return fmt.Sprintf("%.2f", s.Mean) })
	row("standard error of the noise", func(s *personsRelease) string { return fmt.Sprintf("%.2g", s.SE) })
	for _, exact := range []struct {
		name string
		mean float64
	}{{"over records", r.OverRecords}, {"over persons", r.OverPersons}, {"of counted records", r.OverCounted}} {
		row(fmt.Sprintf("minus the mean %s, %.2f", exact.name, exact.mean), func(s *personsRelease) string {
			if s.Unit != "person" && exact.name == "of counted records" {
				return ""
			}
			return fmt.Sprintf("%+.2f", s.Mean-exact.mean)
		})
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
	fmt.Fprintf(w, "\nAll at delta %g, %s. A cap moves the estimate from the mean over\n"+
		"records towards the mean over persons. The stream group has noise for the\n"+
		"%d records of the busiest person; a real log has no such bound unless it\n"+
		"enforces one.\n", r.Delta, r.Adjacency, r.Busiest)
	if r.Insecure {
		fmt.Fprintln(w, "INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	return nil
}

// threeDigits formats an ε with three digits, and a missing one as "none".
func threeDigits(epsilon float64) string {
	switch {
	case epsilon == 0:
		return "none"
	case epsilon < 1000:
		return fmt.Sprintf("%.3g", epsilon)
	}
	size := math.Pow(10, math.Floor(math.Log10(epsilon))-2)
	return fmt.Sprintf("%.0f", math.Ceil(epsilon/size)*size)
}
