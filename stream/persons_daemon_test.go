package stream

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
)

// personStream protects persons in epochs of three steps.
const personStream = `
[stream.orders]
input  = { topic = "orders", codec = "json", columns = ["amount", "items", "weight"] }
output = { topic = "orders.dp" }
step   = 20
horizon = 3
on_horizon = "rollover"
user = { key = "record-key", max_users = 60 }
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 1.5
[stream.orders.moments]
clip = 1.0
`

// sendOf appends n records of seven persons to a partition of a topic.
func sendOf(r *rig, topic string, partition int32, first, n int) {
	r.t.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Key: fmt.Appendf(nil, "u%d", (first+i)%7), Value: orderRecord(first + i), Time: time.UnixMilli(1)}
	}
	_, err := r.client.Produce(r.t.Context(), topic, partition, list)
	must(r.t, err)
}

// TestPersonsDaemon: a file that protects persons runs as it is: over a restart, to the horizon
// and into a second epoch, which persons pay although no offset is read twice, until the limit.
func TestPersonsDaemon(t *testing.T) {
	t.Parallel()
	r := newRig(t, personStream)
	sendOf(r, "orders", 0, 0, 50)
	x := r.start()
	x.published(2)
	if s := x.d.Status()[0]; s.Unit != "person" || s.Person == nil || s.Person.Population != "orders" || s.ChargedEpsilon != 1 || !strings.Contains(s.Guarantee[0], "one given person") {
		t.Errorf("status: unit %q, %+v, charged %g, %q", s.Unit, s.Person, s.ChargedEpsilon, s.Guarantee[0])
	}
	x.end()
	x = r.start()
	sendOf(r, "orders", 0, 50, 30)
	x.until("the second epoch has a release", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 && s.Outbox == 0 })
	if s := x.d.Status()[0]; !(s.ChargedEpsilon > 1.42 && s.ChargedEpsilon < 1.46) || len(s.Budget) != 3 {
		t.Errorf("in the second epoch %g is charged, by %+v", s.ChargedEpsilon, s.Budget)
	}
	// Closing and opening by hand would pay a third time.
	if err := x.control("open", OpenRequest{From: "latest"}); err == nil || !strings.Contains(err.Error(), "budget of population orders spent") {
		t.Errorf("a third epoch by hand: %v", err)
	}
	sendOf(r, "orders", 0, 80, 40)
	x.halts(haltBudget, "budget of population orders spent", "bring a person to epsilon 1.7")
	x.endHalted()

	if got := r.kinds(); strings.Count(got, kindOpen) != 2 {
		t.Errorf("the ledger has %s", got)
	}
	mu, err := dp.Mu(1, 1e-8)
	must(t, err)
	all, err := readPopulations(r.dir+"/state", "", []int{2})
	must(t, err)
	if len(all) != 1 || all[0].Population != "orders" || len(all[0].Epochs) != 2 || math.Abs(all[0].Mu/(mu*math.Sqrt2)-1) > 1e-6 || !(*all[0].Persons[0].Epsilon > 2.8) {
		t.Errorf("populations: %+v", all)
	}
	if spent, err := readSpent(r.dir+"/state", "", nil); err != nil || len(spent) != 0 {
		t.Errorf("what records have paid: %+v, %v", spent, err)
	}
	releases := r.output("orders.dp")
	if len(releases) != 6 {
		t.Fatalf("%d releases", len(releases))
	}
	for i, p := range releases {
		conforms(t, p.value)
		var v struct {
			Privacy struct {
				Unit    string
				Charged float64 `json:"charged_epsilon_at_open"`
			}
		}
		must(t, json.Unmarshal([]byte(p.value), &v))
		if want := []float64{1, 1.44}[i/3]; v.Privacy.Unit != "person" || math.Abs(v.Privacy.Charged-want) > 0.02 {
			t.Errorf("release %d: %+v", i, v.Privacy)
		}
	}
}

