package stream

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
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// heap is a log of records in memory, one for each shard.
type heap struct {
	mu      sync.Mutex
	records map[int][][]byte
	came    chan struct{}
	sums    int // records of sums so far
	bytes   int // of all records
}

func newHeap() *heap { return &heap{records: map[int][][]byte{}, came: make(chan struct{})} }

func (l *heap) add(shard int, records ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range records {
		if h, ok := parsePartHeader(r); ok && h.kind == partSum {
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

// side is what one instance sees of the log.
type side struct {
	*heap
	// edit returns what becomes of a record: several are doubled, none is lost. nil: it stays.
	edit func(h partHeader, record []byte) [][]byte
	dead context.Context // when that ends, nothing of this instance arrives any more
}

func (s *side) append(ctx context.Context, shard int, records [][]byte) error {
	for _, r := range records {
		if s.dead != nil && s.dead.Err() != nil {
			<-ctx.Done()
			return ctx.Err()
		}
		all := [][]byte{r}
		if h, ok := parsePartHeader(r); ok && s.edit != nil {
			all = s.edit(h, r)
		}
		s.add(shard, all...)
	}
	return nil
}

func (s *side) follow(ctx context.Context, shard int, ready func(), fn func([]byte)) error {
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

var testTimes = partTimes{announce: 50 * time.Millisecond, beat: 20 * time.Millisecond, silence: time.Second, retry: time.Minute, expire: time.Second}

// hears makes a root wait for other instances as long as a test does, also on a machine with more to do.
func hears(x *instance) { x.times.silence = patience }

// instance is one that only sums partitions.
type instance struct {
	*partials
	d    *host
	side *side
	said *journal // of all instances of the rig
	stop context.CancelFunc
	done chan struct{}
}

// help starts an instance without a state, which sums partitions for others.
func help(r *rig, log *heap, at team, edits ...func(*instance)) *instance {
	r.t.Helper()
	o := r.options()
	h := &host{cfg: o.Config, key: o.Key, log: o.Log, client: dial(r.t, r.addr), memory: kafka.NewMemory(o.Config.Kafka.FetchMemory), fetchBytes: 1 << 20,
		metrics: newMetrics(false, false, "test", true)}
	h.current.Store(o.Config)
	x := &instance{d: h, side: &side{heap: log}, said: r.log, done: make(chan struct{})}
	x.partials = newPartials(h.partialsOf("group", x.side, oneShard))
	x.times = testTimes
	for _, edit := range edits {
		edit(x)
	}
	x.regroup(at)
	x.start(r.t)
	return x
}

func (x *instance) start(t testing.TB) {
	ctx, stop := context.WithCancel(context.Background())
	x.stop = stop
	ready := make(chan struct{})
	go func() {
		defer close(x.done)
		_ = x.run(ctx, func() { close(ready) })
	}()
	<-ready
	t.Cleanup(x.kill)
}

// kill ends the instance without a word.
func (x *instance) kill() {
	x.stop()
	<-x.done
}

// whenAlone waits until the root reads a partition of others, or the instance has ended.
func (x *instance) whenAlone(then func()) {
	for !strings.Contains(x.said.String(), "it is read here") {
		select {
		case <-x.done:
			return
		case <-time.After(testTimes.beat):
		}
	}
	then()
}

// coordinates makes the rig's daemon share its merged streams.
func coordinates(r *rig, log *heap, at team, edits ...func(*instance)) *instance {
	x := &instance{side: &side{heap: log}, done: make(chan struct{})}
	r.prepare = func(in *Inside) {
		x.d = in.Process
		x.d.partials = newPartials(x.d.partialsOf("group", x.side, oneShard))
		x.d.partials.times = testTimes
		x.partials = x.d.partials
		for _, edit := range edits {
			edit(x)
		}
		x.regroup(at)
		x.start(r.t)
	}
	return x
}

// partialStreams are streams whose releases are the same whoever sums its partitions.
var partialStreams = map[string]string{
	"moments":              with(mergedStream, "merge = true", "merge = true\nmerge_ahead = 2"),
	"refit":                mergedRefit("window = 80\nstride = 100"),
	"moments by the clock": mergedClockStream,
	"refit by the clock":   with(mergedRefit(""), "merge = true", "merge = true\nstep = \"1m\"\nstep_max = 3000"),
}

// partialsOf runs a stream of five partitions to its fourth step, by the clock to its second, and
// returns its releases. with is called before the daemon starts.
func partialsOf(t testing.TB, toml string, with func(*rig)) (string, *rig) {
	t.Helper()
	r := newMergedRig(t, toml, 5)
	for p := range 5 {
		r.sendTo(p, 1000*p, 430)
	}
	h := newHand()
	clock := strings.Contains(toml, "1m")
	if clock {
		r.boundaries = "bounds"
		h.tick()
	}
	with(r)
	x := r.start(h.on)
	if clock {
		x.published(1)
		for p := range 5 {
			r.sendTo(p, 1000*p+500, 20*p)
		}
		h.tick()
		x.published(2)
	} else {
		x.published(4)
	}
	x.end()
	return fmt.Sprint(r.outputOf("orders.dp")), r
}

// TestPartials: partitions that other instances sum have the releases of one process: of moments and
// refits, with steps by count and by clock. All sums of partitions that are others' are theirs.
func TestPartials(t *testing.T) {
	t.Parallel()
	for name, toml := range partialStreams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, steps := newHeap(), 4
			if strings.Contains(toml, "1m") {
				steps = 2
			}
			got, r := partialsOf(t, toml, func(r *rig) {
				help(r, log, team{1, 3, 1})
				help(r, log, team{1, 3, 2})
				coordinates(r, log, team{1, 3, 0}, hears)
			})
			if n := log.count(); n != 3*steps {
				t.Errorf("%d sums came of other instances, want %d", n, 3*steps)
			}
			if strings.Contains(r.log.String(), "read here") {
				t.Error("the root has read partitions of others")
			}
			want, _ := partialsOf(t, toml, func(*rig) {})
			if got != want {
				t.Error("other releases than those of one process")
			}
		})
	}
}

// TestPartialsKafka: the same over a topic of a broker.
func TestPartialsKafka(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, partialStreams["moments"], 5)
	must(t, r.broker.CreateTopic(t.Context(), "group.partials", 1, nil))
	over := func(x *instance) { x.log = overKafka(r.client) }
	log := newHeap()
	help(r, log, team{1, 2, 1}, over)
	coordinates(r, log, team{1, 2, 0}, over, hears)
	x := r.start()
	for p := range 5 {
		r.sendTo(p, 1000*p, 430)
	}
	x.published(4)
	x.end()
	want, _ := partialsOf(t, partialStreams["moments"], func(*rig) {})
	if fmt.Sprint(r.outputOf("orders.dp")) != want {
		t.Error("other releases than those of one process")
	}
	sums := 0
	must(t, r.client.ReadBack(t.Context(), "group.partials", 0, 0, func(rec *kafka.Record) error {
		if h, ok := parsePartHeader(rec.Value); ok && h.kind == partSum {
			sums++
		}
		return nil
	}))
	if sums != 2*4 || strings.Contains(r.log.String(), "read here") {
		t.Errorf("%d sums came of the other instance, want 8", sums)
	}
}

