package kafka

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// sharedFetches sends the fetches of all readers of a client. Readers of partitions with the same leader share
// requests, so that a thousand readers need a few connections instead of a thousand.
//
// Each leader has two lines (queues), and each request serves one of them. The busy line has the fetches that a broker
// can answer at once. The idle line has the fetches at the end of their logs, for which the broker waits for new
// records. With a single line, a busy partition would have to wait for an idle one. A fetch is part of the next request
// of its line, together with all other fetches in the line. The answer completes the fetch if it has records, an error,
// or another end of the log. Otherwise the fetch is part of further requests, until it has waited as long as its reader
// wants.
//
// A fetch that is alone in its line behaves as if requests were not shared: the reader gets every answer.
type sharedFetches struct {
	c  *Client
	mu sync.Mutex

	lines    map[lineKey]*line
	readable map[lineEnd]int64 // last known end of each log
}

// These limit the concurrent requests of a line.
const (
	// One request at a time would keep a broker busy enough, but its answer must be received before the next one is
	// sent.
	busyRequests = 2
	// In an idle line, one request with a long wait has all fetches. Fetches that arrive meanwhile are sent in a few
	// other requests, which wait only briefly. When all of these requests have returned, the next long request has all
	// fetches again.
	shortRequests = 2
	longPoll      = 500 * time.Millisecond
	shortPoll     = 100 * time.Millisecond
	// pacing is the pause of an idle line after a request, multiplied by the number of fetches in the request. It
	// limits the number of requests if a record arrives every millisecond in some of a thousand partitions.
	pacing    = 50 * time.Microsecond
	maxPacing = 50 * time.Millisecond
)

// lineKey determines which fetches can share a request.
type lineKey struct {
	leader      int32
	idle        bool // whether the broker waits for records
	uncommitted bool
}

// lineEnd identifies a partition, separately for readers of committed and of uncommitted records.
type lineEnd struct {
	topic       string
	partition   int32
	uncommitted bool
}

// line has the fetches of one kind for one broker.
type line struct {
	key      lineKey
	queue    []*ask
	requests int       // requests in progress
	long     bool      // whether one of the requests has the long wait
	next     time.Time // no request is sent before this time
	armed    bool      // whether pump is scheduled to run at next
}

// ask is a fetch of one partition.
type ask struct {
	o       *ReaderOptions
	leader  int32 // −1: unknown
	from    int64
	limit   int
	epoch   int32
	timeout time.Duration
	begun   time.Time
	alone   bool // whether the fetch must be sent alone
	empty   int  // number of consecutive answers without data although there must be some
	gone    bool // whether its reader has stopped waiting
	request *request

	ans  answer
	err  error // kafka-go's error for the request, or an Error
	done chan struct{}
}

func (a *ask) end() lineEnd { return lineEnd{a.o.Topic, a.o.Partition, a.o.Uncommitted} }

// request is a request in progress.
type request struct {
	asks   []*ask
	left   int // number of asks for which a reader still waits
	long   bool
	cancel context.CancelFunc
}

// fetch requests records from offset `from` on and fills a. The caller must have released the old records of a. timeout
// applies to each request.
func (c *Client) fetch(ctx context.Context, o *ReaderOptions, from int64, limit int, epoch int32, timeout time.Duration,
	a *answer) error {
	m, err := c.metadata(ctx, o.Topic)
	if err != nil {
		return err
	}
	q := &ask{o: o, leader: leaderIn(m, o.Topic, o.Partition), from: from, limit: limit, epoch: epoch, timeout: timeout,
		begun: time.Now(), done: make(chan struct{})}
	s := &c.fetches
	s.add(q)
	select {
	case <-q.done:
	case <-ctx.Done():
		s.leave(q)
		return ctx.Err()
	}
	if e := (*Error)(nil); errors.As(q.err, &e) {
		return e
	}
	*a = q.ans
	return callError(ctx, "fetch", o.Topic, o.Partition, q.err)
}

// leaderIn returns a partition's leader, −1 if the metadata has none.
func leaderIn(m *metadata.Response, topic string, partition int32) int32 {
	for i := range m.Topics {
		if t := &m.Topics[i]; t.Name == topic {
			if p := partitionIn(t, partition); p != nil && p.LeaderID >= 0 {
				return p.LeaderID
			}
		}
	}
	return -1
}

// partitionIn returns a partition of a topic, whose partitions the transport has sorted, or nil if there is none.
func partitionIn(t *metadata.ResponseTopic, partition int32) *metadata.ResponsePartition {
	i, ok := slices.BinarySearchFunc(t.Partitions, partition,
		func(p metadata.ResponsePartition, id int32) int { return int(p.PartitionIndex) - int(id) })
	if !ok {
		return nil
	}
	return &t.Partitions[i]
}

// add puts a fetch into its line.
func (s *sharedFetches) add(a *ask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, known := s.readable[a.end()]
	s.pump(s.enqueue(a, !known || a.from >= end))
}

