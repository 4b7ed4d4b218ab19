package kafka

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

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
				compare(t, fmt.Sprintf("seed %d, %d bytes, from %d", seed, size, p.Next),
					drain(t, newReader(t, c, o, p), s.end, nil), want[i:])
			}
		}
	}
}

// FuzzSimulatedLog explores more logs and fetch sizes than the fixed seeds.
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

// Offsets that the cleaner emptied are passed in a bounded number of requests.
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
		"in the middle": {log: []kafkatest.Batch{data(0, 1), none(2, 5), data(7)}, want: "0=v0 1=v1 7=v7 ",
			requests: 1},
		"at the start": {log: []kafkatest.Batch{none(0, 5), data(5)}, want: "5=v5 ", requests: 1},
		"at the end":   {log: []kafkatest.Batch{data(0, 1), none(2, 5)}, want: "0=v0 1=v1 ", requests: 11},
		"tail of a batch": {log: []kafkatest.Batch{cleaned(data(0, 1, 2, 3, 4, 5), 3, 4, 5)},
			want: "0=v0 1=v1 2=v2 ", requests: 7},
		"nothing but them":   {log: []kafkatest.Batch{none(0, 3), none(3, 1)}, want: "", requests: 2},
		"a gap":              {log: []kafkatest.Batch{data(0), data(9)}, want: "0=v0 9=v9 ", requests: 1},
		"a gap and a hollow": {log: []kafkatest.Batch{data(0), none(100, 1)}, want: "0=v0 ", requests: 3},
		"a marker": {log: []kafkatest.Batch{data(0), kafkatest.Marker(1, 5, true)}, want: "0=v0 ",
			requests: 1},
		"aborted": {
			log:     []kafkatest.Batch{inTxn(5, data(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)), kafkatest.Marker(10, 5, false)},
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

// One producer has two transactions, and the first was aborted. Its marker ends the abort even if none of its records
// is left.
func TestAbortedThenCommitted(t *testing.T) {
	s, c := serve(t)
	for name, first := range map[string]kafkatest.Batch{
		"with records": inTxn(5, data(0, 1)),
		"emptied":      inTxn(5, cleaned(data(0, 1), 0, 1)),
	} {
		s.set(
			[]kafkatest.Batch{first, kafkatest.Marker(2, 5, false), inTxn(5, data(3)), data(4),
				kafkatest.Marker(5, 5, true), inTxn(5, data(6)), kafkatest.Marker(7, 5, false)},
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
	// The data batch was removed completely, but the marker kept.
	s.set([]kafkatest.Batch{data(0), kafkatest.Marker(2, 5, false), inTxn(5, data(3)), kafkatest.Marker(4, 5, true)},
		abort{5, 1, 2})
	if got := values(drain(t, newReader(t, c, ReaderOptions{Topic: "sim"}, start), 5, nil)); got != "0=v0 3=v3 " {
		t.Error(got)
	}
}

// There may be gigabytes of undelivered records after the last delivered one, which is the anchor. The reader does not
// read them again and again to get from the anchor to its position.
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

// Topics that were never converted still have the format before batches.
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
