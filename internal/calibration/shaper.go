package calibration

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Reach is an upper bound on the predictions of a shaper, in lattice units, for draws of standard deviation sd. Step t
// draws q_t, rounds it, and has s_t = q_t − w_t/r with r ≥ 1.
func Reach(limits matfact.Limits, sd float64) float64 {
	return limits.Noise + float64(dp.MaxDraw*sd) + 4
}

var errShaper = errors.New("damaged: the state of the noise does not belong to the sums")

// RestoreShaper restores into s a state that was saved after `steps` steps. scratch has the length of a row; it is nil
// for independent noise, which has no predictions.
//
// Errors: a state of another factorization or dimension; a state after another number of steps; a prediction larger
// than reach, see Reach.
func RestoreShaper(s matfact.Shaper, state []byte, steps uint64, scratch []float64, reach float64) error {
	if err := s.UnmarshalBinary(state); err != nil {
		return err
	}
	// Every shaper's state begins with version, fingerprint, dimension, steps.
	if binary.BigEndian.Uint64(state[1+8+8:]) != steps {
		return errShaper
	}
	if scratch == nil {
		return nil
	}
	s.Predict(scratch)
	for _, x := range scratch {
		if !(math.Abs(x) <= reach) {
			return errShaper
		}
	}
	return nil
}