// TestPersonsPartitions: two partitions add up, and so do two streams; with the keys' partitioner
// enforced, the larger of the partitions counts.
func TestPersonsPartitions(t *testing.T) {
	t.Parallel()
	run := func(toml string) *rig {
		r := newRig(t, with(toml, `topic = "orders", codec`, `topic = "two", partition = [0, 1], codec`))
		must(t, r.client.CreateTopic(t.Context(), "two", 2, nil))
		must(t, r.client.CreateTopic(t.Context(), "orders.dp", 2, nil))
		for p := range int32(2) {
			sendOf(r, "two", p, 0, 30)
		}
		return r
	}
	const limit = "limit_epsilon = 1.5"
	r := run(with(personStream, limit, "limit_epsilon = 1.4"))
	x := r.start()
	x.until("one of two runs", func(TaskStatus) bool {
		all := x.d.Status()
		return all[0].State == stateHalted && all[1].State == stateRunning || all[1].State == stateHalted && all[0].State == stateRunning
	})
	for _, s := range x.d.Status() {
		if s.State == stateHalted && (s.Reason != haltBudget || !strings.Contains(s.Message, "bring a person to epsilon 1.4")) {
			t.Errorf("halted with %s: %s", s.Reason, s.Message)
		}
	}
	x.end()

	r = run(with(personStream, limit, "limit_epsilon = 1.4", "max_users = 60", `max_users = 60, partitioner = "murmur2"`))
	x = r.start()
	x.until("both run", func(TaskStatus) bool {
		all := x.d.Status()
		return all[0].Step == 1 && all[1].Step == 1
	})
	for _, s := range x.d.Status() {
		if s.ChargedEpsilon != 1 {
			t.Errorf("partition %d: %g is charged", s.Partition, s.ChargedEpsilon)
		}
	}
	x.end()
	if all, err := readPopulations(r.dir+"/state", "orders", nil); err != nil || len(all) != 1 || !all[0].OnePartition || all[0].ChargedEpsilon != 1 {
		t.Errorf("populations: %+v, %v", all, err)
	}

	second := with(strings.ReplaceAll(personStream, "stream.orders", "stream.second"), "orders.dp", "second.dp")
	r = newRig(t, personStream+second)
	sendOf(r, "orders", 0, 0, 30)
	x = r.start()
	x.until("both streams run", func(TaskStatus) bool {
		all := x.d.Status()
		return all[0].Step == 1 && all[1].Step == 1
	})
	for _, s := range x.d.Status() {
		if !(s.ChargedEpsilon > 1.42 && s.ChargedEpsilon < 1.46) {
			t.Errorf("stream %s: %g is charged", s.Stream, s.ChargedEpsilon)
		}
	}
	x.end()

	// The topic's records can't be protected instead.
	r.toml = with(personStream, "user = { key = \"record-key\", max_users = 60 }\n", "", "[stream.orders]", "[stream.records]", "[stream.orders.privacy]", "[stream.records.privacy]",
		"[stream.orders.moments]", "[stream.records.moments]", "orders.dp", "records.dp")
	x = r.start()
	x.halts(haltConfiguration, "topic orders has epochs that protect persons")
	x.endHalted()
}

// TestPersonsRepair: a ledger that is worked out again charges the population what the lost one
// did, and says the same of its persons; nobody else may be charged instead.
func TestPersonsRepair(t *testing.T) {
	t.Parallel()
	r := newRig(t, with(personStream, "max_users = 60", `max_users = 60, cap = 2, separation = 2, partitioner = "murmur2"`))
	sendOf(r, "orders", 0, 0, 80)
	x := r.start()
	x.until("the second epoch has a release", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 && s.Outbox == 0 })
	x.end()
	was := r.entries()
	before, err := readPopulations(r.dir+"/state", "", nil)
	must(t, err)
	must(t, os.Remove(r.ledgerFile()))
	_, err = RepairLedger(t.Context(), r.options(), true)
	must(t, err)
	after, err := readPopulations(r.dir+"/state", "", nil)
	must(t, err)
	if len(after) != 1 || after[0].Mu != before[0].Mu || after[0].ChargedEpsilon != before[0].ChargedEpsilon || !after[0].OnePartition || len(after[0].Epochs) != 2 {
		t.Errorf("charged %+v, was %+v", after, before)
	}
	if now := r.entries(); *now[0].Person != *was[0].Person || now[0].Unit != "person" || now[0].Cost.Mu != was[0].Cost.Mu {
		t.Errorf("the first line is %+v, was %+v", now[0], was[0])
	}
	if spent, err := readSpent(r.dir+"/state", "", nil); err != nil || len(spent) > 0 {
		t.Errorf("records are charged %+v, %v", spent, err)
	}
	epochs, err := readEpochs(r.dir + "/state")
	must(t, err)
	if len(epochs) != 2 || epochs[0].Unit != "person" || epochs[1].Population != "orders" {
		t.Errorf("epochs %+v", epochs)
	}
	// The open epoch goes on, and the limit leaves no third one.
	sendOf(r, "orders", 0, 80, 60)
	x = r.start()
	x.halts(haltBudget, "budget of population orders spent")
	x.endHalted()
	if charged, err := readCharged(r.dir+"/state", x.in.Process.cfg.Streams[0], 0); err != nil || !(charged > 1.42 && charged < 1.46) {
		t.Errorf("charged %g, %v", charged, err)
	}
}
