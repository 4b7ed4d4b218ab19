package sgd

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/ladder"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Config describes an online regression. The fields with a TOML name are the keys of a stream's sgd table;
// docs/config.md explains them. The other fields follow from the stream. Lengths are in scaled units. Fields marked "of
// amb" must not be set for newton.
type Config struct {
	// Target is the column to predict from all others. Required.
	Target string
	// ClipX is the bound on the features' Euclidean norm; longer records are
	// shortened to it. Required.
	ClipX float64
	// ClipY is the bound on the target's absolute value. 0, the default, means none.
	ClipY float64
	// Intercept asks for a constant. Default true.
	Intercept *bool
	// Method is "newton" (the default) or "amb".
	Method string
	// Clip, of amb, says how the clip norm of the gradients is found. "track" (the default) follows a quantile by a
	// count in every step. "bisect" and "scan" search for it before every step, in records of their own. "fixed" uses
	// Zeta.
	Clip string
	// Value, of amb, is the quantity whose quantile is the clip norm. "gradnorm" (the default) is the norm of the
	// gradient. "residual" is the size of the residual; its quantile is then multiplied by the largest norm of the
	// features.
	Value string
	// Batch, of amb, is the number of slots of a gradient step. 0, the default, chooses enough slots that the noise is
	// at most the sampling error.
	Batch uint64
	// Stat, of amb with "bisect" or "scan", is the number of slots of a search. 0, the
	// default, lets the package choose.
	Stat uint64
	// Bootstrap, of amb with "track", is the number of slots of the first step, which is a
	// search. 0, the default, lets the package choose.
	Bootstrap uint64
	// ThresholdQuantile, of amb, is the share of records that are not clipped, in (0, 1). Default 0.6. "scan" does not
	// use it.
	ThresholdQuantile float64 `json:"Quantile"` // saved states contain the name Quantile
	// Kappa, of amb, is the gain with which "track" follows the quantile. Default 1.
	Kappa float64
	// Fraction, of amb, is the share of μ² that the counts of "track" cost. Default 0.05.
	Fraction float64
	// Rungs, of amb, is the number of doublings that a search covers. Default 32.
	Rungs int
	// Top, of amb, is the largest value that a search can find. Default 65536.
	Top float64
	// Zeta, of amb, is the clip norm of "fixed". It is required for "fixed", and must be 0 otherwise.
	Zeta float64
	// Bands, of amb, is the number of bands of the correlated noise; 1 is
	// independent noise. Default 16.
	Bands int
	// Eta0, of amb, is the step size, in (0, 1]. Default 0.3. With the right curvature, steps below 2 are stable.
	Eta0 float64
	// Curvature, of amb, is a bound on the largest eigenvalue of the features' second moment about 0. 0, the default,
	// uses the square of the largest norm. That is usually far too large, and makes the steps far too short.
	Curvature float64
	// Growth, of amb, is "none" (the default) or "double": batches double in size whenever the number of steps has
	// doubled, from step 32 on. "double" is for stationary data.
	Growth string
	// Average, of amb, is "tail" (the default), the mean of the last iterates, or
	// "smooth", a mean with weights that fall with age.
	Average string
	// Tail, of amb, is the largest share of the iterates that "tail" leaves out. Default 0.25.
	Tail float64
	// Restart, of amb, restarts the average when released numbers show that the data have changed. Default true. newton
	// always does this.
	Restart *bool
	// Radius is the bound on the norm of the iterates; for newton, without the intercept. It is required for amb. For
	// newton 0, the default, means no bound.
	Radius float64
	// Intervals asks for standard errors and approximate confidence intervals. Default true.
	Intervals *bool
	// Level is the level of the intervals, in (0, 1). Default 0.95.
	Level float64

	// Columns are the names of the columns of a row.
	Columns []string
	// Horizon is the number of steps of the epoch, including searches; 0 means no end.
	Horizon uint64
	// Endless says that steps continue after Horizon.
	Endless bool
	// Person, if not zero, protects all records of a person instead of single records. A person has records in at most
	// Count steps, searches included, any two at least Separation steps apart, and at most PerStep records in each. The
	// caller of Add must enforce this: it replaces further records by nil rows. The cost of the releases is then the
	// cost for a person.
	Person matfact.Participation `json:"-"`
	// Centre and Scale are the public constants by which rows were scaled. They are needed to publish original units.
	// Empty means 0 and 1.
	Centre, Scale []float64
	// Found says that a warm-up found the bounds. Then releases have original units, with a constant, even if
	// Centre and Scale are empty.
	Found bool `json:",omitempty"`
	// Start is the first iterate, for example the iterate of an earlier release. It has the plan's dimension. Nil means
	// 0.
	Start []float64
}

