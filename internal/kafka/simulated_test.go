package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"streamdp/internal/kafka/embedded"
	"streamdp/internal/kafka/kafkatest"
)

// simulated is a log that is served as it is, whatever no producer would write:
// what the cleaner leaves behind, and what brokers answer in bad moments.
type simulated struct {
	mu          sync.Mutex
	batches     []kafkatest.Batch
	aborted     []abort
	start       int64
	stable, end int64
	requests    int
	tweak       func(*kmsg.FetchResponseTopicPartition)       // of every answer
	instead     func(*kmsg.FetchResponse) bool                // takes the answer over
	listOffsets func(*kmsg.ListOffsetsResponseTopicPartition) // of every answer
	sent        int                                           // bytes of batches
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
	return s, dialBroker(tb, b.Addr())
}

// set replaces the log; nothing of the old answers' changes remains.
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

// bytes returns how much was sent since it was last asked.
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

// data is a plain batch with records at the given offsets, the first of which,
// and the last, are its bounds.
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

// cleaned removes the records at some offsets, not their place.
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

// randomLog is a log after transactions and the cleaner, and what is to be read
// from it.
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
			batches = append(batches, b) // else the whole batch is gone
		}
	}
	for p := range int64(3) {
		if open[p] != nil {
			finish(p, open[p])
		}
	}
	// The last offset always exists: no cleaner touches the end of a log.
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

func TestSimulatedLogs(t *testing.T) {
	s, c := serve(t)
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 11))
		batches, aborted, want := randomLog(rng)
		s.set(batches, aborted...)
		for _, size := range []int{1, 200, 1000, 1 << 20} {
			o := ReaderOptions{Topic: "sim", PartitionMaxBytes: size}
			var stops []Position
			got := drain(t, newReader(t, c, o, start), s.end, func(c *Chunk) {
				if rng.IntN(10) == 0 {
					stops = append(stops, c.Position(c.First+rng.Int64N(c.Next-c.First+1)))
				}
			})
			compare(t, fmt.Sprintf("seed %d, %d bytes", seed, size), got, want)
			for _, p := range stops {
				i := 0
				for i < len(want) && want[i].Offset < p.Next {
					i++
				}
				compare(t, fmt.Sprintf("seed %d, %d bytes, from %d", seed, size, p.Next), drain(t, newReader(t, c, o, p), s.end, nil), want[i:])
			}
		}
	}
}

// FuzzSimulatedLog explores logs and fetch sizes further than the fixed seeds.
func FuzzSimulatedLog(f *testing.F) {
	s, c := serve(f)
	f.Add(uint64(1), uint16(100))
	f.Fuzz(func(t *testing.T, seed uint64, size uint16) {
		batches, aborted, want := randomLog(rand.New(rand.NewPCG(seed, 12)))
		s.set(batches, aborted...)
		r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 1 + int(size)}, start)
		compare(t, "read", drain(t, r, s.end, nil), want)
	})
}

// What the cleaner leaves is passed over in a bounded number of requests.
func TestEmptyBatches(t *testing.T) {
	s, c := serve(t)
	none := func(base int64, n int32) kafkatest.Batch {
		return kafkatest.Batch{Base: base, LastDelta: n - 1, Producer: -1}
	}
	for name, test := range map[string]struct {
		log      []kafkatest.Batch
		aborted  []abort
		size     int
		want     string
		requests int
	}{
		"in the middle":      {log: []kafkatest.Batch{data(0, 1), none(2, 5), data(7)}, want: "0=v0 1=v1 7=v7 ", requests: 1},
		"at the start":       {log: []kafkatest.Batch{none(0, 5), data(5)}, want: "5=v5 ", requests: 1},
		"at the end":         {log: []kafkatest.Batch{data(0, 1), none(2, 5)}, want: "0=v0 1=v1 ", requests: 11},
		"tail of a batch":    {log: []kafkatest.Batch{cleaned(data(0, 1, 2, 3, 4, 5), 3, 4, 5)}, want: "0=v0 1=v1 2=v2 ", requests: 7},
		"nothing but them":   {log: []kafkatest.Batch{none(0, 3), none(3, 1)}, want: "", requests: 2},
		"a gap":              {log: []kafkatest.Batch{data(0), data(9)}, want: "0=v0 9=v9 ", requests: 1},
		"a gap and a hollow": {log: []kafkatest.Batch{data(0), none(100, 1)}, want: "0=v0 ", requests: 3},
		"a marker":           {log: []kafkatest.Batch{data(0), kafkatest.Marker(1, 5, true)}, want: "0=v0 ", requests: 1},
		"aborted": {log: []kafkatest.Batch{inTxn(5, data(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)), kafkatest.Marker(10, 5, false)},
			aborted: []abort{{5, 0, 10}}, size: 1, want: "", requests: 2},
	} {
		s.set(test.log, test.aborted...)
		r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: test.size}, start)
		if got := values(drain(t, r, s.end, nil)); got != test.want {
			t.Errorf("%s: %s", name, got)
		}
		if n := s.count(); n > test.requests {
			t.Errorf("%s: %d requests", name, n)
		}
	}
}

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
		last     []kafkatest.Batch // instead of the batch at 7
		aborted  []abort
		evidence Evidence // "": goes on
		dropped  bool
		o        ReaderOptions
	}{
		"unchanged":      {last: nil},
		"other value":    {last: []kafkatest.Batch{other}, evidence: AnchorDiffers},
		"null":           {last: []kafkatest.Batch{null}, evidence: AnchorDiffers},
		"removed":        {last: []kafkatest.Batch{cleaned(data(7, 8), 8)}, evidence: AnchorVanished},
		"batch removed":  {last: []kafkatest.Batch{}, evidence: AnchorVanished},
		"older epoch":    {last: []kafkatest.Batch{stale}, evidence: EpochWentBack},
		"newer epoch":    {last: []kafkatest.Batch{newer}},
		"aborted":        {last: []kafkatest.Batch{inTxn(9, other)}, aborted: []abort{{9, 7, 30}}, evidence: AnchorDiffers},
		"same, aborted":  {last: []kafkatest.Batch{inTxn(9, newer)}, aborted: []abort{{9, 7, 30}}, evidence: AnchorDiffers},
		"removed, known": {last: []kafkatest.Batch{cleaned(data(7, 8), 8)}, dropped: true, o: ReaderOptions{Compacted: true}},
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
			case test.evidence == "" && (err != nil || chunk.Next != 22 || len(chunk.Records) != 2 || chunk.AnchorDropped != test.dropped):
				t.Errorf("%s: %v, %+v", name, err, chunk)
			case test.evidence != "" && (!errors.As(err, &replaced) || replaced.Evidence != test.evidence || replaced.Next != 9):
				t.Errorf("%s: %v", name, err)
			case test.evidence != "" && (len(chunk.Records) != 0 || chunk.Next != 9 || r.Position().Next != 9):
				t.Errorf("%s: %d records are delivered after %v", name, len(chunk.Records), err)
			}
		}
	}
}

