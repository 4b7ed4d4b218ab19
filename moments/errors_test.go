package moments

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
)

// clipped returns x, scaled to norm at most clip, or the zero row if x is not a valid row.
func clipped(x []float64, d int, clip float64) []float64 {
	y := make([]float64, d)
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	if len(x) != d || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return y
	}
	scale := min(1, clip/math.Sqrt(max(sum, 1e-300)))
	for i, v := range x {
		y[i] = scale * v
	}
	return y
}

// truth holds the exact mean, second moment and covariance of each step.
type truth struct{ mean, second, covariance [][]float64 }

// exactly computes the result without privacy, in float64. It computes every step from all records so far, not from the
// step before.
func exactly(s audit.Stream, c Config, clip float64) truth {
	var x truth
	d := len(c.Columns)
	for t := range s {
		mean, second := make([]float64, d), make([]float64, d*(d+1)/2)
		var divisor float64
		for j, records := range s[:t+1] {
			weight := 1.0
			switch {
			case c.Workload == "exponential":
				weight = math.Pow(c.Decay, float64(t-j))
			case c.Workload == "window" && t-j >= int(c.Window):
				weight = 0
			}
			divisor += weight * float64(len(records))
			for _, r := range records {
				r = clipped(r, d, clip)
				n := 0
				for i := range d {
					mean[i] += weight * r[i]
					for k := i; k < d; k++ {
						second[n] += weight * r[i] * r[k]
						n++
					}
				}
			}
		}
		if divisor = max(1, divisor); c.Workload == "sum" {
			divisor = 1
		}
		covariance, n := make([]float64, len(second)), 0
		for i := range mean {
			mean[i] /= divisor
		}
		for i := range d {
			for k := i; k < d; k++ {
				second[n] /= divisor
				covariance[n] = second[n] - mean[i]*mean[k]
				n++
			}
		}
		x.mean, x.second, x.covariance = append(x.mean, mean), append(x.second, second),
			append(x.covariance, covariance)
	}
	return x
}

