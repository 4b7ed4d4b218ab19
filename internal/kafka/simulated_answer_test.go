package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/batch"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

func TestAnchor(t *testing.T) {
	s, c := serve(t)
	read := func(o ReaderOptions) *Reader {
		s.set([]kafkatest.Batch{data(0, 1, 2), inTxn(5, data(3, 4, 5)), kafkatest.Marker(6, 5, true), data(7, 8)})
		s.change(func() { s.batches[1].Epoch, s.batches[3].Epoch = 4, 4 })
		o.Topic = "sim"
		r := newReader(t, c, o, start)
		drain(t, r, 9, nil)
		if p := r.Position(); p.Anchor.Offset != 8 || p.Anchor.LeaderEpoch != 4 || p.LeaderEpoch != 0 {
			t.Fatalf("position %+v, anchor %+v", p, p.Anchor)
		}
		return r
	}
	other := data(7, 8)
	other.Epoch = 4
	other.Records[1].Value = []byte("x")
	null := data(7, 8)
	null.Epoch = 4
	null.Records[1].Value = nil
	stale := data(7, 8)
	stale.Epoch = 3
	newer := data(7, 8)
	newer.Epoch = 5
	for name, test := range map[string]struct {
		last     []kafkatest.Batch // replaces the batch at 7
		aborted  []abort
		evidence Evidence // "": the reader continues
		dropped  bool
		o        ReaderOptions
	}{
		"unchanged":     {last: nil},
		"other value":   {last: []kafkatest.Batch{other}, evidence: AnchorDiffers},
		"null":          {last: []kafkatest.Batch{null}, evidence: AnchorDiffers},
		"removed":       {last: []kafkatest.Batch{cleaned(data(7, 8), 8)}, evidence: AnchorVanished},
		"batch removed": {last: []kafkatest.Batch{}, evidence: AnchorVanished},
		"older epoch":   {last: []kafkatest.Batch{stale}, evidence: EpochWentBack},
		"newer epoch":   {last: []kafkatest.Batch{newer}},
		"aborted": {last: []kafkatest.Batch{inTxn(9, other)}, aborted: []abort{{9, 7, 30}},
			evidence: AnchorDiffers},
		"same, aborted": {last: []kafkatest.Batch{inTxn(9, newer)}, aborted: []abort{{9, 7, 30}},
			evidence: AnchorDiffers},
		"removed, known": {last: []kafkatest.Batch{cleaned(data(7, 8), 8)}, dropped: true,
			o: ReaderOptions{Compacted: true}},
	} {
		for _, restart := range []bool{false, true} {
			r := read(test.o)
			s.change(func() {
				more := data(20, 21)
				more.Epoch = 7
				if test.last != nil {
					s.batches = append(s.batches[:3:3], test.last...)
				}
				s.batches = append(s.batches, more)
				s.aborted = test.aborted
				s.stable, s.end = 22, 22
			})
			if restart {
				test.o.Topic = "sim"
				r = newReader(t, c, test.o, r.Position())
			}
			var chunk Chunk
			var replaced *ReplacedError
			err := fetchOnce(t.Context(), r, &chunk)
			switch {
			case test.evidence == "" &&
				(err != nil || chunk.Next != 22 || len(chunk.Records) != 2 || chunk.AnchorDropped != test.dropped):
				t.Errorf("%s: %v, %+v", name, err, chunk)
			case test.evidence != "" &&
				(!errors.As(err, &replaced) || replaced.Evidence != test.evidence || replaced.Next != 9):
				t.Errorf("%s: %v", name, err)
			case test.evidence != "" && (len(chunk.Records) != 0 || chunk.Next != 9 || r.Position().Next != 9):
				t.Errorf("%s: %d records are delivered after %v", name, len(chunk.Records), err)
			}
		}
	}
}

