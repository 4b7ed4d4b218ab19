package state

import (
	"errors"
	"fmt"
	"slices"

	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// PersonsPrefix is the prefix of the names of all files of persons.
const PersonsPrefix = "users-"

// UsersOf returns the prefix of the names of an epoch's files of persons.
func UsersOf(epoch uint64) string { return fmt.Sprintf("%s%d.", PersonsPrefix, epoch) }

// usersOfPart returns the prefix for the partition with index i in the epoch's list of partitions.
func (c *Checkpoint) usersOfPart(i int) string {
	if len(c.Parts) == 0 {
		return UsersOf(c.Epoch)
	}
	return fmt.Sprintf("%sp%d.", UsersOf(c.Epoch), c.Parts[i].Partition)
}

// UserFiles is a disk for the files of persons.
type UserFiles struct{ Disk }

func (d UserFiles) Create(name string) (persons.File, error) { return d.Disk.Create(name) }
func (d UserFiles) Append(name string) (persons.File, error) { return d.Disk.Append(name) }

// Journals store the epoch's maps of persons, one for each partition that it reads; nil if the epoch protects records.
type Journals []*persons.Journal

// OpenPersons restores the maps of persons as they were at a checkpoint, and returns the journals that continue from
// there. It returns nil if the epoch protects records.
//
// Errors: persons.ErrDamaged if the files do not match the checkpoint; errors of the disk.
func OpenPersons(s *Store, c *core.Core, cp *Checkpoint) (all Journals, err error) {
	maps := c.Persons()
	if len(maps) != len(cp.Users) {
		return nil, persons.ErrDamaged
	}
	for i, m := range maps {
		at, ok := cp.usersAt(i)
		if !ok {
			return nil, persons.ErrDamaged
		}
		j, err := persons.OpenJournal(UserFiles{s.Disk}, s.Dir, cp.usersOfPart(i), m, at)
		if err != nil {
			return nil, err
		}
		all = append(all, j)
	}
	return all, nil
}

// usersAt returns the position of a partition's files of persons. ok is false if the position does not fit the
// checkpoint.
func (c *Checkpoint) usersAt(i int) (at persons.Position, ok bool) {
	err := at.UnmarshalBinary(c.Users[i])
	return at, err == nil && at.Step == c.Step && len(c.Users) == len(c.All())
}

// NoPersons returns the positions of the journals for an epoch's first checkpoint, one for each partition.
func NoPersons(partitions int) (all [][]byte) {
	for range partitions {
		b, _ := new(persons.Position).AppendBinary(nil) // AppendBinary never fails
		all = append(all, b)
	}
	return all
}

// SnapshotDue reports whether a journal needs a snapshot.
func (all Journals) SnapshotDue() bool {
	return slices.ContainsFunc(all, (*persons.Journal).SnapshotDue)
}

// Append makes the entries of closed steps durable, and returns the positions for the checkpoint. After an error it can
// be called again.
func (all Journals) Append() ([][]byte, error) { return all.positions((*persons.Journal).Append) }

// Rewrite makes durable the content of maps of persons that were filled by reading the log again, and returns the
// positions for the checkpoint. Existing files remain until that checkpoint is durable.
func (all Journals) Rewrite() ([][]byte, error) { return all.positions((*persons.Journal).Rewrite) }

// positions calls durable for each journal, and returns the journals' positions, encoded for a checkpoint.
func (all Journals) positions(durable func(*persons.Journal) (*persons.Position, error)) (list [][]byte, err error) {
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

// Spill writes the entries of closed steps to the journals without a checkpoint. After an error it can be called again.
func (all Journals) Spill() error {
	for _, j := range all {
		if err := j.Spill(); err != nil {
			return err
		}
	}
	return nil
}

// Committed reports to the journals that the checkpoint with the last positions is durable. An error of one journal,
// such as a full disk, does not stop the others.
func (all Journals) Committed() (err error) {
	for _, j := range all {
		switch e := j.Committed(); {
		case e != nil && !failure.DiskFull(e):
			return e
		case e != nil:
			err = e
		}
	}
	return err
}

// PersonsBytes is a limit in bytes for entries of closed steps in memory. Once they exceed it, no more records are
// applied until the entries are on disk. Tests lower it.
var PersonsBytes uint64 = 4 << 20

// WholePersons reports whether the files of persons match a checkpoint. It does not change the files.
func WholePersons(s *Store, protected bool, cp *Checkpoint) (bool, error) {
	if !protected || cp.Users == nil {
		return !protected && cp.Users == nil, nil
	}
	for i := range cp.Users {
		at, ok := cp.usersAt(i)
		if !ok {
			return false, nil
		}
		err := persons.Check(UserFiles{s.Disk}, s.Dir, cp.usersOfPart(i), at)
		if errors.Is(err, persons.ErrDamaged) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
