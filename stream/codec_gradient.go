package stream

import "streamdp/config"

// gradientCodec reads a gradient in the form of another codec, and behind its
// numbers the step of the parameters that it was taken at, out of a header.
//
// The header's value is that step in decimal, up to 15 digits; 0 are the initial
// parameters. Without exactly one such header there is no row.
type gradientCodec struct {
	numbers Codec
	dim     int
	header  string
}

// newGradientCodec returns the codec of a stream of gradients.
func newGradientCodec(name string, dim int, header string) (Codec, error) {
	c := &gradientCodec{dim: dim, header: header}
	switch name {
	case "json-array":
		c.numbers = &jsonArrayCodec{columns: dim}
	case "float64":
		c.numbers = float64Codec{columns: dim}
	case "float32":
		c.numbers = float32Codec{columns: dim}
	default:
		_, err := NewCodec(name, nil)
		return nil, err
	}
	return c, nil
}

func (c *gradientCodec) Decode(rec *Record, dst []float64) Reason {
	begin(dst, c.dim+1)
	if r := c.numbers.Decode(rec, dst[:c.dim]); r != Decoded {
		return r
	}
	step, ok := c.step(rec)
	if !ok {
		return end(dst, NoStep)
	}
	dst[c.dim] = float64(step)
	return Decoded
}

func (c *gradientCodec) step(rec *Record) (step uint64, ok bool) {
	for i := range rec.Headers {
		h := &rec.Headers[i]
		if h.Key != c.header {
			continue
		}
		if ok || len(h.Value) == 0 || len(h.Value) > 15 {
			return 0, false
		}
		for _, d := range h.Value {
			if d < '0' || d > '9' {
				return 0, false
			}
			step = 10*step + uint64(d-'0')
		}
		ok = true
	}
	return step, ok
}

// width returns the length of a stream's decoded rows.
func width(s *config.Stream) int {
	if s.Gradients() {
		return s.Adam.Dim + 1
	}
	return len(s.Input.Columns)
}

// codecOf returns a codec for the stream's records.
func codecOf(s *config.Stream) (Codec, error) {
	if s.Gradients() {
		return newGradientCodec(s.Input.Codec, s.Adam.Dim, s.Adam.StepHeader)
	}
	return NewCodec(s.Input.Codec, s.Input.Columns)
}
