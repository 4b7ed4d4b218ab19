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

// Shard holds the state and the ledger that the tasks of a shard share.
type Shard struct {
	*Process
	Disk     state.Shard          // holds the files
	Dir      string               // directory of the files
	Ledger   *ledger.Ledger       // of all tasks
	Mirror   *ledger.ControlTopic // control topic with a copy of the ledger; nil: none
	Evidence coalesced            // runs the check of all tasks' files, see ledgerIsNewest
	Running  atomic.Int64         // number of the shard's tasks that this process runs
	// destroying has a mutex per task, held while the task's secrets are destroyed.
	destroying sync.Map
}

// A shard that keeps its state in logs holds 64 MiB. An epoch may be opened if its state fits into ShardStates together
// with everything else. The rest is for releases that cannot be published at the moment: the tasks of a shard together
// keep about ShardOutbox.
const (
	ShardStates = 44 << 20
	ShardOutbox = 16 << 20
)

// Unpublished returns how many bytes of unpublished releases a task may keep. If the state is on a disk, that is the
// argument most. One more release is always kept, so a large release cannot wait forever.
func (s *Shard) Unpublished(most int) int {
	return s.Disk.Unpublished(most, int(max(s.Running.Load(), 1)))
}

// TaskDir returns the directory of a task's files.
func (s *Shard) TaskDir(t core.Task) string { return s.Dir + "/tasks/" + t.String() }

// CheckpointOf reads the last commit of a task that may be running. CheckpointOf retries, because a checkpoint looks
// damaged while it is being written.
func (s *Shard) CheckpointOf(t core.Task) (cp *state.Checkpoint, err error) {
	for range 3 {
		if cp, err = state.OpenReader(s.Disk, s.TaskDir(t), s.Sealer(t)).Load(); !errors.Is(err, state.ErrCheckpoint) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return cp, err
}

// Atomically calls the shard's Atomically for writes of the task's files and lines of the ledger.
func (k *Keeper) Atomically(f func() error) error { return k.D.Disk.Atomically(k.Store.Dir, f) }
