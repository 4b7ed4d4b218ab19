package input_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// heap is a SumLog in memory, with one log per shard.
type heap struct {
	mu      sync.Mutex
	records map[int][][]byte
	came    chan struct{}
	sums    int // sum records so far
	bytes   int // bytes of all records
}

func newHeap() *heap { return &heap{records: map[int][][]byte{}, came: make(chan struct{})} }

func (l *heap) add(shard int, records ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		if h, ok := input.ParsePartHeader(r); ok && h.Kind == input.PartSum {
			l.sums++
		}
		l.bytes += len(r)
	}
	l.records[shard] = append(l.records[shard], records...)
	close(l.came)
	l.came = make(chan struct{})
}

// count returns how many sums were written.
func (l *heap) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sums
}

// side is the log as one instance sees it.
type side struct {
	*heap
	// edit returns the records that arrive in place of a record: several to duplicate it, none to lose it. nil: no
	// change.
	edit func(h input.PartHeader, record []byte) [][]byte
	dead context.Context // when it ends, no record reaches this instance any more
}

func (s *side) Append(ctx context.Context, shard int, records [][]byte) error {
	for _, r := range records {
		if s.dead != nil && s.dead.Err() != nil {
			<-ctx.Done()
			return ctx.Err()
		}
		all := [][]byte{r}
		if h, ok := input.ParsePartHeader(r); ok && s.edit != nil {
			all = s.edit(h, r)
		}
		s.add(shard, all...)
	}
	return nil
}

func (s *side) Follow(ctx context.Context, shard int, ready func(), fn func([]byte)) error {
	s.mu.Lock()
	next := len(s.records[shard])
	s.mu.Unlock()
	ready()
	for {
		s.mu.Lock()
		fresh, came := s.records[shard][next:], s.came
		s.mu.Unlock()
		for _, r := range fresh {
			fn(r)
		}
		if next += len(fresh); len(fresh) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-came:
		}
	}
}

var testTimes = input.PartTimes{Announce: 50 * time.Millisecond, Beat: 20 * time.Millisecond, Silence: time.Second,
	Retry: time.Minute, Expire: time.Second}

// hears sets how long a coordinator waits for other instances to the longest time that a test waits, because a machine
// may be busy.
func hears(x *instance) { (*x.Times()).Silence = fixtures.Patience }

// instance is an instance that only sums partitions.
type instance struct {
	*input.SharedSummation
	d    *epoch.Process
	side *side
	said *fixtures.Journal // log of all instances of the rig
	stop context.CancelFunc
	done chan struct{}
}

// help starts an instance without state. It sums partitions for other instances.
func help(r *streamtest.Rig, log *heap, at input.Team, edits ...func(*instance)) *instance {
	r.T.Helper()
	o := r.Options()
	h := &epoch.Process{Cfg: o.Config, Key: o.Key, Log: o.Log, Client: fixtures.Dial(r.T, r.Addr),
		Memory: kafka.NewMemory(o.Config.Kafka.FetchMemory), FetchBytes: 1 << 20,
		Metrics: monitor.NewMetrics(false, false, "test", true)}
	h.Current.Store(o.Config)
	x := &instance{d: h, side: &side{heap: log}, said: r.Log, done: make(chan struct{})}
	x.SharedSummation = input.NewSharedSummation(h.PartialsOf("group", x.side, fixtures.OneShard))
	(*x.Times()) = testTimes
	for _, edit := range edits {
		edit(x)
	}
	x.Regroup(at)
	x.start(r.T)
	return x
}

func (x *instance) start(t testing.TB) {
	ctx, stop := context.WithCancel(context.Background())
	x.stop = stop
	ready := make(chan struct{})
	go func() {
		defer close(x.done)
		_ = x.Run(ctx, func() { close(ready) })
	}()
	<-ready
	t.Cleanup(x.kill)
}

// kill ends the instance without a message.
func (x *instance) kill() {
	x.stop()
	<-x.done
}

// whenAlone waits until the coordinator reads another instance's partition, or the instance has ended.
func (x *instance) whenAlone(then func()) {
	for !strings.Contains(x.said.String(), "reading it locally") {
		select {
		case <-x.done:
			return
		case <-time.After(testTimes.Beat):
		}
	}
	then()
}

// coordinates makes the rig's daemon share its merged streams.
func coordinates(r *streamtest.Rig, log *heap, at input.Team, edits ...func(*instance)) *instance {
	x := &instance{side: &side{heap: log}, done: make(chan struct{})}
	r.Prepare = func(in *stream.Inside) {
		x.d = in.Process
		x.d.Partials = input.NewSharedSummation(x.d.PartialsOf("group", x.side, fixtures.OneShard))
		(*x.d.Partials.Times()) = testTimes
		x.SharedSummation = x.d.Partials
		for _, edit := range edits {
			edit(x)
		}
		x.Regroup(at)
		x.start(r.T)
	}
	return x
}

