// Package trace sends traces of the daemon's work to an OpenTelemetry collector, as OTLP over HTTP in protobuf.
//
// [Work] holds everything that a span says in addition to its times. It has no field for a number or a text that comes
// from a record. The times are measured. They depend on how long work on records takes, so traces are as confidential
// as the input.
//
// The daemon never waits for a collector. A span that has ended goes into a queue of fixed size, and is dropped if the
// queue is full. A failed request is not repeated: its spans are dropped, and the next request follows after a pause.
package trace

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// These are limits of memory and time.
const (
	queueSize  = 4096                   // ended spans that wait to be sent
	batchSize  = 512                    // spans of a request
	batchEvery = 2 * time.Second        // after this time a request is sent with fewer spans
	sendTime   = 5 * time.Second        // the limit of a request
	endTime    = 2 * time.Second        // the limit for sending the remaining spans at the end
	leastPause = 500 * time.Millisecond // the pause after a failure; doubled with each further failure
	mostPause  = 30 * time.Second
	mostAnswer = 64 << 10 // bytes of an answer that are read
)

// Kind is the kind of work that a span describes. Its name is one of these words.
type Kind uint8

const (
	// Steps lasts from the first closed step after a commit to the end of the next commit. It is the root of a trace.
	Steps Kind = iota
	// Fetch is a request for records, including the wait for them. It is a trace of its own.
	Fetch
	// Close ends a step and draws its noise. Its parent is a Steps span.
	Close
	// Commit makes closed steps durable. Its parent is a Steps span.
	Commit
	// Publish is a request that sends releases to the output. Its parent is the Steps span of the last commit.
	Publish
	kinds
)

var names = [kinds]string{"steps", "fetch", "close", "commit", "publish"}

// Work is everything that a span says in addition to its times.
type Work struct {
	Stream    string // as configured
	Partition string // of the task
	Input     int    // for Fetch: the partition that is read
	Epoch     uint64
	// First and Last are the first and last step, by number in the epoch; 0 if there are none.
	First, Last uint64
	// Failed is a word for the reason of a failure, from a set that does not depend on records; empty if the work did
	// not fail.
	Failed string
}

// Options are the options of a tracer.
type Options struct {
	Endpoint string      // URL of the receiver
	Header   http.Header // sent with each request
	// TLS returns the trusted authorities and the client's certificate. When it returns a different configuration, the
	// tracer opens new connections with it. Nil: the system's authorities.
	TLS func() *tls.Config
	// Sample is the share of traces that are sent, in (0, 1].
	Sample float64
	// Service, Version and Instance name the sender. Instance may be empty.
	Service, Version, Instance string
	// Sent is called after each request with the number of spans that were sent, the number dropped since the last
	// call, and the error of the request, nil if there was none.
	Sent func(sent, dropped int, err error)

	times times // replaces the constants in tests; otherwise 0
}

// times replace batchEvery, sendTime and endTime in tests; 0 keeps the constant.
type times struct{ batch, send, end time.Duration }

// Tracer sends spans. A nil Tracer records none, at the cost of a comparison.
type Tracer struct {
	o       Options
	client  http.Client
	tls     *tls.Config // the configuration of client
	queue   chan ended
	dropped atomic.Int64
	pause   time.Duration
}

// ended is an ended span in the queue.
type ended struct {
	Span
	end time.Time
}

// New returns a tracer. It connects to nothing before Start.
func New(o Options) *Tracer {
	o.times = times{cmp.Or(o.times.batch, batchEvery), cmp.Or(o.times.send, sendTime), cmp.Or(o.times.end, endTime)}
	t := &Tracer{o: o, queue: make(chan ended, queueSize)}
	t.client.Timeout = o.times.send
	// Do not follow redirects: the headers may contain a secret, and are for the endpoint only.
	t.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return t
}

// connects opens new connections if TLS returned a different configuration.
func (t *Tracer) connects() {
	var now *tls.Config
	if t.o.TLS != nil {
		now = t.o.TLS()
	}
	if t.client.Transport != nil && now == t.tls {
		return
	}
	t.client.CloseIdleConnections()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = now.Clone()
	transport.MaxConnsPerHost = 1
	t.client.Transport, t.tls = transport, now
}

// Span is work in progress. The zero Span records nothing.
type Span struct {
	Work           // may be changed until End
	t      *Tracer // nil: the span is not sent
	known  bool    // it has been decided whether the trace is sent
	kind   Kind
	trace  [16]byte
	id     [8]byte
	parent [8]byte // zero: none
	start  time.Time
}