// TestPartialsTrouble: whatever becomes of the sums of other instances, the releases are those of
// one process.
func TestPartialsTrouble(t *testing.T) {
	t.Parallel()
	toml := partialStreams["moments"]
	want, _ := partialsOf(t, toml, func(*rig) {})
	only := func(f func(h partHeader, r []byte) [][]byte) func(partHeader, []byte) [][]byte {
		return func(h partHeader, r []byte) [][]byte {
			if h.kind != partSum {
				return [][]byte{r}
			}
			return f(h, r)
		}
	}
	for name, c := range map[string]struct {
		edit  func(x *instance) func(partHeader, []byte) [][]byte
		alone bool // the root reads some partitions of the instance
	}{
		"doubled": {func(*instance) func(partHeader, []byte) [][]byte {
			return func(_ partHeader, r []byte) [][]byte { return [][]byte{r, r} }
		}, false},
		"in another order": {func(*instance) func(partHeader, []byte) [][]byte {
			var held []byte
			return only(func(_ partHeader, r []byte) [][]byte {
				if held == nil {
					held = r
					return nil
				}
				both := [][]byte{r, held}
				held = nil
				return both
			})
		}, false},
		"late": {func(x *instance) func(partHeader, []byte) [][]byte {
			return only(func(h partHeader, r []byte) [][]byte {
				if h.step == 2 {
					time.AfterFunc(2*testTimes.beat, func() { x.side.add(0, r) })
					return nil
				}
				return [][]byte{r}
			})
		}, false},
		"lost": {func(*instance) func(partHeader, []byte) [][]byte {
			return only(func(h partHeader, r []byte) [][]byte {
				if h.step == 2 && h.partition == 1 {
					return nil
				}
				return [][]byte{r}
			})
		}, true},
		"very late": {func(x *instance) func(partHeader, []byte) [][]byte {
			return only(func(h partHeader, r []byte) [][]byte {
				if h.step == 1 && h.partition == 1 {
					go x.whenAlone(func() { x.side.add(0, r) })
					return nil
				}
				return [][]byte{r}
			})
		}, true},
		"of a dead instance": {func(x *instance) func(partHeader, []byte) [][]byte {
			dead, die := context.WithCancel(context.Background())
			x.side.dead = dead
			return only(func(h partHeader, r []byte) [][]byte {
				if h.step == 2 {
					die()
					return nil
				}
				return [][]byte{r}
			})
		}, true},
		"of a later version": {func(*instance) func(partHeader, []byte) [][]byte {
			return func(_ partHeader, r []byte) [][]byte {
				r = append([]byte(nil), r...)
				r[0]++
				return [][]byte{r}
			}
		}, true},
		"of a version with other reasons": {func(x *instance) func(partHeader, []byte) [][]byte {
			return only(func(h partHeader, r []byte) [][]byte {
				content, err := newPartSeal(x.d.key, "group", 0).open(r)
				must(t, err)
				s, err := parseMergeSum(content)
				must(t, err)
				at := len(content) - len(s.sum) - len(s.work.rejected)*8 - 8 // where their number is
				content[at]++
				r, err = newPartSeal(x.d.key, "group", 0).seal(h, content)
				must(t, err)
				return [][]byte{r}
			})
		}, true},
		"of another run, too": {func(*instance) func(partHeader, []byte) [][]byte {
			return only(func(h partHeader, r []byte) [][]byte {
				other := append([]byte(nil), r...)
				other[5] ^= 1 // of its nonce
				damaged := append([]byte(nil), r...)
				damaged[len(r)-1] ^= 1
				return [][]byte{other, damaged, r[:len(r)-1], nil, []byte("no record"), r}
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := newHeap()
			got, r := partialsOf(t, toml, func(r *rig) {
				help(r, log, team{1, 2, 1}, func(x *instance) { x.side.edit = c.edit(x) })
				if c.alone {
					coordinates(r, log, team{1, 2, 0})
				} else {
					coordinates(r, log, team{1, 2, 0}, hears)
				}
			})
			if got != want {
				t.Error("other releases than those of one process")
			}
			if alone := strings.Contains(r.log.String(), "it is read here"); alone != c.alone {
				t.Errorf("the root has read partitions of the instance: %t", alone)
			}
			if log.count() == 0 && name != "of a later version" {
				t.Error("the instance has summed nothing")
			}
		})
	}
}

// TestPartialsDiffer: a sum that is another one than an earlier one of its step stops the epoch,
// whether that was another instance's or the root's own; so does one of another step.
func TestPartialsDiffer(t *testing.T) {
	t.Parallel()
	changed := func(t *testing.T, x *instance, r []byte) []byte {
		return changedSum(t, newPartSeal(x.d.key, "group", 0), r)
	}
	for name, edit := range map[string]func(t *testing.T, x *instance, h partHeader, r []byte) [][]byte{
		"than another's that waits": func(t *testing.T, x *instance, h partHeader, r []byte) [][]byte {
			return [][]byte{r, changed(t, x, r)}
		},
		"than another's that was taken": func(t *testing.T, x *instance, h partHeader, r []byte) [][]byte {
			other := changed(t, x, r)
			time.AfterFunc(3*testTimes.beat, func() { x.side.add(0, other) })
			return [][]byte{r}
		},
		"than the root's own": func(t *testing.T, x *instance, h partHeader, r []byte) [][]byte {
			other := changed(t, x, r)
			go x.whenAlone(func() { x.side.add(0, other) })
			return nil
		},
		"than that of its step": func(t *testing.T, x *instance, h partHeader, r []byte) [][]byte {
			seal := newPartSeal(x.d.key, "group", 0)
			content, err := seal.open(r)
			must(t, err)
			h.partition = 3
			again, err := seal.seal(h, content)
			must(t, err)
			return [][]byte{again}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMergedRig(t, partialStreams["moments"], 5)
			for p := range 5 {
				r.sendTo(p, 1000*p, 430)
			}
			log := newHeap()
			help(r, log, team{1, 2, 1}, func(x *instance) {
				x.side.edit = func(h partHeader, r []byte) [][]byte {
					if h.kind != partSum || h.partition != 1 || h.step != 1 {
						return [][]byte{r}
					}
					return edit(t, x, h, r)
				}
			})
			coordinates(r, log, team{1, 2, 0})
			x := r.start()
			x.halts(haltMechanism, "partition")
			x.endHalted()
		})
	}
}

// schematic returns a merged stream of Avro records whose schemas are in a registry at some address.
func schematic(url string) string {
	return with("[registry]\nurls = [\"URL\"]\n"+partialStreams["moments"], "URL", url, `codec = "json"`, `codec = "avro"`)
}

// sendFramed sends n records of schema 11 to each of five partitions of "orders".
func sendFramed(r *rig, n int) {
	r.t.Helper()
	for p := range 5 {
		var list []kafka.Message
		for i := range n {
			list = append(list, kafka.Message{Value: framed(11, float64(i%7), float64(p), 1.5).Value, Time: time.UnixMilli(1)})
		}
		_, err := r.client.Produce(r.t.Context(), "orders", int32(p), list)
		must(r.t, err)
	}
}

// TestPartialsSchemas: an instance that sums partitions for another one reads the schemas first, and by
// the clock, as a task does. Where its registry does not have them, it sums nothing, instead of rows
// that are null.
func TestPartialsSchemas(t *testing.T) {
	t.Parallel()
	orders := avroOrder("amount double", "items double", "weight double")
	full, empty := srfake.New(), srfake.New()
	t.Cleanup(full.Close)
	t.Cleanup(empty.Close)
	full.SeedSchema("orders-value", 1, 11, orders)
	run := func(of *srfake.Registry, edits ...func(*instance)) (string, *instance) {
		r := newMergedRig(t, schematic(full.URL()), 5)
		sendFramed(r, 430)
		var helper *instance
		if of != nil {
			log := newHeap()
			helper = help(r, log, team{1, 2, 1}, func(x *instance) {
				c := *x.d.cfg
				c.Registry = &config.Registry{URLs: []string{of.URL()}, Timeout: time.Second}
				var err error
				x.d.schemas, err = OpenSchemas(&c)
				must(t, err)
				x.d.lookEvery = 10 * time.Millisecond
			})
			coordinates(r, log, team{1, 2, 0}, edits...)
		}
		x := r.start()
		x.published(4)
		x.end()
		return fmt.Sprint(r.outputOf("orders.dp")), helper
	}
	alone, _ := run(nil)
	helped, one := run(full, hears)
	s := one.d.config().Streams[0]
	if helped != alone {
		t.Error("releases differ where an instance helps")
	}
	if !one.d.schemas.subjects(s).Has(11) {
		t.Error("the instance that helps has not looked at the registry")
	}
	if helped, _ := run(empty); helped != alone {
		t.Error("releases differ where the registry of the instance that helps is empty")
	}
}

// TestPartialsDifferSchemas: where schemas are in a registry, sums of one step may differ: it may not
// have answered both. Then the task goes on with the first.
func TestPartialsDifferSchemas(t *testing.T) {
	t.Parallel()
	reg := srfake.New()
	t.Cleanup(reg.Close)
	reg.SeedSchema("orders-value", 1, 11, avroOrder("amount double", "items double", "weight double"))
	r := newMergedRig(t, schematic(reg.URL()), 5)
	sendFramed(r, 430)
	log := newHeap()
	help(r, log, team{1, 2, 1}, func(x *instance) {
		var err error
		x.d.schemas, err = OpenSchemas(x.d.cfg)
		must(t, err)
		x.d.lookEvery = time.Second
		x.side.edit = func(h partHeader, r []byte) [][]byte {
			if h.kind != partSum || h.partition != 1 || h.step != 1 {
				return [][]byte{r}
			}
			return [][]byte{r, changedSum(t, newPartSeal(x.d.key, "group", 0), r)}
		}
	})
	coordinates(r, log, team{1, 2, 0})
	x := r.start()
	x.published(4)
	x.end()
}

// TestPartialsRegroup: members that come and go, or have another configuration, change nothing of
// the releases.
func TestPartialsRegroup(t *testing.T) {
	t.Parallel()
	toml := partialStreams["moments"]
	want, _ := partialsOf(t, toml, func(*rig) {})
	t.Run("members come and go", func(t *testing.T) {
		t.Parallel()
		log := newHeap()
		r := newMergedRig(t, toml, 5)
		root := coordinates(r, log, team{1, 1, 0}, hears)
		x := r.start()
		one, two := help(r, log, team{}), help(r, log, team{})
		teams := [][3]team{
			{{2, 3, 0}, {2, 3, 1}, {2, 3, 2}},
			{{3, 2, 1}, {3, 2, 0}, {}},
			{{4, 3, 2}, {4, 3, 0}, {4, 3, 1}},
			{{5, 1, 0}, {}, {}},
		}
		for step := range 4 {
			for i, x := range []*instance{one, root, two} { // they learn of it one after the other
				x.regroup(teams[step][[]int{1, 0, 2}[i]])
				for p := range 5 {
					r.sendTo(p, 1000*p+100*step+33*i, 33+i/2)
				}
			}
			x.published(uint64(step) + 1)
		}
		for p := range 5 {
			r.sendTo(p, 1000*p+400, 30)
		}
		x.end()
		if fmt.Sprint(r.outputOf("orders.dp")) != want {
			t.Error("other releases than those of one process")
		}
		if log.count() == 0 {
			t.Error("nobody has summed anything for the root")
		}
	})
	t.Run("while a step waits for its end by the clock", func(t *testing.T) {
		t.Parallel()
		toml := partialStreams["moments by the clock"]
		want, _ := partialsOf(t, toml, func(*rig) {})
		log, h := newHeap(), newHand()
		r := newMergedRig(t, toml, 5)
		r.boundaries = "bounds"
		root := coordinates(r, log, team{1, 1, 0}, hears)
		other := help(r, log, team{})
		for p := range 5 {
			r.sendTo(p, 1000*p, 430)
		}
		h.tick()
		x := r.start(h.on)
		x.published(1)
		for _, t := range []team{{2, 2, 0}, {3, 1, 0}, {4, 2, 1}, {5, 2, 0}} {
			root.regroup(t)
			other.regroup(team{t.generation, t.members, 1 - t.self})
			time.Sleep(5 * time.Millisecond)
		}
		for p := range 5 {
			r.sendTo(p, 1000*p+500, 20*p)
		}
		h.tick()
		x.published(2)
		x.end()
		if fmt.Sprint(r.outputOf("orders.dp")) != want {
			t.Error("other releases than those of one process")
		}
		if strings.Contains(r.log.String(), "read here") || log.count() == 0 {
			t.Errorf("%d sums of the other instance\n%s", log.count(), r.log)
		}
	})
	t.Run("another configuration", func(t *testing.T) {
		t.Parallel()
		log := newHeap()
		got, r := partialsOf(t, toml, func(r *rig) {
			help(r.sibling(strings.Replace(toml, "clip = 1.0", "clip = 2.0", 1)), log, team{1, 2, 1})
			coordinates(r, log, team{1, 2, 0})
		})
		if got != want || log.count() != 0 || !strings.Contains(r.log.String(), "it is read here") {
			t.Errorf("%d sums of an instance with another configuration", log.count())
		}
	})
}

// TestPartialsEpochs: epochs end and others begin, and the root starts again with another nonce, while
// another instance goes on. Releases, and what is counted of records that can't be read, are those of
// one process.
func TestPartialsEpochs(t *testing.T) {
	t.Parallel()
	run := func(others bool) (releases string, counted []string, log *heap) {
		r := newMergedRig(t, with(partialStreams["moments"], "step = 100\n", "step = 100\nhorizon = 2\non_horizon = \"rollover\"\n"), 4)
		log = newHeap()
		if others {
			help(r, log, team{1, 2, 1})
			coordinates(r, log, team{1, 2, 0}, hears)
		}
		feed := func(first, n int) {
			for p := range 4 {
				_, err := r.client.Produce(t.Context(), "orders", int32(p), []kafka.Message{
					{Value: []byte("no JSON"), Time: time.UnixMilli(1)}, {Value: []byte(`{"amount": 1}`), Time: time.UnixMilli(1)}})
				must(t, err)
				r.sendTo(p, 1000*p+first, n-2)
			}
		}
		x := r.start()
		said := func() string { return r.log.String() }
		feed(0, 230)
		r.awaits("orders.dp", 2, said)
		feed(300, 100)
		r.awaits("orders.dp", 3, said)
		x.end()
		feed(500, 100)
		x = r.start()
		r.awaits("orders.dp", 4, said)
		feed(700, 100)
		r.awaits("orders.dp", 5, said)
		_, metrics := x.get("/metrics")
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "streamdp_records") {
				counted = append(counted, line)
			}
		}
		counted = append(counted, fmt.Sprint(*x.d.Status()[0].NotPrivate))
		x.end()
		if strings.Contains(r.log.String(), "read here") {
			t.Errorf("the root has read partitions of others\n%s", r.log)
		}
		return fmt.Sprint(r.outputOf("orders.dp")), counted, log
	}
	got, counted, log := run(true)
	want, all, _ := run(false)
	if got != want {
		t.Error("other releases than those of one process")
	}
	if !slices.Equal(counted, all) || !strings.Contains(fmt.Sprint(all), "malformed:8") {
		t.Errorf("counted %q, one process %q", counted, all)
	}
	if n := log.count(); n < 2*5 {
		t.Errorf("%d sums came of the other instance, want 10", n)
	}
}

