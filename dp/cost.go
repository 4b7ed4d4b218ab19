package dp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Cost is the privacy loss of one record over all releases of a mechanism in an epoch, in the mechanism's adjacency. It
// has fields for each kind of release: Gaussian mechanisms, rows of sketches, and mechanisms with only a Rényi curve.
// The last field bounds the probability that the guarantee fails.
//
// Add costs with [Compose], and compute ε and δ once, from the sum. Adding the ε of the parts would give a larger ε.
//
// In JSON a cost is an object with the fields below; fields that are zero are left out. Parsing an invalid cost fails.
type Cost struct {
	// Adjacency is the relation for which the other fields are stated.
	Adjacency Adjacency `json:"adjacency"`
	// Mu is the sensitivity of the Gaussian part divided by the standard deviation of its noise.
	Mu float64 `json:"mu"`
	// Rows is the number of rows N(0, XᵀX + η²I) of dense Gaussian sketches, for
	// rows x of norm at most 1.
	Rows int `json:"rows,omitempty"`
	// Gamma is a lower bound on the eigenvalues of XᵀX + η²I. It is above 1, or 0 if Rows is 0.
	Gamma float64 `json:"gamma,omitempty"`
	// Terms are the mechanisms for which only Rényi curves are known: pure, Laplace and FastMix terms, in any order.
	Terms []Term `json:"terms,omitempty"`
	// BadDelta bounds the probability, for every data set, of an event in which the other fields do not hold. An
	// example of such an event: a private lower bound of an eigenvalue is above the eigenvalue. BadDelta is a part of
	// δ.
	BadDelta float64 `json:"bad_delta,omitempty"`
}

// Validate returns all faults of the cost, joined, or nil.
func (c Cost) Validate() error {
	_, err := newJoint(c.Mu, c.Rows, c.Gamma, c.Adjacency)
	errs := []error{err}
	if c.Rows == 0 && c.Gamma != 0 {
		errs = append(errs, fmt.Errorf("gamma is %g, must be 0 if rows is 0", c.Gamma))
	}
	for i, t := range c.Terms {
		if err := t.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("term %d: %w", i, err))
		}
		switch {
		case t.Kind == KindGaussian || t.Kind == KindSketchRow || t.Kind == KindSketchRowReplace:
			errs = append(errs, fmt.Errorf("term %d: kind %q is not allowed in a term: state it by the fields mu and "+
				"rows", i, t.Kind))
		case t.Kind == KindFastMixRow && c.Adjacency == Replace:
			errs = append(errs, errFastMix)
		}
	}
	if !(c.BadDelta >= 0 && c.BadDelta < 1) {
		errs = append(errs, fmt.Errorf("bad_delta is %g, must be in [0, 1)", c.BadDelta))
	}
	return errors.Join(errs...)
}

var errFastMix = errors.New("FastMix rows are private for a single record under adjacency zero-out only")

// UnmarshalJSON reads a cost. It refuses unknown fields and an invalid cost.
func (c *Cost) UnmarshalJSON(data []byte) error {
	type plain Cost
	var p plain
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return err
	}
	if err := Cost(p).Validate(); err != nil {
		return err
	}
	*c = Cost(p)
	return nil
}

// Empty reports whether c is the cost of releasing nothing.
func (c Cost) Empty() bool {
	return c.Mu == 0 && c.Rows == 0 && len(c.Terms) == 0 && c.BadDelta == 0
}

// Equal reports whether two costs have equal fields.
func (c Cost) Equal(o Cost) bool {
	return c.Adjacency == o.Adjacency && c.Mu == o.Mu && c.Rows == o.Rows && c.Gamma == o.Gamma &&
		c.BadDelta == o.BadDelta && slices.Equal(c.Terms, o.Terms)
}

// Covers reports whether paying c is at least as much as paying o, for every ε and δ: each field of o is at most that
// of c, except Gamma, which is at least that of c. Covers is a partial order on valid costs of one adjacency, if
// Compose has merged their terms.
func (c Cost) Covers(o Cost) bool {
	if c.Adjacency != o.Adjacency || !(c.Mu >= o.Mu) || c.Rows < o.Rows || o.Rows > 0 && c.Gamma > o.Gamma ||
		c.BadDelta < o.BadDelta {
		return false
	}
	for _, t := range o.Terms {
		if !slices.ContainsFunc(c.Terms, func(u Term) bool {
			n := u.Count
			u.Count = t.Count
			return u == t && n >= t.Count
		}) {
			return false
		}
	}
	return true
}

