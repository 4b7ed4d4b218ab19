package output_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readCounter is a disk that counts the files and directories that are read.
type readCounter struct {
	state.Disk
	reads atomic.Int64
	look  func(dir string) // called before a directory is read
}

func (d *readCounter) ReadFile(name string) ([]byte, error) {
	d.reads.Add(1)
	return d.Disk.ReadFile(name)
}

func (d *readCounter) ReadDir(dir string) ([]string, error) {
	d.reads.Add(1)
	d.look(dir)
	return d.Disk.ReadDir(dir)
}

// TestWorkOfManyTasks counts the work of a process with many tasks, to detect work that grows with the square of their
// number. It counts the files read when all tasks open epochs and when the process restarts, the requests that publish
// releases, the readings of the output, the checks of plans, and the wake-ups while idle.
func TestWorkOfManyTasks(t *testing.T) {
	t.Parallel()
	const n, rounds = 40, 3
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Itoa(i)
	}
	r := streamtest.NewRig(t,
		fixtures.With(fixtures.OrdersStream, `topic = "orders"`,
			`topic = "in", partition = [`+strings.Join(list, ", ")+`]`, "step   = 100", "step = 1"))
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "in", n, nil))
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "orders.dp", 1, nil))
	r.Commit = "20ms"
	count := func(key kmsg.Key) *kfake.FaultHandle {
		return r.Broker.Cluster().Fault(
			kfake.Fault{Keys: []kmsg.Key{key}, Topic: "orders.dp", Count: -1, Observe: true})
	}
	reads, looks, sends := count(kmsg.Fetch), count(kmsg.ListOffsets), count(kmsg.Produce)
	disk := &readCounter{Disk: state.OS{}}
	r.Disk = disk
	var woken atomic.Int64
	clock := func(o *stream.Options) {
		o.Hooks.Clock = func() time.Time {
			woken.Add(1)
			return time.Now()
		}
	}
	all := func(x *streamtest.Running, what string, ok func(monitor.TaskStatus) bool) {
		t.Helper()
		for late := time.Now().Add(fixtures.Patience); ; time.Sleep(time.Millisecond) {
			left := 0
			for _, s := range x.D.Status() {
				if !ok(s) {
					left++
				}
			}
			if left == 0 {
				return
			}
			if time.Now().After(late) {
				t.Fatalf("%d of %d tasks do not reach: %s\n%s", left, n, what, r.Log)
			}
		}
	}

	// Every task opens an epoch. All of them ask whether the ledger is the newest before the first one gets an answer.
	inside := make(chan *stream.Inside, 1)
	r.Prepare = func(in *stream.Inside) { inside <- in }
	opened := 0
	disk.look = func(dir string) {
		if !strings.HasSuffix(dir, "/tasks") {
			return
		}
		if opened++; opened > 1 {
			return
		}
		in := <-inside
		fixtures.Gathered(func() int {
			return in.Own.Evidence.Waiting()
		}, n-1)
	}
	x := r.Start(clock)
	all(x, "running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if opened != 2 || disk.reads.Load() > 30*n {
		t.Errorf("%d openings read %d files and directories, those of all tasks %d times", n, disk.reads.Load(), opened)
	}

	// Each task makes a release in every round.
	producer, err := kgo.NewClient(kgo.SeedBrokers(r.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	fixtures.Must(t, err)
	defer producer.Close()
	before, beforeLooks := reads.Hits(), looks.Hits()
	for round := range uint64(rounds) {
		for p := range int32(n) {
			producer.Produce(context.Background(),
				&kgo.Record{Topic: "in", Partition: p, Value: fixtures.OrderRecord(int(p))}, nil)
		}
		fixtures.Must(t, producer.Flush(t.Context()))
		all(x, "published", func(s monitor.TaskStatus) bool { return s.Step == round+1 && s.Outbox == 0 })
	}
	if reads.Hits() != before || sends.Hits() > n*rounds || looks.Hits()-beforeLooks > n*rounds {
		t.Errorf(
			"%d releases: %d requests, %d queries of the output's end, and %d readings of releases that "+
				"this process itself had published",
			n*rounds, sends.Hits(), looks.Hits()-beforeLooks, reads.Hits()-before)
	}

	// Forty ticks, if the machine is fast enough.
	before = int(woken.Load())
	time.Sleep(800 * time.Millisecond)
	if idle := int(woken.Load()) - before; idle > 10*n {
		t.Errorf("%d idle tasks looked at the clock %d times in 0.8 s", n, idle)
	}
	x.End()

	// Every task begins at its last release, and asks for the later ones.
	r.Prepare = func(in *stream.Inside) {
		tail := (*in.Process.Tails.Of())[output.TailKey{Topic: "orders.dp", Partition: 0}]
		(*tail.Past()).Busy = true // prevents reading
		go func() {
			fixtures.Gathered(tail.Asking, n)
			tail.ReadHistories()
		}()
	}
	disk.reads.Store(0)
	before = reads.Hits()
	x = r.Start(clock)
	all(x, "running again", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if files, again := disk.reads.Load(), reads.Hits()-before; files > 20*n || again < 1 || again > 4 {
		t.Errorf("%d tasks that start again read %d files and directories, and the output with %d requests", n,
			files, again)
	}
	if checked := x.In.Process.Plans.Checked(); checked != 1 {
		t.Errorf("%d tasks checked their common plan %d times", n, checked)
	}
	x.End()
}
