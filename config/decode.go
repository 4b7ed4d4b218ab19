package config

import (
	"encoding"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// readTable reads the table of schema row n into the struct dst. If the file has no such
// table, t is nil, and readTable sets the defaults.
func (d *document) readTable(n *node, key toml.Key, t map[string]any, dst reflect.Value) {
	for _, name := range sortedKeys(t) {
		if n.child(name) == nil {
			d.unknown(n, append(key[:len(key):len(key)], name))
		}
	}
	for _, c := range n.children {
		here := append(key[:len(key):len(key)], c.name)
		v, given := t[c.name]
		switch {
		case c.path == "stream":
			d.readStreams(c.child("NAME"), here, v)
		case c.kind != table:
			d.readKey(c, here, v, given, t == nil, dst)
		case c.child("COLUMN") != nil:
			if given {
				d.readColumns(c.child("COLUMN"), here, v, c.in(dst))
			}
		case given:
			d.readSubtable(c, here, v, dst)
		case c.has(required):
			d.add(here, -1, "required table, with "+strings.Join(c.mustHave(), ", "), nil)
		default:
			// A mechanism is a pointer. It stays nil if the file has no table for it.
			if f := c.in(dst); f.Kind() == reflect.Struct {
				d.readTable(c, here, nil, f)
			}
		}
	}
}

var streamName = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// readStreams reads the tables [stream.NAME], of which n is the schema row.
func (d *document) readStreams(n *node, key toml.Key, v any) {
	t, ok := v.(map[string]any)
	if v != nil && !ok {
		d.add(key, -1, "must be a table", scalar(v))
		return
	}
	if len(t) == 0 {
		d.add(key, -1, "at least one [stream.NAME] is required", nil)
	}
	for _, name := range sortedKeys(t) {
		here := append(key[:len(key):len(key)], name)
		if !streamName.MatchString(name) {
			d.note(here, -1, "the name of a stream must be 1 to 63 of a-z, 0-9, _ and -", nil)
		}
		content, ok := t[name].(map[string]any)
		if !ok {
			d.add(here, -1, "must be a table", scalar(t[name]))
			continue
		}
		s := &Stream{Name: name}
		d.readTable(n, here, content, reflect.ValueOf(s).Elem())
		d.streams = append(d.streams, s)
	}
}

// mustHave returns the names of the required keys of a table.
func (n *node) mustHave() (names []string) {
	for _, c := range n.children {
		if c.has(required) || c.has(usual) {
			names = append(names, c.name)
		}
	}
	return names
}

func (d *document) readSubtable(n *node, key toml.Key, v any, dst reflect.Value) {
	t, ok := v.(map[string]any)
	if !ok {
		if slices.ContainsFunc(n.children, func(c *node) bool { return c.kind == file }) {
			v = nil // it may be what should stand in a file
		}
		d.add(key, -1, "must be a table", scalar(v))
		return
	}
	f := n.in(dst)
	if f.Kind() == reflect.Pointer {
		f.Set(reflect.New(f.Type().Elem()))
		f = f.Elem()
	}
	d.readTable(n, key, t, f)
}

// readKey reads one value into its field of dst. If the file has no value, it sets the
// default.
func (d *document) readKey(n *node, key toml.Key, v any, given, noTable bool, dst reflect.Value) {
	f := field(dst, n.name)
	if !given {
		switch def := n.fallback; {
		case n.has(required) && !noTable:
			rule := "required"
			if len(n.words) > 0 {
				rule += ", " + alternatives(n.words)
			}
			d.add(key, -1, rule, nil)
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
				panic("config: a word of the schema is not understood: " + err.Error())
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

func sortedKeys[V any](t map[string]V) []string {
	keys := make([]string, 0, len(t))
	for k := range t {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
