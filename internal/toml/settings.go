package toml

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Setting is the value of a key.
type Setting struct {
	Text   string // as JSON
	Hidden bool   // true if the text may be a secret
}

// Settings are the values of keys, by dotted name.
type Settings map[string]Setting

// Settings returns the keys of table n that do not belong to the canonical form, with their values in struct v. The
// value of an optional table is "present". Tables whose names the file chooses are omitted.
func (n *Node) Settings(v reflect.Value) Settings { return n.settings(v, nil) }

// settings does what Settings does. above is the path of the table.
func (n *Node) settings(v reflect.Value, above []string) Settings {
	all := Settings{}
	for _, c := range n.Children {
		if c.Named != nil {
			continue
		}
		f, here := c.In(v), append(above[:len(above):len(above)], c.Name)
		switch {
		case c.Kind == Table:
			if f.Kind() == reflect.Pointer {
				if f.IsNil() {
					continue
				}
				if c.Has(Outside) {
					all[strings.Join(here, ".")] = Setting{Text: "present"}
				}
				f = f.Elem()
			}
			if f.Kind() == reflect.Struct {
				maps.Copy(all, c.settings(f, here))
			}
		case c.Has(Outside):
			value := c.Plain(f)
			if span, ok := value.(time.Duration); ok {
				value = span.String()
			}
			all[strings.Join(here, ".")] = Setting{string(JSON(value)), c.Kind == File}
		}
	}
	return all
}

// Leaves returns, by dotted key, all values inside a JSON object that are not themselves objects.
func Leaves(data []byte) (Settings, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	out := Settings{}
	var walk func(prefix []string, t map[string]any)
	walk = func(prefix []string, t map[string]any) {
		for k, v := range t {
			here := append(prefix[:len(prefix):len(prefix)], k)
			if sub, ok := v.(map[string]any); ok {
				walk(here, sub)
			} else {
				out[strings.Join(here, ".")] = Setting{Text: string(JSON(v))}
			}
		}
	}
	walk(nil, object)
	return out, nil
}

// Hide marks the values of these keys as possible secrets.
func (s Settings) Hide(keys map[string]bool) {
	for key := range keys {
		if x, known := s[key]; known {
			x.Hidden = true
			s[key] = x
		}
	}
}

// Difference is a key that has different values in two configurations.
type Difference struct {
	Key string `json:"key"` // dotted
	// Old and New are the values as JSON, "absent" if there is none. Both are empty if one of them is hidden.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
}

// String returns "key: old → new".
func (d Difference) String() string {
	if d.Old == "" && d.New == "" {
		return d.Key + ": changed"
	}
	return d.Key + ": " + d.Old + " → " + d.New
}

// Differences lists the keys in which new differs from s, sorted.
func (s Settings) Differences(new Settings) (list []Difference) {
	keys := slices.Collect(maps.Keys(s))
	for k := range new {
		if _, known := s[k]; !known {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		was, before := s[k]
		is, after := new[k]
		switch {
		case before == after && was.Text == is.Text:
		case was.Hidden || is.Hidden:
			list = append(list, Difference{Key: k})
		default:
			d := Difference{k, was.Text, is.Text}
			if !before {
				d.Old = "absent"
			}
			if !after {
				d.New = "absent"
			}
			list = append(list, d)
		}
	}
	return list
}
