package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	streamtask "github.com/streamdp/streamdp/stream/task"
)

// passage is a run of the daemon over a topic, over TCP, with a broker in this process. It includes everything that a
// user's stream passes through: codec, state directory and publishing.
type passage struct {
	columns       []string
	centre, scale []float64 // public constants; nil: 0 and 1
	// tables are the tables of the privacy and of the mechanism, in TOML, with names under [stream.data].
	tables string
	// beside holds the tables of another stream over the same topic, with names under [stream.beside]. If it is empty,
	// there is no other stream.
	beside string
	// inspect, if not nil, inspects the state directory after a run.
	inspect func(dir string) error
	// seed determines keys and nonces, so that a run can be repeated. Nothing is protected.
	seed uint64
}

// release holds the fields of a published release that this program needs.
type release struct {
	Step   uint64
	Values map[string]struct {
		Data []float64
		SE   spreads
	}
}

// spreads holds standard errors: one for each entry, or one for all entries.
type spreads []float64

func (s *spreads) UnmarshalJSON(b []byte) error {
	var all float64
	if json.Unmarshal(b, &all) == nil {
		*s = []float64{all}
		return nil
	}
	return json.Unmarshal(b, (*[]float64)(s))
}

// value returns a released value, nil if there is none with the name.
func (r *release) value(name string) []float64 { return r.Values[name].Data }

// run sends rows, one record each, and returns the daemon's last release after it has read all of them. If each is not
// nil, run calls it with all releases in order.
func (g *passage) run(rows [][]float64, each func(*release) error) (last *release, err error) {
	dir, err := os.MkdirTemp("", "streamdp-reproduction-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	broker, err := embedded.Start(embedded.Options{Topics: []string{"data"}})
	if err != nil {
		return nil, err
	}
	defer broker.Close()
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{broker.Addr()}})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	messages := make([]kafka.Message, len(rows))
	for i, row := range rows {
		value := make([]byte, 0, 8*len(row))
		for _, x := range row {
			value = binary.LittleEndian.AppendUint64(value, math.Float64bits(x))
		}
		messages[i] = kafka.Message{Value: value, Time: time.UnixMilli(1)}
	}
	ctx := context.Background()
	if _, err := client.Produce(ctx, "data", 0, messages); err != nil {
		return nil, err
	}
	if err := g.consume(broker.Addr(), dir, int64(len(rows))); err != nil {
		return nil, err
	}
	if g.inspect != nil {
		if err := g.inspect(filepath.Join(dir, "state")); err != nil {
			return nil, err
		}
	}
	// Use a new client: the metadata of the old one lack the topic that the daemon created.
	reader, err := kafka.NewClient(kafka.Options{Brokers: []string{broker.Addr()}})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	err = reader.ReadBack(ctx, "data.dp", 0, 0, func(rec *kafka.Record) error {
		r := new(release)
		if err := json.Unmarshal(rec.Value, r); err != nil {
			return err
		}
		last = r
		if each != nil {
			return each(r)
		}
		return nil
	})
	if err == nil && last == nil {
		err = fmt.Errorf("there is no release after %d rows", len(rows))
	}
	return last, err
}

// consume runs a daemon until it has read n records and published all releases that follow from them.
func (g *passage) consume(broker, dir string, n int64) error {
	cfg, err := config.Parse("reproduction", g.toml(broker, dir))
	if err != nil {
		return err
	}
	var journal bytes.Buffer
	daemon, err := stream.New(stream.Options{
		Config: cfg, Key: connect.InsecureKey(g.seed), InsecureSeed: &g.seed, Version: "reproduction",
		Log: slog.New(slog.NewTextHandler(&journal, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	defer daemon.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// Streams one by one, because a manifest contains the earlier charges of other streams
	for _, s := range daemon.Status() {
		if err := daemon.Do(ctx,
			streamtask.NewRequest(streamtask.RequestOpen,
				core.Task{Stream: s.Stream, Partition: s.Partition})); err != nil {
			return err
		}
	}
	// A refit solves its window while later records are read. So all records may be read, and nothing may be waiting to
	// be published, before the release of the last window exists.
	windows := map[string]uint64{}
	for _, s := range cfg.Streams {
		if s.Refit != nil {
			windows[s.Name] = uint64(n) / s.Refit.Window
		}
	}
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	for {
		through, next := true, int64(0)
		for _, s := range daemon.Status() {
			if s.State == "halted" {
				stop()
				return errors.Join(fmt.Errorf("the daemon halted: %s: %s", s.Reason, s.Message), <-done)
			}
			next = s.NextOffset
			through = through && s.NextOffset >= n && s.Outbox == 0 && s.Step >= windows[s.Stream]
		}
		if through {
			stop()
			return <-done
		}
		select {
		case err := <-done:
			return fmt.Errorf("the daemon ended after %d of %d records: %w\n%s", next, n, err, &journal)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (g *passage) toml(broker, dir string) []byte {
	constants := func(x []float64, def float64) string {
		words := make([]string, len(g.columns))
		for i := range words {
			v := def
			if x != nil {
				v = x[i]
			}
			if words[i] = fmt.Sprintf("%g", v); !strings.ContainsAny(words[i], ".e") {
				words[i] += ".0"
			}
		}
		return "[" + strings.Join(words, ", ") + "]"
	}
	columns := strings.ReplaceAll(fmt.Sprintf("%q", g.columns), `" "`, `", "`)
	text := fmt.Appendf(nil, `[kafka]
brokers = [%q]
[state]
dir = %q
key_file = "unused"
commit_interval = "50ms"
[http]
listen = "127.0.0.1:0"
`, broker, filepath.Join(dir, "state"))
	for i, tables := range []string{g.tables, g.beside} {
		if tables == "" {
			continue
		}
		name := []string{"data", "beside"}[i]
		text = fmt.Appendf(text, `[stream.%s]
input = { topic = "data", codec = "float64", columns = %s }
output = { topic = "%[1]s.dp" }
centre = %[3]s
scale = %[4]s
%[5]s`, name, columns, constants(g.centre, 0), constants(g.scale, 1), tables)
	}
	return text
}