// Compose returns the cost of a record that pays all of `costs`. The result also holds if a later mechanism was chosen
// after seeing an earlier one's releases:
//
//	μ = √Σμ_i²,  K = ΣK_i,  γ = min γ_i,  all terms,  δ_bad = Σδ_bad,i
//
// rounded up. The least γ holds for all rows, because rows with a larger γ are a post-processing of rows with a smaller
// one. The result does not depend on the order.
//
// Privacy: all costs must be stated for the same adjacency; otherwise Compose panics. [Cost.In] converts them.
func Compose(costs ...Cost) Cost {
	if len(costs) == 0 {
		return Cost{}
	}
	c := Cost{Adjacency: costs[0].Adjacency}
	var mus, bad []float64
	for _, k := range costs {
		if k.Adjacency != c.Adjacency {
			panic("dp: costs of two adjacencies composed without conversion")
		}
		mus, bad = append(mus, k.Mu), append(bad, k.BadDelta)
		if k.Rows > 0 {
			if c.Rows == 0 || k.Gamma < c.Gamma {
				c.Gamma = k.Gamma
			}
			c.Rows += k.Rows
		}
		c.Terms = append(c.Terms, k.Terms...)
	}
	c.Mu, c.BadDelta = rootSum(mus), sumUp(bad...)
	c.Terms = merge(c.Terms)
	return c
}

// rootSum returns √Σx², rounded up. If only one x is not zero, it returns that x exactly.
func rootSum(xs []float64) float64 {
	slices.Sort(xs)
	top, sum, more := xs[len(xs)-1], 1.0, false
	for _, x := range xs[:len(xs)-1] {
		if x > 0 {
			sum, more = sum+(x/top)*(x/top), true
		}
	}
	if !more {
		return top
	}
	return top * math.Sqrt(sum) * (1 + float64(len(xs)+4)*0x1p-53)
}

// sumUp returns Σx, rounded up. If only one x is not zero, it returns that x exactly.
func sumUp(xs ...float64) float64 {
	slices.Sort(xs)
	top, sum := xs[len(xs)-1], 0.0
	for _, x := range xs[:len(xs)-1] {
		sum += x
	}
	if sum == 0 {
		return top
	}
	return (sum + top) * (1 + float64(len(xs))*0x1p-53)
}

// merge sorts terms and adds the counts of equal ones.
func merge(terms []Term) []Term {
	if len(terms) == 0 {
		return nil
	}
	slices.SortFunc(terms, func(a, b Term) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Epsilon, b.Epsilon), cmp.Compare(a.Scale, b.Scale),
			cmp.Compare(a.Gamma, b.Gamma), cmp.Compare(a.C2, b.C2))
	})
	merged := terms[:1]
	for _, t := range terms[1:] {
		last := &merged[len(merged)-1]
		n := last.Count
		if last.Count = t.Count; *last == t {
			last.Count += n
			continue
		}
		last.Count = n
		merged = append(merged, t)
	}
	return merged
}

// Parallel returns the cost with the largest ε at δ. No record pays more, if every record pays only one of `costs`. A
// cost that has no ε at δ counts as the largest. If one cost covers all others, δ does not matter.
//
// Privacy: the mechanisms must read disjoint sets of record positions. All costs must be stated for the same adjacency;
// otherwise Parallel panics.
// Errors: δ outside (0, 1); no costs.
func Parallel(delta float64, costs ...Cost) (Cost, error) {
	if len(costs) == 0 {
		return Cost{}, errors.New("no costs to compare")
	}
	if err := checkEpsDelta(0, delta); err != nil {
		return Cost{}, err
	}
	for _, c := range costs {
		if c.Adjacency != costs[0].Adjacency {
			panic("dp: costs of two adjacencies compared without conversion")
		}
	}
	costs = maximal(costs)
	if len(costs) == 1 {
		return costs[0], nil
	}
	var worst Cost
	most := -1.0
	for _, c := range costs {
		eps, err := c.Epsilon(delta)
		if err != nil {
			eps = math.Inf(1)
		}
		if eps > most {
			worst, most = c, eps
		}
	}
	return worst, nil
}

