package stream_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// statesBefore reads testdata/states-before.tar.gz. The archive has a directory for each case of
// TestStatesOfTheBuildBefore, with streams.toml, the state directory, and the releases in output.jsonl. The build
// before package stream was split wrote it, with seed 7 and a broker without topic ids. That build had read 550 records
// of each partition, or 110 if the stream protects persons. These are epoch 1 and two steps of epoch 2.
func statesBefore(t *testing.T) (cases map[string]map[string][]byte) {
	t.Helper()
	return archived(t, "states-before.tar.gz")
}

// archived reads an archive in testdata. It returns its files by top-level directory.
func archived(t *testing.T, name string) (dirs map[string]map[string][]byte) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	fixtures.Must(t, err)
	z, err := gzip.NewReader(bytes.NewReader(data))
	fixtures.Must(t, err)
	dirs = map[string]map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return dirs
		}
		fixtures.Must(t, err)
		of, name, _ := strings.Cut(h.Name, "/")
		if dirs[of] == nil {
			dirs[of] = map[string][]byte{}
		}
		dirs[of][name], err = io.ReadAll(r)
		fixtures.Must(t, err)
	}
}

// TestStatesOfTheBuildBefore: a daemon continues from a state directory of the build before package stream was split.
// It completes epoch 2 and opens epoch 3, and all releases equal those of an uninterrupted run.
func TestStatesOfTheBuildBefore(t *testing.T) {
	t.Parallel()
	all := statesBefore(t)
	for _, c := range []struct {
		name             string
		partitions       int
		encrypt, archive bool
		step             int // records per partition
	}{
		{name: "plain", partitions: 1, step: 100},
		{name: "encrypted", partitions: 1, step: 100, encrypt: true, archive: true},
		{name: "merged", partitions: 2, step: 100, encrypt: true},
		{name: "persons", partitions: 1, step: 20},
		{name: "merged-persons", partitions: 2, step: 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := all[c.name]
			r := streamtest.NewRigOn(t, string(files["streams.toml"]),
				embedded.Options{Extra: []kfake.Opt{kfake.MaxVersions(kversion.V2_7_0())}})
			r.Encrypt, r.Archive = c.encrypt, c.archive
			for topic, partitions := range map[string]int{"orders": c.partitions, "orders.dp": 1} {
				fixtures.Must(t, r.Broker.CreateTopic(context.Background(), topic, partitions, nil))
			}
			send := func(first, n int) {
				t.Helper()
				for p := range c.partitions {
					list := make([]kafka.Message, n)
					for i := range list {
						list[i] = kafka.Message{Key: fmt.Appendf(nil, "u%d", (first+i)%7),
							Value: fixtures.OrderRecord(1000*p + first + i), Time: time.UnixMilli(1)}
					}
					_, err := r.Client.Produce(t.Context(), "orders", int32(p), list)
					fixtures.Must(t, err)
				}
			}
			send(0, 5*c.step+c.step/2)
			var old []kafka.Message
			for line := range bytes.Lines(files["output.jsonl"]) {
				var m struct {
					Key, Value string
					Headers    []kafka.Header
				}
				fixtures.Must(t, json.Unmarshal(line, &m))
				old = append(old, kafka.Message{Key: []byte(m.Key), Value: []byte(m.Value), Headers: m.Headers,
					Time: time.UnixMilli(1)})
			}
			_, err := r.Client.Produce(t.Context(), "orders.dp", 0, old)
			fixtures.Must(t, err)
			for name, data := range files {
				if strings.HasPrefix(name, "state/") {
					unpack(t, r.Dir, map[string][]byte{name: data})
				}
			}

			// runsTo runs a daemon until the first step of epoch 3 is published.
			runsTo := func(r *streamtest.Rig) {
				t.Helper()
				x := r.Start()
				x.Until("epoch 3, step 1",
					func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 1 && s.Outbox == 0 })
				x.End()
			}
			x := r.Start()
			x.Until("running",
				func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning && !s.Comparing })
			if s := x.D.Status()[0]; s.Epoch != 2 || s.Step != 2 {
				t.Errorf("continues at epoch %d, step %d", s.Epoch, s.Step)
			}
			x.End()
			send(5*c.step+c.step/2, 2*c.step)
			runsTo(r)
			reference := r.Sibling(fixtures.With(r.Toml, `"orders.dp"`, `"reference.dp"`))
			runsTo(reference)

			got, want := r.History("orders.dp"), reference.History("reference.dp")
			got.Equals(t, want)
			if len(old) != 5 || len(want.Bytes) != 7 || got.Duplicates > 0 {
				t.Errorf("%d, then %d releases, %d of them twice", len(old), len(want.Bytes), got.Duplicates)
			}
			if now, err := os.ReadFile(r.LedgerFile()); err != nil ||
				!bytes.HasPrefix(now, files["state/ledger.jsonl"]) {
				t.Errorf("the ledger does not begin with what it had: %v\n%s", err, now)
			}
			if got, want := r.Kinds(), reference.Kinds(); got != want {
				t.Errorf("the ledger has %s, want %s", got, want)
			}
		})
	}
}

