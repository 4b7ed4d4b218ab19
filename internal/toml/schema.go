package toml

import (
	"reflect"
	"strings"
	"unicode"

	burnt "github.com/BurntSushi/toml"
)

// Key is a dotted key, one element for each part.
type Key = burnt.Key

// Kind is the type of a key's value.
type Kind struct {
	// Wants completes the message "must be …" about a value of another type.
	Wants string
	// Name is the name of the kind in the reference.
	Name string
	// Read converts a value. It returns nil and "" for a value of another type, or the rule that the value violates.
	// Nil for the kinds of this package.
	Read func(v any) (value any, broken string)
	// Plain returns a value in canonical form. Nil: the value itself.
	Plain func(value any) any
}

// These are the kinds of values. File is the path of a file whose content is never printed. Number is an integer or a
// float, read as float64. Span is a string with a duration and its unit. Spread is one number or a list. Wholes is one
// integer or a list. Off is "off" or a number. AnyValue is a number, a boolean or a string.
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

// Flags of a key. If a table has the flag Outside, it applies to everything in the table.
type Flags int

const (
	// Required means that the key has no default and must be given.
	Required Flags = 1 << iota
	// Usual means that the key is required in cases that only the caller knows.
	Usual
	// Flat marks a table that exists in the file, but not in the struct and the canonical form. Its keys are fields of
	// the struct of the surrounding table, and belong to that table in the canonical form.
	Flat
	// Outside means that the key is not in the canonical form.
	Outside
	// Found means that the key may be "auto", which is read as NaN.
	Found
	// Always means that the key is in the canonical form even if it has its default.
	Always
	// Every means that the key may be "all", which is read as [All].
	Every
)

// All stands for "all" in a list of integers.
const All = -1

// Row describes a key.
type Row struct {
	Path  string // dotted path; the row of a table precedes the rows of its keys
	Kind  *Kind
	Flags Flags
	Def   string   // the default as TOML text; "" if there is none
	Says  string   // the default in words, if it depends on other keys
	Words []string // the allowed words, if the value is one of a list of words
	Of    string   // the choice to which the table belongs; with another choice its keys have no value
	Rule  Rule
	Doc   string // text for the reference
	// Named reads a table whose subtables have names that the file chooses. The only row below it, n, describes such a
	// subtable. dst is the struct of the surrounding table. A required table is read even if the file does not have it;
	// then v is nil.
	Named func(d *Document, n *Node, key Key, v any, dst reflect.Value)
}

// Rule is a condition on a value, or on each element of a list, in addition to its type.
type Rule struct {
	Text string         // completes "must be …"
	OK   func(any) bool // nil: the caller makes the check; Text is only for the reference
}

// MustBe returns the rule that text describes and ok checks.
func MustBe(text string, ok func(any) bool) Rule { return Rule{text, ok} }

// Node is a row in the tree of tables.
type Node struct {
	Row
	Name     string // the last part of the row's path
	Parent   *Node
	Children []*Node
	fallback any      // the default, as the TOML package parses it; nil if there is none
	former   []string // paths of removed keys; only in the top node
}

// New returns the tree of the rows. former are the paths of removed keys that had no effect.
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

// named reports whether the file chooses the name of table n.
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

// At returns the row that a path of names leads to, nil if there is none.
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

// fallback parses the default in k.Def.
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

// Default returns the value that the key has if a file does not set it, nil if the row has no default.
//
// Errors: the default violates its own row.
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

// In returns the field of struct v into which row n is read. For a table with the flag Flat it returns v itself.
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
