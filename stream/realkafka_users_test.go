package stream

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
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// TestRealKafkaUsers protects persons in two partitions, each person in one of them, and kills the broker
// under load; the daemon starts anew. Then one task loses its files of persons and is
// recovered. An auditor who reads the logs in one go works every release out again.
func TestRealKafkaUsers(t *testing.T) {
	b := kafkatest.NewReal(t)
	topic := fmt.Sprint("users-", time.Now().UnixNano())
	s := newSite(t, b.Addrs, topic)
	s.from = `, partition = [0, 1]`
	s.table = `user = { key = "record-key", cap = 4, separation = 2, max_users = 30, partitioner = "murmur2" }`
	s.edit = strings.NewReplacer(`"zero-out"`, `"replace"`)
	must(t, s.client.CreateTopic(t.Context(), topic, 2, map[string]string{"retention.ms": "-1"}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for partition := range int32(2) {
		load.Go(func() {
			rng := rand.New(rand.NewPCG(35, uint64(partition)))
			for n := 0; ctx.Err() == nil; time.Sleep(4 * time.Millisecond) {
				list := make([]kafka.Message, 50)
				for i := range list {
					list[i] = kafka.Message{Value: orderRecord(n + i), Time: time.UnixMilli(1)}
					if u := rng.IntN(60); u > 0 {
						list[i].Key = fmt.Append(nil, "person ", u)
					}
				}
				// What is not acknowledged may be in the log, and is appended again.
				sending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
				if _, err := s.client.Produce(sending, topic, partition, list); err == nil {
					n += len(list)
				}
				cancel()
			}
		})
	}
	all := func(d *siteRun, what string, ok func(TaskStatus) bool) {
		t.Helper()
		d.wait(what, func(TaskStatus) bool {
			list := d.d.Status()
			return len(list) == 2 && ok(list[0]) && ok(list[1])
		})
	}
	running := func(s TaskStatus) bool { return s.State == stateRunning }
	d := s.run()
	all(d, "it runs", running)
	step := d.d.Status()[0].Step
	d.wait("more steps", func(s TaskStatus) bool { return s.Step > step+2 })
	b.Kill()
	d.wait("trouble", func(s TaskStatus) bool { return s.State == stateRetrying })
	b.Start()
	all(d, "it runs again", running)
	d.end()
	d = s.run()
	all(d, "it runs once more", running)
	stop()
	load.Wait()
	var ends [2]uint64
	for p := range ends {
		end, err := s.client.End(t.Context(), topic, int32(p))
		must(t, err)
		ends[p] = uint64(end) / 100
	}
	published := func(d *siteRun) {
		t.Helper()
		all(d, "all steps", func(s TaskStatus) bool {
			return s.Step >= ends[s.Partition] && s.Outbox == 0 && s.State == stateRunning
		})
		d.end()
	}
	published(d)

	lost, err := filepath.Glob(filepath.Join(s.dir, "state", "tasks", "orders-1", usersPrefix+"*"))
	must(t, err)
	if len(lost) == 0 {
		t.Fatal("no files of persons")
	}
	for _, name := range lost {
		must(t, os.Remove(name))
	}
	cfg, err := config.Parse("test.toml", []byte(s.file()))
	must(t, err)
	seed, log := uint64(7), slog.New(slog.NewTextHandler(t.Output(), nil))
	off, err := New(Options{Config: cfg, Key: InsecureKey(seed), InsecureSeed: &seed, Version: "test", Log: log})
	must(t, err)
	err = off.Recover(t.Context(), core.Task{Stream: "orders", Partition: 1}, nil)
	off.Close()
	must(t, err)
	for p := range ends {
		list := make([]kafka.Message, 100)
		for i := range list {
			list[i] = kafka.Message{Key: fmt.Append(nil, "late ", i%40), Value: orderRecord(i), Time: time.UnixMilli(1)}
		}
		_, err := s.client.Produce(t.Context(), topic, int32(p), list)
		must(t, err)
		ends[p]++
	}
	published(s.run())
	if got := s.output(); uint64(len(got)) != ends[0]+ends[1] {
		t.Errorf("%d releases of %v steps", len(got), ends)
	}
	for p, n := range ends {
		found, err := Verify(t.Context(), Audit{Config: cfg, Key: InsecureKey(seed), Log: log}, core.Task{Stream: "orders", Partition: p})
		must(t, err)
		if len(found) != 1 || found[0].Difference+found[0].Unverifiable != "" || uint64(found[0].Releases) != n {
			t.Errorf("partition %d: %+v", p, found)
		}
	}
	t.Logf("a kill of the broker, a recovery, %v steps", ends)
}