// TestPartialsTroubleEnds: a fetch that was repeated, of a partition that another instance reads by
// now, is no trouble of the root any more.
func TestPartialsTroubleEnds(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, partialStreams["moments"], 2)
	var heals atomic.Bool
	r.broker.Cluster().ControlKey(int16(kmsg.Fetch), func(q kmsg.Request) (kmsg.Response, error, bool) {
		r.broker.Cluster().KeepControl()
		for _, topic := range q.(*kmsg.FetchRequest).Topics {
			for _, p := range topic.Partitions {
				if topic.Topic == "orders" && p.Partition == 1 && !heals.Load() {
					answer := q.ResponseKind().(*kmsg.FetchResponse)
					answer.Topics = []kmsg.FetchResponseTopic{{Topic: topic.Topic, TopicID: topic.TopicID,
						Partitions: []kmsg.FetchResponseTopicPartition{{Partition: p.Partition, ErrorCode: kerr.NotLeaderForPartition.Code}}}}
					return answer, nil, true
				}
			}
		}
		return nil, nil, false
	})
	log := newHeap()
	other := help(r, log, team{})
	root := coordinates(r, log, team{1, 1, 0}, hears)
	x := r.start()
	x.until("trouble", func(s TaskStatus) bool { return s.State == stateRetrying })
	root.regroup(team{2, 2, 0})
	x.until("none", func(s TaskStatus) bool { return s.State == stateRunning })
	heals.Store(true)
	other.regroup(team{2, 2, 1})
	r.sendTo(0, 0, 100)
	r.sendTo(1, 1000, 100)
	x.published(1)
	x.end()
}

