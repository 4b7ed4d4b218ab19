package input_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/input"
)

// team3 holds three processes that share a merged stream over Apache Kafka.
type team3 struct {
	*streamtest.Rig
	names   []string
	running map[string]*streamtest.Process
	in, out string
	group   string
	shard   int
	fed     int // records written to each partition
	steps   int // expected number of releases
}

// The records of a step in each partition, and the number of partitions.
const team3Step, team3Parts = 100, 64

// newTeam3 makes the topics and starts the processes.
func newTeam3(t *testing.T, addrs []string) *team3 {
	t.Helper()
	id := fmt.Sprint("partials-", time.Now().UnixNano())
	x := &team3{names: []string{"a", "b", "c"}, running: map[string]*streamtest.Process{}, in: id + "-in",
		out: id + "-out", group: id}
	x.Rig = streamtest.NewRigAt(t, nil, addrs[0],
		fixtures.With(fixtures.OrdersStream, `topic = "orders",`, fmt.Sprintf(`topic = %q, partition = "all",`, x.in),
			"orders.dp", x.out, "step   = 100", fmt.Sprintf("step = %d\nmerge = true\nmerge_ahead = 4", team3Step)))
	x.Rig.Group = fmt.Sprintf(
		"[cluster]\ngroup = %q\nshards = 2\nassign = \"topic\"\nsession_timeout = \"2s\"\nallow_unreplicated = true\n",
		x.group)
	fixtures.Must(t, x.Client.CreateTopic(t.Context(), x.in, team3Parts, map[string]string{"retention.ms": "-1"}))
	x.Begin()
	x.shard = x.Options().Config.Cluster.Shard(x.in, core.Merged)
	for _, name := range x.names {
		x.start(name)
	}
	x.members(3)
	return x
}

func (x *team3) start(name string) {
	x.T.Helper()
	i := x.Instance(name)
	x.running[name] = streamtest.Spawn(x.T,
		streamtest.ChildSpec{Role: "daemon", Config: string(i.Text()), Seed: x.Seed})
}

// members waits until the group has n active members.
func (x *team3) members(n int) {
	x.T.Helper()
	for late := time.Now().Add(fixtures.Patience); len(x.look().Members) != n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			x.T.Fatalf("%d members, want %d\n%s", len(x.look().Members), n, x.said())
		}
	}
}

func (x *team3) look() *cluster.Status {
	x.T.Helper()
	for late := time.Now().Add(fixtures.Patience); ; time.Sleep(20 * time.Millisecond) {
		g, err := cluster.Look(x.T.Context(), x.Options().Config)
		if err == nil {
			return g
		}
		if time.Now().After(late) {
			x.T.Fatal(err)
		}
	}
}

// coordinator returns the process that owns the stream's task, and the others.
func (x *team3) coordinator() (root string, workers []string) {
	x.T.Helper()
	for late := time.Now().Add(fixtures.Patience); root == ""; time.Sleep(20 * time.Millisecond) {
		workers = nil
		for _, m := range x.look().Members {
			if slices.Contains(m.Shards, x.shard) {
				root = m.Instance
			} else {
				workers = append(workers, m.Instance)
			}
		}
		if time.Now().After(late) {
			x.T.Fatalf("no instance owns shard %d\n%s", x.shard, x.said())
		}
	}
	return root, workers
}

func (x *team3) said() (text string) {
	for name, p := range x.running {
		text += fmt.Sprintf("instance %s:\n%s", name, p.Stderr)
	}
	return text
}

// feed writes the records of the given number of steps to each partition. Every 29th record is unreadable.
func (x *team3) feed(steps int) {
	x.T.Helper()
	n := steps * team3Step
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for p := part; p < team3Parts; p += 4 {
				list := make([]kafka.Message, n)
				for i := range list {
					list[i] = kafka.Message{Value: fixtures.OrderRecord(7*p + x.fed + i), Time: time.UnixMilli(1)}
					if (p+x.fed+i)%29 == 0 {
						list[i].Value = []byte(`{"amount": "many"}`)
					}
				}
				if _, err := x.Client.Produce(x.T.Context(), x.in, int32(p), list); err != nil {
					x.T.Error(err)
				}
			}
		})
	}
	all.Wait()
	x.fed, x.steps = x.fed+n, x.steps+steps
}

// released waits until all fed steps are released.
func (x *team3) released(what string) {
	x.T.Helper()
	begun := time.Now()
	x.Awaits(x.out, x.steps, func() string { return what + "\n" + x.said() })
	x.T.Logf("%s: %d releases after %v", what, x.steps, time.Since(begun).Round(10*time.Millisecond))
}

