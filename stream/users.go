package stream

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/stream/core"
)

const usersPrefix = "users-"

// usersOf begins the names of an epoch's files of persons.
func usersOf(epoch uint64) string { return fmt.Sprintf("%s%d.", usersPrefix, epoch) }

// usersOfPart begins the names of those of a partition, which is number i of the epoch's.
func (c *checkpoint) usersOfPart(i int) string {
	if len(c.parts) == 0 {
		return usersOf(c.epoch)
	}
	return fmt.Sprintf("%sp%d.", usersOf(c.epoch), c.parts[i].partition)
}

// userFiles is a disk for the files of persons.
type userFiles struct{ disk }

func (d userFiles) Create(name string) (persons.File, error) { return d.disk.Create(name) }
func (d userFiles) Append(name string) (persons.File, error) { return d.disk.Append(name) }

// journals keep what an epoch's maps of persons hold, one for each partition that it reads; nil where
// records are protected.
type journals []*persons.Journal

// openUsers fills the maps of persons as of a checkpoint, and returns the journals that go on
// with it; nil where records are protected.
//
// Errors: persons.ErrDamaged if the files are not those of the checkpoint; errors of the disk.
func openUsers(s *store, c *core.Core, cp *checkpoint) (all journals, err error) {
	maps := c.Persons()
	if len(maps) != len(cp.users) {
		return nil, persons.ErrDamaged
	}
	for i, m := range maps {
		at, ok := cp.usersAt(i)
		if !ok {
			return nil, persons.ErrDamaged
		}
		j, err := persons.OpenJournal(userFiles{s.disk}, s.dir, cp.usersOfPart(i), m, at)
		if err != nil {
			return nil, err
		}
		all = append(all, j)
	}
	return all, nil
}

// usersAt returns the position of a partition's files of persons, unless that can't be the checkpoint's.
func (c *checkpoint) usersAt(i int) (at persons.Position, ok bool) {
	err := at.UnmarshalBinary(c.users[i])
	return at, err == nil && at.Step == c.step && len(c.users) == len(c.all())
}

// noUsers are the positions of an epoch's first checkpoint, for so many partitions.
func noUsers(partitions int) (all [][]byte) {
	for range partitions {
		b, _ := new(persons.Position).AppendBinary(nil) // which has no errors
		all = append(all, b)
	}
	return all
}

// snapshotDue reports whether a journal asks for a snapshot.
func (all journals) snapshotDue() bool {
	return slices.ContainsFunc(all, (*persons.Journal).SnapshotDue)
}

// append makes durable what closed steps add to the journals, and returns the positions for
// the checkpoint. After an error it can be called again.
func (all journals) append() ([][]byte, error) { return all.positions((*persons.Journal).Append) }

// rewrite makes durable what maps of persons hold that were filled by reading the log again,
// and returns the positions for the checkpoint. The files that there are stay until that checkpoint is
// durable.
func (all journals) rewrite() ([][]byte, error) { return all.positions((*persons.Journal).Rewrite) }

// positions makes each journal durable, and returns where they are, as a checkpoint has it.
func (all journals) positions(durable func(*persons.Journal) (*persons.Position, error)) (list [][]byte, err error) {
	for _, j := range all {
		at, err := durable(j)
		if err != nil {
			return nil, err
		}
		b, err := at.AppendBinary(nil)
		if err != nil {
			return nil, err
		}
		list = append(list, b)
	}
	return list, nil
}

// spill writes what closed steps add, with no checkpoint behind it. After an error it can be called again.
func (all journals) spill() error {
	for _, j := range all {
		if err := j.Spill(); err != nil {
			return err
		}
	}
	return nil
}

// committed says that the checkpoint with the last positions is durable. A full disk in one journal's turn
// is no reason to leave out others.
func (all journals) committed() (err error) {
	for _, j := range all {
		switch e := j.Committed(); {
		case e != nil && !full(e):
			return e
		case e != nil:
			err = e
		}
	}
	return err
}

// usersBytes are the entries of closed steps, in bytes, beyond which nothing is applied before they are on
// disk; tests lower it.
var usersBytes uint64 = 4 << 20

// usersWhole reports whether the files of persons are those of a checkpoint. It changes none of them.
func usersWhole(s *store, protected bool, cp *checkpoint) (bool, error) {
	if !protected || cp.users == nil {
		return !protected && cp.users == nil, nil
	}
	for i := range cp.users {
		at, ok := cp.usersAt(i)
		if !ok {
			return false, nil
		}
		err := persons.Check(userFiles{s.disk}, s.dir, cp.usersOfPart(i), at)
		if errors.Is(err, persons.ErrDamaged) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
