package moments

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/calibration"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Config describes a moment estimator. The fields with a TOML name are the keys of a stream's moments table;
// docs/config.md explains them. The daemon derives the other fields from the rest of the stream's configuration.
type Config struct {
	// Method is "auto" (the default), "jme" (joint estimation), "ime" (independent estimation), "cs" (concatenation and
	// split), "pp" or "pp_debiased" (squares of noisy rows, with the bias or without) or "combined" (jme and
	// pp_debiased).
	Method string
	// Clip is the bound on a row's Euclidean norm, in scaled units. Required. If it is NaN, the warm-up finds a bound.
	Clip float64
	// Workload is "mean" (the default), "sum", "exponential" or "window".
	Workload string
	// Decay is the weight β of the previous step, in (0, 1). Required for "exponential"; it
	// must be 0 otherwise.
	Decay float64
	// Window is the number of steps averaged. Required for "window"; it must be 0 otherwise.
	Window uint64
	// Factorization is "auto" (the default), "identity", "sqrt", "bsr", "bisr",
	// "banded", "dense", "blt" or "phased".
	Factorization string
	// Buffers is the number of buffers of a BLT, 1–8; 0 lets the package choose.
	Buffers int
	// Bands is the number of bands of "bsr", "bisr" and "banded", including the diagonal, 1–256, or 1–64 for "banded".
	// Default 16; the other factorizations do not use it.
	Bands int
	// Normalise reduces the noise of an epoch that certainly ends at its horizon. Only "sqrt", "bsr", "bisr", "banded"
	// and "blt" allow it.
	Normalise bool
	// Tune is the number of steps for which the error of "blt" and "banded" is
	// minimised; 0 means the horizon.
	Tune uint64
	// Nu is the dimensionless weight ν of the second moment. 0 lets the package choose it. If Weights or Inflation is
	// given, that decides. Otherwise, under replacement, the package takes the largest weight that adds no noise to the
	// mean; under zero-out, it uses the default Weights.
	Nu float64
	// Weights holds two weights of the squared errors of the mean and of the second moment. They decide ν. Default,
	// under zero-out: [1/ζ², 1/ζ⁴].
	Weights []float64
	// Inflation ≥ 1 is the factor by which the mean's variance may grow. It decides ν. At most one of Nu, Weights and
	// Inflation may be given.
	Inflation float64
	// Split is the share of μ² that "ime" uses for the mean, in (0, 1). Default ½.
	Split float64
	// Tau is the weight λ of the second moment in "cs", in 1/x². Required for "cs"; it must be 0 otherwise.
	Tau float64
	// Metric is the error by which "auto" chooses the method: "last" (the default) is the error of the release of the
	// last step, "sum" the sum over all releases up to it. Without a horizon the last step is Tune, or 10 000.
	Metric string
	// PSDFloor adds the value covariance_psd to releases: the covariance with its eigenvalues raised to at least
	// PSDFloor ≥ 0. Default nil: the value is not released.
	PSDFloor *float64
	// Project adds the value second_moment_projected to releases: of all positive semidefinite matrices whose trace
	// clipped rows can have, the one nearest to the second moment.
	Project bool
	// Covariance adds the covariance to releases. Default true, but false for "sum", which has no covariance.
	Covariance *bool
	// ValidCount adds the number of valid records, with its own noise, to releases. Default nil, which means true if
	// persons are protected, because then most records may be left out; see Person.
	ValidCount *bool

	// Second, if not nil, gives the second moment a separate workload and factorization, in the methods "jme" and
	// "ime". It cannot be set in a configuration file.
	Second *Second

	// Person, if not zero, protects all records of a person instead of single records. A person may have records in at
	// most Count steps, any two at least Separation apart, and at most PerStep in a step. The caller of Add must
	// enforce that, by passing nil for any further record. Cost is then the cost of a person.
	Person matfact.Participation

	// Columns are the names of the d numbers of a row.
	Columns []string
	// Step is the number of slots of one step. Noise is added once a step, to the sum of its records.
	Step uint64
	// Horizon is the number of steps of the epoch; 0: the epoch does not end.
	Horizon uint64
	// Endless says that steps continue after Horizon. The noise is still tuned for Horizon.
	Endless bool
	// Centre and Scale are the public constants with which rows were scaled, and with which releases are converted back
	// to original units. Empty means 0 and 1. If a constant is NaN, the warm-up finds it.
	Centre, Scale []float64

	// Warmup is the number of slots of the warm-up, a multiple of Step. 0 means the larger of 5000 and twice the number
	// of records that it needs. There is a warm-up if Clip or any Centre or Scale is NaN. Then callers must pass
	// unscaled rows to Add. WarmupMode is "buffer" (the default) or "split". "buffer" uses all records in all stages
	// and keeps them in memory; "split" gives each stage records of its own.
	Warmup     uint64
	WarmupMode string
}

