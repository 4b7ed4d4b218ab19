package streamtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/twmb/franz-go/pkg/kfake"
)

// GroupRig returns a rig whose topic "orders" has several partitions that instances of group g share.
func GroupRig(t *testing.T, partitions int, lines string) *Rig {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Extra: []kfake.Opt{kfake.GroupMinSessionTimeout(100 * time.Millisecond)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.CreateTopic(t.Context(), "orders", partitions, nil); err != nil {
		t.Fatal(err)
	}
	r := NewRigAt(t, b, b.Addr(),
		fixtures.With(fixtures.OrdersStream, `topic = "orders",`, `topic = "orders", partition = "all",`))
	r.Group = "[cluster]\ngroup = \"g\"\nshards = 4\nsession_timeout = \"1s\"\nallow_unreplicated = true\n" + lines
	return r
}

// Begin creates the topics of the group.
func (r *Rig) Begin() {
	r.T.Helper()
	o := r.Options()
	if err := cluster.Init(r.T.Context(), o.Config, o.Key, func(int) {}); err != nil {
		r.T.Fatal(err)
	}
}

// Instance returns a rig with a separate state directory, for another instance of the group.
func (r *Rig) Instance(name string) *Rig {
	s := r.Sibling(r.Toml)
	s.Group += fmt.Sprintf("instance = %q\n", name)
	return s
}

// Values returns the hash of the value of each key in an output topic. It fails if a key has two different values.
func (r *Rig) Values(topic string) map[string][32]byte {
	r.T.Helper()
	all := map[string][32]byte{}
	for _, p := range r.Output(topic) {
		if was, known := all[p.Key]; known && was != p.Hash {
			r.T.Errorf("%s has two values", p.Key)
		}
		all[p.Key] = p.Hash
	}
	return all
}

// Awaits waits until an output topic has n releases.
func (r *Rig) Awaits(topic string, n int, why func() string) {
	r.T.Helper()
	until := time.Now().Add(fixtures.Patience)
	for {
		got := 0
		if t, err := r.Client.Topic(r.T.Context(), topic); err == nil && t.Exists {
			got = len(r.Values(topic))
		}
		switch {
		case got == n:
			return
		case got > n:
			r.T.Fatalf("%d releases, want %d", got, n)
		case time.Now().After(until):
			r.T.Fatalf("%d releases, want %d\n%s", got, n, why())
		}
		time.Sleep(20 * time.Millisecond)
	}
}
