package output_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestSharedOutput: two tasks publish into one partition, and another writer adds a release of the first task. The
// first task stops before its next release, and the second continues.
func TestSharedOutput(t *testing.T) {
	t.Parallel()
	for key, says := range map[string]string{
		"orders/1/1/3":    "orders/1/1/3 differs",
		"orders/1/1/11":   "orders/1/1/11 differs",
		"orders/1/1/9999": "records of that step are not in the input",
		"orders/1/2/1":    "epoch 2, which is not in this ledger",
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t,
				fixtures.With(fixtures.OrdersStream, `topic = "orders"`, `topic = "wide", partition = [0, 1]`))
			fixtures.Must(t, r.Client.CreateTopic(t.Context(), "wide", 2, nil))
			produce := func(first, n int) {
				for p := range 2 {
					var list []kafka.Message
					for i := range n {
						list = append(list,
							kafka.Message{Value: fixtures.OrderRecord(first + i), Time: time.UnixMilli(1)})
					}
					_, err := r.Client.Produce(t.Context(), "wide", int32(p), list)
					fixtures.Must(t, err)
				}
			}
			var x *streamtest.Running
			both := func(step uint64) func(monitor.TaskStatus) bool {
				return func(monitor.TaskStatus) bool {
					return !slices.ContainsFunc(x.D.Status(),
						func(s monitor.TaskStatus) bool { return s.Step < step || s.Outbox > 0 })
				}
			}
			produce(0, 250)
			x = r.Start()
			x.Until("two steps", both(2))
			produce(250, 800)
			x.Until("ten steps", both(10))
			r.Forge("{}", key)
			produce(1050, 200)
			x.Until("the halt", func(monitor.TaskStatus) bool { return x.D.Status()[1].State == monitor.StateHalted })
			if s := x.D.Status()[1]; s.Reason != failure.OutputAhead || !strings.Contains(s.Message, says) {
				t.Errorf("halted with %q: %s", s.Reason, s.Message)
			}
			x.Until("the other", func(s monitor.TaskStatus) bool { return s.Step == 12 && s.Outbox == 0 })
			for _, p := range r.Output("orders.dp") {
				if p.Step > 10 && p.Value != "{}" && strings.Contains(p.Key, "orders/1/") {
					t.Errorf("release %s was published after the stray one", p.Key)
				}
			}
			x.EndHalted()
		})
	}
}

// TestTail: a task gets the same releases from a shared partition as if it read for itself.
func TestTail(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "out", 1, nil))
	tails := output.Partitions{Client: r.Client}
	type reader struct {
		task core.Task
		tail *output.Partition
		next int64
		got  []output.Released
	}
	var readers []*reader
	for i := range 3 {
		task := core.Task{Stream: "s", Partition: i}
		readers = append(readers, &reader{task: task, tail: tails.Join(config.Output{Topic: "out"}, task)})
	}
	if _, _, ok := tails.Join(config.Output{Topic: "other"}, readers[0].task).Since(t.Context(),
		readers[0].task, 0); ok {
		t.Error("a task alone in the partition is served")
	}
	own := func(from int64, task core.Task) (list []output.Released, end int64) {
		end = from
		fixtures.Must(t, r.Client.ReadBack(t.Context(), "out", 0, from, func(rec *kafka.Record) error {
			end = rec.Offset + 1
			if _, x, ok := output.ReleasedIn(rec, func(t core.Task) bool { return t == task }); ok {
				list = append(list, x)
			}
			return nil
		}))
		return list, end
	}
	p := kafkatest.NewProducer(t, []string{r.Addr}, "out", 0, "")
	rng := rand.New(rand.NewPCG(9, 9))
	served := 0
	for step := range 300 {
		key := core.Identity(core.Task{Stream: "s", Partition: rng.IntN(4)}, 1, uint64(step+1))
		if rng.IntN(5) == 0 {
			key = "none"
		}
		p.Send(kafkatest.Record{Key: []byte(key), Value: fmt.Append(nil, step)})
		x := readers[rng.IntN(3)]
		list, end, ok := x.tail.Since(t.Context(), x.task, x.next)
		if ok {
			served++
		} else {
			list, end = own(x.next, x.task)
		}
		if end != int64(step+1) {
			t.Fatalf("read to %d of %d", end, step+1)
		}
		x.got, x.next = append(x.got, list...), end
		if rng.IntN(40) == 0 { // drop the lists, as if too many releases had gathered
			(*x.tail.Mu()).Lock()
			*(*x.tail.Tasks())[x.task] = output.Gained{From: (*x.tail.Next())}
			(*x.tail.Mu()).Unlock()
		}
	}
	for _, x := range readers {
		list, _ := own(x.next, x.task)
		want, _ := own(0, x.task)
		if got := append(x.got, list...); !slices.Equal(got, want) {
			t.Errorf("task %s got\n%v, want\n%v", x.task, got, want)
		}
	}
	if served < 200 {
		t.Errorf("served %d times", served)
	}
	// The output was created again: each task reads for itself, and is then served again.
	kafkatest.DeleteTopic(t, []string{r.Addr}, "out")
	fixtures.Must(t, fixtures.Dial(t, r.Addr).CreateTopic(t.Context(), "out", 1, nil))
	look := func() bool {
		_, _, ok := readers[0].tail.Since(t.Context(), readers[0].task, 0)
		return ok
	}
	if look() {
		t.Error("an output that lost its end is served")
	}
	for late := time.Now().Add(fixtures.Patience); !look(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the new output is not served")
		}
	}
}

