package plan

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/matfact"
	"github.com/streamdp/streamdp/moments"
)

// comparison holds the errors of all factorizations of one workload, after a given number of steps. An error is that of
// one coordinate of a release, if a record moves a row by at most 1 and the noise multiplier is 1. It does not include
// a divisor that is not part of the workload.
type comparison struct {
	Workload string  `json:"workload"`
	Steps    uint64  `json:"steps"`
	Bound    float64 `json:"lower_bound,omitempty"` // lower bound on the largest error under any factorization

	Candidates []candidate `json:"candidates"`

	workload matfact.Workload
}

// candidate is one factorization of a comparison.
type candidate struct {
	Name       string  `json:"name"`
	Configured bool    `json:"configured,omitempty"` // true for the factorization that the stream uses
	Max        float64 `json:"max,omitempty"`        // the largest standard deviation of all steps
	RMSE       float64 `json:"rmse,omitempty"`       // root of the mean variance
	// StateBytes is the size of the noise's state for each coordinate, in memory and in checkpoints.
	StateBytes  int64  `json:"state_bytes"`
	ValidSteps  uint64 `json:"valid_steps,omitempty"` // the factorization works for this many steps; absent: any number
	Unavailable string `json:"unavailable,omitempty"`

	factor matfact.Factorization // nil for the tree, which is not a factorization
}

// comparisonOf compares the factorizations for a stream of moments. The number of steps is the horizon, otherwise the
// length for which the noise is tuned, otherwise the last of steps.
func comparisonOf(m *moments.Config, stored *matfact.Stored, steps []uint64) (*comparison, error) {
	w := matfact.Workload{Kind: m.Workload, Decay: m.Decay, Window: m.Window}
	n := cmp.Or(m.Horizon, m.Tune, slices.Max(append(steps, 1)))
	used, err := matfact.New(
		matfact.Config{Kind: stored.Kind, Horizon: m.Horizon, Normalise: stored.Height > 0, Stored: stored}, w)
	if err != nil {
		return nil, err
	}
	return compare(w, n, m.Bands, used), nil
}

// These are limits on the number of steps. Above a limit, compare leaves out the expensive candidate.
const (
	longestDense      = 100     // dense ones take seconds beyond it
	longestNormalised = 4096    // computing errors of normalised ones costs O(n²)
	longestRoot       = 1 << 20 // the state of the square root holds every row
)

// compare builds the factorizations for n steps of w. bands is the number of bands of the
// banded ones. used is the factorization that the stream uses, nil if there is no stream.
func compare(w matfact.Workload, n uint64, bands int, used matfact.Factorization) *comparison {
	c := &comparison{Workload: w.Kind, Steps: n, workload: w}
	switch w.Kind {
	case "sum":
		c.Bound = matfact.SumBound(n)
	case "mean":
		c.Bound = 1 // the first mean is the first row itself
	}
	add := func(name string, config matfact.Config) {
		config.Horizon = n
		f, err := matfact.New(config, w)
		if err != nil {
			c.Candidates = append(c.Candidates,
				candidate{Name: name, Unavailable: strings.ReplaceAll(err.Error(), "\n", "; ")})
			return
		}
		c.Candidates = append(c.Candidates, measure(name, f, w, n))
	}
	if n <= longestDense {
		add("dense", matfact.Config{Kind: "dense"})
	}
	if n <= longestNormalised {
		add("sqrt, normalised", matfact.Config{Kind: "sqrt", Normalise: true})
	}
	if n <= longestRoot {
		add("sqrt", matfact.Config{Kind: "sqrt"})
	}
	auto := matfact.Auto(w, n).Buffers
	buffers := []int{1, 2, 4, auto}
	slices.Sort(buffers)
	for _, d := range slices.Compact(buffers) {
		add("blt, "+words.Plural(d, "buffer"), matfact.Config{Kind: "blt", Buffers: d})
	}
	if n <= longestNormalised {
		add("blt, "+words.Plural(auto, "buffer")+", normalised",
			matfact.Config{Kind: "blt", Buffers: auto, Normalise: true})
	}
	add("phased", matfact.Config{Kind: "phased"})
	for _, kind := range []string{"bisr", "banded", "bsr"} {
		if kind == "banded" && bands > 64 {
			continue
		}
		add(kind+", "+words.Plural(bands, "band"), matfact.Config{Kind: kind, Bands: bands})
	}
	if w.Kind == "sum" {
		tree := candidate{Name: "tree (Honaker)", StateBytes: 16 * int64(bits.Len64(n)), ValidSteps: n}
		tree.Max, tree.RMSE = matfact.TreeError(n, true)
		c.Candidates = append(c.Candidates, tree)
	}
	add("identity", matfact.Config{Kind: "identity"})
	if used != nil {
		c.mark(used, w, n)
	}
	return c
}

