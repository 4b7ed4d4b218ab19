package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/internal/column"
)

// jsonSchema is a JSON Schema document with the documents that it refers to. It is used only to find the types of value
// that a record can have at a path, not to validate records.
type jsonSchema struct {
	root  jsonNode
	found map[jsonName]jsonNode
}

// jsonName is the name of a schema: the absolute URI of a document, and the name of an anchor in it, "" for the whole
// document.
type jsonName struct{ base, anchor string }

// jsonNode is a schema and the base URI of its relative references.
type jsonNode struct {
	of   any // map[string]any or bool
	base *url.URL
}

// ParseJSON reads a JSON Schema, of drafts 4 to 2020-12, and the schemas to which it refers.
//
// Errors: a schema is not JSON, is neither an object nor a boolean, or has names that are too long or too many.
func ParseJSON(text string, references []Reference) (*Schema, error) {
	s := &jsonSchema{found: map[jsonName]jsonNode{}}
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
		name := base.String()
		s.found[jsonName{base: name}] = s.root
		if err := s.collect(x, base, name, 0); err != nil {
			return nil, fmt.Errorf("%s%w", in, err)
		}
		if m, ok := x.(map[string]any); ok {
			s.root.base = s.baseOf(m, base)
		}
	}
	return &Schema{format: JSON, json: s}, nil
}

// baseOf returns the base URI for references inside a schema. It ignores an id that is longer than a name may be.
func (s *jsonSchema) baseOf(m map[string]any, base *url.URL) *url.URL {
	for _, word := range []string{"$id", "id"} {
		id, ok := m[word].(string)
		if !ok || len(id) > maxName || strings.HasPrefix(id, "#") {
			continue
		}
		if u, err := url.Parse(id); err == nil {
			u = base.ResolveReference(u)
			u.Fragment, u.RawFragment = "", ""
			if len(u.String()) <= maxName {
				return u
			}
		}
	}
	return base
}

