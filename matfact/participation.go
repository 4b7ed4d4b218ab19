package matfact

import (
	"errors"
	"fmt"
	"math"
)

// Participation describes in how many steps one person may have rows, and how far apart these steps are.
type Participation struct {
	// Count is the largest number of steps in which one person has rows.
	Count uint64
	// Separation is the least distance between two of these steps, in steps; 1 allows consecutive steps.
	Separation uint64
	// Fixed says that the distance is always exactly Separation, as in training that reads the same rows in the same
	// order in every pass.
	Fixed bool
	// PerStep is the largest number of a person's rows in one step; 0 means 1.
	PerStep uint64
}

// Within returns p for a stream that certainly ends after n steps; n = 0 means that the stream does not end. Within n
// steps, no person has rows in more than 1 + ⌊(n−1)/Separation⌋ steps.
func (p Participation) Within(n uint64) Participation {
	if n > 0 && p.Separation > 0 {
		p.Count = min(p.Count, 1+(n-1)/p.Separation)
	}
	return p
}

// validate returns the faults of p.
func (p Participation) validate() error {
	if p.Count == 0 || p.Separation == 0 {
		return fmt.Errorf("participation has count %d and separation %d, both must be at least 1",
			p.Count, p.Separation)
	}
	return nil
}

// Sensitivity returns an upper bound on ‖Σ_{i∈π} C e_i x_iᵀ‖. The bound is over all sets π of steps in which one person
// can have rows, and over all x_i that are sums of at most PerStep rows of norm 1. For a single row the result is
// ColNorm. n is the number of steps after which the stream certainly ends, 0 if it does not end. If it ends, columns
// end at row n, and a person has rows in as many steps as the separation allows, at most p.Count.
//
// With m = PerStep and X = CᵀC, the exact value is at most m·max_π √(Σ_{i,j∈π} |X_ij|), and equals it if X ≥ 0. The
// method of maximising this depends on C:
//
//	non-negative, non-increasing Toeplitz   steps 1, 1+b, 1+2b, …: exact
//	phased                                  X_ij at lag (j−i)b, for the worst phases
//	other, up to 1024 steps                 the best pattern for each row of |X|,
//	                                        then the best pattern of those sums;
//	                                        all offsets of a fixed one
//	other                                   Count·ColNorm
//
// The result is rounded up, by a factor 1+2⁻³⁴ that covers the float64 roundings. Cost for a BLT with d buffers: O(d²),
// or O(Count·d²) for streams that end within 1000 steps. The result has the same bits on every architecture for
// "identity", "blt" and "phased".
//
// The result is for one matrix. A joint calibration of two arrays may combine two ColNorms, but it must not combine the
// results of Sensitivity for two matrices C₁ and C₂ in the same way: joint sensitivity is convex in the pair of
// squares, so the true value can exceed the combination. For equal matrices the combination is right.
// docs/theory/matfact.md has an example.
//
// Errors: a count or separation of 0; n beyond C's horizon.
func Sensitivity(f Factorization, p Participation, n uint64) (float64, error) {
	var errs []error
	if err := p.validate(); err != nil {
		errs = append(errs, err)
	}
	if h := f.Horizon(); h > 0 {
		if n > h {
			errs = append(errs, fmt.Errorf("the stream has %d steps, the factorization only %d", n, h))
		}
		if n == 0 {
			n = h
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	p = p.Within(n)
	rows := float64(max(1, p.PerStep))
	most := float64(p.Count) * f.ColNorm() * rows
	if p.Count == 1 && n == 0 {
		return most, nil
	}
	var square float64
	switch f := f.(type) {
	case *buffered:
		square = f.participation(p, n)
	case toeplitz:
		square = toeplitzParticipation(f, p, n)
	}
	if square == 0 {
		if n == 0 || n > 1024 || p.Count == 1 {
			return most, nil
		}
		square = patternBound(absGram(entries(f, int(n))), p)
	}
	// All terms are positive; the factor covers their rounding errors.
	return min(most, math.Sqrt(square)*(1+0x1p-34)*rows), nil
}

// participation returns the square of Sensitivity for PerStep = 1. For columns i < j, in phases with r, Ω and r', Ω',
//
//	X_ij = Σ_i Ω_iΘ_i^(τ−1)/r' + Σ_ik Ω_iΩ'_kΘ_i^τ/(1−Θ_iΘ_k),   τ = j−i
//
// falls with τ, and two rows with m−1 other rows between them are at least mb steps apart.
func (b *buffered) participation(p Participation, n uint64) float64 {
	if ph := b.stored.Phases; len(ph) == 1 {
		if n > 0 && p.Count <= 1000 {
			return b.pairs(p, n)
		}
		return float64(float64(p.Count)*b.colNorm*b.colNorm) + 2*b.equallySpaced(p)
	}
	square := float64(p.Count) * b.colNorm * b.colNorm
	for m := uint64(1); m < p.Count; {
		// Lags m … end−1 are all treated as lag m, which can only make the sum larger.
		end := min(p.Count, m+1+m/16)
		var worst float64
		for i, first := range b.stored.Phases {
			for _, second := range b.stored.Phases[i:] {
				if n > 0 && second.Start > n {
					break
				}
				worst = max(worst, b.overlap(first, second, m*p.Separation))
			}
		}
		// The factor is 2 Σ_{m≤j<end} (k−j).
		square += float64(worst * float64(end-m) * (2*float64(p.Count) - float64(m) - float64(end-1)))
		m = end
	}
	return square
}

// overlap returns X_ij for columns of two phases, lag ≥ 1 steps apart.
func (b *buffered) overlap(first, second Phase, lag uint64) float64 {
	var sum float64
	for i, wi := range first.Weight {
		gap, theta := b.stored.Decay[i].gap(), b.stored.Decay[i].float()
		inner := 1 / second.Scale
		for k, wk := range second.Weight {
			inner += float64(wk.float()*theta) / (gap + float64(b.stored.Decay[k].gap()*theta))
		}
		sum += float64(wi.float() * (1 - gapPower(gap, lag-1)) * inner)
	}
	return sum
}

// equallySpaced returns Σ_{m=1}^{k−1} (k−m)·X(mb) of a BLT. There X is a sum of geometric sequences.
func (b *buffered) equallySpaced(p Participation) float64 {
	ph := b.stored.Phases[0]
	var sum float64
	for i, wi := range ph.Weight {
		gap, theta := b.stored.Decay[i].gap(), b.stored.Decay[i].float()
		inner := 1 / ph.Scale
		for k, wk := range ph.Weight {
			inner += float64(wk.float()*theta) / (gap + float64(b.stored.Decay[k].gap()*theta))
		}
		// Σ_m (k−m) θ^(mb−1) = θ^(b−1) Σ_{m<k−1} (k−1−m) ρ^m, ρ = θ^b.
		delta, rest := gapPower(gap, p.Separation), float64(p.Count-1)
		spaced := rest * meanOfSums(delta, rest, gapPower(delta, p.Count-1)/delta)
		sum += float64(wi.float() * inner * (1 - gapPower(gap, p.Separation-1)) * spaced)
	}
	return sum
}

// meanGeometric returns H(δ, n) = (1/n) Σ_{m≤n} G(δ, m) = Σ_{j<n} (1−j/n)(1−δ)^j.
func meanGeometric(delta, n float64) float64 {
	g, _ := geometric(delta, n)
	return meanOfSums(delta, n, g)
}

// meanOfSums returns H(δ, n), given G(δ, n). For small nδ the closed form would lose digits, so meanOfSums uses a
// series with alternating, falling terms. It ends the series after a positive term, so the result is not too small.
func meanOfSums(delta, n, g float64) float64 {
	x := n * delta
	if x < 1e-2 {
		f := n*n - 1
		return (n+1)/2 - float64(delta*f/6) + float64(delta*delta*f*(n-2)/24) -
			float64(delta*delta*delta*f*(n-2)*(n-3)/120) + float64(delta*delta*delta*delta*f*(n-2)*(n-3)*(n-4)/720)
	}
	return (n - float64((1-delta)*g)) / x
}

// pairs returns Σ_{p,q<k} X over pairs of the k columns, for a BLT whose columns end at row n, with
//
//	X = Σ_{s<h} c_s c_{s+τ},   τ = (q−p)b, h = n − qb the number of rows that both columns have.
func (b *buffered) pairs(p Participation, n uint64) float64 {
	ph, decay := b.stored.Phases[0], b.stored.Decay
	var square float64
	for q := range p.Count {
		rows := n - q*p.Separation // the number of rows of column q
		square += 1 / (ph.Scale * ph.Scale)
		for i, wi := range ph.Weight {
			theta := decay[i].float()
			// Σ_{m=0}^q θ^(mb), with the terms from m = 1 on doubled.
			spaced := 1.0
			first := 0.0 // 2 Σ_{m=1}^q θ^(mb−1)
			if q > 0 {
				delta := gapPower(decay[i].gap(), p.Separation)
				g := gapPower(delta, q) / delta
				first = 2 * (1 - gapPower(decay[i].gap(), p.Separation-1)) * g
				spaced += float64(first * theta)
			}
			square += float64(wi.float() / ph.Scale * first)
			for k, wk := range ph.Weight {
				d := decay[i].gap() + float64(decay[k].gap()*theta)
				square += float64(wi.float() * wk.float() * spaced * gapPower(d, rows-1) / d)
			}
		}
	}
	return square
}

// toeplitzParticipation returns the square of Sensitivity for PerStep = 1, if C is Toeplitz and its coefficients are
// known, non-negative and not increasing. Otherwise it returns 0.
func toeplitzParticipation(f toeplitz, p Participation, n uint64) float64 {
	const longest = 1 << 22
	length := n
	switch f := f.(type) {
	case *root:
		if f.kernel.Kind == "window" {
			return 0
		}
	case *banded:
		length = f.significant()
		if (n == 0 || n > longest) && f.stored.Kind != "bisr" && p.Separation >= length {
			return float64(p.Count) * f.ColNorm() * f.ColNorm() // orthogonal columns
		}
		span := (p.Count - 1) * p.Separation
		if p.Count > longest || span > longest {
			return 0
		}
		if length += span; n > 0 {
			length = min(length, n)
		}
	default:
		return 0
	}
	if length > longest {
		return 0
	}
	c := make([]float64, length)
	for j, x := range f.column(int(length)) {
		c[j] = float64(x) * columnUnit
	}
	return spacedColumns(c, p)
}

// spacedColumns takes the coefficients c of a Toeplitz matrix; all others are 0. It returns Σ_t (Σ_{j<k} c_{t−jb})²,
// the squared norm of the sum of the columns 1, 1+b, 1+2b, … It returns 0 if c increases somewhere.
func spacedColumns(c []float64, p Participation) float64 {
	for j := 1; j < len(c); j++ {
		if c[j] > c[j-1] {
			return 0
		}
	}
	v := make([]float64, len(c)) // Σ_{j<k} c_{t−jb}
	n := uint64(len(c))
	b, span := min(p.Separation, n), min(p.Count, n)*min(p.Separation, n)
	var square float64
	for t := range v {
		v[t] = c[t]
		if at := uint64(t); at >= b {
			v[t] += v[at-b]
			if at >= span {
				v[t] -= c[at-span]
			}
		}
		square += float64(v[t] * v[t])
	}
	return square
}

// significant returns the number of coefficients of C that matter. Coefficients beyond it are 0, or change a sum of
// products of coefficients by less than 2⁻⁴⁰.
func (b *banded) significant() uint64 {
	p := uint64(len(b.stored.Bands))
	if p == 0 || b.stored.Kind != "bisr" {
		return p + 1
	}
	// If p values are at most M, the next p are at most MΣm.
	shrink := -math.Log1p(-1 / b.gain)
	return p * uint64(math.Ceil(60*math.Ln2/shrink))
}

// absGram returns |CᵀC|.
func absGram(c [][]float64) [][]float64 {
	n := len(c)
	x := make([][]float64, n)
	for i := range x {
		x[i] = make([]float64, n)
		for j := range x[i] {
			var sum float64
			for t := max(i, j); t < n; t++ {
				sum += c[t][i] * c[t][j]
			}
			x[i][j] = math.Abs(sum)
		}
	}
	return x
}

// entries returns the first n rows and columns of C. It computes C⁻¹ by applying the filter to unit vectors, and
// inverts it.
func entries(f Factorization, n int) [][]float64 {
	// Compute the rows of C⁻¹. Each coordinate of the filter processes the unit vector of one column.
	filter := f.NewFilter(n)
	inverse, z := make([][]float64, n), make([]float64, n)
	for t := range inverse {
		clear(z)
		z[t] = 1
		inverse[t] = make([]float64, n)
		filter.Next(inverse[t], z)
	}
	return invertLower(inverse)
}

// invertLower returns the inverse of a lower triangular matrix.
func invertLower(c [][]float64) [][]float64 {
	x := make([][]float64, len(c))
	for t := range c {
		x[t] = make([]float64, len(c))
		for m, y := range c[t][:t] {
			for j, v := range x[m][:m+1] {
				x[t][j] -= y * v
			}
		}
		x[t][t] = 1
		for j := range t + 1 {
			x[t][j] /= c[t][t]
		}
	}
	return x
}

// patternBound returns an upper bound on max_π Σ_{i,j∈π} x_ij for x ≥ 0. Let r_i be the largest sum, over all patterns,
// of the entries of row i that a pattern selects. The bound is the largest sum, over all patterns, of the r_i that a
// pattern selects. If p.Fixed is set, patternBound returns the maximum itself.
func patternBound(x [][]float64, p Participation) float64 {
	if p.Fixed {
		var most float64
		for first := range x {
			var sum float64
			for i, k := uint64(first), uint64(0); k < p.Count && i < uint64(len(x)); i, k = i+p.Separation, k+1 {
				for j, l := uint64(first), uint64(0); l < p.Count && j < uint64(len(x)); j, l = j+p.Separation, l+1 {
					sum += x[i][j]
				}
			}
			most = max(most, sum)
		}
		return most
	}
	rows := make([]float64, len(x))
	for i := range x {
		rows[i] = bestPattern(x[i], p)
	}
	return bestPattern(rows, p)
}

// bestPattern returns the largest sum of at most p.Count entries of x, any two of
// them at least p.Separation apart:
//
//	F_k(i) = max(F_k(i+1), x_i + F_{k−1}(i+b))
func bestPattern(x []float64, p Participation) float64 {
	n := len(x)
	fewer, best := make([]float64, n+1), make([]float64, n+1)
	for range min(p.Count, uint64(n)) {
		for i := n - 1; i >= 0; i-- {
			next := n
			if p.Separation < uint64(n-i) {
				next = i + int(p.Separation)
			}
			best[i] = max(best[i+1], x[i]+fewer[next])
		}
		fewer, best = best, fewer
	}
	return fewer[0]
}

// NonNegativeGram reports whether CᵀC ≥ 0, entry by entry: no two columns of C have a negative inner product. Then
// equal rows attain Sensitivity, and some mechanisms have tighter bounds. It is true for all matrices without negative
// entries. It is false for "dense" and for "sqrt" of a window of more than one step, whose coefficients change sign:
// for these it is not proven.
func NonNegativeGram(f Factorization) bool {
	switch f := f.(type) {
	case *dense:
		return false
	case *root:
		return f.kernel.Kind != "window" || f.kernel.Window == 1
	case *normalised:
		return NonNegativeGram(f.inner)
	}
	return true
}
