package sketch

import (
	"testing"

	"streamdp/dp"
	"streamdp/internal/cases"
	"streamdp/internal/dptest"
)

func TestCases(t *testing.T) {
	cases.Run(t, "sketch", map[string]func(*testing.T, cases.Case){
		"newton_fixed_noise": caseNewton,
	}, "renyi_curves", "analytic_gaussian", "gaussian_delta", "calibration_papers", "calibration_joint", "fastmix_epsilon", "linmix_dynamic_k", "fwht", "srht", "ihm_fixed_noise", "adassp_fixed_noise", "dpgd_fixed_noise", "fastmix_fixed_noise", "wishart_moments", "dataset_statistics", "dataset_train_mse", "newton_train_mse")
}

func windowOf(x [][]float64, y []float64) *Data {
	w := NewData(len(x[0]), len(x))
	for i, row := range x {
		w.Add(row, y[i])
	}
	return w
}

func caseNewton(t *testing.T, c cases.Case) {
	var in struct {
		X         [][]float64
		Y         []float64
		Mu        float64
		Adjacency dp.Adjacency
		Hist      []float64
		Gram      []float64 `json:"gram_upper"`
		Grad      [][]float64
		Count     []float64
	}
	var want struct {
		Theta   []float64
		Valid   float64 `json:"n_valid"`
		R2      float64
		Ridge   float64
		Trace   float64 `json:"trace_cap"`
		T       float64
		C       float64
		T0      float64
		First   float64 `json:"zeta_first"`
		Last    float64 `json:"zeta_last"`
		Shrink  float64
		MuSteps float64 `json:"mu_steps"`
	}
	c.Read(t, &in, &want)
	w := windowOf(in.X, in.Y)
	s, err := newNewton(in.Mu, in.Adjacency, 30, w.Len(), w.Dim())
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][][]float64{"newton/hist": {in.Hist}, "newton/gram": {in.Gram}}
	for i := range in.Grad {
		rows[numbered("newton/grad", i)] = [][]float64{in.Grad[i]}
		rows[numbered("newton/count", i)] = [][]float64{{in.Count[i]}}
	}
	theta, trace, err := s.solve(w, dptest.Arrays(rows))
	if err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		rel, _ := c.Tolerance(t)
		cases.Near(t, what, got, want, rel, rel)
	}
	for j := range theta {
		near("theta", theta[j], want.Theta[j])
	}
	near("n_valid", trace.valid, want.Valid)
	near("r2", trace.squared, want.R2)
	near("ridge", trace.ridge, want.Ridge)
	near("trace_cap", trace.trace, want.Trace)
	near("T", float64(trace.steps), want.T)
	near("t0", float64(trace.start), want.T0)
	near("c", trace.counted, want.C)
	near("zeta_first", trace.first, want.First)
	near("zeta_last", trace.last, want.Last)
	near("shrink", trace.shrink, want.Shrink)
	near("mu_steps", s.part(stepShare), want.MuSteps)
}
