package stream

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
)

// partials lets the instances of a group read a merged stream together. The instance that owns
// the stream's task is its root: it alone keeps the epoch's state, merges the sums of a step and
// draws noise. The others are workers: they sum partitions, which needs the manifest and the log
// and nothing that lasts, and write the sums to a topic, encrypted. A sum is a function of the log,
// so it does not matter who makes it, nor how often.
//
// Every instance has one partials, and may be a root and a worker at the same time. It is safe
// for concurrent use.
type partials struct {
	partialsOptions
	times   partTimes
	mu      sync.Mutex
	team    team
	changed chan struct{} // closed when team changes
	roots   map[[16]byte]*mergeRoot
	workers map[[16]byte]*mergeWorker
	writers map[int]*partWriter // by shard
	ctx     context.Context     // of run
	wg      sync.WaitGroup      // of workers
}

// sumLog carries records from every instance to every other one. Each shard has a log of its
// own. Records may come late, twice, or not at all; those of one call of append come in order.
type sumLog interface {
	// append adds records to the end of a shard's log. After an error some may be there.
	append(ctx context.Context, shard int, records [][]byte) error
	// follow calls fn with every record of a shard that comes after ready was called, until the
	// context ends. fn must not keep the record.
	follow(ctx context.Context, shard int, ready func(), fn func(record []byte)) error
}

// team is who shares the reading: the members of a generation of the group.
type team struct {
	generation int64
	members    int
	self       int // this instance's place among them; noMember: it is none
}

// reads returns which member sums a partition, by its place among the stream's.
func (t team) reads(index int) int { return index % t.members }

// shares reports whether a root of this instance may leave partitions to others.
func (t team) shares() bool { return t.members > 1 && t.self >= 0 && t.self < t.members }

// share returns how many of a stream's partitions an instance reads at most.
func (t team) share(partitions int) int {
	if !t.shares() {
		return partitions
	}
	return (partitions + t.members - 1) / t.members
}

// partTimes are how long instances wait for each other.
type partTimes struct {
	announce time.Duration // a root repeats its job: so a new member learns of it
	beat     time.Duration // a worker says how far it has come
	silence  time.Duration // without a word of a worker, after which the root reads itself
	retry    time.Duration // before the root lets the worker try again; twice as long the next time
	expire   time.Duration // without a word of a root, after which a worker forgets its job
	pace     time.Duration // between writes, during which they gather
}

var defaultPartTimes = partTimes{announce: 2 * time.Second, beat: time.Second, silence: 5 * time.Second, retry: time.Minute, expire: 10 * time.Second, pace: partPace}

// maxPartRetry is the longest time for which a root reads a partition that another instance may.
const maxPartRetry = time.Hour

// partialsOptions are what partials need of the process.
type partialsOptions struct {
	group  string
	log    sumLog
	shard  func(s *config.Stream) int // in which a merged stream's task is
	master *[32]byte
	config func() *config.Config
	feed   func(s *config.Stream) *feed // of a merged stream whose task is another instance's
	now    func() time.Time
	says   *slog.Logger
	failed func(error) // sees each failure of a call
}

func newPartials(o partialsOptions) *partials {
	return &partials{
		partialsOptions: o, times: defaultPartTimes, changed: make(chan struct{}),
		roots: map[[16]byte]*mergeRoot{}, workers: map[[16]byte]*mergeWorker{}, writers: map[int]*partWriter{},
	}
}

// shareable reports whether the partitions of a stream may be summed by several instances.
func shareable(s *config.Stream) bool { return s.Merge && s.User == nil }

