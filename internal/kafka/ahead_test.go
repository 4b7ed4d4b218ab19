package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/batch"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// In all tests of this package, a buffer is overwritten when it is given back, so a record that still refers to it
// changes.
func init() { onRelease = poison }

func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

// plainLog is a log of n batches of three records of the given size.
func plainLog(n, size int) (batches []kafkatest.Batch) {
	for i := range int64(n) {
		b := data(3*i, 3*i+1, 3*i+2)
		for j := range b.Records {
			b.Records[j].Value = fmt.Append(bytes.Repeat([]byte("x"), size), "v", 3*i+int64(j))
		}
		batches = append(batches, b)
	}
	return batches
}

// Reading a log gives the same result with and without requests sent ahead.
func TestAheadSimulatedLogs(t *testing.T) {
	s, c := serve(t)
	used := 0
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 13))
		batches, aborted, want := randomLog(rng)
		for i := range batches {
			for name := range codecs { // in random order
				if !batches[i].Control && seed%3 == 0 {
					batches[i].Codec = codecs[name]
				}
				break
			}
		}
		s.set(batches, aborted...)
		for _, size := range []int{1, 200, 1000, 1 << 20} {
			for _, limit := range []int{1, 40, 1 << 20} {
				o := ReaderOptions{Topic: "sim", PartitionMaxBytes: size, MaxRecordBytes: limit, aheadBytes: 1}
				r := newReader(t, c, o, start)
				got := drain(t, r, s.end, func(c *Chunk) {
					if r.ahead != nil {
						used++
					}
				})
				expect := make([]kafkatest.Record, len(want))
				for i, w := range want {
					expect[i] = w
					if d := (decoded{Record: w}); d.size() > limit {
						expect[i] = kafkatest.Record{Offset: w.Offset}
					}
				}
				compare(t, fmt.Sprintf("seed %d, %d bytes, records of %d", seed, size, limit), got, expect)
			}
		}
	}
	if used < 100 {
		t.Errorf("%d requests were sent ahead", used)
	}
}

// Each byte of the log is sent once, except the batch with the anchor.
func TestAheadRequests(t *testing.T) {
	s, c := serve(t)
	s.set(plainLog(100, 1000))
	r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 32 << 10}, start)
	if got := drain(t, r, 300, nil); len(got) != 300 {
		t.Fatalf("%d records", len(got))
	}
	if n, sent := s.count(), s.bytes(); n > 11 || sent > 310_000+n*3200 {
		t.Errorf("%d requests, %d bytes", n, sent)
	}
	if r.ahead != nil {
		t.Error("a request is sent ahead at the end of the log")
	}
}

// The answer to a request sent ahead is checked like any other.
func TestAheadReplaced(t *testing.T) {
	other := plainLog(100, 1000)
	for i := range other {
		for j := range other[i].Records {
			other[i].Records[j].Value[0] = 'y'
		}
	}
	for name, change := range map[string]func(*simulated){
		"other records": func(s *simulated) { s.batches = other },
		"vanished":      func(s *simulated) { s.batches = s.batches[40:] },
		"start moved":   func(s *simulated) { s.batches, s.start = s.batches[40:], 120 },
		"shorter":       func(s *simulated) { s.end, s.stable, s.batches = 10, 10, s.batches[:3] },
	} {
		// Each reader has its own broker: a request that was sent ahead and cancelled may still arrive, and would count
		// as one of the next reader.
		s, c := serve(t)
		s.set(plainLog(100, 1000))
		r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 32 << 10}, start)
		// The second request, which is sent ahead, reaches another log.
		s.change(func() {
			s.instead = func(*kmsg.FetchResponse) bool {
				if s.requests == 2 {
					change(s)
				}
				return false
			}
		})
		var chunk Chunk
		if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) == 0 || r.ahead == nil {
			t.Fatalf("%s: %v, %d records", name, err, len(chunk.Records))
		}
		next := r.Position().Next
		for range 2 {
			err := fetchOnce(t.Context(), r, &chunk)
			var replaced *ReplacedError
			var truncated *TruncatedError
			var gap *GapError
			ok := false
			switch name {
			case "other records":
				ok = errors.As(err, &replaced) && replaced.Evidence == AnchorDiffers
			case "vanished":
				ok = errors.As(err, &replaced) && replaced.Evidence == AnchorVanished
			case "start moved":
				ok = errors.As(err, &gap) && gap.LogStart == 120
			case "shorter":
				ok = errors.As(err, &truncated) && truncated.LogEnd == 10
			}
			if !ok || len(chunk.Records) != 0 || r.Position().Next != next || r.ahead != nil {
				t.Errorf("%s: %v, %d records, next %d", name, err, len(chunk.Records), r.Position().Next)
			}
		}
	}
}

