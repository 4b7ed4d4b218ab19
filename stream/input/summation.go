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

// SharedSummation lets the instances of a group read a merged stream together. The instance that owns the stream's task
// is the coordinator. It alone keeps the epoch's state, merges the sums of a step and draws noise. The other instances
// are workers. They sum partitions and write the sums, encrypted, to a topic. For this they need only the manifest and
// the log, and they keep no lasting state. A sum depends only on the log, so it does not matter which instance computes
// it, or how often.
//
// Every instance has one SharedSummation, and may be a coordinator and a worker at the same time. It is safe for
// concurrent use.
type SharedSummation struct {
	SummationOptions
	times        partTimes
	mu           sync.Mutex
	team         Team
	changed      notify.Broadcast // sent when the team changes
	coordinators map[[16]byte]*coordinator
	workers      map[[16]byte]*worker
	writers      map[int]*partWriter // by shard
	ctx          context.Context     // the context of Run
	wg           sync.WaitGroup      // waits for workers
}

// SumLog carries records from every instance to all others, in one log per shard. Records may arrive late, twice, or
// not at all. The records of one Append arrive in order.
type SumLog interface {
	// Append adds records to the end of a shard's log. If it fails, some of them may have been added.
	Append(ctx context.Context, shard int, records [][]byte) error
	// Follow calls fn with every record of a shard that is added after the call of ready, until the context ends. fn
	// must not keep the record.
	Follow(ctx context.Context, shard int, ready func(), fn func(record []byte)) error
}

// Team describes the instances that share the reading: the members of a generation of the group.
type Team struct {
	Generation int64
	Members    int
	Self       int // index of this instance among the members; NoMember: not a member
}

// reads returns the member that sums a partition, given the partition's index among the stream's partitions.
func (t Team) reads(index int) int { return index % t.Members }

// shares reports whether a coordinator on this instance may leave partitions to others.
func (t Team) shares() bool { return t.Members > 1 && t.Self >= 0 && t.Self < t.Members }

// share returns the largest number of a stream's partitions that an instance reads.
func (t Team) share(partitions int) int {
	if !t.shares() {
		return partitions
	}
	return (partitions + t.Members - 1) / t.Members
}

// partTimes holds the intervals and timeouts of messages between instances.
type partTimes struct {
	Announce time.Duration // between two announcements of a job, for new members
	Beat     time.Duration // between two progress reports of a worker
	Silence  time.Duration // without a message from a worker, until the coordinator reads itself
	Retry    time.Duration // until the coordinator lets a silent worker try again; doubles each time
	Expire   time.Duration // without a message from the coordinator, until a worker drops its job
	pace     time.Duration // between two writes of a shard's records
}

var defaultPartTimes = partTimes{Announce: 2 * time.Second, Beat: time.Second, Silence: 5 * time.Second,
	Retry: time.Minute, Expire: 10 * time.Second, pace: partPace}

// maxPartRetry is the longest time for which a coordinator reads another member's partition before that member may try
// again.
const maxPartRetry = time.Hour

// SummationOptions hold what a SharedSummation needs from the process.
type SummationOptions struct {
	Group  string
	Sums   SumLog
	Shard  func(s *config.Stream) int // returns the shard of a merged stream's task
	KeyID  string                     // id of the master key, which must be the same on all instances
	Derive func(salt []byte) [32]byte // returns the key that encrypts the record with this salt
	Config func() *config.Config
	Feed   func(s *config.Stream) *Feed // returns the feed for a merged stream whose task another instance owns
	Now    func() time.Time
	Log    *slog.Logger
	Failed func(error) // is called with each failure of a call
}

// NewSharedSummation returns a SharedSummation for Run. Its team is empty until Regroup.
func NewSharedSummation(o SummationOptions) *SharedSummation {
	return &SharedSummation{
		SummationOptions: o, times: defaultPartTimes,
		coordinators: map[[16]byte]*coordinator{}, workers: map[[16]byte]*worker{}, writers: map[int]*partWriter{},
	}
}

// Shareable reports whether several instances may sum the partitions of a stream.
func Shareable(s *config.Stream) bool { return s.Merge && s.User == nil }

// Run follows the shards of all merged streams until the context ends. If ready is not nil, Run calls it once it
// receives every new record.
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
					once.Do(func() { // from here on answers arrive, so jobs may be announced
						p.mu.Lock()
						p.writers[shard] = w
						p.mu.Unlock()
						there.Done()
					})
				}, func(record []byte) { p.take(shard, seal, record) })
				if err != nil && ctx.Err() == nil {
					return &failure.Later{Err: err} // meanwhile each coordinator reads by itself
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

// Regroup sets the team of the group's new generation. Coordinators then divide their partitions again.
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

// currentTeam returns the team, and a channel that is closed when the team changes.
func (p *SharedSummation) currentTeam() (Team, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.team, p.changed.Next()
}

// write queues records for the log of a shard, after all records before. It returns false if nothing follows that log
// or the context ends. done is called when the records are written.
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

// take handles a record of a shard's log.
func (p *SharedSummation) take(shard int, seal *partSeal, record []byte) {
	h, ok := parsePartHeader(record)
	if !ok {
		return
	}
	p.mu.Lock()
	c, worker := p.coordinators[h.Job], p.workers[h.Job]
	self, active := p.team, p.ctx != nil && p.ctx.Err() == nil
	p.mu.Unlock()
	switch {
	case !active:
	case h.Kind == partSum || h.Kind == partAlive:
		if c == nil || c.shard != shard {
			return // the record is for another instance's coordinator, or for an earlier run
		}
		if content, err := seal.Open(record); err == nil {
			c.take(h, content)
		}
	case c != nil: // written by this instance
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
		p.handleJob(shard, seal, h, job, self)
	}
}

// handleJob starts a worker for an announced job. If the job gives this instance's partitions to others, it stops the
// worker.
func (p *SharedSummation) handleJob(shard int, seal *partSeal, h partHeader, job *mergeJob, self Team) {
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
	// At most two jobs of a stream run: an owner that was replaced does not know it at once, so it and its successor
	// may both have one.
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

// expire stops the workers whose coordinators are silent.
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

// followed names the retried calls in messages if the log of sums cannot be read or written.
const followed = "sums of merged streams"

// partWriter writes queued records to the log of a shard. One write takes all records that have gathered. A write,
// together with its reading by each instance, costs as much processor time as several sums. So if there is much to
// write, partWriter waits for more records.
type partWriter struct {
	*failure.Retrier
	log   SumLog
	shard int
	pace  time.Duration // time between writes, unless partGather bytes wait
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

// KafkaSums is a SumLog in a Kafka topic. Each shard has a partition of the topic.
type KafkaSums struct {
	Client *kafka.Client
	Topic  string
	Now    func() time.Time
}

// partWait is the longest time for which a fetch of KafkaSums waits for records.
const partWait = 2 * time.Second

// Append implements [SumLog].
func (k *KafkaSums) Append(ctx context.Context, shard int, records [][]byte) error {
	list := make([]kafka.Message, len(records))
	for i, r := range records {
		list[i] = kafka.Message{Value: r, Time: k.Now()}
	}
	_, err := k.Client.Produce(ctx, k.Topic, int32(shard), list)
	return err
}

// Follow implements [SumLog].
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
		select { // let records gather; see partWriter
		case <-ctx.Done():
		case <-time.After(time.Until(came.Add(partPace))):
		}
		return nil
	})
}
