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

// endOffsets is how far the partitions of a task reached at a multiple of its period: their last
// stable offsets, by number. It lacks those that did not answer.
type endOffsets map[int]int64

// Sampler looks at each multiple of a task's period how far its partitions reach. It does so
// from the first epoch that the process runs on, also while one epoch ends and the next one
// opens. That one takes the looks of this time for its first boundaries. So which records are
// in its steps depends on the clock. It does not depend on when the work on the last epoch's
// records had ended, which is a matter of their content too. It is safe for concurrent use.
type Sampler struct {
	*failure.Retrier
	client   *kafka.Client
	wait     func(context.Context) error // for the next multiple
	patience time.Duration               // for a partition's answer
	stop     context.CancelFunc
	stopped  chan struct{}

	mu       sync.Mutex
	sources  []core.Source
	deciding bool             // an epoch makes boundaries of looks
	behind   bool             // the looks are of a time when none did
	looks    []endOffsets     // of which no boundary was made, the oldest first
	err      error            // why there will be no more
	changed  notify.Broadcast // guarded by mu
}

// maxLooks bounds the looks that wait for an epoch. Beyond, the newest takes the place of the
// one before: one step is longer.
const maxLooks = 1024

// A partition's leader has half of a period to say how far it reaches, within these bounds. One that does not
// answer would hold up the boundaries of all others.
const (
	minPatience = time.Second
	maxPatience = 5 * time.Second
)

// StartSampler starts a sampler for steps of a period, which runs until the context ends or Stop is called. wait
// waits for the next multiple of the period.
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

// Stop ends the sampler, and waits for its end. Its looks are forgotten.
func (w *Sampler) Stop() {
	w.stop()
	<-w.stopped
}

func (w *Sampler) run(ctx context.Context) {
	defer close(w.stopped)
	w.until(ctx, func() bool { return w.deciding }) // the first epoch runs
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
		// While an epoch has no older looks than this one, a multiple that passes before the
		// boundary is in the topic is left out.
		if err != nil || w.until(ctx, func() bool { return !w.deciding || w.behind || len(w.looks) == 0 }) != nil {
			return
		}
	}
}

// change changes the state, and wakes whoever waits for that.
func (w *Sampler) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Send()
}

// until waits until the state is as wanted.
func (w *Sampler) until(ctx context.Context, ok func() bool) error {
	return w.changed.Until(ctx, &w.mu, ok)
}

// begin says that an epoch over these sources takes the looks from here on.
func (w *Sampler) begin(sources []core.Source) {
	w.change(func() { w.sources, w.deciding = sources, true })
}

// pause says that no epoch takes looks until the next one begins.
func (w *Sampler) pause() { w.change(func() { w.deciding, w.behind = false, true }) }

// next waits for the oldest look of which no boundary was made.
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

// decided says that the oldest look needs no boundary any more.
func (w *Sampler) decided() { w.change(func() { w.looks = w.looks[1:] }) }

// Again puts looks before all others: those of boundaries that an epoch had, and whose steps it did not close.
func (w *Sampler) Again(looks []endOffsets) { w.change(func() { w.looks = append(looks, w.looks...) }) }

// look asks the partitions that are there how far they reach. Where one does not answer, its records wait
// for a later step.
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

// ends returns the boundary that a look gives after another one: none below that or too far behind it.
func (b *Boundaries) ends(x endOffsets, last []int64) []int64 {
	ends := slices.Clone(last)
	for i, src := range b.Sources {
		if at, known := x[src.Partition]; known {
			ends[i] = min(max(at, last[i]), last[i]+b.Most)
		}
	}
	return ends
}

// precedes reports whether a look is of a time before the epoch's records.
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

// Left returns the looks that gave the boundaries of steps that the epoch did not close.
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

// Waiting returns how many looks wait for an epoch.
func (w *Sampler) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.looks)
}
