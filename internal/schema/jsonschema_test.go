package schema

import (
	"testing"

	"github.com/streamdp/streamdp/internal/column"
)

// TestJSONSchema checks which kinds of values a JSON Schema allows at a path.
func TestJSONSchema(t *testing.T) {
	const (
		gone   = 1 << column.Absent
		number = 1 << column.Number
		text   = 1 << column.Text
		truth  = 1 << column.Truth
		other  = 1 << column.Other
	)
	reference := Reference{"https://x.test/place.json",
		`{"type": "object", "required": ["lat"], "properties": {"lat": {"type": "number"}, "up": {"$ref": "#/$defs/up"}}, "$defs": {"up": {"type": "integer"}}}`}
	for _, c := range []struct {
		schema, path string
		want         Kinds
	}{
		{`{"properties": {"a": {"type": "number"}}}`, "a", number | gone},
		{`{"properties": {"a": {"type": "number"}}, "required": ["a"]}`, "a", number},
		{`{"properties": {"a": {"type": "number"}}, "required": ["a"]}`, "b", 0},
		{`{"properties": {"a": {"type": "number"}}, "additionalProperties": true}`, "b", 0},
		{`{"properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "string"}}`, "b", text | gone},
		{`{"patternProperties": {"^x_": {"type": "boolean"}}}`, "x_1", truth | gone},
		{`{"patternProperties": {"^x_": {"type": "boolean"}}}`, "y_1", 0},
		{`{"properties": {"a": {"type": ["null", "integer"]}}, "required": ["a"]}`, "a", number | gone},
		{`{"properties": {"a": {"oneOf": [{"type": "null"}, {"type": "string"}]}}, "required": ["a"]}`, "a",
			text | gone},
		{`{"properties": {"a": {}}, "required": ["a"]}`, "a", gone | number | text | truth | other},
		{`{"properties": {"a": true}, "required": ["a"]}`, "a", gone | number | text | truth | other},
		{`{"properties": {"a": false}, "required": ["a"]}`, "a", 0},
		{`{"properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}`, "a", text},
		{`{"properties": {"a": {"const": 3}}, "required": ["a"]}`, "a", number},
		{`{"properties": {"a": {"type": "object"}}, "required": ["a"]}`, "a", other},
		{`{"properties": {"a": {"properties": {"b": {"type": "number"}}, "required": ["b"]}}, "required": ["a"]}`,
			"a.b", number},
		{`{"properties": {"a": {"properties": {"b": {"type": "number"}}, "required": ["b"]}}}`, "a.b", number | gone},
		{`{"properties": {"a": {"items": {"type": "number"}}}, "required": ["a"]}`, "a[3]", number | gone},
		{`{"properties": {"a": {"items": [{"type": "number"}], "additionalItems": {"type": "string"}}}, "required": ["a"]}`, "a[0]", number | gone},
		{`{"properties": {"a": {"items": [{"type": "number"}], "additionalItems": {"type": "string"}}}, "required": ["a"]}`, "a[1]", text | gone},
		{`{"properties": {"a": {"prefixItems": [{"type": "number"}], "items": {"type": "string"}}}}`, "a[1]",
			text | gone},
		{`{"properties": {"a": {"prefixItems": [{"type": "number"}]}}}`, "a[1]", 0},
		{`{"properties": {"a": {"$ref": "#/definitions/x"}}, "required": ["a"], "definitions": {"x": {"type": "string"}}}`, "a", text},
		{`{"properties": {"a": {"$ref": "#x"}}, "required": ["a"], "definitions": {"y": {"$anchor": "x", "type": "string"}}}`, "a", text},
		{`{"$id": "https://y.test/z", "properties": {"a": {"$ref": "w"}}, "required": ["a"], "definitions": {"y": {"$id": "w", "type": "string"}}}`, "a", text},
		{`{"properties": {"a": {"$ref": "#/definitions/none"}}, "required": ["a"]}`, "a", 0},
		{`{"$id": "https://x.test/all.json", "properties": {"a": {"$ref": "place.json"}}}`, "a.lat", number | gone},
		{`{"$id": "https://y.test/all.json", "properties": {"a": {"$ref": "https://x.test/place.json"}}, "required": ["a"]}`, "a.lat", number},
		{`{"properties": {"a": {"$ref": "https://x.test/place.json"}}, "required": ["a"]}`, "a.up", number | gone},
		{`{"properties": {"a": {"$ref": "https://x.test/place.json#/properties/lat"}}, "required": ["a"]}`,
			"a", number},
		{`{"allOf": [{"properties": {"a": {"type": "number"}}}, {"required": ["a"]}]}`, "a", number | gone},
		{`{"allOf": [{"properties": {"a": {"type": ["number", "string"]}}}, {"properties": {"a": {"type": ["number", "boolean"]}}}]}`, "a", number | gone},
		{`{"oneOf": [{"properties": {"a": {"type": "number"}}, "required": ["a"]}, {"properties": {"b": {"type": "number"}}}]}`, "a", number | gone},
		{`{"oneOf": [{"properties": {"a": {"type": "number"}}, "required": ["a"]}, {"properties": {"a": {"type": "string"}}, "required": ["a"]}]}`, "a", number | text},
		{`{"properties": {"next": {"$ref": "#"}, "a": {"type": "number"}}, "required": ["next", "a"]}`,
			"next.next.a", number},
		{`{"$ref": "#"}`, "a", 0},
		{`{"allOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]}`, "a", 0},
		{`true`, "a", 0},
	} {
		s, err := ParseJSON(c.schema, []Reference{reference})
		if err != nil {
			t.Errorf("%s: %v", c.schema, err)
			continue
		}
		plan, kinds := s.Plan([][]column.Element{path(c.path)})
		if plan != nil || kinds[0] != c.want {
			t.Errorf("%s: %s is %b, want %b", c.schema, c.path, kinds[0], c.want)
		}
	}
	for _, bad := range []string{"", "3", "{", `"x"`} {
		if _, err := ParseJSON(bad, nil); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestJSONOrder: results do not depend on the order of a map. Rows depend on the results, and must be the same after a
// restart and in another worker.
func TestJSONOrder(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"patterns": `{"patternProperties": {"^a": {"type": "number"}, "a$": {"type": "string"}, ".": {"type": "boolean"}}}`,
		"anchors":  `{"$defs": {"b": {"$anchor": "x", "type": "string"}, "a": {"$anchor": "x", "type": "number"}, "c": {"$anchor": "x"}}, "properties": {"a": {"$ref": "#x"}}}`,
		"ids":      `{"$id": "http://h/", "$defs": {"b": {"$id": "x", "type": "string"}, "a": {"$id": "x", "type": "number"}}, "properties": {"a": {"$ref": "x"}}}`,
	} {
		first := Kinds(0)
		for i := range 64 {
			s, err := ParseJSON(text, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, kinds := s.Plan([][]column.Element{{{Name: "a", Index: -1}}})
			if i == 0 {
				first = kinds[0]
			}
			if kinds[0] != first || first == 0 {
				t.Fatalf("%s: %v, then %v", name, first, kinds[0])
			}
		}
	}
}