// These are answers of a broker that throttles, lags behind, or is damaged.
func TestBadAnswers(t *testing.T) {
	s, c := serve(t)
	begin := func(at Position) *Reader {
		s.set([]kafkatest.Batch{data(0, 1, 2), data(3, 4)})
		return newReader(t, c, ReaderOptions{Topic: "sim"}, at)
	}
	anchor := func() Position {
		r := kafkatest.Record{Offset: 2, Value: []byte("v2")}
		return Position{Next: 3, LeaderEpoch: -1,
			Anchor: &Anchor{Offset: 2, Hash: batch.HashRecord(r.Offset, r.Key, r.Value), LeaderEpoch: 0}}
	}
	var chunk Chunk
	var e *Error
	for name, at := range map[string]Position{"at the start": start, "with an anchor": anchor()} {
		// An answer without data, although there must be some, changes nothing: the position does not advance, and the
		// anchor is neither dropped nor confirmed.
		for what, change := range map[string]func(){
			"no partition": func() { s.instead = func(*kmsg.FetchResponse) bool { return true } },
			"no batches": func() {
				s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches = []byte{} }
			},
			"half a batch": func() {
				s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches = p.RecordBatches[:70] }
			},
		} {
			r := begin(at)
			s.change(change)
			if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) != 0 || chunk.Next != at.Next {
				t.Errorf("%s, %s: %v, %+v", what, name, err, chunk)
			}
			for range 3 {
				if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Label() != "empty" || !e.Retriable() ||
					r.Position().Next != at.Next {
					t.Errorf("%s again, %s: %v", what, name, err)
				}
			}
			s.change(func() { s.tweak, s.instead = nil, nil })
			if got := drain(t, r, 5, nil); len(got) != int(5-at.Next) {
				t.Errorf("%s, %s: then %s", what, name, values(got))
			}
		}
		// If a bit is flipped in the first batch of the answer, nothing is delivered; in the second batch, the first is
		// delivered.
		r := begin(at)
		s.change(func() {
			s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches[70] ^= 1 }
		})
		if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Label() != "protocol" || !e.Retriable() ||
			!strings.HasSuffix(err.Error(), "does not match its checksum") {
			t.Errorf("damaged, %s: %v", name, err)
		}
		r = begin(at)
		s.change(func() {
			s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches[len(p.RecordBatches)-1] ^= 1 }
		})
		for range 2 {
			if err := r.Fetch(t.Context(), &chunk); err == nil {
				at.Next = max(at.Next, 3)
				if chunk.Next != 3 {
					t.Errorf("second batch damaged, %s: %+v", name, chunk)
				}
			} else if !errors.As(err, &e) || e.Label() != "protocol" {
				t.Errorf("second batch damaged, %s: %v", name, err)
			}
		}
		s.change(func() { s.tweak = nil })
		drain(t, r, 5, nil)
	}

	// The log ends before the position although the fetch itself succeeds: between the anchor and the position.
	r := begin(anchor())
	s.change(func() { s.batches, s.end, s.stable = []kafkatest.Batch{data(0, 1)}, 2, 2 })
	var truncated *TruncatedError
	if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &truncated) || truncated.LogEnd != 2 {
		t.Errorf("shorter log: %v", err)
	}
	// A new leader does not know yet how far the log is replicated.
	r = begin(anchor())
	s.change(func() {
		s.tweak = func(p *kmsg.FetchResponseTopicPartition) {
			p.HighWatermark, p.LastStableOffset, p.RecordBatches = 1, 1, []byte{}
		}
		s.listOffsets = func(p *kmsg.ListOffsetsResponseTopicPartition) { p.ErrorCode, p.Offset = 78, -1 }
	})
	if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Code != 78 || !e.Retriable() {
		t.Errorf("end not known: %v", err)
	}
	s.change(func() { s.tweak, s.listOffsets = nil, nil })
	drain(t, r, 5, nil)
}

// A broker that throttles causes no error: it answers without data and asks for a pause, and the reader pauses.
func TestThrottled(t *testing.T) {
	s, c := serve(t)
	const pause = 60 * time.Millisecond
	begin := func() *Reader {
		s.set([]kafkatest.Batch{data(0, 1, 2), data(3, 4)})
		s.change(func() {
			s.instead = func(res *kmsg.FetchResponse) bool {
				res.ThrottleMillis = int32(pause.Milliseconds())
				if s.requests > 4 {
					res.ThrottleMillis = 60_000 // longer than a slow machine needs for the next request
				}
				return s.requests <= 4
			}
		})
		return newReader(t, c, ReaderOptions{Topic: "sim"}, start)
	}
	r := begin()
	var chunk Chunk
	began := time.Now()
	for i := range 4 {
		if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) != 0 || chunk.Next != 0 {
			t.Fatalf("%v, %+v", err, chunk)
		}
		if took := time.Since(began); took < time.Duration(i)*pause {
			t.Errorf("answer %d after %v", i, took)
		}
	}
	if err := r.Fetch(t.Context(), &chunk); err != nil || len(chunk.Records) != 5 || time.Since(began) < 4*pause {
		t.Errorf("%v, %d records after %v", err, len(chunk.Records), time.Since(began))
	}
	// The context ends the pause.
	ctx, cancel := context.WithTimeout(t.Context(), pause/4)
	defer cancel()
	if err := r.Fetch(ctx, &chunk); !errors.Is(err, context.DeadlineExceeded) || s.count() != 5 {
		t.Errorf("%v after %d requests", err, s.count())
	}
}

// After a slow answer, the next one gets more time.
func TestPatienceGrows(t *testing.T) {
	s, c := serve(t)
	s.set([]kafkatest.Batch{data(0, 1)})
	gate := make(chan struct{}) // the first answer comes after its timeout
	s.change(func() {
		s.instead = func(*kmsg.FetchResponse) bool { <-gate; time.Sleep(80 * time.Millisecond); return false }
	})
	r := newReader(t, c, ReaderOptions{Topic: "sim", MaxWait: time.Millisecond}, start)
	r.slack = 30 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var chunk Chunk
	var e *Error
	if err := r.Fetch(ctx, &chunk); !errors.As(err, &e) || e.Label() != "timeout" {
		t.Error(err)
	}
	close(gate)
	if err := fetchOnce(ctx, r, &chunk); err != nil || len(chunk.Records) != 2 {
		t.Errorf("%v, %d records", err, len(chunk.Records))
	}
}
