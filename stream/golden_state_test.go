package stream

import (
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

func TestGoldenCheckpoint(t *testing.T) {
	t.Parallel()
	want := goldenCheckpoint()
	file := want.encode(nil)
	golden(t, goldenPath("checkpoint.hex"), dump(file)) // as before there were older anchors
	want.position.Anchor = &kafka.Anchor{Offset: want.position.Next - 1, LeaderEpoch: 3}
	want.older = []kafka.Anchor{{Offset: 2, Hash: [32]byte{1}, LeaderEpoch: -1}, {Offset: 5, Hash: [32]byte{2}, LeaderEpoch: -1}}
	for _, bad := range [][]kafka.Anchor{{{Offset: 5}, {Offset: 5}}, {{Offset: want.position.Anchor.Offset}}, {{Offset: -1}}, make([]kafka.Anchor, maxOlder+1)} {
		c := *want
		c.older = bad
		if _, err := parseCheckpoint(c.encode(nil)); err == nil {
			t.Errorf("older anchors %+v are accepted", bad)
		}
	}
	file = want.encode(nil)
	got, err := parseCheckpoint(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
	}
	// Every bit counts.
	for i := range file {
		file[i] ^= 1 << (i % 8)
		if _, err := parseCheckpoint(file); err == nil {
			t.Errorf("byte %d may change", i)
		}
		file[i] ^= 1 << (i % 8)
		if _, err := parseCheckpoint(file[:i]); err == nil {
			t.Errorf("it may end after %d bytes", i)
		}
	}
}
