package kafka

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// simulated is a log that is served byte for byte, even if no producer would write it: the results of the log cleaner,
// and answers of brokers in unusual moments.
type simulated struct {
	mu          sync.Mutex
	batches     []kafkatest.Batch
	aborted     []abort
	start       int64
	stable, end int64
	requests    int
	tweak       func(*kmsg.FetchResponseTopicPartition)       // changes every answer
	instead     func(*kmsg.FetchResponse) bool                // replaces the answer
	listOffsets func(*kmsg.ListOffsetsResponseTopicPartition) // changes every answer
	sent        int                                           // bytes of batches that were sent
}

type abort struct{ producer, first, last int64 }

func serve(tb testing.TB) (*simulated, *Client) {
	tb.Helper()
	b := startBroker(tb, embedded.Options{Topics: []string{"sim"}})
	s := new(simulated)
	b.Cluster().ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		return s.fetch(r.(*kmsg.FetchRequest)), nil, true
	})
	b.Cluster().ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		return s.list(r.(*kmsg.ListOffsetsRequest)), nil, true
	})
	return s, dialSteady(tb, b.Addr())
}

// set replaces the log, and removes the changes to answers.
func (s *simulated) set(batches []kafkatest.Batch, aborted ...abort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches, s.aborted = batches, aborted
	s.start, s.end = 0, 0
	if n := len(batches); n > 0 {
		s.end = batches[n-1].Base + int64(batches[n-1].LastDelta) + 1
	}
	s.stable = s.end
	s.tweak, s.instead, s.listOffsets = nil, nil, nil
	s.requests, s.sent = 0, 0
}

func (s *simulated) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *simulated) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// bytes returns the number of bytes sent since the last call.
func (s *simulated) bytes() (n int) {
	s.change(func() { n, s.sent = s.sent, 0 })
	return n
}

func (s *simulated) fetch(req *kmsg.FetchRequest) kmsg.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	p := req.Topics[0].Partitions[0]
	res := req.ResponseKind().(*kmsg.FetchResponse)
	if s.instead != nil && s.instead(res) {
		return res
	}
	part := kmsg.NewFetchResponseTopicPartition()
	part.HighWatermark, part.LastStableOffset, part.LogStartOffset = s.end, s.stable, s.start
	part.RecordBatches = []byte{}
	if p.FetchOffset < s.start || p.FetchOffset > s.end {
		part.ErrorCode = 1
	} else {
		last := int64(-1)
		for _, b := range s.batches {
			if b.Base+int64(b.LastDelta) < p.FetchOffset || req.IsolationLevel == 1 && b.Base >= s.stable {
				continue
			}
			raw := b.Append(nil)
			if n := len(part.RecordBatches); n > 0 && n+len(raw) > int(p.PartitionMaxBytes) {
				break
			}
			part.RecordBatches = append(part.RecordBatches, raw...)
			last = b.Base + int64(b.LastDelta)
		}
		for _, a := range s.aborted {
			if req.IsolationLevel == 1 && a.last >= p.FetchOffset && a.first <= last {
				t := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
				t.ProducerID, t.FirstOffset = a.producer, a.first
				part.AbortedTransactions = append(part.AbortedTransactions, t)
			}
		}
	}
	if s.tweak != nil {
		s.tweak(&part)
	}
	s.sent += len(part.RecordBatches)
	topic := kmsg.NewFetchResponseTopic()
	topic.Topic, topic.Partitions = "sim", append(topic.Partitions, part)
	res.Topics = append(res.Topics, topic)
	return res
}

func (s *simulated) list(req *kmsg.ListOffsetsRequest) kmsg.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	res := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	part := kmsg.NewListOffsetsResponseTopicPartition()
	switch {
	case req.Topics[0].Partitions[0].Timestamp == -2:
		part.Offset = s.start
	case req.IsolationLevel == 1:
		part.Offset = s.stable
	default:
		part.Offset = s.end
	}
	if s.listOffsets != nil {
		s.listOffsets(&part)
	}
	topic := kmsg.NewListOffsetsResponseTopic()
	topic.Topic, topic.Partitions = "sim", append(topic.Partitions, part)
	res.Topics = append(res.Topics, topic)
	return res
}

// data returns a plain batch with records at the given offsets; the first and the last are its bounds.
func data(offsets ...int64) kafkatest.Batch {
	b := kafkatest.Batch{Base: offsets[0], Producer: -1, LastDelta: int32(offsets[len(offsets)-1] - offsets[0])}
	for _, o := range offsets {
		b.Records = append(b.Records, kafkatest.Record{Offset: o, Value: fmt.Append(nil, "v", o)})
	}
	return b
}

// inTxn makes the batch part of a producer's transaction.
func inTxn(producer int64, b kafkatest.Batch) kafkatest.Batch {
	b.Producer, b.Transactional = producer, true
	return b
}

// cleaned removes the records at some offsets, but keeps the offsets.
func cleaned(b kafkatest.Batch, offsets ...int64) kafkatest.Batch {
	var left []kafkatest.Record
	for _, r := range b.Records {
		keep := true
		for _, o := range offsets {
			keep = keep && r.Offset != o
		}
		if keep {
			left = append(left, r)
		}
	}
	b.Records = left
	return b
}

// randomLog returns a log with transactions and traces of the cleaner, and the records that must be read from it.
func randomLog(rng *rand.Rand) (batches []kafkatest.Batch, aborted []abort, want []kafkatest.Record) {
	type txn struct {
		first   int64
		records []kafkatest.Record
	}
	open := map[int64]*txn{}
	next := int64(rng.IntN(3))
	finish := func(p int64, t *txn) {
		commit := rng.IntN(2) == 0
		if commit {
			want = append(want, t.records...)
		} else {
			aborted = append(aborted, abort{p, t.first, next})
		}
		delete(open, p)
		// The cleaner drops the marker of a commit whose records are gone.
		if !commit || len(t.records) > 0 || rng.IntN(2) == 0 {
			batches = append(batches, kafkatest.Marker(next, p, commit))
		}
		next++
	}
	for range 5 + rng.IntN(60) {
		p := int64(rng.IntN(4)) - 1
		if t := open[p]; t != nil && rng.IntN(3) == 0 {
			finish(p, t)
			continue
		}
		b := kafkatest.Batch{Base: next, Producer: p, LastDelta: int32(rng.IntN(6)), Transactional: p >= 0}
		next += int64(b.LastDelta) + 1
		for o := b.Base; o < next; o++ {
			if r := randomRecord(rng, 60); rng.IntN(3) > 0 {
				r.Offset = o
				b.Records = append(b.Records, r)
			}
		}
		if p < 0 {
			want = append(want, b.Records...)
		} else {
			if open[p] == nil {
				open[p] = &txn{first: b.Base}
			}
			open[p].records = append(open[p].records, b.Records...)
		}
		if len(b.Records) > 0 || rng.IntN(2) == 0 {
			batches = append(batches, b) // otherwise the whole batch is gone
		}
	}
	for p := range int64(3) {
		if open[p] != nil {
			finish(p, open[p])
		}
	}
	// The last offset always exists, because the cleaner never touches the end of a log.
	tail := data(next)
	batches = append(batches, tail)
	want = append(want, tail.Records...)
	for i := range want {
		for j := i; j > 0 && want[j].Offset < want[j-1].Offset; j-- {
			want[j], want[j-1] = want[j-1], want[j]
		}
	}
	// Brokers list aborted transactions in the order of their ends.
	return batches, aborted, want
}
