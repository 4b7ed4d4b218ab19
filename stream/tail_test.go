package stream

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
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestSharedOutput: of two tasks that publish into one partition, the one whose release
// somebody else wrote stops before its next one. The other goes on.
func TestSharedOutput(t *testing.T) {
	t.Parallel()
	for key, says := range map[string]string{
		"orders/1/1/3":    "orders/1/1/3 differs",
		"orders/1/1/11":   "orders/1/1/11 differs",
		"orders/1/1/9999": "whose records the input does not have",
		"orders/1/2/1":    "epoch 2, which this ledger does not know",
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, with(ordersStream, `topic = "orders"`, `topic = "wide", partition = [0, 1]`))
			must(t, r.client.CreateTopic(t.Context(), "wide", 2, nil))
			produce := func(first, n int) {
				for p := range 2 {
					var list []kafka.Message
					for i := range n {
						list = append(list, kafka.Message{Value: orderRecord(first + i), Time: time.UnixMilli(1)})
					}
					_, err := r.client.Produce(t.Context(), "wide", int32(p), list)
					must(t, err)
				}
			}
			var x *running
			both := func(step uint64) func(TaskStatus) bool {
				return func(TaskStatus) bool {
					return !slices.ContainsFunc(x.d.Status(), func(s TaskStatus) bool { return s.Step < step || s.Outbox > 0 })
				}
			}
			produce(0, 250)
			x = r.start()
			x.until("two steps", both(2))
			produce(250, 800)
			x.until("ten steps", both(10))
			r.forge("{}", key)
			produce(1050, 200)
			x.until("the halt", func(TaskStatus) bool { return x.d.Status()[1].State == stateHalted })
			if s := x.d.Status()[1]; s.Reason != haltOutput || !strings.Contains(s.Message, says) {
				t.Errorf("halted with %q: %s", s.Reason, s.Message)
			}
			x.until("the other", func(s TaskStatus) bool { return s.Step == 12 && s.Outbox == 0 })
			for _, p := range r.output("orders.dp") {
				if p.step > 10 && p.value != "{}" && strings.Contains(p.key, "orders/1/") {
					t.Errorf("release %s left after the stray one", p.key)
				}
			}
			x.endHalted()
		})
	}
}

// TestTail: what a task gets of a tail is what it would have read by itself.
func TestTail(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "out", 1, nil))
	tails := tails{client: r.client}
	type reader struct {
		task core.Task
		tail *tail
		next int64
		got  []released
	}
	var readers []*reader
	for i := range 3 {
		task := core.Task{Stream: "s", Partition: i}
		readers = append(readers, &reader{task: task, tail: tails.join(config.Output{Topic: "out"}, task)})
	}
	if _, _, ok := tails.join(config.Output{Topic: "other"}, readers[0].task).since(t.Context(), readers[0].task, 0); ok {
		t.Error("a task alone is served")
	}
	own := func(from int64, task core.Task) (list []released, end int64) {
		end = from
		must(t, r.client.ReadBack(t.Context(), "out", 0, from, func(rec *kafka.Record) error {
			end = rec.Offset + 1
			if _, x, ok := releasedIn(rec, func(t core.Task) bool { return t == task }); ok {
				list = append(list, x)
			}
			return nil
		}))
		return list, end
	}
	p := kafkatest.NewProducer(t, []string{r.addr}, "out", 0, "")
	rng := rand.New(rand.NewPCG(9, 9))
	served := 0
	for step := range 300 {
		key := core.Identity(core.Task{Stream: "s", Partition: rng.IntN(4)}, 1, uint64(step+1))
		if rng.IntN(5) == 0 {
			key = "none"
		}
		p.Send(kafkatest.Record{Key: []byte(key), Value: fmt.Append(nil, step)})
		x := readers[rng.IntN(3)]
		list, end, ok := x.tail.since(t.Context(), x.task, x.next)
		if ok {
			served++
		} else {
			list, end = own(x.next, x.task)
		}
		if end != int64(step+1) {
			t.Fatalf("read to %d of %d", end, step+1)
		}
		x.got, x.next = append(x.got, list...), end
		if rng.IntN(40) == 0 { // as if too much had come together
			x.tail.mu.Lock()
			*x.tail.tasks[x.task] = gained{from: x.tail.next}
			x.tail.mu.Unlock()
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
	// An output that was made anew: everyone reads for himself, and then goes on.
	kafkatest.DeleteTopic(t, []string{r.addr}, "out")
	must(t, dial(t, r.addr).CreateTopic(t.Context(), "out", 1, nil))
	look := func() bool {
		_, _, ok := readers[0].tail.since(t.Context(), readers[0].task, 0)
		return ok
	}
	if look() {
		t.Error("an output that lost its end is served")
	}
	for late := time.Now().Add(patience); !look(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the new output is not served")
		}
	}
}

