package monitor_test

import (
	"testing"

	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestSchemaSeries: ids that the registry does not have share one series, and so do ids after the first maxSchemaIDs.
// If the schema of an id was found, the registry counts as having it.
func TestSchemaSeries(t *testing.T) {
	m := monitor.NewMetrics(false, false, "", false)
	task := core.Task{Stream: "s"}
	b := &codec.Batch{}
	for id := range int32(300) {
		b.Schemas = append(b.Schemas, id, id, -1)
		if id%2 == 0 {
			b.Reasons = append(b.Reasons, codec.Decoded, codec.NoColumn, codec.NoSchema)
		} else {
			b.Reasons = append(b.Reasons, codec.NoSchema, codec.NoSchema, codec.NoSchema)
		}
	}
	m.BySchema(task, b, func(id int32) bool { return id%4 == 0 })
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	series := 0
	for _, f := range families {
		if f.GetName() != "streamdp_diagnostic_schema_records_total" {
			continue
		}
		for _, x := range f.GetMetric() {
			series++
			var name string
			for _, l := range x.GetLabel() {
				if l.GetName() == "schema" {
					name = l.GetValue()
				}
			}
			got[name] += x.GetCounter().GetValue()
		}
	}
	if series != 2*monitor.MaxSchemaIDs+2+1 || got["unknown"] != 300+300 || got["other"] != 100 || got["2"] != 2 {
		t.Errorf("%d series, unknown %g, other %g, id 2 %g", series, got["unknown"], got["other"], got["2"])
	}
}
