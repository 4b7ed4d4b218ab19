// Package state reads and writes a task's files: checkpoints, secrets, manifests, an archive of releases and journals
// of persons. If configured, private files are encrypted under the master key.
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

// UnknownBoundary in a checkpoint means that the offset of the last boundary is not known. The boundary topic is then
// read from the offset in the ledger, or from its start.
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
	// Atomically calls f and makes everything that f writes durable, either all of it or, after an error, nothing. dir
	// is the directory of the task whose files f writes; f may also append lines to the ledger. The changes of f are
	// durable only when Atomically returns; until then, the caller must not rely on them. A checkpoint contains the
	// hash of the ledger's last line, so it must be written within Atomically: it must not become durable before that
	// line. On a disk, Atomically just calls f. The writes of f become durable in order, so f must order them such that
	// a crash between any two is safe.
	Atomically(dir string, f func() error) error
	// InTurn waits until it is the caller's turn, and then calls commit. It limits how many commits run at once.
	InTurn(commit func() error) error
	// Unpublished returns the maximum size in bytes of the unpublished releases of one task. `tasks` is the number of
	// tasks of the shard, and `most` is the general limit for one task.
	Unpublished(most, tasks int) int
	// Fits returns an error if the shard has no room for an epoch over this number of partitions, with a state of this
	// many bytes.
	Fits(partitions, state int) error
	// Tears reports whether a write may be torn.
	Tears() bool
	// Lost reports whether another process may own the shard, so that nothing may be published.
	Lost() bool
	// Affirm checks that this process still owns the shard. One error says that the shard is lost; any other error
	// means that ownership is unknown.
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

// InTurn calls commit as soon as fewer than 64 other commits are running.
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

// committing has an element for each commit that is being written to files. 64 commits at a time gave 1.5 times the
// throughput of a thousand at a time, each in its own thread.
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
