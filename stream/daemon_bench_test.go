package stream

import (
	"fmt"
	"testing"
	"time"

	"streamdp/internal/kafka"
	"streamdp/internal/kafka/kafkatest"
)

// BenchmarkDaemon runs the daemon over packed records of 16 columns, from the first
// commit to that of the last step, in turn with a reader that does nothing with them. The
// broker is another process.
func BenchmarkDaemon(b *testing.B) {
	benchDaemon(b, []string{spawn(b, childSpec{Role: "broker", Topics: []string{"in"}}).up().addr}, "in")
}

func benchDaemon(b *testing.B, addrs []string, topic string) {
	const columns, step, records = 16, 1000, 1_200_000
	p := kafkatest.NewProducer(b, addrs, topic, 0, "")
	var batch []kafkatest.Record
	for _, rec := range packedRecords(columns, 1000) {
		batch = append(batch, kafkatest.Record{Value: rec.Value})
	}
	for range records / len(batch) {
		p.Send(batch...)
	}
	var whole, bare, wholeCPU, bareCPU time.Duration
	applied := 0
	for i := 0; b.Loop(); i++ {
		toml := with(wideStream(columns, step), `"in"`, fmt.Sprintf("%q", topic), `"out"`, fmt.Sprintf("%q", fmt.Sprint(topic, ".dp-", i)))
		r := newRigAt(b, nil, addrs[0], toml)
		r.commit = "50ms"
		x := r.start()
		var first uint64
		x.until("a commit", func(s TaskStatus) bool { first = s.Step; return s.Step > 0 })
		begun, busy := time.Now(), processorTime(b)
		x.until("the last commit", func(s TaskStatus) bool { return s.Step == records/step })
		whole += time.Since(begun)
		wholeCPU += processorTime(b) - busy
		applied += records - int(first)*step
		x.end()

		begun, busy = time.Now(), processorTime(b)
		reader, err := r.client.NewReader(kafka.ReaderOptions{Topic: topic, PartitionMaxBytes: 1 << 20}, kafka.Position{LeaderEpoch: -1})
		if err != nil {
			b.Fatal(err)
		}
		var chunk kafka.Chunk
		for reader.Position().Next < records {
			if err := reader.Fetch(b.Context(), &chunk); err != nil && !kafka.Retriable(err) {
				b.Fatal(err)
			}
		}
		bare += time.Since(begun)
		bareCPU += processorTime(b) - busy
	}
	own, read := float64(applied)/whole.Seconds(), float64(b.N)*records/bare.Seconds()
	b.ReportMetric(own/1e6, "Mrecords/s")
	b.ReportMetric(read/1e6, "Mrecords/s-read")
	b.ReportMetric(own/read, "ratio")
	ownCPU, readCPU := float64(wholeCPU.Nanoseconds())/float64(applied), float64(bareCPU.Nanoseconds())/(float64(b.N)*records)
	b.ReportMetric(ownCPU, "cpu-ns/record")
	b.ReportMetric(readCPU, "cpu-ns/record-read")
	b.ReportMetric(ownCPU/readCPU, "cpu-ratio")
	b.ReportMetric(0, "ns/op")
}
