package config

import (
	"slices"
	"strconv"

	"github.com/BurntSushi/toml"
)

// adamFollows is follows for keys of [stream.NAME.adam].
var adamFollows = map[string][]string{
	"dim":           {"mode"},
	"model":         {"mode"},
	"model.target":  {"columns", "mode"},
	"model.classes": {"model.loss"},
	"model.hidden":  {"model.loss"},
	"tau":           {"method"},
	"nu":            {"method"},
	"mean_clip":     {"method", "clip"},
	"v_floor":       {"method", "negative"},
	"negative":      {"method"},
	"method":        {"step"},
	"update_clip":   {"negative"},
	"schedule":      {"horizon"},
	"factorization": {"horizon", "dim"},
}

// checkAdam has the mechanism's package check its configuration.
func (d *document) checkAdam(s *Stream, key toml.Key) {
	a := s.Adam
	a.Step, a.Horizon, a.Endless = s.Step, s.Horizon, s.OnHorizon == "continue"
	if a.Model != nil && a.Mode == "model" {
		a.Columns, a.Target = len(s.Input.Columns), slices.Index(s.Input.Columns, a.Model.Target)
	}
	a.Defaults()
	d.noteFaults(key, "adam", a.Validate(), adamFollows, func(missing string) string {
		switch missing {
		case "tau":
			return "required for method " + strconv.Quote(a.Method)
		case "dim":
			return "required for mode " + strconv.Quote(a.Mode)
		case "model.classes", "model.hidden":
			return "required for loss " + strconv.Quote(a.Model.Loss)
		}
		return ""
	})
}

// checkGradients checks the input of a stream whose records are gradients: their
// numbers have no names, and no scale of their own.
func (d *document) checkGradients(s *Stream, key toml.Key) {
	columns := under(key, "input", "columns")
	if d.written(columns) != nil {
		d.add(columns, -1, "belongs to rows; a gradient has adam.dim numbers, and mode \"model\" takes rows", nil)
	}
	codec := under(key, "input", "codec")
	if d.sound(codec) && !slices.Contains([]string{"float32", "float64", "json-array"}, s.Input.Codec) {
		rule := "must be \"float32\", \"float64\" or \"json-array\" for gradients"
		if d.written(codec) == nil {
			d.add(codec, -1, "required for gradients: \"float32\", \"float64\" or \"json-array\"", nil)
		} else {
			d.add(codec, -1, rule, s.Input.Codec)
		}
	}
	for _, name := range []string{"centre", "scale"} {
		if here := under(key, name); d.written(here) != nil {
			d.add(here, -1, "belongs to rows; a gradient is taken as it is", nil)
		}
	}
	s.Input.Columns, s.Centre, s.Scale = nil, nil, nil
}