// maximal returns the costs that no other one covers. The order of the result does not depend on the order of `costs`.
func maximal(costs []Cost) []Cost {
	costs = slices.Clone(costs)
	slices.SortFunc(costs, compare)
	costs = slices.CompactFunc(costs, Cost.Equal)
	var kept []Cost
	for i, c := range costs {
		if !slices.ContainsFunc(costs[i+1:], func(o Cost) bool { return o.Covers(c) }) &&
			!slices.ContainsFunc(kept, func(o Cost) bool { return o.Covers(c) }) {
			kept = append(kept, c)
		}
	}
	return kept
}

// compare orders costs, for sorting. The order is total.
func compare(a, b Cost) int {
	return cmp.Or(cmp.Compare(a.Mu, b.Mu), cmp.Compare(a.Rows, b.Rows), cmp.Compare(b.Gamma, a.Gamma),
		cmp.Compare(a.BadDelta, b.BadDelta),
		slices.CompareFunc(a.Terms, b.Terms, func(t, u Term) int {
			return cmp.Or(cmp.Compare(t.Kind, u.Kind), cmp.Compare(t.Epsilon, u.Epsilon), cmp.Compare(t.Scale, u.Scale),
				cmp.Compare(t.Gamma, u.Gamma), cmp.Compare(t.C2, u.C2), cmp.Compare(t.Count, u.Count))
		}))
}

// Epsilon returns the smallest ε ≥ 0 that the cost guarantees at δ, rounded up. It first subtracts BadDelta from δ. If
// the cost consists of Gaussians and sketch rows only, Epsilon uses the exact curve. Otherwise it converts the sum of
// the Rényi curves.
//
// Errors: δ outside (0, 1); BadDelta of at least δ; an invalid cost.
func (c Cost) Epsilon(delta float64) (float64, error) {
	if err := errors.Join(checkEpsDelta(0, delta), c.Validate()); err != nil {
		return 0, err
	}
	rest := c.left(delta)
	if !(rest > 0) {
		return 0, fmt.Errorf("delta is %g, must be above bad_delta, which is %g", delta, c.BadDelta)
	}
	if len(c.Terms) > 0 {
		return c.Curve().Epsilon(rest)
	}
	return jointEpsilon(rest, c.Mu, c.Rows, c.Gamma, c.Adjacency)
}

// left returns δ − BadDelta, rounded down.
func (c Cost) left(delta float64) float64 {
	if c.BadDelta == 0 {
		return delta
	}
	return math.Nextafter(delta-c.BadDelta, math.Inf(-1))
}

// Delta returns the smallest δ that the cost guarantees at ε, rounded up, including BadDelta. It uses the same curves
// as Epsilon.
//
// Errors: ε negative, NaN or infinite; an invalid cost.
func (c Cost) Delta(eps float64) (float64, error) {
	if err := errors.Join(checkEpsDelta(eps, 0.5), c.Validate()); err != nil {
		return 0, err
	}
	var delta float64
	var err error
	if len(c.Terms) > 0 {
		delta, err = c.Curve().Delta(eps)
	} else {
		delta, err = jointDelta(eps, c.Mu, c.Rows, c.Gamma, c.Adjacency)
	}
	return min(1, sumUp(delta, c.BadDelta)), err
}

// Within reports whether the cost guarantees (ε, δ). If a mechanism was calibrated to (ε, δ), by [Mu] or so that
// Delta(ε) ≤ δ, Within returns true, because it does not round up a second time.
//
// Errors: ε negative, NaN or infinite; δ outside (0, 1); an invalid cost.
func (c Cost) Within(eps, delta float64) (bool, error) {
	if err := errors.Join(checkEpsDelta(eps, delta), c.Validate()); err != nil {
		return false, err
	}
	if c.Rows == 0 && len(c.Terms) == 0 {
		rest := c.left(delta)
		if !(rest > 0) {
			return false, nil
		}
		mu, err := Mu(eps, rest)
		return c.Mu <= mu, err
	}
	d, err := c.Delta(eps)
	return d <= delta, err
}

// Curve returns the Rényi curve of the cost without BadDelta. For a cost without terms, the exact curve of Epsilon is
// tighter.
func (c Cost) Curve() Curve {
	return rowCurve(c.Mu, c.Rows, c.Gamma, c.Adjacency).Add(c.Terms...)
}

