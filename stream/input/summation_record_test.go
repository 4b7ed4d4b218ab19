package input

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/seal"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/monitor"
)

// partRecords returns the content of one record of each kind.
func partRecords() map[byte][]byte {
	at := kafka.Position{Next: 7, LeaderEpoch: 3, Anchor: &kafka.Anchor{Offset: 6, Hash: [32]byte{9}, LeaderEpoch: 3}}
	sum := &mergeSum{position: at, Work: monitor.Counts{Records: 12}, Sum: []byte("sum")}
	sum.Work.Rejected[1] = 4
	return map[byte][]byte{
		partJob: (&mergeJob{Stream: "orders", Manifest: []byte("{}"), Generation: 5, Members: 3, Ahead: 4,
			At: []mergePlace{{2, at}, {NoMember, kafka.Position{LeaderEpoch: -1}}}}).encode(),
		partProgress: (&mergeProgress{ends: [][]int64{{1, 2}, {3, 4}}}).encode(),
		partSum:      sum.encode(),
		partAlive: (&mergeAlive{generation: 5, member: 1,
			at: []mergeReached{{1, 8, -1, 99}, {4, 0, 0, 0}}}).Encode(),
	}
}

// parsePart parses a content and encodes it again.
func parsePart(kind byte, data []byte) (any, []byte, error) {
	switch kind {
	case partJob:
		x, err := parseMergeJob(data)
		if err != nil {
			return nil, nil, err
		}
		return x, x.encode(), nil
	case partProgress:
		x, err := parseMergeProgress(data)
		if err != nil {
			return nil, nil, err
		}
		return x, x.encode(), nil
	case partSum:
		x, err := parseMergeSum(data)
		if err != nil {
			return nil, nil, err
		}
		return x, x.encode(), nil
	}
	x, err := parseMergeAlive(data)
	if err != nil {
		return nil, nil, err
	}
	return x, x.Encode(), nil
}

// TestPartRecords: records that instances exchange are unchanged by encoding and parsing, and a record that is cut or
// too long is refused.
func TestPartRecords(t *testing.T) {
	t.Parallel()
	sealer := newPartSeal(derived(1), "group", 3)
	for kind, content := range partRecords() {
		x, again, err := parsePart(kind, content)
		if err != nil || !bytes.Equal(again, content) {
			t.Fatalf("kind %d: %v", kind, err)
		}
		for n := range content {
			if kind == partSum && n >= len(content)-3 {
				break // the sum itself may have any length
			}
			if y, _, err := parsePart(kind, content[:n]); err == nil && reflect.DeepEqual(x, y) {
				t.Errorf("kind %d: its first %d bytes are accepted", kind, n)
			}
		}
		if kind != partSum {
			if _, _, err := parsePart(kind, append(content[:len(content):len(content)], 0)); err == nil {
				t.Errorf("kind %d: one more byte is accepted", kind)
			}
		}
		h := partHeader{Kind: kind, Job: [16]byte{7}, Step: 9, Pieces: 1}
		record, err := sealer.Seal(h, content)
		fixtures.Must(t, err)
		got, ok := parsePartHeader(record)
		if !ok || got != h {
			t.Fatalf("kind %d: header %+v", kind, got)
		}
		if open, err := sealer.Open(record); err != nil || !bytes.Equal(open, content) {
			t.Fatalf("kind %d: %v", kind, err)
		}
		other, err := sealer.Seal(h, content)
		fixtures.Must(t, err)
		if bytes.Contains(record, content) || bytes.Equal(record[partHead:], other[partHead:]) {
			t.Errorf("kind %d is not encrypted, or two records have the same key", kind)
		}
		for i := range record {
			damaged := bytes.Clone(record)
			damaged[i] ^= 1
			if _, ok := parsePartHeader(damaged); !ok {
				continue
			}
			if _, err := sealer.Open(damaged); err == nil {
				t.Errorf("kind %d: a record with byte %d of another record is accepted", kind, i)
			}
		}
		for name, s := range map[string]*partSeal{
			"key": newPartSeal(derived(2), "group", 3), "group": newPartSeal(derived(1), "grou", 3),
			"shard": newPartSeal(derived(1), "group", 4),
		} {
			if _, err := s.Open(record); err == nil {
				t.Errorf("kind %d: a record of another %s is accepted", kind, name)
			}
		}
	}
}