// partialStreams holds streams whose partitions other instances may sum. The releases must not depend on which instance
// does.
var partialStreams = map[string]string{
	"moments":              fixtures.With(fixtures.MergedStream, "merge = true", "merge = true\nmerge_ahead = 2"),
	"refit":                fixtures.MergedRefit("window = 80\nstride = 100"),
	"moments by the clock": fixtures.MergedClockStream,
	"refit by the clock": fixtures.With(fixtures.MergedRefit(""), "merge = true",
		"merge = true\nstep = \"1m\"\nstep_max = 3000"),
}

// partialsOf runs a stream of five partitions to its fourth step, or to its second if steps are by the clock, and
// returns its releases. It calls the function with before the daemon starts.
func partialsOf(t testing.TB, toml string, with func(*streamtest.Rig)) (string, *streamtest.Rig) {
	t.Helper()
	r := streamtest.NewMergedRig(t, toml, 5)
	for p := range 5 {
		r.SendTo(p, 1000*p, 430)
	}
	h := streamtest.NewHand()
	clock := strings.Contains(toml, "1m")
	if clock {
		r.Boundaries = "bounds"
		h.Tick()
	}
	with(r)
	x := r.Start(h.On)
	if clock {
		x.Published(1)
		for p := range 5 {
			r.SendTo(p, 1000*p+500, 20*p)
		}
		h.Tick()
		x.Published(2)
	} else {
		x.Published(4)
	}
	x.End()
	return fmt.Sprint(r.OutputOf("orders.dp")), r
}

// TestPartials: if other instances sum partitions, the releases equal those of one process, for moments and refits,
// with steps by count and by clock. The other instances make all sums of their partitions.
func TestPartials(t *testing.T) {
	t.Parallel()
	for name, toml := range partialStreams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, steps := newHeap(), 4
			if strings.Contains(toml, "1m") {
				steps = 2
			}
			got, r := partialsOf(t, toml, func(r *streamtest.Rig) {
				help(r, log, input.Team{Generation: 1, Members: 3, Self: 1})
				help(r, log, input.Team{Generation: 1, Members: 3, Self: 2})
				coordinates(r, log, input.Team{Generation: 1, Members: 3, Self: 0}, hears)
			})
			if n := log.count(); n != 3*steps {
				t.Errorf("%d sums came from other instances, want %d", n, 3*steps)
			}
			if strings.Contains(r.Log.String(), "read here") {
				t.Error("the coordinator has read other instances' partitions")
			}
			want, _ := partialsOf(t, toml, func(*streamtest.Rig) {})
			if got != want {
				t.Error("releases differ from those of one process")
			}
		})
	}
}

// TestPartialsKafka runs TestPartials over a topic of a broker.
func TestPartialsKafka(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, partialStreams["moments"], 5)
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "group.partials", 1, nil))
	over := func(x *instance) { x.Sums = streamtest.OverKafka(r.Client) }
	log := newHeap()
	help(r, log, input.Team{Generation: 1, Members: 2, Self: 1}, over)
	coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0}, over, hears)
	x := r.Start()
	for p := range 5 {
		r.SendTo(p, 1000*p, 430)
	}
	x.Published(4)
	x.End()
	want, _ := partialsOf(t, partialStreams["moments"], func(*streamtest.Rig) {})
	if fmt.Sprint(r.OutputOf("orders.dp")) != want {
		t.Error("releases differ from those of one process")
	}
	sums := 0
	fixtures.Must(t, r.Client.ReadBack(t.Context(), "group.partials", 0, 0, func(rec *kafka.Record) error {
		if h, ok := input.ParsePartHeader(rec.Value); ok && h.Kind == input.PartSum {
			sums++
		}
		return nil
	}))
	if sums != 2*4 || strings.Contains(r.Log.String(), "read here") {
		t.Errorf("%d sums came from the other instance, want 8", sums)
	}
}

