// Package state keeps a task's files: checkpoints, secrets, manifests, an archive of releases and journals of
// persons, sealed under the master key where that is wanted.
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

// UnknownBoundary in a checkpoint says that the boundary topic is read from where the ledger says, or from
// its start.
const UnknownBoundary = -1

// Lock locks the directory for this process. The lock ends with the process, even if
// that is killed.
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
	// Atomically makes all that f writes durable at once or, after an error, not at all. dir is
	// that of the task whose files f writes; f may also append lines to the ledger. What f does
	// has happened only when Atomically returns: nothing may follow from it before. A checkpoint,
	// which names the ledger's last line, is written by an f: so it is durable after that line. On
	// a disk, Atomically just calls f. Its writes become durable in order, so f must order them such that a
	// crash between any two is safe.
	Atomically(dir string, f func() error) error
	// InTurn does a commit when it is its turn.
	InTurn(commit func() error) error
	// Unpublished returns how many bytes of releases one of so many tasks may keep, where most are allowed.
	Unpublished(most, tasks int) int
	// Fits says why the shard has no room for an epoch over so many partitions, with a state of so many bytes.
	Fits(partitions, state int) error
	// Tears reports whether a write may be torn.
	Tears() bool
	// Lost reports whether another process may have the shard, so that nothing may be published.
	Lost() bool
	// Affirm checks that this process still owns the shard. An error other than that of a lost shard means
	// that it is unknown.
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

// committing has an element for each commit that is being written to files. Sixty-four at a time
// are half as many again a second as a thousand at a time, with a thread for each.
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