// Begin begins a trace, which is sent with probability Sample.
func (t *Tracer) Begin(k Kind, w Work, at time.Time) Span {
	if t == nil {
		return Span{}
	}
	s := Span{known: true}
	if t.o.Sample < 1 && rand.Float64() >= t.o.Sample {
		return s
	}
	s.t, s.Work, s.kind, s.start = t, w, k, at
	fill(s.trace[:])
	fill(s.id[:])
	return s
}

// Within begins a span whose parent is s; s may have ended. The span is sent if s is sent. If s is the zero Span,
// Within begins a trace.
func (t *Tracer) Within(s Span, k Kind, w Work, at time.Time) Span {
	switch {
	case !s.known:
		return t.Begin(k, w, at)
	case s.t == nil:
		return Span{known: true}
	}
	s.parent, s.Work, s.kind, s.start = s.id, w, k, at
	fill(s.id[:])
	return s
}

// fill fills id with random bytes, not all of them zero. They need not be hard to guess.
func fill(id []byte) {
	for i := 0; i < len(id); i += 8 {
		binary.NativeEndian.PutUint64(id[i:], rand.Uint64())
	}
	id[0] |= 1
}

// Begun reports whether the span is not the zero Span.
func (s *Span) Begun() bool { return s.known }

// End ends the span. It never waits.
func (s *Span) End(at time.Time) {
	if s.t == nil {
		return
	}
	select {
	case s.t.queue <- ended{*s, at}:
	default:
		s.t.dropped.Add(1)
	}
}

// Start starts sending in the background. The returned function sends the remaining spans, for endTime at most, and
// returns.
func (t *Tracer) Start() (end func()) {
	if t == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ending, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t.run(ctx, ending)
	}()
	return func() {
		late := time.AfterFunc(t.o.times.end, cancel)
		close(ending)
		<-done
		late.Stop()
		cancel()
		t.client.CloseIdleConnections()
	}
}

// run sends spans until `ending` is closed. Then it sends the remaining spans, until all are sent or a request fails.
func (t *Tracer) run(ctx context.Context, ending chan struct{}) {
	tick := time.NewTicker(t.o.times.batch)
	defer tick.Stop()
	batch := make([]ended, 0, batchSize)
	for last := false; !last; {
		full := false
		for !full && !last {
			select {
			case s := <-t.queue:
				batch = append(batch, s)
				full = len(batch) == batchSize
				continue
			case <-tick.C:
			case <-ending:
				last = true
			}
			break
		}
		for n := len(t.queue); last && n > 0 && len(batch) < batchSize; n-- {
			batch = append(batch, <-t.queue)
		}
		if len(batch) == 0 {
			continue
		}
		err := t.send(ctx, batch)
		batch = batch[:0]
		switch {
		case err == nil:
			t.pause, last = 0, last && len(t.queue) == 0
		case !last:
			t.pause = min(max(2*t.pause, leastPause), mostPause)
			select {
			case <-time.After(t.pause):
			case <-ending:
			}
		}
	}
}

// send sends spans in one request, and calls Options.Sent.
func (t *Tracer) send(ctx context.Context, batch []ended) error {
	refused, err := t.post(ctx, batch)
	said := err
	if err != nil {
		refused = len(batch)
	} else if refused > 0 {
		said = errors.New("the collector accepted only a part of the spans")
	}
	t.o.Sent(len(batch)-refused, refused+int(t.dropped.Swap(0)), said)
	return err
}

// post sends spans. It returns how many of them the collector refused.
func (t *Tracer) post(ctx context.Context, batch []ended) (refused int, err error) {
	t.connects()
	body, err := proto.Marshal(t.request(batch))
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.o.Endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	for name, values := range t.o.Header {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", strings.TrimSpace("streamdp/"+t.o.Version))
	res, err := t.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	if res.StatusCode/100 != 2 {
		return 0, errors.New("the collector answered " + res.Status[:min(len(res.Status), 100)])
	}
	if err != nil {
		return 0, err
	}
	var said collector.ExportTraceServiceResponse
	if proto.Unmarshal(answer, &said) == nil {
		refused = int(max(0, min(said.GetPartialSuccess().GetRejectedSpans(), int64(len(batch)))))
	}
	return refused, nil
}

// Probe sends a request without spans, and returns an error unless the collector accepts it. Call it before Start.
func (t *Tracer) Probe(ctx context.Context) error {
	_, err := t.post(ctx, nil)
	return err
}
