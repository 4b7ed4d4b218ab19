package column

import (
	"strconv"

	"github.com/streamdp/streamdp/internal/fault"
)

// Width returns how many numbers a valid column has in a row.
func (s *Spec) Width() int {
	n := len(s.Categories)
	if n == 0 {
		return 1
	}
	if s.Other {
		n++
	}
	if s.Baseline != "" {
		n--
	}
	return n
}

// Plain reports whether the column's only number in the row is the value itself, at any path.
func (s *Spec) Plain() bool {
	return (s.Type == "" || s.Type == "number") && s.Transform == "" && s.Default == nil
}

// Names returns the names of the column's numbers: the column's own, or for categories "country=DE" and so on.
func (s *Spec) Names() []string {
	if len(s.Categories) == 0 {
		return []string{s.Name}
	}
	names := make([]string, 0, len(s.Categories)+1)
	for _, c := range s.Categories {
		if c != s.Baseline || s.Baseline == "" {
			names = append(names, s.Name+"="+c)
		}
	}
	if s.Other && s.Baseline != otherName {
		names = append(names, s.Name+"="+otherName)
	}
	return names
}

// Plain returns specifications of columns of plain numbers with these names.
func Plain(names []string) []Spec {
	specs := make([]Spec, len(names))
	for i, name := range names {
		specs[i].Name = name
	}
	return specs
}

// Pathless reports whether a codec's columns have no paths: they follow one another in a record, and their names are
// labels.
func Pathless(codec string) bool {
	return codec == "json-array" || codec == "float64" || codec == "float32"
}

// Position parses the position of a cell, counted from "1", into an index. It accepts only the spelling that Itoa
// writes, so that "1" and "01" cannot name the same cell.
func Position(s string) (path []Element, ok bool) {
	p, err := strconv.Atoi(s)
	if err != nil || p < 1 || p > maxIndex || strconv.Itoa(p) != s {
		return nil, false
	}
	return []Element{{Index: p - 1}}, true
}

// Compile returns the columns of a codec, one for each specification. errs[i] holds the faults of the i-th
// specification; nil if it has none. They name the fields of [Spec] in lower case with underscores. All errs are nil if
// and only if all columns are built.
//
// Several columns may read the same value. It is a fault if the value of one column contains that of another, or if
// paths use the same value both as an array and as an object.
func Compile(codec string, specs []Spec) (columns []*Column, errs []error) {
	lists := make([]fault.List, len(specs))
	columns, errs = make([]*Column, len(specs)), make([]error, len(specs))
	path := Paths
	switch {
	case Pathless(codec):
		path = nil
	case codec == "csv":
		path = Positions
	}
	for i, s := range specs {
		c, err := New(s, path)
		columns[i], lists[i] = c, fault.All(err)
		if c == nil {
			continue
		}
		switch list := &lists[i]; c.Type() {
		case "number":
			list.Check(codec != "float64" && codec != "float32" ||
				s.Default == nil, "default", "must not be set for packed numbers, which are never missing", s.Default)
		case "enum":
			list.Check(codec == "avro" ||
				codec == "protobuf", "type",
				`must not be "enum" for this codec, whose values have no enumerations`, s.Type)
		default:
			list.Check(codec != "float64" && codec != "float32", "type", `must be "number" for packed numbers`, s.Type)
		}
	}
	checkPaths(columns, lists)
	for i := range lists {
		errs[i] = lists[i].Err()
	}
	return columns, errs
}

// checkPaths reports columns whose paths contradict one another. It skips nil columns, which already have faults.
func checkPaths(columns []*Column, lists []fault.List) {
	const names, indexes = 1, 2
	// Both maps are by path: whole has the values of columns, around the types of the values that contain them.
	whole, around := map[string]bool{}, map[string]int{}
	in := func(e Element) int {
		if e.Index >= 0 {
			return indexes
		}
		return names
	}
	for _, c := range columns {
		if c == nil || c.path == nil {
			continue
		}
		whole[Format(c.path)] = true
		for k, e := range c.path {
			around[Format(c.path[:k])] |= in(e)
		}
	}
	for i, c := range columns {
		if c == nil || c.path == nil {
			continue
		}
		for k := range c.path {
			outer := Format(c.path[:k])
			if k > 0 && whole[outer] {
				lists[i].Add("path", "must not lie inside another column", Format(c.path))
				break
			}
			if around[outer] == names|indexes {
				lists[i].Add("path", "must not use one value both as an array and as an object", Format(c.path))
				break
			}
		}
	}
}