// TestPartPieces: a sum that is too large for one record is split into several, and one that is far too large is
// refused.
func TestPartPieces(t *testing.T) {
	t.Parallel()
	sealer := newPartSeal(derived(1), "group", 0)
	content := make([]byte, 2*partPiece+5)
	for i := range content {
		content[i] = byte(i % 251)
	}
	records, err := sealer.pieces(partHeader{Kind: partSum, Step: 1}, append(partRoom(len(content)), content...))
	fixtures.Must(t, err)
	var whole []byte
	for i, r := range records {
		h, ok := parsePartHeader(r)
		if !ok || len(records) != 3 || h.Piece != uint32(i) || h.Pieces != 3 || len(r) > 1_000_000 {
			t.Fatalf("piece %d is %+v with %d bytes", i, h, len(r))
		}
		piece, err := sealer.Open(r)
		fixtures.Must(t, err)
		whole = append(whole, piece...)
	}
	if !bytes.Equal(whole, content) {
		t.Error("the joined pieces differ from the sum")
	}
	if one, err := sealer.pieces(partHeader{Kind: partSum, Step: 1},
		append(partRoom(0), content[:partPiece]...)); err != nil || len(one) != 1 {
		t.Errorf("%d pieces, %v", len(one), err)
	}
	if _, err := sealer.pieces(partHeader{Kind: partSum, Step: 1},
		append(partRoom(0), make([]byte, maxPartPieces*partPiece+1)...)); err == nil {
		t.Error("a sum of 460 MB is written")
	}
	for name, h := range map[string]partHeader{
		"kind 0":            {Pieces: 1},
		"kind 5":            {Kind: 5, Pieces: 1},
		"no pieces":         {Kind: partSum},
		"a piece too many":  {Kind: partSum, Piece: 1, Pieces: 1},
		"too many pieces":   {Kind: partSum, Pieces: maxPartPieces + 1},
		"a job in pieces":   {Kind: partJob, Pieces: 2},
		"a job's partition": {Kind: partJob, Partition: 1, Pieces: 1},
		"no step":           {Kind: partSum, Pieces: 1, Step: 1 << 63},
	} {
		if _, ok := parsePartHeader(append(h.append(nil), make([]byte, seal.Salt+seal.Tag)...)); ok {
			t.Errorf("%s is accepted", name)
		}
	}
}

// FuzzPartRecord: a parsed record encodes to the same bytes, and a record of another group, shard or key is refused.
func FuzzPartRecord(f *testing.F) {
	sealer := newPartSeal(derived(1), "group", 3)
	for kind, content := range partRecords() {
		f.Add(kind, content)
	}
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		if h, ok := parsePartHeader(data); ok {
			if !bytes.Equal(h.append(nil), data[:partHead]) {
				t.Fatalf("%+v", h)
			}
			if _, err := sealer.Open(data); err == nil {
				t.Fatal("a record without its tag is accepted")
			}
		}
		if kind < partJob || kind > partAlive {
			return
		}
		x, again, err := parsePart(kind, data)
		if err != nil {
			return
		}
		y, third, err := parsePart(kind, again)
		if err != nil || !reflect.DeepEqual(x, y) || !bytes.Equal(third, again) {
			t.Fatalf("%v\n%+v\n%+v", err, x, y)
		}
	})
}

// encode returns the content of a sum's record.
func (s *mergeSum) encode() []byte { return append(s.Begin(nil), s.Sum...) }

// derived returns a function that derives the keys of records from a master key that begins with b.
func derived(b byte) func(salt []byte) [32]byte {
	return func(salt []byte) [32]byte { return keys.Derive(&[32]byte{b}, keys.ForPartials, salt) }
}
