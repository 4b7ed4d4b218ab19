package config

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// wants says in words what a key of each kind takes.
var wants = map[kind]string{
	text:     "a string",
	file:     "the path of a file, a string",
	boolean:  "true or false",
	whole:    "an integer",
	number:   "a number",
	span:     `a duration such as "200ms", in quotes and with its unit`,
	texts:    "a list of strings",
	numbers:  "a list of numbers",
	spread:   "a number or a list of numbers",
	wholes:   "an integer or a list of integers",
	start:    `"earliest", "latest" or an offset`,
	length:   `a number of offsets, or a duration such as "1m"`,
	off:      `"off" or a number`,
	anyValue: "a number, true, false or a string",
}

// convert checks a value against its row of the schema: its type, that it is finite, its
// words, its rule. It returns string, bool, int64, float64, time.Duration, Start, Step, or a slice
// of one of these.
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

// convertOne converts a value that is not a list. If it cannot, broken is the rule that the
// value breaks, and show is the value as the message may show it.
func (d *document) convertOne(n *node, key toml.Key, element int, v any) (value any, broken string, show any) {
	wrong := "must be " + wants[n.kind]
	if n.has(found) {
		wrong += `, or "auto"`
	}
	if n.has(every) && element < 0 {
		wrong += `, or "all"`
	}
	s, isString := v.(string)
	i, isInt := v.(int64)
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
	case length:
		switch {
		case isInt && i < 1:
			return nil, "must be at least 1", show
		case isInt:
			return Step(i), "", nil
		}
		t, ok := duration(s)
		if !isString || !ok {
			return nil, wrong, show
		}
		if t < minClock {
			return nil, "must be at least \"" + minClock.String() + "\"", show
		}
		return Every(t), "", nil
	case span:
		t, ok := duration(s)
		if !isString || !ok {
			return nil, wrong, show
		}
		value = t
	case text, texts, file, anyValue:
		if b, ok := v.(bool); ok && n.kind == anyValue {
			return b, "", nil
		}
		if !isString && n.kind == anyValue {
			if value, broken = finite(v, wrong); broken != "" {
				return nil, broken, show
			}
			return value, "", nil
		}
		if !isString {
			return nil, wrong, show
		}
		if broken, shown := n.checkText(s); broken != "" {
			return nil, broken, shown
		}
		value = s
	case whole, wholes:
		if n.has(every) && element < 0 && s == "all" {
			return int64(AllPartitions), "", nil
		}
		if !isInt {
			return nil, wrong, show
		}
		value = i
	default:
		if n.kind == off && s == "off" {
			return s, "", nil
		}
		if n.has(found) && s == "auto" {
			return math.NaN(), "", nil
		}
		if value, broken = finite(v, wrong); broken != "" {
			return nil, broken, show
		}
	}
	if n.rule.ok != nil && !n.rule.ok(value) && !(s == "" && n.def == `""`) {
		return nil, "must be " + n.rule.text, show
	}
	return value, "", nil
}

// finite reads a finite number, and says which rule anything else breaks.
func finite(v any, wrong string) (x float64, broken string) {
	switch v := v.(type) {
	case int64:
		x = float64(v)
	case float64:
		x = v
	default:
		return 0, wrong
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, "must be finite"
	}
	return x + 0, "" // no negative zero: it would make another digest
}

// minClock is the shortest period of steps by the clock.
const minClock = 100 * time.Millisecond

// duration reads a duration with its unit, which "0" has not.
func duration(s string) (time.Duration, bool) {
	t, err := time.ParseDuration(s)
	return t, err == nil && unicode.IsLetter(rune(s[len(s)-1]))
}

var keyLike = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// checkText returns the rule that a string breaks, and the string if a message may show
// it.
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
	case len(n.words) > 0 && !slices.Contains(n.words, s):
		return "must be " + alternatives(n.words), s
	}
	return "", nil
}
