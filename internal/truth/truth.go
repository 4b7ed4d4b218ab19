// Package truth computes, from the rows and without noise, what releases of moments estimate. A demonstration or a
// replay uses it to show the distance of a release from the truth.
package truth

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/table"
)

// Truth computes what the releases of a stream of moments estimate, in plain float64: the workload's moments of the
// scaled rows, both unshortened and shortened to the clip norm. Releases are compared with it, so it shares no code
// with the estimator.
//
// If a warm-up finds bounds, Truth takes them from the warm-up's release, and keeps all rows until then.
//
// Nothing in it is private.
type Truth struct {
	s         *config.Stream
	constants *constants // nil: the warm-up has not found them yet
	caps      []*float64 // caps from the release of the warm-up
	held      [][]float64
	row       []float64
	open      Moments // moments of the open step
	steps     []Moments
	before    uint64        // number of steps dropped from steps
	keep      uint64        // number of newest steps to keep; 0: all
	count     uint64        // number of records in the open step
	apart     [][][]float64 // rows that wait, by partition; nil unless releases end the steps
	begun     []int64       // how many rows of each partition are in a step already
}

// constants are the constants with which rows are scaled and shortened.
type constants struct {
	centre, scale []float64
	limits        []float64 // bounds of scaled values; 0 for a frozen column
	clip          float64
}

// Moments holds sums, or means, of rows and of the upper triangles of their outer products. Fields named Plain are for
// unshortened rows, the others for shortened rows.
type Moments struct {
	Mean, Second, PlainMean, PlainSecond []float64
	weight                               []float64 // total weight of the rows, one number
}

// each calls f with each pair of corresponding entries of x and y.
func (x *Moments) each(y *Moments, f func(a, b *float64)) {
	for i, list := range [][]float64{x.Mean, x.Second, x.PlainMean, x.PlainSecond, x.weight} {
		other := [][]float64{y.Mean, y.Second, y.PlainMean, y.PlainSecond, y.weight}[i]
		for j := range list {
			f(&list[j], &other[j])
		}
	}
}

// New returns the truth of a stream of moments, without any row yet.
func New(s *config.Stream) *Truth {
	t := &Truth{s: s, row: make([]float64, len(s.Input.Row()))}
	t.open = t.zero()
	if !s.Moments.Automatic() {
		t.constants = &constants{s.Centre, s.Scale, slices.Repeat([]float64{math.Inf(1)}, len(t.row)), s.Moments.Clip}
	}
	return t
}

func (t *Truth) zero() Moments {
	d := len(t.row)
	pairs := d * (d + 1) / 2
	return Moments{make([]float64, d), make([]float64, pairs), make([]float64, d), make([]float64, pairs),
		make([]float64, 1)}
}

// Forget makes t keep only the steps that the newest step's value needs. Call it before adding rows.
func (t *Truth) Forget() {
	t.keep = 1
	if t.s.Moments.Workload == "window" {
		t.keep += t.s.Moments.Window
	}
}

// Cells adds a row. If a cell is not a finite number, it adds a record without a row.
func (t *Truth) Cells(cells []string) {
	row := make([]float64, len(t.row))
	for j := range row {
		v, ok := table.Number(cells[j])
		if row[j] = v; !ok {
			row = nil
			break
		}
	}
	t.Add(row)
}

// Merge is for a merged stream over this number of partitions. It makes steps end where the stream's releases, through
// Until, say that they end.
func (t *Truth) Merge(partitions int) {
	t.apart, t.begun = make([][][]float64, partitions), make([]int64, partitions)
}

// Until ends the open step at these offsets, one per partition. It returns false and does nothing if rows up to these
// ends are missing.
func (t *Truth) Until(ends []int64) bool {
	for i, end := range ends {
		if n := end - t.begun[i]; n < 0 || n > int64(len(t.apart[i])) {
			return false
		}
	}
	for i, end := range ends {
		n := end - t.begun[i]
		for _, row := range t.apart[i][:n] {
			t.take(row)
		}
		t.apart[i], t.begun[i] = t.apart[i][n:], end
	}
	t.close()
	return true
}

