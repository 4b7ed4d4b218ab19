package stream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/kafka"
)

// machine is the part of a task between fetched records and committed releases,
// without network, clock or goroutines: the real processor over a simulated
// disk.
type machine struct {
	t    testing.TB
	r    *runner
	m    *manifest
	file []byte
	keys func() *dp.Epoch

	p        *processor
	decoder  *decoder
	tweak    func(offset int64, row []float64) // of decoded rows
	releases map[uint64]pending
	restarts int
}

// machineStream is a small stream; tests replace parts of it.
const machineStream = `
[stream.m]
input  = { topic = "in", codec = "json", columns = ["a", "b", "c"] }
output = { topic = "out" }
centre = [1.0, 0.0, -2.0]
scale  = [0.5, 4.0, 1.5]
step   = 7
[stream.m.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "replace"
limit_epsilon = 3.0
[stream.m.moments]
clip = 1.0
`

// machineRegressions are the same stream with regressions of several kinds.
var machineRegressions = []string{
	regression("clip = \"track\"\nbatch = 20\nbootstrap = 30"),
	regression("clip = \"bisect\"\nbatch = 22\nstat = 13\nbands = 3\nvalue = \"residual\""),
	regression("clip = \"fixed\"\nzeta = 1.5\nbatch = 20\nintercept = false\nintervals = false\naverage = \"smooth\""),
}

// machineCombined are the same stream with squares of noisy rows beside joint
// estimation, one record a step, over all steps, a window and with decaying weights.
var machineCombined = []string{
	combined(""),
	combined("workload = \"window\"\nwindow = 5\n"),
	combined("workload = \"exponential\"\ndecay = 0.9\n"),
}

// combined is machineStream with the combination of methods for its moments.
func combined(keys string) string {
	return with(machineStream, "step   = 7", "step = 1") + "method = \"combined\"\nfactorization = \"identity\"\n" + keys
}

// regression is machineStream with a regression for its mechanism.
func regression(keys string) string {
	return with(machineStream, "step   = 7\n", "", "[stream.m.moments]\nclip = 1.0\n",
		"[stream.m.sgd]\nmethod = \"amb\"\ntarget = \"b\"\nclip_x = 3.0\nclip_y = 4.0\ncurvature = 2.0\nradius = 5.0\n"+keys+"\n")
}