// Defaults sets the fields that have a default and are not set.
func (c *Config) Defaults() {
	yes := true
	truth := func(p **bool) {
		if *p == nil {
			*p = &yes
		}
	}
	word := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	number := func(x *float64, def float64) {
		if *x == 0 {
			*x = def
		}
	}
	word(&c.Method, "newton")
	truth(&c.Intercept)
	truth(&c.Intervals)
	number(&c.Level, 0.95)
	if c.Method != "amb" {
		return
	}
	truth(&c.Restart)
	word(&c.Clip, "track")
	word(&c.Value, "gradnorm")
	word(&c.Growth, "none")
	word(&c.Average, "tail")
	number(&c.ThresholdQuantile, 0.6)
	number(&c.Kappa, 1)
	number(&c.Fraction, 0.05)
	number(&c.Top, 65536)
	number(&c.Eta0, 0.3)
	number(&c.Tail, 0.25)
	if c.Rungs == 0 {
		c.Rungs = 32
	}
	if c.Bands == 0 {
		c.Bands = 16
	}
}

// ofMethod sets the defaults of the given method. A configuration without a method gets that method.
func (c *Config) ofMethod(method string) {
	if c.Method == "" {
		c.Method = method
	}
	c.Defaults()
}

// LastStep returns the last step of the estimator, 0 if it has no end.
func (c *Config) LastStep() uint64 {
	if c.Endless {
		return 0
	}
	return c.Horizon
}

// Values returns the names of the values that a release can have, in their order. A release has no intervals while
// there are too few steps. Call Defaults first.
func (c *Config) Values() []string {
	names := []string{"theta", "theta_average"}
	if *c.Intervals {
		names = append(names, "interval_low", "interval_high")
	}
	names = append(names, "zeta")
	if c.Method == "newton" {
		names = append(names, "whitening", "restarts", "drift_restarts")
	} else {
		names = append(names, "average_start")
	}
	names = append(names, "iteration", "slots")
	if c.scaled() {
		names = append(names, "theta_average_original")
	}
	return names
}

// scaled reports whether releases have original units next to scaled ones.
func (c *Config) scaled() bool {
	return c.Found || slices.ContainsFunc(c.Centre, func(x float64) bool { return x != 0 }) ||
		slices.ContainsFunc(c.Scale, func(x float64) bool { return x != 1 })
}

// original converts coefficients for scaled rows to coefficients for rows before centring and scaling. The last
// coefficient is the constant. It exists if the model has a constant or if centring makes one.
func (c *Config) original(theta []float64) []float64 {
	at := func(x []float64, i int, missing float64) float64 {
		if len(x) == 0 {
			return missing
		}
		return x[i]
	}
	out := make([]float64, 0, len(c.Columns))
	target := slices.Index(c.Columns, c.Target)
	unit := at(c.Scale, target, 1)
	constant := at(c.Centre, target, 0)
	if *c.Intercept {
		constant += float64(unit * theta[len(theta)-1])
	}
	for i := range c.Columns {
		if i == target {
			continue
		}
		k := float64(unit*theta[len(out)]) / at(c.Scale, i, 1)
		constant -= float64(k * at(c.Centre, i, 0))
		out = append(out, k)
	}
	if *c.Intercept || c.Found || slices.ContainsFunc(c.Centre, func(x float64) bool { return x != 0 }) {
		out = append(out, constant)
	}
	return out
}