// A failure of the request that was sent ahead is returned by the next Fetch, and nothing is lost.
func TestAheadFailures(t *testing.T) {
	var c *Client
	// Each reader has its own broker: a request that was sent ahead and cancelled may still arrive, and would count as
	// one of the next reader.
	begin := func(tweak func(request int, p *kmsg.FetchResponseTopicPartition)) *Reader {
		if c != nil {
			c.Close()
		}
		var s *simulated
		s, c = serve(t)
		s.set(plainLog(60, 1000))
		s.change(func() {
			s.tweak = func(p *kmsg.FetchResponseTopicPartition) { tweak(s.requests, p) }
		})
		return newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 32 << 10}, start)
	}
	var chunk Chunk
	var e *Error
	for code, label := range map[int16]string{6: "6", 74: "74", 1: "1"} {
		r := begin(func(request int, p *kmsg.FetchResponseTopicPartition) {
			if request == 2 {
				p.ErrorCode, p.RecordBatches = code, nil
			}
		})
		if err := r.Fetch(t.Context(), &chunk); err != nil {
			t.Fatal(err)
		}
		if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Label() != label || len(chunk.Records) != 0 {
			t.Errorf("code %d: %v", code, err)
		}
		if got := drain(t, r, 180, nil); got[0].Offset != chunk.First {
			t.Errorf("code %d: %d records", code, len(got))
		}
	}
	// A damaged answer.
	r := begin(func(request int, p *kmsg.FetchResponseTopicPartition) {
		if request == 2 {
			p.RecordBatches[80] ^= 1
		}
	})
	if err := r.Fetch(t.Context(), &chunk); err != nil {
		t.Fatal(err)
	}
	if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Label() != kindProtocol ||
		len(chunk.Records) != 0 {
		t.Errorf("damaged: %v", err)
	}
	if got := drain(t, r, 180, nil); got[0].Offset != chunk.First {
		t.Errorf("damaged: then %d records", len(got))
	}
	// The damage is in an answer after which the next request was already sent.
	r = begin(func(request int, p *kmsg.FetchResponseTopicPartition) {
		if request == 1 {
			p.RecordBatches[len(p.RecordBatches)-1] ^= 1
		}
	})
	got := drain(t, r, 180, nil)
	for i, rec := range got {
		if rec.Offset != int64(i) {
			t.Fatalf("record %d is at %d", i, rec.Offset)
		}
	}
	if len(got) != 180 {
		t.Errorf("%d records", len(got))
	}
	// The context of the Fetch that sent it ends: the next Fetch sends its own.
	gate, arrived := make(chan struct{}), make(chan struct{})
	r = begin(func(request int, _ *kmsg.FetchResponseTopicPartition) {
		if request == 2 {
			close(arrived)
			<-gate
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	if err := r.Fetch(ctx, &chunk); err != nil || r.ahead == nil {
		t.Fatal(err)
	}
	<-arrived
	cancel()
	time.AfterFunc(20*time.Millisecond, func() { close(gate) })
	if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) == 0 {
		t.Errorf("after another context's end: %v, %d records", err, len(chunk.Records))
	}
	// The context of the waiting Fetch ends.
	gate = make(chan struct{})
	r = begin(func(request int, _ *kmsg.FetchResponseTopicPartition) {
		if request == 2 {
			<-gate
		}
	})
	if err := r.Fetch(t.Context(), &chunk); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.Fetch(ctx, &chunk); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while waiting: %v", err)
	}
	close(gate)
	if got := drain(t, r, 180, nil); got[0].Offset != chunk.First {
		t.Errorf("then %d records", len(got))
	}
	c.Close()
	expectQuiet(t)
}

