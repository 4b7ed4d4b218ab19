package column

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/fault"
)

// Spec is the specification of a column. With only a Name it describes a column of plain numbers, whose path is the
// name.
type Spec struct {
	// Name is the column's name.
	Name string
	// Path is the path of the column's value, in the codec's notation; empty: Name is the path.
	Path string
	// Type is one of [Types]; empty: "number".
	Type string
	// Default replaces a value that is missing or null, before the transform. It is a float64; for "bool" it may be a
	// bool, for categories a string. Nil: a record without the value gives no row.
	Default any
	// Categories is the public list of a column of type "category", or of a "timestamp" whose Take gives whole numbers.
	// Each category has a number in the row: 1 if the value is that category, else 0.
	Categories []string
	// Other adds a number for values outside the categories. Without it, a record with such a value gives no row.
	Other bool
	// Baseline is a category, or "other", that has no number: for it all numbers are 0. Empty: none.
	Baseline string
	// Take says which number is taken from a time. It is one of [Taking]; empty: "seconds".
	Take string
	// Unit is the unit of a time that is given as a number since 1970-01-01T00:00Z: "s", "ms", "us" or "ns". Empty: a
	// number is not a time.
	Unit string
	// UTCOffset is the offset of the clock of Take from UTC, such as "+01:00"; empty: 0. A time that is written without
	// an offset is read as a time of that clock.
	UTCOffset string
	// Transform is one of [Transforms]. It is applied to the sum of the value and Offset; empty: none.
	Transform string
	// Exponent is the exponent of the transform "power".
	Exponent float64
	// Offset is added before the transform.
	Offset float64
}

// Types are the types of a column.
var Types = []string{"number", "decimal", "bool", "category", "enum", "timestamp"}

// Transforms are the functions of a number x that a column can apply, where x is the value plus Offset.
var Transforms = []string{"log", "log1p", "sqrt", "power"}

// Units are the units of a time that is given as a number.
var Units = []string{"s", "ms", "us", "ns"}

// Taking returns the possible values of [Spec.Take].
func Taking() []string {
	names := make([]string, len(taking))
	for i := range taking {
		names[i] = taking[i].name
	}
	return names
}

// transform is a function of a number. Where it is undefined, it returns NaN or ±Inf.
type transform func(x float64) float64

const (
	// maxExponent is the largest exponent of a power.
	maxExponent = 16
	// maxCategories is the largest length of a list of categories.
	maxCategories = 1 << 16
	// maxPath is the largest number of elements in a path. Documents are not nested more deeply.
	maxPath = 128
	// maxDecimal is the largest length of a text that is read as a number.
	maxDecimal = 1 << 10
	// otherName names the number that marks values outside the categories.
	otherName = "other"
)

// New returns the column of a specification. Its errors are faults that name the fields of [Spec] in lower case with
// underscores. path is the notation of the path; nil: the column has no path.
func New(s Spec, path *Syntax) (*Column, error) {
	var faults fault.List
	if s.Type == "" {
		s.Type = "number"
	}
	c := &Column{spec: s, other: refused, names: []string{s.Name}}
	faults.Check(slices.Contains(Types, s.Type), "type", "must be "+fault.Quoted(Types, "or"), s.Type)
	if path != nil {
		text := s.Path
		if text == "" {
			text = s.Name
		}
		var ok bool
		c.path, ok = path.read(text)
		faults.Check(ok, "path", path.rule, text)
		faults.Check(len(c.path) <= maxPath, "path",
			fmt.Sprintf("must have at most %d names and indexes", maxPath), nil)
	} else {
		faults.Check(s.Path == "", "path",
			"must not be set for this codec: its values have no names, only an order", s.Path)
	}
	c.setTime(&s, &faults)
	c.setTransform(&s, &faults)
	c.setCategories(&s, &faults)
	switch s.Type {
	case "decimal":
		c.maxText = maxDecimal
	case "timestamp":
		c.maxText = maxTime
	case "category":
		for text := range c.categories {
			c.maxText = max(c.maxText, len(text))
		}
	}
	if len(faults) == 0 && s.Default != nil {
		c.setDefault(s.Default, &faults)
	}
	if len(faults) > 0 {
		return nil, faults.Err()
	}
	return c, nil
}

func (c *Column) setTime(s *Spec, faults *fault.List) {
	if s.Type != "timestamp" {
		for _, k := range []struct{ key, value string }{{"take", s.Take}, {"unit", s.Unit},
			{"utc_offset", s.UTCOffset}} {
			faults.Check(k.value == "", k.key, `must not be set unless type = "timestamp"`, k.value)
		}
		return
	}
	take := s.Take
	if take == "" {
		take = "seconds"
	}
	whole := false
	for _, t := range taking {
		if t.name == take {
			c.take, whole = t.of, t.whole
		}
	}
	faults.Check(c.take != nil, "take", "must be "+fault.Quoted(Taking(), "or"), s.Take)
	faults.Check(c.take == nil || whole ||
		len(s.Categories) == 0, "categories",
		"must not be set with this take, whose values are not whole numbers", take)
	if s.Unit != "" {
		i := slices.Index(Units, s.Unit)
		faults.Check(i >= 0, "unit", "must be "+fault.Quoted(Units, "or"), s.Unit)
		c.perSecond = 1
		for range max(0, i) {
			c.perSecond *= 1000
		}
	}
	if s.UTCOffset != "" {
		var ok bool
		c.offset, ok = readOffset([]byte(s.UTCOffset))
		faults.Check(ok, "utc_offset", `must be an offset of at most 18 hours, such as "+01:00"`, s.UTCOffset)
	}
}