// TestStandardErrors releases one stream under many keys and compares the errors with the standard errors that are
// published:
//
//   - mean and second moment: (error/SE)² summed over runs and coordinates, which
//     is exactly χ², except for the effect of the lattice (10⁻⁷);
//   - covariance: the bias, which must be removed, and the variance. The SE uses the noisy mean instead of the true
//     one. So on average SE² is the variance plus 4v² on the diagonal and 2v² off it, where v is the variance of a
//     mean. The errors are not Gaussian there; the tolerance comes from the sample's fourth moment.
//
// Runs are independent, but the steps of a run are not, so each step has a separate assertion. 6·(3 + 2·6) + 6
// assertions share alpha 10⁻⁹. There are 30 000 runs, or 60 000 with STREAMDP_SLOW=1.
func TestStandardErrors(t *testing.T) {
	t.Parallel()
	const steps, d, clip, alpha = 6, 3, 1.7, stattest.Alpha / 96
	runs := 30000
	if os.Getenv("STREAMDP_SLOW") != "" {
		runs = 60000
	}
	n := float64(runs)
	c := Config{Clip: clip, Columns: dptest.Columns(d), Step: 3, Workload: "mean", Factorization: "sqrt",
		Horizon: steps}
	a := mustSubject(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
	s := audit.Stream{
		{{0.5, -0.3, 1.2}, {0.9, 0.1, 0.2}, {-0.4, 1.5, 0}}, {{3, 2, -4}, nil, {0.1, 0.1, 0.1}}, {}, {{1, 1, 1}},
		{{0.2, 0.4, -0.6}, {0, 0, 1.7}, {0.3, -0.2, 0.4}}, {{0.7, 0.7, 0.7}, {-0.1, 0, 0.2}},
	}
	want := exactly(s, c, clip)
	keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "errors", 1, [16]byte{}, [32]byte{})
	if err != nil {
		t.Fatal(err)
	}
	start, err := a.e.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	var mean, second [steps]float64 // Σ (error/SE)²
	var e1, e2, e4 [steps][6]float64
	var stated [steps][6]float64 // Σ SE²
	var v [steps]float64         // variance of a mean
	for run := range runs {
		if err := a.e.UnmarshalBinary(start); err != nil {
			t.Fatal(err)
		}
		var manifest [32]byte
		binary.LittleEndian.PutUint64(manifest[:], uint64(run))
		h := dp.NewTranscript(manifest)
		for step, records := range s {
			for _, x := range records {
				a.e.Add(0, x)
			}
			h.AbsorbRecords(uint64(len(records)))
			r, err := a.e.Close(keys.Step(uint64(step)+1, &h))
			if err != nil {
				t.Fatal(err)
			}
			for i, x := range r.Values[0].Data {
				z := (x - want.mean[step][i]) / r.Values[0].SE[0]
				mean[step] += z * z
			}
			v[step] = r.Values[0].SE[0] * r.Values[0].SE[0]
			for i, x := range r.Values[1].Data {
				z := (x - want.second[step][i]) / r.Values[1].SE[i]
				second[step] += z * z
			}
			for i, x := range r.Values[2].Data {
				e := x - want.covariance[step][i]
				e1[step][i] += e
				e2[step][i] += e * e
				e4[step][i] += e * e * e * e
				stated[step][i] += r.Values[2].SE[i] * r.Values[2].SE[i]
			}
		}
	}
	worst := [3]float64{}
	for step := range steps {
		if err := stattest.SumOfSquares(mean[step], runs*d, alpha); err != nil {
			t.Errorf("step %d, mean: %v", step+1, err)
		}
		if err := stattest.SumOfSquares(second[step], runs*6, alpha); err != nil {
			t.Errorf("step %d, second moment: %v", step+1, err)
		}
		worst[0] = max(worst[0], math.Abs(mean[step]/(n*d)-1))
		worst[1] = max(worst[1], math.Abs(second[step]/(n*6)-1))
		for i := range 6 {
			variance, kurtosis := e2[step][i]/n, e4[step][i]/n
			z := stattest.Normal(alpha)
			if bias, most := e1[step][i]/n, z*math.Sqrt(variance/n); !(math.Abs(bias) <= most) {
				t.Errorf("step %d, covariance %d: bias %.3g, must be within %.3g", step+1, i, bias, most)
			}
			slack := 2 * v[step] * v[step]
			if i == 0 || i == 3 || i == 5 {
				slack *= 2
			}
			expected := stated[step][i]/n - slack
			// Allow for the errors of the variance and of the mean of SE².
			most := z * (math.Sqrt((kurtosis-variance*variance)/n) + 4*v[step]*clip*math.Sqrt(v[step]/n) +
				4*v[step]*v[step]/math.Sqrt(n))
			if !(math.Abs(variance-expected) <= most) {
				t.Errorf("step %d, covariance %d: variance %.6g, must be %.6g ± %.2g", step+1, i, variance,
					expected, most)
			}
			worst[2] = max(worst[2], math.Abs(variance/expected-1))
		}
	}
	t.Logf(
		"%d runs: observed over stated variance is off by at most %.2g (mean), %.2g (second moment), %.2g (covariance)",
		runs, worst[0], worst[1], worst[2])
}

// TestGoldenErrors pins the bits of standard errors of covariances. They must be rounded after every operation, on
// every processor, because releases are compared byte by byte.
func TestGoldenErrors(t *testing.T) {
	round := func(op func(z, x, y *big.Float) *big.Float, x, y float64) float64 {
		z, _ := op(new(big.Float).SetPrec(53), big.NewFloat(x), big.NewFloat(y)).Float64()
		return z
	}
	times := func(x, y float64) float64 { return round((*big.Float).Mul, x, y) }
	plus := func(x, y float64) float64 { return round((*big.Float).Add, x, y) }
	source := rand.New(rand.NewPCG(1, 2))
	e, err := New(Config{Clip: 1, Columns: dptest.Columns(2), Step: 10, Workload: "sum", Factorization: "identity"},
		dp.Params{Mu: 0.3, Adjacency: dp.ZeroOut})
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		divisor, a, b := 1+100*source.Float64(), source.NormFloat64(), source.NormFloat64()
		step := 1 + source.Uint64N(1000)
		v := e.variances(nil, step, divisor, divisor, 0)
		u := e.shapes.first.variance(step)
		sd := e.plan.First / divisor
		if want := times(times(sd, sd), u); v.mean != want {
			t.Fatalf("variance %x, want %x", v.mean, want)
		}
		on := plus(plus(v.diagonal, times(times(4, v.mean), times(a, a))), times(times(2, v.mean), v.mean))
		if got := v.covariance(a, b, true); got != math.Sqrt(on) {
			t.Fatalf("on the diagonal %x, want %x", got, math.Sqrt(on))
		}
		off := plus(plus(v.off, times(v.mean, plus(times(a, a), times(b, b)))), times(v.mean, v.mean))
		if got := v.covariance(a, b, false); got != math.Sqrt(off) {
			t.Fatalf("off the diagonal %x, want %x", got, math.Sqrt(off))
		}
	}
}