// enqueue puts a fetch at the end of a line, and returns the line.
func (s *sharedFetches) enqueue(a *ask, idle bool) *line {
	key := lineKey{a.leader, idle, a.o.Uncommitted}
	l := s.lines[key]
	if l == nil {
		if s.lines == nil {
			s.lines = make(map[lineKey]*line)
			s.readable = make(map[lineEnd]int64)
		}
		l = &line{key: key}
		s.lines[key] = l
	}
	a.request = nil
	l.queue = append(l.queue, a)
	return l
}

// leave withdraws a fetch. A request for which no reader waits any more is cancelled.
func (s *sharedFetches) leave(a *ask) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.gone = true
	a.ans.release()
	if r := a.request; r != nil {
		if r.left--; r.left == 0 {
			r.cancel()
		}
	}
}

// pump sends as many requests of the line as are allowed now.
func (s *sharedFetches) pump(l *line) {
	for len(l.queue) > 0 {
		// Without a leader, each fetch is sent alone and gets its own error.
		if l.key.leader >= 0 && l.full() && !l.queue[0].alone {
			return
		}
		if l.queue = slices.DeleteFunc(l.queue, func(a *ask) bool { return a.gone }); len(l.queue) == 0 {
			return
		}
		if wait := time.Until(l.next); wait > 0 {
			if !l.armed {
				l.armed = true
				time.AfterFunc(wait, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					l.armed = false
					s.pump(l)
				})
			}
			return
		}
		asks := l.gather()
		l.requests++
		if l.key.idle {
			l.next = time.Now().Add(min(time.Duration(len(asks)-1)*pacing, maxPacing))
		}
		ctx, cancel := context.WithCancel(context.Background())
		r := &request{asks: asks, left: len(asks), long: l.key.idle && !l.long, cancel: cancel}
		l.long = l.long || r.long
		for _, a := range asks {
			a.request = r
		}
		go s.send(ctx, l, r)
	}
}

// full reports whether the line must wait for one of its requests.
func (l *line) full() bool {
	switch {
	case !l.key.idle:
		return l.requests >= busyRequests
	case l.long:
		return l.requests >= 1+shortRequests
	}
	return l.requests > 0
}

// gather removes the fetches of the next request from the line: at most one for each partition, and only as many as
// fit, so that none gets less data because of the others.
func (l *line) gather() []*ask {
	first := l.queue[0]
	if first.alone || first.leader < 0 {
		l.queue = l.queue[1:]
		return []*ask{first}
	}
	var asks, left []*ask
	seen := make(map[lineEnd]struct{}, len(l.queue))
	sum := 0
	for _, a := range l.queue {
		_, twice := seen[a.end()]
		limit := a.limit
		if l.key.idle {
			limit = 1 // method message may reduce the limit to this
		}
		if len(asks) > 0 && (twice || a.alone || sum+limit >= a.o.MaxBytes) {
			left = append(left, a)
			continue
		}
		seen[a.end()] = struct{}{}
		sum += limit
		asks = append(asks, a)
	}
	l.queue = left
	return asks
}

