package config

import (
	"slices"

	"github.com/streamdp/streamdp/internal/toml"
)

// checkGradients checks the input of a stream whose records are gradients. Such a stream has
// no columns, no centre and no scale.
func (d *document) checkGradients(s *Stream, key toml.Key) {
	columns := under(key, "input", "columns")
	if d.Written(columns) != nil {
		d.Add(columns, -1, "belongs to rows; a gradient has adam.dim numbers, and mode \"model\" takes rows", nil)
	}
	codec := under(key, "input", "codec")
	if d.Sound(codec) && !slices.Contains([]string{"float32", "float64", "json-array"}, s.Input.Codec) {
		rule := "must be \"float32\", \"float64\" or \"json-array\" for gradients"
		if d.Written(codec) == nil {
			d.Add(codec, -1, "required for gradients: \"float32\", \"float64\" or \"json-array\"", nil)
		} else {
			d.Add(codec, -1, rule, s.Input.Codec)
		}
	}
	for _, name := range []string{"centre", "scale"} {
		if here := under(key, name); d.Written(here) != nil {
			d.Add(here, -1, "belongs to rows; a gradient is taken as it is", nil)
		}
	}
	if tables := under(key, "input", "column"); d.Written(tables) != nil {
		d.Add(tables, -1, "belongs to rows; a gradient has none", nil)
	}
	s.Input.Columns, s.Input.Column, s.Centre, s.Scale = nil, nil, nil, nil
}