// The answers of a broker that throttles, lags behind, or is damaged.
func TestBadAnswers(t *testing.T) {
	s, c := serve(t)
	begin := func(at Position) *Reader {
		s.set([]kafkatest.Batch{data(0, 1, 2), data(3, 4)})
		return newReader(t, c, ReaderOptions{Topic: "sim"}, at)
	}
	anchor := func() Position {
		r := kafkatest.Record{Offset: 2, Value: []byte("v2")}
		return Position{Next: 3, LeaderEpoch: -1, Anchor: &Anchor{Offset: 2, Hash: HashRecord(r.Offset, r.Key, r.Value), LeaderEpoch: 0}}
	}
	var chunk Chunk
	var e *Error
	for name, at := range map[string]Position{"at the start": start, "with an anchor": anchor()} {
		// No data where there must be some moves nothing: the position is not
		// advanced, and the anchor neither given up nor believed.
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
				if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Label() != "empty" || !e.Retriable() || r.Position().Next != at.Next {
					t.Errorf("%s again, %s: %v", what, name, err)
				}
			}
			s.change(func() { s.tweak, s.instead = nil, nil })
			if got := drain(t, r, 5, nil); len(got) != int(5-at.Next) {
				t.Errorf("%s, %s: then %s", what, name, values(got))
			}
		}
		// A flipped bit in the first batch of the answer is no data; in the
		// second the first is delivered.
		r := begin(at)
		s.change(func() {
			s.tweak = func(p *kmsg.FetchResponseTopicPartition) { p.RecordBatches[70] ^= 1 }
		})
		if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &e) || e.Label() != "protocol" || !e.Retriable() || !strings.HasSuffix(err.Error(), "does not match its checksum") {
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

	// A log whose end lies before the position, though the fetch itself
	// succeeds: between the anchor and the position.
	r := begin(anchor())
	s.change(func() { s.batches, s.end, s.stable = []kafkatest.Batch{data(0, 1)}, 2, 2 })
	var truncated *TruncatedError
	if err := r.Fetch(t.Context(), &chunk); !errors.As(err, &truncated) || truncated.LogEnd != 2 {
		t.Errorf("shorter log: %v", err)
	}
	// A new leader that does not know yet how far the log is replicated.
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

// Two transactions of one producer, the first aborted: its marker ends the
// abortion even where no record of it is left.
func TestAbortedThenCommitted(t *testing.T) {
	s, c := serve(t)
	for name, first := range map[string]kafkatest.Batch{
		"with records": inTxn(5, data(0, 1)),
		"emptied":      inTxn(5, cleaned(data(0, 1), 0, 1)),
	} {
		s.set([]kafkatest.Batch{first, kafkatest.Marker(2, 5, false), inTxn(5, data(3)), data(4), kafkatest.Marker(5, 5, true), inTxn(5, data(6)), kafkatest.Marker(7, 5, false)},
			abort{5, 0, 2}, abort{5, 6, 7})
		for _, size := range []int{1, 1 << 20} {
			r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: size}, start)
			if got := values(drain(t, r, 8, nil)); got != "3=v3 4=v4 " {
				t.Errorf("%s, %d bytes: %s", name, size, got)
			}
		}
		all := newReader(t, c, ReaderOptions{Topic: "sim", Uncommitted: true}, start)
		if got := drain(t, all, 8, nil); len(got) != 3+len(first.Records) {
			t.Errorf("%s, uncommitted: %s", name, values(got))
		}
	}
	// The data batch removed altogether, the marker kept.
	s.set([]kafkatest.Batch{data(0), kafkatest.Marker(2, 5, false), inTxn(5, data(3)), kafkatest.Marker(4, 5, true)}, abort{5, 1, 2})
	if got := values(drain(t, newReader(t, c, ReaderOptions{Topic: "sim"}, start), 5, nil)); got != "0=v0 3=v3 " {
		t.Error(got)
	}
}

