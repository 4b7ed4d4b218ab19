package input_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/state"
)

// BenchmarkMerge compares one partition with eight merged ones, for packed records of 16 columns, from response to
// release, without a broker. Decoding and summing run as in the daemon. It reports the records per second of both and
// their ratio, for the processors that the benchmark may use. processors-one is the number of processors that one
// partition keeps busy. cpu-ratio is the processor time of eight partitions divided by that of one.
func BenchmarkMerge(b *testing.B) {
	const columns, step, records = 16, 1000, 2_000_000
	list := fixtures.PackedRecords(columns, 4000)
	var one, eight, cpuOne, cpuEight time.Duration
	for range b.N {
		begun := fixtures.ProcessorTime(b)
		one += readMerged(b, fixtures.WideStream(columns, step), list, 1, records)
		half := fixtures.ProcessorTime(b)
		eight += readMerged(b, fixtures.WideStream(columns, step), list, 8, records)
		cpuOne, cpuEight = cpuOne+half-begun, cpuEight+fixtures.ProcessorTime(b)-half
	}
	rate := func(d time.Duration) float64 { return float64(b.N) * records / d.Seconds() / 1e6 }
	b.ReportMetric(rate(one), "Mrecords/s-one")
	b.ReportMetric(rate(eight), "Mrecords/s-eight")
	b.ReportMetric(rate(eight)/rate(one), "ratio")
	b.ReportMetric(float64(cpuEight)/float64(cpuOne), "cpu-ratio")
	b.ReportMetric(float64(cpuOne)/float64(one), "processors-one")
	b.ReportMetric(float64(runtime.GOMAXPROCS(0)), "processors")
}

// readMerged returns the time to release the records of the given number of partitions. A single partition is not
// merged.
func readMerged(b *testing.B, toml string, list []kafka.Record, partitions, records int) time.Duration {
	b.Helper()
	if partitions > 1 {
		toml = fixtures.With(toml, "step = 1000", "step = 1000\nmerge = true")
	}
	cfg, err := config.Parse("m.toml",
		[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+toml))
	fixtures.Must(b, err)
	m := &core.Manifest{Stream: "m", Epoch: 1, Source: core.Source{Partition: core.Merged}, Version: "test"}
	var numbers []int
	for p := range partitions {
		m.Parts, numbers = append(m.Parts, core.Part{Partition: p, Incarnation: 1}), append(numbers, p)
	}
	s := cfg.Streams[0].Over(numbers)
	if partitions == 1 {
		m.Partition, m.Parts = 0, nil
	}
	mech, err := core.NewMechanism(s, nil, nil)
	fixtures.Must(b, err)
	keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "m", 1, [16]byte{3}, [32]byte{4})
	fixtures.Must(b, err)
	c, err := core.New(s, m, []byte("file"), mech, keys)
	fixtures.Must(b, err)
	defer c.Destroy()

	ctx, stop := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	feed := epoch.NewFeed(&epoch.Process{Log: slog.New(slog.DiscardHandler)}, core.Task{}, s, func() {})
	open := func() *input.Fetcher {
		decoder, err := codec.NewDecoder(core.FormatOf(s), runtime.GOMAXPROCS(0))
		fixtures.Must(b, err)
		f := input.NewFetcher(feed, 1, 0, nil, decoder)
		wg.Go(func() { // does the work of Fetcher.Run, with responses in memory
			defer close((*f.Fetched()))
			for next := int64(0); ; next += int64(len(list)) {
				select {
				case <-ctx.Done():
					return
				case x := <-f.Free:
					x.First, x.Next, x.Records = next, next+int64(len(list)), slices.Grow(x.Records[:0], len(list))
					for i, rec := range list {
						rec.Offset = next + int64(i)
						x.Records = append(x.Records, rec)
					}
					x.Bytes = len(list) * len(list[0].Value)
					(*f.Fetched()) <- x
				}
			}
		})
		wg.Go(f.Decode)
		return f
	}
	if partitions == 1 {
		in := open()
		begun := time.Now()
		for int(c.First()) < records {
			batch := <-in.Full
			for i := range batch.Records {
				for batch.Records[i].Offset >= c.End() {
					_, err := c.Close()
					fixtures.Must(b, err)
				}
				c.Add(batch.Records[i].Offset, batch.Row(i))
			}
			for batch.Next >= c.End() {
				_, err := c.Close()
				fixtures.Must(b, err)
			}
			in.Free <- batch
		}
		return time.Since(begun)
	}
	x := &input.Merger{At: make([]state.Place, partitions), MergedSums: make(chan []input.StepSum)}
	for _, leaf := range c.Leaves() {
		l := &input.PartitionSummer{Leaf: leaf, Sums: make(chan input.StepSum, 4), Free: make(chan *core.Sum, 5),
			Fetch: open()}
		for range cap(l.Free) {
			sum, err := c.NewSum()
			fixtures.Must(b, err)
			l.Free <- sum
		}
		x.Leaves = append(x.Leaves, l)
		wg.Go(func() { l.Run(ctx) })
	}
	wg.Go(func() { x.Collect(ctx) })
	begun := time.Now()
	for int(c.First()) < records {
		steps := <-x.MergedSums
		_, err := c.Merge(input.SumsOf(steps), func() { x.Emptied(steps) })
		fixtures.Must(b, err)
		x.Merged(steps)
	}
	took := time.Since(begun)
	if c.Step() != uint64(records/1000/partitions) {
		b.Fatal(fmt.Sprint("closed ", c.Step(), " steps"))
	}
	return took
}
