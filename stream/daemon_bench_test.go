package stream

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
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

// BenchmarkDaemonUsers runs the daemon over packed records of 16 columns with a user key, of a million
// persons in random order, protected as persons and as records in turn. It reports the processor time of
// a record, fetch and release included, of which memory and cores of others change little. The broker is
// another process.
func BenchmarkDaemonUsers(b *testing.B) {
	const columns, step, records = 16, 1000, 1_200_000
	defer func(least, most uint64) { persons.SnapshotLeast, usersBytes = least, most }(persons.SnapshotLeast, usersBytes)
	persons.SnapshotLeast, usersBytes = 64<<20, maxPendingBytes // what tests lower
	addr := spawn(b, childSpec{Role: "broker", Topics: []string{"in"}}).up().addr
	p := kafkatest.NewProducer(b, []string{addr}, "in", 0, "")
	rng := rand.New(rand.NewPCG(20, 21))
	values := packedRecords(columns, 1000)
	batch := make([]kafkatest.Record, len(values))
	for range records / len(values) {
		for i := range batch {
			batch[i] = kafkatest.Record{Key: fmt.Appendf(nil, "%012x", rng.Uint64N(1e6)), Value: values[i].Value}
		}
		p.Send(batch...)
	}
	costs := map[string][]float64{}
	for i := 0; b.Loop(); i++ {
		for name, user := range map[string]string{"with": "user = { key = \"record-key\", cap = 1200, per_step = 255, max_users = 1000000 }\n", "without": ""} {
			toml := with(wideStream(columns, step), `"out"`, fmt.Sprintf("%q", fmt.Sprint(name, ".dp-", i)), "step = 1000\n", "step = 1000\n"+user)
			r := newRigAt(b, nil, addr, toml)
			r.commit = "200ms"
			x := r.start()
			var first uint64
			x.until("a commit", func(s TaskStatus) bool { first = s.Step; return s.Step > 0 })
			busy := processorTime(b)
			x.until("the last commit", func(s TaskStatus) bool { return s.Step == records/step })
			costs[name] = append(costs[name], float64((processorTime(b)-busy).Nanoseconds())/float64(records-int(first)*step))
			x.end()
		}
	}
	b.ReportMetric(median(costs["with"]), "cpu-ns/record")
	b.ReportMetric(median(costs["without"]), "cpu-ns/record-without")
	b.ReportMetric(median(costs["with"])/median(costs["without"]), "cpu-ratio")
	b.ReportMetric(0, "ns/op")
}
