package config

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"streamdp/internal/fault"
)

// Fault is one violated rule and the place where it is violated.
type Fault struct {
	File  string // the file as it was named to Load
	Line  int    // from 1; of the table for a key that is missing
	Key   string // full dotted key; "" where the file is no TOML
	Rule  string // what must hold: "must be positive"
	Value any    // what was found; nil where nothing was, or where it may be a secret
	Hint  string // "did you mean clip?"; may be empty
}

// Error returns "file:line: key: rule (value) (hint)", without what is empty.
func (f *Fault) Error() string {
	s := f.Rule
	if f.Key != "" {
		s = (&fault.Fault{Key: f.Key, Rule: f.Rule, Value: f.Value}).Error()
	}
	s = fmt.Sprintf("%s:%d: %s", f.File, f.Line, s)
	if f.Hint != "" {
		s += " (" + f.Hint + ")"
	}
	return s
}

// Faults are all faults of a file, by line. As an error it has one line for
// each.
type Faults []*Fault

// Error returns the faults, one a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i := range f {
		lines[i] = f[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults one by one.
func (f Faults) Unwrap() []error {
	errs := make([]error, len(f))
	for i := range f {
		errs[i] = f[i]
	}
	return errs
}

// document is a file being read. The TOML package parses it into maps, and the
// schema alone says what of them is taken: decoding into structs would match
// keys in any case, read 5 as 5 ns, and know no line for what it did not like.
type document struct {
	*positions
	name   string
	tree   map[string]any
	masked map[string]string // values out of the environment, as the file writes them
	bad    map[string]bool   // keys that have a fault
	faults Faults

	streams []*Stream // by name
}

// parse reads TOML; where the data are none, that is the only fault of the file.
func (d *document) parse(data []byte) {
	defer func() {
		if r := recover(); r != nil { // the parser panics where it meets a state it calls a bug
			d.fail(1, "not TOML")
		}
	}()
	if _, err := toml.Decode(string(data), &d.tree); err != nil {
		line, message := 1, "cannot be read"
		if e, ok := errors.AsType[toml.ParseError](err); ok {
			// The parser's own line is the next one where a line ends too early.
			before := strings.TrimPrefix(string(data), "\xef\xbb\xbf")
			before = before[:min(max(e.Position.Start, 0), len(before))]
			line, message = 1+strings.Count(before, "\n"), harmless(e.Message)
		}
		d.fail(line, "not TOML: "+message)
		return
	}
	d.positions = scan(string(data))
}

func (d *document) fail(line int, rule string) {
	d.faults = append(d.faults, &Fault{File: d.name, Line: line, Rule: rule})
}

var (
	quotation  = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"?|'[^']*'?|`[^`]*`?")
	outOfRange = regexp.MustCompile(`^\S+ is out of range`)
)