// In returns the cost, stated for another adjacency. Replacing a record is like zeroing out two records. So from
// ZeroOut to Replace, μ and ε₀ double, Laplace scales are halved, and a sketch row pays for both. From Replace to
// ZeroOut no number changes, because the zero record is a record.
//
// Errors: a cost with FastMix rows, which cannot be stated for Replace; an adjacency that is not set.
func (c Cost) In(a Adjacency) (Cost, error) {
	if !c.Adjacency.Valid() || !a.Valid() {
		return Cost{}, errors.New("adjacency is not set")
	}
	if c.Adjacency == ZeroOut && a == Replace {
		return c.shifted(2, a)
	}
	c.Adjacency = a
	return c, nil
}

// Group returns the cost for a group: k records of one person, which the same releases protect together. The adjacency
// does not change. μ and ε₀ are multiplied by k, and Laplace scales divided by k.
//
// Errors: k not positive; a cost with sketch rows, FastMix rows or BadDelta, which have no such rule. For these use
// [Cost.GroupEpsilon].
func (c Cost) Group(k int) (Cost, error) {
	if k < 1 {
		return Cost{}, fmt.Errorf("group of %d records, must be at least 1", k)
	}
	if k > 1 && (c.Rows > 0 || c.BadDelta > 0) {
		return Cost{}, errors.New("the cost for a group of records is unknown, because this cost has sketch rows or " +
			"bad_delta")
	}
	if k == 1 {
		return c, nil
	}
	return c.shifted(float64(k), c.Adjacency)
}

// shifted returns the cost of mechanisms whose sensitivities are k times as
// large.
func (c Cost) shifted(k float64, a Adjacency) (Cost, error) {
	c.Adjacency, c.Mu = a, timesUp(c.Mu, k)
	c.Terms = slices.Clone(c.Terms)
	for i := range c.Terms {
		switch t := &c.Terms[i]; t.Kind {
		case KindPure:
			t.Epsilon = timesUp(t.Epsilon, k)
		case KindLaplace:
			t.Scale = math.Nextafter(t.Scale/k, 0)
		default:
			return Cost{}, errFastMix
		}
	}
	return c, nil
}

// timesUp returns kx, exactly if it is a float64, otherwise rounded up.
func timesUp(x, k float64) float64 {
	p := k * x
	if math.FMA(k, x, -p) > 0 {
		p = math.Nextafter(p, math.Inf(1))
	}
	return p
}

// GroupEpsilon returns an ε for k records of one person at δ, rounded up. If [Cost.Group] succeeds, GroupEpsilon
// returns the ε of that cost. Otherwise it returns the smallest ε that follows from the cost of one record by
//
//	(kε, δ'·(e^{kε}−1)/(e^ε−1)) for every ε and δ' = Delta(ε)
//
// Errors: as [Cost.Epsilon]; no ε is large enough, for example if γ ≤ k.
func (c Cost) GroupEpsilon(k int, delta float64) (float64, error) {
	group, err := c.Group(k)
	if err == nil {
		return group.Epsilon(delta)
	}
	if k < 1 {
		return 0, err
	}
	if err := errors.Join(checkEpsDelta(0, delta), c.Validate()); err != nil {
		return 0, err
	}
	target, n := math.Log(delta), float64(k)
	// one returns the ε of one record at δ' = e^l. It returns +Inf if the group's δ is then too large.
	one := func(l float64) float64 {
		eps, err := c.Epsilon(math.Exp(l))
		if err != nil {
			return math.Inf(1)
		}
		growth := math.Log(n)
		if eps > 0 {
			growth = (n-1)*eps + math.Log(-math.Expm1(-n*eps)) - math.Log(-math.Expm1(-eps))
		}
		if !(l+growth+0x1p-45*(1+growth-l) <= target) {
			return math.Inf(1)
		}
		return eps
	}
	// The largest δ' gives the least ε. Try 64 values of δ', beginning with the largest possible one, then refine the
	// first that works.
	top, floor := target-math.Log(n), max(-700, math.Log(c.BadDelta))
	hi, lo, eps := top, top, math.Inf(1)
	for i := 1.0; i <= 64 && math.IsInf(eps, 1); i++ {
		hi, lo = lo, top+(floor-top)*(i/64)*(i/64)
		eps = one(lo)
	}
	if math.IsInf(eps, 1) {
		return 0, fmt.Errorf("no epsilon protects %d records at delta %g", k, delta)
	}
	for hi-lo > 1e-12 {
		mid := lo + (hi-lo)/2
		if e := one(mid); math.IsInf(e, 1) {
			hi = mid
		} else {
			lo, eps = mid, e
		}
	}
	return timesUp(eps, n), nil
}
