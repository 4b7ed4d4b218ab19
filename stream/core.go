package stream

import (
	"errors"

	"streamdp/config"
	"streamdp/dp"
)

// core is the release invariant: what it returns is a function of the keys, the
// manifest and the records it is given, and of nothing else. It has no clock,
// no I/O and no goroutine. However the log is split into calls, and wherever a
// call sequence is broken off and resumed from a checkpoint, the bytes of the
// releases are the same.
type core struct {
	mech       *mechanism
	keys       *dp.Epoch
	encoder    *encoder
	base       int64 // first offset of the epoch
	step       uint64
	transcript dp.Transcript // after step
	first, end int64         // offsets of the open step
	records    uint64        // in it, valid or not

	centre, scale []float64 // rows enter as (x − centre)/scale; nil: as they are
	row           []float64
}

// newCore returns the core of an epoch before its first step.
func newCore(s *config.Stream, m *manifest, manifestFile []byte, mech *mechanism, keys *dp.Epoch) (*core, error) {
	e, err := newEncoder(s, m, mech)
	if err != nil {
		return nil, err
	}
	c := &core{
		mech: mech, keys: keys, encoder: e, base: m.Base,
		transcript: transcriptOf(manifestFile),
		centre:     s.Centre, scale: s.Scale,
	}
	if c.centre != nil {
		c.row = make([]float64, mech.Columns())
	}
	c.openStep()
	return c, nil
}

// resume continues after the last step of a checkpoint.
func (c *core) resume(p *checkpoint) error {
	if err := c.mech.UnmarshalBinary(p.state); err != nil {
		return err
	}
	c.step, c.transcript = p.step, p.transcript
	c.openStep()
	if p.step > 0 && p.position.Next != c.first || p.step == 0 && p.position.Next != c.base {
		return errors.New("checkpoint: position and step disagree")
	}
	return nil
}

// openStep sets the offsets of the step after the last closed one.
func (c *core) openStep() {
	first, end := c.mech.Range(c.step + 1)
	c.first, c.end = c.base+int64(first), c.base+int64(end)
	c.records = 0
}

// add takes the next record, at an offset of the open step. row is its numbers
// as they were decoded, nil for a record that gave none.
func (c *core) add(offset int64, row []float64) {
	c.records++
	if row != nil && c.centre != nil {
		for j, x := range row {
			c.row[j] = (x - c.centre[j]) / c.scale[j]
		}
		row = c.row
	}
	c.mech.Add(uint64(offset-c.base), row)
}

// close ends the open step, whose slots have all been seen. It returns the
// messages of its release, none where it has no release.
func (c *core) close() ([]pending, error) {
	h := c.transcript
	h.AbsorbRecords(c.records)
	r, err := c.mech.Close(c.keys.Step(c.step+1, &h))
	if err != nil {
		return nil, err
	}
	c.step++
	c.transcript = h
	first, end := c.first, c.end
	c.openStep()
	if r == nil {
		return nil, nil
	}
	if w := c.mech.window; w > 0 {
		first = end - w
	}
	return c.encoder.encode(r, first, end)
}
