package dp_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestPrivacyTable computes the table of docs/privacy.md: what mechanisms of the papers really spend if they are
// calibrated to (ε, 10⁻⁶) as in their papers, and the factor by which their noise may shrink.
func TestPrivacyTable(t *testing.T) {
	const delta = 1e-6
	must := func(x float64, err error) float64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	mu := func(eps, delta float64) float64 { return must(dp.Mu(eps, delta)) }
	// A Gaussian mechanism for which its paper claims (ε, δ)-privacy at the μ that believed returns.
	gaussian := func(believed func(eps float64) float64) func(eps float64) (exact, factor float64) {
		return func(eps float64) (float64, float64) {
			m := believed(eps)
			return must(dp.Epsilon(delta, m)), m / mu(eps, delta)
		}
	}
	// Sketch rows and Gaussians at γ and σ; the factor scales both.
	joint := func(rows int, calibrate func(eps float64) (gamma float64), mu func(eps, gamma, factor float64) float64,
		bad float64) func(float64) (float64, float64) {
		return func(eps float64) (float64, float64) {
			gamma := calibrate(eps)
			at := func(f float64) float64 {
				return must(
					dp.Cost{Adjacency: dp.ZeroOut, Mu: mu(eps, gamma, f), Rows: rows,
						Gamma: f * gamma}.Epsilon(delta * (1 - bad)))
			}
			lo, hi := 1.01/gamma, 1.0
			for hi-lo > 1e-9 {
				if mid := (lo + hi) / 2; at(mid) <= eps {
					hi = mid
				} else {
					lo = mid
				}
			}
			return at(1), hi
		}
	}
	sketch := func(k int, gamma float64) dp.Curve {
		return dp.Curve{{Kind: dp.KindSketchRow, Count: k, Gamma: gamma}}
	}
	// The eigenvalue's margin is √(2 log x) standard deviations.
	tail := func(x float64) float64 { return math.Erfc(math.Sqrt(math.Log(x))) / 2 }
	const mixRows, steps, rows = 100, 3, 72
	mixGamma := func(eps float64) float64 { // ε̃(k, γ, δ) = ε of linear mixing
		lo, hi := 1.5, 1e6
		for hi-lo > 1e-9*lo {
			mid := math.Sqrt(lo * hi)
			e := math.Sqrt(2*math.Log(3.75/delta)*mixRows)/mid + must(sketch(mixRows, mid).Epsilon(delta/3))
			if e <= eps {
				hi = mid
			} else {
				lo = mid
			}
		}
		return hi
	}
	ihmGamma := func(eps float64) float64 {
		l := 8 * math.Log(5/delta)
		return math.Sqrt(rows*steps) / (math.Sqrt(l) * (math.Sqrt(1+eps/l) - 1))
	}
	ihmSigma := func(eps float64) float64 {
		l := 2 * math.Log(4/delta)
		return math.Sqrt(steps) / (math.Sqrt(l) * (math.Sqrt(1+eps/l) - 1))
	}
	var table []string
	targets := []float64{0.1, 1, 5}
	for _, r := range []struct {
		mechanism, bound string
		f                func(eps float64) (exact, factor float64)
	}{
		{"Gaussian mechanism", "σ = √(2 log(1.25/δ))/ε, the textbook's; no theorem above ε = 1",
			gaussian(func(eps float64) float64 { return eps / math.Sqrt(2*math.Log(1.25/delta)) })},
		{"first and second moments, independently (IME)", "(ε/2, δ/2) for each of two",
			gaussian(func(eps float64) float64 { return math.Sqrt2 * mu(eps/2, delta/2) })},
		{"joint moments (JME), postprocessed first moments (PP)", "exact",
			gaussian(func(eps float64) float64 { return mu(eps, delta) })},
		{"DP-AMBSSGD, as printed", "1/α²-zCDP, α = 2√(log(1/δ) + ε)/ε",
			gaussian(func(eps float64) float64 { return math.Sqrt2 * eps / (2 * math.Sqrt(math.Log(1/delta)+eps)) })},
		{"DP-AMBSSGD, every record in one batch", "the same",
			gaussian(func(eps float64) float64 { return eps / (2 * math.Sqrt(math.Log(1/delta)+eps)) })},
		{"DP-GD", "ρ + 2√(ρ log 1/δ)",
			gaussian(func(eps float64) float64 {
				rho, err := dp.RhoSimple(eps, delta)
				return math.Sqrt(2 * must(float64(rho), err))
			})},
		{"linear mixing, k = 100", "√(2 log(3.75/δ))·√k/γ for the eigenvalue, Rényi at δ/3 for the sketch, added",
			joint(mixRows, mixGamma, func(_, gamma, f float64) float64 { return math.Sqrt(mixRows) / (f * gamma) },
				tail(3/delta)/delta)},
		{"IHM, T = 3, k = 72", "Theorem 1: three ε added, δ in four",
			joint(rows*steps, ihmGamma, func(eps, gamma, f float64) float64 {
				return math.Hypot(math.Sqrt(steps)/(f*ihmSigma(eps)), math.Sqrt(rows)/(f*gamma))
			}, tail(4/delta)/delta)},
		{"IHM without the eigenvalue test", "the same",
			joint(rows*steps, ihmGamma,
				func(eps, _, f float64) float64 { return math.Sqrt(steps) / (f * ihmSigma(eps)) }, 0)},
	} {
		line := "| " + r.mechanism + " | " + r.bound + " |"
		for _, eps := range targets {
			exact, factor := r.f(eps)
			line += fmt.Sprintf(" %.4g, × %.3f |", exact, factor)
			if !(exact <= eps*(1+1e-9)) && eps <= 1 {
				t.Errorf("%s at %g: the paper's bound is exceeded, %g", r.mechanism, eps, exact)
			}
		}
		table = append(table, line)
	}
	cases.Table(t, "docs/privacy.md", "| mechanism | its paper's calibration |", table)
}