// TestTailSends: messages that tasks send together go in one request. Each task learns where its messages are, and
// these are not read again. A message of another writer between them is read.
func TestTailSends(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "out", 1, map[string]string{"max.message.bytes": "20000"}))
	tails := output.Partitions{Client: r.Client}
	const n = 20
	var all []*output.Partition
	task := func(i int) core.Task { return core.Task{Stream: "s", Partition: i} }
	message := func(i, step, size int) kafka.Message {
		return kafka.Message{Key: []byte(core.Identity(task(i), 1, uint64(step))), Value: make([]byte, size),
			Time: time.UnixMilli(1)}
	}
	for i := range n {
		all = append(all, tails.Join(config.Output{Topic: "out"}, task(i)))
	}
	x := all[0]
	if _, _, ok := x.Since(t.Context(), task(0), 0); !ok {
		t.Fatal("the empty output is not served")
	}
	// together queues the messages of all tasks in order, and then sends them. Task i sends i%3+1 messages.
	together := func(step int, size func(i int) int) (at [n][]kafka.Appended, errs [n]error) {
		(*x.Mu()).Lock()
		for *x.Busy() {
			(*x.Mu()).Unlock()
			runtime.Gosched()
			(*x.Mu()).Lock()
		}
		(*x.Busy()) = true // prevents work
		(*x.Mu()).Unlock()
		var wg sync.WaitGroup
		for i := range n {
			var list []kafka.Message
			for range i%3 + 1 {
				list = append(list, message(i, step, size(i)))
			}
			wg.Go(func() {
				at[i], errs[i] = x.Send(t.Context(), task(i), math.MaxInt64, list)
			})
		}
		for queued := 0; queued < n; runtime.Gosched() {
			(*x.Mu()).Lock()
			queued = len((*x.Queue()))
			(*x.Mu()).Unlock()
		}
		go x.Work()
		wg.Wait()
		return at, errs
	}
	// holds checks that each task without an error knows where its messages are, and that each message is there once.
	// It returns the number of tasks with an error.
	holds := func(step int, at [n][]kafka.Appended, errs [n]error, wrong func(i int, err error) bool) (failed int) {
		t.Helper()
		keys, times := map[int64]string{}, map[string]int{}
		fixtures.Must(t, r.Client.ReadBack(t.Context(), "out", 0, 0, func(rec *kafka.Record) error {
			keys[rec.Offset] = string(rec.Key)
			times[string(rec.Key)]++
			return nil
		}))
		for i := range n {
			if errs[i] != nil {
				if failed++; !wrong(i, errs[i]) {
					t.Errorf("task %d: unexpected result: %v", i, errs[i])
				}
				continue
			}
			if m := times[string(message(i, step, 0).Key)]; m != i%3+1 {
				t.Errorf("%d messages of task %d", m, i)
			}
			count := 0
			for _, p := range at[i] {
				for k := range int64(p.Count) {
					if keys[p.Base+k] != string(message(i, step, 0).Key) {
						t.Errorf("offset %d holds %q, not what task %d sent", p.Base+k, keys[p.Base+k], i)
					}
					count++
				}
			}
			if count != i%3+1 {
				t.Errorf("task %d was told of %d messages", i, count)
			}
		}
		return failed
	}
	nobody := func(int, error) bool { return false }
	at, errs := together(1, func(int) int { return 10 })
	holds(1, at, errs, nobody)
	if (*x.Requests()) != 1 {
		t.Errorf("%d requests for what waited together", (*x.Requests()))
	}
	for i := range n {
		end := at[i][len(at[i])-1].Base + 1
		if list, known, ok := x.Known(task(i), 0, end); !ok || len(list) > 0 || known < end {
			t.Errorf("task %d has to read what this process sent", i)
		}
	}
	// Another writer's message comes after the messages of this round, and before those of the next.
	p := kafkatest.NewProducer(t, []string{r.Addr}, "out", 0, "")
	p.Send(kafkatest.Record{Key: message(3, 7, 0).Key, Value: []byte("x")})
	at, errs = together(2, func(int) int { return 10 })
	holds(2, at, errs, nobody)
	if _, _, ok := x.Known(task(3), 0, at[3][0].Base); ok {
		t.Error("another writer's message counts as known")
	}
	list, _, ok := x.Since(t.Context(), task(3), 0)
	if !ok || (*x.Reads()) != 1 || !slices.ContainsFunc(list, func(r output.Released) bool { return r.Step == 7 }) {
		t.Errorf("the other writer's release was not found: %v after %d reads", list, (*x.Reads()))
	}
	// A message that the broker always refuses fails alone. The others go in smaller requests.
	at, errs = together(3, func(i int) int {
		if i == 5 {
			return 30_000
		}
		return 1500
	})
	if holds(3, at, errs, func(i int, err error) bool {
		large := (*kafka.TooLargeError)(nil)
		return i == 5 && errors.As(err, &large) && large.Index == 0
	}) != 1 {
		t.Error("a message that is too large was accepted")
	}
	// The broker fails in the middle of a request: tasks without an acknowledgement get an error, and send again.
	(*x.Most()) = 0
	var small []kmsg.Request // requests that the topic accepts; one may be seen twice
	r.Broker.Cluster().Fault(
		kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "out", Err: kerr.NotEnoughReplicas,
			When: func(q kmsg.Request) bool {
				if len(q.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records) < 20000 && !slices.Contains(small, q) {
					small = append(small, q)
				}
				return len(small) > 1 && q == small[1]
			}})
	at, errs = together(4, func(i int) int { return 1500 })
	if failed := holds(4, at, errs,
		func(i int, err error) bool { return kafka.Retriable(err) && at[i] == nil }); failed == 0 || failed == n {
		t.Errorf("%d of %d tasks failed, with a request that failed in the middle", failed, n)
	}
	at, errs = together(5, func(i int) int { return 1500 })
	holds(5, at, errs, nobody)
	// If a task stops waiting before its turn, its messages are not sent.
	before := at
	(*x.Mu()).Lock()
	(*x.Busy()) = true
	(*x.Mu()).Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Send(ctx, task(1), math.MaxInt64, []kafka.Message{message(1, 9, 1)}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("stopped waiting: %v", err)
	}
	x.Work()
	end, err := r.Client.End(t.Context(), "out", 0)
	fixtures.Must(t, err)
	last := int64(0)
	for _, parts := range before {
		for _, p := range parts {
			last = max(last, p.Base+int64(p.Count))
		}
	}
	if end != last {
		t.Errorf("the output ends at %d, not %d", end, last)
	}
	// If the partition was created again, it is a different one.
	fixtures.Must(t, x.Look())
	kafkatest.DeleteTopic(t, []string{r.Addr}, "out")
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "out", 1, nil))
	_, errs = together(6, func(int) int { return 1 })
	for _, err := range errs {
		fixtures.Must(t, err)
	}
	if _, _, ok := x.Known(task(1), 0, 1); ok {
		t.Error("a partition that was created again counts as known")
	}
}

