package adam

import (
	"fmt"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/vector"
	"github.com/streamdp/streamdp/matfact"
)

// Config describes an optimiser. The fields with a TOML name are the keys of a stream's adam
// table; docs/config.md explains them. The other fields follow from the stream.
type Config struct {
	// Mode says what a row is. In mode "gradients" (the default) a row is a gradient. In mode "model" it is an example,
	// features and target; its gradient is the gradient of Model at the current parameters.
	Mode string
	// Method is "pp_debiased" (the default), "pp", "jme", "jme_per_example",
	// "jme_batch", "joint_clip" or "momentum"; see Estimator.
	Method string
	// Clip is the bound ζ on the Euclidean norm of one gradient. Required.
	Clip float64
	// MeanClip also bounds the norm of a step's mean gradient, for "jme_batch", whose noise grows with the largest
	// possible mean. 0 means no bound.
	MeanClip float64
	// Nu is the dimensionless weight ν of the second moment in the methods "jme…". 0 lets the package choose. For
	// single vectors under replacement it chooses the largest weight that does not raise the noise of the first moment;
	// otherwise a weight that balances the errors of both moments.
	Nu float64
	// Tau is the weight τ of the squares, in 1/gradient². It is required for "joint_clip", and must be 0 otherwise.
	Tau float64
	// Beta1 and Beta2 are the weights of the previous step in the two moments,
	// in (0, 1). Default 0.9 and 0.999.
	Beta1 float64
	Beta2 float64
	// Rate is the learning rate. Required.
	Rate float64
	// Schedule is "constant" (the default); "inverse-sqrt": rate/√i in step i; or "cosine": from rate to 0 over the
	// horizon.
	Schedule string
	// Eps is added to the root of the second moment. Default 1e-8.
	Eps float64
	// VFloor is the smallest second moment. 0 means the standard deviation of its noise.
	VFloor float64
	// Negative says how a noisy second moment below 0 is treated. "floor" (the default) raises all values below VFloor
	// to VFloor. "zero" raises negative values to 0, and "abs" takes their absolute value; these two ignore VFloor.
	Negative string
	// UpdateClip bounds the Euclidean norm of the update before the rate is applied. 0 means no bound. It is required
	// for "zero", which divides by Eps.
	UpdateClip float64
	// WeightDecay is the decoupled decay: every step shrinks the parameters by the share rate·WeightDecay.
	WeightDecay float64
	// Factorization is "identity" (the default), "blt" or "sqrt".
	Factorization string
	// Dim is the number of parameters. It is required for mode "gradients", and must be 0 for mode "model", where Model
	// determines it.
	Dim int
	// Release is "parameters" (the default), or "update", the change of the parameters.
	Release string
	// Model is required for mode "model", and must be nil otherwise.
	Model *Model
	// MaxStaleness is the largest age, in steps, of the parameters at which a gradient was computed; see
	// Estimator.Stale.
	MaxStaleness uint64

	// StepHeader and InitialFile are for the daemon. StepHeader names the record header that holds the step whose
	// parameters were used to compute the gradient; default "model-step". InitialFile is the file from which Initial is
	// read.
	StepHeader  string
	InitialFile string

	// Person, if not zero, protects all records of a person instead of single records. A person has records in at most
	// Count steps, any two at least Separation steps apart, and at most PerStep records in each. The caller of Add must
	// enforce this: it replaces further records by nil rows. The cost of the releases is then the cost for a person.
	Person matfact.Participation

	// Columns are the names of the numbers of a row in mode "model", including the target.
	Columns []string
	// Step is the number m of slots of one step. Means are divided by m, even if some slots hold no record.
	Step uint64
	// Horizon is the number of steps of the epoch; 0 means no end.
	Horizon uint64
	// Endless says that steps continue after Horizon. The noise is still tuned for Horizon.
	Endless bool
	// Initial holds the parameters before the first step. They are public. Empty means 0, or small fixed weights for a
	// network.
	Initial []float64
}

const stepHeader = "model-step"