// TestExpect compares the result of Expect with the standard errors of a stream that fills every slot. For the
// covariance, Expect assumes the largest mean.
func TestExpect(t *testing.T) {
	t.Parallel()
	const steps = 40
	for _, c := range audited(steps) {
		c.Clip, c.Columns, c.Step = 2.5, dptest.Columns(3), 4
		e := mustNew(t, c, dp.Params{Mu: 0.7, Adjacency: dp.ZeroOut})
		noise, full := dptest.Zero(), []float64{0, e.plan.Clip, 0}
		for step := uint64(1); step <= steps; step++ {
			for i := range c.Step {
				e.Add((step-1)*c.Step+i, full)
			}
			want := e.Expect(step)
			r, err := e.Close(noise)
			if err != nil {
				t.Fatal(err)
			}
			near := func(what string, got, want, tolerance float64) {
				if !(math.Abs(got-want) <= tolerance*want) {
					t.Errorf("%s, step %d: %s has SE %.15g, expected %.15g", describe(c), step, what, got, want)
				}
			}
			near("mean", r.Values[0].SE[0], want.Mean, 1e-13)
			near("diagonal", r.Values[1].SE[0], want.Diagonal, 1e-13)
			near("off-diagonal", r.Values[1].SE[1], want.OffDiagonal, 1e-13)
			if c.Workload == "sum" {
				if want.CovarianceDiagonal != 0 || want.CovarianceOffDiagonal != 0 {
					t.Errorf("%s: an error of the covariance is expected", describe(c))
				}
				continue
			}
			near("covariance, diagonal", r.Values[2].SE[3], want.CovarianceDiagonal, 1e-12)
			near("covariance, off-diagonal", r.Values[2].SE[1], want.CovarianceOffDiagonal, 1e-12)
		}
	}
}

// TestWorkloads compares releases without noise with sums computed from all records in every step, with empty steps,
// empty slots, invalid rows, and a step of one record.
func TestWorkloads(t *testing.T) {
	t.Parallel()
	const steps, d = 60, 3
	s := auditStream(steps, d)
	s[0], s[7], s[8] = nil, nil, nil
	for i := range 12 { // longer than a window
		s[20+i] = nil
	}
	for _, c := range audited(steps) {
		for _, window := range []uint64{1, 3, 7, 100} {
			if c.Workload == "window" {
				c.Window = window
			} else if window > 1 {
				continue
			}
			c.Clip, c.Columns, c.Step = 1.2, dptest.Columns(d), 4
			e := mustNew(t, c, dp.Params{Mu: 5, Adjacency: dp.Replace})
			want := exactly(s, c, e.plan.Clip)
			noise, added := dptest.Zero(), 0.0
			for step, records := range s {
				for i, x := range records {
					e.Add(uint64(step*4+i), x)
				}
				added += float64(len(records))
				variance := math.Pow(e.Expect(uint64(step)+1).Mean, 2)
				r, err := e.Close(noise)
				if err != nil {
					t.Fatal(err)
				}
				if r.Step != uint64(step)+1 || r.Rows != uint64(len(records)) {
					t.Errorf("%s: step %d, %d rows; want %d, %d", describe(c), r.Step, r.Rows, step+1, len(records))
				}
				// Rounding changes a record by at most g, its square by 2ζg, and a step's squares by g₂. Old records
				// have smaller weights.
				g, g2 := e.plan.Lattice.Step(), e.plan.SecondStep()
				divisor := e.plan.First *
					math.Sqrt(e.shapes.first.factor.RowVar(e.shapes.first.kernel, uint64(step)+1)) / r.Values[0].SE[0]
				tolerance := (added + 1) * (g + 2*e.plan.Clip*g + g2) / divisor
				near := func(what string, got, want []float64) {
					for i := range want {
						if !(math.Abs(got[i]-want[i]) <= tolerance) {
							t.Fatalf("%s, step %d: %s %v, want %v", describe(c), step+1, what, got, want)
						}
					}
				}
				near("mean", r.Values[0].Data, want.mean[step])
				near("second moment", r.Values[1].Data, want.second[step])
				if c.Workload == "sum" {
					continue
				}
				// The debiasing term follows from the stated error.
				v := r.Values[0].SE[0] * r.Values[0].SE[0]
				if v < variance*(1-1e-12) {
					t.Errorf("%s, step %d: with fewer records the variance is smaller, %g of %g", describe(c), step+1,
						v, variance)
				}
				covariance := slices.Clone(want.covariance[step])
				for n, i := 0, d; i > 0; i-- {
					covariance[n] += v
					n += i
				}
				tolerance *= 1 + 2*e.plan.Clip
				near("covariance", r.Values[2].Data, covariance)
			}
		}
	}
}