// TestTailGivenUp: the messages of a stopped task that are in flight are still sent, no matter what happens to other
// messages in the request, and WaitInFlight waits for them. Messages that are not in flight yet are not sent.
func TestTailGivenUp(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "orders.dp", 1, nil))
	tails := output.Partitions{Client: r.Client}
	var x *output.Partition
	const n = 3
	task := func(i int) core.Task { return core.Task{Stream: "s", Partition: i} }
	for i := range n {
		x = tails.Join(config.Output{Topic: "orders.dp"}, task(i))
	}
	// The broker refuses the shared request, and then delays the request with only the first task's messages.
	requests := 0
	held, release := r.Hold("orders.dp", func(q *kmsg.ProduceRequest) (refused *kerr.Error, held bool) {
		requests++
		if requests == 1 {
			return kerr.InvalidRecord, false
		}
		return nil, requests == 2
	})
	(*x.Mu()).Lock()
	(*x.Busy()) = true // prevents sending
	(*x.Mu()).Unlock()
	ctx, stop := context.WithCancel(t.Context())
	var errs [n]error
	var wg sync.WaitGroup
	for i := range n {
		of := ctx // the first two stop
		if i == 2 {
			of = t.Context()
		}
		wg.Go(func() {
			_, errs[i] = x.Send(of, task(i), 0,
				[]kafka.Message{{Key: []byte(core.Identity(task(i), 1, 1)), Time: time.UnixMilli(1)}})
		})
		for queued := 0; queued <= i; runtime.Gosched() {
			(*x.Mu()).Lock()
			queued = len((*x.Queue()))
			(*x.Mu()).Unlock()
		}
	}
	go x.Work()
	<-held
	stop()
	for left := n; left > 1; runtime.Gosched() {
		(*x.Mu()).Lock()
		left = 0
		for i := range n {
			if sent := (*x.Sent())[task(i)]; len(sent) > 0 && !sent[0].Gone {
				left++
			}
		}
		(*x.Mu()).Unlock()
	}
	if err := x.WaitInFlight(ctx, task(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("WaitInFlight ended before the broker answered: %v", err)
	}
	release()
	for i := range n {
		fixtures.Must(t, x.WaitInFlight(t.Context(), task(i)))
	}
	wg.Wait()
	if !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) || errs[2] != nil {
		t.Errorf("ended with %v", errs)
	}
	if list := r.Output("orders.dp"); len(list) != 2 || list[0].Key != "s/0/1/1" || list[1].Key != "s/2/1/1" {
		t.Errorf("the output holds %v", list)
	}
	if len((*x.Sent())) != 0 {
		t.Errorf("%d tasks still have messages in flight", len((*x.Sent())))
	}
}