// Second is a workload and a factorization for the second moment alone. Its fields have the meaning of Config's. A
// covariance needs equal workloads.
type Second struct {
	Workload      string
	Decay         float64
	Window        uint64
	Factorization string
	Buffers       int
	Bands         int
	Normalise     bool
	Tune          uint64
}

// second returns a configuration in which both moments have the workload and factorization of the second one.
func (c *Config) second() *Config {
	if c.Second == nil {
		return c
	}
	no, s, x := false, c.Second, *c
	x.Workload, x.Decay, x.Window, x.Factorization = s.Workload, s.Decay, s.Window, s.Factorization
	x.Buffers, x.Bands, x.Normalise, x.Tune = s.Buffers, s.Bands, s.Normalise, s.Tune
	x.Second, x.Covariance, x.PSDFloor, x.Project = nil, &no, nil, false
	x.Defaults()
	return &x
}

// Defaults sets fields without a value to their defaults.
func (c *Config) Defaults() {
	if c.Method == "" {
		c.Method = "auto"
	}
	if c.Workload == "" {
		c.Workload = "mean"
	}
	if c.Factorization == "" {
		c.Factorization = "auto"
	}
	if c.Split == 0 {
		c.Split = 0.5
	}
	if c.WarmupMode == "" {
		c.WarmupMode = "buffer"
	}
	if c.Metric == "" {
		c.Metric = "last"
	}
	if c.Bands == 0 {
		c.Bands = defaultBands
	}
	if c.Covariance == nil {
		yes := c.Workload != "sum" && (c.Second == nil || c.second().workload() == c.workload())
		c.Covariance = &yes
	}
	if c.ValidCount != nil && *c.ValidCount == c.personal() {
		c.ValidCount = nil // this is the default, which is always stored as nil
	}
}

// countsValid reports whether the number of valid records is released.
func (c *Config) countsValid() bool {
	if c.ValidCount != nil {
		return *c.ValidCount
	}
	return c.personal()
}

// Values returns the names of the values that a release can contain, in their order. Call Defaults first.
func (c *Config) Values() []string {
	names := []string{"mean", "second_moment"}
	if c.Workload == "sum" {
		names[0] = "sum"
	}
	add := func(yes bool, name string) {
		if yes {
			names = append(names, name)
		}
	}
	original := c.scaled() && c.Workload != "sum"
	add(*c.Covariance, "covariance")
	add(c.PSDFloor != nil, "covariance_psd")
	add(c.Project, "second_moment_projected")
	add(original, "mean_original")
	add(original && *c.Covariance, "covariance_original")
	add(c.countsValid(), "valid_count")
	share := c.countsValid() && c.personal()
	add(share, "counted_share")
	add(share, "mean_counted")
	add(share && c.scaled(), "mean_counted_original")
	return append(names, "full_share")
}

