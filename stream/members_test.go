package stream

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
)

// alone returns what one process with files publishes of the same input.
func alone(r *rig, n int) map[string][32]byte {
	r.t.Helper()
	ref := r.sibling(with(r.toml, `"orders.dp"`, `"alone.dp"`))
	ref.group = ""
	x := ref.start()
	ref.awaits("alone.dp", n, ref.log.String)
	x.end()
	return ref.values("alone.dp")
}

// TestInstances: three instances share six partitions. One is killed, one is told to end, and the
// last one goes on alone: the releases are those of one process with files.
func TestInstances(t *testing.T) {
	t.Parallel()
	const partitions = 6
	r := groupRig(t, partitions, "")
	r.begin()
	feed := func(first, n int) {
		for p := range partitions {
			r.sendTo(p, first, n)
		}
	}
	feed(0, 500)
	var all []*process
	logs := func() (text string) {
		for i, p := range all {
			text += fmt.Sprintf("instance %d:\n%s", i, p.stderr)
		}
		return text
	}
	for _, name := range []string{"a", "b", "c"} {
		i := r.instance(name)
		all = append(all, spawn(t, childSpec{Role: "daemon", Config: string(i.text()), Seed: r.seed}))
	}
	r.awaits("orders.dp", 5*partitions, logs)
	all[0].kill()
	feed(500, 500)
	r.awaits("orders.dp", 10*partitions, logs)
	if code := all[1].terminate(); code != 0 {
		t.Errorf("code %d\n%s", code, all[1].stderr)
	}
	feed(1000, 300)
	r.awaits("orders.dp", 13*partitions, logs)
	if code := all[2].terminate(); code != 0 {
		t.Errorf("code %d\n%s", code, all[2].stderr)
	}
	if want := alone(r, 13*partitions); !maps.Equal(r.values("orders.dp"), want) {
		t.Errorf("the releases are not those of one process\n%s", logs())
	}
	// Each epoch was charged once, in the ledger of its shard.
	o := r.options()
	books, err := ReadGroupBooks(t.Context(), o.Config, o.Key)
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
	for shard, l := range books.ledgers {
		for _, e := range l.entries {
			if o.Config.Cluster.Shard(e.Topic, e.Partition) != shard {
				t.Errorf("shard %d has a line of partition %d", shard, e.Partition)
			}
		}
	}
}

// TestInstancesMerged: two instances sum the partitions of a merged stream, each its part, and one
// publishes what one process would.
func TestInstancesMerged(t *testing.T) {
	t.Parallel()
	const partitions = 4
	r := groupRig(t, partitions, "assign = \"topic\"\n")
	r.toml = with(r.toml, "step   = 100", "step = 100\nmerge = true")
	r.begin()
	var all []*running
	for _, name := range []string{"a", "b"} {
		all = append(all, r.instance(name).start())
	}
	for _, x := range all {
		ready(x, true)
	}
	logs := func() string { return all[0].r.log.String() + all[1].r.log.String() }
	sums := func() (n int64) {
		for shard := range int32(4) {
			end, err := r.client.End(t.Context(), "g.partials", shard)
			if err != nil {
				t.Fatal(err)
			}
			n += end
		}
		return n
	}
	for p := range partitions {
		r.sendTo(p, 0, 1000)
	}
	r.awaits("orders.dp", 10, logs)
	if sums() == 0 {
		t.Error("nobody handed over a sum")
	}
	if text := logs(); strings.Contains(text, "nothing came of a partition") {
		t.Errorf("a root read what others sum\n%s", text)
	}
	all[0].end()
	for p := range partitions {
		r.sendTo(p, 1000, 500)
	}
	r.awaits("orders.dp", 15, logs)
	all[1].end()
	if want := alone(r, 15); !maps.Equal(r.values("orders.dp"), want) {
		t.Errorf("the releases are not those of one process\n%s", logs())
	}
}

