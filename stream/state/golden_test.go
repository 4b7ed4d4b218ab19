package state_test

import (
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/state"
)

func TestGoldenCheckpoint(t *testing.T) {
	t.Parallel()
	want := streamtest.GoldenCheckpoint()
	file := want.Encode(nil)
	// The bytes are those from before older anchors were introduced.
	fixtures.Golden(t, "testdata/checkpoint.hex", fixtures.Dump(file))
	want.Position.Anchor = &kafka.Anchor{Offset: want.Position.Next - 1, LeaderEpoch: 3}
	want.Older = []kafka.Anchor{{Offset: 2, Hash: [32]byte{1}, LeaderEpoch: -1},
		{Offset: 5, Hash: [32]byte{2}, LeaderEpoch: -1}}
	for _, bad := range [][]kafka.Anchor{
		{{Offset: 5}, {Offset: 5}}, {{Offset: want.Position.Anchor.Offset}}, {{Offset: -1}},
		make([]kafka.Anchor, state.MaxOlder+1),
	} {
		c := *want
		c.Older = bad
		if _, err := state.ParseCheckpoint(c.Encode(nil)); err == nil {
			t.Errorf("older anchors %+v are accepted", bad)
		}
	}
	file = want.Encode(nil)
	got, err := state.ParseCheckpoint(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
	}
	// Every changed bit is detected.
	for i := range file {
		file[i] ^= 1 << (i % 8)
		if _, err := state.ParseCheckpoint(file); err == nil {
			t.Errorf("byte %d may change", i)
		}
		file[i] ^= 1 << (i % 8)
		if _, err := state.ParseCheckpoint(file[:i]); err == nil {
			t.Errorf("it may end after %d bytes", i)
		}
	}
}