// TestPartialsTrouble: faults in the sums of other instances do not change the releases.
func TestPartialsTrouble(t *testing.T) {
	t.Parallel()
	toml := partialStreams["moments"]
	want, _ := partialsOf(t, toml, func(*streamtest.Rig) {})
	only := func(f func(h input.PartHeader, r []byte) [][]byte) func(input.PartHeader, []byte) [][]byte {
		return func(h input.PartHeader, r []byte) [][]byte {
			if h.Kind != input.PartSum {
				return [][]byte{r}
			}
			return f(h, r)
		}
	}
	for name, c := range map[string]struct {
		edit  func(x *instance) func(input.PartHeader, []byte) [][]byte
		alone bool // the coordinator reads some of the instance's partitions
	}{
		"doubled": {func(*instance) func(input.PartHeader, []byte) [][]byte {
			return func(_ input.PartHeader, r []byte) [][]byte { return [][]byte{r, r} }
		}, false},
		"in another order": {func(*instance) func(input.PartHeader, []byte) [][]byte {
			var held []byte
			return only(func(_ input.PartHeader, r []byte) [][]byte {
				if held == nil {
					held = r
					return nil
				}
				both := [][]byte{r, held}
				held = nil
				return both
			})
		}, false},
		"late": {func(x *instance) func(input.PartHeader, []byte) [][]byte {
			return only(func(h input.PartHeader, r []byte) [][]byte {
				if h.Step == 2 {
					time.AfterFunc(2*testTimes.Beat, func() { x.side.add(0, r) })
					return nil
				}
				return [][]byte{r}
			})
		}, false},
		"lost": {func(*instance) func(input.PartHeader, []byte) [][]byte {
			return only(func(h input.PartHeader, r []byte) [][]byte {
				if h.Step == 2 && h.Partition == 1 {
					return nil
				}
				return [][]byte{r}
			})
		}, true},
		"very late": {func(x *instance) func(input.PartHeader, []byte) [][]byte {
			return only(func(h input.PartHeader, r []byte) [][]byte {
				if h.Step == 1 && h.Partition == 1 {
					go x.whenAlone(func() { x.side.add(0, r) })
					return nil
				}
				return [][]byte{r}
			})
		}, true},
		"of a dead instance": {func(x *instance) func(input.PartHeader, []byte) [][]byte {
			dead, die := context.WithCancel(context.Background())
			x.side.dead = dead
			return only(func(h input.PartHeader, r []byte) [][]byte {
				if h.Step == 2 {
					die()
					return nil
				}
				return [][]byte{r}
			})
		}, true},
		"of a later version": {func(*instance) func(input.PartHeader, []byte) [][]byte {
			return func(_ input.PartHeader, r []byte) [][]byte {
				r = append([]byte(nil), r...)
				r[0]++
				return [][]byte{r}
			}
		}, true},
		"of a version with other reasons": {func(x *instance) func(input.PartHeader, []byte) [][]byte {
			return only(func(h input.PartHeader, r []byte) [][]byte {
				content, err := input.NewPartSeal(epoch.PartialsKey(x.d.Key), "group", 0).Open(r)
				fixtures.Must(t, err)
				s, err := input.ParseMergeSum(content)
				fixtures.Must(t, err)
				at := len(content) - len(s.Sum) - len(s.Work.Rejected)*8 - 8 // position of the number of reasons
				content[at]++
				r, err = input.NewPartSeal(epoch.PartialsKey(x.d.Key), "group", 0).Seal(h, content)
				fixtures.Must(t, err)
				return [][]byte{r}
			})
		}, true},
		"of another run, too": {func(*instance) func(input.PartHeader, []byte) [][]byte {
			return only(func(h input.PartHeader, r []byte) [][]byte {
				other := append([]byte(nil), r...)
				other[5] ^= 1 // a byte of its nonce
				damaged := append([]byte(nil), r...)
				damaged[len(r)-1] ^= 1
				return [][]byte{other, damaged, r[:len(r)-1], nil, []byte("no record"), r}
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := newHeap()
			got, r := partialsOf(t, toml, func(r *streamtest.Rig) {
				help(r, log, input.Team{Generation: 1, Members: 2, Self: 1},
					func(x *instance) { x.side.edit = c.edit(x) })
				if c.alone {
					coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0})
				} else {
					coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0}, hears)
				}
			})
			if got != want {
				t.Error("releases differ from those of one process")
			}
			if alone := strings.Contains(r.Log.String(), "reading it locally"); alone != c.alone {
				t.Errorf("the coordinator has read partitions of the instance: %t", alone)
			}
			if log.count() == 0 && name != "of a later version" {
				t.Error("the instance has summed nothing")
			}
		})
	}
}