// Add adds a record. A nil row stands for a record without a row, and counts as a row of zeros.
func (t *Truth) Add(row []float64) {
	c := t.constants
	if c == nil {
		t.held = append(t.held, slices.Clone(row))
		return
	}
	if t.apart != nil {
		i := t.count % uint64(len(t.apart))
		t.apart[i] = append(t.apart[i], slices.Clone(row))
		t.count++
		return
	}
	if t.take(row); t.count == t.s.Slots() {
		t.close()
	}
}

// take adds a record to the open step.
func (t *Truth) take(row []float64) {
	c := t.constants
	if t.scale(row) {
		t.open.PlainMean, t.open.PlainSecond = accumulate(t.open.PlainMean, t.open.PlainSecond, t.row)
		norm := 0.0
		for j, v := range t.row {
			t.row[j] = max(-c.limits[j], min(v, c.limits[j]))
			norm = math.Hypot(norm, t.row[j])
		}
		for j := range t.row {
			t.row[j] *= min(1, c.clip/max(norm, c.clip))
		}
		t.open.Mean, t.open.Second = accumulate(t.open.Mean, t.open.Second, t.row)
	}
	t.open.weight[0]++
	if t.apart == nil {
		t.count++
	}
}

// scale writes the scaled row. It returns false if the row is not valid.
func (t *Truth) scale(row []float64) bool {
	for j, v := range row {
		v = (v - t.constants.centre[j]) / t.constants.scale[j]
		if math.IsInf(v, 0) || math.IsNaN(v) {
			return false
		}
		t.row[j] = v
	}
	return row != nil
}

// accumulate adds a row and its outer product to sums.
func accumulate(mean, second, row []float64) ([]float64, []float64) {
	n := 0
	for i, x := range row {
		mean[i] += x
		for _, y := range row[i:] {
			second[n] += x * y
			n++
		}
	}
	return mean, second
}

// Found takes the bounds from a warm-up's release, and then processes the rows that were kept.
func (t *Truth) Found(r *Release) {
	if t.constants != nil {
		return
	}
	for _, stage := range r.Warmup {
		if t.held = nil; stage.Cap != nil {
			t.caps = stage.Cap
		}
	}
	if r.Bounds == nil {
		return
	}
	c := &constants{r.Bounds.Centre, r.Bounds.Scale, slices.Repeat([]float64{math.Inf(1)}, len(t.row)), r.Bounds.Clip}
	for j, most := range t.caps {
		if most != nil {
			c.limits[j] = 16 * *most / c.scale[j]
		}
	}
	held := t.held
	t.constants, t.held = c, nil
	for _, row := range held {
		t.Add(row)
	}
}

// close turns the open step's sums into the workload's value.
func (t *Truth) close() {
	m := t.s.Moments
	keep := 1.0 // weight of all earlier steps
	if m.Workload == "exponential" {
		keep = m.Decay
	}
	total := t.open
	if n := len(t.steps); n > 0 {
		total.each(&t.steps[n-1], func(a, b *float64) { *a += keep * *b })
	}
	t.steps = append(t.steps, total)
	if n := uint64(len(t.steps)); t.keep > 0 && n > t.keep {
		t.steps = slices.Delete(t.steps, 0, int(n-t.keep))
		t.before += n - t.keep
	}
	t.open = t.zero()
	if t.apart == nil {
		t.count = 0
	}
}

// Steps returns the number of complete steps after the warm-up.
func (t *Truth) Steps() uint64 { return t.before + uint64(len(t.steps)) }

// At returns the value of step n ≥ 1 after the warm-up. It returns false if the step is not complete or was dropped.
func (t *Truth) At(n uint64) (Moments, bool) {
	if n <= t.before || n > t.before+uint64(len(t.steps)) {
		return Moments{}, false
	}
	m := t.s.Moments
	now := t.steps[n-1-t.before]
	before := t.zero()
	if m.Workload == "window" && n > m.Window {
		if n-m.Window <= t.before {
			return Moments{}, false
		}
		before = t.steps[n-1-m.Window-t.before]
	}
	divisor := 1.0
	if m.Workload != "sum" {
		divisor = max(1, now.weight[0]-before.weight[0])
	}
	out := t.zero()
	out.each(&now, func(a, b *float64) { *a = *b })
	out.each(&before, func(a, b *float64) { *a = (*a - *b) / divisor })
	return out, true
}