// measure returns factorization f as a candidate, with its errors.
func measure(name string, f matfact.Factorization, w matfact.Workload, n uint64) candidate {
	x := candidate{Name: name, ValidSteps: f.Horizon(), StateBytes: f.Stored().StateBytes(n), factor: f}
	x.Max, x.RMSE = matfact.Errors(f, w, n)
	return x
}

// mark marks the candidate that the stream uses. If it is not in the list, mark adds it.
func (c *comparison) mark(used matfact.Factorization, w matfact.Workload, n uint64) {
	if h := used.Horizon(); h > 0 && h < n {
		n = h
	}
	own := measure(describeFactor(used.Stored()), used, w, n)
	own.Configured = true
	for i, x := range c.Candidates {
		if x.factor != nil && x.factor.Kind() == used.Kind() && alike(x.factor.ColNorm(), used.ColNorm()) &&
			alike(x.Max, own.Max) && alike(x.RMSE, own.RMSE) {
			own.Name = x.Name
			c.Candidates[i] = own
			return
		}
	}
	own.Name += ", as configured"
	c.Candidates = slices.Insert(c.Candidates, 0, own)
}

// alike reports whether two numbers may describe the same matrix. They need not be equal, because a matrix whose
// weights are stored with fewer bits differs slightly.
func alike(x, y float64) bool { return math.Abs(x-y) <= 1e-5*y }

// describeFactor returns the name that compare gives to a factorization.
func describeFactor(s *matfact.Stored) string {
	name := s.Kind
	switch {
	case s.Kind == "blt":
		name += ", " + words.Plural(len(s.Decay), "buffer")
	case len(s.Bands) > 0:
		name += ", " + words.Plural(len(s.Bands)+1, "band")
	}
	if s.Height > 0 {
		name += ", normalised"
	}
	return name
}

// print writes the comparison as a table.
func (c *comparison) print(w io.Writer) error {
	fmt.Fprintf(w,
		"\n  factorizations for %d steps of workload %s: error of one coordinate at sensitivity 1 and noise "+
			"multiplier 1\n", c.Steps, c.Workload)
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "  \tlargest\troot mean square\tstate\tvalid for\t\n")
	if c.Bound > 0 {
		fmt.Fprintf(t, "  lower bound, any matrix\t%.4f\t\t\t\t\n", c.Bound)
	}
	for _, x := range c.Candidates {
		mark := ""
		if x.Configured {
			mark = "*"
		}
		if x.Unavailable != "" {
			fmt.Fprintf(t, "  %s\t-\t-\t-\t-\t\n", x.Name)
			continue
		}
		valid := "every length"
		if x.ValidSteps > 0 {
			valid = fmt.Sprintf("%d steps", x.ValidSteps)
		}
		fmt.Fprintf(t, "  %s%s\t%s\t%s\t%d B\t%s\t\n", x.Name, mark, significant(x.Max), significant(x.RMSE),
			x.StateBytes, valid)
	}
	return t.Flush()
}

// significant prints a number with five digits.
func significant(x float64) string {
	if x >= 1e4 {
		return fmt.Sprintf("%.0f", x)
	}
	digits := max(0, 4-int(math.Floor(math.Log10(max(x, 1e-12)))))
	return fmt.Sprintf("%.*f", min(digits, 10), x)
}
