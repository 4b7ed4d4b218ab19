package monitor_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// slowerStream reads the same input as OrdersStream, in longer steps.
var slowerStream = strings.NewReplacer("stream.orders", "stream.slower", "orders.dp", "slower.dp", "= 100",
	"= 300").Replace(fixtures.OrdersStream)

func committed(r *streamtest.Rig, partition int32) int64 {
	r.T.Helper()
	return kafkatest.CommittedOffset(r.T, []string{r.Addr}, "lag", "orders", partition)
}

// lagsAt waits until the group has this offset.
func lagsAt(r *streamtest.Rig, partition int32, want int64) {
	r.T.Helper()
	late := time.Now().Add(fixtures.Patience)
	for committed(r, partition) != want {
		if time.Now().After(late) {
			r.T.Fatalf("the group's offset is %d, want %d\n%s", committed(r, partition), want, r.Log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// soonLag makes a daemon commit to its group more often.
func soonLag(o *stream.Options) { o.Hooks.LagEvery = 10 * time.Millisecond }

// TestLag: the group has the smallest checkpointed offset of the tasks that read a partition, and the last such offset
// when the daemon has ended. The daemon never reads the group's offsets.
func TestLag(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream+slowerStream)
	r.Lag = "lag"
	r.Produce(0, 250)
	x := r.Start(soonLag)
	x.Published(2)
	lagsAt(r, 0, 0) // the slower stream has no step yet
	r.Produce(250, 100)
	lagsAt(r, 0, 300)
	x.End()
	x = r.Start(func(o *stream.Options) { o.Hooks.LagEvery = time.Hour })
	r.Produce(350, 250)
	x.Published(6)
	x.Reaches("slower", 2)
	x.End() // which commits
	if at := committed(r, 0); at != 600 {
		t.Errorf("the group's offset is %d after the end", at)
	}
	before := r.OutputOf("orders.dp")

	// Somebody sets the group's offset back or ahead, or deletes it: the daemon does not notice.
	for _, at := range []int64{0, 1 << 40} {
		fixtures.Must(t, r.Client.CommitOffsets(t.Context(), "lag", []kafka.GroupOffset{{Topic: "orders", Next: at}}))
		x = r.Start(soonLag)
		x.Published(6)
		lagsAt(r, 0, 600) // committed although nothing has changed, because each process commits its position at first
		x.End()
	}
	if !maps.Equal(r.OutputOf("orders.dp"), before) {
		t.Error("the group's offset changed what was published")
	}

	// A task whose epoch is closed no longer holds back the others.
	x = r.Start(soonLag)
	x.Until("it runs", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRunning && x.D.Status()[1].State == monitor.StateRunning
	})
	fixtures.Must(t, x.ControlOf("slower", "close", epoch.OpenRequest{}))
	r.Produce(600, 100)
	lagsAt(r, 0, 700)
	x.End()
}

// TestLagMerged: each partition of a merged stream has its own offset.
func TestLagMerged(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, fixtures.MergedStream, 2)
	r.Lag = "lag"
	r.SendTo(0, 0, 150)
	r.SendTo(1, 0, 270)
	x := r.Start(soonLag)
	x.Published(1)
	x.End()
	if a, b := committed(r, 0), committed(r, 1); a != 100 || b != 100 {
		t.Errorf("the group's offsets are %d and %d, want those of the merged step", a, b)
	}
}

// TestLagRefused: a group that refuses offsets causes one warning and delays no release; one that does not answer
// delays the end by at most lagLast.
func TestLagRefused(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Lag = "lag"
	c := r.Broker.Cluster()
	h := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	r.Produce(0, 200)
	x := r.Start(soonLag)
	x.Published(2)
	for h.Hits() < 3 {
		time.Sleep(time.Millisecond)
	}
	h.Remove()
	lagsAt(r, 0, 200)
	if n := strings.Count(r.Log.String(), "level=WARN msg=\"call failed: retrying\""); n != 1 ||
		!strings.Contains(r.Log.String(), "group authorization failed") {
		t.Errorf("%d warnings\n%s", n, r.Log)
	}
	silent := make(chan struct{})
	t.Cleanup(func() { close(silent) })
	c.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		c.SleepControl(func() { <-silent })
		return nil, nil, false
	})
	r.Produce(200, 100)
	x.Published(3)
	x.Stop()
	began := time.Now()
	if err := x.Ends(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > monitor.LagLast+fixtures.Patience/6 {
		t.Errorf("a silent coordinator held up the end by %v", took)
	}
}

