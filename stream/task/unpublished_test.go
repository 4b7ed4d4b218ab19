package task_test

import (
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// TestUnpublished: in a shard in logs, tasks keep less of what a broker does not take, so that all
// of it fits.
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
		p := &task.Processor{R: &task.Runner{Keeper: &epoch.Keeper{D: h}}, Epoch: &epoch.OpenEpoch{}, Period: time.Second}
		p.OutboxBytes, p.PendingBytes = epoch.ShardOutbox/100-1, epoch.ShardOutbox/100-1
		if p.Choked() || p.Full() {
			t.Errorf("shared %t: a task waits with less than its share", shared)
		}
		p.OutboxBytes, p.PendingBytes = epoch.ShardOutbox/100, epoch.ShardOutbox/100
		if p.Choked() != shared || p.Full() != shared {
			t.Errorf("shared %t: waits for the broker %t, for a commit %t", shared, p.Choked(), p.Full())
		}
	}
}
