package toml

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/fault"
)

// Fault is a violated rule and its place in the file.
type Fault struct {
	File  string // name of the file in its Source
	Line  int    // counted from 1; for a missing key, the line of its table
	Key   string // full dotted key; "" if the file is not TOML
	Rule  string // the violated rule, such as "must be positive"
	Value any    // the value in the file; nil if there is none, or if it may be a secret
	Hint  string // such as "did you mean clip?"; may be empty
}

// Error returns "file:line: key: rule (value) (hint)", without empty parts.
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

// Faults are the faults of a document. Error has one line for each fault.
type Faults []*Fault

// Error returns the faults, one per line.
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

var (
	quotation  = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"?|'[^']*'?|`[^`]*`?")
	outOfRange = regexp.MustCompile(`^\S+ is out of range`)
)

// harmless removes text that a parser's message quotes from the file, except single characters and names of keys. The
// quoted text may be a password whose quotes are missing.
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

// show returns v if a message may show it. It returns nil if v may be a secret or is too long.
func (n *Node) show(v any) any {
	if n.Kind == File {
		return nil
	}
	return Scalar(v)
}

// literal is text that a message shows without quotes.
type literal string

// Scalar returns v in the form for a message, or nil for lists and tables. A float keeps its decimal point: for 100.0
// the message is "must be an integer (100.0)", because "(100)" would be confusing.
func Scalar(v any) any {
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

// Alternatives formats words as "a", "b" or "c".
func Alternatives(words []string) string {
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
