package stream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
)

// BenchmarkPartials merges 64 partitions of JSON records with one process and with two; each may use one
// processor; the broker is another process. It reports the records per second of both, from the tenth release to the
// last, their ratio, and the bytes of the topic of sums per record.
func BenchmarkPartials(b *testing.B) {
	const columns, step, partitions, each = 16, 1000, 64, 15_000
	broker := streamtest.Spawn(b, streamtest.ChildSpec{Role: "broker"}).Up()
	r := streamtest.NewRigAt(b, nil, broker.Addr, "")
	fixtures.Must(b, r.Client.CreateTopic(b.Context(), "in", partitions, nil))
	batch := make([]kafkatest.Record, step)
	names := ""
	for i := range batch {
		text := "{"
		for j := range columns {
			text += fmt.Sprintf("%q: %d.%03d, ", fmt.Sprint("c", j), i%3-1, (7*i+j)%1000)
		}
		batch[i].Value = []byte(text + `"note": "x"}`)
	}
	for j := range columns {
		names += fmt.Sprintf("%q, ", fmt.Sprint("c", j))
	}
	for p := range partitions {
		producer := kafkatest.NewProducer(b, []string{broker.Addr}, "in", int32(p), "")
		for range each / step {
			producer.Send(batch...)
		}
	}
	toml := fixtures.With(fixtures.MachineStream, `topic = "in", codec = "json", columns = ["a", "b", "c"]`,
		fmt.Sprintf(`topic = "in", partition = "all", codec = "json", columns = [%s]`, names),
		"centre = [1.0, 0.0, -2.0]\nscale  = [0.5, 4.0, 1.5]\n", "", "step   = 7",
		fmt.Sprintf("step = %d\nmerge = true", step), `"out"`, `"OUTPUT"`)
	rates := map[int][]float64{}
	bytes := 0.0
	for i := 0; b.Loop(); i++ {
		for _, members := range []int{1, 2} {
			x := r.Sibling(fixtures.With(toml, "OUTPUT", fmt.Sprintf("out-%d-%d", i, members)))
			x.Commit = "50ms"
			if i == 0 && members == 1 {
				fixtures.Must(b, r.Client.CreateTopic(b.Context(), "group.partials", 1, nil))
			}
			var others []*streamtest.Process
			if members == 2 {
				others = append(others,
					streamtest.Spawn(b,
						streamtest.ChildSpec{Role: "reader", Config: string(x.Text()), Seed: x.Seed, Members: 2,
							Self: 1, Procs: 1}).Up())
			}
			before := topicBytes(b, r.Client)
			d := streamtest.Spawn(b,
				streamtest.ChildSpec{Role: "daemon", Config: string(x.Text()), Seed: x.Seed, Members: members,
					Procs: 1}).Up()
			var begun time.Time
			var first int64
			for late := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
				end, err := r.Client.End(b.Context(), fmt.Sprintf("out-%d-%d", i, members), 0)
				if kafka.Retriable(err) {
					continue
				}
				fixtures.Must(b, err)
				if begun.IsZero() && end >= 2 {
					begun, first = time.Now(), end
				}
				if end >= each/step {
					rates[members] = append(rates[members],
						float64((end-first)*step*partitions)/time.Since(begun).Seconds())
					break
				}
				if time.Now().After(late) {
					b.Fatalf("%d releases\n%s", end, d.Stderr)
				}
			}
			d.Terminate()
			for _, o := range others {
				o.Terminate()
				bytes += topicBytes(b, r.Client) - before
			}
		}
	}
	mean := func(all []float64) (m float64) {
		for _, x := range all {
			m += x / float64(len(all))
		}
		return m
	}
	b.ReportMetric(mean(rates[1])/1e6, "Mrecords/s-one")
	b.ReportMetric(mean(rates[2])/1e6, "Mrecords/s-two")
	b.ReportMetric(mean(rates[2])/mean(rates[1]), "ratio")
	b.ReportMetric(bytes/float64(b.N)/(partitions*each), "bytes/record")
	b.ReportMetric(0, "ns/op")
}

// topicBytes returns the bytes of all records of the topic of sums.
func topicBytes(b *testing.B, c *kafka.Client) (n float64) {
	b.Helper()
	fixtures.Must(b, c.ReadBack(b.Context(), "group.partials", 0, 0, func(rec *kafka.Record) error {
		n += float64(len(rec.Value))
		return nil
	}))
	return n
}
