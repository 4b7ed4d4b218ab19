package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/truth"
)

// result is the demonstration's result, as --json prints it.
type result struct {
	Records   int64        `json:"records"`
	Steps     uint64       `json:"steps"`
	Releases  int          `json:"releases"`
	Epsilon   float64      `json:"epsilon"`
	Delta     float64      `json:"delta"`
	Adjacency dp.Adjacency `json:"adjacency"`
	Values    int          `json:"values"`
	// Seconds is the duration. For the records of a file it is rounded up, unless diagnostics are allowed.
	Seconds  float64 `json:"seconds"`
	Insecure bool    `json:"insecure,omitempty"`
	// NotPrivate names the keys that are exact functions of the file.
	NotPrivate []string `json:"not_private,omitempty"`
	*Comparison
}

// Comparison is the distance of the releases from the truth.
type Comparison struct {
	// MaxAbsZ is the largest |release − truth| / standard error, over all entries of the
	// means and second moments of all steps. Bound is the value that MaxAbsZ exceeds in
	// one of a million runs. Coverage is the share of entries below 1.96.
	MaxAbsZ  float64 `json:"max_abs_z"`
	Bound    float64 `json:"max_abs_z_bound"`
	Coverage float64 `json:"coverage"`
}

// first returns the name of the first moment in a release.
func (d *demonstration) first() string {
	if d.o.Workload == "sum" {
		return "sum"
	}
	return "mean"
}

// judge reads all releases. It compares them with the truth, if the truth may be shown.
func (d *demonstration) judge(client *kafka.Client) (*result, *truth.Release, error) {
	adjacency := dp.ZeroOut
	if err := adjacency.UnmarshalText([]byte(d.o.Adjacency)); err != nil {
		return nil, nil, err
	}
	r := &result{Records: d.records, Epsilon: d.o.Epsilon, Delta: d.o.Delta, Adjacency: adjacency,
		Insecure: d.o.Seed != nil}
	if d.truth != nil {
		r.Comparison = new(Comparison)
		if d.o.File != nil {
			r.NotPrivate = []string{"max_abs_z", "coverage", "seconds"}
		}
	}
	seen := map[uint64]bool{}
	var last *truth.Release
	below := 0
	err := client.ReadBack(context.Background(), "demo.dp", 0, 0, func(rec *kafka.Record) error {
		p := new(truth.Release)
		if err := json.Unmarshal(rec.Value, p); err != nil {
			return err
		}
		if seen[p.Step] {
			return nil // skips a release that was published again with the same bytes
		}
		seen[p.Step] = true
		r.Releases++
		r.Steps = max(r.Steps, p.Step)
		last = p
		r.Values += len(p.Values[d.first()].Data) + len(p.Values["second_moment"].Data)
		if d.truth == nil {
			return nil
		}
		near, err := d.compare(p, r.Comparison)
		below += near
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if r.Values == 0 {
		return nil, nil, fmt.Errorf("the stream's %d rows do not fill a step of %s", d.records, d.o.Step)
	}
	if c := r.Comparison; c != nil {
		c.Coverage = float64(below) / float64(r.Values)
		c.Bound = math.Sqrt2 * math.Erfcinv(1e-6/float64(r.Values))
	}
	return r, last, nil
}

// compare updates c with the distance of a release from the truth. It returns the number of values of the release
// within 1.96 standard errors.
func (d *demonstration) compare(p *truth.Release, c *Comparison) (near int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.follow(context.Background(), p.Step)
	want, ok := d.truth.At(p.Step)
	if !ok {
		return 0, fmt.Errorf("the release of step %d arrived before all of its rows were known", p.Step)
	}
	for name, exact := range map[string][]float64{d.first(): want.Mean, "second_moment": want.Second} {
		v := p.Values[name]
		for i, t := range exact {
			z := math.Abs(v.Data[i]-t) / v.SE.At(i)
			c.MaxAbsZ = max(c.MaxAbsZ, z)
			if z < 1.96 {
				near++
			}
		}
	}
	return near, nil
}

func (d *demonstration) print(w io.Writer, r *result, last *truth.Release) error {
	fmt.Fprintf(w, "%d records in %d steps of %s, %d releases, (%g, %g)-private, %s, in %g s\n",
		r.Records, r.Steps, d.o.Step, r.Releases, r.Epsilon, r.Delta, r.Adjacency, math.Round(10*r.Seconds)/10)
	if r.NotPrivate != nil {
		fmt.Fprintln(w, "not private: truth, z, the summary of all z and the seconds are exact functions of the file")
	}
	fmt.Fprintln(w)
	var want truth.Moments
	head := "  step %d, scaled\trelease\tstandard error\t\n"
	if d.truth != nil {
		want, _ = d.truth.At(last.Step)
		head = "  step %d, scaled\ttruth\tof clipped rows\trelease\tstandard error\tz\t\n"
	}
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, head, last.Step)
	row := func(label string, plain, exact []float64, v truth.Value, i int) {
		if exact == nil {
			fmt.Fprintf(t, "  %s\t%.6f\t%.6f\t\n", label, v.Data[i], v.SE.At(i))
			return
		}
		fmt.Fprintf(t, "  %s\t%.6f\t%.6f\t%.6f\t%.6f\t%+.2f\t\n", label, plain[i], exact[i], v.Data[i], v.SE.At(i),
			(v.Data[i]-exact[i])/v.SE.At(i))
	}
	for i := range d.names {
		row(d.first()+" "+d.names[i], want.PlainMean, want.Mean, last.Values[d.first()], i)
	}
	n := 0
	for i := range d.names {
		for j := i; j < len(d.names); j++ {
			if j == i || j == i+1 && i < 3 {
				row(fmt.Sprintf("second moment %s·%s", d.names[i], d.names[j]), want.PlainSecond, want.Second,
					last.Values["second_moment"], n)
			}
			n++
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if c := r.Comparison; c != nil {
		fmt.Fprintf(w,
			"\nall %d values of all steps: largest |z| %.2f (exceeds %.2f once in a million runs), %.1f %% below "+
				"1.96 (expected 95 %%)\n",
			r.Values, c.MaxAbsZ, c.Bound, 100*c.Coverage)
	} else {
		fmt.Fprintln(w, "\nthe truth of a file is not shown; --insecure-diagnostics shows it")
	}
	if d.o.Seed != nil {
		fmt.Fprintln(w, "INSECURE: keys follow from --insecure-seed; nothing was protected")
	}
	return nil
}
