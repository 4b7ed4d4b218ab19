package stream_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/race"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestManyTasks runs a hundred tasks in one process, from their first epochs to one release per task and second.
// TestThousandTasks runs a thousand.
func TestManyTasks(t *testing.T) {
	t.Parallel()
	if race.Enabled {
		t.Skip("the race detector takes several times the memory and time")
	}
	f := manyTasks(t, 100, 2)
	if f.memory > 200 || f.idle > 0.1 {
		t.Errorf("%.0f MB of resident memory, %.3f of a core while idle", f.memory, f.idle)
	}
}

// TestIdleTaskSleeps: an idle task does nothing at ticks. A request, its end or a record wakes it up; it shows the work
// on records at the next tick.
func TestIdleTaskSleeps(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Commit = "10ms"
	x := r.Start()
	for round := range 3 {
		r.Produce(round*100, 100)
		step := uint64(round + 1)
		x.Published(step)
		x.Until("everything of the step is shown",
			func(s monitor.TaskStatus) bool { return s.NextOffset == int64(round+1)*100 && s.Outbox == 0 })
		changes := 0
		for idle := time.After(500 * time.Millisecond); ; {
			select {
			case <-x.Wake:
				changes++
				continue
			case <-idle:
			}
			break
		}
		// At most fifty ticks were due. The last step causes a few changes.
		if changes > 20 {
			t.Errorf("the status of an idle task changed %d times", changes)
		}
	}
	for n := range uint64(2) {
		if err := x.Control("open", epoch.OpenRequest{}); err != nil {
			t.Fatal(err)
		}
		x.Until("another epoch runs",
			func(s monitor.TaskStatus) bool { return s.Epoch == n+2 && s.State == monitor.StateRunning })
	}
	x.End()
}

// TestThousandTasks measures what a process with a thousand tasks needs. The figures are goals for a machine without
// other load.
func TestThousandTasks(t *testing.T) {
	tasks, err := strconv.Atoi(os.Getenv("STREAMDP_TASKS"))
	if err != nil {
		t.Skip("needs a machine of its own for minutes: make tasks")
	}
	if race.Enabled {
		t.Skip("the race detector takes several times the memory and time")
	}
	f := manyTasks(t, tasks, 20)
	if restart := max(f.restart, f.again); f.memory > 1000 || restart > 5*time.Second || f.idle > 0.02 {
		t.Errorf(
			"%.0f MB of resident memory, first fetch after %v, %.3f of a core while idle: must be at most "+
				"1000, 5 s, 0.02", f.memory, restart, f.idle)
	}
}

// figures are the results of manyTasks.
type figures struct {
	start, restart time.Duration // time until every task runs, with epochs to open and without
	again          time.Duration // the same after releases
	used           time.Duration // processor time in again
	memory         float64       // in MB, largest
	idle, busy     float64       // in cores
	late           time.Duration // time from the last record to the last release
}

// manyTasks runs n tasks in a process, with packed records of 16 columns and a broker in another process. Each task
// gets one step per second.
func manyTasks(t *testing.T, n, seconds int) (f figures) {
	const columns, step = 16, 50
	b := streamtest.Spawn(t, streamtest.ChildSpec{Role: "broker", Topics: []string{"other"}}).Up()
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Itoa(i)
	}
	r := streamtest.NewRigAt(t, nil, b.Addr,
		fixtures.With(fixtures.WideStream(columns, step), `topic = "in"`,
			`topic = "in", partition = [`+strings.Join(list, ", ")+`]`))
	if err := r.Client.CreateTopic(t.Context(), "in", n, nil); err != nil {
		t.Fatal(err)
	}
	r.Commit, r.Http = "200ms", "metrics = \"aggregate\"\n"
	launch := func() (*remote, time.Duration) {
		begun := time.Now()
		p := streamtest.Spawn(t, streamtest.ChildSpec{Role: "daemon", Config: string(r.Text()), Seed: r.Seed}).Up()
		x := &remote{t, p}
		x.until(fmt.Sprintf(`streamdp_task_state{state="running"} %d`, n))
		return x, time.Since(begun)
	}
	x, took := launch()
	f.start = took
	if code := x.p.Terminate(); code != 0 {
		t.Fatalf("exit code %d\n%s", code, x.p.Stderr)
	}
	x, f.restart = launch()
	time.Sleep(2 * time.Second)
	before, begun := cpuTime(t, x.p.Cmd.Process.Pid), time.Now()
	time.Sleep(3 * time.Second)
	f.idle = float64(cpuTime(t, x.p.Cmd.Process.Pid)-before) / float64(time.Since(begun))

	producer, err := kgo.NewClient(kgo.SeedBrokers(b.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	values := fixtures.PackedRecords(columns, step)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, begun = cpuTime(t, x.p.Cmd.Process.Pid), time.Now()
	for range seconds {
		for p := range n {
			for _, v := range values {
				producer.Produce(context.Background(),
					&kgo.Record{Topic: "in", Partition: int32(p), Value: v.Value}, nil)
			}
		}
		if err := producer.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	f.busy = float64(cpuTime(t, x.p.Cmd.Process.Pid)-before) / float64(time.Since(begun))
	begun = time.Now()
	x.until(fmt.Sprintf("streamdp_step %d", n*seconds))
	x.until("streamdp_outbox_releases 0")
	f.late = time.Since(begun)
	f.memory = resident(t, x.p.Cmd.Process.Pid, "VmHWM")
	begun = time.Now()
	if code := x.p.Terminate(); code != 0 {
		t.Errorf("exit code %d\n%s", code, x.p.Stderr)
	}
	stopped := time.Since(begun)
	x, f.again = launch()
	f.used = cpuTime(t, x.p.Cmd.Process.Pid)
	t.Logf(
		"%d tasks: running after %.1f s with an epoch to open, %.1f s again, and %.1f s after releases, "+
			"with %.1f s of a core; %.1f MB of resident memory at most; %.4f of a core while idle, %.2f at a release "+
			"a second; the last release %.1f s after the last second; stopped in %.1f s",
		n, f.start.Seconds(), f.restart.Seconds(), f.again.Seconds(), f.used.Seconds(), f.memory, f.idle, f.busy,
		f.late.Seconds(), stopped.Seconds())
	return f
}

// cpuTime returns the processor time that a process has used.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skip("no /proc here to measure time with")
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var ticks time.Duration
	for _, f := range fields[11:13] { // utime and stime
		v, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += time.Duration(v)
	}
	return ticks * 10 * time.Millisecond
}