// TestOriginalUnits compares the values in original units with those in scaled units. If the units are equal, the
// release must leave out the values in original units.
func TestOriginalUnits(t *testing.T) {
	t.Parallel()
	centre, scale := []float64{10, -3}, []float64{2, 0.25}
	c := Config{Clip: 1, Columns: dptest.Columns(2), Step: 2, Factorization: "phased", Centre: centre, Scale: scale}
	e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
	e.Add(0, []float64{0.5, 0.25})
	r, err := e.Close(dptest.Seeded(1))
	if err != nil {
		t.Fatal(err)
	}
	v := map[string]dp.Value{}
	for _, x := range r.Values {
		v[x.Name] = x
	}
	n := 0
	for i := range 2 {
		if got, want := v["mean_original"].Data[i], centre[i]+scale[i]*v["mean"].Data[i]; math.Abs(got-want) > 1e-12 {
			t.Errorf("mean_original %d is %g, want %g", i, got, want)
		}
		if got, want := v["mean_original"].SE[i], scale[i]*v["mean"].SE[0]; got != want {
			t.Errorf("se of mean_original %d is %g, want %g", i, got, want)
		}
		for j := i; j < 2; j++ {
			f := scale[i] * scale[j]
			if got, want := v["covariance_original"].Data[n], f*v["covariance"].Data[n]; got != want {
				t.Errorf("covariance_original %d is %g, want %g", n, got, want)
			}
			if got, want := v["covariance_original"].SE[n], f*v["covariance"].SE[n]; got != want {
				t.Errorf("se of covariance_original %d is %g, want %g", n, got, want)
			}
			n++
		}
	}
	c.Centre, c.Scale = []float64{0, 0}, []float64{1, 1}
	if names := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace}).cfg.Values(); slices.Contains(names,
		"mean_original") {
		t.Errorf("rows that are not scaled have values %v", names)
	}
}

// TestValues compares the result of Values with the names of a release's values, and every shape with its data.
func TestValues(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for _, c := range everything(4) {
		for _, covariance := range []*bool{nil, &yes, &no} {
			for _, scale := range [][]float64{nil, {1, 1}, {2, 3}} {
				if c.Covariance = covariance; covariance == &yes && (c.Workload == "sum" || c.Second != nil) ||
					covariance == &no && c.PSDFloor != nil {
					continue
				}
				c.Clip, c.Columns, c.Step, c.Scale = 1, dptest.Columns(2), 1, scale
				announced := c
				announced.Defaults()
				e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
				r, err := e.Close(dptest.Zero())
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				var bytes int64
				for _, v := range r.Values {
					names = append(names, v.Name)
					size := v.Shape[0]
					if v.Layout == "upper" {
						size = v.Shape[0] * (v.Shape[0] + 1) / 2
					}
					projected := v.Name == "covariance_psd" || v.Name == "second_moment_projected"
					if len(v.Data) != size || projected && v.SE != nil ||
						!projected && len(v.SE) != 1 && len(v.SE) != size {
						t.Errorf("%s: %s has %d numbers and %d errors, shape %v", describe(c), v.Name, len(v.Data),
							len(v.SE), v.Shape)
					}
					bytes += 8 * int64(len(v.Data)+len(v.SE))
				}
				if !slices.Equal(names, announced.Values()) {
					t.Errorf("%s releases %v, announces %v", describe(c), names, announced.Values())
				}
				if most := e.Sizes().Release; bytes > most {
					t.Errorf("%s: a release has %d bytes of numbers, announced %d", describe(c), bytes, most)
				}
			}
		}
	}
}

// TestHorizon closes steps up to the last one. No further step may close. Without a horizon, the estimator must end
// where the charge for rounding ends.
func TestHorizon(t *testing.T) {
	t.Parallel()
	for _, c := range everything(5) {
		c.Clip, c.Columns, c.Step = 1, dptest.Columns(2), 1
		for _, endless := range []bool{false, true} {
			ends := final(c) || squaring(c.Method) && c.Factorization != "identity"
			if c.Endless = endless; endless && ends {
				continue
			}
			e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
			noise := dptest.Seeded(3)
			for step := range 5 {
				e.Add(uint64(step), []float64{0.1, 0.2})
				if _, err := e.Close(noise); err != nil {
					t.Fatalf("%s, step %d: %v", describe(c), step+1, err)
				}
			}
			before, err := e.AppendBinary(nil)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				e.Add(5, []float64{0.3, 0.3})
				r, err := e.Close(noise)
				if endless {
					if err != nil || r.Rows != 1 {
						t.Errorf("%s, endless: %v after the horizon", describe(c), err)
					}
					continue
				}
				if !errors.Is(err, dp.ErrExhausted) || r != nil {
					t.Errorf("%s: %v, %v after the horizon", describe(c), r, err)
				}
				if after, err := e.AppendBinary(nil); err != nil || !slices.Equal(before, after) {
					t.Errorf("%s: a step after the horizon changed the state", describe(c))
				}
			}
			if want := endlessSteps(2); endless && e.horizon != want {
				t.Errorf("%s: ends after %d steps, want %d", describe(c), e.horizon, want)
			}
		}
	}
}

