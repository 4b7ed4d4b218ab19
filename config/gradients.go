package config

import (
	"slices"

	"github.com/streamdp/streamdp/internal/toml"
)

// checkGradients checks the input of a stream whose records are gradients. Such a stream has
// no columns, no centre and no scale.
func (d *document) checkGradients(s *Stream, key toml.Key) {
	input := under(key, "input")
	d.refuse(input, "belongs to rows; a gradient has adam.dim numbers, and mode \"model\" takes rows", "columns")
	codec := under(input, "codec")
	if d.Sound(codec) && !slices.Contains([]string{"float32", "float64", "json-array"}, s.Input.Codec) {
		rule := "must be \"float32\", \"float64\" or \"json-array\" for gradients"
		if d.Written(codec) == nil {
			d.Add(codec, -1, "required for gradients: \"float32\", \"float64\" or \"json-array\"", nil)
		} else {
			d.Add(codec, -1, rule, s.Input.Codec)
		}
	}
	d.refuse(key, "belongs to rows; a gradient is taken as it is", "centre", "scale")
	d.refuse(input, "belongs to rows; a gradient has none", "column")
	s.clearRows()
}

// clearRows takes away what only rows have, and what its defaults have set.
func (s *Stream) clearRows() {
	s.Input.Columns, s.Input.Column, s.Centre, s.Scale = nil, nil, nil, nil
}
