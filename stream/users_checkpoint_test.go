package stream

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

// inParts makes a checkpoint one of a merged epoch over two partitions.
func inParts(c *checkpoint) {
	c.older = nil
	c.position = kafka.Position{Next: 300, LeaderEpoch: -1}
	c.parts = []partPosition{
		{partition: 0, position: kafka.Position{Next: 100, LeaderEpoch: 2, Anchor: &kafka.Anchor{Offset: 99, LeaderEpoch: 2}}},
		{partition: 5, position: kafka.Position{Next: 200, LeaderEpoch: -1}},
	}
}

// TestMergedUsersCheckpoint: a checkpoint has a position of persons for each partition, and none that is
// damaged is believed.
func TestMergedUsersCheckpoint(t *testing.T) {
	t.Parallel()
	sound := func() *checkpoint {
		c := goldenCheckpoint()
		inParts(c)
		c.users = noUsers(2)
		return c
	}
	file := sound().encode(nil)
	got, err := parseCheckpoint(file)
	if err != nil || len(got.users) != 2 || len(got.parts) != 2 || got.boundaryTopic != "" {
		t.Fatalf("%+v, %v", got, err)
	}
	if a, b := got.usersOfPart(0), got.usersOfPart(1); a != fmt.Sprintf("users-%d.p0.", got.epoch) || b != fmt.Sprintf("users-%d.p5.", got.epoch) {
		t.Errorf("files %s and %s", a, b)
	}
	for name, change := range map[string]func(*checkpoint){
		"one position":        func(c *checkpoint) { c.users = noUsers(1) },
		"three positions":     func(c *checkpoint) { c.users = noUsers(3) },
		"no position of one":  func(c *checkpoint) { c.users[1] = nil },
		"another sum":         func(c *checkpoint) { c.position.Next++ },
		"an anchor of all":    func(c *checkpoint) { c.position.Anchor = &kafka.Anchor{Offset: 2} },
		"a boundary below −1": func(c *checkpoint) { c.boundaryTopic, c.boundary = "bounds", -2 },
	} {
		c := sound()
		change(c)
		if got, err := parseCheckpoint(c.encode(nil)); err == nil {
			t.Errorf("%s is believed: %+v", name, got)
		}
	}
	// What was read back as sound, and is not of this state.
	c := sound()
	c.step++
	if _, ok := c.usersAt(0); ok {
		t.Error("a position of another step is believed")
	}
}

// TestUsersCheckpoint: the position is in the checkpoint and comes back; what anybody may see of
// a checkpoint shows for every form of it.
func TestUsersCheckpoint(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*checkpoint){
		func(c *checkpoint) { c.users = noUsers(1) },
		func(c *checkpoint) { c.boundaryTopic = "bounds" },
		func(c *checkpoint) { c.users, c.boundaryTopic = noUsers(1), "bounds" },
		func(*checkpoint) {},
		func(c *checkpoint) { inParts(c); c.users = noUsers(2) },
		func(c *checkpoint) { inParts(c); c.users, c.boundaryTopic, c.boundary = noUsers(2), "bounds", 7 },
	} {
		want := goldenCheckpoint()
		change(want)
		file := want.encode(nil)
		got, err := parseCheckpoint(file)
		if err != nil || !bytes.Equal(got.encode(nil), file) || !slices.EqualFunc(got.users, want.users, bytes.Equal) || got.boundaryTopic != want.boundaryTopic {
			t.Errorf("read back: %v\n%+v\n%+v", err, got, want)
		}
		if _, err := Inspect(file); err != nil {
			t.Errorf("to inspect it: %v", err)
		}
	}
}