// TestLagTake: take returns the smallest offset of several tasks, only changed offsets or all offsets, and only once
// the last offset of tasks that have left.
func TestLagTake(t *testing.T) {
	g := &monitor.LagReport{Soon: make(chan struct{}, 1), At: map[monitor.LagKey]map[core.Task]int64{},
		Last: map[monitor.LagKey]int64{}, Sent: map[monitor.LagKey]int64{}}
	reached := func(stream string, offsets ...int64) {
		cp, m := &state.Checkpoint{}, &core.Manifest{Source: core.Source{Topic: "t", Partition: 7}}
		if len(offsets) == 1 {
			cp.Position.Next = offsets[0]
		} else {
			for i, next := range offsets {
				cp.Parts = append(cp.Parts, state.Place{Partition: 2*i + 5, Position: kafka.Position{Next: next}})
			}
		}
		g.Reached(core.Task{Stream: stream}, m, cp)
	}
	want := func(all bool, pairs ...int64) {
		t.Helper()
		list := g.Take(all)
		var got []int64
		for _, o := range list {
			if g.At[monitor.LagKey{Topic: "t", Partition: int(o.Partition)}] != nil {
				g.Sent[monitor.LagKey{Topic: "t", Partition: int(o.Partition)}] = o.Next // as commit would
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
	g.Left(core.Task{Stream: "a"})
	want(false, 7, 120)
	reached("b", 41, 121)
	g.Left(core.Task{Stream: "b"})
	select {
	case <-g.Soon:
	default:
		t.Error("the last offsets are not to be committed at once")
	}
	want(false, 5, 41, 7, 121)
	want(true)
	reached("a", 121) // the partition comes back; another process may have committed meanwhile
	want(false, 7, 121)
	var off *monitor.LagReport
	off.Reached(core.Task{}, nil, nil)
	off.Left(core.Task{})
	off.Start()()
}

// TestLagInstances: each instance commits for the partitions that it has, to a consumer group that is separate from the
// group of instances.
func TestLagInstances(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := streamtest.GroupRig(t, partitions, "")
	r.Lag = "lag"
	r.Begin()
	for p := range partitions {
		r.SendTo(p, 0, 100*(p+1))
	}
	a := r.Instance("a").Start(soonLag)
	for p := range partitions {
		lagsAt(r, int32(p), int64(100*(p+1)))
	}
	b := r.Instance("b").Start(soonLag)
	late := time.Now().Add(fixtures.Patience)
	for len(b.D.Status()) == 0 || len(a.D.Status()) == partitions {
		if time.Now().After(late) {
			t.Fatalf("b has nothing\n%s\n%s", a.R.Log, b.R.Log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for p := range partitions {
		r.SendTo(p, 100*(p+1), 100)
	}
	for p := range partitions {
		lagsAt(r, int32(p), int64(100*(p+2)))
	}
	a.End()
	for p := range partitions {
		r.SendTo(p, 100*(p+2), 100)
	}
	for p := range partitions {
		lagsAt(r, int32(p), int64(100*(p+3)))
	}
	b.End()
	for p := range partitions {
		if at := committed(r, int32(p)); at != int64(100*(p+3)) {
			t.Errorf("partition %d is at %d after the end", p, at)
		}
	}
}
