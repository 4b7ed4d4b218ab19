package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/toml"
)

// Column is a table [stream.NAME.input.column.COLUMN]. It says how a column becomes numbers of the row. A column
// without a table is the number at the path that its name gives.
type Column struct {
	// Path says where the value is. Default "": at the path that the column's name gives.
	Path string `toml:"path"`
	// Type is one of column.Types. Default "number".
	Type string `toml:"type"`
	// Default replaces a missing value: a float64, a bool or a string. Nil: a missing value has no replacement.
	Default any `toml:"default"`
	// Categories is the public list of categories.
	Categories []string `toml:"categories"`
	// Other adds a number to the row that marks values outside the list. Default false.
	Other bool `toml:"other"`
	// Baseline is a category that has no number. Default "": none.
	Baseline string `toml:"baseline"`
	// Take says which number is taken from a time. Default "": "seconds".
	Take string `toml:"take"`
	// Unit is the unit of a time that is given as a number. Default "": a number is not a time.
	Unit string `toml:"unit"`
	// UTCOffset is the time zone of Take, as an offset from UTC such as "+01:00". Default "": UTC.
	UTCOffset string `toml:"utc_offset"`
	// Transform is a function that is applied to the number plus Offset. Default "": none.
	Transform string  `toml:"transform"`
	Exponent  float64 `toml:"exponent"`
	Offset    float64 `toml:"offset"`
}

// Specs returns the specifications of the columnsin order, or nil if all columns are plain numbers.
func (in *Input) Specs() []column.Spec {
	if len(in.Column) == 0 {
		return nil
	}
	specs := column.Plain(in.Columns)
	for i, name := range in.Columns {
		if c := in.Column[name]; c != nil {
			specs[i] = column.Spec{
				Name: name, Path: c.Path, Type: c.Type, Default: c.Default, Categories: c.Categories, Other: c.Other,
				Baseline: c.Baseline,
				Take:     c.Take, Unit: c.Unit, UTCOffset: c.UTCOffset, Transform: c.Transform, Exponent: c.Exponent,
				Offset: c.Offset,
			}
		}
	}
	return specs
}

// Row returns the names of the numbers of a row, in order. A column with a list of categories has one number for each,
// with a name such as "country=DE".
func (in *Input) Row() []string {
	specs := in.Specs()
	if specs == nil {
		return in.Columns
	}
	var names []string
	for i := range specs {
		names = append(names, specs[i].Names()...)
	}
	return names
}

// what returns the noun for the quantities that each need one number in centre and scale.
func (in *Input) what() string {
	if len(in.Row()) == len(in.Columns) {
		return "columns"
	}
	return "numbers of a row: " + strings.Join(in.Row(), ", ")
}

// severalOf describes the numbers of a row that belong to the column that value names. It returns "" if value names no
// column with several numbers. Only the tables of columns may call such a column by its own name.
func (in *Input) severalOf(value any) string {
	for _, s := range in.Specs() {
		if names := s.Names(); value == s.Name && !slices.Contains(names, s.Name) {
			return "column " + s.Name + " gives the row the numbers " + strings.Join(names, ", ")
		}
	}
	return ""
}

// Fields returns the paths of the record's values that the columns use, each path once, in the order of the columns.
func (in *Input) Fields() []string {
	specs := in.Specs()
	if specs == nil {
		return in.Columns
	}
	var paths []string
	for _, s := range specs {
		path := s.Path
		if path == "" {
			path = s.Name
		}
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// readColumns reads the tables [stream.NAME.input.column.COLUMN] into the Input dst. n is their row of the schema.
func readColumns(d *toml.Document, n *toml.Node, key toml.Key, v any, dst reflect.Value) {
	t, ok := v.(map[string]any)
	if !ok {
		d.Add(key, -1, "must be a table", toml.Scalar(v))
		return
	}
	columns := map[string]*Column{}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		here := under(key, name)
		content, ok := t[name].(map[string]any)
		if !ok {
			f := d.Add(here, -1, "must be a table", toml.Scalar(t[name]))
			if n.Child(name) != nil {
				f.Hint = "write [" + under(key, "COLUMN").String() + "] with the column's name above it"
			}
			continue
		}
		c := &Column{}
		d.ReadTable(n, here, content, reflect.ValueOf(c).Elem())
		columns[name] = c
	}
	dst.Addr().Interface().(*Input).Column = columns
}

// checkColumns checks the columns of an input.
func (d *document) checkColumns(s *Stream, key toml.Key) {
	columns, tables := under(key, "input", "columns"), under(key, "input", "column")
	before := len(d.Faults)
	for _, name := range slices.Sorted(maps.Keys(s.Input.Column)) {
		if slices.Contains(s.Input.Columns, name) || !d.Sound(under(tables, name)) {
			continue
		}
		f := d.Add(under(tables, name), -1, "must be a table named after one of input.columns", name)
		for _, c := range s.Input.Columns {
			switch {
			case strings.HasPrefix(c, name+"."):
				f.Hint = "a name with dots is quoted: [" + under(tables, c).String() + "]"
			case toml.Distance(c, name) <= max(1, len(name)/3):
				f.Hint = "did you mean " + c + "?"
			}
		}
	}
	broken := map[string]bool{} // the columns whose tables have faults
	for name := range s.Input.Column {
		if broken[name] = !d.SoundBelow(under(tables, name)); broken[name] {
			d.Spoil(columns) // skips later checks: they need all columns
		}
	}
	if !d.Sound(tables) || !d.Sound(under(key, "input", "codec")) {
		return
	}
	specs := s.Input.Specs()
	if specs == nil {
		specs = column.Plain(s.Input.Columns)
	}
	_, errs := column.Compile(s.Input.Codec, specs)
	for i, err := range errs {
		for _, err := range fault.All(err) {
			f := err.(*fault.Fault)
			at := under(tables, specs[i].Name, f.Key)
			switch {
			case broken[specs[i].Name]:
			case f.Key == "path" && specs[i].Path == "":
				d.Add(columns, i, f.Rule, f.Value)
			default:
				d.Add(at, -1, f.Rule, f.Value)
			}
		}
	}
	if len(d.Faults) > before {
		d.Spoil(columns)
		return
	}
	seen := map[string]bool{}
	if !d.Sound(columns) {
		return
	}
	for i := range specs {
		for _, name := range specs[i].Names() {
			if seen[name] {
				d.Add(columns, i, "must not give two numbers of a row the same name", name)
			}
			seen[name] = true
		}
	}
}

// hasPaths reports whether the columns of a codec are named by paths, in which brackets hold an index.
func hasPaths(codec string) bool { return !column.Pathless(codec) && codec != "csv" }

// canonicalColumns adds the columns' tables to the canonical form of an input. It omits a table that changes nothing,
// and a path that equals the column's name. A path with an index is always there: earlier versions read brackets as
// part of a name. An epoch that they began must not continue, because it would now read other values.
func (in *Input) canonicalColumns(t map[string]any) {
	n := root().At("stream", "NAME", "input", "column", "COLUMN")
	tables := map[string]any{}
	for _, name := range in.Columns {
		own := map[string]any{}
		path := name
		if c := in.Column[name]; c != nil {
			own = n.Canonical(reflect.ValueOf(c).Elem())
			if c.Path != "" {
				path = c.Path
			}
		}
		delete(own, "path")
		parsed, _ := column.Parse(path)
		if path != name || hasPaths(in.Codec) && column.Indexed(parsed) {
			own["path"] = path
		}
		if len(own) > 0 {
			tables[name] = own
		}
	}
	delete(t, "column")
	if len(tables) > 0 {
		t["column"] = tables
	}
}
