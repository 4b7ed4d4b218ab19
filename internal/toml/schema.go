package toml

import (
	"reflect"
	"strings"
	"unicode"

	burnt "github.com/BurntSushi/toml"
)

// Key is a dotted key, part by part.
type Key = burnt.Key

// Kind is the type of a key's value.
type Kind struct {
	// Wants completes "must be" in the message about a value of another type.
	Wants string
	// Name is the kind in the reference.
	Name string
	// Read reads a value. It returns nil and "" for one of another type, or the rule that the value breaks. nil
	// for the kinds of this package.
	Read func(v any) (value any, broken string)
	// Plain returns a value as the canonical form has it. nil: as it is.
	Plain func(value any) any
}

// The kinds of values. A key of kind File has a path, and what stands there is never printed. Number is an integer
// or a float, and read as float64. Span is a string: a duration with its unit. Spread is one number or a list, and
// Wholes one integer or a list. Off is "off" or a number. AnyValue is a number, a boolean or a string.
var (
	Table    = &Kind{}
	Text     = &Kind{Wants: "a string", Name: "string"}
	File     = &Kind{Wants: "the path of a file, a string", Name: "path"}
	Boolean  = &Kind{Wants: "true or false", Name: "boolean"}
	Whole    = &Kind{Wants: "an integer", Name: "integer"}
	Number   = &Kind{Wants: "a number", Name: "number"}
	Span     = &Kind{Wants: `a duration such as "200ms", in quotes and with its unit`, Name: "duration"}
	Texts    = &Kind{Wants: "a list of strings", Name: "list of strings"}
	Numbers  = &Kind{Wants: "a list of numbers", Name: "list of numbers"}
	Spread   = &Kind{Wants: "a number or a list of numbers", Name: "number, or one per column"}
	Wholes   = &Kind{Wants: "an integer or a list of integers", Name: "integer, list of integers, or `\"all\"`"}
	Off      = &Kind{Wants: `"off" or a number`, Name: "`\"off\"` or number"}
	AnyValue = &Kind{Wants: "a number, true, false or a string", Name: "number, boolean or string"}
)

// Flags of a key. Outside holds for everything in a table that has it.
type Flags int

const (
	// Required: there is no default.
	Required Flags = 1 << iota
	// Usual: required, but only the caller knows when.
	Usual
	// Flat: the file has a table, the struct and the canonical form do not. The keys of the table
	// are fields of the struct of the table around it, and are in that table in the canonical form.
	Flat
	// Outside: not in the canonical form.
	Outside
	// Found: may be "auto". It is read as NaN.
	Found
	// Always: in the canonical form even if it has its default.
	Always
	// Every: may be "all". It is read as [All].
	Every
)

// All stands for "all" in a list of integers.
const All = -1

// Row is what is known of a key.
type Row struct {
	Path  string // dotted; the rows of tables stand before those of their keys
	Kind  *Kind
	Flags Flags
	Def   string   // the default as TOML text; "" where there is none
	Says  string   // the default in words, where it follows from other keys
	Words []string // an enumeration's words
	Of    string   // the choice that the table belongs to; with another one its keys have no value
	Rule  Rule
	Doc   string // one line for the reference
	// Named reads a table in which the file gives tables names of its own. The only row below is that of such a
	// table, n. dst is the struct of the table around. A required table is read also where the file has none; then
	// v is nil.
	Named func(d *Document, n *Node, key Key, v any, dst reflect.Value)
}

// Rule is what a value, or each element of a list, must satisfy besides its type.
type Rule struct {
	Text string         // completes "must be"
	OK   func(any) bool // nil: the caller checks it, the text is for the reference
}

// MustBe returns the rule that a value must be what text says and ok reports.
func MustBe(text string, ok func(any) bool) Rule { return Rule{text, ok} }

// Node is a row in the tree of tables.
type Node struct {
	Row
	Name     string // the last part of the path
	Parent   *Node
	Children []*Node
	fallback any      // the default as the TOML package reads it; nil where there is none
	former   []string // of the top
}

// New returns the tree of the rows. former are the paths of keys that are no longer there, and that did nothing
// but what happens without them.
func New(rows []Row, former ...string) *Node {
	top := &Node{former: former}
	for _, k := range rows {
		names := strings.Split(k.Path, ".")
		parent := top.At(names[:len(names)-1]...)
		k.Flags |= parent.Flags & Outside
		n := &Node{Row: k, Name: names[len(names)-1], Parent: parent, fallback: k.fallback()}
		parent.Children = append(parent.Children, n)
	}
	return top
}

// named reports whether the file gives tables like n their names.
func (n *Node) named() bool { return n.Parent != nil && n.Parent.Named != nil }

// Child returns the row of the named key, nil if there is none.
func (n *Node) Child(name string) *Node {
	for _, c := range n.Children {
		if c.Name == name || c.named() {
			return c
		}
	}
	return nil
}

// At returns the row that the names lead to, one below the other, nil if there is none.
func (n *Node) At(names ...string) *Node {
	for _, name := range names {
		if n = n.Child(name); n == nil {
			return nil
		}
	}
	return n
}

// Has reports whether all flags f are set.
func (n *Node) Has(f Flags) bool { return n.Flags&f == f }

// fallback parses the default.
func (k *Row) fallback() any {
	if k.Def == "" {
		return nil
	}
	var v struct{ Default any }
	if _, err := burnt.Decode("default = "+k.Def, &v); err != nil {
		panic("toml: default of " + k.Path + ": " + err.Error())
	}
	return v.Default
}

// Default returns the value of the key where a file has none, nil if the row has no default.
//
// Errors: the default breaks its own row.
func (n *Node) Default() (any, error) {
	if n.fallback == nil {
		return nil, nil
	}
	d := Of("default", nil)
	value, ok := d.convert(n, nil, n.fallback)
	if !ok {
		return nil, d.Faults
	}
	return value, nil
}

// In returns the field of struct v that row n is read into. For a flat table it returns v
// itself.
func (n *Node) In(v reflect.Value) reflect.Value {
	if n.Has(Flat) {
		return v
	}
	return Field(v, n.Name)
}

// Field returns the struct field whose key is name, the zero Value if there is none.
func Field(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		if FieldKey(v.Type().Field(i)) == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// FieldKey returns the key of a struct field: its tag "toml" or, without one, its name in snake case. ClipX has the key
// clip_x, and PSDFloor has psd_floor.
func FieldKey(f reflect.StructField) string {
	if tag, ok := f.Tag.Lookup("toml"); ok {
		return tag
	}
	var key strings.Builder
	for i, r := range f.Name {
		if unicode.IsUpper(r) && i > 0 {
			before, after := rune(f.Name[i-1]), rune('A')
			if i+1 < len(f.Name) {
				after = rune(f.Name[i+1])
			}
			if !unicode.IsUpper(before) || unicode.IsLower(after) {
				key.WriteByte('_')
			}
		}
		key.WriteRune(unicode.ToLower(r))
	}
	return key.String()
}
