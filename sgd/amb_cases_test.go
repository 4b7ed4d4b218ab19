package sgd

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/internal/vector"
)

func caseBands(t *testing.T, c cases.Case) {
	var in struct{ P int }
	var want struct {
		R       []float64
		ColNorm float64 `json:"col_norm"`
		Sum     float64 `json:"r_at_1"`
		LongRun float64 `json:"longrun_var_factor"`
	}
	c.Read(t, &in, &want)
	factor, err := factorize(in.P, nil)
	if err != nil {
		t.Fatal(err)
	}
	filter := factor.NewFilter(1)
	sum := 0.0
	for k, r := range want.R {
		z := []float64{0}
		if k == 0 {
			z[0] = 1
		}
		filter.Next(z, z) // the column of C⁻¹
		check(t, c, sprint("r_", k), z[0], r)
		sum += z[0]
	}
	check(t, c, "col_norm", factor.ColNorm(), want.ColNorm)
	check(t, c, "r(1)", sum, want.Sum)
	check(t, c, "long-run variance", noiseShape(factor.Stored(), factor.ColNorm()).average, want.LongRun)
}

// caseHuber takes the clipped gradients from the lattice, one record at a time.
func caseHuber(t *testing.T, c cases.Case) {
	var in struct {
		X        [][]float64
		Y, Theta []float64
		Gamma    float64
	}
	var want struct {
		B     []float64   `json:"huber_B"`
		Loss  []float64   `json:"huber_loss"`
		Grads [][]float64 `json:"clipped_grads"`
		Sum   []float64   `json:"sum_grad"`
	}
	c.Read(t, &in, &want)
	d := len(in.Theta)
	lattice := dp.Lattice{Exp: -30, K: 1 << 30}
	one := lattice.Radius(d)
	all, single := newGradients(lattice, one, d), newGradients(lattice, one, d)
	// Any clip norm above all gradients is possible. The smallest one gives the finest lattice.
	clip := 0.0
	for i, x := range in.X {
		product, square := vector.DotSquare(in.Theta, x)
		clip = max(clip, 2*math.Abs(product-in.Y[i])*math.Sqrt(square))
	}
	clip = min(clip, in.Gamma)
	all.open(clip)
	gradient := func(g gradients, j int) float64 { return float64(g.integers()[j]) / one * clip }
	for i, x := range in.X {
		product, square := vector.DotSquare(in.Theta, x)
		r := product - in.Y[i]
		b := in.Gamma / math.Sqrt(square)
		loss := r * r / 2
		if math.Abs(r) > b {
			loss = b * (math.Abs(r) - b/2)
		}
		check(t, c, "bound of the residual", b, want.B[i])
		check(t, c, "loss", loss, want.Loss[i])
		single.open(clip)
		single.add(x, r, square, 1)
		all.add(x, r, square, 1)
		for j := range d {
			near(t, "gradient", gradient(single, j), want.Grads[i][j], onLattice(t, c))
		}
	}
	for j := range d {
		near(t, "sum", gradient(all, j), want.Sum[j], onLattice(t, c))
	}
}