// unpack writes files into a directory.
func unpack(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		fixtures.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		fixtures.Must(t, os.WriteFile(path, data, 0o600))
	}
}

// TestGroupOfTheBuildBefore: an instance continues from the topics of a group that the build before package stream was
// split wrote. It opens no epoch at first, completes epoch 2, opens epoch 3, and serves a request. All releases equal
// those of an uninterrupted run without a group.
//
// testdata/group-before.tar.gz contains the files of that build, for seed 7: streams.toml and cluster.toml in config,
// the directory of the embedded broker, the instance's state directory, and the lines of each shard's ledger. Instance
// a had read 110 records of orders and of each of the two merged partitions of sales, which are epoch 1 and two steps
// of epoch 2. It had read 30 records of visits, which are one step, and had closed their epoch 1 on request. It was
// then stopped in the normal way.
func TestGroupOfTheBuildBefore(t *testing.T) {
	t.Parallel()
	const shards = 4
	old := archived(t, "group-before.tar.gz")
	data := fixtures.ShortDir(t)
	unpack(t, data, old["broker"])
	r := streamtest.NewRigOn(t, string(old["config"]["streams.toml"]),
		embedded.Options{DataDir: data, MinSession: 100 * time.Millisecond})
	r.Group = string(old["config"]["cluster.toml"])
	unpack(t, filepath.Join(r.Dir, "state"), old["state"])
	o := r.Options()

	streams := []string{"orders", "sales", "visits"}
	partitions := map[string]int{"orders": 1, "sales": 2, "visits": 1}
	// ended is the offset of the first record that was not read, by stream.
	ended := map[string]int{"orders": 110, "sales": 110, "visits": 30}
	send := func(stream string, n int) {
		t.Helper()
		first := ended[stream]
		ended[stream] += n
		for p := range partitions[stream] {
			list := make([]kafka.Message, n)
			for i := range list {
				list[i] = kafka.Message{Value: fixtures.OrderRecord(1000*p + first + i), Time: time.UnixMilli(1)}
			}
			_, err := r.Client.Produce(t.Context(), stream, int32(p), list)
			fixtures.Must(t, err)
		}
	}
	at := func(x *streamtest.Running, stream string, epoch, step uint64) {
		t.Helper()
		x.Of(stream, fmt.Sprintf("at epoch %d, step %d", epoch, step), func(s monitor.TaskStatus) bool {
			return s.State == monitor.StateRunning && s.Epoch == epoch && s.Step == step && s.Outbox == 0 &&
				!s.Comparing
		})
	}
	closed := func(x *streamtest.Running) {
		t.Helper()
		x.Of("visits", "closed",
			func(s monitor.TaskStatus) bool { return s.State == monitor.StateClosed && s.Outbox == 0 })
	}
	// lines returns the lines of a shard's ledger, without the genesis.
	lines := func(shard int) []byte {
		t.Helper()
		var all []byte
		n := 0
		fixtures.Must(t, r.Client.ReadBack(t.Context(), "g.ledger", int32(shard), 0, func(rec *kafka.Record) error {
			if n++; n > 1 {
				all = append(append(all, rec.Value...), '\n')
			}
			return nil
		}))
		return all
	}
	for s, want := range map[string]int{"orders": 5, "sales": 5, "visits": 1} {
		if n := len(r.History(s + ".dp").Bytes); n != want {
			t.Errorf("%s: there were %d releases, want %d", s, n, want)
		}
	}

	x := r.Start()
	at(x, "orders", 2, 2)
	at(x, "sales", 2, 2)
	closed(x)
	for shard := range shards {
		if got, want := lines(shard), old["ledgers"][strconv.Itoa(shard)]; !bytes.Equal(got, want) {
			t.Errorf("the ledger of shard %d has\n%swant\n%s", shard, got, want)
		}
	}

	toml := r.Toml
	for _, s := range streams {
		toml = fixtures.With(toml, `"`+s+`.dp"`, `"`+s+`.alone"`)
	}
	alone := r.Sibling(toml)
	alone.Group = ""
	y := alone.Start()
	at(y, "orders", 2, 2)
	at(y, "sales", 2, 2)
	at(y, "visits", 1, 1)
	fixtures.Must(t, y.ControlOf("visits", task.RequestClose, epoch.OpenRequest{}))
	closed(y)

	open := task.NewRequest(task.RequestOpen, core.Task{Stream: "visits"})
	open.Open.Reason = "requested"
	fixtures.Must(t, cluster.Ask(t.Context(), o.Config, o.Key, open))
	fixtures.Must(t, y.ControlOf("visits", open.Kind, open.Open))
	for _, s := range streams {
		send(s, 40)
	}
	for _, x := range []*streamtest.Running{x, y} {
		at(x, "orders", 3, 1)
		at(x, "sales", 3, 1)
		at(x, "visits", 2, 2)
	}
	x.End()
	y.End()

	for _, s := range streams {
		got, want := r.History(s+".dp"), alone.History(s+".alone")
		got.Equals(t, want)
		if n := map[string]int{"orders": 7, "sales": 7, "visits": 3}[s]; len(got.Bytes) != n || got.Duplicates > 0 {
			t.Errorf("%s: %d releases, want %d, %d of them twice", s, len(got.Bytes), n, got.Duplicates)
		}
	}
	for shard := range shards {
		if now := lines(shard); !bytes.HasPrefix(now, old["ledgers"][strconv.Itoa(shard)]) {
			t.Errorf("the ledger of shard %d does not begin with what it had:\n%s", shard, now)
		}
	}
	// kinds returns the kinds of a stream's lines.
	kinds := func(stream string, ledgers ...*ledger.Ledger) (all []string) {
		for _, l := range ledgers {
			for _, e := range l.Entries {
				if e.Stream == stream {
					all = append(all, fmt.Sprintf("%s %d", e.Kind, e.Epoch))
				}
			}
		}
		return all
	}
	books, err := cluster.ReadBooks(t.Context(), o.Config, o.Key) // checks chains and MACs
	fixtures.Must(t, err)
	for _, s := range streams {
		got, want := kinds(s, books.Ledgers...), kinds(s, &ledger.Ledger{Entries: alone.Entries()})
		if !slices.Equal(got, want) {
			t.Errorf("%s: the ledger has %q, want %q", s, got, want)
		}
	}
	check, err := cluster.Check(t.Context(), o.Config, o.Key)
	fixtures.Must(t, err)
	for _, s := range check.Shards {
		if s.Fault != "" {
			t.Errorf("shard %d: %s", s.Shard, s.Fault)
		}
	}
}