func endlessSteps(d uint64) uint64 { return 1 << 56 / (d * (d + 1) / 2) }

// TestSlots gives a step more records than it has slots. Close must refuse it, because its sums may overflow.
func TestSlots(t *testing.T) {
	t.Parallel()
	e := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(1), Step: 3, Factorization: "identity"},
		dp.Params{Mu: 1, Adjacency: dp.Replace})
	for step := range uint64(3) {
		if first, end := e.Range(step + 1); first != 3*step || end != 3*step+3 {
			t.Errorf("step %d has slots %d to %d", step+1, first, end)
		}
	}
	for i := range uint64(4) {
		e.Add(i, []float64{1})
	}
	noise := dptest.Zero()
	for range 2 {
		if r, err := e.Close(noise); err == nil || r != nil {
			t.Errorf("4 records in 3 slots give %v", r)
		}
	}
	if noise.Hidden("jme/first") != nil {
		t.Error("noise was drawn for a refused step")
	}
}

// TestMechanism compares releases with A(X + C⁻¹Z), computed with dense matrices from the noise that was drawn.
func TestMechanism(t *testing.T) {
	t.Parallel()
	const steps, d = 24, 2
	for _, c := range audited(steps) {
		c.Clip, c.Columns, c.Step = 0.8, dptest.Columns(d), 4
		a := mustSubject(t, c, dp.Params{Mu: 1.5, Adjacency: dp.ZeroOut})
		s := auditStream(steps, d)
		want := exactly(s, c, a.plan.Clip)
		// Column j of C comes from the audit's matrix.
		matrix := make([][]float64, steps)
		for j := range matrix {
			unit := make([]float64, steps)
			unit[j] = 1
			matrix[j], _ = audit.Whiten(a.c(), unit)
		}
		source := rand.New(rand.NewPCG(1, 9))
		draws := map[string][][]float64{}
		noise := make([][]float64, 0, d*(d+3)/2) // C⁻¹Z by coordinate, in units of the data
		for range steps {
			z := make([]float64, cap(noise))
			for i := range z {
				z[i] = source.NormFloat64()
			}
			draws["jme/first"] = append(draws["jme/first"], z[:d])
			draws["jme/second"] = append(draws["jme/second"], z[d:])
			draws["jme/full"] = append(draws["jme/full"], []float64{0})
		}
		sd := []float64{a.plan.First, a.plan.First, a.plan.Diagonal, a.plan.OffDiagonal, a.plan.Diagonal}
		for k := range cap(noise) {
			y := make([]float64, steps)
			for t := range y {
				y[t] = sd[k] * slices.Concat(draws["jme/first"][t], draws["jme/second"][t])[k]
				for j := range t {
					y[t] -= matrix[j][t] * y[j]
				}
				y[t] /= matrix[t][t]
			}
			noise = append(noise, y)
		}
		given := dptest.Arrays(draws)
		for step, records := range s {
			for i, x := range records {
				a.e.Add(uint64(step*4+i), x)
			}
			r, err := a.e.Close(given)
			if err != nil {
				t.Fatal(err)
			}
			var divisor float64
			total := make([]float64, len(noise))
			for j := range step + 1 {
				weight := 1.0
				switch {
				case c.Workload == "exponential":
					weight = math.Pow(c.Decay, float64(step-j))
				case c.Workload == "window" && step-j >= int(c.Window):
					weight = 0
				}
				divisor += weight * float64(len(s[j]))
				for k := range total {
					total[k] += weight * noise[k][j]
				}
			}
			if divisor = max(1, divisor); c.Workload == "sum" {
				divisor = 1
			}
			got := slices.Concat(r.Values[0].Data, r.Values[1].Data)
			for k, exact := range slices.Concat(want.mean[step], want.second[step]) {
				if x := exact + total[k]/divisor; !(math.Abs(got[k]-x) <= 1e-6) {
					t.Errorf("%s, step %d: value %d is %.9g, want %.9g", describe(c), step+1, k, got[k], x)
				}
			}
		}
	}
}
