package stream

import (
	"context"
	"sync"
	"sync/atomic"

	"streamdp/config"
	"streamdp/stream/core"
)

// keeper opens, resumes, closes and brings back the epochs of one task. It applies no record.
type keeper struct {
	*feed
	d       *home
	store   *store
	out     *output // nil where no stream is configured
	guard   *guard  // of out
	archive *archive
	warned  atomic.Bool // that producers decide retention

	destroying *sync.Mutex // held while secrets are destroyed; of all keepers of the task
}

// newKeeper returns what can finish closings of a task, and more once it has a stream and an output.
func newKeeper(d *home, t core.Task, changed func()) (*keeper, error) {
	st, err := openStore(d.disk, d.taskDir(t), d.sealer(t))
	if err != nil {
		return nil, err
	}
	mutex, _ := d.destroying.LoadOrStore(t, new(sync.Mutex))
	k := &keeper{feed: newFeed(d.host, t, nil, changed), d: d, store: st, destroying: mutex.(*sync.Mutex), archive: &archive{disk: d.disk, dir: st.dir}}
	k.sameLog = k.stillSameTopic
	return k, nil
}

// release sets where the task's releases go.
func (k *keeper) release(to config.Output) {
	k.out = newOutput(k.repeater, k.client, k.d.ledger, &k.d.tails, k.task, to)
	k.guard = newGuard(k.out, func(ctx context.Context, opened *Entry) (ends []int64, err error) {
		for _, src := range opened.sources() {
			log, err := k.offsets(ctx, src)
			if err != nil {
				return nil, err
			}
			ends = append(ends, log.end)
		}
		return ends, nil
	})
}

func (k *keeper) boundaryTopic() *boundaryTopic {
	return &boundaryTopic{k.repeater, k.client, k.d.cfg.Kafka.BoundaryTopic}
}
