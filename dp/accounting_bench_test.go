package dp

import "testing"

// BenchmarkConversion measures every conversion from a cost to ε and to δ, for the size of a refit: 3 iterations of 72
// rows.
func BenchmarkConversion(b *testing.B) {
	const delta, mu, gamma, rows = 1e-6, 0.2, 327.2, 216
	curve := Cost{Adjacency: ZeroOut, Mu: mu, Rows: rows, Gamma: gamma,
		Terms: []Term{{Kind: KindFastMixRow, Count: 100, Gamma: 400}, {Kind: KindLaplace, Count: 6, Scale: 30}}}.Curve()
	charges := make([]Charge, 100)
	for i := range charges {
		charges[i] = Charge{First: int64(i) * 10, End: int64(i)*10 + 15,
			Cost: Cost{Adjacency: ZeroOut, Mu: mu, Rows: rows * (i % 2), Gamma: gamma * float64(i%2)}}
	}
	for _, c := range []struct {
		name string
		f    func() (float64, error)
	}{
		{"gaussian/epsilon", func() (float64, error) { return Epsilon(delta, mu) }},
		{"gaussian/mu", func() (float64, error) { return Mu(1, delta) }},
		{"zcdp/simple", func() (float64, error) { return ZCDP(mu * mu / 2).Simple(delta) }},
		{"zcdp/tight", func() (float64, error) { return ZCDP(mu * mu / 2).Tight(delta) }},
		{"renyi/at", func() (float64, error) { return curve.At(20) }},
		{"renyi/epsilon", func() (float64, error) { return curve.Epsilon(delta) }},
		{"renyi/delta", func() (float64, error) { return curve.Delta(1) }},
		{"sketch/delta", func() (float64, error) { return sketchDelta(0.3, rows, gamma) }},
		{"sketch/epsilon", func() (float64, error) { return sketchEpsilon(delta, rows, gamma) }},
		{"joint/delta", func() (float64, error) { return jointDelta(1, mu, rows, gamma, ZeroOut) }},
		{"joint/epsilon", func() (float64, error) { return jointEpsilon(delta, mu, rows, gamma, ZeroOut) }},
		{"joint-replace/delta", func() (float64, error) { return jointDelta(1, mu, rows, gamma, Replace) }},
		{"joint-replace/epsilon", func() (float64, error) { return jointEpsilon(delta, mu, rows, gamma, Replace) }},
		{"joint-few-rows/delta", func() (float64, error) { return jointDelta(1, 1e-5, 2, 3, ZeroOut) }},
		{"group/epsilon", func() (float64, error) {
			return Cost{Adjacency: ZeroOut, Mu: mu, Rows: rows, Gamma: gamma}.GroupEpsilon(3, delta)
		}},
		{"ledger/charged-100", func() (float64, error) {
			c, err := Charged(charges, ZeroOut, delta)
			return c.Mu, err
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
