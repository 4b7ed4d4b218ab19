package stream_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// BenchmarkDaemon runs the daemon over packed records of 16 columns, and measures from the first commit to the commit
// of the last step. Runs alternate between the daemon and a reader that ignores the records. The broker is another
// process.
func BenchmarkDaemon(b *testing.B) {
	benchDaemon(b,
		[]string{streamtest.Spawn(b, streamtest.ChildSpec{Role: "broker", Topics: []string{"in"}}).Up().Addr}, "in")
}

func benchDaemon(b *testing.B, addrs []string, topic string) {
	const columns, step, records = 16, 1000, 1_200_000
	p := kafkatest.NewProducer(b, addrs, topic, 0, "")
	var batch []kafkatest.Record
	for _, rec := range fixtures.PackedRecords(columns, 1000) {
		batch = append(batch, kafkatest.Record{Value: rec.Value})
	}
	for range records / len(batch) {
		p.Send(batch...)
	}
	var whole, bare, wholeCPU, bareCPU time.Duration
	applied := 0
	for i := 0; b.Loop(); i++ {
		toml := fixtures.With(fixtures.WideStream(columns, step), `"in"`, fmt.Sprintf("%q", topic), `"out"`,
			fmt.Sprintf("%q", fmt.Sprint(topic, ".dp-", i)))
		r := streamtest.NewRigAt(b, nil, addrs[0], toml)
		r.Commit = "50ms"
		x := r.Start()
		var first uint64
		x.Until("a commit", func(s monitor.TaskStatus) bool { first = s.Step; return s.Step > 0 })
		begun, busy := time.Now(), fixtures.ProcessorTime(b)
		x.Until("the last commit", func(s monitor.TaskStatus) bool { return s.Step == records/step })
		whole += time.Since(begun)
		wholeCPU += fixtures.ProcessorTime(b) - busy
		applied += records - int(first)*step
		x.End()

		begun, busy = time.Now(), fixtures.ProcessorTime(b)
		reader, err := r.Client.NewReader(kafka.ReaderOptions{Topic: topic, PartitionMaxBytes: 1 << 20},
			kafka.Position{LeaderEpoch: -1})
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
		bareCPU += fixtures.ProcessorTime(b) - busy
	}
	own, read := float64(applied)/whole.Seconds(), float64(b.N)*records/bare.Seconds()
	b.ReportMetric(own/1e6, "Mrecords/s")
	b.ReportMetric(read/1e6, "Mrecords/s-read")
	b.ReportMetric(own/read, "ratio")
	ownCPU, readCPU := float64(wholeCPU.Nanoseconds())/float64(applied),
		float64(bareCPU.Nanoseconds())/(float64(b.N)*records)
	b.ReportMetric(ownCPU, "cpu-ns/record")
	b.ReportMetric(readCPU, "cpu-ns/record-read")
	b.ReportMetric(ownCPU/readCPU, "cpu-ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDaemonUsers runs the daemon over packed records of 16 columns with a user key, of a million persons in
// random order. Runs alternate between protecting persons and protecting records. It reports the processor time per
// record, including fetch and release; other users of memory and cores affect that little. The broker is another
// process.
func BenchmarkDaemonUsers(b *testing.B) {
	const columns, step, records = 16, 1000, 1_200_000
	defer func(least, most uint64) {
		persons.SnapshotLeast, state.PersonsBytes = least, most
	}(persons.SnapshotLeast, state.PersonsBytes)
	persons.SnapshotLeast, state.PersonsBytes = 64<<20, epoch.MaxPendingBytes // tests lower these
	addr := streamtest.Spawn(b, streamtest.ChildSpec{Role: "broker", Topics: []string{"in"}}).Up().Addr
	p := kafkatest.NewProducer(b, []string{addr}, "in", 0, "")
	rng := rand.New(rand.NewPCG(20, 21))
	values := fixtures.PackedRecords(columns, 1000)
	batch := make([]kafkatest.Record, len(values))
	for range records / len(values) {
		for i := range batch {
			batch[i] = kafkatest.Record{Key: fmt.Appendf(nil, "%012x", rng.Uint64N(1e6)), Value: values[i].Value}
		}
		p.Send(batch...)
	}
	costs := map[string][]float64{}
	for i := 0; b.Loop(); i++ {
		for name, user := range map[string]string{
			"with":    "user = { key = \"record-key\", cap = 1200, per_step = 255, max_users = 1000000 }\n",
			"without": "",
		} {
			toml := fixtures.With(fixtures.WideStream(columns, step), `"out"`,
				fmt.Sprintf("%q", fmt.Sprint(name, ".dp-", i)), "step = 1000\n", "step = 1000\n"+user)
			r := streamtest.NewRigAt(b, nil, addr, toml)
			r.Commit = "200ms"
			x := r.Start()
			var first uint64
			x.Until("a commit", func(s monitor.TaskStatus) bool { first = s.Step; return s.Step > 0 })
			busy := fixtures.ProcessorTime(b)
			x.Until("the last commit", func(s monitor.TaskStatus) bool { return s.Step == records/step })
			costs[name] = append(costs[name],
				float64((fixtures.ProcessorTime(b)-busy).Nanoseconds())/float64(records-int(first)*step))
			x.End()
		}
	}
	b.ReportMetric(fixtures.Median(costs["with"]), "cpu-ns/record")
	b.ReportMetric(fixtures.Median(costs["without"]), "cpu-ns/record-without")
	b.ReportMetric(fixtures.Median(costs["with"])/fixtures.Median(costs["without"]), "cpu-ratio")
	b.ReportMetric(0, "ns/op")
}
