package config

import (
	"slices"

	"github.com/streamdp/streamdp/internal/toml"
)

// checkGradients checks the input of a stream whose records are gradients. Such a stream has no columns, centre or
// scale.
func (d *document) checkGradients(s *Stream, key toml.Key) {
	input := under(key, "input")
	d.refuse(input, "must be absent for gradients, which have adam.dim numbers; only mode \"model\" has "+
		"columns", "columns")
	codec := under(input, "codec")
	if d.Sound(codec) && !slices.Contains([]string{"float32", "float64", "json-array"}, s.Input.Codec) {
		rule := "must be \"float32\", \"float64\" or \"json-array\" for gradients"
		if d.Written(codec) == nil {
			d.Add(codec, -1, "required for gradients: \"float32\", \"float64\" or \"json-array\"", nil)
		} else {
			d.Add(codec, -1, rule, s.Input.Codec)
		}
	}
	d.refuse(key, "must be absent for gradients, which are not scaled", "centre", "scale")
	d.refuse(input, "must be absent for gradients, which have no columns", "column")
	s.clearRows()
}

// clearRows clears settings that only streams with rows have. Defaults may have set them.
func (s *Stream) clearRows() {
	s.Input.Columns, s.Input.Column, s.Centre, s.Scale = nil, nil, nil, nil
}
