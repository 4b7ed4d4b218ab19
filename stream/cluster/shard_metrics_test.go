package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/monitor"
)

// fewBytes is a holding with little content. Like a real holding, it hands over its content only once.
type fewBytes struct {
	err         error
	given, said bool
}

func (h *fewBytes) Values() map[string]shardlog.Value {
	if h.given {
		return nil
	}
	h.given = true
	return map[string]shardlog.Value{"a": {Data: []byte("12345")}, "b": {Data: []byte("1")}}
}

func (h *fewBytes) Lines() [][]byte {
	if h.said {
		return nil
	}
	h.said = true
	return [][]byte{[]byte("12"), []byte("345")}
}

func (*fewBytes) Lost() <-chan struct{}        { return nil }
func (*fewBytes) Affirm(context.Context) error { return nil }
func (h *fewBytes) Update(context.Context, map[string]shardlog.Value, []string, [][]byte) error {
	return h.err
}

// read returns a measured holding whose content was read as a shard reads it.
func (h *fewBytes) read(t *testing.T, m *monitor.Metrics) *measured {
	t.Helper()
	counted := measure(h, m)
	if v, l := counted.Values(), counted.Lines(); len(v) != 2 || len(l) != 2 {
		t.Errorf("%d values and %d lines are left in the holding", len(v), len(l))
	}
	return counted
}

// The metrics of a shard count bytes read, updates committed and shards lost. Metrics of sizes depend on records, so
// they are absent if metrics are public.
func TestShardMetrics(t *testing.T) {
	for _, public := range []bool{false, true} {
		m := monitor.NewMetrics(public, false, "v", false)
		expect := func(when, want string) {
			t.Helper()
			families, err := m.Registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range families {
				name := strings.TrimPrefix(f.GetName(), "streamdp_")
				for _, x := range f.GetMetric() {
					switch name {
					case "ledger_lines":
						got = append(got, fmt.Sprint(name, " ", x.GetGauge().GetValue()))
					case "restored_bytes_total", "state_bytes_total":
						got = append(got, fmt.Sprint(name, " ", x.GetCounter().GetValue()))
					case "state_transactions_total":
						got = append(got,
							fmt.Sprint(name, " ", x.GetLabel()[0].GetValue(), " ", x.GetCounter().GetValue()))
					case "state_commit_seconds":
						got = append(got, fmt.Sprint(name, " ", x.GetHistogram().GetSampleCount()))
					}
				}
			}
			if s := strings.Join(got, ", "); s != want {
				t.Errorf("%s, public %v: %s, want %s", when, public, s, want)
			}
		}
		held := &fewBytes{}
		h := held.read(t, m)
		put, lines := map[string]shardlog.Value{"c": {Data: []byte("123")}}, [][]byte{[]byte("1234")}
		if err := h.Update(t.Context(), put, nil, lines); err != nil {
			t.Fatal(err)
		}
		for _, held.err = range []error{errors.New("no"), fmt.Errorf("%w: no", shardlog.ErrLost)} {
			if err := h.Update(t.Context(), put, nil, lines); err != held.err {
				t.Fatal(err)
			}
		}
		if public {
			expect("after two updates",
				"ledger_lines 3, state_transactions_total committed 1, state_transactions_total lost 1, "+
					"state_transactions_total refused 1")
			continue
		}
		const total = "restored_bytes_total 11, state_bytes_total 7, state_commit_seconds 1, " +
			"state_transactions_total committed 1, state_transactions_total lost 1, state_transactions_total refused 1"
		expect("after two updates", "ledger_lines 3, "+total)
		h.end()
		h.end()
		expect("at the end", "ledger_lines 0, "+total)
		other := (&fewBytes{}).read(t, m)
		expect("of the next", "ledger_lines 2, "+strings.Replace(total, "11", "22", 1))
		other.end()
	}
}
