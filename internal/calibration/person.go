package calibration

import (
	"math"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/matfact"
)

// Person says which records of a person a plan protects together: in how many steps, how far apart, and how many in a
// step. Norm is P of matfact.Sensitivity, which replaces the column norm.
type Person struct {
	Cap        uint64  `json:"cap"`
	Separation uint64  `json:"separation"`
	PerStep    uint64  `json:"per_step"`
	Norm       float64 `json:"norm"`
}

// NewPerson returns the Person that a plan records for a participation and its norm.
func NewPerson(p matfact.Participation, norm float64) *Person {
	return &Person{Cap: p.Count, Separation: p.Separation, PerStep: p.PerStep, Norm: norm}
}

// Agrees reports whether two plans protect the same records. Their norms may differ in the last bits.
func (p *Person) Agrees(o *Person) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Cap == o.Cap && p.Separation == o.Separation && p.PerStep == o.PerStep && Near(p.Norm, o.Norm, LastBits)
}

// Clone returns a copy; the copy of nil is nil.
func (p *Person) Clone() *Person {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

// Persons returns p with at most slots records of a person in a step, because a step has no more.
func Persons(p matfact.Participation, slots uint64) matfact.Participation {
	p.PerStep = max(1, min(p.PerStep, slots))
	return p
}

// ApartWeight is the factor of [Array.Weight] if persons are protected. Under replace the removed and the added person
// may be in two partitions, each with its own epoch. The rounding of predictions affects both epochs, so together the
// effect is √2 times as large.
func ApartWeight(a dp.Adjacency) float64 {
	if a == dp.Replace {
		return math.Sqrt2 * dp.RoundUp
	}
	return 1
}