// TestPartialsDiffer: the epoch stops if a sum differs from an earlier sum of the same step. The earlier one may come
// from another instance or from the coordinator. A sum of another step also stops the epoch.
func TestPartialsDiffer(t *testing.T) {
	t.Parallel()
	changed := func(t *testing.T, x *instance, r []byte) []byte {
		return changedSum(t, input.NewPartSeal(epoch.PartialsKey(x.d.Key), "group", 0), r)
	}
	for name, edit := range map[string]func(t *testing.T, x *instance, h input.PartHeader, r []byte) [][]byte{
		"than another's that waits": func(t *testing.T, x *instance, h input.PartHeader, r []byte) [][]byte {
			return [][]byte{r, changed(t, x, r)}
		},
		"than another's that was taken": func(t *testing.T, x *instance, h input.PartHeader, r []byte) [][]byte {
			other := changed(t, x, r)
			time.AfterFunc(3*testTimes.Beat, func() { x.side.add(0, other) })
			return [][]byte{r}
		},
		"than the root's own": func(t *testing.T, x *instance, h input.PartHeader, r []byte) [][]byte {
			other := changed(t, x, r)
			go x.whenAlone(func() { x.side.add(0, other) })
			return nil
		},
		"than that of its step": func(t *testing.T, x *instance, h input.PartHeader, r []byte) [][]byte {
			seal := input.NewPartSeal(epoch.PartialsKey(x.d.Key), "group", 0)
			content, err := seal.Open(r)
			fixtures.Must(t, err)
			h.Partition = 3
			again, err := seal.Seal(h, content)
			fixtures.Must(t, err)
			return [][]byte{again}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewMergedRig(t, partialStreams["moments"], 5)
			for p := range 5 {
				r.SendTo(p, 1000*p, 430)
			}
			log := newHeap()
			help(r, log, input.Team{Generation: 1, Members: 2, Self: 1}, func(x *instance) {
				x.side.edit = func(h input.PartHeader, r []byte) [][]byte {
					if h.Kind != input.PartSum || h.Partition != 1 || h.Step != 1 {
						return [][]byte{r}
					}
					return edit(t, x, h, r)
				}
			})
			coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0})
			x := r.Start()
			x.Halts(failure.Mechanism, "partition")
			x.EndHalted()
		})
	}
}

// schematic returns a merged stream of Avro records whose schemas are in a registry at url.
func schematic(url string) string {
	return fixtures.With("[registry]\nurls = [\"URL\"]\n"+partialStreams["moments"], "URL", url, `codec = "json"`,
		`codec = "avro"`)
}

// sendFramed sends n records of schema 11 to each of five partitions of "orders".
func sendFramed(r *streamtest.Rig, n int) {
	r.T.Helper()
	for p := range 5 {
		var list []kafka.Message
		for i := range n {
			list = append(list,
				kafka.Message{Value: fixtures.Framed(11, float64(i%7), float64(p), 1.5).Value, Time: time.UnixMilli(1)})
		}
		_, err := r.Client.Produce(r.T.Context(), "orders", int32(p), list)
		fixtures.Must(r.T, err)
	}
}

// TestPartialsSchemas: an instance that sums partitions for another one reads the schemas first, and periodically, as a
// task does. If its registry lacks the schemas, it sums nothing, because it must not treat the records as null.
func TestPartialsSchemas(t *testing.T) {
	t.Parallel()
	orders := fixtures.AvroOrder("amount double", "items double", "weight double")
	full, empty := srfake.New(), srfake.New()
	t.Cleanup(full.Close)
	t.Cleanup(empty.Close)
	full.SeedSchema("orders-value", 1, 11, orders)
	run := func(of *srfake.Registry, edits ...func(*instance)) (string, *instance) {
		r := streamtest.NewMergedRig(t, schematic(full.URL()), 5)
		sendFramed(r, 430)
		var helper *instance
		if of != nil {
			log := newHeap()
			helper = help(r, log, input.Team{Generation: 1, Members: 2, Self: 1}, func(x *instance) {
				c := *x.d.Cfg
				c.Registry = &config.Registry{URLs: []string{of.URL()}, Timeout: time.Second}
				var err error
				x.d.Schemas, err = connect.OpenSchemas(&c)
				fixtures.Must(t, err)
				x.d.LookEvery = 10 * time.Millisecond
			})
			coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0}, edits...)
		}
		x := r.Start()
		x.Published(4)
		x.End()
		return fmt.Sprint(r.OutputOf("orders.dp")), helper
	}
	alone, _ := run(nil)
	helped, one := run(full, hears)
	s := one.d.Config().Streams[0]
	if helped != alone {
		t.Error("releases differ if another instance helps")
	}
	if !one.d.Schemas.Subjects(s).Has(11) {
		t.Error("the helping instance has not queried the registry")
	}
	if helped, _ := run(empty); helped != alone {
		t.Error("releases differ if the helping instance's registry is empty")
	}
}

// TestPartialsDifferSchemas: if schemas are in a registry, sums of one step may differ, because the registry may have
// answered only one instance. Then the task continues with the first sum.
func TestPartialsDifferSchemas(t *testing.T) {
	t.Parallel()
	reg := srfake.New()
	t.Cleanup(reg.Close)
	reg.SeedSchema("orders-value", 1, 11, fixtures.AvroOrder("amount double", "items double", "weight double"))
	r := streamtest.NewMergedRig(t, schematic(reg.URL()), 5)
	sendFramed(r, 430)
	log := newHeap()
	help(r, log, input.Team{Generation: 1, Members: 2, Self: 1}, func(x *instance) {
		var err error
		x.d.Schemas, err = connect.OpenSchemas(x.d.Cfg)
		fixtures.Must(t, err)
		x.d.LookEvery = time.Second
		x.side.edit = func(h input.PartHeader, r []byte) [][]byte {
			if h.Kind != input.PartSum || h.Partition != 1 || h.Step != 1 {
				return [][]byte{r}
			}
			return [][]byte{r, changedSum(t, input.NewPartSeal(epoch.PartialsKey(x.d.Key), "group", 0), r)}
		}
	})
	coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0})
	x := r.Start()
	x.Published(4)
	x.End()
}

