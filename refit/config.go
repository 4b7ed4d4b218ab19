package refit

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Solvers are the names of the private solvers in a configuration.
var Solvers = []string{"newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd", "dp-gd-residual"}

// Config describes a refit. The fields with a TOML name are the keys of a stream's refit
// table; docs/config.md explains them. The other fields follow from the stream.
type Config struct {
	// Target is the column to predict. Required.
	Target string
	// ClipX is the bound on the features' Euclidean norm, in scaled units. Required.
	ClipX float64
	// ClipY is the bound on the target's absolute value, in scaled units. Required.
	ClipY float64
	// Intercept asks for a constant. Default true.
	Intercept *bool
	// Window is the number of slots of a window. Required, unless Most is set.
	Window uint64
	// Stride is the number of slots from the start of a window to the start of the next. It is at least Window, the
	// default.
	Stride uint64
	// Solver is one of Solvers; default "newton".
	Solver string
	// Accounting is "exact", "rdp" or "paper", for "adassp" also "analytic". The default is "exact", or "rdp" for
	// "fast-ihm", which has no exact accounting. "newton" allows only "exact".
	Accounting Accounting
	// Share is the share of the budget that "ihm" and "fast-ihm" spend on sketches, in (0, 1); default 0.2.
	Share float64
	// Rows is the number of rows of a sketch of "ihm", "linmix" and "fast-ihm"; 0 lets the package choose.
	Rows int
	// Iterations is the number of iterations of "ihm", "fast-ihm" and "dp-gd-residual". 0, the default, means 3, or 4
	// for "fast-ihm".
	Iterations int
	// EigenTest makes "ihm" and "adassp" spend budget on the smallest eigenvalue. A window whose rows vary in every
	// direction then gets less noise.
	EigenTest bool
	// Debias makes "ihm" correct the mean of an inverted sketch; with EigenTest, only if the sketch had no noise.
	Debias bool
	// Pool makes "ihm" average the sketches of all iterations so far.
	Pool bool
	// ResidualClip is the bound on residuals of "ihm", "fast-ihm" and "dp-gd-residual", in scaled units. 0 means ClipY.
	ResidualClip float64
	// Transforms is the number of fast transforms of "fast-ihm", 1 or Iterations. Default 1.
	Transforms int
	// Ratio is the number of rows of the fast transform, in units of max(d, log(4T/ϱ)) with ϱ = δ/10; default 4. It is
	// for "fast-ihm".
	Ratio float64
	// Radius bounds the norm of the coefficients; 0 means no bound. Its unit is ClipY divided by the bound on a row of
	// features with its constant. With a radius, "ihm" needs no pass over the rows and does not store them; "dp-gd"
	// uses it to bound its clip norm.
	Radius float64

	// Dense computes sketches explicitly; otherwise only their squares are drawn. Both have the same distribution, but
	// Dense takes tens of times longer. It is for comparisons, with "ihm" without a radius.
	Dense bool
	// Partitions is the number of partitions whose records are added to separate parts and then merged; see
	// [Refit.NewPart]. Window and Stride then count slots of each partition; Most counts slots of all partitions. If
	// Partitions is 0, all records come from one log.
	Partitions uint64
	// Most, if not 0, says that something other than a number of slots ends a window, for example a clock: each call of
	// [Refit.Close] ends one. A window then has any number of slots from 0 to Most, in all partitions together, and
	// Window and Stride must be 0. If Most is 0, a window has Window slots.
	Most uint64
	// Columns are the names of the columns of a row.
	Columns []string
	// Horizon is the number of windows of the epoch; 0 means no end. Endless says that windows continue after Horizon.
	Horizon uint64
	Endless bool
	// Centre and Scale are the public constants by which rows were scaled. They are needed to publish original units.
	// Empty means 0 and 1.
	Centre, Scale []float64
	// Found says that a warm-up found the bounds. Then releases have original units, even if Centre and Scale are
	// empty.
	Found bool
	// Person, if not zero, protects all records of a person instead of single records. A person has records in at most
	// Count windows, any two at least Separation windows apart, and at most PerStep records in each. The caller of Add
	// must enforce this: it replaces further records by nil rows. The cost of the releases is then the cost for a
	// person.
	Person matfact.Participation
}

// Defaults sets the fields that have a constant default and are not set.
func (c *Config) Defaults() {
	if c.Intercept == nil {
		yes := true
		c.Intercept = &yes
	}
	if c.Solver == "" {
		c.Solver = "newton"
	}
	if c.Share == 0 {
		c.Share = 0.2
	}
	if c.Transforms == 0 {
		c.Transforms = 1
	}
	if c.Ratio == 0 {
		c.Ratio = 4
	}
}

