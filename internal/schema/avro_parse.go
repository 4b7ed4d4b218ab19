package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	// maxSchemaDepth is the largest nesting depth of types in a schema's text.
	maxSchemaDepth = 1000
	// maxTypes is the largest number of types in a schema and its references. The limit is needed because types may
	// contain each other by name in a chain of that length, along which measuring and planning recurse.
	maxTypes = 100_000
)

// ParseAvro reads an Avro schema. It first reads the schemas that this one refers to.
//
// It reads only what determines the layout of records. It ignores defaults, aliases and orders, because they matter
// only to readers whose schema differs from the writer's.
//
// Its errors say what is invalid, and in which schema.
func ParseAvro(text string, references []Reference) (*Schema, error) {
	p := newAvroParser()
	have := map[string]*avroType{} // types by schema text, because one schema may have two reference names
	for i := range references {
		if have[references[i].Text] != nil {
			continue
		}
		of, err := p.parse(references[i].Text)
		if err != nil {
			return nil, fmt.Errorf("reference %s: %w", references[i].Name, err)
		}
		have[references[i].Text] = of
	}
	root := have[text]
	if root == nil {
		var err error
		if root, err = p.parse(text); err != nil {
			return nil, err
		}
	}
	root.measure()
	return &Schema{format: Avro, avro: root}, nil
}

// avroName is the full name of a type. Its parts are not joined, because many types may share a long namespace.
type avroName struct {
	space, name string
}

// avroParser reads several schemas in a row. Each can use the named types of the earlier ones.
type avroParser struct {
	primitives map[string]*avroType
	named      map[avroName]*avroType
	types      int // number of types read so far
	// later and unions hold uses and unions that can only be resolved at the end of the current schema.
	later  []avroUse
	unions []*avroType
}

// avroUse is a use of a type by name before its definition, with the namespace in force at that place.
type avroUse struct {
	name, space string
	at          **avroType
}

func newAvroParser() *avroParser {
	p := &avroParser{primitives: map[string]*avroType{}, named: map[avroName]*avroType{}}
	for _, kind := range []string{"null", "boolean", "int", "long", "float", "double", "string", "bytes"} {
		p.primitives[kind] = &avroType{kind: kind}
	}
	return p
}

// parse reads one schema and returns its type.
func (p *avroParser) parse(text string) (root *avroType, err error) {
	x, err := decodeAvro(text)
	if err != nil {
		return nil, err
	}
	if err := p.use(x, "", &root, 0); err != nil {
		return nil, err
	}
	return root, p.finish()
}

// decodeAvro decodes a text with one JSON value. encoding/json refuses more than 10 000 nested levels. If two members
// have the same name, it uses the last one.
func decodeAvro(text string) (x any, err error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&x); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("the schema is followed by more text")
	}
	return x, nil
}

// use stores the type that x describes in *at. space is the namespace in force at x.
func (p *avroParser) use(x any, space string, at **avroType, depth int) error {
	if depth > maxSchemaDepth {
		return errors.New("the schema is nested too deeply")
	}
	if name, ok := x.(string); ok {
		return p.refer(name, space, at)
	}
	if p.types++; p.types > maxTypes {
		return fmt.Errorf("there are more than %d types", maxTypes)
	}
	switch x := x.(type) {
	case []any:
		*at = &avroType{kind: "union"}
		return p.union(*at, x, space, depth)
	case map[string]any:
		return p.object(x, space, at, depth)
	}
	return errors.New("a type is neither a string nor an array nor an object")
}

// refer stores the named type in *at, at once or at the schema's end. The meaning of a name is fixed where it is used:
// a type that is defined later under that name in the same namespace does not change it.
func (p *avroParser) refer(name, space string, at **avroType) error {
	if len(name) > maxName {
		return errLongName
	}
	if *at = p.find(name, space); *at == nil {
		p.later = append(p.later, avroUse{name, space, at})
	}
	return nil
}

// find returns the type of a name. A name without a dot is looked up first in the surrounding namespace, then without a
// namespace.
func (p *avroParser) find(name, space string) *avroType {
	if t := p.primitives[name]; t != nil {
		return t
	}
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		return p.named[avroName{name[:i], name[i+1:]}]
	}
	if t := p.named[avroName{space, name}]; t != nil {
		return t
	}
	return p.named[avroName{"", name}]
}

// finish completes a schema once all its types are known.
func (p *avroParser) finish() error {
	for _, u := range p.later {
		if *u.at = p.find(u.name, u.space); *u.at == nil {
			return fmt.Errorf("type %q is not defined", u.name)
		}
	}
	for _, union := range p.unions {
		have := map[any]bool{} // the branches so far: named types, and kinds of unnamed types
		for _, of := range union.of {
			var key any = of.kind
			switch of.kind {
			case "union":
				return errors.New("a union is directly inside a union")
			case "record", "enum", "fixed":
				key = of
			}
			if have[key] {
				return fmt.Errorf("a union has two branches of one type (%s)", of.kind)
			}
			have[key] = true
		}
	}
	p.later, p.unions = nil, nil
	return nil
}

