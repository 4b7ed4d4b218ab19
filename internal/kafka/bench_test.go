package kafka

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/sys/unix"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

const serveEnv = "STREAMDP_BENCH_BROKER"

// TestMain turns the test binary into a broker when a benchmark starts it as one, so that the broker's memory and time
// are not counted with the reader's.
func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) == "" {
		os.Exit(m.Run())
	}
	// All records are equal, so that the anchor is found at any offset.
	batch := kafkatest.Batch{Producer: -1}
	for i := range 1000 {
		batch.Records = append(batch.Records, kafkatest.Record{Offset: int64(i), Value: bytes.Repeat([]byte("x"), 128)})
	}
	batch.LastDelta = 999
	b, err := embedded.Start(embedded.Options{
		Topics: []string{"in"},
		Extra:  []kfake.Opt{kfake.SyntheticFetch(kfake.SyntheticBatch{Batch: batch.Append(nil)})},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(b.Addr())
	io.Copy(io.Discard, os.Stdin) // until the parent ends
	b.Close()
}

func benchBroker(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(addr)
}

// BenchmarkReader reads records of 128 bytes from a broker in another process, alternating with a loop that only counts
// records in raw responses.
func BenchmarkReader(b *testing.B) {
	benchReader(b, dialBroker(b, benchBroker(b)), "in", 1<<20)
}

// BenchmarkRealReader is BenchmarkReader with Apache Kafka as the broker.
func BenchmarkRealReader(b *testing.B) {
	addrs := kafkatest.NewReal(b).Addrs
	topic := kafkatest.Topic(b, addrs, nil)
	p := kafkatest.NewProducer(b, addrs, topic, 0, "")
	batch := make([]kafkatest.Record, 1000)
	for i := range batch {
		batch[i].Value = bytes.Repeat([]byte("x"), 128)
	}
	for range benchRecords/1000 + 40 {
		p.Send(batch...)
	}
	benchReader(b, dialBroker(b, addrs...), topic, 0)
}

// cpuTime is the processor time of this process. Unlike wall-clock time, it does not include the broker or other
// processes.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const benchRecords = 700_000

// benchReader reads the records from offset `from` on, repeatedly.
func benchReader(b *testing.B, c *Client, topic string, from int64) {
	ctx := b.Context()
	onRelease = nil
	var chunks [3]Chunk
	read := func() (n int) {
		r := newReader(b, c, ReaderOptions{Topic: topic}, Position{Next: from, LeaderEpoch: -1})
		for i := 0; r.Position().Next < from+benchRecords; i++ {
			chunk := &chunks[i%3]
			if err := fetchOnce(ctx, r, chunk); err != nil {
				b.Fatal(err)
			}
			n += len(chunk.Records)
		}
		if r.ahead != nil {
			<-r.ahead.done
		}
		return n
	}
	count := func() (n int) {
		// kafka-go decodes only its own type of response. No fetch is in progress now.
		protocol.Register(&fetch.Request{}, &fetch.Response{})
		defer protocol.Register(&fetch.Request{}, &fetchResponse{})
		next := from
		for next < from+benchRecords {
			m, err := c.transport.RoundTrip(ctx, c.addr, &fetch.Request{
				ReplicaID: -1, MaxWaitTime: 500, MinBytes: 1, MaxBytes: DefaultMaxBytes,
				IsolationLevel: int8(kafkago.ReadCommitted), SessionID: -1, SessionEpoch: -1,
				Topics: []fetch.RequestTopic{
					{Topic: topic,
						Partitions: []fetch.RequestPartition{
							{CurrentLeaderEpoch: -1, FetchOffset: next, PartitionMaxBytes: DefaultPartitionMaxBytes}}}},
			})
			if err != nil {
				b.Fatal(err)
			}
			stream := m.(*fetch.Response).Topics[0].Partitions[0].RecordSet.Records.(*protocol.RecordStream)
			for {
				rec, err := stream.ReadRecord()
				if err != nil {
					break
				}
				next = rec.Offset + 1
				closeRecord(rec)
				n++
			}
		}
		return n
	}
	read()
	count()
	var (
		records, counted int
		own, bare        time.Duration
		mallocs          uint64
		ownCPU, bareCPU  time.Duration
		before, after    runtime.MemStats
	)
	for b.Loop() {
		runtime.ReadMemStats(&before)
		begin, busy := time.Now(), cpuTime(b)
		records += read()
		own += time.Since(begin)
		ownCPU += cpuTime(b) - busy
		runtime.ReadMemStats(&after)
		mallocs += after.Mallocs - before.Mallocs
		begin, busy = time.Now(), cpuTime(b)
		counted += count()
		bare += time.Since(begin)
		bareCPU += cpuTime(b) - busy
	}
	perRecord := func(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / float64(n) }
	b.ReportMetric(perRecord(own, records), "ns/record")
	b.ReportMetric(perRecord(bare, counted), "ns/record-bare")
	b.ReportMetric(perRecord(own, records)/perRecord(bare, counted), "ratio")
	b.ReportMetric(perRecord(ownCPU, records), "cpu-ns/record")
	b.ReportMetric(perRecord(bareCPU, counted), "cpu-ns/record-bare")
	b.ReportMetric(perRecord(ownCPU, records)/perRecord(bareCPU, counted), "cpu-ratio")
	b.ReportMetric(float64(records)/own.Seconds()/1e6, "Mrecords/s")
	b.ReportMetric(float64(mallocs)/float64(records), "allocs/record")
	b.ReportMetric(0, "ns/op")
}
