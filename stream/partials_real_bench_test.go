package stream_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
)

// BenchmarkPartialsReal merges 8 and 64 partitions of Apache Kafka, with records of 16 columns. Runs alternate between
// one instance of a group and two. Each instance runs Go code on one processor at a time. In the benchmarks "half", a
// control group's quota also limits each instance to half of a processor. The broker on the same two processors then
// has as much processor time as it wants in both cases, so these benchmarks show what another machine would add. In the
// others, the instances and the broker share the two processors.
//
// While one instance is measured, an instance of another group reads the same topic. So in both cases two instances
// share caches, memory and broker, and the processor time per record includes the effect of competing load. Two
// machines would not share these. If one instance is alone on the machine, a record takes a tenth less processor time.
//
// With STREAMDP_CHILD_PROFILE=FILE each instance writes a profile of its processor time to FILE.PID.
//
// The benchmark reports, from the moment when all instances take part to the last release: the rates of records and
// their ratio; the processor time of each process per record; the processors that all of them kept busy; and the bytes
// added to the group's topics per record.
func BenchmarkPartialsReal(b *testing.B) {
	real := kafkatest.NewReal(b)
	const columns, step = 16, 1000
	inputs, runs := map[string]string{}, 0
	for _, c := range []struct {
		codec            string
		partitions, each int
		half             bool
	}{
		{"packed", 8, 800_000, true},
		{"packed", 64, 100_000, true},
		{"json", 8, 400_000, true},
		{"json", 64, 50_000, true},
		{"packed", 64, 100_000, false},
		{"json", 64, 50_000, false},
	} {
		name := fmt.Sprintf("whole/%s/%d", c.codec, c.partitions)
		if c.half {
			name = fmt.Sprintf("half/%s/%d", c.codec, c.partitions)
		}
		b.Run(name, func(b *testing.B) {
			key := fmt.Sprint(c.codec, c.partitions)
			if inputs[key] == "" {
				inputs[key] = fillPartials(b, real.Addrs, c.codec, columns, c.partitions, c.each)
			}
			in := inputs[key]
			toml := fixtures.WideStream(columns, step)
			if c.codec == "json" {
				toml = fixtures.With(toml, `codec = "float64"`, `codec = "json"`)
			}
			toml = fixtures.With(toml, `"in"`, fmt.Sprintf(`%q, partition = "all"`, in), fmt.Sprintf("step = %d", step),
				fmt.Sprintf("step = %d\nmerge = true", step))
			all := map[int][]partialsRun{}
			run := func(n int) partialsRun {
				runs++
				return runPartials(b, real, toml, fmt.Sprintf("%s.%d", in, runs), n, c.half, c.partitions*step,
					c.each/step)
			}
			run(2) // the broker's first run includes compilation
			for b.Loop() {
				for n := 1; n <= 2; n++ {
					all[n] = append(all[n], run(n))
				}
			}
			of := func(n int, f func(partialsRun) float64) float64 {
				var list []float64
				for _, x := range all[n] {
					list = append(list, f(x))
				}
				return fixtures.Median(list)
			}
			// cost returns the processor time per record of the busier instance.
			cost := func(x partialsRun) float64 { return max(x.root, x.worker).Seconds() * 1e9 / x.records }
			rate := func(x partialsRun) float64 { return x.records / x.took.Seconds() / 1e6 }
			for n, name := range map[int]string{1: "one", 2: "two"} {
				b.ReportMetric(of(n, rate), "Mrecords/s-"+name)
				b.ReportMetric(of(n, func(x partialsRun) float64 { return x.broker.Seconds() * 1e9 / x.records }),
					"cpu-ns/record-broker-"+name)
				b.ReportMetric(of(n, func(x partialsRun) float64 { return x.root.Seconds() * 1e9 / x.records }),
					"cpu-ns/record-root-"+name)
				b.ReportMetric(of(n, func(x partialsRun) float64 {
					return (x.root + x.worker + x.beside + x.broker).Seconds() / x.took.Seconds()
				}), "processors-"+name)
			}
			b.ReportMetric(of(2, func(x partialsRun) float64 { return x.worker.Seconds() * 1e9 / x.records }),
				"cpu-ns/record-worker-two")
			b.ReportMetric(of(2, rate)/of(1, rate), "ratio")
			// This is the largest possible speed-up by a second instance, if each has as much processor time as the
			// single one had and nothing else delays them.
			b.ReportMetric(of(1, cost)/of(2, cost), "ratio-by-processor-time")
			b.ReportMetric(of(2, func(x partialsRun) float64 { return x.partials / x.records }),
				"bytes/record-partials")
			b.ReportMetric(of(2, func(x partialsRun) float64 { return x.partials / x.steps }), "bytes/step-partials")
			b.ReportMetric(of(2, func(x partialsRun) float64 { return x.kept / x.records }),
				"bytes/record-state-ledger-control")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// fillPartials makes a topic with records in each partition, and returns its name.
func fillPartials(b *testing.B, addrs []string, codec string, columns, partitions, each int) string {
	b.Helper()
	in := fmt.Sprintf("in-%s-%d-%d", codec, partitions, time.Now().UnixNano())
	fixtures.Must(b,
		fixtures.Dial(b, addrs[0]).CreateTopic(b.Context(), in, partitions, map[string]string{"retention.ms": "-1"}))
	var batch []kafkatest.Record
	for i, rec := range fixtures.PackedRecords(columns, 1000) {
		if batch = append(batch, kafkatest.Record{Value: rec.Value}); codec == "json" {
			batch[i].Value = jsonRow(columns, i)
		}
	}
	var writing sync.WaitGroup
	for part := range 4 {
		writing.Go(func() {
			for p := part; p < partitions; p += 4 {
				producer := kafkatest.NewProducer(b, addrs, in, int32(p), "")
				for range each / len(batch) {
					producer.Send(batch...)
				}
			}
		})
	}
	writing.Wait()
	return in
}

// partialsRun holds the measurements of one run.
type partialsRun struct {
	records, steps       float64
	took                 time.Duration
	root, worker, beside time.Duration // processor time
	broker               time.Duration // including its work for all of them
	partials, kept       float64       // bytes added to the group's topics
}

// runPartials merges a topic's partitions with the given number of instances of a group. If the number is one, an
// instance of another group runs at the same time.
func runPartials(b *testing.B, real *kafkatest.Real, toml, out string, instances int, half bool, perStep,
	steps int) (x partialsRun) {
	b.Helper()
	var all, beside []*streamtest.Process
	defer func() {
		for _, p := range append(all, beside...) {
			p.Terminate()
		}
	}()
	group := func(name string) *streamtest.Rig {
		r := streamtest.NewRigAt(b, nil, real.Addrs[0], fixtures.With(toml, `"out"`, fmt.Sprintf("%q", name)))
		r.Commit = "200ms"
		r.Group = fmt.Sprintf("[cluster]\ngroup = %q\nshards = 1\nassign = \"topic\"\nallow_unreplicated = true\n",
			name)
		r.Begin()
		return r
	}
	start := func(r *streamtest.Rig, i int) *streamtest.Process {
		s, limit := r.Instance(fmt.Sprint(i)), func(int) {}
		if half {
			limit = halfProcessor(b)
		}
		p := streamtest.Spawn(b, streamtest.ChildSpec{Role: "daemon", Config: string(s.Text()), Seed: r.Seed, Procs: 1})
		limit(p.Cmd.Process.Pid)
		return p
	}
	r := group(out)
	shared := r.Options().Config
	var other *streamtest.Rig
	if instances == 1 {
		other = group(out + ".beside")
	}
	for i := range instances {
		all = append(all, start(r, i))
	}
	if other != nil {
		beside = append(beside, start(other, 0))
	}
	released := func() int {
		b.Helper()
		for late := time.Now().Add(fixtures.Patience); ; time.Sleep(5 * time.Millisecond) {
			end, err := r.Client.End(b.Context(), out, 0)
			if err == nil {
				return int(end)
			}
			if !kafka.Retriable(err) || time.Now().After(late) {
				b.Fatalf("%v\n%s", err, all[0].Stderr)
			}
		}
	}
	until := func(what string, so func() bool) {
		b.Helper()
		for late := time.Now().Add(fixtures.Patience); !so(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(late) {
				b.Fatalf("%s: not reached\n%s", what, all[0].Stderr)
			}
		}
	}
	root := all[0]
	until("all take part", func() bool {
		g, err := cluster.Look(b.Context(), shared)
		if err != nil || len(g.Members) != instances {
			return false
		}
		for _, m := range g.Members {
			if len(m.Shards) == 1 {
				n, err := strconv.Atoi(m.Instance)
				fixtures.Must(b, err)
				root = all[n]
				return true
			}
		}
		return false
	})
	if instances > 1 {
		end := func() int64 {
			end, err := r.Client.End(b.Context(), out+".partials", 0)
			fixtures.Must(b, err)
			return end
		}
		begun := end()
		until("sums come", func() bool { return end() > begun+20 })
	}
	first := released()
	until("some releases", func() bool { return released() > first })
	first = released()
	sample := func() (at time.Time, s partialsRun) {
		at = time.Now()
		for _, p := range all {
			if used := processTime(b, fmt.Sprint(p.Cmd.Process.Pid)); p == root {
				s.root += used
			} else {
				s.worker += used
			}
		}
		for _, p := range beside {
			s.beside += processTime(b, fmt.Sprint(p.Cmd.Process.Pid))
		}
		s.broker = brokerTime(b)
		s.partials = topicDisk(b, real.Data, out+".partials")
		s.kept = topicDisk(b, real.Data, out+".state") + topicDisk(b, real.Data, out+".ledger") +
			topicDisk(b, real.Data, out+".control")
		return at, s
	}
	begun, before := sample()
	steps -= steps / 10 // the other group's run does not end earlier
	until("the end", func() bool { return released() >= steps })
	ended, after := sample()
	x.steps = float64(steps - first)
	x.records, x.took = x.steps*float64(perStep), ended.Sub(begun)
	x.root, x.worker, x.beside, x.broker = after.root-before.root, after.worker-before.worker,
		after.beside-before.beside, after.broker-before.broker
	x.partials, x.kept = after.partials-before.partials, after.kept-before.kept
	for _, p := range all {
		if text := p.Stderr.String(); strings.Contains(text, "read here") {
			b.Errorf("a coordinator has read another instance's partition\n%s", text)
		}
	}
	b.Logf("%d instances, process %d coordinates: %v for %d steps; coordinator %v, worker %v, others %v, broker %v",
		instances, root.Cmd.Process.Pid, x.took.Round(time.Millisecond),
		int(x.steps), x.root, x.worker, x.beside, x.broker)
	return x
}

// halfProcessor returns a function that limits a process to half of a processor, in slices of 5 ms.
func halfProcessor(b *testing.B) func(pid int) {
	b.Helper()
	write := func(dir, file, text string) error {
		// The file exists if the directory is a control group; do not create it.
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return errors.Join(err, f.Close())
	}
	name := fmt.Sprint("streamdp-bench-", time.Now().UnixNano())
	for root, make := range map[string]func(dir string) error{
		"/sys/fs/cgroup": func(dir string) error {
			return errors.Join(write(dir, "cpu.max", "5000 10000"), write(dir, "cpu.weight", "10000"))
		},
		"/sys/fs/cgroup/cpu": func(dir string) error { // the older control groups
			return errors.Join(write(dir, "cpu.cfs_period_us", "10000"), write(dir, "cpu.cfs_quota_us", "5000"),
				write(dir, "cpu.shares", "100000"))
		},
	} {
		dir := filepath.Join(root, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		b.Cleanup(func() { os.Remove(dir) }) // after all its processes have ended
		if make(dir) == nil {
			return func(pid int) { fixtures.Must(b, write(dir, "cgroup.procs", strconv.Itoa(pid))) }
		}
	}
	b.Skip("cannot make a control group of processors here")
	return nil
}

// topicDisk returns the bytes of all segments of a topic's partitions.
func topicDisk(b *testing.B, data, topic string) (n float64) {
	b.Helper()
	dirs, err := filepath.Glob(filepath.Join(data, topic+"-*"))
	fixtures.Must(b, err)
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".log") {
				if info, err := e.Info(); err == nil {
					n += float64(info.Size())
				}
			}
			return nil // the segment was deleted meanwhile
		})
		fixtures.Must(b, err)
	}
	return n
}