// TestPartialsRegroup: releases do not change if members come and go, or have another configuration.
func TestPartialsRegroup(t *testing.T) {
	t.Parallel()
	toml := partialStreams["moments"]
	want, _ := partialsOf(t, toml, func(*streamtest.Rig) {})
	t.Run("members come and go", func(t *testing.T) {
		t.Parallel()
		log := newHeap()
		r := streamtest.NewMergedRig(t, toml, 5)
		root := coordinates(r, log, input.Team{Generation: 1, Members: 1, Self: 0}, hears)
		x := r.Start()
		one, two := help(r, log, input.Team{}), help(r, log, input.Team{})
		teams := [][3]input.Team{
			{{Generation: 2, Members: 3, Self: 0}, {Generation: 2, Members: 3, Self: 1},
				{Generation: 2, Members: 3, Self: 2}},
			{{Generation: 3, Members: 2, Self: 1}, {Generation: 3, Members: 2, Self: 0}, {}},
			{{Generation: 4, Members: 3, Self: 2}, {Generation: 4, Members: 3, Self: 0},
				{Generation: 4, Members: 3, Self: 1}},
			{{Generation: 5, Members: 1, Self: 0}, {}, {}},
		}
		for step := range 4 {
			for i, x := range []*instance{one, root, two} { // the instances learn of the new team one after the other
				x.Regroup(teams[step][[]int{1, 0, 2}[i]])
				for p := range 5 {
					r.SendTo(p, 1000*p+100*step+33*i, 33+i/2)
				}
			}
			x.Published(uint64(step) + 1)
		}
		for p := range 5 {
			r.SendTo(p, 1000*p+400, 30)
		}
		x.End()
		if fmt.Sprint(r.OutputOf("orders.dp")) != want {
			t.Error("releases differ from those of one process")
		}
		if log.count() == 0 {
			t.Error("no instance has summed anything for the coordinator")
		}
	})
	t.Run("while a step waits for its end by the clock", func(t *testing.T) {
		t.Parallel()
		toml := partialStreams["moments by the clock"]
		want, _ := partialsOf(t, toml, func(*streamtest.Rig) {})
		log, h := newHeap(), streamtest.NewHand()
		r := streamtest.NewMergedRig(t, toml, 5)
		r.Boundaries = "bounds"
		root := coordinates(r, log, input.Team{Generation: 1, Members: 1, Self: 0}, hears)
		other := help(r, log, input.Team{})
		for p := range 5 {
			r.SendTo(p, 1000*p, 430)
		}
		h.Tick()
		x := r.Start(h.On)
		x.Published(1)
		for _, t := range []input.Team{
			{Generation: 2, Members: 2, Self: 0}, {Generation: 3, Members: 1, Self: 0},
			{Generation: 4, Members: 2, Self: 1}, {Generation: 5, Members: 2, Self: 0},
		} {
			root.Regroup(t)
			other.Regroup(input.Team{Generation: t.Generation, Members: t.Members, Self: 1 - t.Self})
			time.Sleep(5 * time.Millisecond)
		}
		for p := range 5 {
			r.SendTo(p, 1000*p+500, 20*p)
		}
		h.Tick()
		x.Published(2)
		x.End()
		if fmt.Sprint(r.OutputOf("orders.dp")) != want {
			t.Error("releases differ from those of one process")
		}
		if strings.Contains(r.Log.String(), "read here") || log.count() == 0 {
			t.Errorf("%d sums of the other instance\n%s", log.count(), r.Log)
		}
	})
	t.Run("another configuration", func(t *testing.T) {
		t.Parallel()
		log := newHeap()
		got, r := partialsOf(t, toml, func(r *streamtest.Rig) {
			help(r.Sibling(strings.Replace(toml, "clip = 1.0", "clip = 2.0", 1)), log,
				input.Team{Generation: 1, Members: 2, Self: 1})
			coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0})
		})
		if got != want || log.count() != 0 || !strings.Contains(r.Log.String(), "reading it locally") {
			t.Errorf("%d sums of an instance with another configuration", log.count())
		}
	})
}

