package plan

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/core"
)

// PrintGuarantee writes the guarantee of a stream as a list of named rows. The last row has the given name and text.
func PrintGuarantee(w io.Writer, d *core.Description, name, text string) error {
	fmt.Fprintf(w, "stream %s\n", d.Stream)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("guarantee", "(%g, %g)-differential privacy for all releases of an epoch together, %s accounting", d.Epsilon,
		d.Delta, d.Accounting)
	row("adjacency", "%s: %s", d.Adjacency, d.Neighbours)
	if d.Person == nil {
		row("limit", "(%g, %g) over all epochs and streams of the input partition", d.LimitEpsilon, d.LimitDelta)
	} else {
		over := "all epochs of the population, of every stream, topic and partition"
		if n := d.Person.Period; n > 0 {
			over = fmt.Sprintf("consecutive epochs of the population, of every stream, topic and partition, until "+
				"they "+
				"have %d steps; the next epoch begins a new limit", n)
		}
		row("limit", "(%g, %g) over %s", d.LimitEpsilon, d.LimitDelta, over)
		personRows(d, row)
	}
	if d.Reserved != nil {
		row("set aside", "for sketches: %s", d.Reserved)
	}
	switch {
	case d.Merged && d.Partitions == 0:
		row("merged",
			"all partitions share one sequence of releases; the average of one noisy sequence per partition would "+
				"have √(number of partitions) times the noise")
		row("", "the numbers below assume %d partitions; if there are more, list them in input.partition",
			config.FewestMerged)
	case d.Merged:
		row("merged",
			"%d partitions share one sequence of releases; the average of %d separate noisy sequences would have %.2f "+
				"times the noise", d.Partitions, d.Partitions, math.Sqrt(float64(d.Partitions)))
	}
	if d.Clock != "" {
		row("steps", "by the clock, every %s, each of at most %d offsets", core.Brief(d.Clock), d.StepMax)
	}
	row("mu", "%.6g (noise multiplier %.6g)", d.Mu, d.NoiseMultiplier)
	if d.Found {
		row("clip", "found by the warm-up; the numbers below are in units of the clip norm")
	} else {
		row("clip", "%.6g", d.Clip)
	}
	row("sensitivity", "%.6g", d.Sensitivity)
	row("lattice", "%s", joinFloats(d.Lattice))
	var noise []string
	for _, name := range noiseNames(d.Noise) {
		noise = append(noise, fmt.Sprintf("%s %.4g", name, d.Noise[name]))
	}
	if len(noise) > 0 {
		row("noise of a step", "%s", strings.Join(noise, ", "))
	}
	row("checkpoint", "%s", words.Size(d.StateBytes))
	row("memory", "%s for the estimator", words.Size(d.PeakBytes))
	release := "at most " + words.Size(d.ReleaseBytes)
	if d.MessageBytes < d.ReleaseBytes {
		release += ", in messages of " + words.Size(d.MessageBytes)
	}
	row("release", "%s", release)
	row(name, "%s", text)
	return t.Flush()
}

// noiseNames returns the names of a mechanism's noise arrays, the most interesting first.
func noiseNames(noise map[string]float64) []string {
	first := []string{"first", "second", "second_diagonal", "second_off_diagonal", "valid_count", "full", "gradient",
		"count", "nulls", "search", "histogram"}
	return slices.SortedFunc(maps.Keys(noise), func(a, b string) int {
		place := func(name string) int {
			if i := slices.Index(first, name); i >= 0 {
				return i
			}
			return len(first)
		}
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b))
	})
}

func joinFloats(x []float64) string {
	words := make([]string, len(x))
	for i, v := range x {
		words[i] = fmt.Sprintf("%.4g", v)
	}
	return strings.Join(words, ", ")
}

// personRows writes what a guarantee for persons covers, and what it does not.
func personRows(d *core.Description, row func(name, format string, args ...any)) {
	p := d.Person
	if p.Period > 0 {
		row("person",
			"all records of one period of %d steps with one user key (%s), of population %s; a human with records "+
				"in g periods counts as g persons", p.Period, p.Key, p.Population)
	} else {
		row("person", "all records of an epoch with one user key (%s), of population %s", p.Key, p.Population)
	}
	row("counts",
		"a person's first records: at most %d in a step, in at most %d steps that are at least %d apart; all other "+
			"records, and those without a user key, are null records", p.PerStep, p.Cap, p.Separation)
	if p.Period > 0 {
		row("period",
			"%d steps, after which counting starts again for every person; the costs of several periods add up: q "+
				"periods cost at most q times mu", p.Period)
	}
	if p.Crowds {
		row("full map",
			"once records of %d persons count, records of further persons do not; so leaving out one person may let "+
				"another one in, and the noise is that of adjacency replace", p.MaxUsers)
	}
	together := ""
	for _, g := range d.Persons {
		if g.Records > 1 && g.Epsilon != nil {
			together += fmt.Sprintf(", epsilon %.4g for %d persons", *g.Epsilon, g.Records)
		}
	}
	row("not covered",
		"a human with several user keys counts as several persons; a human who writes under another person's key "+
			"affects two persons; g persons together pay g times mu%s", together)
	switch {
	case p.Partitions == 0 && p.OnePartition:
		row("an opening",
			"is one epoch per partition of the topic; a person pays for one: mu %.6g, epsilon %g",
			p.OpeningMu, p.OpeningEpsilon)
	case p.Partitions == 0:
		row("an opening",
			"is one epoch per partition of the topic; a person pays for all: mu times the root of their number")
	case p.Partitions > 1 && p.OnePartition:
		row("an opening",
			"is %d epochs; a person pays for one, because a user key counts in one partition only: mu %.6g, "+
				"epsilon %g", p.Partitions, p.OpeningMu, p.OpeningEpsilon)
	case p.Partitions == 1:
		row("an opening", "is one epoch: mu %.6g, epsilon %g", p.OpeningMu, p.OpeningEpsilon)
	default:
		row("an opening", "is %d epochs; a person pays for all: mu %.6g, epsilon %g", p.Partitions, p.OpeningMu,
			p.OpeningEpsilon)
	}
	if p.Partitions > 0 {
		until := ""
		if p.Period > 0 {
			until = " before it starts again"
		}
		row("", "openings that the limit allows%s, if nobody else charges the population: %d", until, p.Openings)
	}
	row("map", "%s of memory and at most %s on disk for each partition", words.Size(int64(p.MapBytes)),
		words.Size(int64(p.DiskBytes)))
	if p.Norm > 0 {
		row("norm", "%.6g for all records of a person together", p.Norm)
	}
}
