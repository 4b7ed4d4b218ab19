package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"streamdp/internal/column"
)

// jsonSchema is a JSON Schema document and those that it refers to. What matters of it is where a
// record can have a value, and of which type: records are not validated.
type jsonSchema struct {
	root     jsonNode
	found    map[string]jsonNode       // by absolute URI, with "#name" for an anchor
	patterns map[string]*regexp.Regexp // of "patternProperties", nil for one that is not known
}

// jsonNode is a schema and the URI that its relative references are relative to.
type jsonNode struct {
	of   any // map[string]any or bool
	base *url.URL
}

// ParseJSON reads a JSON Schema, of drafts 4 to 2020-12, and those that it refers to.
//
// Errors: that one of them is no JSON, or neither an object nor a boolean.
func ParseJSON(text string, references []Reference) (*Schema, error) {
	s := &jsonSchema{found: map[string]jsonNode{}, patterns: map[string]*regexp.Regexp{}}
	for _, r := range append(references[:len(references):len(references)], Reference{Text: text}) {
		in := ""
		if r.Name != "" {
			in = "reference " + r.Name + ": "
		}
		var x any
		if err := json.Unmarshal([]byte(r.Text), &x); err != nil {
			return nil, fmt.Errorf("%s%w", in, err)
		}
		base, err := url.Parse(r.Name)
		if err != nil {
			return nil, fmt.Errorf("%s%w", in, err)
		}
		switch x.(type) {
		case bool, map[string]any:
		default:
			return nil, errors.New(in + "a JSON Schema is an object or a boolean")
		}
		s.root = jsonNode{x, base}
		s.found[base.String()] = s.root
		s.collect(x, base, 0)
		if m, ok := x.(map[string]any); ok {
			s.root.base = s.baseOf(m, base)
		}
	}
	return &Schema{format: JSON, json: s}, nil
}

// baseOf returns what references inside a schema are relative to.
func (s *jsonSchema) baseOf(m map[string]any, base *url.URL) *url.URL {
	for _, word := range []string{"$id", "id"} {
		if id, ok := m[word].(string); ok {
			if u, err := url.Parse(id); err == nil && !strings.HasPrefix(id, "#") {
				u = base.ResolveReference(u)
				u.Fragment = ""
				return u
			}
		}
	}
	return base
}

// collect finds all schemas that have a name of their own.
func (s *jsonSchema) collect(x any, base *url.URL, depth int) {
	if depth > maxSchemaDepth {
		return
	}
	switch x := x.(type) {
	case []any:
		for _, of := range x {
			s.collect(of, base, depth+1)
		}
	case map[string]any:
		if below := s.baseOf(x, base); below != base {
			base = below
			s.found[base.String()] = jsonNode{x, base}
		}
		for _, word := range []string{"$anchor", "$id", "id"} {
			if name, ok := x[word].(string); ok && (word == "$anchor" || strings.HasPrefix(name, "#")) {
				s.found[base.String()+"#"+strings.TrimPrefix(name, "#")] = jsonNode{x, base}
			}
		}
		if patterns, ok := x["patternProperties"].(map[string]any); ok {
			for p := range patterns {
				s.patterns[p], _ = regexp.Compile(p)
			}
		}
		// Of two with one name the last counts, whichever the order of a map is: rows depend on it.
		for _, word := range slices.Sorted(maps.Keys(x)) {
			s.collect(x[word], base, depth+1)
		}
	}
}

// resolve returns what a reference leads to.
func (s *jsonSchema) resolve(ref string, base *url.URL) (jsonNode, bool) {
	u, err := url.Parse(ref)
	if err != nil {
		return jsonNode{}, false
	}
	u = base.ResolveReference(u)
	fragment := u.Fragment // "", a name, or a JSON pointer
	u.Fragment, u.RawFragment = "", ""
	if fragment == "" {
		fragment = "/"
	}
	if fragment[0] != '/' {
		n, ok := s.found[u.String()+"#"+fragment]
		return n, ok
	}
	n, ok := s.found[u.String()]
	if !ok {
		// Producers speak of a reference by what the registry calls it, whatever its base.
		if path, _, _ := strings.Cut(ref, "#"); path != "" {
			n, ok = s.found[path]
		} else {
			n, ok = s.root, true
		}
	}
	for _, word := range strings.Split(strings.TrimSuffix(fragment, "/"), "/")[1:] {
		word = strings.NewReplacer("~1", "/", "~0", "~").Replace(word)
		switch x := n.of.(type) {
		case map[string]any:
			n.of, ok = x[word], ok && x[word] != nil
		case []any:
			i, err := strconv.Atoi(word)
			if ok = ok && err == nil && i >= 0 && i < len(x); ok {
				n.of = x[i]
			}
		default:
			ok = false
		}
		if !ok {
			return jsonNode{}, false
		}
		if m, is := n.of.(map[string]any); is {
			n.base = s.baseOf(m, n.base)
		}
	}
	return n, ok
}

// anything is what a schema allows that says nothing.
var anything = kindsOf(column.Absent, column.Number, column.Text, column.Truth, column.Other)