// TestPartialsRetention: a reader of the topic of sums that finds its place deleted goes on with what comes
// later.
func TestPartialsRetention(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, partialStreams["moments"], 2)
	must(t, r.broker.CreateTopic(t.Context(), "group.partials", 1, nil))
	// A record of a job that has no partition, so it is taken and nothing follows.
	seal := newPartSeal(InsecureKey(r.seed), "group", 0)
	record, err := seal.seal(partHeader{kind: partAlive, pieces: 1}, (&mergeAlive{}).encode())
	must(t, err)
	log := &gate{sumLog: overKafka(r.client), came: make(chan struct{}, 100), hold: make(chan struct{})}
	x := help(r, newHeap(), team{1, 2, 1}, func(x *instance) { x.log = log })
	write := func() {
		t.Helper()
		if !x.write(t.Context(), 0, [][]byte{record}, func() {}) {
			t.Fatal("nothing can be written")
		}
	}
	write()
	<-log.came // and holds
	for range 5 {
		must(t, log.append(t.Context(), 0, [][]byte{record}))
	}
	kafkatest.DeleteRecords(t, r.broker.Addrs(), "group.partials", 0, 6)
	close(log.hold)
	for late := time.After(patience); ; {
		write()
		select {
		case <-log.came:
			return
		case <-late:
			t.Fatalf("nothing comes\n%s", r.log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// gate is a log whose reader waits at its first record.
type gate struct {
	sumLog
	came, hold chan struct{}
}

func (g *gate) follow(ctx context.Context, shard int, ready func(), fn func([]byte)) error {
	return g.sumLog.follow(ctx, shard, ready, func(r []byte) {
		fn(r)
		g.came <- struct{}{}
		<-g.hold
	})
}

// TestPartialsOffered: what a root of another generation announces is not taken up, nor what asks nothing of
// this instance; a new generation ends what it has; and of the roots of one stream, of which all but one are
// no owners any more, the two that were heard last count.
func TestPartialsOffered(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, partialStreams["moments"], 2)
	x := help(r, newHeap(), team{7, 2, 1})
	offer := func(nonce byte, job mergeJob) {
		job.stream, job.ahead, job.manifest = "orders", 1, []byte("none")
		job.at = append(job.at, mergePlace{member: 0}, mergePlace{member: 1})
		x.offered(0, newPartSeal(x.d.key, "group", 0), partHeader{job: [16]byte{nonce}}, &job, team{7, 2, 1})
	}
	has := func(want ...byte) {
		t.Helper()
		x.mu.Lock()
		defer x.mu.Unlock()
		var got []byte
		for nonce := range x.workers {
			got = append(got, nonce[0])
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("jobs %v, want %v", got, want)
		}
	}
	offer(1, mergeJob{generation: 6, members: 2})
	offer(2, mergeJob{generation: 8, members: 2})
	offer(3, mergeJob{generation: 7, members: 3})
	has()
	offer(4, mergeJob{generation: 7, members: 2})
	offer(4, mergeJob{generation: 7, members: 2})
	has(4)
	offer(5, mergeJob{generation: 7, members: 2})
	time.Sleep(time.Millisecond)
	offer(4, mergeJob{generation: 7, members: 2})
	offer(6, mergeJob{generation: 7, members: 2})
	has(4, 6)
	x.regroup(team{8, 2, 1})
	has()
}

// TestPartialsAhead: a worker writes no more sums beyond the last merged step than it may, and the rest
// when the root goes on.
func TestPartialsAhead(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"moments": mostPartsAhead, "refit": 4} {
		r := newMergedRig(t, partialStreams[name], 2)
		log := newHeap()
		help(r, log, team{1, 2, 1})
		coordinates(r, log, team{1, 2, 0}, hears)
		x := r.start()
		r.sendTo(1, 1000, 4000)
		wait := func(n int) {
			t.Helper()
			for late := time.Now().Add(patience); log.count() < n; time.Sleep(time.Millisecond) {
				if time.Now().After(late) {
					t.Fatalf("%s: %d sums, want %d\n%s", name, log.count(), n, r.log)
				}
			}
			time.Sleep(4 * testTimes.beat)
			if log.count() != n {
				t.Errorf("%s: %d sums, want %d", name, log.count(), n)
			}
		}
		wait(most)
		r.sendTo(0, 0, 500)
		x.published(5)
		wait(most + 5)
		x.end()
	}
}

// TestPartialsSize: how many bytes a sum has, which who has no key sees too, says nothing of what the
// records are.
func TestPartialsSize(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"moments", "refit"} {
		sizes := func(value func(i int) []byte) (all []int) {
			r := newMergedRig(t, partialStreams[name], 2)
			log := newHeap()
			help(r, log, team{1, 2, 1})
			coordinates(r, log, team{1, 2, 0}, hears)
			for p := range int32(2) {
				list := make([]kafka.Message, 100)
				for i := range list {
					list[i] = kafka.Message{Value: value(i), Time: time.UnixMilli(1)}
				}
				_, err := r.client.Produce(t.Context(), "orders", p, list)
				must(t, err)
			}
			x := r.start()
			x.published(1)
			x.end()
			log.mu.Lock()
			defer log.mu.Unlock()
			for _, record := range log.records[0] {
				if h, ok := parsePartHeader(record); ok && h.kind == partSum {
					all = append(all, len(record))
				}
			}
			return all
		}
		some := sizes(orderRecord)
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

// TestPartialsBound: a root keeps no more sums of a partition than may wait, whole or in pieces, and
// compares the last ones that it took with what comes again.
func TestPartialsBound(t *testing.T) {
	t.Parallel()
	g := &mergeRoot{r: &feed{s: &config.Stream{}, now: time.Now}, step: 10, ahead: 4, inbox: []leafInbox{{
		next: 11, held: map[uint64]*mergeSum{}, pieces: map[uint64]*pieces{}, known: map[uint64][32]byte{}, came: make(chan struct{}, 1),
	}}}
	b := &g.inbox[0]
	content := append((&mergeSum{}).begin(nil), "sum"...)
	for step := range uint64(100) {
		must(t, g.takeSum(partHeader{kind: partSum, step: step, pieces: 1}, content))
	}
	if len(b.held) != 4 || b.held[11] == nil || b.held[14] == nil {
		t.Errorf("%d sums are held", len(b.held))
	}
	clear(b.held)
	for step := range uint64(100) {
		must(t, g.takeSum(partHeader{kind: partSum, step: step, pieces: 2}, content[:9]))
	}
	if len(b.pieces) > 4 {
		t.Errorf("pieces of %d sums are held", len(b.pieces))
	}
	must(t, g.takeSum(partHeader{kind: partSum, step: 12, piece: 1, pieces: 2}, content[9:]))
	if b.held[12] == nil || string(b.held[12].sum) != "sum" {
		t.Error("two pieces are no sum")
	}
	for step := range uint64(3 * keptSums) {
		b.know(step, [32]byte{1})
	}
	if len(b.known) != keptSums {
		t.Errorf("the hashes of %d sums are kept", len(b.known))
	}
}

// TestPartialsRetry: a partition that the root has read for a while, because a sum was lost, is another
// instance's again after that.
func TestPartialsRetry(t *testing.T) {
	t.Parallel()
	r := newMergedRig(t, partialStreams["moments"], 2)
	log := newHeap()
	lost := false
	help(r, log, team{1, 2, 1}, func(x *instance) {
		x.side.edit = func(h partHeader, record []byte) [][]byte {
			if h.kind == partSum && !lost {
				lost = true
				return nil
			}
			return [][]byte{record}
		}
	})
	coordinates(r, log, team{1, 2, 0}, func(x *instance) { x.times.retry = 10 * time.Millisecond })
	x := r.start()
	step := 0
	for late := time.Now().Add(patience); log.count() < 3; step++ {
		if time.Now().After(late) {
			t.Fatalf("the root does not let others read again\n%s", r.log)
		}
		r.sendTo(0, 100*step, 100)
		r.sendTo(1, 1000+100*step, 100)
		x.published(uint64(step) + 1)
	}
	x.end()
	if !strings.Contains(r.log.String(), "it is read here") {
		t.Error("the root has not read the partition")
	}
	alone := newMergedRig(t, partialStreams["moments"], 2)
	alone.sendTo(0, 0, 100*step)
	alone.sendTo(1, 1000, 100*step)
	y := alone.start()
	y.published(uint64(step))
	y.end()
	if fmt.Sprint(alone.outputOf("orders.dp")) != fmt.Sprint(r.outputOf("orders.dp")) {
		t.Error("other releases than those of one process")
	}
}

// changedSum returns a record of a sum with one more in its first integer, as of a processor that
// is broken.
func changedSum(t *testing.T, seal *partSeal, r []byte) []byte {
	t.Helper()
	h, _ := parsePartHeader(r)
	content, err := seal.open(r)
	must(t, err)
	s, err := parseMergeSum(content)
	must(t, err)
	s.sum = append([]byte(nil), s.sum...)
	s.sum[5*8+3*8]++ // behind its header
	again, err := seal.seal(h, append(s.begin(nil), s.sum...))
	must(t, err)
	return again
}