// TestTailSends: what tasks send together goes in one request, each learns where its messages
// are, and none of them is read again. What another writer put between them is.
func TestTailSends(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "out", 1, map[string]string{"max.message.bytes": "20000"}))
	tails := tails{client: r.client}
	const n = 20
	var all []*tail
	task := func(i int) core.Task { return core.Task{Stream: "s", Partition: i} }
	message := func(i, step, size int) kafka.Message {
		return kafka.Message{Key: []byte(core.Identity(task(i), 1, uint64(step))), Value: make([]byte, size), Time: time.UnixMilli(1)}
	}
	for i := range n {
		all = append(all, tails.join(config.Output{Topic: "out"}, task(i)))
	}
	x := all[0]
	if _, _, ok := x.since(t.Context(), task(0), 0); !ok {
		t.Fatal("the empty output is not served")
	}
	// together sends one after the other has queued up. Task i sends lists of i%3+1 messages.
	together := func(step int, size func(i int) int) (at [n][]kafka.Appended, errs [n]error) {
		x.mu.Lock()
		for x.busy {
			x.mu.Unlock()
			runtime.Gosched()
			x.mu.Lock()
		}
		x.busy = true // nobody works
		x.mu.Unlock()
		var wg sync.WaitGroup
		for i := range n {
			var list []kafka.Message
			for range i%3 + 1 {
				list = append(list, message(i, step, size(i)))
			}
			wg.Go(func() {
				at[i], errs[i] = x.send(t.Context(), task(i), math.MaxInt64, list)
			})
		}
		for queued := 0; queued < n; runtime.Gosched() {
			x.mu.Lock()
			queued = len(x.queue)
			x.mu.Unlock()
		}
		go x.work()
		wg.Wait()
		return at, errs
	}
	// holds: everyone without an error knows where its messages are, and they are there once. It
	// returns how many have one.
	holds := func(step int, at [n][]kafka.Appended, errs [n]error, wrong func(i int, err error) bool) (failed int) {
		t.Helper()
		keys, times := map[int64]string{}, map[string]int{}
		must(t, r.client.ReadBack(t.Context(), "out", 0, 0, func(rec *kafka.Record) error {
			keys[rec.Offset] = string(rec.Key)
			times[string(rec.Key)]++
			return nil
		}))
		for i := range n {
			if errs[i] != nil {
				if failed++; !wrong(i, errs[i]) {
					t.Errorf("task %d: %v", i, errs[i])
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
	if x.requests != 1 {
		t.Errorf("%d requests for what waited together", x.requests)
	}
	for i := range n {
		end := at[i][len(at[i])-1].Base + 1
		if list, known, ok := x.known(task(i), 0, end); !ok || len(list) > 0 || known < end {
			t.Errorf("task %d has to read what this process sent", i)
		}
	}
	// Another writer, behind that and so before what comes next.
	p := kafkatest.NewProducer(t, []string{r.addr}, "out", 0, "")
	p.Send(kafkatest.Record{Key: message(3, 7, 0).Key, Value: []byte("x")})
	at, errs = together(2, func(int) int { return 10 })
	holds(2, at, errs, nobody)
	if _, _, ok := x.known(task(3), 0, at[3][0].Base); ok {
		t.Error("what another writer put in between counts as known")
	}
	list, _, ok := x.since(t.Context(), task(3), 0)
	if !ok || x.reads != 1 || !slices.ContainsFunc(list, func(r released) bool { return r.step == 7 }) {
		t.Errorf("the other writer's release was not found: %v after %d reads", list, x.reads)
	}
	// One that the broker takes from nobody fails alone. The others go in smaller requests.
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
		t.Error("a message that is too large was taken")
	}
	// A broker that fails in the middle: who has no acknowledgement has an error, and sends again.
	x.most = 0
	var small []kmsg.Request // those that the topic takes, as one may be shown twice
	r.broker.Cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "out", Err: kerr.NotEnoughReplicas, When: func(q kmsg.Request) bool {
		if len(q.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records) < 20000 && !slices.Contains(small, q) {
			small = append(small, q)
		}
		return len(small) > 1 && q == small[1]
	}})
	at, errs = together(4, func(i int) int { return 1500 })
	if failed := holds(4, at, errs, func(i int, err error) bool { return kafka.Retriable(err) && at[i] == nil }); failed == 0 || failed == n {
		t.Errorf("%d of %d tasks failed, with a request that failed in the middle", failed, n)
	}
	at, errs = together(5, func(i int) int { return 1500 })
	holds(5, at, errs, nobody)
	// One who gives up before its turn is not sent.
	before := at
	x.mu.Lock()
	x.busy = true
	x.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.send(ctx, task(1), math.MaxInt64, []kafka.Message{message(1, 9, 1)}); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	x.work()
	end, err := r.client.End(t.Context(), "out", 0)
	must(t, err)
	last := int64(0)
	for _, parts := range before {
		for _, p := range parts {
			last = max(last, p.Base+int64(p.Count))
		}
	}
	if end != last {
		t.Errorf("the output ends at %d, not %d", end, last)
	}
	// A partition that was made again is another one.
	must(t, x.look())
	kafkatest.DeleteTopic(t, []string{r.addr}, "out")
	must(t, r.client.CreateTopic(t.Context(), "out", 1, nil))
	_, errs = together(6, func(int) int { return 1 })
	for _, err := range errs {
		must(t, err)
	}
	if _, _, ok := x.known(task(1), 0, 1); ok {
		t.Error("a partition that was made again counts as known")
	}
}

