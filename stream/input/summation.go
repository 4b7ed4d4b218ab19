package input

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/notify"
	"github.com/streamdp/streamdp/stream/failure"
)

// SharedSummation lets the instances of a group read a merged stream together. The instance that owns
// the stream's task is its root: it alone keeps the epoch's state, merges the sums of a step and
// draws noise. The others are workers: they sum partitions, which needs the manifest and the log
// and nothing that lasts, and write the sums to a topic, encrypted. A sum is a function of the log,
// so it does not matter who makes it, nor how often.
//
// Every instance has one SharedSummation, and may be a root and a worker at the same time. It is safe
// for concurrent use.
type SharedSummation struct {
	SummationOptions
	times   partTimes
	mu      sync.Mutex
	team    Team
	changed notify.Broadcast // sent when team changes
	roots   map[[16]byte]*coordinator
	workers map[[16]byte]*worker
	writers map[int]*partWriter // by shard
	ctx     context.Context     // of run
	wg      sync.WaitGroup      // of workers
}

// SumLog carries records from every instance to every other one. Each shard has a log of its
// own. Records may come late, twice, or not at all; those of one call of append come in order.
type SumLog interface {
	// Append adds records to the end of a shard's log. After an error some may be there.
	Append(ctx context.Context, shard int, records [][]byte) error
	// Follow calls fn with every record of a shard that comes after ready was called, until the
	// context ends. fn must not keep the record.
	Follow(ctx context.Context, shard int, ready func(), fn func(record []byte)) error
}

// Team is who shares the reading: the members of a generation of the group.
type Team struct {
	Generation int64
	Members    int
	Self       int // this instance's place among them; NoMember: it is none
}

// reads returns which member sums a partition, by its place among the stream's.
func (t Team) reads(index int) int { return index % t.Members }

// shares reports whether a root of this instance may leave partitions to others.
func (t Team) shares() bool { return t.Members > 1 && t.Self >= 0 && t.Self < t.Members }

// share returns how many of a stream's partitions an instance reads at most.
func (t Team) share(partitions int) int {
	if !t.shares() {
		return partitions
	}
	return (partitions + t.Members - 1) / t.Members
}

// partTimes are how long instances wait for each other.
type partTimes struct {
	Announce time.Duration // a root repeats its job: so a new member learns of it
	Beat     time.Duration // a worker says how far it has come
	Silence  time.Duration // without a word of a worker, after which the root reads itself
	Retry    time.Duration // before the root lets the worker try again; twice as long the next time
	Expire   time.Duration // without a word of a root, after which a worker forgets its job
	pace     time.Duration // between writes, during which they gather
}

var defaultPartTimes = partTimes{Announce: 2 * time.Second, Beat: time.Second, Silence: 5 * time.Second,
	Retry: time.Minute, Expire: 10 * time.Second, pace: partPace}

// maxPartRetry is the longest time for which a root reads a partition that another instance may.
const maxPartRetry = time.Hour

// SummationOptions are what a SharedSummation needs of the process.
type SummationOptions struct {
	Group  string
	Sums   SumLog
	Shard  func(s *config.Stream) int // in which a merged stream's task is
	KeyID  string                     // of the master key, which all instances must have
	Derive func(salt []byte) [32]byte // returns the key that encrypts the record with this salt
	Config func() *config.Config
	Feed   func(s *config.Stream) *Feed // of a merged stream whose task is another instance's
	Now    func() time.Time
	Log    *slog.Logger
	Failed func(error) // sees each failure of a call
}

// NewSharedSummation returns what Run serves. Nobody is in the group yet; see Regroup.
func NewSharedSummation(o SummationOptions) *SharedSummation {
	return &SharedSummation{
		SummationOptions: o, times: defaultPartTimes,
		roots: map[[16]byte]*coordinator{}, workers: map[[16]byte]*worker{}, writers: map[int]*partWriter{},
	}
}

// Shareable reports whether the partitions of a stream may be summed by several instances.
func Shareable(s *config.Stream) bool { return s.Merge && s.User == nil }

