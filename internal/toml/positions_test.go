package toml

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	burnt "github.com/BurntSushi/toml"
)

// TestLines: in each source the key x, or the named one, is on the line that says HERE.
func TestLines(t *testing.T) {
	f := func(src string, key ...string) {
		t.Helper()
		if len(key) == 0 {
			key = []string{"x"}
		}
		var any map[string]any
		if _, err := burnt.Decode(src, &any); err != nil {
			t.Fatalf("%v in\n%s", err, src)
		}
		want := 1 + strings.Count(src[:strings.Index(src, "HERE")], "\n")
		p := scan(src)
		if got := p.line(key, -1); got != want {
			t.Errorf("%v is on line %d, want %d, in\n%s\n%v", key, got, want, src, p.written)
		}
	}
	f("x = 1 # HERE")
	f("\xef\xbb\xbf\nx = 1 # HERE")
	f("\r\n# x = 0\r\n\tx\t=\t1 # HERE")
	f("a = 'x = 1' # x = 2\nx = 1 # HERE")
	f("a = \"\\\"\\nx = 1\"\nx = 1 # HERE")
	f("a = \"\"\"\nx = 1\n\\\"\"\"\\\\\"\"\"\nx = 1 # HERE")
	f("a = \"\"\"\"\"x\"\"\"\"\"\nx = 1 # HERE")
	f("a = '''\nx = 1\n\\'''\nx = 1 # HERE")
	f("a = '''''x'''''\nx = 1 # HERE")
	f("a = \"\"\"x \\\n\n  y\\\r\n\"\"\"\nx = 1 # HERE")
	f("a = \"\" \nb = ''\nx = 1 # HERE")
	f("a = [ # ]\n'x', \"]\",\n[1, 2], # x = 1\n]\nx = 1 # HERE")
	f("a = [\n]\nb = [\n{ x = 1 },\n{},\n]\nx = 1 # HERE")
	f("a = { b = [ { c = '}' } ], d = 1 }\nx = 1 # HERE")
	f("a = { # {\n b = 1, # TOML 1.1\n}\nx = 1 # HERE")
	f("a = 1979-05-27 07:32:00\nb = 1979-05-27T07:32:00Z # a date\nx = -1_0.5e+3 # HERE")
	f("a = 1#x\nx = 1 # HERE")
	f("\"x\" = 1 # HERE")
	f("'x' = 1 # HERE")
	f("\"\\u0078\" = 1 # HERE")
	f("x.y = 1 # HERE")
	f("x.y = 1 # HERE", "x", "y")
	f("x . 'y' . \"\\tz\" = 1 # HERE", "x", "y", "\tz")
	f("\"x.y\" = 1 # HERE", "x.y")
	f("\"x.y\" = 1\nx.y = 2 # HERE", "x", "y")
	f("\"\" = 1 # HERE", "")
	f("[a]\nx = 1\n[x] # HERE\na = 2")
	f("[a.b]\nx = 1\n[a] # HERE\nx = 2", "a")
	f("[a.b]\nx = 1\n[a]\nx = 2 # HERE", "a", "x")
	f("[ a . \"b\" ]\nx = 1 # HERE", "a", "b", "x")
	f("[a]\nb.c.x = 1 # HERE", "a", "b", "c", "x")
	f("[a]\nb = { c.x = 1 } # HERE", "a", "b", "c", "x")
	f("[a]\nb = {\nc.x = 1 } # HERE", "a", "b", "c", "x")
	f("[[a]]\nx = 1 # HERE\n[[a]]\nx = 2", "a", "x")
	f("[[ x ]] # HERE\n[[x]]")
	// A missing key has the line of the table around it.
	f("[a]\n[x.b] # HERE\n[c]", "x", "no")
	f("[a]\n[x.b] # HERE\n[c]", "x", "b", "no", "no")
	f("a = { b = 1 }\nx = { # HERE\n}", "x", "no")
	f("# HERE\n[a]\nb = 1", "no")

	src := "x = [ 1,\n2, [\n3 ], \"\"\"\n4\"\"\"\n,{ y = [\n5] }\n]"
	p := scan(src)
	for i, want := range []int{1, 2, 2, 3, 5} {
		if got := p.line(Key{"x"}, i); got != want {
			t.Errorf("element %d is on line %d, want %d", i, got, want)
		}
	}
	if got := p.line(Key{"x", "y"}, 0); got != 6 {
		t.Errorf("the inner element is on line %d", got)
	}
	if got := p.line(Key{"x"}, 9); got != 1 {
		t.Errorf("a missing element is on line %d", got)
	}
}

