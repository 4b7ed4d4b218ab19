package stream

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// team3 is three processes that share a merged stream over Apache Kafka.
type team3 struct {
	*rig
	names   []string
	running map[string]*process
	in, out string
	group   string
	shard   int
	fed     int // records of each partition
	steps   int // releases that there are to be
}

// The records of a step over each partition, and the partitions.
const team3Step, team3Parts = 100, 64

// newTeam3 makes the topics and starts the processes.
func newTeam3(t *testing.T, addrs []string) *team3 {
	t.Helper()
	id := fmt.Sprint("partials-", time.Now().UnixNano())
	x := &team3{names: []string{"a", "b", "c"}, running: map[string]*process{}, in: id + "-in", out: id + "-out", group: id}
	x.rig = newRigAt(t, nil, addrs[0], with(ordersStream, `topic = "orders",`, fmt.Sprintf(`topic = %q, partition = "all",`, x.in),
		"orders.dp", x.out, "step   = 100", fmt.Sprintf("step = %d\nmerge = true\nmerge_ahead = 4", team3Step)))
	x.rig.group = fmt.Sprintf("[cluster]\ngroup = %q\nshards = 2\nassign = \"topic\"\nsession_timeout = \"2s\"\nallow_unreplicated = true\n", x.group)
	must(t, x.client.CreateTopic(t.Context(), x.in, team3Parts, map[string]string{"retention.ms": "-1"}))
	x.begin()
	x.shard = x.options().Config.Cluster.Shard(x.in, core.Merged)
	for _, name := range x.names {
		x.start(name)
	}
	x.members(3)
	return x
}

func (x *team3) start(name string) {
	x.t.Helper()
	i := x.instance(name)
	x.running[name] = spawn(x.t, childSpec{Role: "daemon", Config: string(i.text()), Seed: x.seed})
}

// members waits until the group has so many members that take part.
func (x *team3) members(n int) {
	x.t.Helper()
	for late := time.Now().Add(patience); len(x.look().Members) != n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			x.t.Fatalf("%d members, want %d\n%s", len(x.look().Members), n, x.said())
		}
	}
}

func (x *team3) look() *GroupStatus {
	x.t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		g, err := LookAtGroup(x.t.Context(), x.options().Config)
		if err == nil {
			return g
		}
		if time.Now().After(late) {
			x.t.Fatal(err)
		}
	}
}

// root returns who owns the stream's task, and who does not.
func (x *team3) root() (root string, workers []string) {
	x.t.Helper()
	for late := time.Now().Add(patience); root == ""; time.Sleep(20 * time.Millisecond) {
		workers = nil
		for _, m := range x.look().Members {
			if slices.Contains(m.Shards, x.shard) {
				root = m.Instance
			} else {
				workers = append(workers, m.Instance)
			}
		}
		if time.Now().After(late) {
			x.t.Fatalf("nobody owns shard %d\n%s", x.shard, x.said())
		}
	}
	return root, workers
}

func (x *team3) said() (text string) {
	for name, p := range x.running {
		text += fmt.Sprintf("instance %s:\n%s", name, p.stderr)
	}
	return text
}

// feed writes the records of so many steps to each partition. Every 29th is no record that can be read.
func (x *team3) feed(steps int) {
	x.t.Helper()
	n := steps * team3Step
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for p := part; p < team3Parts; p += 4 {
				list := make([]kafka.Message, n)
				for i := range list {
					list[i] = kafka.Message{Value: orderRecord(7*p + x.fed + i), Time: time.UnixMilli(1)}
					if (p+x.fed+i)%29 == 0 {
						list[i].Value = []byte(`{"amount": "many"}`)
					}
				}
				if _, err := x.client.Produce(x.t.Context(), x.in, int32(p), list); err != nil {
					x.t.Error(err)
				}
			}
		})
	}
	all.Wait()
	x.fed, x.steps = x.fed+n, x.steps+steps
}

// released waits until all steps that were fed are released.
func (x *team3) released(what string) {
	x.t.Helper()
	begun := time.Now()
	x.awaits(x.out, x.steps, func() string { return what + "\n" + x.said() })
	x.t.Logf("%s: %d releases after %v", what, x.steps, time.Since(begun).Round(10*time.Millisecond))
}

// sums returns the records of sums, and the bytes of all records, of the topic by which instances
// share the reading.
func (x *team3) sums() (sums [][]byte, bytes int) {
	x.t.Helper()
	must(x.t, x.client.ReadBack(x.t.Context(), x.group+".partials", int32(x.shard), 0, func(rec *kafka.Record) error {
		if h, ok := parsePartHeader(rec.Value); ok && h.kind == partSum {
			sums = append(sums, slices.Clone(rec.Value))
		}
		bytes += len(rec.Value)
		return nil
	}))
	return sums, bytes
}