// TestInstanceStatus: what an instance says of itself and of its group, and requests of commands.
func TestInstanceStatus(t *testing.T) {
	t.Parallel()
	r := groupRig(t, 2, "")
	a := r.instance("a")
	if err := a.start().ends(); err == nil || !strings.Contains(err.Error(), "streamdp cluster init makes it") {
		t.Errorf("an instance without topics: %v", err)
	}
	r.begin()
	r.begin() // again: nothing happens
	r.sendTo(0, 0, 200)
	r.sendTo(1, 0, 200)
	b := r.instance("b")
	x := b.start()
	b.awaits("orders.dp", 4, b.log.String)
	ready(x, true)
	var status struct {
		Data struct{ Group *GroupStatus }
	}
	if _, body := x.get("/api/v1/status"); json.Unmarshal([]byte(body), &status) != nil || status.Data.Group == nil {
		t.Fatal(body)
	}
	g := status.Data.Group
	if g.Group != "g" || g.Instance != "b" || len(g.Shards) != 4 || len(g.Members) != 1 || !g.Members[0].Self || g.Members[0].URL != "http://"+x.d.Addr()+"/" {
		t.Errorf("%+v", g)
	}
	for _, s := range g.Shards {
		if s.State != postRunning {
			t.Errorf("%+v", s)
		}
	}
	if _, body := x.get("/metrics"); !strings.Contains(body, "\nstreamdp_shards_owned 4\n") || !strings.Contains(body, `streamdp_shard_acquisitions_total{outcome="acquired"} 4`) {
		t.Error("metrics")
	}

	// Requests through Kafka.
	o := r.options()
	ask := func(kind string, q ControlRequest) error {
		t.Helper()
		return AskGroup(t.Context(), o.Config, o.Key, kind, q)
	}
	if err := ask(requestClose, ControlRequest{Stream: "orders", Partition: 1}); err != nil {
		t.Error(err)
	}
	if err := ask(requestClose, ControlRequest{Stream: "orders", Partition: 1}); err == nil || !strings.Contains(err.Error(), "no open epoch") {
		t.Error(err)
	}
	if err := ask(requestOpen, ControlRequest{Stream: "orders", Partition: 1, Open: OpenRequest{Reason: "requested"}}); err != nil {
		t.Error(err)
	}
	books, err := ReadGroupBooks(t.Context(), o.Config, o.Key)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(books.Epochs()); n != 3 {
		t.Errorf("%d epochs", n)
	}
	found, err := CheckGroup(t.Context(), o.Config, o.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found.Shards {
		if s.Fault != "" || s.Owner != "b" {
			t.Errorf("%+v", s)
		}
	}

	// One with another limit stands by, and says why.
	c := r.instance("c")
	c.toml = with(c.toml, "limit_epsilon = 3.0", "limit_epsilon = 4.0")
	y := c.start()
	ready(y, false, "this instance stands by (configuration)")
	look, err := LookAtGroup(t.Context(), o.Config)
	if err != nil {
		t.Fatal(err)
	}
	if len(look.Members) != 2 || len(look.Members[0].Shards) != 4 || look.Members[1].Standby != "configuration" {
		t.Errorf("%+v", look)
	}
	y.end()
	x.end()
	// Nobody is left to take a request.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := AskGroup(ctx, o.Config, o.Key, requestClose, ControlRequest{Stream: "orders"}); err == nil {
		t.Error("a request was met by nobody")
	}
}

// ready waits until the instance is ready, or is not and says so.
func ready(x *running, want bool, words ...string) {
	x.t.Helper()
	until := time.Now().Add(patience)
	for {
		code, body := 0, ""
		if x.d.Addr() != "" {
			code, body = x.get("/-/ready")
		}
		says := code == http.StatusOK == want
		for _, w := range words {
			says = says && strings.Contains(body, w)
		}
		if says {
			return
		}
		if time.Now().After(until) {
			x.t.Fatalf("%d %s\n%s", code, body, x.r.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
