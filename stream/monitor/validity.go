package monitor

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// ValidityCheck decides, from published numbers alone, whether almost no record of a stream counts. That happens, for
// example, if a column's name is mistyped or the clip norm is far too small. It uses valid_count, the number of valid
// records under the workload's weights, and full_share, the share of records that were not shortened. Both are private
// releases. It does not use the exact number of rejected records.
//
// A positive verdict means that at most a tenth of recent records count. It is given only if the released number's
// standard error is below a twenty-fifth of the records. So if in fact three tenths of a stream's records count, a
// positive verdict has probability at most 3e-7. For sums and means, the recent records are those since the last
// verdict. For windows and decaying weights, they are the records with weights, as far as this process has seen them.
//
// In streams that protect persons, it may be intended that few records count. For these streams the check uses
// counted_share, the share of records that count, under the workload's weights. The verdict is positive if
// counted_share is below four standard errors although its standard error is below a thousandth. Possibly no record
// counts at all then, for example because the user key is read from the wrong place. The verdict becomes negative as
// soon as published numbers show that some records count.
type ValidityCheck struct {
	persons  bool
	Workload string
	Decay    float64
	Window   int

	fewValid, fewFull bool

	begun bool
	at    core.Count // valid_count at the last verdict
	total float64    // number of records since the last verdict, or sum of their weights
	ring  []float64  // records of the window's steps
	next  int
}

// These constants are the share below which almost no record counts, the standard errors that allow a verdict, and the
// maximum number of steps of a window that are stored. In a longer window the number of records is underestimated; this
// may delay a verdict but never makes it wrong.
const (
	fewShare     = 0.1
	fewError     = 0.04
	nobodyError  = 0.001
	nobodyErrors = 4
	censusWindow = 4096
)

// NewValidityCheck returns the check of a stream before its first release.
func NewValidityCheck(s *config.Stream) *ValidityCheck {
	c := &ValidityCheck{persons: s.User != nil}
	if m := s.Moments; m != nil {
		c.Workload, c.Decay, c.Window = m.Workload, m.Decay, int(min(m.Window, censusWindow))
	}
	return c
}

// Take reads a published release of a step and returns the verdict.
func (c *ValidityCheck) Take(step uint64, s core.Shares) bool {
	if c.persons {
		if n := s.Counted; n != nil && n.SE <= nobodyError {
			c.fewValid = n.Value < nobodyErrors*n.SE
		}
		return c.fewValid
	}
	if f := s.Full; f != nil && f.SE <= fewError {
		c.fewFull = f.Value < fewShare
	}
	if s.Valid != nil {
		c.valid(step, float64(s.Rows), *s.Valid)
	}
	return c.fewFull || c.fewValid
}

// valid processes the valid_count v of a step that has `rows` records.
func (c *ValidityCheck) valid(step uint64, rows float64, v core.Count) {
	since := false // c.total counts records since the last verdict
	switch c.Workload {
	case "window":
		if len(c.ring) < c.Window {
			c.ring = append(c.ring, 0)
		}
		i := c.next % len(c.ring)
		c.total += rows - c.ring[i]
		c.ring[i] = rows
		c.next = (i + 1) % c.Window
	case "exponential":
		c.total = float64(c.Decay*c.total) + rows
	default:
		since = true
		if !c.begun && step > 1 {
			c.at, c.begun = v, true // Earlier values come from another process, so begin with this one.
			return
		}
		c.begun = true
		c.total += rows
	}
	if v.SE+c.at.SE > fewError*c.total {
		return
	}
	c.fewValid = v.Value-c.at.Value < fewShare*c.total
	if since {
		c.at, c.total = v, 0
	}
}