// Run follows the shards of all merged streams until the context ends. ready is called when it
// misses nothing any more; it may be nil.
func (p *SharedSummation) Run(ctx context.Context, ready func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	shards := map[int]bool{}
	for _, s := range p.Config().Streams {
		if Shareable(s) {
			shards[p.Shard(s)] = true
		}
	}
	var there, following sync.WaitGroup
	there.Add(len(shards))
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	for shard := range shards {
		seal, once := newPartSeal(p.Derive, p.Group, shard), sync.Once{}
		w := &partWriter{log: p.Sums, shard: shard, pace: p.times.pace, queue: make(chan partOut, 64)}
		w.Retrier = failure.NewRetrier(p.Log.With("shard", shard), p.Failed, func() {})
		following.Go(func() { w.run(ctx) })
		follow := failure.NewRetrier(p.Log.With("shard", shard), p.Failed, func() {})
		following.Go(func() {
			_ = follow.Do(ctx, followed, func() error {
				err := p.Sums.Follow(ctx, shard, func() {
					follow.Recovered(followed)
					once.Do(func() { // answers are heard from here on, so questions may be asked
						p.mu.Lock()
						p.writers[shard] = w
						p.mu.Unlock()
						there.Done()
					})
				}, func(record []byte) { p.take(shard, seal, record) })
				if err != nil && ctx.Err() == nil {
					return &failure.Later{Err: err} // without them each root reads by itself
				}
				return ctx.Err()
			})
			once.Do(there.Done)
		})
	}
	if ready != nil {
		there.Wait()
		ready()
	}
	tick := time.NewTicker(p.times.Beat)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			p.expire()
		}
	}
	following.Wait()
	p.mu.Lock()
	for _, w := range p.workers {
		w.stop()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// Regroup says that the group has a new generation. Roots divide their partitions anew.
func (p *SharedSummation) Regroup(t Team) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t == p.team {
		return
	}
	p.team = t
	p.changed.Send()
	for job, w := range p.workers {
		if w.job.Generation != t.Generation {
			w.stop()
			delete(p.workers, job)
		}
	}
}

// who returns the team, and what is closed when there is another one.
func (p *SharedSummation) who() (Team, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.team, p.changed.Next()
}

// write adds records to the log of a shard, after all those before, unless nobody follows it or the
// context ends. done is called when they are there.
func (p *SharedSummation) write(ctx context.Context, shard int, records [][]byte, done func()) bool {
	p.mu.Lock()
	w := p.writers[shard]
	p.mu.Unlock()
	if w == nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case w.queue <- partOut{records, done}:
		return true
	}
}

// take takes a record of a shard's log.
func (p *SharedSummation) take(shard int, seal *partSeal, record []byte) {
	h, ok := parsePartHeader(record)
	if !ok {
		return
	}
	p.mu.Lock()
	root, worker := p.roots[h.Job], p.workers[h.Job]
	self, active := p.team, p.ctx != nil && p.ctx.Err() == nil
	p.mu.Unlock()
	switch {
	case !active:
	case h.Kind == partSum || h.Kind == partAlive:
		if root == nil || root.shard != shard {
			return // of another instance's root, or of an earlier run
		}
		if content, err := seal.Open(record); err == nil {
			root.take(h, content)
		}
	case root != nil: // its own
	case h.Kind == partProgress:
		if worker == nil {
			return
		}
		if content, err := seal.Open(record); err == nil {
			if x, err := parseMergeProgress(content); err == nil {
				worker.progress(h.Step, x)
			}
		}
	case h.Kind == partJob:
		content, err := seal.Open(record)
		if err != nil {
			return
		}
		job, err := parseMergeJob(content)
		if err != nil {
			return
		}
		job.step = h.Step
		p.offered(shard, seal, h, job, self)
	}
}

// offered takes up a job that a root has announced, or gives up what is no longer this
// instance's in it.
func (p *SharedSummation) offered(shard int, seal *partSeal, h partHeader, job *mergeJob, self Team) {
	mine := job.Generation == self.Generation && job.Members == self.Members && self.Self >= 0
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[h.Job]
	if w != nil && (!mine || job.Generation != w.job.Generation || !w.same(job)) {
		w.stop()
		delete(p.workers, h.Job)
		w = nil
	}
	if w != nil {
		w.heard(h.Step)
		return
	}
	if !mine || p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	// At most two jobs of a stream: an owner that was replaced does not know it at once.
	var oldest *worker
	n := 0
	for _, o := range p.workers {
		if o.job.Stream == job.Stream {
			if n++; oldest == nil || o.last.Before(oldest.last) {
				oldest = o
			}
		}
	}
	if n >= 2 {
		oldest.stop()
		delete(p.workers, oldest.nonce)
	}
	if w = newMergeWorker(p, shard, seal, h.Job, job, self.Self); w != nil {
		p.workers[h.Job] = w
		p.wg.Go(func() { w.run() })
	}
}

