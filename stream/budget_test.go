package stream

import (
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/core"
)

// TestBudgetOwnLines: what a source was charged after each line is what a ledger that ends
// there says, and lines about other sources change nothing.
func TestBudgetOwnLines(t *testing.T) {
	t.Parallel()
	openEmpty := func() *ledger {
		l, err := openLedger(newSimDisk("/s"), "/s", nil)
		must(t, err)
		return l
	}
	both, alone := openEmpty(), openEmpty()
	var want []float64
	add := func(e Entry, event bool) {
		t.Helper()
		must(t, alone.append(e))
		must(t, both.append(e))
		elsewhere := e
		elsewhere.Source.Partition = 1
		elsewhere.Cost.Mu *= 2
		must(t, both.append(elsewhere))
		if event {
			spent, err := both.chargedEpsilon(ofRecords(testSource), dp.ZeroOut, 1e-8)
			must(t, err)
			want = append(want, core.ToShow(spent))
		}
		_, err := both.budgetOf(ofRecords(testSource), 3) // reads on line by line, where alone reads once
		must(t, err)
	}
	limit := Entry{Kind: kindLimit, Stream: "orders", Source: testSource, Epoch: 1, LimitEpsilon: 2, LimitDelta: 1e-8}
	add(charging(1, 0, -1, dp.ZeroOut, 0.1), true)
	add(limit, true)
	add(ending(kindClose, 1, 100), true)
	add(ending(kindDestroyed, 1, 0), false)
	add(charging(2, 50, -1, dp.ZeroOut, 0.2), true)
	add(ending(kindVoid, 2, 0), true)
	add(charging(3, 50, 300, dp.ZeroOut, 0.3), true)
	add(ending(kindClose, 3, 200), true)
	for epoch := uint64(4); len(want) <= budgetEvents; epoch++ {
		add(charging(epoch, 200, 300, dp.ZeroOut, 0.01), true)
		add(ending(kindClose, epoch, 250), true)
	}
	if got, n := both.touched([]account{ofRecords(testSource)}), len(alone.all()); got != n {
		t.Errorf("%d lines concern the source, not %d", got, n)
	}
	for _, most := range []int{0, 3, budgetEvents} {
		got, err := both.budgetOf(ofRecords(testSource), most)
		must(t, err)
		same, err := alone.budgetOf(ofRecords(testSource), most)
		must(t, err)
		for i := range same {
			same[i].Time = got[i].Time
		}
		if !reflect.DeepEqual(got, same) {
			t.Errorf("with another source:\n%+v\nalone:\n%+v", got, same)
		}
		for i, e := range got {
			if w := want[len(want)-len(got)+i]; e.ChargedEpsilon != w {
				t.Errorf("after event %d of %d (%s) ε %g is charged, not %g", i, len(got), e.Kind, e.ChargedEpsilon, w)
			}
		}
	}
}
