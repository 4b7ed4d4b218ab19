package core

import (
	"fmt"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// Unit returns the unit that one epoch's ε protects: "record", "person" or "person-period".
func Unit(s *config.Stream) string {
	switch {
	case s.User == nil:
		return "record"
	case s.User.Period > 0:
		return "person-period"
	}
	return "person"
}

// Protected says what a person is and which of a person's records count. Releases and status contain it.
type Protected struct {
	Key        string `json:"key"`
	Cap        uint64 `json:"cap"`
	Separation uint64 `json:"separation"`
	PerStep    uint64 `json:"per_step"`
	// Period is the number of steps after which persons may contribute again; 0: they never may.
	Period   uint64 `json:"period,omitempty"`
	MaxUsers uint64 `json:"max_users"`
	// Norm is the P of matfact.Sensitivity: the weight of all records of a person.
	Norm float64 `json:"norm"`
	// EpsilonRecord is the ε of one record of a person whose user key stays, at the δ of the guarantee; nil: unknown.
	EpsilonRecord *float64 `json:"epsilon_record,omitempty"`
	Population    string   `json:"population"`
	Partitioner   string   `json:"partitioner"`
}

// releaseGroup is the guarantee for Count persons together. A group without a finite ε is left out.
type releaseGroup struct {
	Count   int     `json:"count"`
	Epsilon float64 `json:"epsilon"`
}

// ProtectedOf returns what a stream's mechanism protects, or nil if that is single records.
func ProtectedOf(s *config.Stream, m *Mechanism) *Protected {
	u := s.User
	if u == nil {
		return nil
	}
	p := s.Participation()
	return &Protected{u.Key, p.Count, p.Separation, p.PerStep, u.Period, u.MaxUsers, m.norm, epsilonRecord(s, m),
		u.Population, u.Partitioner}
}

// epsilonRecord returns the ε, at the stream's δ, of one record of a person whose user key stays unchanged. The ε is
// rounded up to four digits, and nil if it is unknown. The stream must protect persons.
func epsilonRecord(s *config.Stream, m *Mechanism) *float64 {
	if m.record == nil {
		return nil
	}
	return Persons(*m.record, s.Privacy.Delta, 1)[0].Epsilon
}

// groupsOf returns the guarantees for groups of persons, or nil if the stream protects records. The manifest's field
// persons lists numbers of records. Here they are read as numbers of persons, because the epoch's cost is for a person.
func groupsOf(s *config.Stream, m *Manifest) (all []releaseGroup) {
	if s.User == nil {
		return nil
	}
	for _, p := range m.Persons {
		if p.Epsilon != nil {
			all = append(all, releaseGroup{p.Records, *p.Epsilon})
		}
	}
	return all
}

// allRecords returns a phrase that says which records of a person differ between neighbouring logs.
func allRecords(s *config.Stream) string {
	if s.User.Period > 0 {
		return "all records that one person has in one period"
	}
	return "all records of one person"
}

// instead returns a phrase that says what replaces a person's records in a neighbouring log.
func instead(s *config.Stream) string {
	if s.Privacy.Adjacency == dp.ZeroOut {
		return "null records, which take their places and add nothing, or the reverse"
	}
	if s.User.Period > 0 {
		return "those of another one, whatever they hold and wherever in the period they are"
	}
	return "those of another one, whatever they hold and wherever they are"
}

// personsInWords returns sentences about what a person is, which records count, and what persons are not promised.
func personsInWords(s *config.Stream, persons []Person) string {
	u, p := s.User, s.Participation()
	where := map[string]string{config.UserRecordKey: "the record's key"}[u.Key]
	if path, ok := strings.CutPrefix(u.Key, config.UserField); ok {
		where = "field " + path
	} else if name, ok := strings.CutPrefix(u.Key, config.UserHeader); ok {
		where = "header " + name
	}
	var more []string
	for _, p := range persons {
		if p.Epsilon != nil {
			more = append(more, fmt.Sprintf("(%g, %g) for k = %d", *p.Epsilon, s.Privacy.Delta, p.Records))
		}
	}
	who := "A person is all records of the epoch with one user key (%s). A person's records count in at most %d " +
		"steps, at least %d apart, at most %d in each, the first that come; "
	if u.Period > 0 {
		who = fmt.Sprintf(
			"Periods of %d steps follow one another from step 1 on, and a person here is all records of one period "+
				"with one user key", u.Period) +
			" (%s). These count in at most %d steps, at least %d apart, at most %d in each, the first that come; "
	}
	text := fmt.Sprintf(who+"all others, and those without a user key, are null records. ", where, p.Count,
		p.Separation, p.PerStep)
	if more == nil {
		text += "Several persons together have no guarantee"
	} else {
		text += "k persons together are protected less: " + strings.Join(more, ", ")
	}
	if u.Period > 0 {
		text += ". Somebody with records in k periods is k persons here: what was done over all of them is protected " +
			"that much less"
	}
	if s.Crowds() {
		of := ""
		if s.Merge {
			of = " of one partition"
		}
		text += fmt.Sprintf(
			". When the records of %d persons%s count, those of others do not, so one person less may let another "+
				"one in; the noise covers both", u.MaxUsers, of)
	}
	return text +
		". So is a human who has several user keys; and a record that somebody writes under another's key is of " +
		"two persons."
}

// whose returns a phrase that says which releases of a ledger the limit covers.
func whose(s *config.Stream) string {
	if s.User != nil {
		text := "over the population " + s.User.Population
		if s.User.Period > 0 {
			text += fmt.Sprintf(", for what a person has in one period of each epoch of a stretch, "+
				"which is epochs of a stream and partition in a row with %d steps or more,", s.User.Period)
		}
		return text
	}
	return "that read these records"
}
