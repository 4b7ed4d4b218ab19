package epoch

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Shard is what the tasks of a shard share: its state, and its ledger.
type Shard struct {
	*Process
	Disk     state.Shard          // holds the files
	Dir      string               // of the files
	Ledger   *ledger.Ledger       // of all tasks
	Mirror   *ledger.ControlTopic // of the ledger; nil: none
	Evidence coalesced            // looks at the files of all tasks
	Running  atomic.Int64         // tasks of this process in it
	// destroying has a mutex for each task that was here, held while secrets of it are destroyed.
	destroying sync.Map
}

// A shard in logs holds 64 MiB. An epoch is opened where its state fits into ShardStates with all
// there is. The rest is for releases that the output does not take: of these the tasks of a shard
// keep about ShardOutbox.
const (
	ShardStates = 44 << 20
	ShardOutbox = 16 << 20
)

// Unpublished returns how many bytes of releases a task may keep, where one on a disk may keep
// most. It is never so little that a release of some size would wait for ever: one more is kept.
func (s *Shard) Unpublished(most int) int {
	return s.Disk.Unpublished(most, int(max(s.Running.Load(), 1)))
}

// TaskDir returns the directory of a task's files.
func (s *Shard) TaskDir(t core.Task) string { return s.Dir + "/tasks/" + t.String() }

// CheckpointOf reads the last commit of a task that may be running. If it is just being
// written it looks damaged, so CheckpointOf tries again.
func (s *Shard) CheckpointOf(t core.Task) (cp *state.Checkpoint, err error) {
	for range 3 {
		if cp, err = state.OpenReader(s.Disk, s.TaskDir(t), s.Sealer(t)).Load(); !errors.Is(err, state.ErrCheckpoint) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return cp, err
}

// Atomically is shard.atomically for a task's files and lines of the ledger.
func (k *Keeper) Atomically(f func() error) error { return k.D.Disk.Atomically(k.Store.Dir, f) }
