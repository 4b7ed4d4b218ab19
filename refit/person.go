package refit

import (
	"fmt"
	"math"

	"streamdp/dp"
)

// PersonRatio returns the μ of all records of a person, in at most so many windows and at most
// perWindow in each, over the μ that a single record pays under zero-out:
//
//	zero-out  perWindow·√windows
//	replace   2·perWindow·√windows
//
// Privacy: in a window the person's records become null rows one after the other, so all cost
// perWindow times one; under replace another person's rows then take the place of null ones.
// Windows have independent noise, so their μ² add up; a window by the clock may hold all of a
// person's records of that time. It is group privacy of Gaussian
// mechanisms, and holds for the solvers "newton", "adassp" and "dp-gd" with Gaussian noise alone.
//
// Errors: a solver with sketches, whose guarantee is no Gaussian mechanism's: many records of
// one person may be a direction that the sketch hides for one record only. Counts of 0.
// Source: Dong, Roth, Su, "Gaussian Differential Privacy", on groups and composition.
func PersonRatio(solver string, windows, perWindow uint64, adjacency dp.Adjacency) (float64, error) {
	switch solver {
	case "newton", "adassp", "dp-gd", "dp-gd-residual":
	default:
		return 0, fmt.Errorf("solver %q does not protect persons: it releases a sketch of the rows, whose guarantee for a single record is not one for many", solver)
	}
	if windows == 0 || perWindow == 0 {
		return 0, fmt.Errorf("a person has %d records in each of %d windows, must be at least 1 each", perWindow, windows)
	}
	return adjacency.Factor() * float64(perWindow) * math.Sqrt(float64(windows)) * dp.RoundUp, nil
}
