package dp

import "fmt"

// Adjacency says which two streams are neighbours, that is, what the guarantee hides about a record. For example, under
// Replace nobody can tell whether a record said 3 or 4; under ZeroOut, whether it said 3 or nothing. Adjacency is a
// privacy parameter like ε and δ: it has no default, and every function refuses the zero value.
//
// In both relations the two streams differ in the content of one committed record at one offset. The number, the
// offsets and the transaction status of records are public.
type Adjacency int

const (
	// ZeroOut: one of the two records is the all-zero record. A sum of vectors of norm at most ζ then has sensitivity
	// ζ.
	ZeroOut Adjacency = iota + 1
	// Replace: both records are arbitrary. A sum of vectors of norm at most ζ then has sensitivity 2ζ.
	Replace
)

// Valid reports whether a is one of the two relations.
func (a Adjacency) Valid() bool { return a == ZeroOut || a == Replace }

// Factor returns the sensitivity of one vector in the unit ball: 1 under
// ZeroOut, 2 under Replace.
func (a Adjacency) Factor() float64 {
	switch a {
	case ZeroOut:
		return 1
	case Replace:
		return 2
	}
	panic("dp: adjacency not set")
}

// String returns "zero-out" or "replace".
func (a Adjacency) String() string {
	switch a {
	case ZeroOut:
		return "zero-out"
	case Replace:
		return "replace"
	}
	return "unset"
}

// MarshalText writes the name that UnmarshalText reads.
func (a Adjacency) MarshalText() ([]byte, error) {
	if !a.Valid() {
		return nil, fmt.Errorf("adjacency is not set")
	}
	return []byte(a.String()), nil
}

// UnmarshalText reads "zero-out" or "replace", nothing else.
func (a *Adjacency) UnmarshalText(text []byte) error {
	switch string(text) {
	case "zero-out":
		*a = ZeroOut
	case "replace":
		*a = Replace
	default:
		return fmt.Errorf("adjacency is %q, must be \"zero-out\" or \"replace\"", text)
	}
	return nil
}
