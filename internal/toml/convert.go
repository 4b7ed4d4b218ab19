package toml

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// convert checks a value against its row of the schema: its type, whether it is finite, its words and its rule. It
// returns string, bool, int64, float64, time.Duration, a slice of one of these, or the result of Kind.Read.
func (d *Document) convert(n *Node, key Key, v any) (value any, ok bool) {
	list, isList := v.([]any)
	switch n.Kind {
	case Texts, Numbers:
		if !isList {
			d.Add(key, -1, "must be "+n.Kind.Wants, n.show(v))
			return nil, false
		}
		return d.convertList(n, key, list)
	case Spread, Wholes:
		if isList {
			return d.convertList(n, key, list)
		}
	}
	value, broken, show := d.convertOne(n, key, -1, v)
	if broken != "" {
		d.Add(key, -1, broken, show)
		return nil, false
	}
	switch v := value.(type) {
	case float64:
		if n.Kind == Spread {
			return []float64{v}, true
		}
	case int64:
		if n.Kind == Wholes {
			return []int{int(v)}, true
		}
	}
	return value, true
}

// convertList converts the elements of a list. Each has its own line.
func (d *Document) convertList(n *Node, key Key, list []any) (any, bool) {
	strs, floats, ints, ok := []string{}, []float64{}, []int{}, true
	for i, e := range list {
		v, broken, show := d.convertOne(n, key, i, e)
		if broken != "" {
			d.Add(key, i, broken, show)
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
	switch n.Kind {
	case Texts:
		return strs, ok
	case Wholes:
		return ints, ok
	}
	return floats, ok
}

// convertOne converts a value that is not a list. On failure, broken is the violated rule, and show is the value as far
// as the message may show it.
func (d *Document) convertOne(n *Node, key Key, element int, v any) (value any, broken string, show any) {
	wrong := "must be " + n.Kind.Wants
	if n.Has(Found) {
		wrong += `, or "auto"`
	}
	if n.Has(Every) && element < 0 {
		wrong += `, or "all"`
	}
	s, isString := v.(string)
	i, isInt := v.(int64)
	if isString {
		if s, broken = d.Expand(key, element, s); broken != "" {
			return nil, broken, nil
		}
	}
	show = n.show(v)
	if n.Kind.Read != nil {
		if isString {
			v = s
		}
		switch value, broken = n.Kind.Read(v); {
		case broken != "":
			return nil, broken, show
		case value == nil:
			return nil, wrong, show
		}
		return value, "", nil
	}
	switch n.Kind {
	case Boolean:
		b, ok := v.(bool)
		if !ok {
			return nil, wrong, show
		}
		return b, "", nil
	case Span:
		t, ok := Duration(s)
		if !isString || !ok {
			return nil, wrong, show
		}
		value = t
	case Text, Texts, File, AnyValue:
		if b, ok := v.(bool); ok && n.Kind == AnyValue {
			return b, "", nil
		}
		if !isString && n.Kind == AnyValue {
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
	case Whole, Wholes:
		if n.Has(Every) && element < 0 && s == "all" {
			return int64(All), "", nil
		}
		if !isInt {
			return nil, wrong, show
		}
		value = i
	default:
		if n.Kind == Off && s == "off" {
			return s, "", nil
		}
		if n.Has(Found) && s == "auto" {
			return math.NaN(), "", nil
		}
		if value, broken = finite(v, wrong); broken != "" {
			return nil, broken, show
		}
	}
	if n.Rule.OK != nil && !n.Rule.OK(value) && !(s == "" && n.Def == `""`) {
		return nil, "must be " + n.Rule.Text, show
	}
	return value, "", nil
}

// finite returns v as a finite number, or the rule that v violates.
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
	return x + 0, "" // +0 turns −0 into 0, which would have another digest
}

// Duration parses a duration with its unit. It refuses "0", which has no unit.
func Duration(s string) (time.Duration, bool) {
	t, err := time.ParseDuration(s)
	return t, err == nil && unicode.IsLetter(rune(s[len(s)-1]))
}

var keyLike = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

// checkText returns the rule that a string violates, and the string if a message may show it.
func (n *Node) checkText(s string) (broken string, show any) {
	switch {
	case s == "" && n.Def != `""`:
		return "must not be empty", nil
	case !utf8.ValidString(s):
		return "must be UTF-8", nil
	case strings.ContainsFunc(s, unicode.IsControl):
		return "must not contain control characters", nil
	case n.Kind == File && keyLike.MatchString(s):
		return "must be the path of a file, not its content", nil
	case len(n.Words) > 0 && !slices.Contains(n.Words, s):
		return "must be " + Alternatives(n.Words), s
	}
	return "", nil
}
