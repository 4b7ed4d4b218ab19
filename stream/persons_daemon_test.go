package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
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
func sendOf(r *streamtest.Rig, topic string, partition int32, first, n int) {
	r.T.Helper()
	list := make([]kafka.Message, n)
	for i := range list {
		list[i] = kafka.Message{Key: fmt.Appendf(nil, "u%d", (first+i)%7), Value: fixtures.OrderRecord(first + i),
			Time: time.UnixMilli(1)}
	}
	_, err := r.Client.Produce(r.T.Context(), topic, partition, list)
	fixtures.Must(r.T, err)
}

// TestPersonsDaemon runs a stream that protects persons over a restart, to the horizon and into a second epoch, until
// the limit. Persons are charged for the second epoch although no offset is read twice.
func TestPersonsDaemon(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, personStream)
	sendOf(r, "orders", 0, 0, 50)
	x := r.Start()
	x.Published(2)
	if s := x.D.Status()[0]; s.Unit != "person" || s.Person == nil || s.Person.Population != "orders" ||
		s.ChargedEpsilon != 1 || !strings.Contains(s.Guarantee[0], "one given person") {
		t.Errorf("status: unit %q, %+v, charged %g, %q", s.Unit, s.Person, s.ChargedEpsilon, s.Guarantee[0])
	}
	x.End()
	x = r.Start()
	sendOf(r, "orders", 0, 50, 30)
	x.Until("the second epoch has a release",
		func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 && s.Outbox == 0 })
	if s := x.D.Status()[0]; !(s.ChargedEpsilon > 1.42 && s.ChargedEpsilon < 1.46) || len(s.Budget) != 3 {
		t.Errorf("in the second epoch %g is charged, by %+v", s.ChargedEpsilon, s.Budget)
	}
	// Closing and opening by request would charge a third time.
	if err := x.Control("open", epoch.OpenRequest{From: "latest"}); err == nil ||
		!strings.Contains(err.Error(), "budget of population orders spent") {
		t.Errorf("a third epoch by hand: %v", err)
	}
	sendOf(r, "orders", 0, 80, 40)
	x.Halts(failure.Budget, "budget of population orders spent", "bring a person to epsilon 1.7")
	x.EndHalted()

	if got := r.Kinds(); strings.Count(got, ledger.KindOpen) != 2 {
		t.Errorf("the ledger has %s", got)
	}
	mu, err := dp.Mu(1, 1e-8)
	fixtures.Must(t, err)
	all, err := readPopulations(r.Dir+"/state", "", []int{2})
	fixtures.Must(t, err)
	if len(all) != 1 || all[0].Population != "orders" || len(all[0].Epochs) != 2 ||
		math.Abs(all[0].Mu/(mu*math.Sqrt2)-1) > 1e-6 || !(*all[0].Persons[0].Epsilon > 2.8) {
		t.Errorf("populations: %+v", all)
	}
	if spent, err := streamtest.ReadSpent(r.Dir+"/state", "", nil); err != nil || len(spent) != 0 {
		t.Errorf("records are charged %+v, %v", spent, err)
	}
	releases := r.Output("orders.dp")
	if len(releases) != 6 {
		t.Fatalf("%d releases", len(releases))
	}
	for i, p := range releases {
		fixtures.Conforms(t, p.Value)
		var v struct {
			Privacy struct {
				Unit    string
				Charged float64 `json:"charged_epsilon_at_open"`
			}
		}
		fixtures.Must(t, json.Unmarshal([]byte(p.Value), &v))
		if want := []float64{1, 1.44}[i/3]; v.Privacy.Unit != "person" || math.Abs(v.Privacy.Charged-want) > 0.02 {
			t.Errorf("release %d: %+v", i, v.Privacy)
		}
	}
}