// Defaults sets the fields that have a default and are not set.
func (c *Config) Defaults() {
	fill := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	fill(&c.Mode, "gradients")
	fill(&c.Method, "pp_debiased")
	fill(&c.Schedule, "constant")
	fill(&c.Negative, "floor")
	fill(&c.Factorization, "identity")
	fill(&c.Release, "parameters")
	fill(&c.StepHeader, stepHeader)
	for _, x := range []struct {
		value *float64
		def   float64
	}{{&c.Beta1, 0.9}, {&c.Beta2, 0.999}, {&c.Eps, 1e-8}} {
		if *x.value == 0 {
			*x.value = x.def
		}
	}
}

// Values returns the names of the values in a release, in their order. Call Defaults first.
func (c *Config) Values() []string {
	if c.Method == "momentum" {
		return []string{c.Release, "model_step"}
	}
	return []string{c.Release, "v_noise", "model_step"}
}

// LastStep returns the last step of the optimiser, 0 if it has no end.
func (c *Config) LastStep() uint64 {
	if c.Endless {
		return 0
	}
	return c.Horizon
}

// target returns the position of the model's target among the columns, −1 if it is missing.
func (c *Config) target() int { return slices.Index(c.Columns, c.Model.Target) }

// Parameters returns the number of parameters.
func (c *Config) Parameters() int {
	if c.Mode == "model" && c.Model != nil {
		return c.Model.Parameters(len(c.Columns))
	}
	return c.Dim
}

// joint reports whether the method also adds noise to the second moment. A step then has two noise arrays.
func (c *Config) joint() bool {
	switch c.Method {
	case "jme", "jme_per_example", "jme_batch", "joint_clip":
		return true
	}
	return false
}

// maxParameters is the largest number of parameters. As float64 they take 80 GB.
const maxParameters = 1e10

// maxHistory bounds the memory that a square root may take, in bytes.
const maxHistory = 1 << 34

// Validate returns all violated rules at once, each a *fault.Fault, joined. Call Defaults first.
func (c *Config) Validate() error {
	var l fault.List
	oneOf := func(key, value string, words ...string) {
		for _, w := range words {
			if value == w {
				return
			}
		}
		l.Add(key, "must be "+fault.Quoted(words, "or"), value)
	}
	oneOf("mode", c.Mode, "gradients", "model")
	oneOf("method", c.Method, "pp_debiased", "pp", "jme", "jme_per_example", "jme_batch", "joint_clip", "momentum")
	oneOf("schedule", c.Schedule, "constant", "inverse-sqrt", "cosine")
	oneOf("negative", c.Negative, "floor", "zero", "abs")
	oneOf("factorization", c.Factorization, "identity", "blt", "sqrt")
	oneOf("release", c.Release, "parameters", "update")
	l.Check(vector.Positive(c.Clip), "clip", "must be positive and finite", c.Clip)
	l.Check(vector.Positive(c.Rate), "rate", "must be positive and finite", c.Rate)
	l.Check(vector.Positive(c.Eps), "eps", "must be positive and finite", c.Eps)
	for _, x := range []struct {
		key   string
		value float64
	}{{"mean_clip", c.MeanClip}, {"nu", c.Nu}, {"v_floor", c.VFloor}, {"update_clip", c.UpdateClip},
		{"weight_decay", c.WeightDecay}} {
		l.Check(x.value >= 0 && !math.IsInf(x.value, 0), x.key, "must be positive and finite, or 0 for none", x.value)
	}
	l.Check(c.Beta1 > 0 && c.Beta1 < 1, "beta1", "must be in (0, 1)", c.Beta1)
	l.Check(c.Beta2 > 0 && c.Beta2 < 1, "beta2", "must be in (0, 1)", c.Beta2)

	c.validateMethod(&l)
	c.validatePerson(&l)
	c.validateHorizon(&l)
	c.validateMode(&l)
	c.validateInitial(&l)
	return l.Err()
}

