package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/ledger"
)

// TestPrintPopulations: the command prints what one person and several persons have paid, for which epochs, and how the
// epochs add up.
func TestPrintPopulations(t *testing.T) {
	t.Parallel()
	two := 3.0284
	p := ledger.PopulationSpent{
		Unit: "person", Population: "members", LimitEpsilon: 3, LimitDelta: 1e-8, Adjacency: dp.ZeroOut, Mu: 0.27728,
		ChargedEpsilon: 1.4426,
		Persons:        []ledger.GroupSpent{{Count: 2, Epsilon: &two}, {Count: 1000}},
		Epochs: []ledger.PopulationEpoch{
			{SpentBy: ledger.SpentBy{Stream: "orders", Epoch: 1, Epsilon: 1}, Topic: "in", Key: "record-key", Cap: 52,
				Separation: 168, PerStep: 1, Partitioner: "none", Mu: 0.196067, Charged: true},
			{SpentBy: ledger.SpentBy{Stream: "orders", Epoch: 2, Epsilon: 1}, Topic: "in", Key: "record-key", Cap: 52,
				Separation: 168, PerStep: 1, Partitioner: "none", Mu: 0.196067},
			{SpentBy: ledger.SpentBy{Stream: "orders", Partition: 1, Epoch: 1, Epsilon: 1, Open: true}, Topic: "in",
				Key: "record-key", Cap: 52, Separation: 168, PerStep: 1, Partitioner: "none", Mu: 0.196067,
				Charged: true},
		},
	}
	show := func() string {
		var out bytes.Buffer
		if err := printPopulations(&out, []ledger.PopulationSpent{p}); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	got := show()
	for _, words := range []string{
		"population members: a person pays at most epsilon 1.4426 at delta 1e-08 (zero-out), mu 0.27728; the " +
			"limit is 3\n",
		"2 persons together pay at most epsilon 3.0284\n", "1000 persons together have no guarantee\n",
		"the root of the sum of its squares over all epochs",
		"orders-0  1 ", "closed\n", "closed without a step, charges nothing\n", "orders-1  1 ", "open\n",
	} {
		if !strings.Contains(got, words) {
			t.Errorf("without %q:\n%s", words, got)
		}
	}
	p.OnePartition, p.Epochs[2].Period = true, 30
	if got := show(); !strings.Contains(got, "in one period of 30 steps") ||
		!strings.Contains(got, "every user key counts in one partition only") || strings.Contains(got, "all "+
		"partitions") {
		t.Error(got)
	}
}
