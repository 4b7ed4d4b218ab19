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
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

// statesBefore reads testdata/states-before.tar.gz. It has a directory for each case of
// TestStatesOfTheBuildBefore: streams.toml, the state directory, and output.jsonl with the releases.
// The build before stream was split into packages wrote it (seed 7, broker without topic ids). It had read
// 550 records, or 110 where persons are protected, of each partition: epoch 1, and two steps of epoch 2.
func statesBefore(t *testing.T) (cases map[string]map[string][]byte) {
	t.Helper()
	data, err := os.ReadFile("testdata/states-before.tar.gz")
	fixtures.Must(t, err)
	z, err := gzip.NewReader(bytes.NewReader(data))
	fixtures.Must(t, err)
	cases = map[string]map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return cases
		}
		fixtures.Must(t, err)
		of, name, _ := strings.Cut(h.Name, "/")
		if cases[of] == nil {
			cases[of] = map[string][]byte{}
		}
		cases[of][name], err = io.ReadAll(r)
		fixtures.Must(t, err)
	}
}

// TestStatesOfTheBuildBefore: a daemon goes on with a state directory of the build before stream was split into
// packages. It completes epoch 2 and opens epoch 3, and all releases are those of an uninterrupted run.
func TestStatesOfTheBuildBefore(t *testing.T) {
	t.Parallel()
	all := statesBefore(t)
	for _, c := range []struct {
		name             string
		partitions       int
		encrypt, archive bool
		step             int // in records of a partition
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
				if name, ok := strings.CutPrefix(name, "state/"); ok {
					path := filepath.Join(r.Dir, "state", name)
					fixtures.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
					fixtures.Must(t, os.WriteFile(path, data, 0o600))
				}
			}

			// runsTo runs a daemon until the first step of epoch 3 is published.
			runsTo := func(r *streamtest.Rig) {
				t.Helper()
				x := r.Start()
				x.Until("epoch 3, step 1", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 1 && s.Outbox == 0 })
				x.End()
			}
			x := r.Start()
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning && !s.Comparing })
			if s := x.D.Status()[0]; s.Epoch != 2 || s.Step != 2 {
				t.Errorf("goes on at epoch %d, step %d", s.Epoch, s.Step)
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
			if now, err := os.ReadFile(r.LedgerFile()); err != nil || !bytes.HasPrefix(now, files["state/ledger.jsonl"]) {
				t.Errorf("the ledger does not begin with what it had: %v\n%s", err, now)
			}
			if got, want := r.Kinds(), reference.Kinds(); got != want {
				t.Errorf("the ledger has %s, want %s", got, want)
			}
		})
	}
}