// run follows the shards of all merged streams until the context ends. ready is called when it
// misses nothing any more; it may be nil.
func (p *partials) run(ctx context.Context, ready func()) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	shards := map[int]bool{}
	for _, s := range p.config().Streams {
		if shareable(s) {
			shards[p.shard(s)] = true
		}
	}
	var there, following sync.WaitGroup
	there.Add(len(shards))
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	for shard := range shards {
		seal, once := newPartSeal(p.master, p.group, shard), sync.Once{}
		w := &partWriter{log: p.log, shard: shard, pace: p.times.pace, queue: make(chan partOut, 64)}
		w.repeater = newRepeater(p.says.With("shard", shard), p.failed, func() {})
		following.Go(func() { w.run(ctx) })
		follow := newRepeater(p.says.With("shard", shard), p.failed, func() {})
		following.Go(func() {
			_ = follow.retry(ctx, followed, func() error {
				err := p.log.follow(ctx, shard, func() {
					follow.untroubled(followed)
					once.Do(func() { // answers are heard from here on, so questions may be asked
						p.mu.Lock()
						p.writers[shard] = w
						p.mu.Unlock()
						there.Done()
					})
				}, func(record []byte) { p.take(shard, seal, record) })
				if err != nil && ctx.Err() == nil {
					return &notYet{err} // without them each root reads by itself
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
	tick := time.NewTicker(p.times.beat)
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

// regroup says that the group has a new generation. Roots divide their partitions anew.
func (p *partials) regroup(t team) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t == p.team {
		return
	}
	p.team = t
	close(p.changed)
	p.changed = make(chan struct{})
	for job, w := range p.workers {
		if w.job.generation != t.generation {
			w.stop()
			delete(p.workers, job)
		}
	}
}

// who returns the team, and what is closed when there is another one.
func (p *partials) who() (team, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.team, p.changed
}

// write adds records to the log of a shard, after all those before, unless nobody follows it or the
// context ends. done is called when they are there.
func (p *partials) write(ctx context.Context, shard int, records [][]byte, done func()) bool {
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
func (p *partials) take(shard int, seal *partSeal, record []byte) {
	h, ok := parsePartHeader(record)
	if !ok {
		return
	}
	p.mu.Lock()
	root, worker := p.roots[h.job], p.workers[h.job]
	self, active := p.team, p.ctx != nil && p.ctx.Err() == nil
	p.mu.Unlock()
	switch {
	case !active:
	case h.kind == partSum || h.kind == partAlive:
		if root == nil || root.shard != shard {
			return // of another instance's root, or of an earlier run
		}
		if content, err := seal.open(record); err == nil {
			root.take(h, content)
		}
	case root != nil: // its own
	case h.kind == partProgress:
		if worker == nil {
			return
		}
		if content, err := seal.open(record); err == nil {
			if x, err := parseMergeProgress(content); err == nil {
				worker.progress(h.step, x)
			}
		}
	case h.kind == partJob:
		content, err := seal.open(record)
		if err != nil {
			return
		}
		job, err := parseMergeJob(content)
		if err != nil {
			return
		}
		job.step = h.step
		p.offered(shard, seal, h, job, self)
	}
}

// offered takes up a job that a root has announced, or gives up what is no longer this
// instance's in it.
func (p *partials) offered(shard int, seal *partSeal, h partHeader, job *mergeJob, self team) {
	mine := job.generation == self.generation && job.members == self.members && self.self >= 0
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[h.job]
	if w != nil && (!mine || job.generation != w.job.generation || !w.same(job)) {
		w.stop()
		delete(p.workers, h.job)
		w = nil
	}
	if w != nil {
		w.heard(h.step)
		return
	}
	if !mine || p.ctx == nil || p.ctx.Err() != nil {
		return
	}
	// At most two jobs of a stream: an owner that was replaced does not know it at once.
	var oldest *mergeWorker
	n := 0
	for _, o := range p.workers {
		if o.job.stream == job.stream {
			if n++; oldest == nil || o.last.Before(oldest.last) {
				oldest = o
			}
		}
	}
	if n >= 2 {
		oldest.stop()
		delete(p.workers, oldest.nonce)
	}
	if w = newMergeWorker(p, shard, seal, h.job, job, self.self); w != nil {
		p.workers[h.job] = w
		p.wg.Go(func() { w.run() })
	}
}

// expire forgets the jobs of roots that are silent.
func (p *partials) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for job, w := range p.workers {
		if p.now().Sub(w.last) > p.times.expire {
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
	*repeater
	log   sumLog
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
		err := w.retry(ctx, followed, func() error {
			err := w.log.append(ctx, w.shard, records)
			if err != nil && ctx.Err() == nil {
				return &notYet{err}
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

// kafkaParts is the log over a topic of Kafka, whose partitions are shards.
type kafkaParts struct {
	client *kafka.Client
	topic  string
	now    func() time.Time
}

// partWait is how long a fetch of records of merged streams may wait for some.
const partWait = 2 * time.Second

func (k *kafkaParts) append(ctx context.Context, shard int, records [][]byte) error {
	list := make([]kafka.Message, len(records))
	for i, r := range records {
		list[i] = kafka.Message{Value: r, Time: k.now()}
	}
	_, err := k.client.Produce(ctx, k.topic, int32(shard), list)
	return err
}

func (k *kafkaParts) follow(ctx context.Context, shard int, ready func(), fn func([]byte)) error {
	end, err := k.client.End(ctx, k.topic, int32(shard))
	if err != nil {
		return err
	}
	reader, err := k.client.NewReader(kafka.ReaderOptions{
		Topic: k.topic, Partition: int32(shard), Uncommitted: true, SkipGaps: true, Compacted: true,
		MaxWait: partWait, MaxRecordBytes: 2 * partPiece,
	}, kafka.Position{Next: end, LeaderEpoch: -1})
	if err != nil {
		return err
	}
	ready()
	var chunk kafka.Chunk
	var pause kafka.Backoff
	for ctx.Err() == nil {
		err := reader.Fetch(ctx, &chunk)
		if kafka.Retriable(err) && pause.Wait(ctx) == nil {
			continue // from where it was
		}
		if err != nil {
			return err
		}
		pause.Reset()
		came := time.Now()
		for i := range chunk.Records {
			fn(chunk.Records[i].Value)
		}
		n := len(chunk.Records)
		if chunk.Release(); n == 0 {
			continue
		}
		select { // what comes soon after this comes together; see partWriter
		case <-ctx.Done():
		case <-time.After(time.Until(came.Add(partPace))):
		}
	}
	return nil
}