// collect registers all schemas inside x that have a name. name is the text of base.
func (s *jsonSchema) collect(x any, base *url.URL, name string, depth int) error {
	if len(s.found) > maxJSONNames {
		return fmt.Errorf("the document has more than %d named schemas", maxJSONNames)
	}
	if depth > maxSchemaDepth {
		return nil
	}
	switch x := x.(type) {
	case []any:
		for _, of := range x {
			if err := s.collect(of, base, name, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		if below := s.baseOf(x, base); below != base {
			base, name = below, below.String()
			s.found[jsonName{base: name}] = jsonNode{x, base}
		}
		for _, word := range []string{"$anchor", "$id", "id"} {
			anchor, ok := x[word].(string)
			if ok && len(anchor) > maxName {
				if word == "id" {
					continue // an example is not a schema, and may have an id of its own
				}
				return errLongName
			}
			if ok && (word == "$anchor" || strings.HasPrefix(anchor, "#")) {
				s.found[jsonName{name, strings.TrimPrefix(anchor, "#")}] = jsonNode{x, base}
			}
		}
		// If two schemas have the same name, the last one counts. The order must be fixed, unlike that of a map,
		// because rows depend on it.
		for _, word := range slices.Sorted(maps.Keys(x)) {
			if err := s.collect(x[word], base, name, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// pointerEscapes replaces the escape sequences of a JSON pointer.
var pointerEscapes = strings.NewReplacer("~1", "/", "~0", "~")

// resolve returns the schema that a reference leads to.
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
		n, ok := s.found[jsonName{u.String(), fragment}]
		return n, ok
	}
	n, ok := s.found[jsonName{base: u.String()}]
	if !ok {
		// Producers may refer to a schema by its name in the registry, whatever its base URI.
		if path, _, _ := strings.Cut(ref, "#"); path != "" {
			n, ok = s.found[jsonName{base: path}]
		} else {
			n, ok = s.root, true
		}
	}
	for _, word := range strings.Split(strings.TrimSuffix(fragment, "/"), "/")[1:] {
		word = pointerEscapes.Replace(word)
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

// anything is the set of kinds that an empty schema allows.
var anything = kindsOf(column.Absent, column.Number, column.Text, column.Truth, column.Other)

// jsonSearch looks for one path. It subtracts the cost of its work from left, in units of about 100 ns. The limit is
// needed because a document can be large and refer to itself in many ways.
type jsonSearch struct {
	*jsonSchema
	left int
}

const (
	maxJSONSearch  = 200_000
	maxJSONNames   = 10_000 // largest number of schemas with names
	maxPattern     = 4096   // largest size of a pattern in bytes; a longer one matches nothing
	maxPatternSize = 5000   // largest number of steps of a pattern, with repetitions written out
)

// kinds returns the possible kinds of values at a path. A path that takes too long to find counts as missing.
func (s *jsonSchema) kinds(path []column.Element) Kinds {
	search := &jsonSearch{s, maxJSONSearch}
	kinds, declared := search.at(s.root, path, 0)
	if !declared || search.left < 0 {
		return 0
	}
	return kinds
}

// takes subtracts units from the remaining work, and reports whether that much was left.
func (s *jsonSearch) takes(units int) bool {
	s.left -= units
	return s.left >= 0
}

// at returns the possible kinds of values at a path inside n. declared is false if n says nothing about the path, so
// that its values are unknown.
func (s *jsonSearch) at(n jsonNode, path []column.Element, depth int) (kinds Kinds, declared bool) {
	m, ok := n.of.(map[string]any)
	if depth > 4*maxDepth || !s.takes(costOf(m)) {
		return 0, true
	}
	if !ok {
		if n.of == false {
			return 0, true
		}
		return anything, len(path) == 0
	}
	kinds, declared = anything, len(path) == 0
	both := func(of Kinds, says bool) { // combines schemas that apply together
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
			if s.left < 0 {
				break
			}
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

// costOf returns the cost of examining a schema itself, without its patterns and parts.
func costOf(m map[string]any) int {
	cost := 20
	for _, word := range []string{"$ref", "$id", "id"} {
		if text, ok := m[word].(string); ok {
			cost += 20 + len(text)
		}
	}
	for _, word := range []string{"allOf", "anyOf", "oneOf", "enum", "required", "type"} {
		all, _ := m[word].([]any)
		cost += len(all)
	}
	return cost
}

func (s *jsonSchema) child(x any, base *url.URL) jsonNode {
	if m, ok := x.(map[string]any); ok {
		base = s.baseOf(m, base)
	}
	return jsonNode{x, base}
}

// below returns the schema of the value that element e of a path selects inside n.
func (s *jsonSearch) below(n jsonNode, m map[string]any, e column.Element) (of jsonNode, ok bool) {
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
	if patterns, is := m["patternProperties"].(map[string]any); is && s.takes(5*len(patterns)) {
		for _, p := range slices.Sorted(maps.Keys(patterns)) {
			if s.matches(p, e.Name) {
				return s.child(patterns[p], n.base), true
			}
		}
	}
	if x, is := m["additionalProperties"].(map[string]any); is {
		return s.child(x, n.base), true
	}
	return of, false
}

// matches reports whether a name matches a pattern. A pattern that is invalid or too large matches nothing.
func (s *jsonSearch) matches(pattern, name string) bool {
	if len(pattern) > maxPattern || !s.takes(20*len(pattern)) {
		return false
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return false
	}
	size := stepsOf(parsed)
	if size > maxPatternSize || !s.takes(size*(10+len(name)/4)) {
		return false
	}
	compiled, err := regexp.Compile(pattern)
	return err == nil && compiled.MatchString(name)
}

// stepsOf returns the number of steps of a pattern with its repetitions written out.
func stepsOf(r *syntax.Regexp) int {
	steps := 1 + len(r.Rune)
	for _, below := range r.Sub {
		steps += stepsOf(below)
	}
	if r.Op == syntax.OpRepeat {
		steps *= max(r.Min, r.Max, 1)
	}
	return steps
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

// ownKinds returns the kinds of values that the keywords of the schema itself allow.
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
