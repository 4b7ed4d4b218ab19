package moments

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/stattest"
	"github.com/streamdp/streamdp/internal/testing/dptest"
	"github.com/streamdp/streamdp/matfact"
)

// released returns the named value of a release, nil if there is none.
func released(r *dp.Release, name string) *dp.Value {
	for i := range r.Values {
		if r.Values[i].Name == name {
			return &r.Values[i]
		}
	}
	return nil
}

// TestCountedMean releases without noise. counted_share must be the share of valid records, and mean_counted the mean
// of the valid records, under the workload's weights. Neither may depend on the number of invalid records or on the
// scaling.
func TestCountedMean(t *testing.T) {
	t.Parallel()
	const steps, slots = 6, 40
	centre, scale := []float64{3, -1}, []float64{2, 0.5}
	for _, w := range []Config{
		{Workload: "mean"}, {Workload: "sum"}, {Workload: "exponential", Decay: 0.7}, {Workload: "window", Window: 2},
	} {
		c := w
		c.Clip, c.Columns, c.Step, c.Horizon = 1, dptest.Columns(2), slots, steps
		c.Centre, c.Scale = centre, scale
		c.Person = matfact.Participation{Count: 2, Separation: 1}
		e := mustNew(t, c, dp.Params{Mu: 40, Adjacency: dp.Replace})
		noise, source := dptest.Zero(), rand.New(rand.NewPCG(7, 8))
		var counted, records [steps]float64
		var sums [steps][2]float64
		for step := range steps {
			for range slots {
				row := inBall(source, 2, 0.99)
				if records[step]++; source.IntN(3) == 0 {
					row = nil
				} else {
					counted[step]++
					sums[step][0], sums[step][1] = sums[step][0]+row[0], sums[step][1]+row[1]
				}
				e.Add(0, row)
			}
			r, err := e.Close(noise)
			if err != nil {
				t.Fatal(err)
			}
			var n, all float64
			var sum [2]float64
			for j := range step + 1 {
				weight := 1.0
				switch {
				case w.Workload == "exponential":
					weight = math.Pow(w.Decay, float64(step-j))
				case w.Workload == "window" && step-j >= int(w.Window):
					weight = 0
				}
				n, all = n+weight*counted[j], all+weight*records[j]
				sum[0], sum[1] = sum[0]+weight*sums[j][0], sum[1]+weight*sums[j][1]
			}
			share, mean, original := released(r, "counted_share"), released(r, "mean_counted"),
				released(r, "mean_counted_original")
			if share == nil || mean == nil || original == nil {
				t.Fatalf("%s, step %d: a value is missing", w.Workload, step+1)
			}
			if !(math.Abs(share.Data[0]-n/all) < 1e-9) {
				t.Errorf("%s, step %d: a share of %g, want %g", w.Workload, step+1, share.Data[0], n/all)
			}
			for i := range 2 {
				want := sum[i] / n
				if !(math.Abs(mean.Data[i]-want) < 1e-5) ||
					!(math.Abs(original.Data[i]-(centre[i]+scale[i]*want)) < 1e-5) {
					t.Errorf("%s, step %d: means %g and %g, want %g", w.Workload, step+1, mean.Data[i],
						original.Data[i], want)
				}
				if original.SE[i] != scale[i]*mean.SE[i] {
					t.Errorf("%s, step %d: the error of the original mean is %g", w.Workload, step+1, original.SE[i])
				}
			}
		}
		if !slices.Equal(names(e.Sample()), e.cfg.Values()) {
			t.Errorf("a sample has %q, values are %q", names(e.Sample()), e.cfg.Values())
		}
	}
}

func names(r *dp.Release) (all []string) {
	for _, v := range r.Values {
		all = append(all, v.Name)
	}
	return all
}

// TestCountedError compares the stated error of mean_counted with the errors of releases. If the mean is large, the
// noise of the count dominates the error; if the mean is 0, the noise of the sum dominates it.
func TestCountedError(t *testing.T) {
	t.Parallel()
	const rounds, slots, valid = 2000, 100, 60
	c := Config{Workload: "window", Window: 1, Factorization: "identity", Clip: 1, Columns: dptest.Columns(2),
		Step: slots, Endless: true,
		Person: matfact.Participation{Count: 1, Separation: 1}}
	e := mustNew(t, c, dp.Params{Mu: 3, Adjacency: dp.ZeroOut})
	noise, z, shares := dptest.Seeded(20), make([][]float64, 2), []float64(nil)
	for range rounds {
		for i := range slots {
			if row := []float64{0.9, 0}; i < valid {
				e.Add(0, row)
			} else {
				e.Add(0, nil)
			}
		}
		r, err := e.Close(noise)
		if err != nil {
			t.Fatal(err)
		}
		mean, share := released(r, "mean_counted"), released(r, "counted_share")
		for i, want := range []float64{0.9, 0} {
			z[i] = append(z[i], (mean.Data[i]-want)/mean.SE[i])
		}
		shares = append(shares, (share.Data[0]-valid/float64(slots))/share.SE[0])
	}
	for _, sample := range append(z, shares) {
		if err := stattest.Variance(sample, 1e-7); err != nil {
			t.Error(err)
		}
		if err := stattest.Mean(sample, 0, 1, 1e-7); err != nil {
			t.Error(err)
		}
	}
}