// TestPartialsEpochs: while another instance keeps running, epochs end and begin, and the coordinator restarts with a
// new nonce. Releases, and the counts of unreadable records, equal those of one process.
func TestPartialsEpochs(t *testing.T) {
	t.Parallel()
	run := func(others bool) (releases string, counted []string, log *heap) {
		r := streamtest.NewMergedRig(t,
			fixtures.With(partialStreams["moments"], "step = 100\n",
				"step = 100\nhorizon = 2\non_horizon = \"rollover\"\n"), 4)
		log = newHeap()
		if others {
			help(r, log, input.Team{Generation: 1, Members: 2, Self: 1})
			coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0}, hears)
		}
		feed := func(first, n int) {
			for p := range 4 {
				_, err := r.Client.Produce(t.Context(), "orders", int32(p), []kafka.Message{
					{Value: []byte("no JSON"), Time: time.UnixMilli(1)},
					{Value: []byte(`{"amount": 1}`), Time: time.UnixMilli(1)}})
				fixtures.Must(t, err)
				r.SendTo(p, 1000*p+first, n-2)
			}
		}
		x := r.Start()
		said := func() string { return r.Log.String() }
		feed(0, 230)
		r.Awaits("orders.dp", 2, said)
		feed(300, 100)
		r.Awaits("orders.dp", 3, said)
		x.End()
		feed(500, 100)
		x = r.Start()
		r.Awaits("orders.dp", 4, said)
		feed(700, 100)
		r.Awaits("orders.dp", 5, said)
		_, metrics := x.Get("/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "streamdp_records") {
				counted = append(counted, line)
			}
		}
		counted = append(counted, fmt.Sprint(*x.D.Status()[0].NotPrivate))
		x.End()
		if strings.Contains(r.Log.String(), "read here") {
			t.Errorf("the coordinator has read other instances' partitions\n%s", r.Log)
		}
		return fmt.Sprint(r.OutputOf("orders.dp")), counted, log
	}
	got, counted, log := run(true)
	want, all, _ := run(false)
	if got != want {
		t.Error("releases differ from those of one process")
	}
	if !slices.Equal(counted, all) || !strings.Contains(fmt.Sprint(all), "malformed:8") {
		t.Errorf("counted %q, one process %q", counted, all)
	}
	if n := log.count(); n < 2*5 {
		t.Errorf("%d sums came from the other instance, want 10", n)
	}
}

