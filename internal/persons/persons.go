// Package persons decides which records of a person count.
//
// A person is all records of an epoch with one user key. A [Tagger] turns a user key into a [Tag] of 16 bytes, under a
// key of the epoch. A [Rule] says in how many steps a person may contribute, how far apart, and with how many records
// in a step. A [Map] applies the rule: it decides for each record, in the order of the log, whether it counts. A
// [Journal] keeps on disk what a Map needs after a restart.
//
// # Stability
//
// As long as the map has room for all persons, the answers for a person's records depend only on the slots of these
// records. So a change of one person's records changes no answer for another person, and in every log the counted
// records of each person obey the rule. The sensitivity of a person relies only on this: matfact.Sensitivity is the
// largest change of the sums under the rule. docs/theory/persons.md has the proof, and the cost of a full map.
//
// # Cost
//
// A tag costs one AES block for a user key of up to 16 bytes. An answer costs one look-up in an open-addressing table
// whose memory is allocated once: 32 to 64 bytes per person, see [Rule.Memory]. A contribution costs 20 bytes in the
// journal.
package persons

import (
	"fmt"
	"math"
	"math/bits"
)

// Rule says which records of a person count. A record in step t counts in two cases. In the first, the person has
// already contributed in t, with fewer than PerStep records. In the second, the person has not yet contributed in t,
// has contributed in fewer than Cap steps, and the last of them was at least Separation steps ago.
type Rule struct {
	// Cap is the largest number of steps in which a person contributes; 0 means that
	// Separation alone decides.
	Cap uint64
	// Separation is the smallest distance between two steps in which a person contributes; 1 allows consecutive steps.
	Separation uint64
	// Period is the number of steps after which counting starts again for everybody, as if nobody had contributed; 0
	// means never. The first period begins with step 1.
	Period uint64
	// PerStep is the largest number of a person's records that count in one step.
	PerStep uint64
	// Users is the number of persons for which the map has room.
	//
	// With a Cap the map remembers everybody who ever contributed. Once it is full, records of other persons do not
	// count. Without a Cap it forgets persons who contributed Separation steps ago. It must then never refuse anybody,
	// because one refusal would change who is refused later. So Users must be at least the number of records in
	// Separation steps.
	Users uint64
}

// These are the largest values of a rule that the table can hold.
const (
	MaxCap     = 1<<24 - 1
	MaxPerStep = 1<<8 - 1
	MaxStep    = math.MaxUint32 - 1
	MaxUsers   = 1 << 31
)

// Validate returns an error if the rule is invalid.
func (r Rule) Validate() error {
	switch {
	case r.Cap > MaxCap:
		return fmt.Errorf("cap (%d) must be at most %d", r.Cap, MaxCap)
	case r.Separation < 1:
		return fmt.Errorf("separation (%d) must be at least 1", r.Separation)
	case r.Period > MaxStep:
		return fmt.Errorf("period (%d) must be at most %d", r.Period, uint64(MaxStep))
	case r.PerStep < 1 || r.PerStep > MaxPerStep:
		return fmt.Errorf("per_step (%d) must be 1 to %d", r.PerStep, MaxPerStep)
	case r.Users < 1 || r.Users > MaxUsers:
		return fmt.Errorf("max_users (%d) must be 1 to %d", r.Users, MaxUsers)
	}
	return nil
}

// period returns the number of the period that contains a step.
func (r Rule) period(step uint32) uint64 {
	if r.Period == 0 || step == 0 {
		return 0
	}
	return uint64(step-1) / r.Period
}

// slots returns the size of the table: a power of two, of which Users persons fill at most three quarters.
func (r Rule) slots() uint64 {
	need := r.Users + (r.Users+2)/3
	return 1 << bits.Len64(max(need, 8)-1)
}

// Memory returns the bytes that a map of this rule allocates when it is created. Each contribution that the journal has
// not taken adds 20 bytes.
func (r Rule) Memory() uint64 { return r.slots() * slotBytes }

// Answer says whether a record counts, and if not, why. An answer is an exact fact about the records of one person, so
// it must not leave the process unprotected.
type Answer uint8

// The answers.
const (
	Counts  Answer = iota // the record counts
	NoUser                // the record has no user key
	OverCap               // the person has contributed enough, or too recently
	Foreign               // the user key belongs to another partition
	Full                  // the person is new, and the map has no room
	Answers               // number of answers
)

// String returns the answer's name.
func (a Answer) String() string {
	if a >= Answers {
		return "unknown"
	}
	return [Answers]string{"counts", "no-user", "over-cap", "foreign", "full"}[a]
}
