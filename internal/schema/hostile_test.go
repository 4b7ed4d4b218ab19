package schema

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/streamdp/streamdp/internal/column"
)

func init() {
	parsers["panic"] = func(string, []Reference) (*Schema, error) { panic("as a parser does") }
}

// TestPanic: a panic of a parser, or while a plan is made, becomes an error about that schema.
func TestPanic(t *testing.T) {
	if s, err := Parse("panic", "", nil); s != nil || err == nil || strings.Contains(err.Error(), "goroutine") {
		t.Errorf("%v, %v", s, err)
	}
	if plan, _, _, err := (&Schema{format: Protobuf}).PlanWithKey(paths("a"), nil); plan != nil || err == nil {
		t.Errorf("%v, %v", plan, err)
	}
	// The message has a default value, which the library cannot print.
	if _, err := Parse(Protobuf, "EgFwIhcKAUESEgoBYRgBIAEoCzIELnAuQToBeGIGcHJvdG8y", nil); err == nil ||
		!strings.Contains(err.Error(), "default value") {
		t.Error(err)
	}
	if _, err := Parse(Protobuf, "\"\\\xf0", nil); err == nil { // makes the parser index beyond the file
		t.Error("an invalid escape is accepted")
	}
	if _, err := Parse("none", "", nil); err == nil {
		t.Error("an unknown format is accepted")
	}
}

