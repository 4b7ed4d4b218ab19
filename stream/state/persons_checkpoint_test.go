package state_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// inParts changes a checkpoint into the checkpoint of a merged epoch over two partitions.
func inParts(c *state.Checkpoint) {
	c.Older = nil
	c.Position = kafka.Position{Next: 300, LeaderEpoch: -1}
	c.Parts = []state.Place{
		{Partition: 0,
			Position: kafka.Position{Next: 100, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 99, LeaderEpoch: 2}}},
		{Partition: 5, Position: kafka.Position{Next: 200, LeaderEpoch: -1}},
	}
}

// TestMergedUsersCheckpoint: a checkpoint has a position of persons for each partition, and a damaged one is not
// accepted.
func TestMergedUsersCheckpoint(t *testing.T) {
	t.Parallel()
	sound := func() *state.Checkpoint {
		c := streamtest.GoldenCheckpoint()
		inParts(c)
		c.Users = state.NoPersons(2)
		return c
	}
	file := sound().Encode(nil)
	got, err := state.ParseCheckpoint(file)
	if err != nil || len(got.Users) != 2 || len(got.Parts) != 2 || got.BoundaryTopic != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if a, b := got.UsersOfPart(0), got.UsersOfPart(1); a != fmt.Sprintf("users-%d.p0.", got.Epoch) ||
		b != fmt.Sprintf("users-%d.p5.", got.Epoch) {
		t.Errorf("files %s and %s", a, b)
	}
	for name, change := range map[string]func(*state.Checkpoint){
		"one position":        func(c *state.Checkpoint) { c.Users = state.NoPersons(1) },
		"three positions":     func(c *state.Checkpoint) { c.Users = state.NoPersons(3) },
		"no position of one":  func(c *state.Checkpoint) { c.Users[1] = nil },
		"another sum":         func(c *state.Checkpoint) { c.Position.Next++ },
		"an anchor of all":    func(c *state.Checkpoint) { c.Position.Anchor = &kafka.Anchor{Offset: 2} },
		"a boundary below −1": func(c *state.Checkpoint) { c.BoundaryTopic, c.Boundary = "bounds", -2 },
	} {
		c := sound()
		change(c)
		if got, err := state.ParseCheckpoint(c.Encode(nil)); err == nil {
			t.Errorf("%s is believed: %+v", name, got)
		}
	}
	// These positions can be parsed, but do not belong to this state.
	c := sound()
	c.Step++
	if _, ok := c.UsersAt(0); ok {
		t.Error("a position of another step is believed")
	}
}

// TestUsersCheckpoint: the position is in the checkpoint and is read back; inspect shows the public fields of every
// form of checkpoint.
func TestUsersCheckpoint(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*state.Checkpoint){
		func(c *state.Checkpoint) { c.Users = state.NoPersons(1) },
		func(c *state.Checkpoint) { c.BoundaryTopic = "bounds" },
		func(c *state.Checkpoint) { c.Users, c.BoundaryTopic = state.NoPersons(1), "bounds" },
		func(*state.Checkpoint) {},
		func(c *state.Checkpoint) { inParts(c); c.Users = state.NoPersons(2) },
		func(c *state.Checkpoint) {
			inParts(c)
			c.Users, c.BoundaryTopic, c.Boundary = state.NoPersons(2), "bounds", 7
		},
	} {
		want := streamtest.GoldenCheckpoint()
		change(want)
		file := want.Encode(nil)
		got, err := state.ParseCheckpoint(file)
		if err != nil || !bytes.Equal(got.Encode(nil), file) || !slices.EqualFunc(got.Users, want.Users, bytes.Equal) ||
			got.BoundaryTopic != want.BoundaryTopic {
			t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
		}
		if _, err := recovery.Inspect(file); err != nil {
			t.Errorf("to inspect it: %v", err)
		}
	}
}
