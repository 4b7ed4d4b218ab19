package core

import (
	"encoding/json"

	"github.com/streamdp/streamdp/dp"
)

// Count is a released number with its standard error.
type Count struct{ Value, SE float64 }

// Shares are the numbers of a published release that tell how many of its records were valid, unclipped or counted.
type Shares struct {
	Rows uint64 // committed records of the release's step
	// Valid is the value valid_count, Full is full_share and Counted is counted_share; nil: the release lacks the
	// value.
	Valid, Full, Counted *Count
}

// SharesOf parses a published release; ok is false if value is not one.
func SharesOf(value []byte) (s Shares, ok bool) {
	type number struct {
		Data json.RawMessage `json:"data"`
		SE   *float64        `json:"se"`
	}
	var r struct {
		Schema string `json:"schema"`
		Rows   uint64 `json:"rows"`
		Values struct {
			Valid   *number `json:"valid_count"`
			Full    *number `json:"full_share"`
			Counted *number `json:"counted_share"`
		} `json:"values"`
	}
	if json.Unmarshal(value, &r) != nil || r.Schema != releaseSchema {
		return s, false
	}
	count := func(n *number) *Count {
		if n == nil || n.SE == nil {
			return nil
		}
		x, err := Numbers(n.Data)
		if err != nil || len(x) != 1 {
			return nil
		}
		return &Count{x[0], *n.SE}
	}
	return Shares{Rows: r.Rows, Valid: count(r.Values.Valid), Full: count(r.Values.Full),
		Counted: count(r.Values.Counted)}, true
}

// shares returns what SharesOf would return for the encoded release.
func (e *encoder) shares(r *dp.Release) *Shares {
	s := &Shares{Rows: r.Rows}
	for _, v := range r.Values {
		if len(v.Data) != 1 || len(v.SE) != 1 || !e.publishes(v.Name) {
			continue
		}
		switch c := &(Count{v.Data[0], v.SE[0]}); v.Name {
		case "valid_count":
			s.Valid = c
		case "full_share":
			s.Full = c
		case "counted_share":
			s.Counted = c
		}
	}
	return s
}