func newMachine(t testing.TB, toml string, key byte) *machine {
	t.Helper()
	cfg, err := config.Parse("m.toml", []byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+toml))
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.Streams[0]
	mech, err := newMechanism(s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := s.Digest(0, versions(s))
	master, secret := [32]byte{key, 1}, [32]byte{key, 2}
	m := &machine{t: t, releases: map[uint64]pending{}}
	m.keys = func() *dp.Epoch {
		e, err := dp.NewEpoch(&master, &secret, s.Name, 1, [16]byte{3}, digest)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	check := m.keys().Check()
	m.m = &manifest{
		Format: manifestFormat, Stream: s.Name, Epoch: 1, Source: Source{"c", "in", 0}, Nonce: make([]byte, 16), KeyID: "00", EpochID: check[:],
		Config: s.Canonical(0), Versions: versions(s), Digest: digest[:], Incarnation: 1, Partitions: 1,
		Mechanism: mech.name, Plan: mech.plan, Cost: mech.Cost(), LimitEpsilon: 3, LimitDelta: 1e-8, ChargedEpsilonAtOpen: 1, Version: "test",
	}
	if m.file, err = m.m.encode(); err != nil {
		t.Fatal(err)
	}
	if m.decoder, err = newDecoder(s); err != nil {
		t.Fatal(err)
	}
	d := &Daemon{cfg: cfg, metrics: newMetrics(false, "test", true), ledger: &ledger{}, log: slog.New(slog.NewTextHandler(io.Discard, nil)), started: time.Now()}
	st, err := openStore(newSimDisk("/s/tasks/m-0"), "/s/tasks/m-0")
	if err != nil {
		t.Fatal(err)
	}
	m.r = &runner{d: d, s: s, task: Task{s.Name, 0}, store: st, log: d.log, troubles: map[string]string{}}
	m.r.status.Store(&TaskStatus{})
	if err := m.r.begin(t.Context(), m.m, m.file, mech, 0, nil); err != nil {
		t.Fatal(err)
	}
	m.restart()
	m.restarts = 0
	return m
}

// restart goes on from the last commit, as a new process does.
func (m *machine) restart() {
	m.t.Helper()
	m.restarts++
	mech, err := newMechanism(m.r.s, m.m.Plan, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := newCore(m.r.s, m.m, m.file, mech, m.keys())
	if err != nil {
		m.t.Fatal(err)
	}
	cp, err := m.r.store.load()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := c.resume(cp); err != nil {
		m.t.Fatal(err)
	}
	m.p = &processor{
		r: m.r, live: &live{m: m.m, core: c, cp: cp}, core: c, position: cp.position, seen: cp.position.Next, period: time.Hour,
		fetch: &fetcher{free: make(chan *batch, 1)}, pub: newPublisher(m.r, cp),
	}
	m.p.schedule(time.Now())
}

// next is the offset from which records are read.
func (m *machine) next() int64 { return m.p.seen }

// commit makes what is pending durable and takes it as published.
func (m *machine) commit() {
	m.t.Helper()
	if !m.p.due() {
		return
	}
	if done, err := m.p.commit(); err != nil || !done {
		m.t.Fatal(done, err)
	}
	for _, rel := range m.p.outbox {
		if was, ok := m.releases[rel.step]; ok && (!bytes.Equal(was.value, rel.value) || !bytes.Equal(was.key, rel.key)) {
			m.t.Fatalf("step %d came out twice with different bytes", rel.step)
		}
		m.releases[rel.step] = rel
	}
	m.p.outbox, m.p.outboxBytes, m.p.sent = nil, 0, 0
}

// feed applies the records of offsets [m.next(), end) as one response.
func (m *machine) feed(log []kafka.Record, end int64) {
	m.t.Helper()
	first := m.next()
	b := &batch{}
	b.First, b.Next = first, end
	for _, rec := range log {
		if rec.Offset >= first && rec.Offset < end {
			b.Records = append(b.Records, rec)
			b.Bytes += len(rec.Value)
		}
	}
	m.decoder.decode(b)
	if m.tweak != nil {
		for i := range b.Records {
			if row := b.row(i, m.decoder.columns); row != nil {
				m.tweak(b.Records[i].Offset, row)
			}
		}
	}
	m.p.current, m.p.next = b, 0
	for m.p.current != nil {
		if err := m.p.apply(); err != nil {
			m.t.Fatal(err)
		}
		if m.p.exhausted {
			return
		}
		if m.p.full() {
			m.commit()
			m.p.schedule(time.Now())
		}
	}
	<-m.p.fetch.free
}

// all applies a log as one response and returns the machine.
func (m *machine) all(log []kafka.Record, end int64) *machine {
	m.t.Helper()
	m.feed(log, end)
	m.commit()
	return m
}

// equals fails unless two machines released the same bytes.
func (m *machine) equals(what string, want *machine) {
	m.t.Helper()
	if len(m.releases) != len(want.releases) {
		m.t.Errorf("%s: %d releases, want %d", what, len(m.releases), len(want.releases))
	}
	for step, w := range want.releases {
		got := m.releases[step]
		if !bytes.Equal(got.value, w.value) || !bytes.Equal(got.key, w.key) {
			m.t.Errorf("%s: step %d:\n%s\n%s", what, step, got.value, w.value)
			return
		}
	}
}

// randomLog has records of every kind at some of the offsets [0, n).
func randomLog(rng *rand.Rand, n int) (log []kafka.Record, records int) {
	for i := range n {
		if rng.IntN(5) == 0 {
			continue // aborted, a marker, compacted away
		}
		rec := kafka.Record{Offset: int64(i)}
		switch rng.IntN(10) {
		case 0:
			rec.Value = badValues[rng.IntN(len(badValues))]
		default:
			rec.Value = fmt.Appendf(nil, `{"a":%g,"b":%g,"c":%g}`, rng.NormFloat64(), 3*rng.NormFloat64(), rng.NormFloat64()-2)
		}
		log = append(log, rec)
	}
	return log, len(log)
}

// badValues give no row, each for another reason. All of them have a canary
// that must show up nowhere.
var badValues = [][]byte{
	nil,
	{},
	[]byte("canary-71c3 not json"),
	[]byte(`{"a":1,"b":2`),
	[]byte(`{"a":1,"b":2,"canary-71c3":3}`),
	[]byte(`{"a":1,"b":2,"c":"canary-71c3"}`),
	[]byte(`{"a":NaN,"b":7.1318371,"c":1}`),
	[]byte(`{"a":1e999,"b":7.1318371,"c":1}`),
	[]byte(`{"a":null,"b":7.1318371,"c":1}`),
	[]byte(`{"a":1,"a":7.1318371,"b":2,"c":1}`),
	[]byte(`[1,2,7.1318371]`),
	[]byte(`{"a":1.7e308,"b":-1.7e308,"c":7.1318371}`), // finite, and not after scaling
	[]byte(strings.Repeat("[", 200)),
	[]byte("\xff\xfe canary-71c3"),
}

// TestCoreSplits: however the log is split into responses, and wherever the
// process is stopped and started, the releases are the same bytes.
func TestCoreSplits(t *testing.T) {
	t.Parallel()
	variants := []string{
		machineStream,
		with(machineStream, "step   = 7", "step = 1"),
		with(machineStream, "step   = 7", "step = 500"),
		machineStream + "workload = \"exponential\"\ndecay = 0.9\n",
		machineStream + "workload = \"window\"\nwindow = 5\n",
		machineStream + "workload = \"sum\"\nfactorization = \"identity\"\n",
		with(machineStream, "step   = 7", "step = 7\nhorizon = 40"),
		with(machineStream, `adjacency = "replace"`, `adjacency = "zero-out"`),
	}
	variants = slices.Concat(variants, machineRegressions, machineRefits, machineCombined)
	const n = 1500
	restarts := 0
	for v, toml := range variants {
		rng := rand.New(rand.NewPCG(11, uint64(v)))
		log, records := randomLog(rng, n)
		want := newMachine(t, toml, 1).all(log, n)
		if len(want.releases) == 0 {
			t.Fatal("no release")
		}
		if v == 0 {
			last := want.releases[uint64(n/7)]
			in := 0
			for _, rec := range log {
				if rec.Offset >= n/7*7-7 && rec.Offset < n/7*7 {
					in++
				}
			}
			if !bytes.Contains(last.value, fmt.Appendf(nil, `"rows":%d,"offsets":[%d,%d],`, in, n/7*7-7, n/7*7)) || records == n {
				t.Errorf("last release: %s", last.value)
			}
		}
		rounds := 6
		least := 0
		switch {
		case strings.Contains(toml, "step = 1\n"):
			rounds = 2 // a commit a record
		case toml == machineRegressions[1]:
			least = 20 // most boundaries of a search release nothing: what was not committed is long
		case slices.Contains(machineRefits, toml):
			rounds, least = 3, 20 // a restart calibrates
		case slices.Contains(machineRegressions, toml):
			rounds = 3 // the same, for less
		}
		for round := range rounds {
			got := newMachine(t, toml, 1)
			largest := max(least, []int{1, 3, 20, 150, 900}[rng.IntN(5)])
			var err error
			if got.decoder, err = newDecoder(got.r.s); err != nil {
				t.Fatal(err)
			}
			got.decoder.codecs = got.decoder.codecs[:1+rng.IntN(len(got.decoder.codecs))]
			for got.next() < n && !got.p.exhausted {
				got.feed(log, min(got.next()+1+int64(rng.IntN(largest)), n))
				switch rng.IntN(8) {
				case 0:
					got.commit()
				case 1, 2:
					if rng.IntN(2) == 0 {
						got.commit()
					}
					got.restart() // what was not committed is repeated
					// Else small responses might never reach a boundary.
					got.feed(log, min(got.p.core.end+int64(rng.IntN(largest)), n))
					got.commit()
				}
			}
			got.commit()
			got.equals(fmt.Sprintf("variant %d, round %d, responses up to %d, %d restarts", v, round, largest, got.restarts), want)
			restarts += got.restarts
		}
	}
	t.Logf("%d restarts", restarts)
	if restarts < 500 {
		t.Errorf("only %d restarts", restarts)
	}
}

// TestCoreTruth: with next to no noise the releases are the moments of the
// records that are valid, over the number of all records of their offsets.
func TestCoreTruth(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	log, _ := randomLog(rng, 700)
	toml := with(machineStream, "epsilon = 1.0", "epsilon = 3e3", "limit_epsilon = 3.0", "limit_epsilon = 1e6", "clip = 1.0", "clip = 20.0")
	m := newMachine(t, toml, 1).all(log, 700)
	codec, err := NewCodec("json", []string{"a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	var sum [3]float64
	row := make([]float64, 3)
	rows := 0
	for i := range log {
		rec := &log[i]
		if codec.Decode(rec, row) == Decoded && row[0] < 1e300 {
			for j := range row {
				sum[j] += (row[j] - m.r.s.Centre[j]) / m.r.s.Scale[j]
			}
		}
		rows++
	}
	p := published{key: "last", value: string(m.releases[100].value)}
	rel := p.parse(t)
	for j, got := range rel.Values["mean"].Data {
		if want := sum[j] / float64(rows); math.Abs(got-want) > 0.03 {
			t.Errorf("mean %d is %g, want %g", j, got, want)
		}
	}
}

// TestDecodeParallel: rows and reasons do not depend on how many goroutines
// decode.
func TestDecodeParallel(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	log, _ := randomLog(rng, 9000)
	packed := make([]kafka.Record, len(log))
	for i := range packed {
		packed[i].Offset = log[i].Offset
		for range 3 {
			packed[i].Value = binary.LittleEndian.AppendUint64(packed[i].Value, math.Float64bits(rng.NormFloat64()))
		}
		if rng.IntN(9) == 0 {
			packed[i].Value = packed[i].Value[:rng.IntN(24)]
		}
	}
	for codec, records := range map[string][]kafka.Record{"json": log, "float64": packed} {
		var want *batch
		for _, workers := range []int{1, 2, 3, 8} {
			d := &decoder{columns: 3}
			for range workers {
				c, err := NewCodec(codec, []string{"a", "b", "c"})
				if err != nil {
					t.Fatal(err)
				}
				d.codecs = append(d.codecs, c)
			}
			b := &batch{}
			b.Records = records
			for _, rec := range records {
				b.Bytes += len(rec.Value)
			}
			if b.Bytes < 2*parallelBytes {
				t.Fatalf("%d bytes are too few for a second goroutine", b.Bytes)
			}
			b.rows = make([]float64, 3*len(records)) // of an earlier, larger response
			for i := range b.rows {
				b.rows[i] = math.NaN()
			}
			d.decode(b)
			if want == nil {
				want = b
				continue
			}
			for i := range records {
				if b.reasons[i] != want.reasons[i] {
					t.Fatalf("%s, %d workers: record %d: %v, want %v", codec, workers, i, b.reasons[i], want.reasons[i])
				}
				for j := range 3 {
					if math.Float64bits(b.rows[3*i+j]) != math.Float64bits(want.rows[3*i+j]) {
						t.Fatalf("%s, %d workers: record %d column %d: %g, want %g", codec, workers, i, j, b.rows[3*i+j], want.rows[3*i+j])
					}
				}
			}
		}
	}
}
