// Package replay finds the ends of steps by the clock in a file of records, which has neither a clock nor a boundary
// topic.
package replay

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/streamdp/streamdp/stream/core"
)

// Steps finds the ends of the steps by the clock of a file.
type Steps struct {
	says string // name of the source of the ends

	sizes []uint64 // sizes of the next steps, from published releases; nil: ends follow from times
	taken uint64   // number of records so far in the first of these steps

	name   string        // name of a record's time; it is public, because it decides in which step other records are
	period time.Duration // length of the steps
	tick   time.Time     // end of the open step; zero before the first record
	most   uint64        // largest number of records of a step
	open   uint64
}

// maxSilence is the largest number of consecutive steps without a record that a file's times may produce.
const maxSilence = 1_000_000

// minLate is the smallest time by which a record must precede the open step to be an error. A record that is earlier by
// more than minLate and by more than a period shows that the file is out of order, or that the previous record had a
// time far ahead, so that all later records would fall into the open step.
const minLate = time.Hour

// ByTimes returns steps of this period, whose ends follow from the times of the records. name is the name of the time
// in JSON records: RFC 3339 or seconds since 1970. A step with more than `most` records is an error.
func ByTimes(name string, period time.Duration, most uint64) *Steps {
	return &Steps{says: "the records' times", name: name, period: period, most: most}
}

// ByReleases returns the steps of an epoch's published releases, which a file contains as one JSON object per line,
// from step 1 on.
func ByReleases(file string) (*Steps, error) {
	sizes, err := releasedSizes(file)
	if err != nil {
		return nil, err
	}
	return &Steps{says: "the published releases", sizes: sizes}, nil
}

// Says returns a plural noun for the source of the steps' ends.
func (c *Steps) Says() string { return c.says }

// releasedSizes returns the number of records in each step of published releases, from step 1 on. It counts records
// instead of offsets, because a file has no offsets without records, such as those that end transactions.
func releasedSizes(file string) (sizes []uint64, err error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<26)
	var epoch uint64
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		r, err := core.ParseReleased(lines.Bytes())
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		case epoch == 0:
			epoch = r.Epoch
		}
		switch next := uint64(len(sizes)) + 1; {
		case r.Epoch != epoch:
			return nil, fmt.Errorf("%s:%d: this release is of epoch %d, those before it are of epoch %d: use a file "+
				"with one epoch", file, n, r.Epoch, epoch)
		case r.Step < next: // published again
			continue
		case r.Step > next:
			return nil, fmt.Errorf("%s:%d: this release is of step %d, but step %d is missing", file, n, r.Step, next)
		}
		sizes = append(sizes, r.Rows)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if sizes == nil {
		return nil, fmt.Errorf("%s contains no release", file)
	}
	return sizes, nil
}

// Before ends the steps that end before the next record. value is that record's value.
func (c *Steps) Before(value []byte, end func() error) error {
	if c.name == "" {
		if err := c.End(end); err != nil {
			return err
		}
		c.taken++
		return nil
	}
	at, err := timeOf(value, c.name)
	if err != nil {
		return err
	}
	if c.tick.IsZero() && !at.IsZero() {
		c.tick = at.Truncate(c.period).Add(c.period)
	}
	if !at.IsZero() {
		if at.Sub(c.tick)/c.period > maxSilence {
			return fmt.Errorf("a record's time is %s, more than %d steps after the previous one",
				at.Format(time.RFC3339), maxSilence)
		}
		if late := c.tick.Sub(at) - c.period; late > max(c.period, minLate) {
			return fmt.Errorf(
				"a record's time is %s, which is too long before the end of the open step, %s: sort the file by "+
					"time, or correct an earlier time that is too far ahead",
				at.Format(time.RFC3339), c.tick.Format(time.RFC3339))
		}
	}
	for !at.Before(c.tick) && !at.IsZero() {
		if err := end(); err != nil {
			return err
		}
		c.tick, c.open = c.tick.Add(c.period), 0
	}
	if c.open++; c.open > c.most {
		return fmt.Errorf("the step that ends at %s has more than step_max = %d records",
			c.tick.Format(time.RFC3339), c.most)
	}
	return nil
}

// End ends the steps that are complete, at the end of the file or before the next record.
func (c *Steps) End(end func() error) error {
	for len(c.sizes) > 0 && c.taken >= c.sizes[0] {
		c.taken, c.sizes = 0, c.sizes[1:]
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

// timeOf returns a record's time. It returns the zero time if the record has none; the record then belongs to the step
// of the previous one.
func timeOf(value []byte, name string) (time.Time, error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil {
		return time.Time{}, nil
	}
	var text string
	if json.Unmarshal(fields[name], &text) == nil {
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			return at, nil
		}
	}
	var seconds float64
	if json.Unmarshal(fields[name], &seconds) == nil && seconds > 0 && seconds < 1<<33 {
		return time.Unix(0, int64(seconds*1e9)), nil
	}
	return time.Time{}, nil
}
