package stream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// validator checks JSON against the part of JSON Schema 2020-12 that the
// release's schema uses, and refuses a schema that uses more.
type validator struct {
	defs   map[string]any
	faults []string
}

// annotations are keywords without effect.
var annotations = []string{"$schema", "$id", "title", "description", "$defs"}

func validate(schema []byte, doc string) ([]string, error) {
	var s map[string]any
	if err := decodeNumbers(schema, &s); err != nil {
		return nil, err
	}
	var d any
	if err := decodeNumbers([]byte(doc), &d); err != nil {
		return nil, err
	}
	v := &validator{}
	v.defs, _ = s["$defs"].(map[string]any)
	v.check("", s, d)
	return v.faults, nil
}

func decodeNumbers(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return dec.Decode(into)
}

func (v *validator) fault(path, format string, args ...any) {
	v.faults = append(v.faults, path+": "+fmt.Sprintf(format, args...))
}

func number(x any) *big.Rat {
	n, ok := x.(json.Number)
	if !ok {
		return nil
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		return nil
	}
	return r
}

func kindOf(x any) string {
	switch x := x.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	default:
		if r := number(x); r.IsInt() {
			return "integer"
		}
		return "number"
	}
}

func same(a, b any) bool {
	if x, y := number(a), number(b); x != nil && y != nil {
		return x.Cmp(y) == 0
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func (v *validator) check(path string, s map[string]any, d any) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		want := s[key]
		switch key {
		case "$ref":
			name := strings.TrimPrefix(want.(string), "#/$defs/")
			def, ok := v.defs[name].(map[string]any)
			if !ok {
				panic("schema: no definition " + name)
			}
			v.check(path, def, d)
		case "type":
			if kind := kindOf(d); kind != want && !(kind == "integer" && want == "number") {
				v.fault(path, "%s, want %s", kind, want)
			}
		case "const":
			if !same(d, want) {
				v.fault(path, "not %v", want)
			}
		case "enum":
			if !slices.ContainsFunc(want.([]any), func(e any) bool { return same(d, e) }) {
				v.fault(path, "not one of %v", want)
			}
		case "anyOf":
			if !slices.ContainsFunc(want.([]any), func(e any) bool {
				inner := &validator{defs: v.defs}
				inner.check(path, e.(map[string]any), d)
				return len(inner.faults) == 0
			}) {
				v.fault(path, "none of the alternatives")
			}
		case "pattern":
			if text, ok := d.(string); ok && !regexp.MustCompile(want.(string)).MatchString(text) {
				v.fault(path, "does not match %s", want)
			}
		case "minimum", "exclusiveMinimum", "exclusiveMaximum":
			x := number(d)
			if x == nil {
				continue
			}
			c := x.Cmp(number(want))
			if key == "minimum" && c < 0 || key == "exclusiveMinimum" && c <= 0 || key == "exclusiveMaximum" && c >= 0 {
				v.fault(path, "violates %s %v", key, want)
			}
		case "required":
			if object, ok := d.(map[string]any); ok {
				for _, name := range want.([]any) {
					if _, ok := object[name.(string)]; !ok {
						v.fault(path, "lacks %v", name)
					}
				}
			}
		case "properties":
			if object, ok := d.(map[string]any); ok {
				for name, sub := range want.(map[string]any) {
					if x, ok := object[name]; ok {
						v.check(path+"/"+name, sub.(map[string]any), x)
					}
				}
			}
		case "additionalProperties":
			known, _ := s["properties"].(map[string]any)
			if object, ok := d.(map[string]any); ok {
				for name, x := range object {
					if _, ok := known[name]; !ok {
						v.check(path+"/"+name, want.(map[string]any), x)
					}
				}
			}
		case "items":
			if list, ok := d.([]any); ok {
				for i, x := range list {
					v.check(fmt.Sprint(path, "/", i), want.(map[string]any), x)
				}
			}
		case "prefixItems":
			if list, ok := d.([]any); ok {
				for i, sub := range want.([]any) {
					if i < len(list) {
						v.check(fmt.Sprint(path, "/", i), sub.(map[string]any), list[i])
					}
				}
			}
		case "minItems", "maxItems":
			if list, ok := d.([]any); ok {
				c := big.NewRat(int64(len(list)), 1).Cmp(number(want))
				if key == "minItems" && c < 0 || key == "maxItems" && c > 0 {
					v.fault(path, "%d items, %s %v", len(list), key, want)
				}
			}
		case "uniqueItems":
			if list, ok := d.([]any); ok {
				for i, x := range list {
					if slices.ContainsFunc(list[:i], func(y any) bool { return same(x, y) }) {
						v.fault(path, "%v twice", x)
					}
				}
			}
		default:
			if !slices.Contains(annotations, key) {
				panic("schema: keyword " + key)
			}
		}
	}
}

