package stream

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// counter returns what a counter of a daemon says for the value of a label.
func counter(t testing.TB, all prometheus.Gatherer, name, label string) int {
	t.Helper()
	families, err := all.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != "streamdp_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					return int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return 0
}