// A record that is too large may be the anchor, with any limit.
func TestTooLargeAnchor(t *testing.T) {
	s, c := serve(t)
	for name, codec := range codecs {
		log := []kafkatest.Batch{data(0, 1, 2), data(3)}
		log[0].Codec = codec
		log[0].Records[2].Value = bytes.Repeat([]byte("v"), 5000)
		s.set(log[:1])
		for _, limit := range []int{100, 10_000} {
			o := ReaderOptions{Topic: "sim", MaxRecordBytes: limit}
			r := newReader(t, c, o, start)
			drain(t, r, 3, nil)
			if a := r.Position().Anchor; a.Hash != batch.HashRecord(2, nil, log[0].Records[2].Value) {
				t.Errorf("%s, limit %d: anchor %+v", name, limit, a)
			}
			for _, later := range []int{100, 10_000} {
				o.MaxRecordBytes = later
				s.change(func() { s.batches, s.end, s.stable = log, 4, 4 })
				again := newReader(t, c, o, r.Position())
				if got := values(drain(t, again, 4, nil)); got != "3=v3 " {
					t.Errorf("%s, limit %d, then %d: %s", name, limit, later, got)
				}
				s.change(func() { log[0].Records[2].Value[4999] = 'x' })
				var replaced *ReplacedError
				if err := newReader(t, c, o, r.Position()).Fetch(t.Context(), new(Chunk)); !errors.As(err, &replaced) ||
					replaced.Evidence != AnchorDiffers {
					t.Errorf("%s, limit %d, then %d: a byte has changed: %v", name, limit, later, err)
				}
				s.change(func() { log[0].Records[2].Value[4999] = 'v' })
			}
			s.change(func() { s.batches, s.end, s.stable = log[:1], 3, 3 })
		}
	}
}

// There is no allocation per record.
func TestReaderAllocations(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for name, codec := range codecs {
		var set []byte
		for i := range int64(4) {
			b := kafkatest.Batch{Base: 1000 * i, LastDelta: 999, Producer: -1, Codec: codec}
			for j := range int64(1000) {
				r := randomRecord(rng, 100)
				r.Offset = 1000*i + j
				b.Records = append(b.Records, r)
			}
			set = b.Append(set)
		}
		r, err := new(Client).NewReader(ReaderOptions{Topic: "in"}, start)
		if err != nil {
			t.Fatal(err)
		}
		var c Chunk
		read := func() {
			buf := newBuffer(len(set))
			buf.b = append(buf.b, set...)
			r.next, r.anchor = 0, nil
			r.ans = answer{records: buf, end: 1 << 40, lastStable: 1 << 40}
			r.beginWalk(0)
			for r.w.open {
				c.reset(r)
				if err := r.part(t.Context(), &c); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := testing.AllocsPerRun(20, read); n > 100 {
			t.Errorf("%s: %v allocations for 4000 records", name, n)
		}
	}
}

// No request is sent ahead in the middle of aborted records: none of them can be an anchor, so the answer could not be
// used. If an answer does not begin with the anchor's batch, it is not used.
func TestAheadAborted(t *testing.T) {
	s, c := serve(t)
	batches := []kafkatest.Batch{data(0, 1)}
	next := int64(2)
	for range 400 {
		b := inTxn(5, data(next, next+1))
		b.Records[0].Value = make([]byte, 1000)
		batches = append(batches, b)
		next += 2
	}
	s.set(append(batches, kafkatest.Marker(next, 5, false), data(next+1)), abort{5, 2, next})
	size := 0
	for _, b := range s.batches {
		size += len(b.Append(nil))
	}
	r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 64 << 10}, start)
	asked := 0
	if got := values(drain(t, r, next+2, func(*Chunk) {
		if r.ahead != nil {
			asked++
		}
	})); got != fmt.Sprintf("0=v0 1=v1 %d=v%d ", next+1, next+1) {
		t.Error(got)
	}
	if n := s.bytes(); n > size+size/4 || asked > 0 {
		t.Errorf("%d bytes sent to read a log of %d, %d requests ahead", n, size, asked)
	}

	s.set(plainLog(60, 1000))
	for what, change := range map[string]func(*ahead, int64){
		"begins after the anchor":  func(a *ahead, anchor int64) { a.base = anchor + 1 },
		"begins before the anchor": func(a *ahead, anchor int64) { a.from = anchor - 1 },
		"is of another position":   func(a *ahead, _ int64) { a.next++ },
	} {
		r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 32 << 10}, start)
		var chunk Chunk
		if err := r.Fetch(t.Context(), &chunk); err != nil || r.ahead == nil {
			t.Fatal(err)
		}
		<-r.ahead.done
		change(r.ahead, r.anchor.Offset)
		r.ahead.err = batch.ErrDamaged // would be returned if the answer were read
		if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) == 0 {
			t.Errorf("an answer that %s: %v, %d records", what, err, len(chunk.Records))
		}
	}
}