// TestCountedTooFew checks that no mean is divided by a noisy number that is not far above 0. None of these values may
// be released if single records are protected, or if persons are protected without the count.
func TestCountedTooFew(t *testing.T) {
	t.Parallel()
	c := Config{Workload: "mean", Factorization: "identity", Clip: 1, Columns: dptest.Columns(1), Step: 1000,
		Horizon: 1, Person: matfact.Participation{Count: 1, Separation: 1}}
	close := func(c Config, valid int) (*Estimator, *dp.Release) {
		e := mustNew(t, c, dp.Params{Mu: 1, Adjacency: dp.Replace})
		for i := range 1000 {
			if i < valid {
				e.Add(0, []float64{0.5})
			} else {
				e.Add(0, nil)
			}
		}
		r, err := e.Close(dptest.Zero())
		if err != nil {
			t.Fatal(err)
		}
		return e, r
	}
	e, _ := close(c, 0)
	least := int(math.Ceil(8 * e.plan.Count))
	for _, valid := range []int{0, least - 1, least} {
		_, r := close(c, valid)
		if released(r, "counted_share") == nil || (released(r, "mean_counted") != nil) != (valid == least) {
			t.Errorf("with %d of at least %d valid records a release has %q", valid, least, names(r))
		}
	}
	for _, other := range []func(*Config){
		func(c *Config) { c.Person = matfact.Participation{} },
		func(c *Config) { c.Person, c.ValidCount = matfact.Participation{}, new(true) },
		func(c *Config) { c.ValidCount = new(false) },
	} {
		c := c
		other(&c)
		e, r := close(c, 1000)
		if released(r, "counted_share") != nil || released(r, "mean_counted") != nil ||
			!slices.Equal(names(r), e.cfg.Values()) {
			t.Errorf("a release has %q", names(r))
		}
	}
}

// TestRecordCost changes a record of a person, but not its user key. No such change may cost more than RecordCost, and
// the worst one must cost almost that.
func TestRecordCost(t *testing.T) {
	t.Parallel()
	for _, adjacency := range []dp.Adjacency{dp.ZeroOut, dp.Replace} {
		for i, c := range personConfigs() {
			c.Method, c.Columns = "jme", dptest.Columns(2)
			a := mustSubject(t, c, dp.Params{Mu: 2, Adjacency: adjacency})
			cost := a.e.RecordCost()
			plain := a.plan.Mu * a.e.shapes.first.factor.ColNorm() / a.plan.Person.Norm
			if cost.Adjacency != adjacency || cost.Mu < plain || cost.Mu > plain*1.001 {
				t.Errorf("%d, %s: a record costs %g, a person %g, want about %g", i, adjacency, cost.Mu,
					a.plan.Mu, plain)
			}
			// Only this record changes; the person's other records do not change.
			base := person(others(2), same([]float64{personClip, 0}, a.plan.Person.PerStep, 0, 4, 8))
			x, y := []float64{personClip, 0}, []float64(nil)
			if adjacency == dp.Replace && a.plan.Nu <= 0.5 {
				y = []float64{-personClip, 0}
			} else if adjacency == dp.Replace {
				y = []float64{0, personClip}
			}
			worst := 0.0
			for _, step := range []int{0, 4} {
				distance, err := a.Sensitivity(base.Replace(step, 0, x), base.Replace(step, 0, y), keys(14))
				if err != nil {
					t.Fatal(err)
				}
				worst = max(worst, distance)
			}
			if worst > cost.Mu || worst < 0.999*cost.Mu {
				t.Errorf("%d, %s: a record is worth %g, charged %g", i, adjacency, worst, cost.Mu)
			}
		}
	}
	e := mustNew(t, Config{Clip: 1, Columns: dptest.Columns(1), Step: 1}, dp.Params{Mu: 1, Adjacency: dp.ZeroOut})
	if got := e.RecordCost(); got.Mu != e.Cost().Mu || got.Adjacency != dp.ZeroOut {
		t.Error("if single records are protected, RecordCost differs from Cost")
	}
}
