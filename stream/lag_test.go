package stream

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// slowerStream reads what ordersStream reads, in longer steps.
var slowerStream = strings.NewReplacer("stream.orders", "stream.slower", "orders.dp", "slower.dp", "= 100", "= 300").Replace(ordersStream)

func committed(r *rig, partition int32) int64 {
	r.t.Helper()
	return kafkatest.CommittedOffset(r.t, []string{r.addr}, "lag", "orders", partition)
}

// lagsAt waits until the group's offset is the one wanted.
func lagsAt(r *rig, partition int32, want int64) {
	r.t.Helper()
	late := time.Now().Add(patience)
	for committed(r, partition) != want {
		if time.Now().After(late) {
			r.t.Fatalf("the group's offset is %d, want %d\n%s", committed(r, partition), want, r.log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// soonLag makes a daemon commit to its group more often.
func soonLag(o *Options) { o.Hooks.LagEvery = 10 * time.Millisecond }

// TestLag: the group has the least offset of the tasks that read a partition, as committed; the
// last one when the daemon has ended; and nobody ever reads it.
func TestLag(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream+slowerStream)
	r.lag = "lag"
	r.produce(0, 250)
	x := r.start(soonLag)
	x.published(2)
	lagsAt(r, 0, 0) // slower has no step yet
	r.produce(250, 100)
	lagsAt(r, 0, 300)
	x.end()
	x = r.start(func(o *Options) { o.Hooks.LagEvery = time.Hour })
	r.produce(350, 250)
	x.published(6)
	x.reaches("slower", 2)
	x.end() // which commits by itself
	if at := committed(r, 0); at != 600 {
		t.Errorf("the group's offset is %d after the end", at)
	}
	before := r.outputOf("orders.dp")

	// Somebody sets the group back, ahead, or deletes it: the daemon does not look.
	for _, at := range []int64{0, 1 << 40} {
		must(t, r.client.CommitOffsets(t.Context(), "lag", []kafka.GroupOffset{{Topic: "orders", Next: at}}))
		x = r.start(soonLag)
		x.published(6)
		lagsAt(r, 0, 600) // committed though nothing has changed: each process says where it is
		x.end()
	}
	if !maps.Equal(r.outputOf("orders.dp"), before) {
		t.Error("the group's offset changed what was published")
	}

	// A task whose epoch is closed holds the others up no more.
	x = r.start(soonLag)
	x.until("it runs", func(s TaskStatus) bool { return s.State == stateRunning && x.d.Status()[1].State == stateRunning })
	must(t, x.controlOf("slower", "close", OpenRequest{}))
	r.produce(600, 100)
	lagsAt(r, 0, 700)
	x.end()
}

// TestLagMerged: partitions of a merged stream have offsets of their own.
func TestLagMerged(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, mergedStream, 2)
	r.lag = "lag"
	r.sendTo(0, 0, 150)
	r.sendTo(1, 0, 270)
	x := r.start(soonLag)
	x.published(1)
	x.end()
	if a, b := committed(r, 0), committed(r, 1); a != 100 || b != 100 {
		t.Errorf("the group's offsets are %d and %d, want those of the merged step", a, b)
	}
}

// TestLagRefused: a group that takes no offsets costs one warning and no release, and one that
// does not answer at most lagLast at the end.
func TestLagRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.lag = "lag"
	c := r.broker.Cluster()
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	r.produce(0, 200)
	x := r.start(soonLag)
	x.published(2)
	for h.Hits() < 3 {
		time.Sleep(time.Millisecond)
	}
	h.Remove()
	lagsAt(r, 0, 200)
	if n := strings.Count(r.log.String(), "level=WARN msg=retrying"); n != 1 || !strings.Contains(r.log.String(), "group authorization failed") {
		t.Errorf("%d warnings\n%s", n, r.log)
	}
	silent := make(chan struct{})
	t.Cleanup(func() { close(silent) })
	c.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		c.SleepControl(func() { <-silent })
		return nil, nil, false
	})
	r.produce(200, 100)
	x.published(3)
	x.stop()
	began := time.Now()
	if err := x.ends(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > lagLast+patience/6 {
		t.Errorf("a silent coordinator held up the end by %v", took)
	}
}

// TestLagTake: the least of several tasks, what changed or all, and once the last word of tasks
// that have gone.
func TestLagTake(t *testing.T) {
	g := &lagReport{soon: make(chan struct{}, 1), at: map[lagKey]map[core.Task]int64{}, last: map[lagKey]int64{}, sent: map[lagKey]int64{}}
	reached := func(stream string, offsets ...int64) {
		cp, m := &checkpoint{}, &core.Manifest{Source: core.Source{Topic: "t", Partition: 7}}
		if len(offsets) == 1 {
			cp.position.Next = offsets[0]
		} else {
			for i, next := range offsets {
				cp.parts = append(cp.parts, partPosition{partition: 2*i + 5, position: kafka.Position{Next: next}})
			}
		}
		g.reached(core.Task{Stream: stream}, m, cp)
	}
	want := func(all bool, pairs ...int64) {
		t.Helper()
		list := g.take(all)
		var got []int64
		for _, o := range list {
			if g.at[lagKey{"t", int(o.Partition)}] != nil {
				g.sent[lagKey{"t", int(o.Partition)}] = o.Next // as commit does
			}
			got = append(got, int64(o.Partition), o.Next)
		}
		if !slices.Equal(got, pairs) {
			t.Errorf("takes %v, want %v", got, pairs)
		}
	}
	reached("a", 100)
	want(false, 7, 100)
	want(false)
	reached("b", 40, 50) // partitions 5 and 7
	want(false, 5, 40, 7, 50)
	reached("b", 40, 120)
	want(false, 7, 100)
	want(true, 5, 40, 7, 100)
	reached("a", 90) // another log, or an older state
	want(false, 7, 90)
	g.left(core.Task{Stream: "a"})
	want(false, 7, 120)
	reached("b", 41, 121)
	g.left(core.Task{Stream: "b"})
	select {
	case <-g.soon:
	default:
		t.Error("the last offsets are not to be committed at once")
	}
	want(false, 5, 41, 7, 121)
	want(true)
	reached("a", 121) // the partition comes back, and another process may have written meanwhile
	want(false, 7, 121)
	var off *lagReport
	off.reached(core.Task{}, nil, nil)
	off.left(core.Task{})
	off.start()()
}

// TestLagInstances: each instance commits for the partitions that it has, under a group beside
// that of the instances.
func TestLagInstances(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := groupRig(t, partitions, "")
	r.lag = "lag"
	r.begin()
	for p := range partitions {
		r.sendTo(p, 0, 100*(p+1))
	}
	a := r.instance("a").start(soonLag)
	for p := range partitions {
		lagsAt(r, int32(p), int64(100*(p+1)))
	}
	b := r.instance("b").start(soonLag)
	late := time.Now().Add(patience)
	for len(b.d.Status()) == 0 || len(a.d.Status()) == partitions {
		if time.Now().After(late) {
			t.Fatalf("b has nothing\n%s\n%s", a.r.log, b.r.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for p := range partitions {
		r.sendTo(p, 100*(p+1), 100)
	}
	for p := range partitions {
		lagsAt(r, int32(p), int64(100*(p+2)))
	}
	a.end()
	for p := range partitions {
		r.sendTo(p, 100*(p+2), 100)
	}
	for p := range partitions {
		lagsAt(r, int32(p), int64(100*(p+3)))
	}
	b.end()
	for p := range partitions {
		if at := committed(r, int32(p)); at != int64(100*(p+3)) {
			t.Errorf("partition %d is at %d after the end", p, at)
		}
	}
}