// TestTailGivenUp: what a task has sent goes on when the task stops, whatever becomes of the others
// in the request, and the tail knows until when. What did not leave yet does not.
func TestTailGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "orders.dp", 1, nil))
	tails := tails{client: r.client}
	var x *tail
	const n = 3
	task := func(i int) core.Task { return core.Task{Stream: "s", Partition: i} }
	for i := range n {
		x = tails.join(config.Output{Topic: "orders.dp"}, task(i))
	}
	// The broker refuses the common request, and then holds the first task's own.
	requests := 0
	held, release := r.hold("orders.dp", func(q *kmsg.ProduceRequest) (refused *kerr.Error, held bool) {
		requests++
		if requests == 1 {
			return kerr.InvalidRecord, false
		}
		return nil, requests == 2
	})
	x.mu.Lock()
	x.busy = true // nobody works
	x.mu.Unlock()
	ctx, stop := context.WithCancel(t.Context())
	var errs [n]error
	var wg sync.WaitGroup
	for i := range n {
		of := ctx // the first two stop
		if i == 2 {
			of = t.Context()
		}
		wg.Go(func() {
			_, errs[i] = x.send(of, task(i), 0, []kafka.Message{{Key: []byte(core.Identity(task(i), 1, 1)), Time: time.UnixMilli(1)}})
		})
		for queued := 0; queued <= i; runtime.Gosched() {
			x.mu.Lock()
			queued = len(x.queue)
			x.mu.Unlock()
		}
	}
	go x.work()
	<-held
	stop()
	for left := n; left > 1; runtime.Gosched() {
		x.mu.Lock()
		left = 0
		for i := range n {
			if sent := x.sent[task(i)]; len(sent) > 0 && !sent[0].gone {
				left++
			}
		}
		x.mu.Unlock()
	}
	if err := x.settled(ctx, task(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("settled before the broker has answered: %v", err)
	}
	release()
	for i := range n {
		must(t, x.settled(t.Context(), task(i)))
	}
	wg.Wait()
	if !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) || errs[2] != nil {
		t.Errorf("ended with %v", errs)
	}
	if list := r.output("orders.dp"); len(list) != 2 || list[0].key != "s/0/1/1" || list[1].key != "s/2/1/1" {
		t.Errorf("the output holds %v", list)
	}
	if len(x.sent) != 0 {
		t.Errorf("%d tasks count as sending", len(x.sent))
	}
}