// TestTailOvertaken: another writer publishes a release of task A between A's look and A's request, and the look of
// task B reads it. A must compare the release before it sends anything. The other tasks continue.
func TestTailOvertaken(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	fixtures.Must(t, r.Client.CreateTopic(t.Context(), "orders.dp", 1, nil))
	h := &epoch.Process{Client: r.Client, Metrics: monitor.NewMetrics(false, false, "test", false),
		Log: slog.New(slog.DiscardHandler)}
	h.Tails.Client = r.Client
	var pubs [2]*output.Publisher
	var batches [2][]state.Message
	for i := range pubs {
		task := core.Task{Stream: "orders", Partition: i}
		h.Metrics.Begin(task)
		g := output.NewForkGuard(
			output.New(failure.NewRetrier(h.Log, h.Metrics.KafkaError, func() {}), h.Client, nil, &h.Tails, task,
				config.Output{Topic: "orders.dp"}), nil)
		g.Reset(0)
		g.Epoch, (*g.Next()) = 1, 0
		m := core.Message{Step: 1, Key: []byte(core.Identity(task, 1, 1)), Value: []byte("mine")}
		(*g.Made()).Put(string(m.Key), core.ReleaseHash(m.Key, m.Value, m.Headers))
		pubs[i], batches[i] = output.NewPublisher(g, epoch.NewFeed(h, task, nil, func() {}), &state.Checkpoint{}),
			[]state.Message{{Message: m, Time: time.UnixMilli(1)}}
	}
	looked := 0
	h.Clock = func() time.Time { // called between the first task's look and its request
		if looked++; looked == 1 {
			r.Forge("theirs", "orders/0/1/1")
			if err := (*pubs[1].Out()).CatchUp(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return time.UnixMilli(1)
	}
	var stop *failure.Halt
	if err := pubs[0].Send(t.Context(), batches[0]); !errors.As(err, &stop) || stop.Reason != failure.OutputAhead ||
		!strings.Contains(err.Error(), "orders/0/1/1 differs") {
		t.Errorf("sent: %v", err)
	}
	fixtures.Must(t, pubs[1].Send(t.Context(), batches[1]))
	var keys []string
	for _, p := range r.Output("orders.dp") {
		keys = append(keys, p.Key+" "+p.Value)
	}
	if got := strings.Join(keys, ", "); got != "orders/0/1/1 theirs, orders/1/1/1 mine" {
		t.Errorf("the output holds %s", got)
	}
}

// TestOpenWaitsForOwn: an epoch is opened while a release of the epoch before is in flight, which the operator
// discards. The opening waits for the request's result, so the task does not later take the release for another
// writer's.
func TestOpenWaitsForOwn(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	first := true
	held, release := r.Hold("orders.dp", func(*kmsg.ProduceRequest) (*kerr.Error, bool) {
		defer func() { first = false }()
		return nil, first
	})
	r.Produce(250, 50)
	<-held
	opened := make(chan error, 1)
	go func() { opened <- x.Control(task.RequestOpen, epoch.OpenRequest{DropOutbox: true}) }()
	tail := x.In.Tasks()[0].Out.Partition
	for waits := 0; waits == 0; time.Sleep(time.Millisecond) {
		select {
		case err := <-opened:
			t.Fatalf("opened while a release was in flight: %v", err)
		default:
		}
		(*tail.Mu()).Lock()
		waits = (*tail.Waits())
		(*tail.Mu()).Unlock()
	}
	release()
	fixtures.Must(t, <-opened)
	r.Produce(300, 300)
	x.Until("epoch 2 publishes", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateHalted || s.Epoch == 2 && s.Step == 3 && s.Outbox == 0
	})
	if s := x.D.Status()[0]; s.State == monitor.StateHalted {
		t.Errorf("halted: %s", s.Message)
	}
	x.EndHalted()
	if v := r.History("orders.dp"); len(v.ByKey) != 6 {
		t.Errorf("%d releases, want 3 of each epoch", len(v.ByKey))
	}
}
