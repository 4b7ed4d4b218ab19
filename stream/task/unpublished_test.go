package task_test

import (
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// TestUnpublished: if a shard keeps its state in logs, its tasks keep fewer unpublished releases, so that all of them
// fit into the shard.
func TestUnpublished(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		h := &epoch.Shard{Disk: state.FileShard{Disk: simdisk.NewSimDisk("/s")}}
		if shared {
			s, err := cluster.NewShard(streamtest.NewHeldShard())
			fixtures.Must(t, err)
			h.Disk = s
		}
		h.Running.Store(100)
		r := &task.Runner{Keeper: &epoch.Keeper{D: h}}
		if choked, full := task.Waits(r, epoch.ShardOutbox/100-1); choked || full {
			t.Errorf("shared %t: a task waits with less than its share", shared)
		}
		if choked, full := task.Waits(r, epoch.ShardOutbox/100); choked != shared || full != shared {
			t.Errorf("shared %t: waits for the broker %t, for a commit %t", shared, choked, full)
		}
	}
}