func (c *Column) setTransform(s *Spec, faults *fault.List) {
	faults.Check(s.Offset-s.Offset == 0, "offset", "must be finite", s.Offset)
	faults.Check(s.Transform == "power" ||
		s.Exponent == 0, "exponent", `must not be set unless transform = "power"`, s.Exponent)
	if s.Transform == "" {
		faults.Check(s.Offset == 0, "offset", "must not be set without a transform", s.Offset)
		return
	}
	faults.Check(len(s.Categories) == 0, "transform", "must not be set for categories", s.Transform)
	offset, exponent := s.Offset, s.Exponent
	switch s.Transform {
	case "log":
		c.transform = func(x float64) float64 { return logarithm(x + offset) }
	case "log1p":
		c.transform = func(x float64) float64 { return logarithm1p(x + offset) }
	case "sqrt":
		c.transform = func(x float64) float64 { return math.Sqrt(x + offset) }
	case "power":
		ok := exponent != 0 && exponent >= -maxExponent && exponent <= maxExponent
		faults.Check(ok, "exponent", fmt.Sprintf("must be -%d to %d, and not 0", maxExponent, maxExponent), exponent)
		c.transform = func(x float64) float64 { return power(x+offset, exponent) }
	default:
		faults.Add("transform", "must be "+fault.Quoted(Transforms, "or"), s.Transform)
	}
}

func (c *Column) setCategories(s *Spec, faults *fault.List) {
	if len(s.Categories) == 0 {
		faults.Check(s.Type != "category", "categories", "required: the public list of categories", nil)
		faults.Check(!s.Other, "other", "must not be set without categories", s.Other)
		faults.Check(s.Baseline == "", "baseline", "must not be set without categories", s.Baseline)
		return
	}
	if s.Type != "category" && s.Type != "timestamp" {
		faults.Add("categories", `must not be set unless type is "category" or "timestamp"`, nil)
		return
	}
	faults.Check(len(s.Categories) <= maxCategories, "categories", fmt.Sprintf("must be at most %d", maxCategories),
		len(s.Categories))
	faults.Check(s.Baseline == "" || slices.Contains(s.Categories, s.Baseline) || s.Other && s.Baseline == otherName,
		"baseline", "must be one of the categories", s.Baseline)
	c.names, c.categories = s.Names(), make(map[string]int, len(s.Categories))
	next := 0
	place := func(text string) int {
		if s.Baseline != "" && text == s.Baseline {
			return none
		}
		next++
		return next - 1
	}
	for _, text := range s.Categories {
		_, twice := c.categories[text]
		faults.Check(!twice, "categories", "must not contain a category twice", text)
		faults.Check(utf8.ValidString(text), "categories", "must be valid UTF-8", text)
		c.categories[text] = place(text)
	}
	if s.Other {
		_, twice := c.categories[otherName]
		faults.Check(!twice, "categories", `must not contain "other", which other = true adds`, otherName)
		c.other = place(otherName)
	}
	faults.Check(len(c.names) > 0, "categories", "must contain a category other than the baseline", nil)
}

func (c *Column) setDefault(value any, faults *fault.List) {
	fallback := make([]float64, c.Width())
	switch v := value.(type) {
	case string:
		switch {
		case c.categories == nil:
			faults.Add("default", "must be a number", v)
			return
		case c.other == refused || v != otherName:
			_, ok := c.categories[v]
			faults.Check(ok, "default", "must be one of the categories", v)
		}
		c.putCategory(fallback, &Value{Kind: Text, Text: []byte(v)})
	case bool:
		if c.spec.Type != "bool" {
			faults.Add("default", "must be "+c.wants(), v)
			return
		}
		x := 0.0
		if v {
			x = 1
		}
		faults.Check(c.finish(fallback, x) == OK, "default", "must have a finite value after the transform", v)
	case float64:
		if c.categories != nil {
			faults.Add("default", "must be "+c.wants(), v)
			return
		}
		faults.Check(c.finish(fallback, v) == OK, "default", "must be finite, before and after the transform", v)
	default:
		faults.Add("default", "must be "+c.wants(), nil)
	}
	c.fallback = fallback
}

// wants describes the values that the column's default may have; messages quote it.
func (c *Column) wants() string {
	switch {
	case c.categories != nil:
		return "one of the categories"
	case c.spec.Type == "bool":
		return "true, false or a number"
	}
	return "a number"
}