// inject writes records to that topic, as somebody who may write to it.
func (x *team3) inject(records ...[]byte) {
	x.t.Helper()
	list := make([]kafka.Message, len(records))
	for i, r := range records {
		list[i] = kafka.Message{Value: r, Time: time.Now()}
	}
	if _, err := x.client.Produce(x.t.Context(), x.group+".partials", int32(x.shard), list); err != nil {
		x.t.Fatal(err)
	}
}

// TestRealKafkaPartials: three processes merge 64 partitions of Apache Kafka. Workers are killed and
// stopped, and so is the root; somebody without the key writes to the topic of sums. What comes
// out is what one process publishes that reads the same logs. Then a sum comes that is not the one
// that was taken, under the group's key, as from a broken processor: the epoch halts.
func TestRealKafkaPartials(t *testing.T) {
	x := newTeam3(t, kafkatest.NewReal(t).Addrs)
	x.feed(10)
	x.released("three instances")
	sums, bytes := x.sums()
	t.Logf("%d sums of other instances, %.0f bytes for each step, %.2f for each record", len(sums), float64(bytes)/float64(x.steps), float64(bytes)/float64(x.fed*team3Parts))
	own := 0
	for p := range team3Parts {
		own = max(own, (p+3)/3) // of the root, at most
	}
	if want := (team3Parts - own) * x.steps; len(sums) < want {
		t.Errorf("other instances have made %d sums of %d steps, want %d", len(sums), x.steps, want)
	}

	// trouble feeds records, makes trouble while they are read, and feeds more.
	trouble := func(what string, make func()) {
		t.Helper()
		x.feed(4)
		make()
		x.feed(4)
		x.released(what)
	}
	back := func(name string) {
		t.Helper()
		x.start(name)
		x.members(3)
	}
	_, workers := x.root()
	trouble("a worker is killed", x.running[workers[0]].kill)
	back(workers[0])

	_, workers = x.root()
	stop := func(name string, signal syscall.Signal) {
		if err := x.running[name].cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	trouble("a worker is stopped", func() { stop(workers[1], syscall.SIGSTOP) })
	trouble("the worker goes on", func() { stop(workers[1], syscall.SIGCONT) })
	x.members(3)

	root, _ := x.root()
	trouble("the root is killed", x.running[root].kill)
	back(root)

	root, _ = x.root()
	trouble("the root is stopped", func() { stop(root, syscall.SIGSTOP) })
	trouble("the root that was goes on", func() { stop(root, syscall.SIGCONT) })
	x.members(3)

	// Of somebody who has no key: records again, damaged, of another place, of another key.
	sums, _ = x.sums()
	last := sums[len(sums)-1]
	other := newPartSeal(InsecureKey(x.seed+1), x.group, x.shard)
	elsewhere := newPartSeal(InsecureKey(x.seed), x.group, 1-x.shard)
	trouble("somebody without the key writes to the topic", func() {
		h, _ := parsePartHeader(last)
		for range 4 {
			h.step++
			for _, seal := range []*partSeal{other, elsewhere} {
				forged, err := seal.seal(h, []byte("a sum"))
				must(t, err)
				x.inject(forged)
			}
		}
		moved := slices.Clone(last)
		moved[22]++ // its step
		x.inject(moved)
		x.inject(slices.Concat([]byte{0}, last), nil, last[:len(last)-1], last, last)
		x.inject(sums...)
	})
	for name, p := range x.running {
		if text := p.stderr.String(); strings.Contains(text, "level=ERROR") {
			t.Errorf("instance %s:\n%s", name, text)
		}
	}

	ref := x.sibling(with(x.toml, x.out, x.out+"-alone"))
	ref.group = ""
	one := ref.start()
	ref.awaits(x.out+"-alone", x.steps, ref.log.String)
	one.end()
	if !maps.Equal(x.values(x.out), ref.values(x.out+"-alone")) {
		t.Error("the releases are not those of one process")
	}

	// A sum of the run that goes on, changed and sealed with the key.
	sums, _ = x.sums()
	last = sums[len(sums)-1]
	x.inject(changedSum(t, newPartSeal(InsecureKey(x.seed), x.group, x.shard), last))
	root, _ = x.root()
	for late := time.Now().Add(patience); !strings.Contains(x.running[root].stderr.String(), "reason=mechanism"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the task does not halt\n%s", x.running[root].stderr)
		}
	}
	x.feed(1)
	time.Sleep(time.Second)
	if n := len(x.values(x.out)); n != x.steps-1 {
		t.Errorf("%d releases after the halt, %d before it", n, x.steps-1)
	}
	for _, name := range x.names {
		if code := x.running[name].terminate(); code != 0 && name != root {
			t.Errorf("instance %s ends with %d", name, code)
		}
	}
}
