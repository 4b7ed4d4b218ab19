package stream

import (
	"errors"
	"fmt"
	"runtime"

	"streamdp/config"
	"streamdp/internal/persons"
	"streamdp/stream/codec"
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
	return encodeUsers(j.Append())
}

// encodeUsers returns a position in the files of persons as a checkpoint has it.
func encodeUsers(at *persons.Position, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return at.AppendBinary(nil)
}

// usersBytes are the entries of closed steps, in bytes, beyond which nothing is applied before they are on
// disk; tests lower it.
var usersBytes uint64 = maxPendingBytes

// crowded reports whether persons ask for a commit before the next step begins: much waits to
// be written, or a snapshot is due. It depends on the number of records alone. So what waits takes no
// more than usersBytes and 20 bytes for each record of a step, or for each of max_users where that is less.
func (p *processor) crowded() bool {
	return p.epoch.users != nil && p.quiet > 0 && (p.core.Persons().Waiting() >= usersBytes || p.epoch.users.SnapshotDue())
}

// deferred reports whether nothing may be committed yet: releases of two outputs are compared, and a commit
// says of one only what must be compared after a restart.
func (p *processor) deferred() bool { return p.comparing && p.epoch.moved }

// spill writes to disk what persons contributed, while commits are deferred. The last commit stays.
func (p *processor) spill() (done bool, err error) {
	if p.epoch.users != nil {
		if err := p.epoch.users.Spill(); err != nil {
			return p.uncommitted(err)
		}
		p.unpause()
	}
	p.failed = false
	p.pause.Reset()
	p.r.untroubled("commit")
	return true, nil
}

// usersWhole reports whether the files of persons are those of a checkpoint. It changes none of them.
func usersWhole(s *store, protected bool, cp *checkpoint) (bool, error) {
	if !protected || cp.users == nil {
		return !protected && cp.users == nil, nil
	}
	var at persons.Position
	if at.UnmarshalBinary(cp.users) != nil || at.Step != cp.step {
		return false, nil
	}
	err := persons.Check(userFiles{s.disk}, s.dir, usersOf(cp.epoch), at)
	if errors.Is(err, persons.ErrDamaged) {
		return false, nil
	}
	return err == nil, err
}

// rewriteUsers makes durable what a map of persons holds that was filled by reading the log again,
// and returns the position for the checkpoint; nil where records are protected. The files that
// there are stay until that checkpoint is durable.
func rewriteUsers(j *persons.Journal) ([]byte, error) {
	if j == nil {
		return nil, nil
	}
	return encodeUsers(j.Rewrite())
}

// newDecoder returns a decoder of one partition's records. Where persons are protected, it sets the
// tags of the epoch's.
func newDecoder(s *config.Stream, m *core.Manifest, partition int, c *core.Core) (*codec.Decoder, error) {
	d, err := codec.NewDecoder(core.FormatOf(s), runtime.GOMAXPROCS(0))
	if err == nil && s.User != nil {
		key := c.UserKey()
		if err = d.TagUsers(&key); err == nil && s.User.Partitioner == "murmur2" {
			d.OnlyAtHome(partition, m.Partitions)
		}
	}
	if err != nil {
		return nil, halted(haltConfiguration, "%w", err)
	}
	return d, nil
}