// Slots returns the number of slots of a window, in all partitions together. If windows have no fixed number, it
// returns the largest.
func (c *Config) Slots() uint64 {
	if c.Most > 0 {
		return c.Most
	}
	return c.Window * max(1, c.Partitions)
}

// stride returns the number of slots from the start of a window to the start of the next, in all partitions together.
func (c *Config) stride() uint64 {
	if c.Stride == 0 {
		return c.Slots()
	}
	return c.Stride * max(1, c.Partitions)
}

func (c *Config) accounting() Accounting {
	switch {
	case c.Accounting != "":
		return c.Accounting
	case c.Solver == "fast-ihm":
		return RDP
	}
	return Exact
}

func (c *Config) iterations() int {
	switch {
	case c.Iterations != 0:
		return c.Iterations
	case c.Solver == "fast-ihm":
		return 4
	}
	return 3
}

// residualClip returns the bound on residuals in units of ClipY.
func (c *Config) residualClip() float64 {
	if c.ResidualClip == 0 {
		return 1
	}
	return c.ResidualClip / c.ClipY
}

// target returns the position of the target among the columns, −1 if it is missing.
func (c *Config) target() int { return slices.Index(c.Columns, c.Target) }

// features returns the number d of features, including the constant.
func (c *Config) features() int {
	d := len(c.Columns) - 1
	if *c.Intercept {
		d++
	}
	return d
}

// merging lists the solvers whose releases are functions of integer sums over the rows.
var merging = []string{"newton", "adassp", "dp-gd-residual"}

// Sketches reports whether the solver's releases are functions of Gaussian sketches. Their cost is not a μ. Call
// Defaults first.
func (c *Config) Sketches() bool {
	switch c.Solver {
	case "ihm", "linmix", "fast-ihm":
		return true
	}
	return false
}

// LastStep returns the last window of the refit, 0 if it has no end.
func (c *Config) LastStep() uint64 {
	if c.Endless {
		return 0
	}
	return c.Horizon
}

// scaled reports whether releases have original units next to scaled ones.
func (c *Config) scaled() bool {
	return c.Found || slices.ContainsFunc(c.Centre, func(x float64) bool { return x != 0 }) ||
		slices.ContainsFunc(c.Scale, func(x float64) bool { return x != 1 })
}

// Values returns the names of the values in a release, in their order. Call Defaults first.
func (c *Config) Values() []string {
	names := []string{"theta"}
	if *c.Intercept {
		names = append(names, "intercept")
	}
	if c.scaled() {
		names = append(names, "theta_original")
		if *c.Intercept {
			names = append(names, "intercept_original")
		}
	}
	if c.Sketches() {
		names = append(names, "eta")
	}
	return names
}

// belongs lists the solvers that have a key. It has an entry for each key that not all solvers have.
var belongs = map[string][]string{
	"share":         {"ihm", "fast-ihm"},
	"rows":          {"ihm", "linmix", "fast-ihm"},
	"iterations":    {"ihm", "fast-ihm", "dp-gd-residual"},
	"eigen_test":    {"ihm", "adassp"},
	"debias":        {"ihm"},
	"pool":          {"ihm"},
	"residual_clip": {"ihm", "fast-ihm", "dp-gd-residual"},
	"transforms":    {"fast-ihm"},
	"ratio":         {"fast-ihm"},
	"radius":        {"ihm", "dp-gd"},
	"dense":         {"ihm"},
}

// accountings lists the forms of accounting of each solver.
var accountings = map[string][]Accounting{
	"newton":         {Exact},
	"ihm":            {Exact, RDP, Paper},
	"adassp":         {Exact, Analytic, Paper},
	"linmix":         {Exact, RDP, Paper},
	"fast-ihm":       {RDP, Paper},
	"dp-gd":          {Exact},
	"dp-gd-residual": {Exact, Paper},
}

