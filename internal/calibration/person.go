package calibration

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Person says what records of a person a plan protects together: in how many steps, how far
// apart, and how many in a step. Norm is P of matfact.Sensitivity, which takes the place of a
// column norm.
type Person struct {
	Cap        uint64  `json:"cap"`
	Separation uint64  `json:"separation"`
	PerStep    uint64  `json:"per_step"`
	Norm       float64 `json:"norm"`
}

// NewPerson returns what a plan records of a participation and its norm.
func NewPerson(p matfact.Participation, norm float64) *Person {
	return &Person{Cap: p.Count, Separation: p.Separation, PerStep: p.PerStep, Norm: norm}
}

// Agrees reports whether two plans protect the same records, with norms that may differ in
// their last bits.
func (p *Person) Agrees(o *Person) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Cap == o.Cap && p.Separation == o.Separation && p.PerStep == o.PerStep && Near(p.Norm, o.Norm, LastBits)
}

// Clone returns a copy; that of nil is nil.
func (p *Person) Clone() *Person {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Persons returns p for steps of so many slots: no person has more records in one.
func Persons(p matfact.Participation, slots uint64) matfact.Participation {
	p.PerStep = max(1, min(p.PerStep, slots))
	return p
}

// ApartWeight is the factor that [Array.Weight] has where persons are protected. Under replace the
// person who goes and the one who comes may be in two partitions with epochs of their own. Each
// of the two changes has the rounding of predictions, and both together √2 times as much.
func ApartWeight(a dp.Adjacency) float64 {
	if a == dp.Replace {
		return math.Sqrt2 * dp.RoundUp
	}
	return 1
}
