package config

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/moments"
)

// TestSchema: the table agrees with itself and with the structs.
func TestSchema(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range schema {
		if seen[k.path] {
			t.Errorf("%s is there twice", k.path)
		}
		seen[k.path] = true
		if i := strings.LastIndex(k.path, "."); i >= 0 && !seen[k.path[:i]] {
			t.Errorf("%s stands before its table", k.path)
		}
		if k.doc == "" || !strings.HasSuffix(k.doc, ".") {
			t.Errorf("%s: %q is no sentence", k.path, k.doc)
		}
		if k.path != strings.NewReplacer("stream.name", "stream.NAME", "column.column", "column.COLUMN").Replace(strings.ToLower(k.path)) {
			t.Errorf("%s is not lower case", k.path)
		}
		if k.kind != table && (wants[k.kind] == "" && k.kind != boolean || kindNames[k.kind] == "") {
			t.Errorf("%s: a kind without words", k.path)
		}
		if k.def != "" && k.flags&required != 0 {
			t.Errorf("%s is required and has a default", k.path)
		}
		if k.flags&always != 0 && (!strings.HasPrefix(k.path, "stream.NAME.") || k.flags&outside != 0) {
			t.Errorf("%s cannot be in the digest", k.path)
		}
	}
	var walk func(n *node, typ reflect.Type)
	walk = func(n *node, typ reflect.Type) {
		for _, c := range n.children {
			if c.def != "" {
				d := &document{positions: scan(""), masked: map[string]string{}, bad: map[string]bool{}}
				if _, ok := d.convert(c, nil, c.fallback); !ok {
					t.Errorf("the default of %s: %v", c.path, d.faults)
				}
			}
			if c.name == "stream" {
				walk(c.child("NAME"), reflect.TypeFor[Stream]())
				continue
			}
			if c.has(flat) {
				walk(c, typ)
				continue
			}
			field, found := typ.FieldByNameFunc(func(name string) bool {
				f, _ := typ.FieldByName(name)
				return f.Tag.Get("toml") == c.name
			})
			if !found {
				t.Errorf("%s has no field", c.path)
				continue
			}
			sub := field.Type
			if sub.Kind() == reflect.Pointer {
				sub = sub.Elem()
			}
			if c.child("COLUMN") != nil {
				walk(c.child("COLUMN"), sub.Elem().Elem())
			} else if c.kind == table {
				walk(c, sub)
			}
		}
		if n.has(flat) {
			return // fields of the table around
		}
		for i := range typ.NumField() {
			if name := typ.Field(i).Tag.Get("toml"); name != "-" && n.child(name) == nil && n.movedInto(name) == "" {
				t.Errorf("%s.%s (%q) is not in the schema", typ, typ.Field(i).Name, name)
			}
		}
	}
	walk(root(), reflect.TypeFor[Config]())

	for _, path := range former {
		if seen[path] {
			t.Errorf("%s is a key again: take it out of former", path)
		}
	}
	stream := root().at("stream", "NAME")
	for _, c := range stream.children {
		isMechanism := c.kind == table && !slices.Contains([]string{"input", "output", "privacy", "dead_letter", "user"}, c.name)
		if isMechanism != slices.ContainsFunc(mechanisms, func(m *mechanism) bool { return m.name == c.name }) {
			t.Errorf("%s: mechanism %t", c.path, isMechanism)
		}
	}
}

// TestSchemaAgreesWithMoments: words and defaults of the table are those that
// the package itself has.
func TestSchemaAgreesWithMoments(t *testing.T) {
	n := root().at("stream", "NAME", "moments")
	for _, name := range []string{"method", "workload", "factorization"} {
		c := n.child(name)
		f := func(word string, want string) {
			m := moments.Config{Clip: 1, Columns: []string{"x"}, Step: 1, Horizon: 1}
			field(reflect.ValueOf(&m).Elem(), name).SetString(word)
			m.Defaults()
			rule := ""
			for _, err := range fault.All(m.Validate()) {
				if f, ok := errors.AsType[*fault.Fault](err); ok && f.Key == name {
					rule = f.Rule
				}
			}
			if rule != want {
				t.Errorf("%s %q: %q, want %q", name, word, rule, want)
			}
		}
		for _, w := range c.words {
			f(w, "")
		}
		f("no", "must be "+alternatives(c.words))
	}
	var mine, theirs moments.Config
	d := &document{positions: scan(""), masked: map[string]string{}, bad: map[string]bool{}}
	d.readTable(n, nil, nil, reflect.ValueOf(&mine).Elem())
	theirs.Defaults()
	mine.Clip = 0           // of a file it is "auto"
	theirs.Covariance = nil // follows from the workload
	theirs.WarmupMode = ""  // a key of the stream
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults %+v, the package has %+v", mine, theirs)
	}
}

// TestReference: docs/config.md is what the schema says.
func TestReference(t *testing.T) {
	const path = "../docs/config.md"
	want := Reference()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/config.md is not current: go generate ./config")
	}
	for _, k := range schema {
		name := "`" + k.path[strings.LastIndex(k.path, ".")+1:] + "`"
		if k.path == "stream" || k.path == "stream.NAME.input.column" {
			continue // which hold names only
		}
		if k.kind == table {
			name = "## [" + k.path + "]"
		}
		if !bytes.Contains(got, []byte(name)) {
			t.Errorf("%s is not in the reference", k.path)
		}
	}
}

func TestNearest(t *testing.T) {
	f := func(table, name, want string) {
		t.Helper()
		if got := nearest(name, root().at(strings.Split(table, ".")...)); got != want {
			t.Errorf("%s in %s: %q, want %q", name, table, got, want)
		}
	}
	f("stream.NAME.moments", "clib", "clip")
	f("stream.NAME.moments", "lcip", "clip")
	f("stream.NAME.moments", "cliip", "clip")
	f("stream.NAME.moments", "factorisation", "factorization")
	f("stream.NAME.moments", "normalize", "normalise")
	f("stream.NAME.moments", "CLIP", "clip")
	f("stream.NAME.moments", "cov", "covariance")
	f("stream.NAME.moments", "x", "")
	f("stream.NAME.moments", "temperature", "")
	f("stream.NAME.privacy", "eps", "epsilon")
	f("stream.NAME.privacy", "limit_eps", "limit_epsilon")
	f("stream.NAME", "center", "centre")
	f("stream.NAME", "on-horizon", "on_horizon")
	f("state", "keyfile", "key_file")
	f("kafka", "client-id", "client_id")
}
