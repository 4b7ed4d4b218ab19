package boundary

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/notify"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// endOffsets is a sample taken at a multiple of a task's period: the last stable offset of each partition, by number.
// Partitions whose broker did not answer are missing.
type endOffsets map[int]int64

// Sampler samples the ends of a task's partitions at each multiple of its period. It runs from the first epoch of the
// process on, also between the end of one epoch and the opening of the next. The next epoch uses the samples from that
// gap for its first boundaries. So the clock alone decides which records are in its steps. The time at which work on
// the last epoch ended depends on the content of records; it has no influence. It is safe for concurrent use.
type Sampler struct {
	*failure.Retrier
	client   *kafka.Client
	wait     func(context.Context) error // waits for the next multiple
	patience time.Duration               // the longest wait for a partition's answer
	stop     context.CancelFunc
	stopped  chan struct{}

	mu       sync.Mutex
	sources  []core.Source
	deciding bool             // an epoch makes boundaries from samples
	behind   bool             // some samples are from a time when no epoch made boundaries
	looks    []endOffsets     // samples without a boundary, oldest first
	err      error            // why sampling has ended
	changed  notify.Broadcast // guarded by mu
}

// maxLooks limits the samples that wait for an epoch. Beyond it, a new sample replaces the newest, which makes one step
// longer.
const maxLooks = 1024

// The leader of a partition must answer within half a period, but at least and at most within these times. Without a
// limit, a silent leader would delay the boundaries of all other partitions.
const (
	minPatience = time.Second
	maxPatience = 5 * time.Second
)

// StartSampler starts a sampler for steps of a period, which runs until the context ends or Stop is called. wait waits
// for the next multiple of the period.
func StartSampler(ctx context.Context, r *failure.Retrier, client *kafka.Client, wait func(context.Context) error,
	period time.Duration) *Sampler {
	ctx, stop := context.WithCancel(ctx)
	w := &Sampler{
		Retrier: r, client: client, wait: wait, patience: min(max(period/2, minPatience), maxPatience),
		stop: stop, stopped: make(chan struct{}),
	}
	go w.run(ctx)
	return w
}

// Stop ends the sampler, waits for its end and discards its samples.
func (w *Sampler) Stop() {
	w.stop()
	<-w.stopped
}

func (w *Sampler) run(ctx context.Context) {
	defer close(w.stopped)
	w.until(ctx, func() bool { return w.deciding }) // wait for the first epoch
	for w.wait(ctx) == nil {
		x, err := w.look(ctx)
		if ctx.Err() != nil {
			return
		}
		w.change(func() {
			if w.err = err; err != nil {
				return
			}
			if len(w.looks) >= maxLooks {
				w.looks = w.looks[:len(w.looks)-1]
			}
			w.looks = append(w.looks, x)
		})
		// If this is the only sample of an epoch, skip the multiples that pass before the sample's boundary is in the
		// topic.
		if err != nil || w.until(ctx, func() bool { return !w.deciding || w.behind || len(w.looks) == 0 }) != nil {
			return
		}
	}
}

// change changes the state under the lock, and wakes those who wait for a change.
func (w *Sampler) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Send()
}

// until waits until ok returns true.
func (w *Sampler) until(ctx context.Context, ok func() bool) error {
	return w.changed.Until(ctx, &w.mu, ok)
}

// begin tells the sampler that from now on an epoch over these sources uses the samples.
func (w *Sampler) begin(sources []core.Source) {
	w.change(func() { w.sources, w.deciding = sources, true })
}

// pause tells the sampler that no epoch uses samples until the next one begins.
func (w *Sampler) pause() { w.change(func() { w.deciding, w.behind = false, true }) }

// next waits for the oldest sample without a boundary.
func (w *Sampler) next(ctx context.Context) (x endOffsets, err error) {
	ended := w.until(ctx, func() bool {
		switch {
		case len(w.looks) > 0:
			x = w.looks[0]
		case w.err != nil:
			err = w.err
		default:
			w.behind = false
			return false
		}
		return true
	})
	return x, errors.Join(ended, err)
}

// decided removes the oldest sample, which has its boundary.
func (w *Sampler) decided() { w.change(func() { w.looks = w.looks[1:] }) }

// Again puts back samples, before all others. Their boundaries belong to steps that an epoch did not close.
func (w *Sampler) Again(looks []endOffsets) { w.change(func() { w.looks = append(looks, w.looks...) }) }

// look asks the leader of each partition for the end of its log. If a leader does not answer, the partition's records
// wait for a later step.
func (w *Sampler) look(ctx context.Context) (endOffsets, error) {
	soon, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	w.mu.Lock()
	sources := slices.Clone(w.sources)
	w.mu.Unlock()
	ends, errs := make([]int64, len(sources)), make([]error, len(sources))
	var wg sync.WaitGroup
	asking := make(chan struct{}, 16)
	for i, src := range sources {
		asking <- struct{}{}
		wg.Go(func() {
			defer func() { <-asking }()
			ends[i], errs[i] = w.client.LastStable(soon, src.Topic, int32(src.Partition))
		})
	}
	wg.Wait()
	x := endOffsets{}
	var missing error
	for i, err := range errs {
		switch {
		case err == nil:
			x[sources[i].Partition] = ends[i]
		case !kafka.Retriable(err) && !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
		missing = errors.Join(missing, err)
	}
	if missing != nil {
		w.Failing("boundaries", missing)
	} else {
		w.Recovered("boundaries")
	}
	return x, nil
}

// ends returns the boundary made from the sample x after the boundary last. Each offset is at least that of last, and
// at most Most above it.
func (b *Boundaries) ends(x endOffsets, last []int64) []int64 {
	ends := slices.Clone(last)
	for i, src := range b.Sources {
		if at, known := x[src.Partition]; known {
			ends[i] = min(max(at, last[i]), last[i]+b.Most)
		}
	}
	return ends
}

// precedes reports whether a sample was taken before the epoch's first records.
func (b *Boundaries) precedes(x endOffsets, last Boundary) bool {
	if last.Step > 0 {
		return false
	}
	for i, src := range b.Sources {
		if at, known := x[src.Partition]; known && at < last.Ends[i] {
			return true
		}
	}
	return false
}

// Left returns the boundaries of steps that the epoch did not close, as samples.
func (b *Boundaries) Left() (all []endOffsets) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, end := range b.queue {
		x := endOffsets{}
		for i, src := range b.Sources {
			x[src.Partition] = end.Ends[i]
		}
		all = append(all, x)
	}
	return all
}

// Waiting returns how many samples wait for an epoch.
func (w *Sampler) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.looks)
}
