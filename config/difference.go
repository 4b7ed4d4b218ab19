package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Difference is a key that has different values in two configurations.
type Difference struct {
	Key string `json:"key"` // dotted; of a stream, without stream.NAME
	// Old and New are the values as JSON, "absent" where there is none or, for most keys of a stream, where it is the
	// default. Both are empty for the path of a file and for what holds the value of an environment variable,
	// which may be a secret.
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

// Differences lists the keys outside of [stream.NAME] in which two configurations differ, sorted.
func Differences(old, new *Config) []Difference {
	of := func(c *Config) map[string]setting {
		return hidden(settings(root(), reflect.ValueOf(c).Elem(), nil), c.masked)
	}
	return compare(of(old), of(new))
}

// Differences lists the keys in which two tables of a stream differ, sorted: those that an epoch depends on, and
// those outside of its digest. Without any, the two are the same in all that a file can say of them.
func (s *Stream) Differences(other *Stream) []Difference {
	return compare(s.settings(), other.settings())
}

// setting is the value of a key.
type setting struct {
	text   string
	hidden bool // the text may be a secret
}

// settings returns the keys of a stream by their dotted names.
func (s *Stream) settings() map[string]setting {
	all := settings(root().at("stream", "NAME"), reflect.ValueOf(s).Elem(), nil)
	inside, err := leaves(s.Canonical(s.Input.First()))
	if err != nil {
		panic("config: " + err.Error()) // unreachable: it was marshalled
	}
	for key, text := range inside {
		all[key] = setting{text: text}
	}
	// Of these the text has what matters to an epoch alone.
	all["on_horizon"], all["input.partition"] = setting{text: string(marshal(s.OnHorizon))}, setting{text: string(marshal(s.Input.Partitions))}
	if s.Input.All() {
		all["input.partition"] = setting{text: `"all"`}
	}
	return hidden(all, s.masked)
}

// hidden hides the values of some keys.
func hidden(all map[string]setting, keys map[string]bool) map[string]setting {
	for key := range keys {
		if x, known := all[key]; known {
			x.hidden = true
			all[key] = x
		}
	}
	return all
}

// settings returns the keys of table n that are outside of the digest. above is where the table is.
func settings(n *node, v reflect.Value, above []string) map[string]setting {
	all := map[string]setting{}
	for _, c := range n.children {
		if c.path == "stream" {
			continue
		}
		f, here := c.in(v), append(above[:len(above):len(above)], c.name)
		switch {
		case c.kind == table:
			if f.Kind() == reflect.Pointer {
				if f.IsNil() {
					continue
				}
				if c.has(outside) {
					all[strings.Join(here, ".")] = setting{text: "present"}
				}
				f = f.Elem()
			}
			if f.Kind() == reflect.Struct {
				maps.Copy(all, settings(c, f, here))
			}
		case c.has(outside):
			value := plain(f)
			if span, ok := value.(time.Duration); ok {
				value = span.String()
			}
			all[strings.Join(here, ".")] = setting{string(marshal(value)), c.kind == file}
		}
	}
	return all
}

// compare lists the keys in which settings differ, sorted.
func compare(old, new map[string]setting) (list []Difference) {
	keys := slices.Collect(maps.Keys(old))
	for k := range new {
		if _, known := old[k]; !known {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		was, before := old[k]
		is, after := new[k]
		switch {
		case before == after && was.text == is.text:
		case was.hidden || is.hidden:
			list = append(list, Difference{Key: k})
		default:
			d := Difference{k, was.text, is.text}
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