// LastStep returns the number of the estimator's last step, 0 if it has none. The steps of a warm-up count too; they
// come before those of the horizon.
func (c *Config) LastStep() uint64 {
	if h := c.last(); h > 0 {
		return c.WarmupSteps() + h
	}
	return 0
}

// last returns the last step that releases moments, counted from 1 after the warm-up.
func (c *Config) last() uint64 {
	if c.Endless {
		return 0
	}
	return c.Horizon
}

// scaled reports whether original units differ from scaled ones.
func (c *Config) scaled() bool {
	return slices.ContainsFunc(c.Centre, func(x float64) bool { return x != 0 }) ||
		slices.ContainsFunc(c.Scale, func(x float64) bool { return x != 1 })
}

// Validate returns all faults at once, joined, each of type *fault.Fault. Call Defaults first.
func (c *Config) Validate() error {
	var l fault.List
	oneOf := func(key, value string, built ...string) {
		for _, b := range built {
			if value == b {
				return
			}
		}
		l.Add(key, "must be "+fault.Quoted(built, "or"), value)
	}
	oneOf("method", c.Method, "auto", "jme", "ime", "cs", "pp", "pp_debiased", "combined")
	oneOf("workload", c.Workload, "mean", "sum", "exponential", "window")
	oneOf("factorization", c.Factorization, "auto", "identity", "sqrt", "bsr", "bisr", "banded", "dense",
		"blt", "phased")
	l.Check(vector.Positive(c.Clip) || c.autoClip(), "clip", "must be positive and finite", c.Clip)
	if c.Workload == "exponential" {
		l.Check(c.Decay > 0 && c.Decay < 1, "decay", "must be in (0, 1)", c.Decay)
	} else {
		l.Check(c.Decay == 0, "decay", "belongs to workload \"exponential\"", c.Decay)
	}
	if c.Workload == "window" {
		l.Check(c.Window >= 1, "window", "must be at least 1 step", c.Window)
		row := float64(len(c.Columns)) * float64(len(c.Columns)+3) / 2
		l.Check(float64(c.Window)*row*8 <= maxRing, "window",
			"must be less: the noisy rows of the window would take more than 16 GiB", c.Window)
	} else {
		l.Check(c.Window == 0, "window", "belongs to workload \"window\"", c.Window)
	}
	l.Check(c.Buffers >= 0 && c.Buffers <= 8, "buffers", "must be 0 (automatic) to 8", c.Buffers)
	kind := c.factorization(c.Method)
	l.Check(c.Buffers == 0 || kind == "blt", "buffers", "belongs to factorization \"blt\"", c.Buffers)
	l.Check(c.Bands >= 1 && c.Bands <= 256, "bands", "must be 1 to 256", c.Bands)
	l.Check(c.Bands <= 64 || kind != "banded", "bands", "must be at most 64 for factorization \"banded\"", c.Bands)
	l.Check(c.Bands == defaultBands ||
		banded(kind), "bands", "belongs to factorizations \"bsr\", \"bisr\" and \"banded\"", c.Bands)
	if c.Normalise {
		l.Check(banded(kind) || kind == "sqrt" ||
			kind == "blt", "normalise",
			"belongs to factorizations \"sqrt\", \"bsr\", \"bisr\", \"banded\" and \"blt\"", true)
		l.Check(c.Horizon >= 1 && c.Horizon <= 1<<16, "normalise", "needs a horizon of at most 65536 steps", true)
		l.Check(!c.Endless, "on_horizon", "must not be \"continue\": normalised noise ends at the horizon", nil)
	}
	l.Check(c.Nu >= 0 && !math.IsInf(c.Nu, 0), "nu", "must be positive and finite, or 0 (automatic)", c.Nu)
	l.Check(len(c.Weights) == 0 ||
		len(c.Weights) == 2 && vector.Positive(c.Weights[0]) && vector.Positive(c.Weights[1]),
		"weights", "must be two positive numbers", c.Weights)
	l.Check(c.Inflation == 0 ||
		c.Inflation >= 1 && !math.IsInf(c.Inflation, 0), "inflation", "must be at least 1", c.Inflation)
	given := 0
	for _, g := range []bool{c.Nu != 0, len(c.Weights) > 0, c.Inflation != 0} {
		if g {
			given++
		}
	}
	l.Check(given <= 1, "nu", "give at most one of nu, weights and inflation", nil)
	if c.Covariance != nil && *c.Covariance {
		l.Check(c.Workload != "sum", "covariance", "a sum has no covariance", true)
	}
	c.validateMethod(&l, kind)
	c.validatePerson(&l, kind)
	c.validateWarmup(&l)
	if kind == "sqrt" || kind == "dense" {
		l.Check(c.Horizon > 0, "factorization", fmt.Sprintf("%q needs the stream's horizon", kind), nil)
		l.Check(!c.Endless, "on_horizon",
			fmt.Sprintf("must not be \"continue\": factorization %q ends at the horizon", kind), nil)
	}
	l.Check(kind != "dense" ||
		c.Horizon <= 300, "horizon", "must be at most 300 steps for factorization \"dense\"", c.Horizon)
	l.Check(kind != "banded" || c.tune() > 0 ||
		c.workload().Kernel().Kind != "sum", "tune",
		"must be set, or else the stream's horizon, for factorization \"banded\" of a sum or mean", nil)
	l.Check(len(c.Columns) >= 1, "columns", "must name at least one column", len(c.Columns))
	l.Check(c.Step >= 1, "step", "must be at least 1 slot", c.Step)
	// The charge of an epoch ends with its last slot, which must be a valid offset.
	slots := uint64(maxSlots)
	if c.Automatic() {
		slots /= 2 // the other half is for the warm-up
	}
	l.Check(c.Step == 0 ||
		c.last() <= slots/c.Step, "horizon", "must be less: so many steps have more records than a log can hold",
		c.Horizon)
	return l.Err()
}