// TestKnownMessages: a message is read as a single value only if it has the right fields, not because of its name
// alone.
func TestKnownMessages(t *testing.T) {
	t.Parallel()
	const head = `syntax = "proto3"; package google.protobuf; message Order { `
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		text, want string
	}{
		{head + `DoubleValue a = 1; } message DoubleValue { double x = 2; }`, "null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { }`, "null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { M value = 1; } message M { }`, "null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { map<string, int32> value = 1; }`, "null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { repeated E value = 1; } enum E { Z = 0; }`,
			"null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { string value = 1; }`, "null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { oneof o { double value = 1; M m = 2; } } message M { }`,
			"null or other"},
		{head + `DoubleValue a = 1; } message DoubleValue { double value = 1; }`, "null or number"},
		{head + `Timestamp a = 1; } message Timestamp { int64 seconds = 1; }`, "null or other"},
		{head + `Timestamp a = 1; } message Timestamp { int64 seconds = 1; repeated int32 nanos = 2; }`,
			"null or other"},
		{head + `Duration a = 1; } message Duration { int64 seconds = 1; Duration nanos = 2; }`, "null or other"},
		{`syntax = "proto3"; package confluent.type; message Order { Decimal a = 1; } message Decimal { bytes value = 1; Decimal scale = 3; }`, "null or other"},
		{`syntax = "proto3"; import "google/protobuf/wrappers.proto"; message Order { google.protobuf.DoubleValue a = 1; }`, "null or number"},
	} {
		s, err := Parse(Protobuf, c.text,
			[]Reference{{"google/protobuf/wrappers.proto", head + `int32 x = 1; } message DoubleValue { }`}})
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		plan, kinds, _, err := s.PlanWithKey(paths("a", "a.value", "a.nanos", "a.scale"), nil)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if kinds[0].String() != c.want {
			t.Errorf("%s: %v, want %s", c.text, kinds[0], c.want)
		}
		reader := NewReader(plan)
		for range 2000 { // each message has a field a, with fields 1 to 3 of any form
			inside := make([]byte, r.IntN(12))
			for i := range inside {
				inside[i] = byte(r.IntN(4)<<3 | r.IntN(6))
			}
			reader.Read(append([]byte{1<<3 | 2, byte(len(inside))}, inside...))
		}
	}
}

// repeated concatenates f(0), f(1), … until it has the given number of bytes.
func repeated(bytes int, f func(i int) string) string {
	var b strings.Builder
	for i := 0; ; i++ {
		next := f(i)
		if b.Len()+len(next) > bytes {
			return b.String()
		}
		b.WriteString(next)
	}
}

// many concatenates n results of f.
func many(n int, f func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(f(i))
	}
	return b.String()
}

func field(of string) func(int) string {
	return func(i int) string { return fmt.Sprintf("%s a%d=%d;", of, i, i+1+i/18_998*1001) }
}

func serialized(t *testing.T, d *descriptorpb.FileDescriptorProto) string {
	data, err := proto.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(data)
}

// bounded runs f, and fails if f allocates more memory in total, or takes much longer, than it should. The time limit
// is many times the usual time on an idle machine.
func bounded(t *testing.T, name string, megabytes uint64, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	f()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	if asked := (after.TotalAlloc - before.TotalAlloc) >> 20; asked > megabytes {
		t.Errorf("%s: %d MiB were allocated, more than %d", name, asked, megabytes)
	}
	if took > 20*time.Second {
		t.Errorf("%s: took %v", name, took)
	}
}

// TestBoundedProtobuf: a schema that would need much memory or time is refused early, before it uses them.
func TestBoundedProtobuf(t *testing.T) {
	const (
		head = `syntax = "proto3"; `
		full = MaxText - 1000
	)
	fields := func(name string, n int) *descriptorpb.FileDescriptorProto {
		m := &descriptorpb.DescriptorProto{Name: &name}
		for i := range n {
			m.Field = append(m.Field,
				&descriptorpb.FieldDescriptorProto{Name: proto.String(fmt.Sprint("a", i)),
					Number: proto.Int32(int32(i + 1)),
					Type:   descriptorpb.FieldDescriptorProto_TYPE_INT32.Enum(),
					Label:  descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()})
		}
		return &descriptorpb.FileDescriptorProto{Syntax: proto.String("proto3"),
			MessageType: []*descriptorpb.DescriptorProto{m}}
	}
	longPackage := fields("M", 2000)
	longPackage.Package = proto.String(strings.Repeat("x", 100_000))
	deep := fields("M", 1)
	for range 2000 {
		deep.MessageType = []*descriptorpb.DescriptorProto{{Name: proto.String("M"), NestedType: deep.MessageType}}
	}
	var diamond, row, wide []Reference
	public := func(of ...string) (text string) {
		text = head
		for _, name := range of {
			text += `import public "` + name + `";`
		}
		return text
	}
	imports := head
	for i := range 28 {
		below := public(fmt.Sprint("a", i+1), fmt.Sprint("b", i+1))
		if i == 27 {
			below = head
		}
		diamond = append(diamond, Reference{fmt.Sprint("a", i), below}, Reference{fmt.Sprint("b", i), below})
	}
	for i := range 40 {
		row = append(row, Reference{fmt.Sprint("c", i), public(fmt.Sprint("c", i+1))})
	}
	row = append(row, Reference{"c40", head})
	for i := range 900 {
		imports += fmt.Sprintf(`import "w%d";`, i)
		wide = append(wide, Reference{fmt.Sprint("w", i), head})
	}
	wide[899].Text += "message T {}"
	long := strings.Repeat("x", 40_000)
	for _, c := range []struct {
		name, text string
		references []Reference
		want       string // want is part of the error; "": no error
		megabytes  uint64
	}{
		{"too long", head + strings.Repeat("\n", MaxText) + "message M {}", nil, "more than 1024 KiB", 1},
		{"references too long", head + "message M {}", []Reference{{"a", strings.Repeat("\n", MaxText)}},
			"more than 1024 KiB", 1},
		{"a reference's name", head + "message M {}", []Reference{{long, ""}}, "a name has", 1},
		{"a message's name", head + "message " + long + "{" + many(2000, field("int32")) + "}", nil, "a name has", 5},
		{"a message's name, serialized", serialized(t, fields(long, 2000)), nil, "a name has", 10},
		{"a package", serialized(t, longPackage), nil, "a name has", 10},
		{"full names",
			head + many(30, func(i int) string { return fmt.Sprintf("message M%d%s{", i, long[:400]) }) +
				many(500, field("int32")) + strings.Repeat("}", 30), nil, "full names", 20},
		{"nesting", head + strings.Repeat("message M{", 50_000) + strings.Repeat("}", 50_000), nil, "brackets", 5},
		{"nesting, less", head + strings.Repeat("message M{", 50) + strings.Repeat("}", 50), nil, "nesting depth", 5},
		{"nesting, serialized", serialized(t, deep), nil, "messages are nested", 20},
		{"an option's nesting", head + "message M {} option x = {" + strings.Repeat("m{", 300_000), nil, "brackets", 5},
		{"an option", head + "message M {} option x = {" + strings.Repeat("m{}", 300_000) + "};", nil,
			"words and punctuation marks", 5},
		{"fields", head + "message M {" + repeated(full, field("int32")) + "}", nil, "words and punctuation marks", 5},
		{"many symbols",
			head + "message M {} enum E {" + many(21_000, func(i int) string { return fmt.Sprintf("A%d=%d;", i, i) }) +
				"}", nil, "fields and symbols", 60},
		{"many ranges",
			head + "message M { reserved 1" + many(30_000, func(i int) string { return fmt.Sprint(",", 2*i+3) }) +
				"; }", nil, "fields and symbols", 60},
		{"comments", head + "message M {}" + strings.Repeat("/**/", full/4), nil, "words and punctuation marks", 5},
		{"optional fields", head + "message M {" + many(9900, field("optional int32")) + "}", nil, "", 100},
		{"public imports", public("a0", "b0") + "message M { int32 a = 1; }", diamond,
			"too many names and imports", 20},
		{"a row of imports", public("c0") + "message M { int32 a = 1; }", row, "a chain of imports has more than", 20},
		{"names in imports", imports + "message M {" + many(3000, field("T")) + "}", wide,
			"too many names and imports", 60},
		{"itself", `syntax = "proto3"; import "a"; message M {}`,
			[]Reference{{"a", `syntax = "proto3"; import "the schema";`}}, "imports itself", 5},
		{"strings and comments",
			head + `/* "{ */ // '` + "\n" +
				`import "google/protobuf/any.proto"; message M { string a = 1 [json_name = "\"{[("]; } /* ` +
				strings.Repeat("{", 1000) + "*/", nil, "", 10},
	} {
		bounded(t, c.name, c.megabytes, func() {
			_, err := Parse(Protobuf, c.text, c.references)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		})
	}
}