// validateMethod reports fields that the method does not use, and required fields that are missing.
func (c *Config) validateMethod(l *fault.List) {
	l.Check(c.MeanClip == 0 || c.Method == "jme_batch", "mean_clip", "belongs to method \"jme_batch\"", c.MeanClip)
	l.Check(!(c.MeanClip >= c.Clip) ||
		c.MeanClip == 0, "mean_clip", "must be less than clip: a mean of gradients is never longer than clip",
		c.MeanClip)
	if c.Method == "joint_clip" {
		l.Check(vector.Positive(c.Tau), "tau", "must be positive and finite", c.Tau)
	} else {
		l.Check(c.Tau == 0, "tau", "belongs to method \"joint_clip\"", c.Tau)
	}
	switch c.Method {
	case "jme", "jme_per_example", "jme_batch":
	default:
		l.Check(c.Nu == 0, "nu", "belongs to the methods \"jme\", \"jme_per_example\" and \"jme_batch\"", c.Nu)
	}
	if c.Method == "momentum" {
		l.Check(c.VFloor == 0, "v_floor", "method \"momentum\" has no second moment", c.VFloor)
		l.Check(c.Negative == "floor", "negative", "method \"momentum\" has no second moment", c.Negative)
	}
	l.Check(c.VFloor == 0 || c.Negative == "floor" ||
		c.Method == "momentum", "v_floor", "belongs to negative = \"floor\"", c.VFloor)
	l.Check(c.Negative != "zero" ||
		c.UpdateClip > 0, "update_clip",
		"must be set for negative = \"zero\": an update divided by eps alone has no bound", nil)
	l.Check(c.Method != "jme" || c.Step <= 1, "method",
		"\"jme\" squares the single gradient of a step and needs step = 1; for larger steps use \"jme_per_example\", "+
			"or \"jme_batch\", which squares the sum of a step's gradients", c.Method)
}

// validateHorizon reports fields that do not fit the stream's steps or horizon.
func (c *Config) validateHorizon(l *fault.List) {
	l.Check(c.Schedule != "cosine" || c.Horizon > 0, "schedule", "\"cosine\" needs the stream's horizon", c.Schedule)
	l.Check(c.Schedule != "cosine" ||
		!c.Endless, "on_horizon", "must not be \"continue\": schedule \"cosine\" ends at the horizon", nil)
	l.Check(c.Factorization != "sqrt" ||
		c.Horizon > 0, "factorization", "\"sqrt\" needs the stream's horizon", c.Factorization)
	l.Check(c.Factorization != "sqrt" ||
		!c.Endless, "on_horizon", "must not be \"continue\": factorization \"sqrt\" ends at the horizon", nil)
	l.Check(c.Step >= 1, "step", "must be at least 1 slot", c.Step)
	if d := c.Parameters(); c.Factorization == "sqrt" && d >= 1 {
		arrays := 1.0
		if c.joint() {
			arrays = 2
		}
		l.Check(float64(c.Horizon)*float64(d)*8*arrays <= maxHistory, "factorization",
			"must be \"blt\": \"sqrt\" stores the noise of all steps, which would take more than 16 GiB",
			c.Factorization)
	}
}

// validateMode reports keys that belong to the other mode, and faults of the model.
func (c *Config) validateMode(l *fault.List) {
	switch c.Mode {
	case "gradients":
		l.Check(c.Dim >= 1 && c.Dim <= maxParameters, "dim",
			fmt.Sprintf("must be 1 to %g parameters", float64(maxParameters)), c.Dim)
		l.Check(c.Model == nil, "model", "belongs to mode \"model\"", nil)
	case "model":
		l.Check(c.Dim == 0, "dim", "belongs to mode \"gradients\"; a model has its own number of parameters", c.Dim)
		l.Check(c.MaxStaleness == 0, "max_staleness", "belongs to mode \"gradients\"", c.MaxStaleness)
		l.Check(c.StepHeader == stepHeader, "step_header", "belongs to mode \"gradients\"", c.StepHeader)
		if c.Model == nil {
			l.Add("model", "must be given for mode \"model\"", nil)
			break
		}
		*l = append(*l, fault.All(c.Model.validate(len(c.Columns), c.target()))...)
	}
}

// validateInitial reports faults of the initial parameters.
func (c *Config) validateInitial(l *fault.List) {
	if d := c.Parameters(); len(c.Initial) > 0 {
		l.Check(len(c.Initial) == d, "initial_file", fmt.Sprintf("must hold %d parameters", d), len(c.Initial))
		if !vector.Finite(c.Initial) {
			l.Add("initial_file", "must hold finite numbers", nil)
		}
	}
}
