package stream

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/osfile"
	"github.com/streamdp/streamdp/stream/core"
)

// unknownBoundary in a checkpoint says that the boundary topic is read from where the ledger says, or from
// its start.
const unknownBoundary = -1

// lockDir locks the directory for this process. The lock ends with the process, even if
// that is killed.
func lockDir(dir string) (*os.File, error) {
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

// taskStore returns the files of a task, for reading only.
func taskStore(dir string, t core.Task, key *[32]byte) *store {
	return &store{disk: osDisk{}, dir: dir + "/tasks/" + t.String(), slot: noSlot, seal: &sealer{master: key, task: t.String()}}
}

// shard is the durable state of some tasks: their files and their ledger.
type shard interface {
	disk
	// atomically makes all that f writes durable at once or, after an error, not at all. dir is
	// that of the task whose files f writes; f may also append lines to the ledger. What f does
	// has happened only when atomically returns: nothing may follow from it before. A checkpoint,
	// which names the ledger's last line, is written by an f: so it is durable after that line. On
	// a real disk atomically is f, whose writes become durable one after the other. An order of them that a
	// crash may cut anywhere is right for both.
	atomically(dir string, f func() error) error
	// inTurn does a commit when it is its turn.
	inTurn(commit func() error) error
	// unpublished returns how many bytes of releases one of so many tasks may keep, where most are allowed.
	unpublished(most, tasks int) int
	// fits says why the shard has no room for an epoch over so many partitions, with a state of so many bytes.
	fits(partitions, state int) error
	// tears reports whether a write may be torn.
	tears() bool
	// lost reports whether another process may have the shard, so that nothing may be published.
	lost() bool
	// affirm makes sure that the shard is this process's still.
	affirm() error
}

// fileShard is a directory of files.
type fileShard struct{ disk }

func (fileShard) atomically(_ string, f func() error) error { return f() }

func (fileShard) unpublished(most, _ int) int { return most }

func (fileShard) fits(_, _ int) error { return nil }

func (fileShard) tears() bool { return true }

func (fileShard) lost() bool { return false }

func (fileShard) affirm() error { return nil }

func (fileShard) inTurn(commit func() error) error {
	committing <- struct{}{}
	defer func() { <-committing }()
	return commit()
}

// tears reports whether a write to a disk may be torn.
func tears(d disk) bool {
	s, ok := d.(interface{ tears() bool })
	return !ok || s.tears()
}

// committing has an element for each commit that is being written to files. Sixty-four at a time
// are half as many again a second as a thousand at a time, with a thread for each.
var committing = make(chan struct{}, 64)

// beginning returns a checkpoint with an epoch's first positions.
func beginning(m *core.Manifest) *checkpoint {
	cp := &checkpoint{position: kafka.Position{Next: m.Base, LeaderEpoch: -1}}
	for _, p := range m.Parts {
		cp.parts = append(cp.parts, partPosition{partition: p.Partition, position: kafka.Position{Next: p.Base, LeaderEpoch: -1}})
	}
	return cp
}