// send sends a request and processes its answer.
func (s *sharedFetches) send(ctx context.Context, l *line, r *request) {
	defer r.cancel()
	s.settle(r)
	var res *fetchResponse
	var err error
	if len(r.asks) > 0 {
		var timeout time.Duration
		for _, a := range r.asks {
			timeout = max(timeout, a.timeout-max(a.o.MaxWait-longPoll, 0))
		}
		res, err = s.c.roundTripFetch(ctx, timeout, r.message(l.key.idle))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.requests--
	if r.long {
		l.long = false
	}
	if res != nil {
		s.deal(l, r.asks, res)
	} else {
		s.fail(r.asks, err)
	}
	for _, idle := range []bool{false, true} {
		if k := (lineKey{l.key.leader, idle, l.key.uncommitted}); s.lines[k] != nil {
			s.pump(s.lines[k])
		}
	}
}

// settle removes from a request the fetches whose partition has moved to another leader while they waited. It sends
// each of them alone, so that its reader gets the result.
func (s *sharedFetches) settle(r *request) {
	if len(r.asks) == 1 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	topics := make(map[string]*metadata.Response)
	var moved []*ask
	r.asks = slices.DeleteFunc(r.asks, func(a *ask) bool {
		m, ok := topics[a.o.Topic]
		if !ok {
			m, _ = s.c.metadata(ctx, a.o.Topic)
			topics[a.o.Topic] = m
		}
		if m != nil && leaderIn(m, a.o.Topic, a.o.Partition) == a.leader {
			return false
		}
		moved = append(moved, a)
		return true
	})
	if len(moved) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range moved {
		if !a.gone { // if it is gone, leave has already counted it
			r.left--
			a.alone = true
			s.pump(s.enqueue(a, false))
		}
	}
}

// message returns the request in the form in which it is sent.
func (r *request) message(idle bool) *fetch.Request {
	asks := r.asks
	first := asks[0].o
	q := &fetch.Request{
		ReplicaID:    -1,
		MinBytes:     1,
		SessionID:    -1, // see docs/theory/stream.md on why it is a full request
		SessionEpoch: -1,
	}
	if !first.Uncommitted {
		q.IsolationLevel = 1
	}
	wait := shortPoll
	if r.long || !idle {
		wait = longPoll
	}
	place := make(map[string]int)
	for _, a := range asks {
		wait = min(wait, a.o.MaxWait)
		q.MaxBytes = max(q.MaxBytes, int32(a.o.MaxBytes))
		i, ok := place[a.o.Topic]
		if !ok {
			i = len(q.Topics)
			place[a.o.Topic] = i
			q.Topics = append(q.Topics, fetch.RequestTopic{Topic: a.o.Topic})
		}
		limit := a.limit
		if idle && len(asks) > 1 {
			limit = max(min(limit, (first.MaxBytes-1)/len(asks)), 1)
		}
		q.Topics[i].Partitions = append(q.Topics[i].Partitions, fetch.RequestPartition{
			Partition: a.o.Partition, CurrentLeaderEpoch: a.epoch, FetchOffset: a.from, LogStartOffset: -1,
			PartitionMaxBytes: int32(limit),
		})
	}
	q.MaxWaitTime = int32(wait / time.Millisecond)
	return q
}

// roundTripFetch is roundTrip for a fetch.
func (c *Client) roundTripFetch(ctx context.Context, timeout time.Duration, q *fetch.Request) (*fetchResponse, error) {
	m, err := c.roundTrip(ctx, timeout, q)
	if err != nil {
		return nil, err
	}
	res, ok := m.(*fetchResponse)
	if !ok {
		return nil, errors.New("malformed response")
	}
	return res, nil
}

// fail ends the fetches of a request that got no answer. If the transport refused to send the request because it knows
// another leader for one of the fetches, fail puts each fetch back into a line, to be sent alone.
func (s *sharedFetches) fail(asks []*ask, err error) {
	var unsent *fetch.Error
	again := len(asks) > 1 && errors.As(err, &unsent)
	for _, a := range asks {
		switch {
		case a.gone:
		case again:
			a.alone = true
			s.enqueue(a, false)
		default:
			a.err = err
			close(a.done)
		}
	}
}

// deal gives each fetch its part of the answer, or puts the fetch back into a line.
func (s *sharedFetches) deal(l *line, asks []*ask, res *fetchResponse) {
	throttle := time.Duration(res.ThrottleTimeMs) * time.Millisecond
	if throttle > 0 {
		// The broker does not read from the connection before that time.
		l.next = time.Now().Add(throttle)
	}
	of := make(map[lineEnd]*ask, len(asks))
	for _, a := range asks {
		a.ans = answer{throttle: throttle}
		if res.ErrorCode != 0 {
			a.err = brokerError("fetch", a.o.Topic, a.o.Partition, res.ErrorCode)
		}
		of[a.end()] = a
	}
	for i := range res.Topics {
		t := &res.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			a := of[lineEnd{t.Topic, p.Partition, l.key.uncommitted}]
			if a == nil || a.gone || a.err != nil || a.ans.present {
				if p.RecordSet.buf != nil {
					p.RecordSet.buf.release()
				}
				continue
			}
			a.ans.take(p)
		}
	}
	now := time.Now()
	// only is true if nothing is shared: this was the line's only fetch, or one that had to be sent alone.
	only := len(asks) == 1 && (asks[0].alone || !l.key.idle || l.requests == 0 && len(l.queue) == 0)
	var starved []*ask
	for i, a := range asks {
		if a.gone {
			continue
		}
		x := &a.ans
		end := x.lastStable
		if l.key.uncommitted {
			end = x.end
		}
		if x.present && x.code == 0 {
			s.readable[a.end()] = end
		}
		waited := now.Sub(a.begun) >= a.o.MaxWait-min(a.o.MaxWait, longPoll)/4
		switch {
		case only && a.o.MaxWait <= longPoll, a.err != nil, throttle > 0, !x.present, x.code != 0, x.records != nil,
			x.end < a.from, x.logStart > a.from:
			close(a.done)
		case end > a.from && (i > 0 || a.empty < 2):
			// The log has data for this fetch, but the other fetches filled the answer. Most brokers return at least
			// one batch for the first partition of a request.
			a.empty++
			starved = append(starved, a)
		case end > a.from, waited:
			close(a.done)
		default:
			s.enqueue(a, true)
		}
	}
	if len(starved) > 0 {
		for _, a := range starved {
			s.enqueue(a, false)
		}
		busy := s.lines[lineKey{l.key.leader, false, l.key.uncommitted}]
		n := len(busy.queue) - len(starved)
		busy.queue = append(slices.Clone(busy.queue[n:]), busy.queue[:n]...)
	}
}
