// Package fault defines the form in which a package reports faults of its configuration: one value for each fault, so
// that the code that read the file can name the line of each.
package fault

import (
	"errors"
	"fmt"
	"strconv"
)

// Fault is one violated rule.
type Fault struct {
	Key   string // the TOML key relative to its table, such as "clip"
	Rule  string // the rule that is violated, such as "must be positive and finite"
	Value any    // the value in the file; nil if there is none
}

// Error returns "key: rule (value)", or "key: rule" if there is no value.
func (f *Fault) Error() string {
	if f.Value == nil {
		return f.Key + ": " + f.Rule
	}
	return f.Key + ": " + f.Rule + " (" + format(f.Value) + ")"
}

func format(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// List collects faults.
type List []error

// Add appends a fault.
func (l *List) Add(key, rule string, value any) {
	*l = append(*l, &Fault{Key: key, Rule: rule, Value: value})
}

// Check appends a fault unless ok is true.
func (l *List) Check(ok bool, key, rule string, value any) {
	if !ok {
		l.Add(key, rule, value)
	}
}

// Err joins the faults; nil if there are none.
func (l List) Err() error { return errors.Join(l...) }

// All returns the errors that are joined in err, also through nested joins, in order. Any other error it returns as the
// only element.
func All(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, All(e)...)
		}
		return all
	}
	return []error{err}
}

// Quoted formats words in the form in which rules list them: "a", "b" or "c". last is the word before the last one.
func Quoted[S ~string](words []S, last string) string {
	s := ""
	for i, w := range words {
		switch {
		case i > 0 && i == len(words)-1:
			s += " " + last + " "
		case i > 0:
			s += ", "
		}
		s += strconv.Quote(string(w))
	}
	return s
}