// harmless takes out of a parser's message whatever the file says, except
// single characters and names of keys: the text may be a password without its
// quotes.
func harmless(message string) string {
	if strings.HasPrefix(message, "Key '") {
		return message
	}
	message = outOfRange.ReplaceAllString(message, "number is out of range")
	return quotation.ReplaceAllStringFunc(message, func(q string) string {
		if utf8.RuneCountInString(strings.ReplaceAll(q, `\`, ``)) <= 3 {
			return q
		}
		return "…"
	})
}

// add notes a fault of key, or of an element of its list.
func (d *document) add(key toml.Key, element int, rule string, value any) *Fault {
	d.bad[key.String()] = true
	return d.note(key, element, rule, value)
}

// note is add for a fault of a table as a whole, beside which what is in the
// table is still checked.
func (d *document) note(key toml.Key, element int, rule string, value any) *Fault {
	if _, ok := value.(string); ok {
		if source, ok := d.masked[place(key, element)]; ok {
			value = source
		}
	}
	f := &Fault{File: d.name, Line: d.line(key, element), Key: key.String(), Rule: rule, Value: value}
	d.faults = append(d.faults, f)
	return f
}

// sound reports whether neither key nor a table around it has a fault, so that
// its value can be reasoned about.
func (d *document) sound(key toml.Key) bool {
	for n := 1; n <= len(key); n++ {
		if d.bad[key[:n].String()] {
			return false
		}
	}
	return true
}

// written returns what the file says for key, nil where it says nothing.
func (d *document) written(key toml.Key) any {
	var v any = d.tree
	for _, name := range key {
		t, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = t[name]
	}
	return v
}

// readTable reads the table of schema row n into the struct dst. t is nil
// where the file has no such table; then only defaults are set.
func (d *document) readTable(n *node, key toml.Key, t map[string]any, dst reflect.Value) {
	for _, name := range sortedKeys(t) {
		if n.child(name) == nil {
			d.unknown(n, append(key[:len(key):len(key)], name))
		}
	}
	for _, c := range n.children {
		here := append(key[:len(key):len(key)], c.name)
		v, given := t[c.name]
		switch {
		case c.path == "stream":
			d.readStreams(c.child("NAME"), here, v)
		case c.kind != table:
			d.readKey(c, here, v, given, t == nil, dst)
		case given:
			d.readSubtable(c, here, v, dst)
		case c.has(required):
			d.add(here, -1, "required table, with "+strings.Join(c.mustHave(), ", "), nil)
		default:
			// Mechanisms are pointers, and what is not built has no field.
			if f := field(dst, c.name); f.IsValid() && f.Kind() == reflect.Struct {
				d.readTable(c, here, nil, f)
			}
		}
	}
}

var streamName = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// readStreams reads the tables [stream.NAME], of which n is the schema row.
func (d *document) readStreams(n *node, key toml.Key, v any) {
	t, ok := v.(map[string]any)
	if v != nil && !ok {
		d.add(key, -1, "must be a table", scalar(v))
		return
	}
	if len(t) == 0 {
		d.add(key, -1, "at least one [stream.NAME] is required", nil)
	}
	for _, name := range sortedKeys(t) {
		here := append(key[:len(key):len(key)], name)
		if !streamName.MatchString(name) {
			d.note(here, -1, "the name of a stream must be 1 to 63 of a-z, 0-9, _ and -", nil)
		}
		content, ok := t[name].(map[string]any)
		if !ok {
			d.add(here, -1, "must be a table", scalar(t[name]))
			continue
		}
		s := &Stream{Name: name}
		d.readTable(n, here, content, reflect.ValueOf(s).Elem())
		d.streams = append(d.streams, s)
	}
}

// mustHave names the required keys of a table.
func (n *node) mustHave() (names []string) {
	for _, c := range n.children {
		if c.has(required) || c.has(usual) {
			names = append(names, c.name)
		}
	}
	return names
}

func (d *document) readSubtable(n *node, key toml.Key, v any, dst reflect.Value) {
	t, ok := v.(map[string]any)
	switch {
	case n.has(unbuilt):
		d.add(key, -1, fault.NotYet, nil)
	case !ok:
		d.add(key, -1, "must be a table", scalar(v))
	default:
		f := field(dst, n.name)
		if f.Kind() == reflect.Pointer {
			f.Set(reflect.New(f.Type().Elem()))
			f = f.Elem()
		}
		d.readTable(n, key, t, f)
	}
}

// readKey reads one value into its field of dst, or its default where the file
// has none.
func (d *document) readKey(n *node, key toml.Key, v any, given, noTable bool, dst reflect.Value) {
	f := field(dst, n.name)
	if !given {
		switch def := n.fallback; {
		case n.has(required) && !noTable:
			rule := "required"
			if len(n.words) > 0 {
				rule += ", " + alternatives(n.words)
			}
			d.add(key, -1, rule, nil)
		case def != nil && f.IsValid():
			if value, ok := d.convert(n, key, def); ok {
				assign(f, value)
			}
		}
		return
	}
	value, ok := d.convert(n, key, v)
	switch {
	case !ok:
	case n.has(unbuilt):
		// A value equal to the default asks for nothing.
		if def := n.fallback; def != nil {
			if same, ok := d.convert(n, key, def); ok && reflect.DeepEqual(value, same) {
				return
			}
		}
		d.add(key, -1, fault.NotYet, n.show(v))
	default:
		assign(f, value)
	}
}

// show is the value for a message: nothing where it may be a secret, or long.
func (n *node) show(v any) any {
	if n.kind == file {
		return nil
	}
	return scalar(v)
}

// literal is printed as it is.
type literal string

// scalar returns v for a message, nil for lists and tables. A float keeps its
// point, lest "must be an integer (100)" puzzle anyone.
func scalar(v any) any {
	switch v := v.(type) {
	case string, bool, int64:
		return v
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if v == math.Trunc(v) && !strings.ContainsAny(s, "eIN") {
			s += ".0"
		}
		return literal(s)
	case time.Time:
		return literal("a date")
	}
	return nil
}

// unknown notes a key that table n does not have, and guesses what was meant.
func (d *document) unknown(n *node, key toml.Key) {
	name := key[len(key)-1]
	rule := "unknown key"
	hint := ""
	if near := nearest(name, n); near != "" {
		hint = "did you mean " + near + "?"
		if near == strings.ToLower(name) {
			rule = "keys are lower case"
		}
	} else if home := homeOf(name, n, key); home != "" {
		hint = "it belongs in [" + home + "]"
	}
	d.add(key, -1, rule, nil).Hint = hint
}

// homeOf returns the table where the stream's key of that name stands, "" where
// there is none: keys written below the header of another table are the usual
// slip with TOML.
func homeOf(name string, n *node, key toml.Key) string {
	if len(key) < 3 || key[0] != "stream" {
		return ""
	}
	stream := root().at("stream", "NAME")
	if c := stream.child(name); c != nil && c.kind != table {
		return key[:2].String()
	}
	for _, t := range stream.children {
		if t.kind == table && t != n && !t.has(unbuilt) && t.child(name) != nil {
			return append(key[:2:2], t.name).String()
		}
	}
	return ""
}

// nearest returns the key of table n that name was probably meant to be.
func nearest(name string, n *node) string {
	name = strings.ToLower(name)
	best, least := "", max(1, utf8.RuneCountInString(name)/3)+1
	for _, c := range n.children {
		if c.name == "NAME" {
			continue
		}
		away := distance(name, c.name)
		if away >= least && len(name) >= 3 && strings.HasPrefix(c.name, name) {
			away = least - 1
		}
		if away < least {
			best, least = c.name, away
		}
	}
	return best
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours that make b of a.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			same := 1
			if x[i-1] == y[j-1] {
				same = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+same)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}

// wants says what each kind of key takes.
var wants = map[kind]string{
	text:    "a string",
	file:    "the path of a file, a string",
	boolean: "true or false",
	whole:   "an integer",
	number:  "a number",
	span:    `a duration such as "200ms", in quotes and with its unit`,
	texts:   "a list of strings",
	numbers: "a list of numbers",
	spread:  "a number or a list of numbers",
	wholes:  "an integer or a list of integers",
	start:   `"earliest", "latest" or an offset`,
	off:     `"off" or a number`,
}

// convert checks a value against its row: type, finiteness, words, rule. It
// returns string, bool, int64, float64, time.Duration, Start, or a slice.
func (d *document) convert(n *node, key toml.Key, v any) (value any, ok bool) {
	list, isList := v.([]any)
	switch n.kind {
	case texts, numbers:
		if !isList {
			d.add(key, -1, "must be "+wants[n.kind], n.show(v))
			return nil, false
		}
		return d.convertList(n, key, list)
	case spread, wholes:
		if isList {
			return d.convertList(n, key, list)
		}
	}
	value, broken, show := d.convertOne(n, key, -1, v)
	if broken != "" {
		d.add(key, -1, broken, show)
		return nil, false
	}
	switch v := value.(type) {
	case float64:
		if n.kind == spread {
			return []float64{v}, true
		}
	case int64:
		if n.kind == wholes {
			return []int{int(v)}, true
		}
	}
	return value, true
}

// convertList converts the elements of a list. Each has its own line.
func (d *document) convertList(n *node, key toml.Key, list []any) (any, bool) {
	strs, floats, ints, ok := []string{}, []float64{}, []int{}, true
	for i, e := range list {
		v, broken, show := d.convertOne(n, key, i, e)
		if broken != "" {
			d.add(key, i, broken, show)
			ok = false
			continue
		}
		switch v := v.(type) {
		case string:
			strs = append(strs, v)
		case float64:
			floats = append(floats, v)
		case int64:
			ints = append(ints, int(v))
		}
	}
	switch n.kind {
	case texts:
		return strs, ok
	case wholes:
		return ints, ok
	}
	return floats, ok
}

// convertOne converts a value that is no list. Where it cannot, broken is the
// rule that the value breaks and show the value for the message.
func (d *document) convertOne(n *node, key toml.Key, element int, v any) (value any, broken string, show any) {
	wrong := "must be " + wants[n.kind]
	s, isString := v.(string)
	i, isInt := v.(int64)
	x, isFloat := v.(float64)
	if isString {
		if s, broken = d.expand(key, element, s); broken != "" {
			return nil, broken, nil
		}
	}
	show = n.show(v)
	switch n.kind {
	case boolean:
		b, ok := v.(bool)
		if !ok {
			return nil, wrong, show
		}
		return b, "", nil
	case start:
		var at Start
		if isInt && i >= 0 {
			return Start(i), "", nil
		}
		if !isString || at.UnmarshalText([]byte(s)) != nil {
			return nil, wrong, show
		}
		return at, "", nil
	case span:
		t, err := time.ParseDuration(s)
		if !isString || err != nil || !unicode.IsLetter(rune(s[len(s)-1])) { // "0" has no unit
			return nil, wrong, show
		}
		value = t
	case text, texts, file:
		if !isString {
			return nil, wrong, show
		}
		if broken, shown := n.checkText(s); broken != "" {
			return nil, broken, shown
		}
		value = s
	case whole, wholes:
		if !isInt {
			return nil, wrong, show
		}
		value = i
	default:
		if n.kind == off && s == "off" {
			return s, "", nil
		}
		if isInt {
			x = float64(i)
		} else if !isFloat {
			return nil, wrong, show
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, "must be finite", show
		}
		value = x + 0 // no negative zero: it would make another digest
	}
	if n.rule.ok != nil && !n.rule.ok(value) && !(s == "" && n.def == `""`) {
		return nil, "must be " + n.rule.text, show
	}
	return value, "", nil
}

var keyLike = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// checkText returns the rule that a string breaks, and the string where a
// message may show it.
func (n *node) checkText(s string) (broken string, show any) {
	switch {
	case s == "" && n.def != `""`:
		return "must not be empty", nil
	case !utf8.ValidString(s):
		return "must be UTF-8", nil
	case strings.ContainsFunc(s, unicode.IsControl):
		return "must not hold control characters", nil
	case n.kind == file && keyLike.MatchString(s):
		return "must be the path of a file, not what stands in it", nil
	case slices.Contains(n.later, s):
		return fault.NotYet, s
	case len(n.words) > 0 && !slices.Contains(n.words, s):
		return "must be " + alternatives(n.words), s
	}
	return "", nil
}

var variable = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// expand puts environment variables in place of ${NAME}; $${ stands for ${. The
// result is not expanded again, and never printed. broken is the rule that s
// breaks.
func (d *document) expand(key toml.Key, element int, s string) (expanded, broken string) {
	var b strings.Builder
	source := s
	for i := strings.IndexByte(s, '$'); i >= 0; i = strings.IndexByte(s, '$') {
		b.WriteString(s[:i])
		s = s[i:]
		switch {
		case strings.HasPrefix(s, "$${"):
			b.WriteString("${")
			s = s[3:]
		case strings.HasPrefix(s, "${"):
			m := variable.FindStringSubmatch(s)
			if m == nil {
				return "", "${ begins the name of an environment variable, as in ${HOME}; write $${ for ${ itself"
			}
			value, ok := os.LookupEnv(m[1])
			if !ok {
				return "", "environment variable " + m[1] + " is not set"
			}
			b.WriteString(value)
			s = s[len(m[0]):]
			d.masked[place(key, element)] = source
		default:
			b.WriteByte('$')
			s = s[1:]
		}
	}
	b.WriteString(s)
	return b.String(), ""
}

// assign puts a converted value into its field.
func assign(f reflect.Value, value any) {
	if s, ok := value.(string); ok && f.CanAddr() {
		if u, ok := f.Addr().Interface().(encoding.TextUnmarshaler); ok {
			if err := u.UnmarshalText([]byte(s)); err != nil {
				panic("config: a word of the schema is not understood: " + err.Error())
			}
			return
		}
	}
	v := reflect.ValueOf(value)
	if f.Kind() == reflect.Pointer {
		if value == "off" {
			f.SetZero()
			return
		}
		p := reflect.New(f.Type().Elem())
		p.Elem().Set(v.Convert(f.Type().Elem()))
		f.Set(p)
		return
	}
	f.Set(v.Convert(f.Type()))
}

// alternatives prints words as "a", "b" or "c".
func alternatives(words []string) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i == 0:
		case i == len(words)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(strconv.Quote(w))
	}
	return b.String()
}

func sortedKeys(t map[string]any) []string {
	keys := make([]string, 0, len(t))
	for k := range t {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
