package matfact

import (
	"errors"
	"fmt"
)

// Workload is the lower triangular matrix A that is applied to the stream of private rows. Row t weighs the rows 1 … t:
//
//	"sum"         A_tk = 1
//	"mean"        A_tk = 1/t
//	"exponential" A_tk = Decay^(t−k)
//	"window"      A_tk = 1 for t−Window < k ≤ t, else 0
//
// Only the divisor 1/t of "mean" is part of a workload. Other divisors, such as a window's width, a bias correction or
// a number of records, are not. They change neither the factorization nor the privacy: divide the released row, and its
// standard deviation, by them.
type Workload struct {
	// Kind is "sum", "mean", "exponential" or "window". Required.
	Kind string
	// Decay is the weight of the previous step, in (0, 1). Required for "exponential"; it must be 0 for the other
	// kinds.
	Decay float64
	// Window is the number of steps of a window, at least 1. Required for "window"; it must be 0 for the other kinds.
	Window uint64
}

// Validate returns all faults of w, joined; nil if w is valid.
func (w Workload) Validate() error {
	var errs []error
	switch w.Kind {
	case "sum", "mean", "exponential", "window":
	default:
		errs = append(errs,
			fmt.Errorf("workload is %q, must be \"sum\", \"mean\", \"exponential\" or \"window\"", w.Kind))
	}
	switch {
	case w.Kind == "exponential" && !(w.Decay > 0 && w.Decay < 1):
		errs = append(errs, fmt.Errorf("decay is %g, must be in (0, 1)", w.Decay))
	case w.Kind != "exponential" && w.Decay != 0:
		errs = append(errs, fmt.Errorf("decay is %g, must be 0: only workload \"exponential\" has a decay", w.Decay))
	}
	switch {
	case w.Kind == "window" && w.Window == 0:
		errs = append(errs, errors.New("window is 0, must be at least 1 step"))
	case w.Kind != "window" && w.Window != 0:
		errs = append(errs, fmt.Errorf("window is %d, must be 0: only workload \"window\" has a window", w.Window))
	}
	return errors.Join(errs...)
}

// Kernel returns w without its row scaling: "sum" for "mean", w itself for the other kinds. The kernel is the Toeplitz
// matrix for which a factorization is made.
func (w Workload) Kernel() Workload {
	if w.Kind == "mean" {
		return Workload{Kind: "sum"}
	}
	return w
}

// pole returns a₀ = 1 − β if the kernel is 1/(1−βx). A window is a difference of two such
// kernels, with β = 1.
func (w Workload) pole() float64 {
	if w.Kind == "exponential" {
		return 1 - w.Decay
	}
	return 0
}

// scale returns the factor of row t: row t of w is that factor times row t of the kernel.
func (w Workload) scale(t uint64) float64 {
	if w.Kind == "mean" && t > 0 {
		return 1 / float64(t)
	}
	return 1
}

// must panics if w is invalid. It serves the methods that take a workload and return no error: an invalid workload is a
// mistake in the calling program.
func (w Workload) must() {
	if err := w.Validate(); err != nil {
		panic("matfact: " + err.Error())
	}
}