// TestBoundedPlan: a plan is not larger than its schema, however many members a oneof has, and however many columns
// read one enum.
func TestBoundedPlan(t *testing.T) {
	one := mustProto(t, `syntax = "proto3"; message M { oneof o {`+many(15_000, field("int32"))+"} }")
	symbols := mustProto(t,
		`syntax = "proto3"; message M {`+many(1000, field("E"))+"} enum E {"+
			many(10_000, func(i int) string { return fmt.Sprintf("A%d=%d;", i, i) })+"}")
	var columns []string
	for i := range 1000 {
		columns = append(columns, fmt.Sprint("a", i))
	}
	bounded(t, "oneof", 20, func() { one.Plan(paths("a1", "a3")) })
	bounded(t, "enum", 20, func() { symbols.Plan(paths(columns...)) })
}

// TestBoundedJSON: a schema with large patterns, many names or many recursive references takes little memory and time.
func TestBoundedJSON(t *testing.T) {
	const full = MaxText - 2000
	patterns := func(n int, pattern func(i int) string) string {
		return `"patternProperties":{` +
			many(n, func(i int) string { return fmt.Sprintf(`"%s":{"type":"number"},`, pattern(i)) }) + `"\u0000":true}`
	}
	itself := func(of string) string {
		return `{"$defs":{"a":{` + of + `,"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`
	}
	list := func(of string) string { return "[" + repeated(full, func(int) string { return of + "," }) + of + "]" }
	gone := absent | kindsOf(column.Number)
	for _, c := range []struct {
		name, text string
		want       string // want is part of the error
		kinds      Kinds
	}{
		{"a pattern that is known", `{` + patterns(1, func(int) string { return "^[a-z]{1,64}$" }) + `}`, "", gone},
		{"a long pattern",
			`{` + patterns(1, func(int) string { return "a|" + strings.Repeat("a", maxPattern) }) + `}`, "", 0},
		{"a large pattern", `{` + patterns(1, func(int) string { return "a|(aaaaaaaaaa){1000}" }) + `}`, "", 0},
		{"long patterns",
			`{` +
				patterns(100, func(i int) string { return fmt.Sprintf("(%d%s){1000}", i, strings.Repeat("a", 3000)) }) +
				`}`, "", 0},
		{"large patterns",
			`{` + patterns(3000, func(i int) string { return fmt.Sprintf("(%dx){900}", i) }) + `}`, "", 0},
		{"classes",
			`{` + patterns(3000, func(i int) string { return fmt.Sprint(i, "(?i)", strings.Repeat(`\\pL`, 60)) }) + `}`,
			"", 0},
		{"patterns again and again", itself(patterns(4000, func(i int) string { return fmt.Sprint("p", i) })), "", 0},
		{"required again and again", itself(`"properties":{"a":true},"required":` + list(`"b"`)), "", 0},
		{"an enum again and again", `{"properties":{"a":` + itself(`"enum":`+list("1")) + `}}`, "", 0},
		{"many that lead back",
			`{"$defs":{"a":{"allOf":` + list(`{"$ref":"#/$defs/a"}`) + `}},"$ref":"#/$defs/a"}`, "", 0},
		{"long references",
			`{"$defs":{"a":{"allOf":` + list(`{"$ref":"#`+strings.Repeat("/a", 500)+`"}`) + `}},"$ref":"#/$defs/a"}`,
			"", 0},
		{"long ids",
			`{"$defs":{"a":{"allOf":` + list(`{"$id":"`+strings.Repeat("/a", 100)+`","$ref":"/#/$defs/a"}`) +
				`}},"$id":"/","$ref":"/#/$defs/a"}`, "", 0},
		{"a long id", `{"$id":"http://h/` + strings.Repeat("x", maxName) + `"}`, "a name has", 0},
		{"a long anchor", `{"a":{"$anchor":"` + strings.Repeat("x", maxName+1) + `"}}`, "a name has", 0},
		{"ids in a row",
			many(900, func(int) string { return `{"$id":"` + strings.Repeat("x", 200) + `/","a":` }) + "1" +
				strings.Repeat("}", 900), "", 0},
		{"an example's id",
			`{"properties":{"a":{"type":"number","examples":[{"id":"` + strings.Repeat("x", 1000) + `"}]}}}`, "", gone},
		{"anchors",
			`{"$id":"http://h/` + strings.Repeat("x", 480) + `","a":[` +
				repeated(full, func(i int) string { return fmt.Sprintf(`{"$anchor":"a%d"},`, i) }) + `1]}`,
			"named schemas", 0},
		{"too long", `{"a":"` + strings.Repeat("x", MaxText) + `"}`, "more than 1024 KiB", 0},
	} {
		var s *Schema
		bounded(t, c.name, 80, func() {
			var err error
			s, err = Parse(JSON, c.text, nil)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.name, err, c.want)
			}
		})
		if s == nil {
			continue
		}
		bounded(t, c.name+", a path", 80, func() {
			if _, kinds := s.Plan(paths("a")); kinds[0] != c.kinds {
				t.Errorf("%s: %v, want %v", c.name, kinds[0], c.kinds)
			}
		})
	}
}