func (p *avroParser) union(t *avroType, branches []any, space string, depth int) error {
	p.unions = append(p.unions, t)
	t.of = make([]*avroType, len(branches))
	for i, x := range branches {
		if err := p.use(x, space, &t.of[i], depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (p *avroParser) object(m map[string]any, space string, at **avroType, depth int) (err error) {
	kind, ok := m["type"].(string)
	if !ok {
		return errors.New(`the "type" of a type is not a string`)
	}
	t := &avroType{kind: kind}
	t.logical, _ = m["logicalType"].(string)
	switch kind {
	case "null", "boolean", "int", "long", "float", "double", "string", "bytes":
	case "array", "map":
		below := map[string]string{"array": "items", "map": "values"}[kind]
		if m[below] == nil {
			return fmt.Errorf("type %s has no %q", kind, below)
		}
		*at, t.of = t, make([]*avroType, 1)
		return p.use(m[below], space, &t.of[0], depth+1)
	case "record", "error", "enum", "fixed":
		if space, err = p.name(t, m, space); err != nil {
			return err
		}
	default:
		return p.refer(kind, space, at)
	}
	*at = t
	switch kind {
	case "record", "error":
		t.kind = "record"
		return p.fields(t, m, space, depth)
	case "enum":
		return t.readSymbols(m)
	case "fixed":
		if t.size, ok = wholeOf(m["size"]); !ok {
			return errors.New(`the "size" of a fixed is not a whole number of at least 0`)
		}
	}
	t.readScale(m)
	return nil
}

// name registers t under its full name, and returns the namespace for names inside it.
func (p *avroParser) name(t *avroType, m map[string]any, space string) (inside string, err error) {
	name, _ := m["name"].(string)
	of, given := m["namespace"]
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		space, name = name[:i], name[i+1:]
	} else if given {
		var ok bool
		if space, ok = of.(string); !ok {
			return "", errors.New(`a "namespace" is not a string`)
		}
	}
	if err := checkName(name); err != nil {
		return "", err
	}
	if len(space) > maxName {
		return "", errLongName // only its length is checked: writers disagree about the characters
	}
	full := avroName{space, name}
	if p.named[full] != nil {
		return "", fmt.Errorf("two types are named %q in namespace %q", name, space)
	}
	if space == "" && p.primitives[name] != nil {
		return "", fmt.Errorf("a type has the name of a primitive type, %q", name)
	}
	p.named[full] = t
	return space, nil
}

func (p *avroParser) fields(t *avroType, m map[string]any, space string, depth int) error {
	fields, ok := m["fields"].([]any)
	if !ok {
		return errors.New(`the "fields" of a record are not an array`)
	}
	t.fields = make([]avroField, len(fields))
	have := make(map[string]bool, len(fields))
	for i, x := range fields {
		f, _ := x.(map[string]any)
		name, _ := f["name"].(string)
		if err := checkName(name); err != nil {
			return err
		}
		if have[name] {
			return fmt.Errorf("a record has two fields %q", name)
		}
		have[name] = true
		t.fields[i].name = name
		of := f["type"]
		switch of {
		case nil:
			return fmt.Errorf("field %q has no type", name)
		case "record", "error", "enum", "fixed", "array", "map":
			of = f // goavro writes the members of the type among those of the field
		}
		if err := p.use(of, space, &t.fields[i].of, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (t *avroType) readSymbols(m map[string]any) error {
	symbols, ok := m["symbols"].([]any)
	if !ok {
		return errors.New(`the "symbols" of an enum are not an array`)
	}
	have := make(map[string]bool, len(symbols))
	for _, x := range symbols {
		s, _ := x.(string)
		if err := checkName(s); err != nil {
			return err
		}
		if have[s] {
			return fmt.Errorf("an enum has two symbols %q", s)
		}
		have[s] = true
		t.symbols = append(t.symbols, []byte(s))
	}
	return nil
}

// readScale reads the scale of a decimal. If precision or scale is invalid, the value is bytes instead of a number, as
// the specification says.
func (t *avroType) readScale(m map[string]any) {
	if t.logical != "decimal" || t.kind != "bytes" && t.kind != "fixed" {
		return
	}
	precision, ok := wholeOf(m["precision"])
	scale, given := m["scale"]
	if t.scale = 0; ok && given {
		t.scale, ok = wholeOf(scale)
	}
	if !ok || precision < 1 || t.scale > precision {
		t.logical, t.scale = "", 0
	}
}

// wholeOf returns a whole number that is not negative. It may be written in quotes.
func wholeOf(x any) (n int, ok bool) {
	digits := ""
	switch x := x.(type) {
	case json.Number:
		digits = x.String()
	case string:
		digits = x
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n >= 0
}

// checkName checks a name: of a type (without its namespace), a field or a symbol.
func checkName(s string) error {
	if len(s) > maxName {
		return errLongName
	}
	for i, c := range []byte(s) {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', c == '_', i > 0 && '0' <= c && c <= '9':
		default:
			return fmt.Errorf("%q is not a name: it must have letters, digits and underscores, and no digit first", s)
		}
	}
	if s == "" {
		return errors.New("a name is missing, empty or not a string")
	}
	return nil
}
