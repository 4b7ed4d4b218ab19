// Package cases reads the reference cases: inputs and expected values that were computed independently, in one JSON
// file for each area. For tests only.
package cases

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// Case is one reference case.
type Case struct {
	Name     string
	Kind     string
	Inputs   json.RawMessage
	Expected json.RawMessage
	Tol      json.RawMessage
	Source   string
}

// Run runs each case of the area as a subtest KIND/NAME, with the function for its kind. The file is
// $STREAMDP_CASES/AREA.json if that variable is set, otherwise testdata/cases/AREA.json of the module. The test fails
// for a kind without a function and for a file without cases.
func Run(t *testing.T, area string, kinds map[string]func(*testing.T, Case)) {
	t.Helper()
	dir := os.Getenv("STREAMDP_CASES")
	if dir == "" {
		dir = filepath.Join(Root(t), "testdata", "cases")
	}
	data, err := os.ReadFile(filepath.Join(dir, area+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []Case }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) == 0 {
		t.Fatalf("%s.json holds no case", area)
	}
	for _, c := range file.Cases {
		run := kinds[c.Kind]
		if run == nil {
			t.Errorf("case %s has the unknown kind %q", c.Name, c.Kind)
			continue
		}
		t.Run(c.Kind+"/"+c.Name, func(t *testing.T) { run(t, c) })
	}
}

// Root returns the module's root, the nearest folder above with a go.mod.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Read decodes inputs and expected values. In the project's own files, an unknown field fails the test, so that no
// expected value stays unchecked.
func (c Case) Read(t *testing.T, in, want any) {
	t.Helper()
	for _, part := range []struct {
		what string
		raw  json.RawMessage
		dst  any
	}{{"inputs", c.Inputs, in}, {"expected", c.Expected, want}} {
		d := json.NewDecoder(bytes.NewReader(part.raw))
		if os.Getenv("STREAMDP_CASES") == "" {
			d.DisallowUnknownFields()
		}
		if err := d.Decode(part.dst); err != nil {
			t.Fatalf("%s: %v", part.what, err)
		}
	}
}

// Tolerance returns the relative and the absolute tolerance. In the file, a bare number is the relative tolerance; an
// object names its fields.
func (c Case) Tolerance(t *testing.T) (rel, abs float64) {
	t.Helper()
	if json.Unmarshal(c.Tol, &rel) == nil {
		return rel, 0
	}
	var o struct{ Rel, Abs float64 }
	if err := json.Unmarshal(c.Tol, &o); err != nil {
		t.Fatalf("tol: %v", err)
	}
	return o.Rel, o.Abs
}

// Near fails unless |got − want| ≤ max(rel·|want|, abs). If want is 0, rel is also used as an absolute tolerance.
func (c Case) Near(t *testing.T, what string, got, want float64) {
	t.Helper()
	rel, abs := c.Tolerance(t)
	if want == 0 {
		abs = max(abs, rel)
	}
	Near(t, what, got, want, rel, abs)
}

// Near fails unless |got − want| ≤ max(rel·|want|, abs). NaN is never near.
func Near(t *testing.T, what string, got, want, rel, abs float64) {
	t.Helper()
	if !(math.Abs(got-want) <= max(rel*math.Abs(want), abs)) {
		t.Errorf("%s = %.17g, want %.17g (difference %.3g)", what, got, want, got-want)
	}
}

// Anchor returns the fragment that GitHub gives to a heading of a document.
func Anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}

// Table fails unless a table of a document has exactly these rows. The table's header line begins with `header`. Use it
// to keep figures in documents equal to those that the code computes.
func Table(t *testing.T, document, header string, rows []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(t), document))
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), header)
	if !ok {
		t.Fatalf("%s has no table with the header %q", document, header)
	}
	var got []string
	for i, line := range strings.Split(after, "\n") {
		if i >= 2 && !strings.HasPrefix(line, "|") {
			break
		}
		if i >= 2 { // after the rest of the header line and the line below it
			got = append(got, line)
		}
	}
	if want := strings.Join(rows, "\n"); strings.Join(got, "\n") != want {
		t.Errorf("the table of %s differs from the computed one, which is\n%s", document, want)
	}
}