// expire forgets the jobs of roots that are silent.
func (p *SharedSummation) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for job, w := range p.workers {
		if p.Now().Sub(w.last) > p.times.Expire {
			w.stop()
			delete(p.workers, job)
		}
	}
}

// followed is what is repeated, in words, while the log of sums can't be read or written.
const followed = "sums of merged streams"

// partWriter writes to the log of a shard, as much at a time as has come since the last time. One write, and each
// instance's reading of it, costs as much processor time as several sums. So while there is much to
// write it waits for more.
type partWriter struct {
	*failure.Retrier
	log   SumLog
	shard int
	pace  time.Duration // from one write to the next, unless partGather bytes wait
	queue chan partOut
}

const (
	partPace   = 20 * time.Millisecond
	partGather = 256 << 10
)

type partOut struct {
	records [][]byte
	done    func()
}

func (w *partWriter) run(ctx context.Context) {
	var last time.Time
	for {
		var all []partOut
		var records [][]byte
		size := 0
		add := func(x partOut) {
			all, records = append(all, x), append(records, x.records...)
			for _, r := range x.records {
				size += len(r)
			}
		}
		select {
		case <-ctx.Done():
			return
		case x := <-w.queue:
			add(x)
		}
		due := time.NewTimer(time.Until(last.Add(w.pace)))
		for waits := true; waits && size < partGather; {
			select {
			case <-ctx.Done():
				due.Stop()
				return
			case x := <-w.queue:
				add(x)
			case <-due.C:
				waits = false
			}
		}
		due.Stop()
		for more := true; more && size < partPiece; {
			select {
			case x := <-w.queue:
				add(x)
			default:
				more = false
			}
		}
		last = time.Now()
		err := w.Do(ctx, followed, func() error {
			err := w.log.Append(ctx, w.shard, records)
			if err != nil && ctx.Err() == nil {
				return &failure.Later{Err: err}
			}
			return err
		})
		if err != nil {
			return // the context has ended
		}
		for _, x := range all {
			x.done()
		}
	}
}

// KafkaSums is the log over a topic of Kafka, whose partitions are shards.
type KafkaSums struct {
	Client *kafka.Client
	Topic  string
	Now    func() time.Time
}

// partWait is how long a fetch of records of merged streams may wait for some.
const partWait = 2 * time.Second

// Append is that of [SumLog].
func (k *KafkaSums) Append(ctx context.Context, shard int, records [][]byte) error {
	list := make([]kafka.Message, len(records))
	for i, r := range records {
		list[i] = kafka.Message{Value: r, Time: k.Now()}
	}
	_, err := k.Client.Produce(ctx, k.Topic, int32(shard), list)
	return err
}

// Follow is that of [SumLog].
func (k *KafkaSums) Follow(ctx context.Context, shard int, ready func(), fn func([]byte)) error {
	end, err := k.Client.End(ctx, k.Topic, int32(shard))
	if err != nil {
		return err
	}
	ready()
	return k.Client.Follow(ctx, kafka.ReaderOptions{
		Topic: k.Topic, Partition: int32(shard), Uncommitted: true, SkipGaps: true, Compacted: true,
		MaxWait: partWait, MaxRecordBytes: 2 * partPiece,
	}, end, func(chunk *kafka.Chunk) error {
		came := time.Now()
		for i := range chunk.Records {
			fn(chunk.Records[i].Value)
		}
		n := len(chunk.Records)
		if chunk.Release(); n == 0 {
			return nil
		}
		select { // what comes soon after this comes together; see partWriter
		case <-ctx.Done():
		case <-time.After(time.Until(came.Add(partPace))):
		}
		return nil
	})
}
