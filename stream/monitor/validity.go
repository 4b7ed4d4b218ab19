package monitor

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// ValidityCheck decides, from published numbers alone, whether hardly any record of a stream
// counts. A column's name may be mistyped, for example, or the clip norm far too small.
// It uses valid_count, the number of valid records under the workload's weights, and
// full_share, the share of records that were not shortened. Both are private releases. It
// does not use the exact number of rejected records.
//
// The verdict says that at most a tenth of recent records count. It is given only if the
// released number's standard error is below a twenty-fifth of the records. So for a
// stream in which three tenths count, it is wrong with probability at most 3e-7. For sums
// and means the recent records are those since the last verdict. For windows and decaying
// weights they are those under the weights, as far as this process has seen them.
//
// Where persons are protected few records may count by right. The verdict then says that
// counted_share, of all records under the workload's weights, is below four of its standard
// errors though these are below a thousandth: that may be no record at all, as where the user key
// is looked for in the wrong place. It is taken back as soon as some are seen to count.
type ValidityCheck struct {
	persons  bool
	Workload string
	Decay    float64
	Window   int

	fewValid, fewFull bool

	begun bool
	at    core.Count // valid_count at the last verdict
	total float64    // records since then, or under the weights
	ring  []float64  // records of the window's steps
	next  int
}

// The share of records below which hardly any counts; the standard error that allows the
// verdict; and the largest number of steps of a window that are kept. In a longer window the
// records are underestimated. That delays a verdict, and never makes a wrong one.
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

// Take reads a published release of a step, and returns the verdict.
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

// valid reads the valid_count of a step with so many records.
func (c *ValidityCheck) valid(step uint64, rows float64, v core.Count) {
	since := false // the last verdict
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
			c.at, c.begun = v, true // what was before is another process'
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
