package toml

import (
	"encoding"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// ReadTable reads the table t of row n into the struct dst. If the files do not have the table, t is nil and ReadTable
// sets the defaults.
func (d *Document) ReadTable(n *Node, key Key, t map[string]any, dst reflect.Value) {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if n.Child(name) == nil {
			d.unknown(n, append(key[:len(key):len(key)], name))
		}
	}
	for _, c := range n.Children {
		here := append(key[:len(key):len(key)], c.Name)
		v, given := t[c.Name]
		switch {
		case c.Named != nil:
			if given || c.Has(Required) {
				c.Named(d, c.Children[0], here, v, dst)
			}
		case c.Kind != Table:
			d.readKey(c, here, v, given, t == nil, dst)
		case given:
			d.readSubtable(c, here, v, dst)
		case c.Has(Required):
			d.Add(here, -1, "required table, with "+strings.Join(c.mustHave(), ", "), nil)
		default:
			// A pointer stays nil if the file does not have its table.
			if f := c.In(dst); f.Kind() == reflect.Struct {
				d.ReadTable(c, here, nil, f)
			}
		}
	}
}

// mustHave returns the names of the keys that table n requires.
func (n *Node) mustHave() (names []string) {
	for _, c := range n.Children {
		if c.Has(Required) || c.Has(Usual) {
			names = append(names, c.Name)
		}
	}
	return names
}

func (d *Document) readSubtable(n *Node, key Key, v any, dst reflect.Value) {
	t, ok := v.(map[string]any)
	if !ok {
		if slices.ContainsFunc(n.Children, func(c *Node) bool { return c.Kind == File }) {
			v = nil // not shown: it may be a secret, which belongs in a file
		}
		d.Add(key, -1, "must be a table", Scalar(v))
		return
	}
	f := n.In(dst)
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	d.ReadTable(n, key, t, f)
}

// readKey reads one value into its field of dst. If the file does not have the key, it sets the default.
func (d *Document) readKey(n *Node, key Key, v any, given, noTable bool, dst reflect.Value) {
	f := Field(dst, n.Name)
	if !given {
		switch def := n.fallback; {
		case n.Has(Required) && !noTable:
			rule := "required"
			if len(n.Words) > 0 {
				rule += ", " + Alternatives(n.Words)
			}
			d.Add(key, -1, rule, nil)
		case def != nil:
			if value, ok := d.convert(n, key, def); ok {
				assign(f, value)
			}
		}
		return
	}
	if value, ok := d.convert(n, key, v); ok {
		assign(f, value)
	}
}

// assign puts a converted value into its field.
func assign(f reflect.Value, value any) {
	if s, ok := value.(string); ok && f.CanAddr() {
		if u, ok := f.Addr().Interface().(encoding.TextUnmarshaler); ok {
			if err := u.UnmarshalText([]byte(s)); err != nil {
				panic("toml: a type does not accept a word of its schema: " + err.Error())
			}
			return
		}
	}
	v := reflect.ValueOf(value)
	if f.Kind() == reflect.Pointer {
		if value == "off" {
			f.SetZero()
			return
		}
		p := reflect.New(f.Type().Elem())
		p.Elem().Set(v.Convert(f.Type().Elem()))
		f.Set(p)
		return
	}
	f.Set(v.Convert(f.Type()))
}
