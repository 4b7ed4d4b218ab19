package sgd

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

func TestCases(t *testing.T) {
	cases.Run(t, "sgd", map[string]func(*testing.T, cases.Case){
		"gdp_calibrate":        caseCalibrate,
		"zcdp_to_dp":           caseZCDP,
		"gdp_delta":            caseDelta,
		"shuffle":              caseShuffle,
		"clone_delta":          caseCloneDelta,
		"ssgd_eps":             caseSSGD,
		"mf_band":              caseBands,
		"student_t":            caseStudent,
		"clip_is_huber":        caseHuber,
		"dp_gd_replay":         caseDescent,
		"dp_gd_process":        caseProcess,
		"dp_gd_lambda":         caseLambda,
		"dp_gd_track_replay":   caseTracked,
		"ci_constructions":     caseIntervals,
		"tail_average":         caseTailAverage,
		"dp_ssgd_replay":       caseShuffled,
		"dp_stat_law":          caseStatLaw,
		"stream_replay":        caseStreamReplay,
		"fig1":                 caseDescentError,
		"fig2":                 caseDescentError,
		"fig3":                 caseDescentError,
		"gd_track":             caseTrackedError,
		"fig56":                caseCoverage,
		"ar1_coverage":         caseAutoregression,
		"stream_track_iid":     caseStreamTrack,
		"stream_track_mf16":    caseStreamTrack,
		"paper_verbatim":       casePaperVerbatim,
		"stream_newton_replay": caseNewtonReplay,
		"stream_newton_mse":    caseNewtonMSE,

		"stream_newton_intercept_replay": caseNewtonReplay,
		"stream_newton_intercept_mse":    caseNewtonMSE,
	})
}

// near fails unless |got − want| ≤ tol·max(|want|, 1).
func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	cases.Near(t, what, got, want, tol, tol)
}

// onLattice returns the tolerance of a case that runs through the lattice.
func onLattice(t *testing.T, c cases.Case) float64 {
	tol, _ := c.Tolerance(t)
	return max(tol, 1e-6)
}

// tolerance returns a case's tolerance and whether it is relative, "rel 1e-7".
func tolerance(t *testing.T, c cases.Case) (tol float64, relative bool) {
	t.Helper()
	var text string
	if json.Unmarshal(c.Tol, &text) == nil {
		if _, err := fmt.Sscanf(text, "rel %g", &tol); err != nil {
			t.Fatalf("tol: %v", err)
		}
		return tol, true
	}
	tol, _ = c.Tolerance(t)
	return tol, false
}

// check compares with the tolerance of the case.
func check(t *testing.T, c cases.Case, what string, got, want float64) {
	t.Helper()
	if tol, relative := tolerance(t, c); relative {
		cases.Near(t, what, got, want, tol, 0)
	} else {
		near(t, what, got, want, tol)
	}
}

// sampleOf returns a sample of features whose bound shortens none of them.
func sampleOf(x [][]float64, y []float64) *Sample {
	return &Sample{D: len(x[0]), X: slices.Concat(x...), Y: y}
}

func caseStudent(t *testing.T, c cases.Case) {
	var in struct{ P, DF float64 }
	var want struct{ Quantile float64 }
	c.Read(t, &in, &want)
	check(t, c, "quantile", StudentQuantile(in.P, in.DF), want.Quantile)
}

func sprint(parts ...any) string { return fmt.Sprint(parts...) }