// TestScanEnds: the scanner terminates on any input.
func TestScanEnds(t *testing.T) {
	for _, src := range []string{"", "x", "x=", "=", "]", "[", "[[", "[a", "x = [", "x = {", "x = \"", "x = \"\"\"",
		"x = \"\\", "x = '''",
		"x = [1 2", "x = {a 1", ".", "a.", "a..b", "\x00", "x = }", "x = [}", "x = {]", "a = [,]", "#", "\"", "é = 1",
		"\"\\", "a = \"\\", "x = ["} {
		scan(src)
	}
}

// TestTOMLSuite compares the scanner with the TOML package on the files of the official test suite, which that package
// contains: it must find the same keys in the same order, and the same lines for single values.
func TestTOMLSuite(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/BurntSushi/toml").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, lines := 0, 0
	root := filepath.Join(strings.TrimSpace(string(out)), "internal", "toml-test", "tests")
	err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".toml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var tree map[string]burnt.Primitive
		md, err := burnt.Decode(string(data), &tree)
		if err != nil {
			scan(string(data))
			return nil
		}
		files++
		p := scan(string(data))
		if !reflect.DeepEqual(p.order, md.Keys()) && len(p.order)+len(md.Keys()) > 0 {
			t.Errorf("%s: keys\n%q, want\n%q", path, p.order, md.Keys())
		}
		if !strings.Contains(string(data), "[[") { // skips arrays of tables: one name stands for several keys
			lines += compareLines(t, path, string(data), p, &md, nil, tree)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 150 || lines < 300 {
		t.Errorf("the suite has %d files, %d lines", files, lines)
	}
}

// refused is a type that always fails to decode. This reveals a value's line, because the TOML package adds the line to
// an error of UnmarshalText.
type refused struct{}

func (refused) UnmarshalText([]byte) error { return errors.New("refused") }

func compareLines(t *testing.T, path, src string, p *positions, md *burnt.MetaData, prefix Key,
	tree map[string]burnt.Primitive) (compared int) {
	for name, value := range tree {
		key := append(prefix[:len(prefix):len(prefix)], name)
		var table map[string]burnt.Primitive
		if md.PrimitiveDecode(value, &table) == nil && table != nil {
			compared += compareLines(t, path, src, p, md, key, table)
			continue
		}
		e, ok := errors.AsType[burnt.ParseError](md.PrimitiveDecode(value, &refused{}))
		if !ok || e.Position.Line == 0 {
			continue // skips a list
		}
		got := p.line(key, -1)
		// The parser reports the line where a value ends, and a text may have many lines.
		if lines := strings.Split(src, "\n"); strings.Contains(lines[min(got, len(lines))-1], `"""`) ||
			strings.Contains(lines[min(got, len(lines))-1], "'''") {
			continue
		}
		if compared++; got != e.Position.Line {
			t.Errorf("%s: %v is on line %d, the TOML package says %d", path, key, got, e.Position.Line)
		}
	}
	return compared
}

// TestHarmless: no message of the parser shows a possible secret.
func TestHarmless(t *testing.T) {
	for _, src := range []string{
		"password = hunter2", "password = \"hunter2\nx", "password = \"hunter2 \\u12\"", "password = \"hunter2 \\q\"",
		"password = 0xhunter2",
		"password = 112358132134558914423337761098715972584418167651094617711286574636875025121393",
		"password = 1e112358", "password = 1_123581321_", "password = 01123581321", "password = 1123-58-13",
		"password = +hunter2",
		"password = `hunter2`", "password = 'hunter2", "password = \"\"\"hunter2", "password = hunter2\"",
		"password = 0o11235813",
	} {
		err := Parse([]Source{{Name: "c.toml", Text: src}}).Err()
		if err == nil {
			t.Errorf("%q is accepted", src)
			continue
		}
		for _, part := range []string{"hunter", "1235", "1e11"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v", src, err)
			}
		}
		if !slices.Contains([]string{"c.toml:1: not TOML: ", "c.toml:2: not TOML: "},
			err.Error()[:min(len(err.Error()), 20)]) {
			t.Errorf("%q: %v", src, err)
		}
	}
}