// TestPartialsTroubleEnds: when another instance takes over a partition whose fetch was being retried, the coordinator
// no longer shows that retry.
func TestPartialsTroubleEnds(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, partialStreams["moments"], 2)
	var heals atomic.Bool
	r.Broker.Cluster().ControlKey(int16(kmsg.Fetch), func(q kmsg.Request) (kmsg.Response, error, bool) {
		r.Broker.Cluster().KeepControl()
		for _, topic := range q.(*kmsg.FetchRequest).Topics {
			for _, p := range topic.Partitions {
				if topic.Topic == "orders" && p.Partition == 1 && !heals.Load() {
					answer := q.ResponseKind().(*kmsg.FetchResponse)
					answer.Topics = []kmsg.FetchResponseTopic{{Topic: topic.Topic, TopicID: topic.TopicID,
						Partitions: []kmsg.FetchResponseTopicPartition{
							{Partition: p.Partition, ErrorCode: kerr.NotLeaderForPartition.Code}}}}
					return answer, nil, true
				}
			}
		}
		return nil, nil, false
	})
	log := newHeap()
	other := help(r, log, input.Team{})
	root := coordinates(r, log, input.Team{Generation: 1, Members: 1, Self: 0}, hears)
	x := r.Start()
	x.Until("trouble", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
	root.Regroup(input.Team{Generation: 2, Members: 2, Self: 0})
	x.Until("none", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	heals.Store(true)
	other.Regroup(input.Team{Generation: 2, Members: 2, Self: 1})
	r.SendTo(0, 0, 100)
	r.SendTo(1, 1000, 100)
	x.Published(1)
	x.End()
}

// TestPartialsRetention: if a reader of the topic of sums finds its position deleted, it continues with later records.
func TestPartialsRetention(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, partialStreams["moments"], 2)
	fixtures.Must(t, r.Broker.CreateTopic(t.Context(), "group.partials", 1, nil))
	// The record belongs to a job without partitions, so it is parsed and has no effect.
	seal := input.NewPartSeal(epoch.PartialsKey(connect.InsecureKey(r.Seed)), "group", 0)
	record, err := seal.Seal(input.PartHeader{Kind: input.PartAlive, Pieces: 1}, (&input.MergeAlive{}).Encode())
	fixtures.Must(t, err)
	log := &gate{SumLog: streamtest.OverKafka(r.Client), came: make(chan struct{}, 100), hold: make(chan struct{})}
	x := help(r, newHeap(), input.Team{Generation: 1, Members: 2, Self: 1}, func(x *instance) { x.Sums = log })
	write := func() {
		t.Helper()
		if !x.Write(t.Context(), 0, [][]byte{record}, func() {}) {
			t.Fatal("no record could be written")
		}
	}
	write()
	<-log.came // the reader waits at its first record
	for range 5 {
		fixtures.Must(t, log.Append(t.Context(), 0, [][]byte{record}))
	}
	kafkatest.DeleteRecords(t, r.Broker.Addrs(), "group.partials", 0, 6)
	close(log.hold)
	for late := time.After(fixtures.Patience); ; {
		write()
		select {
		case <-log.came:
			return
		case <-late:
			t.Fatalf("no record arrives\n%s", r.Log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// gate is a log whose reader is held at the first record that it reads.
type gate struct {
	input.SumLog
	came, hold chan struct{}
}

func (g *gate) Follow(ctx context.Context, shard int, ready func(), fn func([]byte)) error {
	return g.SumLog.Follow(ctx, shard, ready, func(r []byte) {
		fn(r)
		g.came <- struct{}{}
		<-g.hold
	})
}

// TestPartialsOffered: an instance takes no job of another generation, and no job that gives it no partition. A new
// generation ends its jobs. If several coordinators announce jobs of one stream, although only one can own it, the
// instance works for the two that it heard last.
func TestPartialsOffered(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, partialStreams["moments"], 2)
	x := help(r, newHeap(), input.Team{Generation: 7, Members: 2, Self: 1})
	offer := func(nonce byte, job input.MergeJob) {
		job.Stream, job.Ahead, job.Manifest = "orders", 1, []byte("none")
		job.At = append(job.At, input.MergePlace{Member: 0}, input.MergePlace{Member: 1})
		x.Offered(0, input.NewPartSeal(epoch.PartialsKey(x.d.Key), "group", 0), input.PartHeader{Job: [16]byte{nonce}},
			&job, input.Team{Generation: 7, Members: 2, Self: 1})
	}
	has := func(want ...byte) {
		t.Helper()
		(*x.Mu()).Lock()
		defer (*x.Mu()).Unlock()
		var got []byte
		for nonce := range *x.Workers() {
			got = append(got, nonce[0])
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("jobs %v, want %v", got, want)
		}
	}
	offer(1, input.MergeJob{Generation: 6, Members: 2})
	offer(2, input.MergeJob{Generation: 8, Members: 2})
	offer(3, input.MergeJob{Generation: 7, Members: 3})
	has()
	offer(4, input.MergeJob{Generation: 7, Members: 2})
	offer(4, input.MergeJob{Generation: 7, Members: 2})
	has(4)
	offer(5, input.MergeJob{Generation: 7, Members: 2})
	time.Sleep(time.Millisecond)
	offer(4, input.MergeJob{Generation: 7, Members: 2})
	offer(6, input.MergeJob{Generation: 7, Members: 2})
	has(4, 6)
	x.Regroup(input.Team{Generation: 8, Members: 2, Self: 1})
	has()
}

// TestPartialsAhead: a worker writes only the permitted number of sums beyond the last merged step, and the rest when
// the coordinator continues.
func TestPartialsAhead(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"moments": input.MostPartsAhead, "refit": 4} {
		r := streamtest.NewMergedRig(t, partialStreams[name], 2)
		log := newHeap()
		help(r, log, input.Team{Generation: 1, Members: 2, Self: 1})
		coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0}, hears)
		x := r.Start()
		r.SendTo(1, 1000, 4000)
		wait := func(n int) {
			t.Helper()
			for late := time.Now().Add(fixtures.Patience); log.count() < n; time.Sleep(time.Millisecond) {
				if time.Now().After(late) {
					t.Fatalf("%s: %d sums, want %d\n%s", name, log.count(), n, r.Log)
				}
			}
			time.Sleep(4 * testTimes.Beat)
			if log.count() != n {
				t.Errorf("%s: %d sums, want %d", name, log.count(), n)
			}
		}
		wait(most)
		r.SendTo(0, 0, 500)
		x.Published(5)
		wait(most + 5)
		x.End()
	}
}

// TestPartialsSize: the size of a sum, which is visible without the key, does not depend on the records.
func TestPartialsSize(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"moments", "refit"} {
		sizes := func(value func(i int) []byte) (all []int) {
			r := streamtest.NewMergedRig(t, partialStreams[name], 2)
			log := newHeap()
			help(r, log, input.Team{Generation: 1, Members: 2, Self: 1})
			coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0}, hears)
			for p := range int32(2) {
				list := make([]kafka.Message, 100)
				for i := range list {
					list[i] = kafka.Message{Value: value(i), Time: time.UnixMilli(1)}
				}
				_, err := r.Client.Produce(t.Context(), "orders", p, list)
				fixtures.Must(t, err)
			}
			x := r.Start()
			x.Published(1)
			x.End()
			log.mu.Lock()
			defer log.mu.Unlock()
			for _, record := range log.records[0] {
				if h, ok := input.ParsePartHeader(record); ok && h.Kind == input.PartSum {
					all = append(all, len(record))
				}
			}
			return all
		}
		some := sizes(fixtures.OrderRecord)
		other := sizes(func(i int) []byte {
			if i%2 == 0 {
				return []byte("none")
			}
			return []byte(`{"amount": 1e9, "items": -1e9, "weight": 0}`)
		})
		if !slices.Equal(some, other) || len(some) != 1 {
			t.Errorf("%s: sums of %v and %v bytes", name, some, other)
		}
	}
}

