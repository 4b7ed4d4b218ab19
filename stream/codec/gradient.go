package codec

// gradientCodec reads a gradient with another codec. After the gradient's numbers it writes the number of a step, which
// it reads from a header: the gradient was computed with the parameters released at this step.
//
// The header's value is the step in decimal, with at most 15 digits; step 0 stands for the initial parameters. A record
// without this header, or with two of them, gives no row.
type gradientCodec struct {
	numbers Codec
	dim     int
	header  string
}

// newGradientCodec returns the codec of a stream whose records are gradients.
func newGradientCodec(name string, dim int, header string) (Codec, error) {
	c := &gradientCodec{dim: dim, header: header}
	switch name {
	case "json-array":
		c.numbers = &jsonArrayCodec{width: dim}
	case "float64":
		c.numbers = float64Codec{columns: dim}
	case "float32":
		c.numbers = float32Codec{columns: dim}
	default:
		_, err := New(name, nil)
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