// TestPersonsPartitions: the charges of two partitions add up, and so do those of two streams. If the configuration
// fixes the partitioner of keys, only the larger of the two partitions' charges counts.
func TestPersonsPartitions(t *testing.T) {
	t.Parallel()
	run := func(toml string) *streamtest.Rig {
		r := streamtest.NewRig(t,
			fixtures.With(toml, `topic = "orders", codec`, `topic = "two", partition = [0, 1], codec`))
		fixtures.Must(t, r.Client.CreateTopic(t.Context(), "two", 2, nil))
		fixtures.Must(t, r.Client.CreateTopic(t.Context(), "orders.dp", 2, nil))
		for p := range int32(2) {
			sendOf(r, "two", p, 0, 30)
		}
		return r
	}
	const limit = "limit_epsilon = 1.5"
	r := run(fixtures.With(personStream, limit, "limit_epsilon = 1.4"))
	x := r.Start()
	x.Until("one of two runs", func(monitor.TaskStatus) bool {
		all := x.D.Status()
		return all[0].State == monitor.StateHalted && all[1].State == monitor.StateRunning ||
			all[1].State == monitor.StateHalted && all[0].State == monitor.StateRunning
	})
	for _, s := range x.D.Status() {
		if s.State == monitor.StateHalted &&
			(s.Reason != failure.Budget || !strings.Contains(s.Message, "bring a person to epsilon 1.4")) {
			t.Errorf("halted with %s: %s", s.Reason, s.Message)
		}
	}
	x.End()

	r = run(
		fixtures.With(personStream, limit, "limit_epsilon = 1.4", "max_users = 60",
			`max_users = 60, partitioner = "murmur2"`))
	x = r.Start()
	x.Until("both run", func(monitor.TaskStatus) bool {
		all := x.D.Status()
		return all[0].Step == 1 && all[1].Step == 1
	})
	for _, s := range x.D.Status() {
		if s.ChargedEpsilon != 1 {
			t.Errorf("partition %d: %g is charged", s.Partition, s.ChargedEpsilon)
		}
	}
	x.End()
	if all, err := readPopulations(r.Dir+"/state", "orders", nil); err != nil || len(all) != 1 ||
		!all[0].OnePartition || all[0].ChargedEpsilon != 1 {
		t.Errorf("populations: %+v, %v", all, err)
	}

	second := fixtures.With(strings.ReplaceAll(personStream, "stream.orders", "stream.second"), "orders.dp",
		"second.dp")
	r = streamtest.NewRig(t, personStream+second)
	sendOf(r, "orders", 0, 0, 30)
	x = r.Start()
	x.Until("both streams run", func(monitor.TaskStatus) bool {
		all := x.D.Status()
		return all[0].Step == 1 && all[1].Step == 1
	})
	for _, s := range x.D.Status() {
		if !(s.ChargedEpsilon > 1.42 && s.ChargedEpsilon < 1.46) {
			t.Errorf("stream %s: %g is charged", s.Stream, s.ChargedEpsilon)
		}
	}
	x.End()

	// On this topic a stream that protects records is refused.
	r.Toml = fixtures.With(personStream, "user = { key = \"record-key\", max_users = 60 }\n", "", "[stream.orders]",
		"[stream.records]", "[stream.orders.privacy]", "[stream.records.privacy]",
		"[stream.orders.moments]", "[stream.records.moments]", "orders.dp", "records.dp")
	x = r.Start()
	x.Halts(failure.Configuration, "earlier epochs over topic orders protect persons")
	x.EndHalted()
}

// TestPersonsRepair: a reconstructed ledger charges the population, with the same persons, as the lost one did. It
// charges no other account.
func TestPersonsRepair(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.With(personStream, "max_users = 60",
			`max_users = 60, cap = 2, separation = 2, partitioner = "murmur2"`))
	sendOf(r, "orders", 0, 0, 80)
	x := r.Start()
	x.Until("the second epoch has a release",
		func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 1 && s.Outbox == 0 })
	x.End()
	was := r.Entries()
	before, err := readPopulations(r.Dir+"/state", "", nil)
	fixtures.Must(t, err)
	fixtures.Must(t, os.Remove(r.LedgerFile()))
	_, err = stream.RepairLedger(t.Context(), r.Options(), true)
	fixtures.Must(t, err)
	after, err := readPopulations(r.Dir+"/state", "", nil)
	fixtures.Must(t, err)
	if len(after) != 1 || after[0].Mu != before[0].Mu || after[0].ChargedEpsilon != before[0].ChargedEpsilon ||
		!after[0].OnePartition || len(after[0].Epochs) != 2 {
		t.Errorf("charged %+v, was %+v", after, before)
	}
	if now := r.Entries(); *now[0].Person != *was[0].Person || now[0].Unit != "person" ||
		now[0].Cost.Mu != was[0].Cost.Mu {
		t.Errorf("the first line is %+v, was %+v", now[0], was[0])
	}
	if spent, err := streamtest.ReadSpent(r.Dir+"/state", "", nil); err != nil || len(spent) > 0 {
		t.Errorf("records are charged %+v, %v", spent, err)
	}
	epochs, err := streamtest.ReadEpochs(r.Dir + "/state")
	fixtures.Must(t, err)
	if len(epochs) != 2 || epochs[0].Unit != "person" || epochs[1].Population != "orders" {
		t.Errorf("epochs %+v", epochs)
	}
	// The open epoch continues, and the limit does not allow a third one.
	sendOf(r, "orders", 0, 80, 60)
	x = r.Start()
	x.Halts(failure.Budget, "budget of population orders spent")
	x.EndHalted()
	if charged, err := readCharged(r.Dir+"/state", x.In.Process.Cfg.Streams[0], 0); err != nil ||
		!(charged > 1.42 && charged < 1.46) {
		t.Errorf("charged %g, %v", charged, err)
	}
}
