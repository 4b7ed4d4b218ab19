package stream_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// TestSpent: the ranges in the result begin and end where charges begin and end. Where charges overlap, their costs add
// up, in the adjacency of the last opening. An epoch that was taken back charges nothing.
func TestSpent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := ledger.Open(state.OS{}, dir, nil)
	fixtures.Must(t, err)
	l.Now = func() time.Time { return time.Unix(0, 0) }
	src := core.Source{Cluster: "c", Topic: "in", Partition: 0}
	add := func(e ledger.Entry) { fixtures.Must(t, l.Append(e)) }
	open := func(stream string, epoch, incarnation uint64, s core.Source, first, end int64, a dp.Adjacency,
		mu float64) {
		add(
			ledger.Entry{Kind: ledger.KindOpen, Stream: stream, Source: s, Epoch: epoch, Incarnation: incarnation,
				First: first, End: end,
				Mechanism: "moments", Cost: dp.Cost{Adjacency: a, Mu: mu}, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 3,
				LimitDelta: 1e-8})
	}
	open("a", 1, 1, src, 0, -1, dp.ZeroOut, 0.1)
	open("b", 1, 1, src, 50, 200, dp.ZeroOut, 0.2)
	open("a", 2, 1, core.Source{Cluster: "c", Topic: "other", Partition: 0}, 0, -1, dp.ZeroOut, 0.4)
	add(ledger.Entry{Kind: ledger.KindClose, Stream: "a", Source: src, Epoch: 1, End: 100})
	open("c", 1, 1, src, 0, -1, dp.ZeroOut, 9)
	add(ledger.Entry{Kind: ledger.KindVoid, Stream: "c", Source: src, Epoch: 1})
	open("a", 3, 2, src, 100, -1, dp.Replace, 0.3)
	add(ledger.Entry{Kind: ledger.KindLimit, Stream: "a", Source: src, Epoch: 3, LimitEpsilon: 5, LimitDelta: 1e-7})

	all, err := streamtest.ReadSpent(dir, "", []int{1, 3})
	fixtures.Must(t, err)
	if len(all) != 2 || all[0].Topic != "in" || all[1].Topic != "other" {
		t.Fatalf("sources %+v", all)
	}
	got := all[0]
	if got.LimitEpsilon != 5 || got.LimitDelta != 1e-7 || got.Adjacency != dp.Replace {
		t.Errorf("limit %+v", got)
	}
	var lines []string
	for _, r := range got.Ranges {
		var by []string
		for _, b := range r.By {
			by = append(by, fmt.Sprintf("%s%d", b.Stream, b.Epoch))
		}
		lines = append(lines,
			fmt.Sprintf("%d [%d,%d) %.6f %s", r.Incarnation, r.First, r.End, r.Cost.Mu, strings.Join(by, "+")))
		eps, err := dp.Epsilon(1e-7, r.Cost.Mu)
		fixtures.Must(t, err)
		if r.Epsilon != eps || len(r.Persons) != 2 || *r.Persons[0].Epsilon < eps ||
			*r.Persons[0].Epsilon > eps*1.001 || *r.Persons[1].Epsilon < 3*eps {
			t.Errorf("epsilon %g, want %g; persons %+v", r.Epsilon, eps, r.Persons)
		}
	}
	// Zero-out charges count twice under replace.
	if want := "1 [0,50) 0.200000 a1; 1 [50,100) 0.447214 a1+b1; 1 [100,200) 0.400000 b1; 2 " +
		"[100,-1) 0.300000 a3"; strings.Join(lines, "; ") != want {
		t.Errorf("ranges %s\nwant %s", strings.Join(lines, "; "), want)
	}
	// The worst record of one log and the worst of the other may belong to the same person.
	if want, _ := dp.Epsilon(1e-7, math.Sqrt(0.2+0.09)); math.Abs(got.ChargedEpsilon-want) > 1e-6 {
		t.Errorf("charged %g, want %g", got.ChargedEpsilon, want)
	}
	if some, err := streamtest.ReadSpent(dir, "b", nil); err != nil || len(some) != 1 || some[0].Topic != "in" {
		t.Errorf("of stream b: %+v, %v", some, err)
	}
	if none, err := streamtest.ReadSpent(t.TempDir(), "", nil); err != nil || len(none) != 0 {
		t.Errorf("without a ledger: %+v, %v", none, err)
	}
	if text, err := json.Marshal(all); err != nil || !strings.Contains(string(text), `"by":[{"stream":"a"`) {
		t.Errorf("as JSON: %s, %v", text, err)
	}
	file := filepath.Join(dir, "ledger.jsonl")
	data, err := os.ReadFile(file)
	fixtures.Must(t, err)
	fixtures.Must(t, os.WriteFile(file, []byte(strings.Replace(string(data), `"mu":0.2`, `"mu":0.1`, 1)), 0o600))
	if _, err := streamtest.ReadSpent(dir, "", nil); err == nil {
		t.Error("an edited ledger is accepted")
	}
}
