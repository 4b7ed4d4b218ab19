package toml

import (
	"bytes"
	"encoding"
	"encoding/json"
	"maps"
	"math"
	"reflect"
)

// Canonical returns the keys of table n that belong to the canonical form, with their values in struct v. A key without
// the flag Always is there only if it differs from its default, so that adding a key to the schema changes nothing.
func (n *Node) Canonical(v reflect.Value) map[string]any {
	t := map[string]any{}
	for _, c := range n.Children {
		f := c.In(v)
		switch {
		case c.Has(Outside) || n.Of != "" && f.IsZero() || f.Kind() == reflect.Map:
		case c.Has(Flat):
			maps.Copy(t, c.Canonical(f))
		case c.Kind == Table && f.Kind() == reflect.Pointer:
			if !f.IsNil() {
				t[c.Name] = c.Canonical(f.Elem())
			}
		case c.Kind == Table:
			t[c.Name] = c.Canonical(f)
		case c.Has(Always) || !c.isDefault(f):
			t[c.Name] = c.Plain(f)
		}
	}
	return t
}

// isDefault reports whether f equals the default of its key. Without a default in the row, that is the zero value.
func (n *Node) isDefault(f reflect.Value) bool {
	value, err := n.Default()
	switch {
	case err != nil:
		return false
	case value == nil:
		return f.IsZero()
	}
	same := reflect.New(f.Type()).Elem()
	assign(same, value)
	return reflect.DeepEqual(f.Interface(), same.Interface())
}

// Plain returns the value of the key in canonical form: an empty list for a nil list, "off" for a missing number,
// "auto" for a number that is found, and the text form of a value that has one.
func (n *Node) Plain(f reflect.Value) any {
	if f.Kind() == reflect.Pointer {
		if f.IsNil() {
			return "off"
		}
		f = f.Elem()
	}
	if f.Kind() == reflect.Slice && f.IsNil() {
		return []any{}
	}
	if m, ok := f.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			panic("toml: " + err.Error())
		}
		return string(text)
	}
	if n.Kind.Plain != nil {
		return n.Kind.Plain(f.Interface())
	}
	switch x := f.Interface().(type) {
	case float64:
		return autoOr(x)
	case []float64:
		all := make([]any, len(x))
		for i, v := range x {
			all[i] = autoOr(v)
		}
		return all
	}
	return f.Interface()
}

// autoOr returns x, or "auto" if x is NaN, which stands for a number to be found.
func autoOr(x float64) any {
	if math.IsNaN(x) {
		return "auto"
	}
	return x
}

// JSON returns v as JSON without blanks, with sorted keys.
func JSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("toml: " + err.Error()) // unreachable: numbers are finite, strings are UTF-8
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