// TestJSONCost: the search subtracts the cost of each part before it examines the part.
func TestJSONCost(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"allOf", "anyOf", "oneOf", "enum", "required", "type"} {
		if cost := costOf(map[string]any{word: make([]any, 1000)}); cost < 1000 {
			t.Errorf("%s costs %d", word, cost)
		}
	}
	for _, word := range []string{"$ref", "$id", "id"} {
		if cost := costOf(map[string]any{word: strings.Repeat("x", 1000)}); cost < 1000 {
			t.Errorf("%s costs %d", word, cost)
		}
	}
	long := strings.Repeat("x", maxPattern) // a name that costs only its comparison
	for name, of := range map[string]map[string]any{
		"many patterns":  {long + "a": true, long + "b": true, long + "c": true, long + "d": true, long + "e": true},
		"a long pattern": {strings.Repeat("a|", 100): true},
		"a repetition":   {"a{1000}|a": true},
	} {
		search := &jsonSearch{&jsonSchema{}, 24}
		if name == "a repetition" {
			search.left = 20*len("a{1000}|a") + 100
		}
		if _, ok := search.below(jsonNode{}, map[string]any{"patternProperties": of},
			column.Element{Name: "a", Index: -1}); ok || search.left >= 0 {
			t.Errorf("%s: %v, with %d left", name, ok, search.left)
		}
	}
}