// TestPartialsBound: a coordinator keeps no more sums of a partition than may wait, whole or in pieces, and compares
// repeated sums with the last ones that it accepted.
func TestPartialsBound(t *testing.T) {
	t.Parallel()
	g := &input.Coordinator{R: &input.Feed{S: &config.Stream{}, Now: time.Now}, Step: 10, Ahead: 4,
		Inbox: []input.PartitionInbox{{
			Next: 11, Held: map[uint64]*input.MergeSum{}, Pieces: map[uint64]*input.Pieces{},
			Known: map[uint64][32]byte{}, Came: make(chan struct{}, 1),
		}}}
	b := &g.Inbox[0]
	content := append((&input.MergeSum{}).Begin(nil), "sum"...)
	for step := range uint64(100) {
		fixtures.Must(t, g.TakeSum(input.PartHeader{Kind: input.PartSum, Step: step, Pieces: 1}, content))
	}
	if len(b.Held) != 4 || b.Held[11] == nil || b.Held[14] == nil {
		t.Errorf("%d sums are held", len(b.Held))
	}
	clear(b.Held)
	for step := range uint64(100) {
		fixtures.Must(t, g.TakeSum(input.PartHeader{Kind: input.PartSum, Step: step, Pieces: 2}, content[:9]))
	}
	if len(b.Pieces) > 4 {
		t.Errorf("pieces of %d sums are held", len(b.Pieces))
	}
	fixtures.Must(t, g.TakeSum(input.PartHeader{Kind: input.PartSum, Step: 12, Piece: 1, Pieces: 2}, content[9:]))
	if b.Held[12] == nil || string(b.Held[12].Sum) != "sum" {
		t.Error("two pieces do not give a sum")
	}
	for step := range uint64(3 * input.KeptSums) {
		b.Know(step, [32]byte{1})
	}
	if len(b.Known) != input.KeptSums {
		t.Errorf("the hashes of %d sums are kept", len(b.Known))
	}
}

// TestPartialsRetry: after the loss of a sum, the coordinator reads the partition itself for a while. Then the
// partition goes back to its member.
func TestPartialsRetry(t *testing.T) {
	t.Parallel()
	r := streamtest.NewMergedRig(t, partialStreams["moments"], 2)
	log := newHeap()
	lost := false
	help(r, log, input.Team{Generation: 1, Members: 2, Self: 1}, func(x *instance) {
		x.side.edit = func(h input.PartHeader, record []byte) [][]byte {
			if h.Kind == input.PartSum && !lost {
				lost = true
				return nil
			}
			return [][]byte{record}
		}
	})
	coordinates(r, log, input.Team{Generation: 1, Members: 2, Self: 0},
		func(x *instance) { (*x.Times()).Retry = 10 * time.Millisecond })
	x := r.Start()
	step := 0
	for late := time.Now().Add(fixtures.Patience); log.count() < 3; step++ {
		if time.Now().After(late) {
			t.Fatalf("the coordinator does not let others read again\n%s", r.Log)
		}
		r.SendTo(0, 100*step, 100)
		r.SendTo(1, 1000+100*step, 100)
		x.Published(uint64(step) + 1)
	}
	x.End()
	if !strings.Contains(r.Log.String(), "reading it locally") {
		t.Error("the coordinator has not read the partition")
	}
	alone := streamtest.NewMergedRig(t, partialStreams["moments"], 2)
	alone.SendTo(0, 0, 100*step)
	alone.SendTo(1, 1000, 100*step)
	y := alone.Start()
	y.Published(uint64(step))
	y.End()
	if fmt.Sprint(alone.OutputOf("orders.dp")) != fmt.Sprint(r.OutputOf("orders.dp")) {
		t.Error("releases differ from those of one process")
	}
}

// changedSum returns a sum record whose first integer is one larger, as from a broken processor.
func changedSum(t *testing.T, seal *input.PartSeal, r []byte) []byte {
	t.Helper()
	h, _ := input.ParsePartHeader(r)
	content, err := seal.Open(r)
	fixtures.Must(t, err)
	s, err := input.ParseMergeSum(content)
	fixtures.Must(t, err)
	s.Sum = append([]byte(nil), s.Sum...)
	s.Sum[5*8+3*8]++ // after its header
	again, err := seal.Seal(h, append(s.Begin(nil), s.Sum...))
	fixtures.Must(t, err)
	return again
}