// TestTailOvertaken: between a task's own look and its request, another task's look reads a
// release of it that somebody else wrote. The task compares it before anything of it leaves. The
// others go on.
func TestTailOvertaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	must(t, r.client.CreateTopic(t.Context(), "orders.dp", 1, nil))
	h := &host{client: r.client, metrics: newMetrics(false, false, "test", false), log: slog.New(slog.DiscardHandler)}
	h.tails.client = r.client
	var pubs [2]*publisher
	var batches [2][]pending
	for i := range pubs {
		task := core.Task{Stream: "orders", Partition: i}
		h.metrics.begin(task)
		g := newGuard(newOutput(newRepeater(h.log, h.metrics.kafkaError, func() {}), h.client, nil, &h.tails, task, config.Output{Topic: "orders.dp"}), nil)
		g.reset(0)
		g.epoch, g.next = 1, 0
		m := core.Message{Step: 1, Key: []byte(core.Identity(task, 1, 1)), Value: []byte("mine")}
		g.made.put(string(m.Key), core.ReleaseHash(m.Key, m.Value, m.Headers))
		pubs[i], batches[i] = newPublisher(g, newFeed(h, task, nil, func() {}), &checkpoint{}), []pending{{Message: m, time: time.UnixMilli(1)}}
	}
	looked := 0
	h.clock = func() time.Time { // called between the first task's look and its request
		if looked++; looked == 1 {
			r.forge("theirs", "orders/0/1/1")
			if err := pubs[1].out.catchUp(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return time.UnixMilli(1)
	}
	var stop *halt
	if err := pubs[0].send(t.Context(), batches[0]); !errors.As(err, &stop) || stop.reason != haltOutput || !strings.Contains(err.Error(), "orders/0/1/1 differs") {
		t.Errorf("sent: %v", err)
	}
	must(t, pubs[1].send(t.Context(), batches[1]))
	var keys []string
	for _, p := range r.output("orders.dp") {
		keys = append(keys, p.key+" "+p.value)
	}
	if got := strings.Join(keys, ", "); got != "orders/0/1/1 theirs, orders/1/1/1 mine" {
		t.Errorf("the output holds %s", got)
	}
}

// TestOpenWaitsForOwn: an epoch is opened while a release of its predecessor, which the operator
// gives up, is on its way to the broker. The opening waits for what becomes of it. So the task
// does not take the release for another writer's when it comes.
func TestOpenWaitsForOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	first := true
	held, release := r.hold("orders.dp", func(*kmsg.ProduceRequest) (*kerr.Error, bool) {
		defer func() { first = false }()
		return nil, first
	})
	r.produce(250, 50)
	<-held
	opened := make(chan error, 1)
	go func() { opened <- x.control(requestOpen, OpenRequest{DropOutbox: true}) }()
	tail := x.in.Tasks()[0].out.tail
	for waits := 0; waits == 0; time.Sleep(time.Millisecond) {
		select {
		case err := <-opened:
			t.Fatalf("opened while a release was under way: %v", err)
		default:
		}
		tail.mu.Lock()
		waits = tail.waits
		tail.mu.Unlock()
	}
	release()
	must(t, <-opened)
	r.produce(300, 300)
	x.until("epoch 2 publishes", func(s TaskStatus) bool { return s.State == stateHalted || s.Epoch == 2 && s.Step == 3 && s.Outbox == 0 })
	if s := x.d.Status()[0]; s.State == stateHalted {
		t.Errorf("halted: %s", s.Message)
	}
	x.endHalted()
	if v := r.history("orders.dp"); len(v.byKey) != 6 {
		t.Errorf("%d releases, want 3 of each epoch", len(v.byKey))
	}
}
