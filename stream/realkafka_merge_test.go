package stream_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/monitor"
)

// spreadLoad writes to each partition of a topic. A failing partition does not affect the others.
type spreadLoad struct {
	stop func()
	all  sync.WaitGroup
	sent [3]atomic.Int64 // acknowledged records
	// pause is held while a batch is sent to the partition.
	pause [3]sync.Mutex
}

func newSpreadLoad(t *testing.T, c *kafka.Client, topic string) *spreadLoad {
	ctx, stop := context.WithCancel(context.Background())
	l := &spreadLoad{stop: stop}
	t.Cleanup(stop)
	for p := range l.sent {
		l.all.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
				list := make([]kafka.Message, 20*(3-p)) // at different rates
				for i := range list {
					list[i] = kafka.Message{Value: fixtures.OrderRecord(int(l.sent[p].Load()) + i),
						Time: time.UnixMilli(1)}
				}
				// Unacknowledged records may be in the log, and are appended again; both daemons read the same log.
				l.pause[p].Lock()
				sending, cancel := context.WithTimeout(ctx, 30*time.Second)
				if _, err := c.Produce(sending, topic, int32(p), list); err == nil {
					l.sent[p].Add(int64(len(list)))
				}
				cancel()
				l.pause[p].Unlock()
			}
		})
	}
	return l
}

// more waits until a partition got n further records.
func (l *spreadLoad) more(t *testing.T, p int, n int64) {
	t.Helper()
	want := l.sent[p].Load() + n
	for deadline := time.Now().Add(60 * time.Second); l.sent[p].Load() < want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("partition %d got no records", p)
		}
	}
}

// TestRealKafkaMerged merges three partitions, of which one lies on a second broker. That broker, which leads the
// partition, is down for a while, also while the daemon starts. A partition is quiet for a while. The first broker is
// killed under load, twice or STREAMDP_BROKER_KILLS times, and every other time the daemon restarts. The releases equal
// those of a daemon that reads the same logs without interruption.
func TestRealKafkaMerged(t *testing.T) {
	b := kafkatest.NewReal(t)
	second := b.Second()
	kills := brokerKills(t, 2)
	in := kafkatest.Spread(t, b.Addrs, "delete", 1, 2, 1)
	site := func() *streamtest.Site {
		s := streamtest.NewSite(t, b.Addrs, in)
		s.From, s.Table = `, partition = "all"`, "merge = true\nmerge_ahead = 3"
		return s
	}
	s := site()
	s.Out = kafkatest.Spread(t, b.Addrs, "compact", 1) // not on the broker that goes down
	load := newSpreadLoad(t, s.Client, in)
	d := s.Run()
	running := func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning }
	trouble := func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying }
	another := func() {
		t.Helper()
		step := d.D.Status()[0].Step
		d.Wait("another step",
			func(s monitor.TaskStatus) bool { return s.Step > step && s.State == monitor.StateRunning })
	}
	d.Published(1)

	second.Kill()
	d.Wait("trouble with the leader that is gone", trouble)
	load.more(t, 0, 400) // the other partitions continue
	load.more(t, 2, 400)
	if s := d.D.Status()[0]; s.State != monitor.StateRetrying {
		t.Errorf("without the leader of a partition the task is %s", s.State)
	}
	d.End()
	d = s.Run()
	d.Wait("trouble after a start", trouble)
	second.Start()
	d.Wait("the leader is back", running)
	another()

	load.pause[2].Lock() // partition 2 is quiet
	quiet, err := s.Client.End(t.Context(), in, 2)
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(quiet / 100)
	load.more(t, 0, 600) // more than merge_ahead steps
	load.more(t, 1, 600)
	ends := func(p int32) uint64 {
		end, err := s.Client.End(t.Context(), in, p)
		if err != nil {
			t.Fatal(err)
		}
		return uint64(end / 100)
	}
	for p := range 2 { // the others are longer
		for ends(int32(p)) <= last {
			load.more(t, p, 100)
		}
	}
	d.Published(last)
	d.End()
	d = s.Run()
	d.Wait("it runs", running)
	load.more(t, 0, 100)
	if is := d.D.Status()[0].Step; is != last {
		t.Errorf("step %d is closed, but a partition has only %d records", is, quiet)
	}
	load.pause[2].Unlock()
	another()

	rng := rand.New(rand.NewPCG(34, 0))
	for i := range kills {
		another()
		// the kill comes at a random moment
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		b.Kill()
		if i%2 == 1 {
			d.Wait("trouble", trouble)
			d.Stop()
			<-d.Done
		}
		b.Start()
		if i%2 == 1 {
			d = s.Run()
		}
		d.Wait("it runs again", running)
	}
	load.stop()
	load.all.Wait()
	steps := min(ends(0), ends(1), ends(2))
	d.Published(steps)
	d.End()
	got := s.Output()

	again := site()
	d = again.Run()
	d.Published(steps)
	d.End()
	want := again.Output()
	for key, p := range want {
		if !p.Equal(got[key]) {
			t.Errorf("release %s:\n%s\nwithout interruption:\n%s", key, got[key].Value, p.Value)
		}
	}
	if len(got) != len(want) || uint64(len(got)) != steps {
		t.Errorf("%d releases, %d without interruption, of %d steps", len(got), len(want), steps)
	}
	t.Logf("the leader of a partition gone, a partition quiet, %d kills of the other broker: %d releases",
		kills, len(got))
}