// sums returns the sum records in the topic of sums, and the bytes of all records in it.
func (x *team3) sums() (sums [][]byte, bytes int) {
	x.T.Helper()
	fixtures.Must(x.T,
		x.Client.ReadBack(x.T.Context(), x.group+".partials", int32(x.shard), 0, func(rec *kafka.Record) error {
			if h, ok := input.ParsePartHeader(rec.Value); ok && h.Kind == input.PartSum {
				sums = append(sums, slices.Clone(rec.Value))
			}
			bytes += len(rec.Value)
			return nil
		}))
	return sums, bytes
}

// inject writes records to the topic of sums, as anyone with write access could.
func (x *team3) inject(records ...[]byte) {
	x.T.Helper()
	list := make([]kafka.Message, len(records))
	for i, r := range records {
		list[i] = kafka.Message{Value: r, Time: time.Now()}
	}
	if _, err := x.Client.Produce(x.T.Context(), x.group+".partials", int32(x.shard), list); err != nil {
		x.T.Fatal(err)
	}
}

// TestRealKafkaPartials: three processes merge 64 partitions of Apache Kafka. Workers and the coordinator are killed
// and stopped, and somebody without the key writes to the topic of sums. The releases equal those of one process that
// reads the same logs. Then a sum under the group's key arrives that differs from the accepted one, as from a broken
// processor, and the epoch halts.
func TestRealKafkaPartials(t *testing.T) {
	x := newTeam3(t, kafkatest.NewReal(t).Addrs)
	x.feed(10)
	x.released("three instances")
	sums, bytes := x.sums()
	t.Logf("%d sums of other instances, %.0f bytes for each step, %.2f for each record", len(sums),
		float64(bytes)/float64(x.steps), float64(bytes)/float64(x.fed*team3Parts))
	own := 0
	for p := range team3Parts {
		own = max(own, (p+3)/3) // largest number of partitions that the coordinator reads
	}
	if want := (team3Parts - own) * x.steps; len(sums) < want {
		t.Errorf("other instances have made %d sums of %d steps, want %d", len(sums), x.steps, want)
	}

	// trouble feeds records, calls the function make while they are being read, and feeds more.
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
	_, workers := x.coordinator()
	trouble("a worker is killed", x.running[workers[0]].Kill)
	back(workers[0])

	_, workers = x.coordinator()
	stop := func(name string, signal syscall.Signal) {
		if err := x.running[name].Cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	trouble("a worker is stopped", func() { stop(workers[1], syscall.SIGSTOP) })
	trouble("the worker continues", func() { stop(workers[1], syscall.SIGCONT) })
	x.members(3)

	root, _ := x.coordinator()
	trouble("the coordinator is killed", x.running[root].Kill)
	back(root)

	root, _ = x.coordinator()
	trouble("the coordinator is stopped", func() { stop(root, syscall.SIGSTOP) })
	trouble("the former coordinator continues", func() { stop(root, syscall.SIGCONT) })
	x.members(3)

	// Somebody without the key writes records that are replayed, damaged, moved to another position, or sealed with
	// another key.
	sums, _ = x.sums()
	last := sums[len(sums)-1]
	other := input.NewPartSeal(epoch.PartialsKey(connect.InsecureKey(x.Seed+1)), x.group, x.shard)
	elsewhere := input.NewPartSeal(epoch.PartialsKey(connect.InsecureKey(x.Seed)), x.group, 1-x.shard)
	trouble("somebody without the key writes to the topic", func() {
		h, _ := input.ParsePartHeader(last)
		for range 4 {
			h.Step++
			for _, seal := range []*input.PartSeal{other, elsewhere} {
				forged, err := seal.Seal(h, []byte("a sum"))
				fixtures.Must(t, err)
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
		if text := p.Stderr.String(); strings.Contains(text, "level=ERROR") {
			t.Errorf("instance %s:\n%s", name, text)
		}
	}

	ref := x.Sibling(fixtures.With(x.Toml, x.out, x.out+"-alone"))
	ref.Group = ""
	one := ref.Start()
	ref.Awaits(x.out+"-alone", x.steps, ref.Log.String)
	one.End()
	if !maps.Equal(x.Values(x.out), ref.Values(x.out+"-alone")) {
		t.Error("the releases are not those of one process")
	}

	// A sum of the present run, changed and sealed with the key.
	sums, _ = x.sums()
	last = sums[len(sums)-1]
	x.inject(changedSum(t, input.NewPartSeal(epoch.PartialsKey(connect.InsecureKey(x.Seed)), x.group, x.shard), last))
	root, _ = x.coordinator()
	for late := time.Now().Add(fixtures.Patience); !strings.Contains(x.running[root].Stderr.String(),
		"reason=mechanism"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the task does not halt\n%s", x.running[root].Stderr)
		}
	}
	x.feed(1)
	time.Sleep(time.Second)
	if n := len(x.Values(x.out)); n != x.steps-1 {
		t.Errorf("%d releases after the halt, %d before it", n, x.steps-1)
	}
	for _, name := range x.names {
		if code := x.running[name].Terminate(); code != 0 && name != root {
			t.Errorf("instance %s ends with %d", name, code)
		}
	}
}