// Records that do not count may follow the last one that does by the gigabyte.
// They are not read again and again to get from the anchor to the position.
func TestLongAbortedTail(t *testing.T) {
	s, c := serve(t)
	batches := []kafkatest.Batch{data(0, 1)}
	next := int64(2)
	for range 400 {
		b := inTxn(5, data(next, next+1))
		b.Records[0].Value = make([]byte, 1000)
		batches = append(batches, b)
		next += 2
	}
	s.set(append(batches, kafkatest.Marker(next, 5, false)), abort{5, 2, next})
	size := 0
	for _, b := range s.batches {
		size += len(b.Append(nil))
	}
	r := newReader(t, c, ReaderOptions{Topic: "sim", PartitionMaxBytes: 16 << 10}, start)
	drain(t, r, next+1, nil)
	if n := s.bytes(); n > 3*size {
		t.Errorf("%d bytes sent to read a log of %d", n, size)
	}
	var chunk Chunk
	for range 20 {
		if err := r.Fetch(t.Context(), &chunk); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.bytes(); n > 11*200 {
		t.Errorf("%d bytes sent at the end of the log", n)
	}
	s.change(func() { s.batches = append(s.batches, data(next+1)); s.end, s.stable = next+2, next+2 })
	if got := drain(t, r, next+2, nil); len(got) != 1 {
		t.Errorf("then %s", values(got))
	}
}

// Topics that were never converted still hold the format before batches.
func TestOldFormat(t *testing.T) {
	s, c := serve(t)
	s.set([]kafkatest.Batch{data(0, 1, 2)})
	s.change(func() {
		s.tweak = func(p *kmsg.FetchResponseTopicPartition) {
			p.RecordBatches = nil
			for i := range 3 {
				m := kmsg.MessageV1{Offset: int64(i), Magic: 1, Value: fmt.Append(nil, "v", i)}
				m.MessageSize = int32(len(m.AppendTo(nil)) - 12)
				raw := m.AppendTo(nil)
				binary.BigEndian.PutUint32(raw[12:], crc32.ChecksumIEEE(raw[16:]))
				p.RecordBatches = append(p.RecordBatches, raw...)
			}
		}
	})
	r := newReader(t, c, ReaderOptions{Topic: "sim"}, start)
	if got := values(drain(t, r, 3, nil)); got != "0=v0 1=v1 2=v2 " {
		t.Error(got)
	}
	if a := r.Position().Anchor; a.Offset != 2 || a.LeaderEpoch != -1 {
		t.Errorf("anchor %+v", a)
	}
	if err := r.Fetch(t.Context(), new(Chunk)); err != nil {
		t.Error(err)
	}
}

// A broker that throttles has no trouble: it answers without data, wants to be
// left alone for a while, and is.
func TestThrottled(t *testing.T) {
	s, c := serve(t)
	const pause = 60 * time.Millisecond
	begin := func() *Reader {
		s.set([]kafkatest.Batch{data(0, 1, 2), data(3, 4)})
		s.change(func() {
			s.instead = func(res *kmsg.FetchResponse) bool {
				res.ThrottleMillis = int32(pause.Milliseconds())
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
	// The pause ends with the caller's patience.
	ctx, cancel := context.WithTimeout(t.Context(), pause/4)
	defer cancel()
	if err := r.Fetch(ctx, &chunk); !errors.Is(err, context.DeadlineExceeded) || s.count() != 5 {
		t.Errorf("%v after %d requests", err, s.count())
	}
}

// A slow answer is waited for longer the next time.
func TestPatienceGrows(t *testing.T) {
	s, c := serve(t)
	s.set([]kafkatest.Batch{data(0, 1)})
	s.change(func() {
		s.instead = func(*kmsg.FetchResponse) bool { time.Sleep(80 * time.Millisecond); return false }
	})
	r := newReader(t, c, ReaderOptions{Topic: "sim", MaxWait: time.Millisecond}, start)
	r.slack = 30 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var chunk Chunk
	var e *Error
	if err := r.Fetch(ctx, &chunk); !errors.As(err, &e) || e.Label() != "timeout" {
		t.Fatal(err)
	}
	if err := fetchOnce(ctx, r, &chunk); err != nil || len(chunk.Records) != 2 {
		t.Errorf("%v, %d records", err, len(chunk.Records))
	}
}