// squaring reports whether a method squares noisy rows.
func squaring(method string) bool {
	return method == "pp" || method == "pp_debiased" || method == "combined"
}

// factorization returns the kind of factorization that is used with a method. If the method squares noisy rows, that is
// the identity, because such squares gain nothing from correlated noise.
func (c *Config) factorization(method string) string {
	switch {
	case c.Factorization != "auto":
		return c.Factorization
	case squaring(method):
		return "identity"
	}
	return c.auto().Kind
}

// validateMethod checks the keys that only some methods allow. kind is the kind of factorization in use.
func (c *Config) validateMethod(l *fault.List, kind string) {
	if squaring(c.Method) {
		l.Check(c.Step <= 1, "method",
			fmt.Sprintf(
				"must not be %q for steps of several slots: the method squares single rows, but here it would square "+
					"the sum of a step's rows",
				c.Method), nil)
		if reason := checkSquares(kind, c.Normalise, c.last()); reason != "" {
			l.Add("factorization", "cannot be combined with method \""+c.Method+"\": "+reason, c.Factorization)
		}
	}
	if c.Method == "cs" {
		l.Check(vector.Positive(c.Tau), "tau", "must be positive and finite for method \"cs\"", c.Tau)
		l.Check(c.Second == nil, "method",
			"\"cs\" needs one matrix C for both moments, because it releases them as one vector", nil)
	} else {
		l.Check(c.Tau == 0, "tau", "belongs to method \"cs\"", c.Tau)
	}
	if c.Method == "ime" {
		l.Check(c.Split > 0 && c.Split < 1, "split", "must be in (0, 1)", c.Split)
	} else {
		l.Check(c.Split == 0.5, "split", "belongs to method \"ime\"", c.Split)
	}
	if c.Method != "auto" && c.Method != "jme" && c.Method != "combined" {
		for _, key := range []struct {
			name  string
			given bool
		}{{"nu", c.Nu != 0}, {"weights", len(c.Weights) > 0}, {"inflation", c.Inflation != 0}} {
			l.Check(!key.given, key.name, "belongs to the methods \"auto\", \"jme\" and \"combined\"", nil)
		}
	}
	l.Check(c.Metric == "last" || c.Metric == "sum", "metric", "must be \"last\" or \"sum\"", c.Metric)
	if c.Metric == "sum" {
		l.Check(c.Method == "auto", "metric", "belongs to method \"auto\"", c.Metric)
		l.Check(c.reference() <= longestSum, "metric",
			fmt.Sprintf("\"sum\" needs a horizon or tune of at most %d steps, because it adds up their errors",
				longestSum),
			c.Metric)
	}
	if c.PSDFloor != nil {
		l.Check(*c.PSDFloor >= 0 && !math.IsInf(*c.PSDFloor, 0), "psd_floor", "must be at least 0 and finite",
			*c.PSDFloor)
		l.Check(*c.Covariance, "psd_floor", "needs the covariance", nil)
	}
	if c.Second != nil {
		l.Check(c.Method == "auto" || c.Method == "jme" || c.Method == "ime" || c.Method == "cs", "method",
			"cannot be combined with a second factorization: it squares noisy rows", c.Method)
		l.Check(!*c.Covariance ||
			c.second().workload() == c.workload(), "covariance", "needs one workload for both moments", true)
		for _, err := range fault.All(c.second().Validate()) {
			var f *fault.Fault
			if errors.As(err, &f) && !slices.ContainsFunc(*l, func(e error) bool { return e.Error() == f.Error() }) {
				*l = append(*l, fmt.Errorf("second moment: %w", err))
			}
		}
	}
}

