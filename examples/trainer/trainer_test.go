package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
)

// TestTraining runs the trainer against the daemon, over a broker in this process, with the configuration in this
// folder. The model must learn.
func TestTraining(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Topics: []string{"gradients", "parameters"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	text, err := os.ReadFile("trainer.toml")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sdp") // short enough for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	toml := strings.NewReplacer("localhost:9092", b.Addr(), "/var/lib/streamdp", filepath.Join(dir, "state"),
		`"/etc/streamdp/key"`,
		fmt.Sprintf("%q\ncommit_interval = \"10ms\"\n[http]\nlisten = \"127.0.0.1:0\"",
			filepath.Join(dir, "key"))).Replace(string(text))
	cfg, err := config.Parse("trainer.toml", []byte(toml))
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(5)
	d, err := stream.New(stream.Options{
		Config: cfg, Key: connect.InsecureKey(seed), InsecureSeed: &seed, Version: "test",
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	done := make(chan error, 1)
	go func() {
		done <- d.Run(ctx)
		d.Close()
	}()
	var lines []string
	accuracy, err := train(ctx, options{
		brokers: []string{b.Addr()}, gradients: "gradients", parameters: "parameters", features: 10, batch: 64,
		steps: 300, seed: 1,
		report: func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	<-done
	t.Logf("right for %.1f %%; %s", 100*accuracy, strings.Join(lines, "; "))
	// A tenth of the examples has a wrong label, so no model reaches an accuracy above 0.9.
	if accuracy < 0.85 {
		t.Errorf("right for %.1f %% of new examples", 100*accuracy)
	}
	if len(lines) != 6 {
		t.Errorf("%d reports", len(lines))
	}
}

// pieces returns the messages of a release.
func pieces(step, n int) []kafka.Message {
	value := fmt.Sprintf(`{"epoch":1,"step":%d,"values":{"parameters":{"data":[%d,0.5,-1]}}}`, step, step)
	identity := fmt.Sprintf("s/0/1/%d", step)
	if n == 1 {
		return []kafka.Message{{Key: []byte(identity), Value: []byte(value)}}
	}
	sum := sha256.Sum256([]byte(value))
	var all []kafka.Message
	for part := range slices.Chunk([]byte(value), (len(value)+n-1)/n) {
		i := len(all) + 1
		all = append(all,
			kafka.Message{Key: fmt.Appendf(nil, "%s/%d", identity, i), Value: part, Headers: []kafka.Header{
				{Key: "streamdp_chunk", Value: fmt.Appendf(nil, "%d/%d", i, n)},
				{Key: "streamdp_sha256", Value: []byte(hex.EncodeToString(sum[:]))},
			}})
	}
	return all
}

// TestAssembler loses, repeats and reorders messages. Repetition is harmless; everything else must be an error at once.
func TestAssembler(t *testing.T) {
	t.Parallel()
	stream := slices.Concat(pieces(1, 3), pieces(2, 1), pieces(3, 4), pieces(4, 2), pieces(5, 1))
	read := func(messages []kafka.Message) (steps []uint64, err error) {
		var a assembler
		for _, m := range messages {
			r, err := a.add(m)
			if err != nil {
				return steps, err
			}
			if r == nil {
				continue
			}
			x, err := r.parameters()
			if err != nil || len(x) != 3 || x[0] != float64(r.Step) {
				return steps, fmt.Errorf("parameters %g: %v", x, err)
			}
			steps = append(steps, r.Step)
		}
		if a.identity != "" {
			err = fmt.Errorf("the last release is not whole")
		}
		return steps, err
	}
	all := []uint64{1, 2, 3, 4, 5}
	if steps, err := read(stream); err != nil || !slices.Equal(steps, all) {
		t.Fatalf("steps %d: %v", steps, err)
	}
	for i := range stream {
		// Repeat message i, then lose it, then swap it with each earlier message, then change it.
		if steps, err := read(slices.Insert(slices.Clone(stream), i, stream[i])); err != nil ||
			!slices.Equal(steps, all) {
			t.Errorf("message %d twice: steps %d, %v", i, steps, err)
		}
		lost := slices.Delete(slices.Clone(stream), i, i+1)
		if steps, err := read(lost); err == nil && len(steps) == 5 || err == nil && i < len(stream)-1 {
			t.Errorf("no error for the lost message %d: %d", i, steps)
		}
		for j := range i {
			swapped := slices.Clone(stream)
			swapped[i], swapped[j] = swapped[j], swapped[i]
			if _, err := read(swapped); err == nil {
				t.Errorf("no error for messages %d and %d in reversed order", j, i)
			}
		}
		other := slices.Clone(stream)
		other[i].Value = append([]byte(nil), other[i].Value...)
		other[i].Value[0] ^= 1
		if _, err := read(other); err == nil {
			t.Errorf("no error for the changed message %d", i)
		}
	}
	// An interrupted publisher sends its whole outbox again.
	for i := range stream {
		for j := range i + 1 {
			if steps, err := read(slices.Concat(stream[:i+1], stream[j:])); err != nil || !slices.Equal(steps, all) {
				t.Errorf("interrupted after %d, again from %d: steps %d, %v", i, j, steps, err)
			}
		}
	}
	for _, bad := range []kafka.Message{
		{Key: []byte("s/0/1"), Value: []byte("{}")}, {Key: []byte("s/0/0/1"), Value: []byte("{}")},
		{Key: []byte("s/0/1/1"), Value: []byte("{")}, {Key: []byte("s/0/1/1"), Value: []byte("{}")},
		{Key: []byte("s/0/1/1/1"), Headers: []kafka.Header{{Key: "streamdp_chunk", Value: []byte("2/1")}}},
		{Key: []byte("s/0/1/1/1"), Headers: []kafka.Header{{Key: "streamdp_chunk", Value: []byte("1")}}},
		{Key: []byte("s/0/1/1/2"), Headers: []kafka.Header{{Key: "streamdp_chunk", Value: []byte("1/2")}}},
	} {
		var a assembler
		if r, err := a.add(bad); err == nil {
			t.Errorf("no error for message %s: %+v", bad.Key, r)
		}
	}
}
