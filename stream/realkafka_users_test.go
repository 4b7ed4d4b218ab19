package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// TestRealKafkaUsers protects persons in two partitions, each person in one of them. It kills the broker under load,
// and the daemon restarts. Then one task loses its files of persons and is recovered. An auditor who reads the logs
// without interruption recomputes every release.
func TestRealKafkaUsers(t *testing.T) {
	b := kafkatest.NewReal(t)
	topic := fmt.Sprint("users-", time.Now().UnixNano())
	s := streamtest.NewSite(t, b.Addrs, topic)
	s.From = `, partition = [0, 1]`
	s.Table = `user = { key = "record-key", cap = 4, separation = 2, max_users = 30, partitioner = "murmur2" }`
	s.Edit = strings.NewReplacer(`"zero-out"`, `"replace"`)
	fixtures.Must(t, s.Client.CreateTopic(t.Context(), topic, 2, map[string]string{"retention.ms": "-1"}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for partition := range int32(2) {
		load.Go(func() {
			rng := rand.New(rand.NewPCG(35, uint64(partition)))
			for n := 0; ctx.Err() == nil; time.Sleep(4 * time.Millisecond) {
				list := make([]kafka.Message, 50)
				for i := range list {
					list[i] = kafka.Message{Value: fixtures.OrderRecord(n + i), Time: time.UnixMilli(1)}
					if u := rng.IntN(60); u > 0 {
						list[i].Key = fmt.Append(nil, "person ", u)
					}
				}
				// Unacknowledged records may be in the log, and are appended again.
				sending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				if _, err := s.Client.Produce(sending, topic, partition, list); err == nil {
					n += len(list)
				}
				cancel()
			}
		})
	}
	all := func(d *streamtest.SiteRun, what string, ok func(monitor.TaskStatus) bool) {
		t.Helper()
		d.Wait(what, func(monitor.TaskStatus) bool {
			list := d.D.Status()
			return len(list) == 2 && ok(list[0]) && ok(list[1])
		})
	}
	running := func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning }
	d := s.Run()
	all(d, "it runs", running)
	step := d.D.Status()[0].Step
	d.Wait("more steps", func(s monitor.TaskStatus) bool { return s.Step > step+2 })
	b.Kill()
	d.Wait("trouble", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
	b.Start()
	all(d, "it runs again", running)
	d.End()
	d = s.Run()
	all(d, "it runs once more", running)
	stop()
	load.Wait()
	var ends [2]uint64
	for p := range ends {
		end, err := s.Client.End(t.Context(), topic, int32(p))
		fixtures.Must(t, err)
		ends[p] = uint64(end) / 100
	}
	published := func(d *streamtest.SiteRun) {
		t.Helper()
		all(d, "all steps", func(s monitor.TaskStatus) bool {
			return s.Step >= ends[s.Partition] && s.Outbox == 0 && s.State == monitor.StateRunning
		})
		d.End()
	}
	published(d)

	lost, err := filepath.Glob(filepath.Join(s.Dir, "state", "tasks", "orders-1", state.PersonsPrefix+"*"))
	fixtures.Must(t, err)
	if len(lost) == 0 {
		t.Fatal("no files of persons")
	}
	for _, name := range lost {
		fixtures.Must(t, os.Remove(name))
	}
	cfg, err := config.Parse("test.toml", []byte(s.File()))
	fixtures.Must(t, err)
	seed, log := uint64(7), slog.New(slog.NewTextHandler(t.Output(), nil))
	off, err := stream.New(
		stream.Options{Config: cfg, Key: connect.InsecureKey(seed), InsecureSeed: &seed, Version: "test", Log: log})
	fixtures.Must(t, err)
	err = streamtest.Recover(t.Context(), off, core.Task{Stream: "orders", Partition: 1}, nil)
	off.Close()
	fixtures.Must(t, err)
	for p := range ends {
		list := make([]kafka.Message, 100)
		for i := range list {
			list[i] = kafka.Message{Key: fmt.Append(nil, "late ", i%40), Value: fixtures.OrderRecord(i),
				Time: time.UnixMilli(1)}
		}
		_, err := s.Client.Produce(t.Context(), topic, int32(p), list)
		fixtures.Must(t, err)
		ends[p]++
	}
	published(s.Run())
	if got := s.Output(); uint64(len(got)) != ends[0]+ends[1] {
		t.Errorf("%d releases of %v steps", len(got), ends)
	}
	for p, n := range ends {
		found, err := recovery.Verify(t.Context(),
			recovery.Audit{Config: cfg, Key: connect.InsecureKey(seed), Log: log},
			core.Task{Stream: "orders", Partition: p})
		fixtures.Must(t, err)
		if len(found) != 1 || found[0].Difference+found[0].Unverifiable != "" || uint64(found[0].Releases) != n {
			t.Errorf("partition %d: %+v", p, found)
		}
	}
	t.Logf("a kill of the broker, a recovery, %v steps", ends)
}
