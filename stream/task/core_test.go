package task

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// machine is the part of a task between fetched records and committed releases. It runs the real processor over a
// simulated disk, without network, clock or goroutines.
type machine struct {
	t    testing.TB
	r    *Runner
	m    *core.Manifest
	file []byte
	keys func() *dp.Epoch

	p        *processor
	decoder  *codec.Decoder
	tweak    func(offset int64, row []float64) // changes decoded rows
	releases map[uint64]state.Message
	restarts int
}

func newMachine(t testing.TB, toml string, key byte) *machine {
	t.Helper()
	cfg, err := config.Parse("m.toml",
		[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+toml))
	if err != nil {
		t.Fatal(err)
	}
	return machineOf(t, cfg, cfg.Streams[0], key)
}

// machineOf returns a machine that runs a stream.
func machineOf(t testing.TB, cfg *config.Config, s *config.Stream, key byte) *machine {
	t.Helper()
	mech, err := core.NewMechanism(s, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := s.Digest(0, core.Versions(s))
	master, secret := [32]byte{key, 1}, [32]byte{key, 2}
	m := &machine{t: t, releases: map[uint64]state.Message{}}
	m.keys = func() *dp.Epoch {
		e, err := dp.NewEpoch(&master, &secret, s.Name, 1, [16]byte{3}, digest)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	check := m.keys().Check()
	m.m = &core.Manifest{
		Format: core.ManifestFormat, Stream: s.Name, Epoch: 1,
		Source: core.Source{Cluster: "c", Topic: "in", Partition: 0}, Nonce: make([]byte, 16), KeyID: "00",
		EpochID: check[:],
		Config:  s.Canonical(0), Versions: core.Versions(s), Digest: digest[:], Incarnation: 1, Partitions: 1,
		Mechanism: mech.Name, Plan: mech.Plan, Cost: mech.Cost(), LimitEpsilon: 3, LimitDelta: 1e-8,
		ChargedEpsilonAtOpen: 1, Version: "test",
	}
	if m.file, err = m.m.Encode(); err != nil {
		t.Fatal(err)
	}
	if m.decoder, err = codec.NewDecoder(core.FormatOf(s), runtime.GOMAXPROCS(0)); err != nil {
		t.Fatal(err)
	}
	d := &epoch.Shard{Ledger: &ledger.Ledger{},
		Process: &epoch.Process{Cfg: cfg, Metrics: monitor.NewMetrics(false, false, "test", true),
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Started: time.Now()}}
	d.Current.Store(cfg)
	disk := simdisk.NewSimDisk("/s/tasks/m-0")
	d.Disk = state.FileShard{Disk: disk}
	st, err := state.Open(disk, "/s/tasks/m-0", nil)
	if err != nil {
		t.Fatal(err)
	}
	m.r = &Runner{
		Keeper: &epoch.Keeper{Feed: epoch.NewFeed(d.Process, core.Task{Stream: s.Name, Partition: 0}, s, func() {}),
			D: d, Store: st}}
	m.r.Retrier = failure.NewRetrier(d.Log, d.Metrics.KafkaError, func() {})
	m.r.Out = output.New(m.r.Retrier, d.Client, d.Ledger, &d.Tails, m.r.Task, s.Output)
	m.r.Guard = output.NewForkGuard(m.r.Out, nil)
	m.r.shown.Store(&monitor.TaskStatus{})
	if err := m.r.Begin(t.Context(), m.m, m.file, mech, 0, nil); err != nil {
		t.Fatal(err)
	}
	m.restart()
	m.restarts = 0
	return m
}

// restart continues from the last commit, as a new process does.
func (m *machine) restart() {
	m.t.Helper()
	m.restarts++
	if m.p != nil && m.p.committer.writing != nil {
		<-m.p.committer.writing.ended() // the commit is durable, but the loop has not handled it
	}
	mech, err := core.NewMechanism(m.r.S, m.m.Plan, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := core.New(m.r.S, m.m, m.file, mech, m.keys())
	if err != nil {
		m.t.Fatal(err)
	}
	cp, err := m.r.Store.Load()
	if err != nil {
		m.t.Fatal(err)
	}
	users, err := state.OpenPersons(m.r.Store, c, cp)
	if err != nil {
		m.t.Fatal(err)
	}
	if users != nil {
		key := c.UserKey()
		if err := m.decoder.TagUsers(&key); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := c.Resume(cp.State, cp.Step, cp.Transcript, cp.Nexts()); err != nil {
		m.t.Fatal(err)
	}
	m.p = newProcessor(m.r, &epoch.OpenEpoch{M: m.m, Core: c, Cp: cp, Users: users}, time.Hour)
	m.p.applier.fetch = &input.Fetcher{Free: make(chan *codec.Batch, 1)}
	m.p.schedule(time.Now())
	m.acknowledged()
}

// next returns the offset of the next record to feed.
func (m *machine) next() int64 { return m.p.applier.seen }

// commit makes pending releases durable and treats them as published.
func (m *machine) commit() {
	m.t.Helper()
	fixtures.Must(m.t, m.p.await())
	if m.p.committer.due() {
		if done, err := m.p.commit(time.Now()); err != nil || !done {
			m.t.Fatal(done, err)
		}
	}
	m.acknowledged()
}

// begin starts to write a commit. The machine can continue meanwhile.
func (m *machine) begin() {
	m.t.Helper()
	if !m.p.committer.due() || !m.p.committer.concurrent() || m.p.committer.writing != nil {
		return
	}
	c, err := m.p.committer.prepare(time.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	m.p.committer.writing = c
	go func() {
		defer close(c.done)
		m.p.committer.store(c)
	}()
}

// acknowledged treats durable releases as published.
func (m *machine) acknowledged() {
	m.t.Helper()
	for _, rel := range m.p.committer.outbox {
		if was, ok := m.releases[rel.Step]; ok &&
			(!bytes.Equal(was.Value, rel.Value) || !bytes.Equal(was.Key, rel.Key)) {
			m.t.Fatalf("step %d was released twice with different bytes", rel.Step)
		}
		m.releases[rel.Step] = rel
	}
	m.p.committer.outbox, m.p.committer.outboxBytes, m.p.committer.sent = nil, 0, 0
}

// feed applies the records of offsets [m.next(), end) as one response.
func (m *machine) feed(log []kafka.Record, end int64) {
	m.t.Helper()
	first := m.next()
	b := &codec.Batch{}
	b.First, b.Next = first, end
	for _, rec := range log {
		if rec.Offset >= first && rec.Offset < end {
			b.Records = append(b.Records, rec)
			b.Bytes += len(rec.Value)
		}
	}
	m.decoder.Decode(b)
	if m.tweak != nil {
		for i := range b.Records {
			if row := b.Row(i); row != nil {
				m.tweak(b.Records[i].Offset, row)
			}
		}
	}
	m.p.applier.current, m.p.applier.next = b, 0
	for m.p.applier.current != nil {
		if err := m.p.apply(); err != nil {
			m.t.Fatal(err)
		}
		if m.p.exhausted {
			return
		}
		if m.p.committer.full() {
			m.commit()
			m.p.schedule(time.Now())
		}
	}
	<-m.p.applier.fetch.Free
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
		if !bytes.Equal(got.Value, w.Value) || !bytes.Equal(got.Key, w.Key) {
			m.t.Errorf("%s: step %d:\n%s\n%s", what, step, got.Value, w.Value)
			return
		}
	}
}

// TestCoreSplits: the releases have the same bytes however the log is split into responses, and wherever the process is
// stopped and restarted.
func TestCoreSplits(t *testing.T) {
	t.Parallel()
	variants := []string{
		fixtures.MachineStream,
		fixtures.With(fixtures.MachineStream, "step   = 7", "step = 1"),
		fixtures.With(fixtures.MachineStream, "step   = 7", "step = 500"),
		fixtures.MachineStream + "workload = \"exponential\"\ndecay = 0.9\n",
		fixtures.MachineStream + "workload = \"window\"\nwindow = 5\n",
		fixtures.MachineStream + "workload = \"sum\"\nfactorization = \"identity\"\n",
		fixtures.With(fixtures.MachineStream, "step   = 7", "step = 7\nhorizon = 40"),
		fixtures.With(fixtures.MachineStream, `adjacency = "replace"`, `adjacency = "zero-out"`),
	}
	variants = slices.Concat(variants, fixtures.MachineRegressions, fixtures.MachineRefits, fixtures.MachineCombined)
	const n = 1000
	restarts := 0
	for v, toml := range variants {
		rng := rand.New(rand.NewPCG(11, uint64(v)))
		log, records := fixtures.RandomLog(rng, n)
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
			if !bytes.Contains(last.Value, fmt.Appendf(nil, `"rows":%d,"offsets":[%d,%d],`, in, n/7*7-7, n/7*7)) ||
				records == n {
				t.Errorf("last release: %s", last.Value)
			}
		}
		rounds := 6
		least := 0
		switch {
		case strings.Contains(toml, "step = 1\n"):
			rounds = 2 // every record leads to a commit
		case toml == fixtures.MachineRegressions[1] || strings.Contains(toml, "epsilon = 40.0"):
			least = 20 // most steps of a search have no release, so few are committed
		case slices.Contains(fixtures.MachineRefits, toml):
			rounds, least = 3, 20 // a restart calibrates
		case slices.Contains(fixtures.MachineRegressions, toml):
			rounds = 3 // a restart calibrates
		}
		if os.Getenv("STREAMDP_SLOW") == "" {
			rounds = min((rounds+1)/2, 2)
		}
		for round := range rounds {
			got := newMachine(t, toml, 1)
			largest := max(least, []int{1, 3, 20, 150, 900}[rng.IntN(5)])
			var err error
			if got.decoder, err = codec.NewDecoder(core.FormatOf(got.r.S),
				1+rng.IntN(runtime.GOMAXPROCS(0))); err != nil {
				t.Fatal(err)
			}
			for got.next() < n && !got.p.exhausted {
				got.feed(log, min(got.next()+1+int64(rng.IntN(largest)), n))
				switch rng.IntN(8) {
				case 0:
					got.commit()
				case 1, 2:
					if rng.IntN(2) == 0 {
						got.commit()
					}
					got.restart() // records after the last commit are repeated
					// Otherwise small responses might never complete a step.
					got.feed(log, min(got.p.applier.core.End()+int64(rng.IntN(largest)), n))
					got.commit()
				case 3, 4:
					got.begin()
				case 5:
					if got.p.committer.writing != nil {
						got.acknowledged() // acknowledge the releases of the commit before
						fixtures.Must(t, got.p.await())
					}
				}
			}
			got.commit()
			got.equals(
				fmt.Sprintf("variant %d, round %d, responses up to %d, %d restarts", v, round, largest, got.restarts),
				want)
			restarts += got.restarts
		}
	}
	t.Logf("%d restarts", restarts)
	if restarts < 500 {
		t.Errorf("only %d restarts", restarts)
	}
}

// TestCoreTruth: with very little noise, a release equals the sums over the valid records, divided by the number of all
// records of its offsets.
func TestCoreTruth(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	log, _ := fixtures.RandomLog(rng, 10_500)
	toml := fixtures.With(fixtures.MachineStream, "epsilon = 1.0", "epsilon = 45.0", "limit_epsilon = 3.0",
		"limit_epsilon = 1e6", "clip = 1.0", "clip = 20.0")
	m := newMachine(t, toml, 1).all(log, 10_500)
	decode, err := codec.New("json", []string{"a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	var sum [3]float64
	row := make([]float64, 3)
	rows := 0
	for i := range log {
		rec := &log[i]
		if decode.Decode(rec, row) == codec.Decoded && row[0] < 1e300 {
			for j := range row {
				sum[j] += (row[j] - m.r.S.Centre[j]) / m.r.S.Scale[j]
			}
		}
		rows++
	}
	p := fixtures.Published{Key: "last", Value: string(m.releases[1500].Value)}
	rel := p.Parse(t)
	for j, got := range rel.Values["mean"].Data {
		if want := sum[j] / float64(rows); math.Abs(got-want) > 0.03 {
			t.Errorf("mean %d is %g, want %g", j, got, want)
		}
	}
}
