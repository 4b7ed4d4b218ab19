package core

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"

	"github.com/streamdp/streamdp/internal/decimal"
)

// Released is a parsed release, with its numbers decoded.
type Released struct {
	Stream    string   `json:"stream"`
	Partition int      `json:"partition"`
	Epoch     uint64   `json:"epoch"`
	Step      uint64   `json:"step"`
	Rows      uint64   `json:"rows"`
	Offsets   [2]int64 `json:"offsets"`
	Covers    [2]int64 `json:"covers"`
	Columns   []string `json:"columns"`
	// Mechanism is the name of the mechanism.
	Mechanism string `json:"mechanism"`
	// Target is the column that a regression predicts, or "" for other mechanisms.
	Target string `json:"target,omitempty"`
	// Level is the level of intervals, or 0 if there are none.
	Level  float64 `json:"level,omitempty"`
	Failed string  `json:"failed,omitempty"`
	// Verdict is the release's verdict on the bounds that a warm-up found, or "" if it has none.
	Verdict string          `json:"verdict,omitempty"`
	Values  []ReleasedValue `json:"values"`
}

// ReleasedValue is a value of a release.
type ReleasedValue struct {
	Name   string `json:"name"`
	Shape  []int  `json:"shape"`
	Layout string `json:"layout,omitempty"`
	Data   Floats `json:"data"`
	// SE holds standard errors: none, one for all entries, or one per entry.
	SE Floats `json:"se,omitempty"`
	// SEWithClipping is SE with an estimate of the clipping error added, if a warm-up found the clip norm.
	SEWithClipping Floats `json:"se_with_clipping,omitempty"`
	// Truth is the true value in a demonstration. A release never contains it.
	Truth Floats `json:"truth,omitempty"`
}

// Floats are numbers. In JSON, null stands for NaN.
type Floats []float64

// MarshalJSON implements json.Marshaler.
func (x Floats) MarshalJSON() ([]byte, error) {
	if !slices.ContainsFunc(x, math.IsNaN) {
		return json.Marshal([]float64(x))
	}
	all := make([]*float64, len(x))
	for i := range x {
		if !math.IsNaN(x[i]) {
			all[i] = &x[i]
		}
	}
	return json.Marshal(all)
}

// ParseReleased parses a published release.
func ParseReleased(value []byte) (*Released, error) {
	var r struct {
		Schema string `json:"schema"`
		*Released
		Mechanism struct {
			Name   string  `json:"name"`
			Target string  `json:"target"`
			Level  float64 `json:"level"`
			Model  struct {
				Target string `json:"target"`
			} `json:"model"`
		} `json:"mechanism"`
		Bounds struct {
			Verdict string `json:"verdict"`
		} `json:"bounds"`
		Warmup []struct {
			Verdict string `json:"verdict"`
		} `json:"warmup"`
		Values releasedValues `json:"values"`
	}
	out := new(Released)
	r.Released = out
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, err
	}
	if r.Schema != releaseSchema {
		return nil, errors.New("not a release")
	}
	out.Mechanism = r.Mechanism.Name
	if out.Target, out.Level = r.Mechanism.Target, r.Mechanism.Level; out.Target == "" {
		out.Target = r.Mechanism.Model.Target
	}
	if out.Verdict = r.Bounds.Verdict; out.Verdict == "" && len(r.Warmup) > 0 {
		out.Verdict = r.Warmup[len(r.Warmup)-1].Verdict
	}
	if r.Values == nil {
		return nil, errors.New("no values")
	}
	out.Values = r.Values
	return out, nil
}

// releasedValues are the values of a release, in the order of publication.
type releasedValues []ReleasedValue

// UnmarshalJSON implements json.Unmarshaler. It parses lists of numbers in one pass, because the daemon parses many of
// its own releases for the page.
func (all *releasedValues) UnmarshalJSON(b []byte) error {
	*all = releasedValues{}
	return members(b, func(name string, b []byte) error {
		v, known := ReleasedValue{Name: name}, false
		err := members(b, func(name string, b []byte) (err error) {
			switch name {
			case "shape":
				err = json.Unmarshal(b, &v.Shape)
			case "layout":
				err = json.Unmarshal(b, &v.Layout)
			case "data":
				known = true
				if b[0] == '[' {
					v.Data, err = numberList(b, false)
				} else {
					v.Data, err = Numbers(b)
				}
			case "se":
				v.SE, err = parseErrors(b)
			case "se_with_clipping":
				v.SEWithClipping, err = parseErrors(b)
			}
			return err
		})
		if err != nil {
			return err
		}
		if !known {
			return errors.New("a value has no numbers")
		}
		if n, se, with := len(v.Data), len(v.SE), len(v.SEWithClipping); se > 1 && se != n || with > 1 && with != n {
			return errors.New("standard errors must be one per number, or a single one")
		}
		*all = append(*all, v)
		return nil
	})
}

// members calls fn for each member of an object with its name and value. b is valid JSON.
func members(b []byte, fn func(name string, value []byte) error) error {
	b = bytes.TrimLeft(b, jsonSpace)
	if len(b) == 0 || b[0] != '{' {
		return errors.New("not an object")
	}
	for {
		b = bytes.TrimLeft(b[1:], jsonSpace) // skip the brace or comma
		if b[0] == '}' {
			return nil // an empty object
		}
		n := valueLen(b)
		var name string
		if err := json.Unmarshal(b[:n], &name); err != nil {
			return err
		}
		b = bytes.TrimLeft(bytes.TrimLeft(b[n:], jsonSpace)[1:], jsonSpace) // after the colon
		n = valueLen(b)
		if err := fn(name, b[:n]); err != nil {
			return err
		}
		if b = bytes.TrimLeft(b[n:], jsonSpace); b[0] == '}' {
			return nil
		}
	}
}

const jsonSpace = " \t\r\n"

// valueLen returns the length of the value at the beginning of b. b must continue with valid JSON.
func valueLen(b []byte) int {
	depth := 0
	for i := 0; ; i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1
			} else if depth < 0 {
				return i
			}
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
}

// parseErrors parses standard errors: one number, or a list in either encoding with NaN for an unknown one. It returns
// nil if data is empty.
func parseErrors(data json.RawMessage) ([]float64, error) {
	switch {
	case len(data) == 0 || string(data) == "null":
		return nil, nil
	case data[0] == '"':
		return Numbers(data)
	case data[0] != '[':
		var one float64
		err := json.Unmarshal(data, &one)
		return []float64{one}, err
	}
	return numberList(data, true)
}

// numberList parses a list of numbers in valid JSON. If unknown is true, it accepts null and returns NaN for it.
func numberList(data []byte, unknown bool) ([]float64, error) {
	all := make([]float64, 0, 1+bytes.Count(data, []byte{','}))
	data = bytes.TrimLeft(data[1:], jsonSpace)
	for data[0] != ']' {
		x, n := decimal.JSON(data)
		switch {
		case n > 0 && !math.IsInf(x, 0):
		case unknown && bytes.HasPrefix(data, []byte("null")):
			x, n = math.NaN(), len("null")
		default:
			return nil, errors.New("a list of numbers holds something else")
		}
		all = append(all, x)
		data = bytes.TrimLeft(data[n:], jsonSpace)
		if data[0] == ',' {
			data = bytes.TrimLeft(data[1:], jsonSpace)
		}
	}
	return all, nil
}
