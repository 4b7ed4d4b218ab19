package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/task"
)

// alone returns the releases that one process with files publishes for the same input.
func alone(r *streamtest.Rig, n int) map[string][32]byte {
	r.T.Helper()
	ref := r.Sibling(fixtures.With(r.Toml, `"orders.dp"`, `"alone.dp"`))
	ref.Group = ""
	x := ref.Start()
	ref.Awaits("alone.dp", n, ref.Log.String)
	x.End()
	return ref.Values("alone.dp")
}

// TestInstances: three instances share six partitions. One is killed, one is stopped, and the last continues alone: the
// releases equal those of one process with files.
func TestInstances(t *testing.T) {
	t.Parallel()
	const partitions = 6
	r := streamtest.GroupRig(t, partitions, "")
	r.Begin()
	feed := func(first, n int) {
		for p := range partitions {
			r.SendTo(p, first, n)
		}
	}
	feed(0, 500)
	var all []*streamtest.Process
	logs := func() (text string) {
		for i, p := range all {
			text += fmt.Sprintf("instance %d:\n%s", i, p.Stderr)
		}
		return text
	}
	for _, name := range []string{"a", "b", "c"} {
		i := r.Instance(name)
		all = append(all,
			streamtest.Spawn(t, streamtest.ChildSpec{Role: "daemon", Config: string(i.Text()), Seed: r.Seed}))
	}
	r.Awaits("orders.dp", 5*partitions, logs)
	all[0].Kill()
	feed(500, 500)
	r.Awaits("orders.dp", 10*partitions, logs)
	if code := all[1].Terminate(); code != 0 {
		t.Errorf("code %d\n%s", code, all[1].Stderr)
	}
	feed(1000, 300)
	r.Awaits("orders.dp", 13*partitions, logs)
	if code := all[2].Terminate(); code != 0 {
		t.Errorf("code %d\n%s", code, all[2].Stderr)
	}
	if want := alone(r, 13*partitions); !maps.Equal(r.Values("orders.dp"), want) {
		t.Errorf("the releases are not those of one process\n%s", logs())
	}
	// Each epoch was charged once, in the ledger of its shard.
	o := r.Options()
	books, err := cluster.ReadBooks(t.Context(), o.Config, o.Key)
	if err != nil {
		t.Fatal(err)
	}
	var opened []int
	for _, e := range books.Epochs() {
		opened = append(opened, e.Partition)
	}
	if slices.Sort(opened); !slices.Equal(opened, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("epochs of partitions %v", opened)
	}
	for shard, l := range books.Ledgers {
		for _, e := range l.Entries {
			if o.Config.Cluster.Shard(e.Topic, e.Partition) != shard {
				t.Errorf("shard %d has a line of partition %d", shard, e.Partition)
			}
		}
	}
}

// TestInstancesMerged: two instances sum the partitions of a merged stream, and one of them publishes the same releases
// as a single process.
func TestInstancesMerged(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := streamtest.GroupRig(t, partitions, "assign = \"topic\"\n")
	r.Toml = fixtures.With(r.Toml, "step   = 100", "step = 100\nmerge = true")
	r.Begin()
	var all []*streamtest.Running
	for _, name := range []string{"a", "b"} {
		all = append(all, r.Instance(name).Start())
	}
	for _, x := range all {
		ready(x, true)
	}
	logs := func() string { return all[0].R.Log.String() + all[1].R.Log.String() }
	sums := func() (n int64) {
		for shard := range int32(4) {
			end, err := r.Client.End(t.Context(), "g.partials", shard)
			if err != nil {
				t.Fatal(err)
			}
			n += end
		}
		return n
	}
	for p := range partitions {
		r.SendTo(p, 0, 1000)
	}
	r.Awaits("orders.dp", 10, logs)
	if sums() == 0 {
		t.Error("no instance handed over a sum")
	}
	if text := logs(); strings.Contains(text, "no sums received for a partition") {
		t.Errorf("a root read what others sum\n%s", text)
	}
	all[0].End()
	for p := range partitions {
		r.SendTo(p, 1000, 500)
	}
	r.Awaits("orders.dp", 15, logs)
	all[1].End()
	if want := alone(r, 15); !maps.Equal(r.Values("orders.dp"), want) {
		t.Errorf("the releases are not those of one process\n%s", logs())
	}
}