// Validate returns all violated rules at once, each a *fault.Fault, joined. Call Defaults first.
func (c *Config) Validate() error {
	var l fault.List
	bounded := func(key string, x float64, or string) {
		l.Check(vector.Positive(x), key, "must be positive and finite"+or, x)
		l.Check(!vector.Positive(x) ||
			x >= 1e-60 && x <= 1e60, key, "must be in the range 1e-60 to 1e60: scale the columns to about 1", x)
	}
	bounded("clip_x", c.ClipX, "")
	bounded("clip_y", c.ClipY, "")
	if len(c.Columns) > 0 {
		l.Check(c.target() >= 0, "target", "must be one of the columns", c.Target)
	}
	l.Check(c.features() >= 1, "columns", "must name a feature in addition to the target", len(c.Columns))
	if c.Most > 0 {
		l.Check(c.Window == 0, "window", "must not be set: the clock ends windows", c.Window)
		l.Check(c.Stride == 0, "stride", "must not be set: the clock ends windows", c.Stride)
		l.Check(c.Most <= maxWindow, "step_max",
			fmt.Sprintf("must be at most %d for windows", uint64(maxWindow)), c.Most)
	} else {
		l.Check(c.Window >= 1 && c.Window <= maxWindow, "window",
			fmt.Sprintf("must be 1 to %d slots", uint64(maxWindow)), c.Window)
		l.Check(c.Stride == 0 ||
			c.Stride >= c.Window, "stride",
			"must be at least the window: otherwise a record could be in two windows and pay twice", c.Stride)
	}
	if !slices.Contains(Solvers, c.Solver) {
		l.Add("solver", "must be "+fault.Quoted(Solvers, "or"), c.Solver)
		return l.Err()
	}
	if c.Partitions > 0 {
		l.Check(c.Window <= maxWindow/c.Partitions, "window",
			fmt.Sprintf("must be at most %d slots in all %d partitions together", uint64(maxWindow), c.Partitions),
			c.Window)
		l.Check(c.Stride <= math.MaxInt64/c.Partitions, "stride", "is too large for this number of partitions",
			c.Stride)
		l.Check(slices.Contains(merging, c.Solver), "solver",
			fmt.Sprintf("must be %s with merge = true: only these solvers use only sums that are exact in any order",
				fault.Quoted(merging, "or")), c.Solver)
		l.Check(!c.EigenTest, "eigen_test",
			"must be false with merge = true: an eigenvalue cannot be merged from partitions by an exact sum", nil)
	}
	l.Check(c.Accounting == "" || slices.Contains(accountings[c.Solver], c.Accounting), "accounting",
		fmt.Sprintf("must be %s for solver %q", fault.Quoted(accountings[c.Solver], "or"), c.Solver),
		string(c.Accounting))
	var defaults Config
	defaults.Defaults()
	foreign := func(key string, isDefault bool, value any) {
		if !isDefault && !slices.Contains(belongs[key], c.Solver) {
			l.Add(key, belongTo(belongs[key]), value)
		}
	}
	foreign("share", c.Share == defaults.Share, c.Share)
	foreign("rows", c.Rows == 0, c.Rows)
	foreign("iterations", c.Iterations == 0, c.Iterations)
	foreign("eigen_test", !c.EigenTest, c.EigenTest)
	foreign("debias", !c.Debias, c.Debias)
	foreign("pool", !c.Pool, c.Pool)
	foreign("residual_clip", c.ResidualClip == 0, c.ResidualClip)
	foreign("transforms", c.Transforms == defaults.Transforms, c.Transforms)
	foreign("ratio", c.Ratio == defaults.Ratio, c.Ratio)
	foreign("radius", c.Radius == 0, c.Radius)
	foreign("dense", !c.Dense, c.Dense)
	l.Check(c.Share > 0 && c.Share < 1, "share", "must be in (0, 1)", c.Share)
	least := c.features() + 2
	l.Check(c.Rows == 0 ||
		c.Rows >= least && c.Rows <= 1<<20, "rows",
		fmt.Sprintf("must be %d to 2^20, so that a sketch can be inverted, or 0 (chosen)", least), c.Rows)
	l.Check(c.Iterations >= 0 && c.Iterations <= 1000, "iterations", "must be 1 to 1000, or 0 (chosen)", c.Iterations)
	if c.ResidualClip != 0 {
		bounded("residual_clip", c.ResidualClip, ", or 0 for clip_y")
	}
	l.Check(c.Transforms == 1 ||
		c.Transforms == c.iterations(), "transforms", "must be 1 or the number of iterations", c.Transforms)
	l.Check(vector.Positive(c.Ratio) && c.Ratio <= 1e6, "ratio", "must be positive and at most a million", c.Ratio)
	l.Check(c.Radius >= 0 && c.Radius < 1e6, "radius", "must be at least 0 and less than a million", c.Radius)
	l.Check(c.Radius == 0 || c.Solver != "ihm" ||
		c.ResidualClip == 0, "radius", "already determines the bound on residuals: leave residual_clip out", nil)
	l.Check(c.Radius == 0 || !c.Dense, "dense",
		"needs the rows, which are not stored if radius is set: leave out dense or radius", nil)
	c.validatePerson(&l)
	return l.Err()
}

// maxWindow is the largest number of slots of a window.
const maxWindow = 1 << 31

// belongTo returns the rule for a key that belongs to some solvers only.
func belongTo(solvers []string) string {
	if len(solvers) == 1 {
		return fmt.Sprintf("belongs to solver %q", solvers[0])
	}
	return "belongs to solvers " + fault.Quoted(solvers, "and")
}
