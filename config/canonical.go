package config

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strings"
)

// Canonical returns the part of the stream's table that the guarantee of an
// epoch depends on, for the task of one partition: JSON without blanks, keys
// sorted, defaults filled in. Equal texts, and only they, are the same
// configuration to an epoch.
//
// input.partition is the task's own, so that another partition beside it is no
// change; on_horizon is "continue" or "end", because only the former lets an
// epoch go on; what docs/config.md marks ° is absent, and so is a key that came
// with a later version than the first, while it has its default.
func (s *Stream) Canonical(partition int) []byte {
	t := canonical(root().at("stream", "NAME"), reflect.ValueOf(s).Elem())
	t["input"].(map[string]any)["partition"] = partition
	t["on_horizon"] = "end"
	if s.OnHorizon == "continue" {
		t["on_horizon"] = "continue"
	}
	return marshal(t)
}

// Digest returns the digest of the configuration of one task, which enters the
// keys of its noise. versions are those of the mechanism and of the noise
// format.
func (s *Stream) Digest(partition int, versions map[string]string) [32]byte {
	return DigestOf(s.Canonical(partition), versions)
}

// DigestOf returns the digest for a canonical configuration, as kept in a
// manifest: the SHA-256 of {"stream":canonical,"versions":{…}}.
func DigestOf(canonical []byte, versions map[string]string) [32]byte {
	if versions == nil {
		versions = map[string]string{}
	}
	h := sha256.New()
	h.Write([]byte(`{"stream":`))
	h.Write(canonical)
	h.Write([]byte(`,"versions":`))
	h.Write(marshal(versions))
	h.Write([]byte(`}`))
	return [32]byte(h.Sum(nil))
}

// canonical returns the keys of table n that belong to the digest.
func canonical(n *node, v reflect.Value) map[string]any {
	t := map[string]any{}
	for _, c := range n.children {
		f := field(v, c.name)
		switch {
		case c.has(outside) || !f.IsValid() || c.of != "" && f.IsZero():
		case c.kind == table && f.Kind() == reflect.Pointer:
			if !f.IsNil() {
				t[c.name] = canonical(c, f.Elem())
			}
		case c.kind == table:
			t[c.name] = canonical(c, f)
		case c.has(always) || !c.isDefault(f):
			t[c.name] = plain(f)
		}
	}
	return t
}

// isDefault reports whether f is the default of its key: the one of the schema,
// or nothing.
func (n *node) isDefault(f reflect.Value) bool {
	def := n.fallback
	if def == nil {
		return f.IsZero()
	}
	d := &document{masked: map[string]string{}, bad: map[string]bool{}}
	value, ok := d.convert(n, nil, def)
	if !ok {
		return false
	}
	same := reflect.New(f.Type()).Elem()
	assign(same, value)
	return reflect.DeepEqual(f.Interface(), same.Interface())
}

// plain returns the value as JSON has it: a list that is nil is empty, a number
// that is not there is "off", and what has a text is its text.
func plain(f reflect.Value) any {
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
			panic("config: " + err.Error())
		}
		return string(text)
	}
	return f.Interface()
}

func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("config: " + err.Error()) // numbers are finite, strings are UTF-8
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Diff lists the keys in which two canonical configurations differ, as
// "key: old → new", sorted by key. A key that one of them does not have is
// "absent" there.
func Diff(old, new []byte) []string {
	before, errBefore := leaves(old)
	after, errAfter := leaves(new)
	switch {
	case errBefore != nil:
		return []string{"the old configuration is no JSON"}
	case errAfter != nil:
		return []string{"the new configuration is no JSON"}
	}
	var keys []string
	for k := range before {
		keys = append(keys, k)
	}
	for k := range after {
		if _, ok := before[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	value := func(m map[string]string, k string) string {
		if v, ok := m[k]; ok {
			return v
		}
		return "absent"
	}
	var lines []string
	for _, k := range keys {
		if a, b := value(before, k), value(after, k); a != b {
			lines = append(lines, k+": "+a+" → "+b)
		}
	}
	return lines
}

// leaves returns the values of a JSON object that are no objects, as JSON, by
// dotted key.
func leaves(data []byte) (map[string]string, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	out := map[string]string{}
	var walk func(prefix []string, t map[string]any)
	walk = func(prefix []string, t map[string]any) {
		for k, v := range t {
			here := append(prefix[:len(prefix):len(prefix)], k)
			if sub, ok := v.(map[string]any); ok {
				walk(here, sub)
			} else {
				out[strings.Join(here, ".")] = string(marshal(v))
			}
		}
	}
	walk(nil, object)
	return out, nil
}
