package stream_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/monitor"
)

// BenchmarkRealDaemon runs the daemon over records of 16 columns in Apache Kafka, and measures from the first commit to
// the last one before the log ends. Runs alternate with rivals that read the same log and ignore the records: bare
// fetches of kafka-go, and franz-go's PollFetches. For moments a third rival is an ordinary consumer without privacy:
// kafka-go's Reader, a decoder, and sums of products. The benchmark reports the rate of each program in millions of
// records per second, and the daemon's rate divided by that of each rival. It reports the processor time of each, which
// other load affects less. It also reports how many processors daemon and broker kept busy: if that is all of them,
// processor time limits the rate. The rivals are other processes. With STREAMDP_PROFILE=FILE the daemon's CPU profiles
// are written to FILE.0, FILE.1 and so on.
func BenchmarkRealDaemon(b *testing.B) {
	addrs := kafkatest.NewReal(b).Addrs
	const columns, step, records = 16, 1000, 3_600_000
	wide := fixtures.WideStream(columns, step)
	loose := []string{"epsilon = 1.0", "epsilon = 40.0", "limit_epsilon = 3.0", "limit_epsilon = 50.0"}
	moments := "[stream.m.moments]\nclip = 1.0\n"
	topics := map[string]string{}
	for _, bench := range []struct{ name, codec, toml string }{
		{"packed", "packed", wide},
		{"json", "json", fixtures.With(wide, `codec = "float64"`, `codec = "json"`)},
		{"newton", "packed",
			fixtures.With(wide,
				append(
					[]string{"step = 1000\n", "", moments,
						"[stream.m.sgd]\ntarget = \"c0\"\nclip_x = 3.0\nclip_y = 2.0\n"}, loose...)...)},
		{"refit", "packed",
			fixtures.With(wide,
				append(
					[]string{"step = 1000\n", "", moments,
						"[stream.m.refit]\ntarget = \"c0\"\nclip_x = 3.0\nclip_y = 2.0\nwindow = 100000\n"},
					loose...)...)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			topic := topics[bench.codec]
			if topic == "" {
				topic = kafkatest.Topic(b, addrs, nil)
				topics[bench.codec] = topic
				p := kafkatest.NewProducer(b, addrs, topic, 0, "")
				var batch []kafkatest.Record
				for i, rec := range fixtures.PackedRecords(columns, 1000) {
					value := rec.Value
					if bench.codec == "json" {
						value = jsonRow(columns, i)
					}
					batch = append(batch, kafkatest.Record{Value: value})
				}
				for range records / len(batch) {
					p.Send(batch...)
				}
			}
			rivals := []string{"kafka-go", "franz-go"}
			if bench.name == bench.codec {
				rivals = append(rivals, "consumer-"+bench.codec)
			}
			rates, costs := map[string][]float64{}, map[string][]float64{}
			var busy []float64 // processors that daemon and broker together kept busy
			for i := 0; b.Loop(); i++ {
				toml := fixtures.With(bench.toml, `"in"`, fmt.Sprintf("%q", topic), `"out"`,
					fmt.Sprintf("%q", fmt.Sprint(topic, ".", bench.name, "-", i)))
				r := streamtest.NewRigAt(b, nil, addrs[0], toml)
				r.Commit = "200ms"
				x := r.Start()
				type sight struct {
					offset int64
					at     time.Time
					busy   time.Duration
					broker time.Duration
				}
				var commits []sight
				saw := func(s monitor.TaskStatus) int64 {
					if n := len(commits); s.NextOffset > 0 && (n == 0 || s.NextOffset > commits[n-1].offset) {
						commits = append(commits,
							sight{s.NextOffset, time.Now(), fixtures.ProcessorTime(b), brokerTime(b)})
					}
					return s.NextOffset
				}
				x.Until("a commit", func(s monitor.TaskStatus) bool { return saw(s) > 0 })
				profiled := profile(b, i)
				x.Until("the end", func(s monitor.TaskStatus) bool { return saw(s) >= records-step })
				profiled()
				if len(commits) < 3 {
					b.Fatalf("%d commits, 3 are needed", len(commits))
				}
				from, to := commits[0], commits[len(commits)-2]
				rates["daemon"] = append(rates["daemon"], float64(to.offset-from.offset)/to.at.Sub(from.at).Seconds())
				costs["daemon"] = append(costs["daemon"],
					float64((to.busy-from.busy).Nanoseconds())/float64(to.offset-from.offset))
				costs["broker"] = append(costs["broker"],
					float64((to.broker-from.broker).Nanoseconds())/float64(to.offset-from.offset))
				busy = append(busy, float64(to.busy-from.busy+to.broker-from.broker)/float64(to.at.Sub(from.at)))
				x.End()
				for _, name := range rivals {
					p := streamtest.Spawn(b,
						streamtest.ChildSpec{Role: "rival", Rival: name, Addrs: addrs, Topics: []string{topic},
							Records: records}).Up()
					rate, err := strconv.ParseFloat(p.Addr, 64)
					if err != nil {
						b.Fatal(err, p.Stderr)
					}
					<-p.Done
					rates[name] = append(rates[name], rate)
					used := p.Cmd.ProcessState.UserTime() + p.Cmd.ProcessState.SystemTime()
					costs[name] = append(costs[name], float64(used.Nanoseconds())/records)
				}
			}
			own := fixtures.Median(rates["daemon"])
			b.ReportMetric(own/1e6, "Mrecords/s")
			b.ReportMetric(fixtures.Median(costs["daemon"]), "cpu-ns/record")
			b.ReportMetric(fixtures.Median(costs["broker"]), "cpu-ns/record-broker")
			b.ReportMetric(fixtures.Median(busy), "processors")
			for _, name := range rivals {
				b.ReportMetric(fixtures.Median(rates[name])/1e6, "Mrecords/s-"+name)
				b.ReportMetric(fixtures.Median(costs[name]), "cpu-ns/record-"+name)
				which, ok := map[string]string{"kafka-go": "ratio", "franz-go": "ratio-franz"}[name]
				if !ok {
					which = "ratio-consumer"
				}
				b.ReportMetric(own/fixtures.Median(rates[name]), which)
				// The rate if daemon and broker kept all processors busy, without other load.
				most := float64(runtime.NumCPU()) * 1e9 / (fixtures.Median(costs["daemon"]) +
					fixtures.Median(costs["broker"]))
				b.ReportMetric(most/fixtures.Median(rates[name]), "most-"+which)
				b.ReportMetric(fixtures.Median(costs["daemon"])/fixtures.Median(costs[name]), "cpu-"+which)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// brokerTime returns the processor time of the broker, to a hundredth of a second, or 0 if its process is unknown.
func brokerTime(b *testing.B) time.Duration {
	pid, err := os.ReadFile(filepath.Join(os.Getenv("STREAMDP_KAFKA_DIR"), "pid"))
	if err != nil {
		return 0
	}
	return processTime(b, strings.TrimSpace(string(pid)))
}

// processTime returns the processor time of a process, to a hundredth of a second, or 0 if it is unknown.
func processTime(b *testing.B, pid string) time.Duration {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return 0
	}
	// User and system time are the 14th and 15th field; the second field, a name, ends with ")".
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		b.Fatalf("/proc/%s/stat: %s", pid, stat)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		fixtures.Must(b, err)
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100)
}

// profile begins a CPU profile, if one is wanted, and returns a function that ends it.
func profile(b *testing.B, round int) func() {
	name := os.Getenv("STREAMDP_PROFILE")
	if name == "" {
		return func() {}
	}
	f, err := os.Create(fmt.Sprint(name, ".", round))
	fixtures.Must(b, err)
	fixtures.Must(b, pprof.StartCPUProfile(f))
	return func() {
		pprof.StopCPUProfile()
		fixtures.Must(b, f.Close())
	}
}

// jsonRow returns a record with columns c0, c1, … for codec json.
func jsonRow(columns, i int) []byte {
	var b strings.Builder
	for c := range columns {
		fmt.Fprintf(&b, `%s"c%d":%.6f`, map[bool]string{true: "{", false: ","}[c == 0], c,
			float64((i*31+c*17)%1000)/1000-0.5)
	}
	return []byte(b.String() + "}")
}