func caseTailAverage(t *testing.T, c cases.Case) {
	var in struct{ W [][]float64 }
	var want map[string]struct {
		After uint64 `json:"start_after"`
		Mean  []float64
	}
	c.Read(t, &in, &want)
	tol, _ := c.Tolerance(t)
	averages := map[string]*tail{} // the key is the text of the fraction
	for name := range want {
		_, fraction, _ := strings.Cut(name, "_f")
		if averages[fraction] != nil {
			continue
		}
		f, err := strconv.ParseFloat(fraction, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The cases do not have the estimator's rule that young averages take the last half.
		averages[fraction] = newTail(f, 0, len(in.W[0]))
	}
	seen := 0
	mean := make([]float64, len(in.W[0]))
	for i, w := range in.W {
		for fraction, a := range averages {
			a.add(w)
			e, ok := want[sprint("T", i+1, "_f", fraction)]
			if !ok {
				continue
			}
			seen++
			if after := a.mean(mean); after != e.After {
				t.Errorf("T = %d, f = %s: the average begins after %d, want %d", i+1, fraction, after, e.After)
			}
			for j := range mean {
				near(t, sprint("mean at T = ", i+1), mean[j], e.Mean[j], tol)
			}
		}
	}
	if seen != len(want) {
		t.Errorf("%d of %d averages were compared", seen, len(want))
	}
}

func caseStatLaw(t *testing.T, c cases.Case) {
	var in struct {
		Values           []float64
		L                int
		B                float64
		Alpha, Threshold float64
	}
	var want struct {
		Gammas       []float64
		Counts       []float64
		ScanSD       float64   `json:"scan_sd"`
		ScanLaw      []float64 `json:"scan_law"`
		BisectCounts int       `json:"bisect_counts"`
		BisectSD     float64   `json:"bisect_sd"`
		BisectLaw    []float64 `json:"bisect_law"`
	}
	c.Read(t, &in, &want)
	tol, _ := c.Tolerance(t)
	l := ladder.Ladder{Top: in.B, Rungs: in.L}
	h := l.Histogram()
	for _, u := range in.Values {
		h[l.Index(u)]++
	}
	for i, g := range want.Gammas {
		near(t, "rung", l.Rung(i), g, tol)
		near(t, "count", float64(h.UpTo(i)), want.Counts[i], tol)
	}
	if l.Searches() != want.BisectCounts {
		t.Errorf("a binary search asks %d counts, want %d", l.Searches(), want.BisectCounts)
	}
	near(t, "scan_sd", math.Sqrt(float64(in.L))*in.Alpha, want.ScanSD, tol)
	near(t, "bisect_sd", math.Sqrt(float64(l.Searches()))*in.Alpha, want.BisectSD, tol)
	for _, m := range []struct {
		method string
		sd     float64
		law    []float64
	}{{"scan", want.ScanSD, want.ScanLaw}, {"bisect", want.BisectSD, want.BisectLaw}} {
		law, err := statLaw(m.method, in.Values, in.L, in.B, in.Threshold, 0, m.sd)
		if err != nil {
			t.Fatal(err)
		}
		for i := range law {
			near(t, m.method+" law", law[i], m.law[i], tol)
		}
	}
}

// caseStreamReplay replays a stream and its normals through the estimator, with 30 lattice bits and with settings that
// neither shorten features nor limit the iterates.
func caseStreamReplay(t *testing.T, c cases.Case) {
	var in struct {
		X       [][]float64
		Y       []float64
		Nulls   []int `json:"null_records"`
		Normals []float64
		Config  struct {
			Batch      uint64  `json:"b"`
			Stat       uint64  `json:"s"`
			Bootstrap  uint64  `json:"s0"`
			Eta        float64 `json:"eta"`
			Alpha      float64 `json:"alpha"`
			Clip       string  `json:"stat"`
			Value      string  `json:"val"`
			Rungs      int     `json:"L"`
			Top        float64 `json:"B"`
			Quantile   float64 `json:"q"`
			Multiplier float64 `json:"cmul"`
			Threshold  float64 `json:"thr"`
			Bands      int     `json:"band"`
			Fraction   float64 `json:"frac"`
			Kappa      float64 `json:"kappa"`
			Sens       float64 `json:"sens"`
			Zeta       float64 `json:"zeta"`
		}
	}
	type step struct {
		T     uint64
		After uint64 `json:"after_record"`
		Zeta  float64
		W     []float64
		Tail  []float64 `json:"tail_half"`
	}
	var want struct {
		Steps []step
		Used  int `json:"normals_used"`
	}
	c.Read(t, &in, &want)
	tol := onLattice(t, c)

	d := len(in.X[0])
	no := false
	x := in.Config
	cfg := Config{
		Method: "amb", Target: "y", ClipX: 1e6, Intercept: &no, Restart: &no, Intervals: &no, Radius: 1, Clip: x.Clip,
		Bands: max(x.Bands, 1), Rungs: x.Rungs, Top: x.Top, ThresholdQuantile: x.Quantile, Fraction: x.Fraction,
		Kappa: x.Kappa,
		Value: map[string]string{"gnorm": "gradnorm", "resid": "residual"}[x.Value], Zeta: x.Zeta,
		Horizon: 1000,
	}
	for j := range d {
		cfg.Columns = append(cfg.Columns, sprint("x", j))
	}
	cfg.Columns = append(cfg.Columns, "y")
	params := dp.Params{Mu: 1 / x.Alpha, Adjacency: dp.Replace, LatticeBits: 30}
	if x.Sens == 1 {
		params.Adjacency = dp.ZeroOut
	}
	cfg.Defaults()
	plan, factor, err := resolveAMB(&cfg, params, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan.Batch, plan.Search, plan.Radius = x.Batch, max(x.Stat, x.Bootstrap), 0
	plan.Bound, plan.Curvature, cfg.Eta0 = 1, 1, x.Eta // a step size of eta
	plan.Threshold, plan.Multiplier = cfg.ThresholdQuantile*float64(plan.Search), 1
	if x.Threshold != 0 {
		plan.Threshold = x.Threshold
	}
	if x.Multiplier != 0 {
		plan.Multiplier = x.Multiplier
	}
	e, err := buildAMB(cfg, params, *plan, factor)
	if err != nil {
		t.Fatal(err)
	}
	half := newTail(0.5, 0, d)
	e.average = half

	noise := dptest.Queue(in.Normals[:want.Used]...)
	row := make([]float64, d+1)
	var at uint64 // step of the daemon
	for _, step := range want.Steps {
		var r *dp.Release
		var end uint64
		for r == nil {
			at++
			var first uint64
			first, end = e.Range(at)
			for i := first; i < end; i++ {
				if slices.Contains(in.Nulls, int(i)) {
					e.Add(i, nil)
					continue
				}
				copy(row, in.X[i])
				row[d] = in.Y[i]
				e.Add(i, row)
			}
			if r, err = e.Close(noise); err != nil {
				t.Fatal(err)
			}
		}
		value := func(name string) []float64 {
			for _, v := range r.Values {
				if v.Name == name {
					return v.Data
				}
			}
			t.Fatalf("no value %s", name)
			return nil
		}
		if got := uint64(value("iteration")[0]); got != step.T || end-1 != step.After ||
			uint64(value("slots")[0]) != end {
			t.Errorf("iteration %d ends with record %d, want %d, %d", got, end-1, step.T, step.After)
		}
		near(t, "zeta", value("zeta")[0], step.Zeta, tol)
		for j := range d {
			near(t, sprint("w after step ", step.T), value("theta")[j], step.W[j], tol)
			near(t, sprint("average after step ", step.T), value("theta_average")[j], step.Tail[j], tol)
		}
	}
	defer func() {
		if recover() == nil {
			t.Errorf("fewer than %d normals were used", want.Used)
		}
	}()
	noise.Row("any", []int64{0}).At(0)
}
