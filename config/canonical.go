package config

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Canonical returns the part of the stream's table that the guarantee of an epoch depends
// on, for the task of one partition. It is JSON without blanks, with sorted keys and with
// defaults filled in. Two configurations are the same to an epoch if and only if these texts
// are equal.
//
// The text differs from the file in these points:
//   - input.partition is the task's own partition, so that the operator may add others;
//   - of a merged stream it is the list of its partitions, and "all" where they are not
//     known yet;
//   - on_horizon is "continue" or "end", because nothing else of it matters to an epoch;
//   - the keys of [stream.NAME.sgd.amb] are in sgd itself, where earlier versions had them;
//   - of the columns' tables there is what differs from a plain number at the path that the column's
//     name is, and each path with an index;
//   - the keys that docs/config.md marks ° are absent;
//   - input.schema_sha256 is the SHA-256 of the text of input.schema_file, where there is one;
//   - a key that the first version did not have is absent while it has its default.
func (s *Stream) Canonical(partition int) []byte {
	t := canonical(root().at("stream", "NAME"), reflect.ValueOf(s).Elem())
	in := t["input"].(map[string]any)
	s.Input.canonicalColumns(in)
	switch in["partition"] = partition; {
	case s.Merge && s.Input.All():
		in["partition"] = "all"
	case s.Merge:
		in["partition"] = s.Input.Partitions
	}
	if s.Input.SchemaText != "" {
		in["schema_sha256"] = fmt.Sprintf("%x", sha256.Sum256([]byte(s.Input.SchemaText)))
	}
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
		f := c.in(v)
		switch {
		case c.has(outside) || n.of != "" && f.IsZero() || f.Kind() == reflect.Map:
		case c.has(flat):
			maps.Copy(t, canonical(c, f))
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

// isDefault reports whether f is the default of its key: the default in the schema or, if
// there is none, the zero value.
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

// plain returns the value as the canonical JSON has it: an empty list for a nil list, "off"
// for a missing number, "auto" for one that is found, and the text of a value that has one.
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
	switch x := f.Interface().(type) {
	case Step:
		if x.Clock() > 0 {
			return x.Clock().String()
		}
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

// autoOr returns a number, or "auto" for one that a warm-up finds.
func autoOr(x float64) any {
	if math.IsNaN(x) {
		return "auto"
	}
	return x
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

// Changes lists the keys in which the canonical configuration of a task differs from an earlier one, as
// [Diff] does. Of a key that holds the value of an environment variable it says that it changed.
func (s *Stream) Changes(old []byte, partition int) []string {
	lines := Diff(old, s.Canonical(partition))
	for i, line := range lines {
		for key := range s.masked {
			if strings.HasPrefix(line, key+": ") {
				lines[i] = key + ": changed"
			}
		}
	}
	return lines
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

// leaves returns all values of a JSON object that are not objects themselves, as JSON, by
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
