package ledger_test

import (
	"reflect"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

// TestBudgetOwnLines: the charge of a source after each line equals that of a ledger that ends there, and lines about
// other sources change nothing.
func TestBudgetOwnLines(t *testing.T) {
	t.Parallel()
	openEmpty := func() *ledger.Ledger {
		l, err := ledger.Open(simdisk.NewSimDisk("/s"), "/s", nil)
		fixtures.Must(t, err)
		return l
	}
	both, alone := openEmpty(), openEmpty()
	var want []float64
	add := func(e ledger.Entry, event bool) {
		t.Helper()
		fixtures.Must(t, alone.Append(e))
		fixtures.Must(t, both.Append(e))
		elsewhere := e
		elsewhere.Source.Partition = 1
		elsewhere.Cost.Mu *= 2
		fixtures.Must(t, both.Append(elsewhere))
		if event {
			spent, err := both.ChargedEpsilon(streamtest.OfRecords(fixtures.TestSource), dp.ZeroOut, 1e-8)
			fixtures.Must(t, err)
			want = append(want, core.ToShow(spent))
		}
		// `both` is queried after each line, `alone` only once
		_, err := both.BudgetOf(streamtest.OfRecords(fixtures.TestSource), 3)
		fixtures.Must(t, err)
	}
	limit := ledger.Entry{Kind: ledger.KindLimit, Stream: "orders", Source: fixtures.TestSource, Epoch: 1,
		LimitEpsilon: 2, LimitDelta: 1e-8}
	add(streamtest.Charging(1, 0, -1, dp.ZeroOut, 0.1), true)
	add(limit, true)
	add(ending(ledger.KindClose, 1, 100), true)
	add(ending(ledger.KindDestroyed, 1, 0), false)
	add(streamtest.Charging(2, 50, -1, dp.ZeroOut, 0.2), true)
	add(ending(ledger.KindVoid, 2, 0), true)
	add(streamtest.Charging(3, 50, 300, dp.ZeroOut, 0.3), true)
	add(ending(ledger.KindClose, 3, 200), true)
	for epoch := uint64(4); len(want) <= ledger.NewBudgetEvents; epoch++ {
		add(streamtest.Charging(epoch, 200, 300, dp.ZeroOut, 0.01), true)
		add(ending(ledger.KindClose, epoch, 250), true)
	}
	if got, n := both.Touched([]ledger.Account{streamtest.OfRecords(fixtures.TestSource)}), len(alone.All()); got != n {
		t.Errorf("%d lines concern the source, not %d", got, n)
	}
	for _, most := range []int{0, 3, ledger.NewBudgetEvents} {
		got, err := both.BudgetOf(streamtest.OfRecords(fixtures.TestSource), most)
		fixtures.Must(t, err)
		same, err := alone.BudgetOf(streamtest.OfRecords(fixtures.TestSource), most)
		fixtures.Must(t, err)
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
