package stream

import (
	"fmt"

	"streamdp/config"
	"streamdp/internal/persons"
	"streamdp/stream/core"
)

const usersPrefix = "users-"

// usersOf begins the names of an epoch's files of persons.
func usersOf(epoch uint64) string { return fmt.Sprintf("%s%d.", usersPrefix, epoch) }

// userFiles is a disk for the files of persons.
type userFiles struct{ disk }

func (d userFiles) Create(name string) (persons.File, error) { return d.disk.Create(name) }
func (d userFiles) Append(name string) (persons.File, error) { return d.disk.Append(name) }

// openUsers fills the map of persons as of a checkpoint, and returns the journal that goes on
// with it; nil where records are protected.
//
// Errors: persons.ErrDamaged if the files are not those of the checkpoint; errors of the disk.
func openUsers(s *store, c *core.Core, cp *checkpoint) (*persons.Journal, error) {
	m := c.Persons()
	if m == nil && cp.users == nil {
		return nil, nil
	}
	var at persons.Position
	if m == nil || cp.users == nil || at.UnmarshalBinary(cp.users) != nil || at.Step != cp.step {
		return nil, persons.ErrDamaged
	}
	return persons.OpenJournal(userFiles{s.disk}, s.dir, usersOf(cp.epoch), m, at)
}

// noUsers is the position of an epoch's first checkpoint.
func noUsers() []byte {
	b, _ := new(persons.Position).AppendBinary(nil) // which has no errors
	return b
}

// appendUsers makes durable what closed steps add to the journal, and returns the position for
// the checkpoint; nil where records are protected.
func appendUsers(j *persons.Journal) ([]byte, error) {
	if j == nil {
		return nil, nil
	}
	at, err := j.Append()
	if err != nil {
		return nil, err
	}
	return at.AppendBinary(nil)
}

// crowded reports whether persons ask for a commit before the next step begins: much waits to
// be written, or a snapshot is due. It depends on the number of records alone.
func (p *processor) crowded() bool {
	return p.epoch.users != nil && p.quiet > 0 && (p.core.Persons().Waiting() >= maxPendingBytes || p.epoch.users.SnapshotDue())
}

// repeatable refuses to read a log again for an epoch that protects persons: nothing keeps up its
// journal meanwhile.
func repeatable(s *config.Stream) error {
	if s.User != nil {
		return halted(haltConfiguration, "stream %s protects persons: its log can't be read again in this version; restore the state directory as a whole", s.Name)
	}
	return nil
}