// sample returns a release that has every value, all zeros.
func (c *Config) sample() *dp.Release {
	r, d := &dp.Release{}, c.features()
	for _, name := range c.Values() {
		v := dp.Value{Name: name, Shape: []int{1}, Data: make([]float64, 1)}
		switch name {
		case "theta", "theta_average", "interval_low", "interval_high":
			v.Data = make([]float64, d)
		case "theta_average_original":
			v.Data = c.original(make([]float64, d))
		}
		if v.Shape[0] = len(v.Data); name == "theta_average" && *c.Intervals {
			v.SE = make([]float64, d)
		}
		r.Values = append(r.Values, v)
	}
	return r
}

// features returns the number of coordinates of an iterate.
func (c *Config) features() int {
	n := len(c.Columns) - 1
	if *c.Intercept {
		n++
	}
	return n
}

// Validate returns all violated rules at once, each a *fault.Fault, joined. Call Defaults first.
func (c *Config) Validate() error {
	var l fault.List
	l.Check(slices.Contains(c.Columns, c.Target), "target", "must be one of the columns", c.Target)
	l.Check(len(c.Columns) >= 2 || *c.Intercept, "columns", "must name a feature in addition to the target",
		len(c.Columns))
	l.Check(c.ClipX >= 1e-60 && c.ClipX <= 1e60, "clip_x",
		"must be positive and in the range 1e-60 to 1e60: scale the columns to about 1", c.ClipX)
	l.Check(c.ClipY == 0 || vector.Positive(c.ClipY), "clip_y", "must be positive and finite", c.ClipY)
	switch c.Method {
	case "amb":
		c.validateAMB(&l)
	case "newton":
		c.validateNewton(&l)
	default:
		l.Add("method", `must be "newton" or "amb"`, c.Method)
	}
	c.validatePerson(&l)
	l.Check(c.Level > 0 && c.Level < 1, "level", "must be in (0, 1)", c.Level)
	return l.Err()
}

// is reports a fault if the method is not the given one.
func (c *Config) is(method string) error {
	if c.Method == method || c.Method != "amb" && c.Method != "newton" {
		return nil // Validate reports a method that is neither
	}
	return &fault.Fault{Key: "method", Rule: fmt.Sprintf("must be %q for this estimator", method), Value: c.Method}
}

// validateNewton reports fields of amb that are set: newton does not use them.
func (c *Config) validateNewton(l *fault.List) {
	unused := func(key string, zero bool, v any) { l.Check(zero, key, `belongs to method "amb"`, v) }
	for _, w := range []struct{ key, value string }{{"clip", c.Clip}, {"value", c.Value}, {"growth", c.Growth},
		{"average", c.Average}} {
		unused(w.key, w.value == "", w.value)
	}
	for _, x := range []struct {
		key   string
		value float64
	}{
		{"threshold_quantile", c.ThresholdQuantile}, {"kappa", c.Kappa}, {"fraction", c.Fraction}, {"top", c.Top},
		{"zeta", c.Zeta},
		{"eta0", c.Eta0}, {"curvature", c.Curvature}, {"tail", c.Tail},
	} {
		unused(x.key, x.value == 0, x.value)
	}
	for _, n := range []struct {
		key   string
		value uint64
	}{{"batch", c.Batch}, {"stat", c.Stat}, {"bootstrap", c.Bootstrap}, {"rungs", uint64(c.Rungs)},
		{"bands", uint64(c.Bands)}} {
		unused(n.key, n.value == 0, n.value)
	}
	if c.Restart != nil {
		unused("restart", false, *c.Restart)
	}
	l.Check(c.Radius == 0 || vector.Positive(c.Radius), "radius", "must be positive and finite, or 0 for no bound",
		c.Radius)
}