// TestInstanceStatus: the status of an instance and of its group, and requests of commands.
func TestInstanceStatus(t *testing.T) {
	t.Parallel()
	r := streamtest.GroupRig(t, 2, "")
	a := r.Instance("a")
	if err := a.Start().Ends(); err == nil || !strings.Contains(err.Error(), "create it with streamdp cluster init") {
		t.Errorf("an instance without topics: %v", err)
	}
	r.Begin()
	r.Begin() // a second time, which changes nothing
	r.SendTo(0, 0, 200)
	r.SendTo(1, 0, 200)
	b := r.Instance("b")
	x := b.Start()
	b.Awaits("orders.dp", 4, b.Log.String)
	ready(x, true)
	var status struct {
		Data struct{ Group *cluster.Status }
	}
	if _, body := x.Get("/api/v1/status"); json.Unmarshal([]byte(body), &status) != nil || status.Data.Group == nil {
		t.Fatal(body)
	}
	g := status.Data.Group
	if g.Group != "g" || g.Instance != "b" || len(g.Shards) != 4 || len(g.Members) != 1 || !g.Members[0].Self ||
		g.Members[0].URL != "http://"+x.D.Addr()+"/" {
		t.Errorf("%+v", g)
	}
	for _, s := range g.Shards {
		if s.State != cluster.PostRunning {
			t.Errorf("%+v", s)
		}
	}
	if _, body := x.Get("/metrics"); !strings.Contains(body, "\nstreamdp_shards_owned 4\n") ||
		!strings.Contains(body, `streamdp_shard_acquisitions_total{outcome="acquired"} 4`) {
		t.Error("metrics")
	}

	// These requests go through Kafka.
	o := r.Options()
	ask := func(q task.Request) error {
		t.Helper()
		return cluster.Ask(t.Context(), o.Config, o.Key, q)
	}
	if err := ask(task.Request{Kind: task.RequestClose, Stream: "orders", Partition: 1}); err != nil {
		t.Error(err)
	}
	if err := ask(task.Request{Kind: task.RequestClose, Stream: "orders", Partition: 1}); err == nil ||
		!strings.Contains(err.Error(), "no open epoch") {
		t.Error(err)
	}
	if err := ask(
		task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: 1,
			Open: epoch.OpenRequest{Reason: "requested"}}); err != nil {
		t.Error(err)
	}
	books, err := cluster.ReadBooks(t.Context(), o.Config, o.Key)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(books.Epochs()); n != 3 {
		t.Errorf("%d epochs", n)
	}
	found, err := cluster.Check(t.Context(), o.Config, o.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found.Shards {
		if s.Fault != "" || s.Owner != "b" {
			t.Errorf("%+v", s)
		}
	}

	// An instance with another limit is on standby, and its status says why.
	c := r.Instance("c")
	c.Toml = fixtures.With(c.Toml, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
	y := c.Start()
	ready(y, false, "this instance is on standby (configuration)")
	look, err := cluster.Look(t.Context(), o.Config)
	if err != nil {
		t.Fatal(err)
	}
	if len(look.Members) != 2 || len(look.Members[0].Shards) != 4 || look.Members[1].Standby != "configuration" {
		t.Errorf("%+v", look)
	}
	y.End()
	x.End()
	// No instance is left to take a request.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := cluster.Ask(ctx, o.Config, o.Key, task.Request{Kind: task.RequestClose, Stream: "orders"}); err == nil {
		t.Error("a request succeeded although no instance runs")
	}
}

// ready waits until the instance is ready or, if want is false, until it is not ready and gives this reason.
func ready(x *streamtest.Running, want bool, words ...string) {
	x.T.Helper()
	until := time.Now().Add(fixtures.Patience)
	for {
		code, body := 0, ""
		if x.D.Addr() != "" {
			code, body = x.Get("/-/ready")
		}
		says := code == http.StatusOK == want
		for _, w := range words {
			says = says && strings.Contains(body, w)
		}
		if says {
			return
		}
		if time.Now().After(until) {
			x.T.Fatalf("%d %s\n%s", code, body, x.R.Log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
