package stream

import (
	"testing"
	"time"
)

// TestUnpublished: in a shard in logs, tasks keep less of what a broker does not take, so that all
// of it fits.
func TestUnpublished(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		h := &home{disk: fileShard{newSimDisk("/s")}}
		if shared {
			s, err := newLogShard(newHeldShard())
			must(t, err)
			h.disk = s
		}
		h.running.Store(100)
		p := &processor{r: &runner{keeper: &keeper{d: h}}, epoch: &openEpoch{}, period: time.Second}
		p.outboxBytes, p.pendingBytes = shardOutbox/100-1, shardOutbox/100-1
		if p.choked() || p.full() {
			t.Errorf("shared %t: a task waits with less than its share", shared)
		}
		p.outboxBytes, p.pendingBytes = shardOutbox/100, shardOutbox/100
		if p.choked() != shared || p.full() != shared {
			t.Errorf("shared %t: waits for the broker %t, for a commit %t", shared, p.choked(), p.full())
		}
	}
}
