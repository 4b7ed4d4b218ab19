package stream

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/stream/core"
)

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