// Value returns a value of moments without noise, nil if it is unknown.
func (t *Truth) Value(step uint64, name string) []float64 {
	m, ok := t.At(step)
	if !ok || t.constants == nil {
		return nil
	}
	c, d := t.constants, len(t.row)
	covariance := slices.Clone(m.Second)
	for i := range d {
		for j := i; j < d; j++ {
			covariance[diagonal(i, d)+j-i] -= m.Mean[i] * m.Mean[j]
		}
	}
	switch name {
	case "mean", "sum":
		return m.Mean
	case "second_moment":
		return m.Second
	case "covariance":
		return covariance
	case "mean_original":
		out := make([]float64, d)
		for j := range out {
			out[j] = c.centre[j] + c.scale[j]*m.Mean[j]
		}
		return out
	case "covariance_original":
		for i := range d {
			for j := i; j < d; j++ {
				covariance[diagonal(i, d)+j-i] *= c.scale[i] * c.scale[j]
			}
		}
		return covariance
	}
	return nil
}

// versus is one line of the comparison of a release with the rows.
type versus struct {
	name            string
	truth, clipped  float64 // true values from unshortened and from shortened rows
	value, se, wide float64 // numbers of the release; NaN if missing
}

// compared returns the first moment and the variance of each column of a release, each with both true values. They
// are in original units if the release has such values.
func (t *Truth) compared(r *Release) (lines []versus) {
	m, ok := t.At(r.Step - t.s.Moments.WarmupSteps())
	if !ok {
		return nil
	}
	d := len(t.row)
	for _, x := range []struct {
		label    string
		names    [3]string // names of the value; the release's is the first that exists
		original string
		power    float64 // power of the scale that converts the value to original units
		entry    func(j int) int
		of       func(mean, second []float64, j int) float64
	}{
		{"mean", [3]string{"mean_original", "mean", "sum"}, "mean_original", 1, func(j int) int { return j },
			func(mean, _ []float64, j int) float64 { return mean[j] }},
		{"variance", [3]string{"covariance_original", "covariance"}, "covariance_original", 2,
			func(j int) int { return diagonal(j, d) },
			func(mean, second []float64, j int) float64 { return second[diagonal(j, d)] - mean[j]*mean[j] }},
	} {
		for _, name := range x.names {
			v, ok := r.Values[name]
			if !ok {
				continue
			}
			label := x.label
			if name == "sum" {
				label = name
			}
			for j, column := range t.s.Input.Row() {
				shift, factor := 0.0, 1.0
				if name == x.original {
					factor = math.Pow(t.constants.scale[j], x.power)
					if x.power == 1 {
						shift = t.constants.centre[j]
					}
				}
				n := x.entry(j)
				lines = append(lines, versus{
					name: label + " " + column, truth: shift + factor*x.of(m.PlainMean, m.PlainSecond, j),
					clipped: shift + factor*x.of(m.Mean, m.Second, j), value: v.Data.At(n), se: v.SE.At(n),
					wide: v.Wide.At(n),
				})
			}
			break
		}
	}
	return lines
}

// diagonal returns the index of entry (j, j) in an upper triangle of d columns.
func diagonal(j, d int) int { return j*d - j*(j-1)/2 }

// Print writes the comparison of a release as a table.
func (t *Truth) Print(w io.Writer, r *Release) error {
	lines := t.compared(r)
	out := tabwriter.NewWriter(w, 2, 0, 2, ' ', tabwriter.AlignRight)
	wide := slices.ContainsFunc(lines, func(x versus) bool { return !math.IsNaN(x.wide) })
	head := "  \ttruth\tof clipped rows\trelease\tstandard error\t"
	if wide {
		head += "with clipping\t"
	}
	fmt.Fprintln(out, head)
	digits := func(x float64) string {
		if math.IsNaN(x) {
			return "-"
		}
		return fmt.Sprintf("%.6g", x)
	}
	for _, x := range lines {
		fmt.Fprintf(out, "  %s\t%s\t%s\t%s\t%s\t", x.name, digits(x.truth), digits(x.clipped), digits(x.value),
			digits(x.se))
		if wide {
			fmt.Fprintf(out, "%s\t", digits(x.wide))
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}
