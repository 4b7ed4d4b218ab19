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
	"github.com/streamdp/streamdp/internal/toml"
	"github.com/streamdp/streamdp/moments"
)

// filled lists fields of the mechanisms' configurations that have no key. Package config fills them from the stream's
// own keys, or only Go programs set them.
var filled = []string{"centre", "columns", "dense", "endless", "found", "horizon", "initial", "most", "partitions",
	"person", "scale", "second", "start", "step", "warmup", "warmup_mode"}

// TestSchema checks that the schema is consistent and agrees with the structs.
func TestSchema(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range schema {
		if seen[k.Path] {
			t.Errorf("%s is there twice", k.Path)
		}
		seen[k.Path] = true
		if i := strings.LastIndex(k.Path, "."); i >= 0 && !seen[k.Path[:i]] {
			t.Errorf("%s stands before its table", k.Path)
		}
		if k.Doc == "" || !strings.HasSuffix(k.Doc, ".") {
			t.Errorf("%s: %q is not a sentence", k.Path, k.Doc)
		}
		if k.Path != strings.NewReplacer("stream.name", "stream.NAME", "column.column",
			"column.COLUMN").Replace(strings.ToLower(k.Path)) {
			t.Errorf("%s is not lower case", k.Path)
		}
		if k.Kind != toml.Table && (k.Kind.Wants == "" || k.Kind.Name == "") {
			t.Errorf("%s: a kind without words", k.Path)
		}
		if k.Def != "" && k.Flags&toml.Required != 0 {
			t.Errorf("%s is required and has a default", k.Path)
		}
		if k.Flags&toml.Always != 0 && (!strings.HasPrefix(k.Path, "stream.NAME.") || k.Flags&toml.Outside != 0) {
			t.Errorf("%s cannot be in the digest", k.Path)
		}
	}
	inside := func(name string) func(*toml.Node) bool {
		return func(c *toml.Node) bool { return c.Has(toml.Flat) && c.Child(name) != nil }
	}
	var walk func(n *toml.Node, typ reflect.Type)
	walk = func(n *toml.Node, typ reflect.Type) {
		for _, c := range n.Children {
			if value, err := c.Default(); err != nil || c.Def != "" && value == nil {
				t.Errorf("the default of %s: %v, %v", c.Path, value, err)
			}
			if c.Name == "stream" {
				walk(c.Child("NAME"), reflect.TypeFor[Stream]())
				continue
			}
			if c.Has(toml.Flat) {
				walk(c, typ)
				continue
			}
			field, found := typ.FieldByNameFunc(func(name string) bool {
				f, _ := typ.FieldByName(name)
				return toml.FieldKey(f) == c.Name
			})
			if !found {
				t.Errorf("%s has no field", c.Path)
				continue
			}
			sub := field.Type
			if sub.Kind() == reflect.Pointer {
				sub = sub.Elem()
			}
			if c.Child("COLUMN") != nil {
				walk(c.Child("COLUMN"), sub.Elem().Elem())
			} else if c.Kind == toml.Table {
				walk(c, sub)
			}
		}
		if n.Has(toml.Flat) {
			return // a flat table: its keys are fields of the surrounding struct
		}
		for i := range typ.NumField() {
			if name := toml.FieldKey(typ.Field(i)); name != "-" && !slices.Contains(filled, name) &&
				n.Child(name) == nil &&
				!slices.ContainsFunc(n.Children, inside(name)) {
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
	stream := root().At("stream", "NAME")
	for _, c := range stream.Children {
		isMechanism := c.Kind == toml.Table &&
			!slices.Contains([]string{"input", "output", "privacy", "dead_letter", "user"}, c.Name)
		if isMechanism != slices.ContainsFunc(mechanisms, func(m *mechanism) bool { return m.name == c.Name }) {
			t.Errorf("%s: mechanism %t", c.Path, isMechanism)
		}
	}
}

// TestSchemaAgreesWithMoments: schema and package moments have the same words and defaults.
func TestSchemaAgreesWithMoments(t *testing.T) {
	n := root().At("stream", "NAME", "moments")
	for _, name := range []string{"method", "workload", "factorization"} {
		c := n.Child(name)
		f := func(word string, want string) {
			m := moments.Config{Clip: 1, Columns: []string{"x"}, Step: 1, Horizon: 1}
			toml.Field(reflect.ValueOf(&m).Elem(), name).SetString(word)
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
		for _, w := range c.Words {
			f(w, "")
		}
		f("no", "must be "+toml.Alternatives(c.Words))
	}
	var mine, theirs moments.Config
	d := &document{toml.Of("", nil)}
	d.ReadTable(n, nil, nil, reflect.ValueOf(&mine).Elem())
	theirs.Defaults()
	mine.Clip = 0           // the default in a file is "auto" instead
	theirs.Covariance = nil // the default depends on the workload
	theirs.WarmupMode = ""  // this is a key of the stream
	if !reflect.DeepEqual(mine, theirs) {
		t.Errorf("defaults %+v, the package has %+v", mine, theirs)
	}
}

// TestReference: docs/config.md agrees with the schema.
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
		name := "`" + k.Path[strings.LastIndex(k.Path, ".")+1:] + "`"
		if k.Path == "stream" || k.Path == "stream.NAME.input.column" {
			continue // the table holds only names
		}
		if k.Kind == toml.Table {
			name = "## [" + k.Path + "]"
		}
		if !bytes.Contains(got, []byte(name)) {
			t.Errorf("%s is not in the reference", k.Path)
		}
	}
}

func TestNearest(t *testing.T) {
	f := func(table, name, want string) {
		t.Helper()
		_, err := Parse("f", []byte("["+strings.Replace(table, "NAME", "a", 1)+"]\n"+name+" = 1\n"))
		got := ""
		for _, f := range err.(Faults) {
			if f.Key == strings.Replace(table, "NAME", "a", 1)+"."+name {
				got, _ = strings.CutPrefix(f.Hint, "did you mean ")
				got, _ = strings.CutSuffix(got, "?")
			}
		}
		if got != want {
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