// conforms fails unless a release's value has the published schema and no field
// that the schema does not name.
func conforms(t testing.TB, value string) {
	t.Helper()
	faults, err := validate(releaseJSONSchema, value)
	if err != nil || len(faults) > 0 {
		t.Errorf("release against its schema: %v %v\n%s", err, faults, value)
	}
	var schema struct {
		Properties map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"properties"`
		Defs map[string]struct {
			Properties map[string]any `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(releaseJSONSchema, &schema); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal([]byte(value), &doc); err != nil {
		t.Fatal(err)
	}
	for name, x := range doc {
		top, ok := schema.Properties[name]
		if !ok {
			t.Errorf("the schema does not name %s", name)
		}
		inner := top.Properties
		object, isObject := x.(map[string]any)
		if !isObject {
			continue
		}
		for field, x := range object {
			if name == "values" {
				for part := range x.(map[string]any) {
					if _, ok := schema.Defs["value"].Properties[part]; !ok {
						t.Errorf("the schema does not name values.%s.%s", field, part)
					}
				}
			} else if _, ok := inner[field]; !ok {
				t.Errorf("the schema does not name %s.%s", name, field)
			}
		}
	}
}

// TestReleaseSchema validates releases of all forms, and sees that what is not
// one is refused.
func TestReleaseSchema(t *testing.T) {
	t.Parallel()
	log := mutateLog(1)[:100]
	for _, toml := range append([]string{
		machineStream,
		with(machineStream, `topic = "out"`, `topic = "out", encoding = "base64"`),
		with(machineStream, `topic = "out"`, `topic = "out", privacy_every = 3`),
		with(machineStream, `topic = "out"`, `topic = "out", values = ["mean", "covariance"]`),
		with(machineStream, `codec = "json"`, `codec = "json", allow_compacted = true`),
		machineStream + "workload = \"exponential\"\ndecay = 0.9\n",
		machineStream + "workload = \"window\"\nwindow = 5\n",
		machineStream + "workload = \"sum\"\nfactorization = \"identity\"\n",
		machineStream + "workload = \"sum\"\nfactorization = \"bisr\"\nbands = 4\n",
		with(machineStream, "step   = 7", "step = 7\nhorizon = 5", `adjacency = "replace"`, `adjacency = "zero-out"`),
	}, slices.Concat(machineRefits, machineRegressions, machineCombined)...) {
		m := newMachine(t, toml, 1)
		m.m.Insecure = strings.Contains(toml, "window")
		m.restart()
		if m.all(log, 100); strings.Contains(toml, "[stream.m.sgd]\ntarget") { // searches first
			m.all(mutateLog(1), 600)
		}
		if len(m.releases) == 0 {
			t.Fatal("no release")
		}
		for _, p := range m.releases {
			conforms(t, string(p.Value))
		}
	}
	good := string(newMachine(t, machineStream, 1).all(log, 100).releases[3].Value)
	for _, change := range [][2]string{
		{`"schema":"streamdp.release.v1"`, `"schema":"streamdp.release.v2"`},
		{`"epoch":1`, `"epoch":0`},
		{`"step":3`, `"step":"3"`},
		{`"rows":7`, `"rows":-1`},
		{`"offsets":[14,21]`, `"offsets":[14]`},
		{`"offsets":[14,21]`, `"offsets":[14,21,28]`},
		{`"covers":[0,21]`, `"covers":[0.5,21]`},
		{`"columns":["a","b","c"]`, `"columns":["a","b","a"]`},
		{`"scale":[0.5,4,1.5]`, `"scale":[0.5,0,1.5]`},
		{`"adjacency":"replace"`, `"adjacency":"add-remove"`},
		{`"delta":1e-8`, `"delta":1`},
		{`"shape":[3]`, `"shape":[]`},
		{`"layout":"upper"`, `"layout":"lower"`},
		{`"se":[`, `"se":["1",`},
		{`"finite_precision":"exact",`, ``},
		{`"version":"test"`, `"version":null`},
		{`"stream":"m"`, `"stream":"M"`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if bad == good {
			t.Fatalf("the release has no %s:\n%s", change[0], good)
		}
		if faults, err := validate(releaseJSONSchema, bad); err != nil || len(faults) == 0 {
			t.Errorf("%s passes, %v", change[1], err)
		}
	}
}

// TestGoldenSchema: the releases that package core holds as files conform.
func TestGoldenSchema(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("core/testdata/release*.json")
	must(t, err)
	if len(files) < 4 {
		t.Fatalf("%d files", len(files))
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		must(t, err)
		conforms(t, string(data[bytes.IndexByte(data, '{'):])) // behind key and headers
	}
}

// TestSchemaCopy: the Python package has this schema.
func TestSchemaCopy(t *testing.T) {
	t.Parallel()
	var copies [][]byte
	for _, path := range []string{"release.schema.json", filepath.Join("..", "python", "src", "streamdp", "release.schema.json")} {
		text, err := os.ReadFile(path)
		must(t, err)
		copies = append(copies, text)
	}
	if !bytes.Equal(copies[0], copies[1]) {
		t.Error("copy stream/release.schema.json to python/src/streamdp")
	}
}
