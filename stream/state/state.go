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
	// has happened only when atomically returns: nothing may follow from it before. A checkpoint,
	// which names the ledger's last line, is written by an f: so it is durable after that line. On
	// a real disk atomically is f, whose writes become durable one after the other. An order of them that a
	// Crash may cut anywhere is right for both.
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
	// Affirm makes sure that the shard is this process's still.
	Affirm() error
}

// FileShard is a directory of files.
type FileShard struct{ Disk }

func (FileShard) Atomically(_ string, f func() error) error { return f() }

func (FileShard) Unpublished(most, _ int) int { return most }

func (FileShard) Fits(_, _ int) error { return nil }

func (FileShard) Tears() bool { return true }

func (FileShard) Lost() bool { return false }

func (FileShard) Affirm() error { return nil }

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
		cp.Parts = append(cp.Parts, Place{Partition: p.Partition, Position: kafka.Position{Next: p.Base, LeaderEpoch: -1}})
	}
	return cp
}