// longestSum is the largest number of steps over which errors are added up to choose a method.
const longestSum = 1 << 20

// reference returns the step whose expected error decides between methods.
func (c *Config) reference() uint64 {
	if t := c.Horizon; t != 0 {
		return t
	}
	if c.Tune != 0 {
		return c.Tune
	}
	return 1e4
}

// ValidateFor checks what depends on the adjacency. The fault is a weight that makes the second moment less accurate
// without improving the first. Call Defaults first.
func (c *Config) ValidateFor(adjacency dp.Adjacency) error {
	if adjacency == dp.Replace && len(c.Columns) > 0 && c.Nu > 0 && c.Nu < calibration.FreeSquares(c.dimension()) {
		return &fault.Fault{Key: "nu", Value: c.Nu,
			Rule: fmt.Sprintf(
				"must be at least %.6g under \"replace\": up to that weight the second moment is free, and a "+
					"smaller weight does not improve the mean", calibration.FreeSquares(c.dimension()))}
	}
	return nil
}

// defaultBands is the number of bands if none is given.
const defaultBands = 16

// banded reports whether a factorization has bands.
func banded(kind string) bool { return kind == "bsr" || kind == "bisr" || kind == "banded" }

// validateScaling reports faults of Centre and Scale. It is not part of Validate, because package config fills in and
// checks these fields separately.
func (c *Config) validateScaling() error {
	var l fault.List
	each := func(key string, list []float64, ok func(float64) bool, must string) {
		l.Check(len(list) == 0 || len(list) == len(c.Columns), key, "must be one number for each column", len(list))
		for _, x := range list {
			l.Check(ok(x), key, must, x)
		}
	}
	each("centre", c.Centre, func(x float64) bool { return !math.IsInf(x, 0) }, "must be finite")
	each("scale", c.Scale, func(x float64) bool { return math.IsNaN(x) || vector.Positive(x) },
		"must be positive and finite")
	return l.Err()
}

// maxSlots is the largest number of slots of an epoch with an end, because offsets are int64.
const maxSlots = 1 << 62

// maxRing is the largest memory of a window, in bytes.
const maxRing = 1 << 34
