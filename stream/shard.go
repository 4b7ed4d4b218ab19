package stream

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"streamdp/stream/core"
)

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
func (fileShard) unpublished(most, _ int) int               { return most }
func (fileShard) fits(_, _ int) error                       { return nil }
func (fileShard) tears() bool                               { return true }
func (fileShard) lost() bool                                { return false }
func (fileShard) affirm() error                             { return nil }

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

// home is what the tasks of a shard share: its state, and its ledger.
type home struct {
	*host
	disk     shard
	dir      string // of the files
	ledger   *ledger
	mirror   *mirror      // of the ledger; nil: none
	evidence joint        // looks at the files of all tasks
	running  atomic.Int64 // tasks of this process in it
	// destroying has a mutex for each task that was here, held while secrets of it are destroyed.
	destroying sync.Map
}

// A shard in logs holds 64 MiB. An epoch is opened where its state fits into shardStates with all
// there is. The rest is for releases that the output does not take: of these the tasks of a shard
// keep about shardOutbox.
const (
	shardStates = 44 << 20
	shardOutbox = 16 << 20
)

// unpublished returns how many bytes of releases a task may keep, where one on a disk may keep
// most. It is never so little that a release of some size would wait for ever: one more is kept.
func (h *home) unpublished(most int) int {
	return h.disk.unpublished(most, int(max(h.running.Load(), 1)))
}

// committing has an element for each commit that is being written to files. Sixty-four at a time
// are half as many again a second as a thousand at a time, with a thread for each.
var committing = make(chan struct{}, 64)

// taskDir returns the directory of a task's files.
func (h *home) taskDir(t core.Task) string { return h.dir + "/tasks/" + t.String() }

// checkpointOf reads the last commit of a task that may be running. If it is just being
// written it looks damaged, so checkpointOf tries again.
func (h *home) checkpointOf(t core.Task) (cp *checkpoint, err error) {
	for range 3 {
		if cp, err = (&store{disk: h.disk, dir: h.taskDir(t), seal: h.sealer(t)}).load(); !errors.Is(err, errCheckpoint) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return cp, err
}

// atomically is shard.atomically for a task's files and lines of the ledger.
func (r *keeper) atomically(f func() error) error { return r.d.disk.atomically(r.store.dir, f) }