// jsonSearch looks for one path. It stops after so many schemas, for a document can refer to
// itself in many ways.
type jsonSearch struct {
	*jsonSchema
	left int
}

const maxJSONSearch = 10000

func (s *jsonSchema) kinds(path []column.Element) Kinds {
	kinds, declared := (&jsonSearch{s, maxJSONSearch}).at(s.root, path, 0)
	if !declared {
		return 0
	}
	return kinds
}

// at returns what values at a path inside of n can be. declared says that n speaks of the path at
// all; without that, what it allows is not known.
func (s *jsonSearch) at(n jsonNode, path []column.Element, depth int) (kinds Kinds, declared bool) {
	if s.left--; s.left < 0 || depth > 4*maxDepth {
		return 0, true
	}
	m, ok := n.of.(map[string]any)
	if !ok {
		if n.of == false {
			return 0, true
		}
		return anything, len(path) == 0
	}
	kinds, declared = anything, len(path) == 0
	both := func(of Kinds, says bool) { // of two schemas that hold at once
		if says {
			kinds, declared = kinds&of, true
		}
	}
	if ref, ok := m["$ref"].(string); ok {
		to, ok := s.resolve(ref, n.base)
		if !ok {
			return 0, true
		}
		both(s.at(to, path, depth+1))
	}
	if len(path) == 0 {
		both(ownKinds(m), true)
	} else if of, ok := s.below(n, m, path[0]); ok {
		found, says := s.at(of, path[1:], depth+1)
		if says && found != 0 && !required(m, path[0]) {
			found |= absent
		}
		both(found, says)
	}
	for _, word := range []string{"allOf", "anyOf", "oneOf"} {
		all, ok := m[word].([]any)
		if !ok || len(all) == 0 {
			continue
		}
		either, silent, says := Kinds(0), false, false
		for _, x := range all {
			found, ok := s.at(s.child(x, n.base), path, depth+1)
			if word == "allOf" {
				both(found, ok)
				continue
			}
			if ok && found != 0 {
				either, says = either|found, true
			} else {
				silent = true
			}
		}
		if says {
			if silent && len(path) > 0 {
				either |= absent
			}
			both(either, true)
		}
	}
	return kinds, declared
}

func (s *jsonSchema) child(x any, base *url.URL) jsonNode {
	if m, ok := x.(map[string]any); ok {
		base = s.baseOf(m, base)
	}
	return jsonNode{x, base}
}

// below returns the schema of what is at one element of a path.
func (s *jsonSchema) below(n jsonNode, m map[string]any, e column.Element) (of jsonNode, ok bool) {
	if e.Index >= 0 {
		rest := m["items"]
		for _, word := range []string{"prefixItems", "items"} {
			if items, is := m[word].([]any); is {
				if e.Index < len(items) {
					return s.child(items[e.Index], n.base), true
				}
				if word == "items" {
					rest = m["additionalItems"]
				}
			}
		}
		if _, is := rest.(map[string]any); is {
			return s.child(rest, n.base), true
		}
		return of, false
	}
	if properties, is := m["properties"].(map[string]any); is {
		if x, is := properties[e.Name]; is {
			return s.child(x, n.base), true
		}
	}
	if patterns, is := m["patternProperties"].(map[string]any); is {
		for _, p := range slices.Sorted(maps.Keys(patterns)) {
			if r := s.patterns[p]; r != nil && r.MatchString(e.Name) {
				return s.child(patterns[p], n.base), true
			}
		}
	}
	if x, is := m["additionalProperties"].(map[string]any); is {
		return s.child(x, n.base), true
	}
	return of, false
}

func required(m map[string]any, e column.Element) bool {
	names, _ := m["required"].([]any)
	for _, name := range names {
		if name == e.Name && e.Index < 0 {
			return true
		}
	}
	return false
}

// ownKinds returns what a schema's own words about a value allow.
func ownKinds(m map[string]any) Kinds {
	kinds := anything
	switch of := m["type"].(type) {
	case string:
		kinds = kindOfType(of)
	case []any:
		kinds = 0
		for _, x := range of {
			if name, ok := x.(string); ok {
				kinds |= kindOfType(name)
			}
		}
	}
	if of, ok := m["const"]; ok {
		kinds &= kindOfJSON(of)
	}
	if all, ok := m["enum"].([]any); ok {
		found := Kinds(0)
		for _, x := range all {
			found |= kindOfJSON(x)
		}
		kinds &= found
	}
	return kinds
}

func kindOfType(name string) Kinds {
	switch name {
	case "number", "integer":
		return kindsOf(column.Number)
	case "string":
		return kindsOf(column.Text)
	case "boolean":
		return kindsOf(column.Truth)
	case "null":
		return absent
	}
	return kindsOf(column.Other)
}

func kindOfJSON(x any) Kinds {
	switch x.(type) {
	case nil:
		return absent
	case float64:
		return kindsOf(column.Number)
	case string:
		return kindsOf(column.Text)
	case bool:
		return kindsOf(column.Truth)
	}
	return kindsOf(column.Other)
}