func (c *Config) validateAMB(l *fault.List) {
	oneOf := func(key, value string, words ...string) {
		l.Check(slices.Contains(words, value), key, "must be "+fault.Quoted(words, "or"), value)
	}
	oneOf("clip", c.Clip, "track", "bisect", "scan", "fixed")
	oneOf("value", c.Value, "gradnorm", "residual")
	oneOf("growth", c.Growth, "none", "double")
	oneOf("average", c.Average, "tail", "smooth")
	fraction := func(key string, x float64) { l.Check(x > 0 && x < 1, key, "must be in (0, 1)", x) }
	fraction("threshold_quantile", c.ThresholdQuantile)
	fraction("fraction", c.Fraction)
	fraction("tail", c.Tail)
	l.Check(vector.Positive(c.Kappa) && c.Kappa <= 100, "kappa", "must be positive and at most 100", c.Kappa)
	l.Check(c.Rungs >= 1 && c.Rungs <= ladder.MaxRungs, "rungs",
		fmt.Sprintf("must be 1 to %d", ladder.MaxRungs), c.Rungs)
	l.Check(c.Top >= 0x1p-400 && c.Top <= 0x1p400, "top",
		"must be positive, and no farther from 1 than a factor of 2^400", c.Top)
	if c.Clip == "fixed" {
		l.Check(c.Zeta >= 0x1p-400 && c.Zeta <= 0x1p400, "zeta", `is required for clip "fixed", and must be positive`,
			c.Zeta)
	} else {
		l.Check(c.Zeta == 0, "zeta", `belongs to clip "fixed"`, c.Zeta)
	}
	searches := c.Clip == "bisect" || c.Clip == "scan"
	l.Check(c.Stat == 0 || searches, "stat", `belongs to clip "bisect" and "scan"`, c.Stat)
	l.Check(c.Bootstrap == 0 || c.Clip == "track", "bootstrap", `belongs to clip "track"`, c.Bootstrap)
	const slots = 1 << 31
	l.Check(c.Batch <= slots, "batch", "must be at most 2^31 slots", c.Batch)
	l.Check(c.Stat <= slots, "stat", "must be at most 2^31 slots", c.Stat)
	l.Check(c.Bootstrap <= slots, "bootstrap", "must be at most 2^31 slots", c.Bootstrap)
	l.Check(c.Bands >= 1 && c.Bands <= maxBands, "bands", fmt.Sprintf("must be 1 to %d", maxBands), c.Bands)
	l.Check(c.Eta0 > 0 && c.Eta0 <= 1, "eta0", "must be positive and at most 1", c.Eta0)
	l.Check(c.Curvature == 0 || vector.Positive(c.Curvature) && c.Curvature <= c.ClipX*c.ClipX,
		"curvature", "must be positive and at most clip_x squared, or 0 for clip_x squared", c.Curvature)
	l.Check(vector.Positive(c.Radius), "radius",
		"is required, positive and finite: it bounds the norm of the coefficients", c.Radius)
}

// validateScaling reports faults of Centre, Scale and Start. Validate does not check them, because the reader of a
// configuration sets them later and checks them itself.
func (c *Config) validateScaling() error {
	var l fault.List
	each := func(key string, list []float64, n int, ok func(float64) bool, must string) {
		l.Check(len(list) == 0 || len(list) == n, key, fmt.Sprintf("must be %d numbers", n), len(list))
		for _, x := range list {
			l.Check(ok(x), key, must, x)
		}
	}
	number := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	each("centre", c.Centre, len(c.Columns), number, "must be finite")
	each("scale", c.Scale, len(c.Columns), vector.Positive, "must be positive and finite")
	each("start", c.Start, c.features(), number, "must be finite")
	return l.Err()
}

// maxBands bounds the bands of correlated noise.
const maxBands = 256
