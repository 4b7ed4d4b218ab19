// Package state has a task's files: checkpoints, secrets, manifests, an archive of releases and journals of persons,
// sealed under the master key if that is configured.
package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/osfile"
	"github.com/streamdp/streamdp/stream/core"
)

// UnknownBoundary in a checkpoint means that the boundary topic is read from the offset in the ledger, or from its
// start.
const UnknownBoundary = -1

// Lock locks the directory for this process. The lock ends with the process, even if the process is killed.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := osfile.Lock(f); err != nil {
		f.Close()
		if errors.Is(err, osfile.ErrLocked) {
			return nil, fmt.Errorf("directory %s is in use by another process", dir)
		}
		return nil, err
	}
	return f, nil
}

// Shard is the durable state of some tasks: their files and their ledger.
type Shard interface {
	Disk
	// Atomically makes everything that f writes durable, either all of it or, after an error, nothing. dir is the
	// directory of the task whose files f writes; f may also append lines to the ledger. The changes of f have happened
	// only when Atomically returns; until then, nothing may be based on them. A checkpoint names the ledger's last
	// line, so it is written by an f: it becomes durable after that line. On a disk, Atomically just calls f. Its
	// writes become durable in order, so f must order them such that a crash between any two is safe.
	Atomically(dir string, f func() error) error
	// InTurn calls commit when it is its turn.
	InTurn(commit func() error) error
	// Unpublished returns how many bytes of unpublished releases each of tasks tasks may keep, if most is the general
	// limit.
	Unpublished(most, tasks int) int
	// Fits returns an error if the shard has no room for an epoch over this number of partitions, with a state of this
	// many bytes.
	Fits(partitions, state int) error
	// Tears reports whether a write may be torn.
	Tears() bool
	// Lost reports whether another process may own the shard, so that nothing may be published.
	Lost() bool
	// Affirm checks that this process still owns the shard. An error other than that of a lost shard means that this is
	// unknown.
	Affirm() error
}

// FileShard is a shard in a directory of files. It is never lost and has no limit.
type FileShard struct{ Disk }

// Atomically calls f.
func (FileShard) Atomically(_ string, f func() error) error { return f() }

// Unpublished returns most.
func (FileShard) Unpublished(most, _ int) int { return most }

// Fits returns nil.
func (FileShard) Fits(_, _ int) error { return nil }

// Tears returns true: a crash may leave part of a write.
func (FileShard) Tears() bool { return true }

// Lost returns false.
func (FileShard) Lost() bool { return false }

// Affirm returns nil.
func (FileShard) Affirm() error { return nil }

// InTurn calls commit when fewer than 64 others are being written.
func (FileShard) InTurn(commit func() error) error {
	committing <- struct{}{}
	defer func() { <-committing }()
	return commit()
}

// tears reports whether a write to a disk may be torn.
func tears(d Disk) bool {
	s, ok := d.(interface{ Tears() bool })
	return !ok || s.Tears()
}

// committing has an element for each commit that is being written to files. With at most 64 at a time, there are half
// as many commits again per second as with a thousand at a time, each in its own thread.
var committing = make(chan struct{}, 64)

// Beginning returns a checkpoint with an epoch's first positions.
func Beginning(m *core.Manifest) *Checkpoint {
	cp := &Checkpoint{Position: kafka.Position{Next: m.Base, LeaderEpoch: -1}}
	for _, p := range m.Parts {
		cp.Parts = append(cp.Parts,
			Place{Partition: p.Partition, Position: kafka.Position{Next: p.Base, LeaderEpoch: -1}})
	}
	return cp
}
