package task_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// letter is a dead letter as read from the topic.
type letter struct {
	key, value string
	headers    string
}

// letters reads a dead-letter topic, and returns the last message of each key. Messages sent in one request with a
// message that is too large are sent twice.
func letters(r *streamtest.Rig, topic string) (all []letter) {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	at := map[string]int{}
	fixtures.Must(r.T, fixtures.Dial(r.T, r.Addr).ReadBack(ctx, topic, 0, 0, func(rec *kafka.Record) error {
		l := letter{key: string(rec.Key), value: string(rec.Value)}
		for _, h := range rec.Headers {
			l.headers += fmt.Sprintf("%s=%s;", h.Key, h.Value)
		}
		if i, twice := at[l.key]; twice {
			all[i] = l
			return nil
		}
		at[l.key] = len(all)
		all = append(all, l)
		return nil
	}))
	return all
}

// awaitLetters waits for n dead letters.
func awaitLetters(x *streamtest.Running, topic string, n int) []letter {
	x.T.Helper()
	for deadline := time.Now().Add(fixtures.Patience); ; time.Sleep(5 * time.Millisecond) {
		all := letters(x.R, topic)
		if len(all) >= n || time.Now().After(deadline) {
			if len(all) != n {
				x.T.Fatalf("%d dead letters, want %d: %v\n%s", len(all), n, all, x.R.Log)
			}
			return all
		}
	}
}

func withDeadLetters(toml, mode string) string {
	return fixtures.With(toml, "step   = 100",
		fmt.Sprintf("step   = 100\ndead_letter = { mode = %q, topic = \"dead\" }", mode))
}

// TestDeadLetters: for every codec, a record that gives no row has a dead letter, which is a reference with the reason
// or a copy of the record. Releases equal those of a stream without dead letters.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	packed := func(x ...float64) (b []byte) {
		for _, v := range x {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
		return b
	}
	packed32 := func(x ...float32) (b []byte) {
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	for _, c := range []struct {
		codec string
		good  []byte
		bad   []byte
	}{
		{"json", []byte(`{"amount":1,"items":2,"weight":3}`), []byte(`{"amount":1,"items":"two","weight":3}`)},
		{"json-array", []byte(`[1,2,3]`), []byte(`[1,2]`)},
		{"csv", []byte("1,2,3"), []byte("1,two,3")},
		{"float64", packed(1, 2, 3), packed(1, math.NaN(), 3)},
		{"float32", packed32(1, 2, 3), packed32(1, 2)},
	} {
		for _, mode := range []string{"reference", "full"} {
			t.Run(c.codec+" "+mode, func(t *testing.T) {
				t.Parallel()
				plain := fixtures.With(fixtures.OrdersStream, `codec = "json"`, fmt.Sprintf("codec = %q", c.codec))
				if c.codec == "csv" {
					plain = fixtures.With(plain, `"amount", "items", "weight"`, `"1", "2", "3"`)
				}
				r := streamtest.NewRig(t, withDeadLetters(plain, mode))
				kafkatest.CreateTopic(t, r.Broker.Addrs(), "dead", nil)
				values := make([][]byte, 350)
				for i := range values {
					values[i] = c.good
				}
				values[7], values[150], values[299], values[320] = c.bad, nil, c.bad, c.bad
				r.Send(values...)
				x := r.Start()
				x.Published(3)
				all := awaitLetters(x, "dead", 3) // record 320 is in the open step
				x.End()
				for i, offset := range []int64{7, 150, 299} {
					l := all[i]
					if l.key != fmt.Sprintf("orders/0/%d", offset) ||
						!strings.Contains(l.headers, "streamdp_mode="+mode+";") {
						t.Errorf("letter %d: %+v", i, l)
					}
					if mode == "full" {
						if l.value != string(values[offset]) ||
							(values[offset] == nil) != strings.Contains(l.headers, "streamdp_null=value") ||
							!strings.Contains(l.headers, fmt.Sprintf("streamdp_offset=%d;streamdp_reason=", offset)) {
							t.Errorf("letter %d: %+v", i, l)
						}
						continue
					}
					var ref task.LetterReference
					fixtures.Must(t, json.Unmarshal([]byte(l.value), &ref))
					if ref.Offset != offset || ref.Stream != "orders" || ref.Topic != "orders" || ref.Reason == "" ||
						ref.Schema != task.DeadLetterSchema {
						t.Errorf("letter %d: %+v", i, ref)
					}
					if offset != 150 && strings.Contains(l.value+l.headers, string(c.bad)) {
						t.Errorf("a reference has the record in it: %+v", l)
					}
				}
				r.Toml = plain
				r.History("orders.dp").Equals(t, r.Uninterrupted(3))
			})
		}
	}
}

// TestDeadLettersWait: while the dead-letter topic is missing, releases continue, and nothing outside shows whether
// dead letters wait. They are written later, also by another process. A record that is too large is written as a
// reference.
func TestDeadLettersWait(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		withDeadLetters(
			fixtures.With(fixtures.OrdersStream, `codec = "json",`, `codec = "json", max_record_bytes = 60000,`),
			"full"))
	record := func(i int) []byte {
		switch {
		case i == 20:
			return []byte(strings.Repeat("x", 50_000)) // more than the topic accepts
		case i == 30:
			return []byte(strings.Repeat("x", 70_000)) // more than max_record_bytes
		case i%100 == 10:
			return []byte("no record")
		}
		return fixtures.OrderRecord(i)
	}
	send := func(first, n int) {
		var all [][]byte
		for i := range n {
			all = append(all, record(first+i))
		}
		r.Send(all...)
	}
	send(0, 550)
	x := r.Start()
	x.Published(5)
	if code, body := x.Get("/-/ready"); code != 200 {
		t.Errorf("ready is %d %s", code, body)
	}
	_, metrics := x.Get("/metrics")
	for _, line := range strings.Split(metrics, "\n") {
		if strings.HasPrefix(line, "streamdp_kafka_errors_total") && strings.Contains(line, "produce") {
			t.Errorf("a metric of class – counts dead letters: %s", line)
		}
	}
	log := r.Log.String()
	x.End()
	// The daemon's log must not depend on whether there is a dead letter.
	for _, said := range []string{"retrying", "cannot write dead letters"} {
		if strings.Contains(log, said) {
			t.Errorf("the log says %q:\n%s", said, log)
		}
	}
	kafkatest.CreateTopic(t, r.Broker.Addrs(), "dead", map[string]string{"max.message.bytes": "20000"})
	r.Client = fixtures.Dial(t, r.Addr)
	send(550, 500)
	x = r.Start()
	x.Published(10)
	all := awaitLetters(x, "dead", 12)
	x.End()
	for i, l := range all[1:3] {
		if l.key != fmt.Sprintf("orders/0/%d", 20+10*i) || !strings.Contains(l.headers, "streamdp_mode=reference") {
			t.Errorf("a large record's letter is %.200v", l)
		}
	}
	// A restart writes no dead letter again. A new epoch continues after the last one. Written dead letters stay when
	// records are read again.
	x = r.Start()
	x.Published(10)
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{Reason: "test"}))
	send(1050, 250)
	x.Until("epoch 2 releases", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 3 && s.Outbox == 0 })
	awaitLetters(x, "dead", 15)
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{Reason: "test", From: "earliest"}))
	x.Until("epoch 3 releases",
		func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step >= 13 && s.Outbox == 0 })
	x.End()
	if n := len(letters(r, "dead")); n != 15 {
		t.Errorf("%d dead letters", n)
	}
}

// TestDeadLettersHoldNothing: the next epoch opens, and the task shows its state, although a dead letter of the closed
// epoch is not written yet. Otherwise the time of the opening would reveal whether there is one. The dead letter is
// written later.
func TestDeadLettersHoldNothing(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"rollover", "halt"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			r := streamtest.NewRig(t,
				fixtures.With(withDeadLetters(fixtures.OrdersStream, "reference"), "step   = 100",
					fmt.Sprintf("step = 100\nhorizon = 4\non_horizon = %q", end)))
			kafkatest.CreateTopic(t, r.Broker.Addrs(), "dead", nil)
			written := make(chan struct{})
			release := sync.OnceFunc(func() { close(written) })
			defer release()
			c := r.Broker.Cluster()
			c.ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				if q.(*kmsg.ProduceRequest).Topics[0].Topic == "dead" {
					c.SleepControl(func() { <-written })
				}
				return nil, nil, false
			})
			values := make([][]byte, 650)
			for i := range values {
				values[i] = fixtures.OrderRecord(i)
			}
			values[399] = []byte("{}") // the last record of epoch 1
			r.Send(values...)
			x := r.Start()
			if end == "rollover" {
				x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step >= 1 })
			} else {
				x.Until("the end", func(s monitor.TaskStatus) bool { return s.State == monitor.StateExhausted })
			}
			_, log, ok := strings.Cut(r.Log.String(), "epoch opened")
			i := strings.Index(log, "epoch closed")
			if !ok || i < 0 {
				t.Fatal(log)
			}
			text, _, _ := strings.Cut(log[strings.LastIndex(log[:i], "time=")+len("time="):], " ")
			closed, err := time.Parse(time.RFC3339Nano, text)
			fixtures.Must(t, err)
			if d := time.Since(closed); d >= epoch.ShutdownTime {
				t.Errorf("a dead letter held the task for %s", d)
			}
			release()
			if end == "rollover" {
				awaitLetters(x, "dead", 1)
				x.End()
			} else {
				fixtures.Must(t, x.Ends())
			}
		})
	}
}

// TestDeadLettersCrash: a killed process loses no dead letter.
func TestDeadLettersCrash(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, withDeadLetters(fixtures.OrdersStream, "reference"))
	kafkatest.CreateTopic(t, r.Broker.Addrs(), "dead", nil)
	bad := map[string]bool{}
	for round := range 5 {
		var all [][]byte
		for i := range 200 {
			offset := 200*round + i
			if offset%30 == 3 {
				all = append(all, []byte("x"))
				bad[fmt.Sprintf("orders/0/%d", offset)] = true
				continue
			}
			all = append(all, fixtures.OrderRecord(offset))
		}
		r.Send(all...)
		x := r.Start()
		x.Published(uint64(2 * (round + 1)))
		crashed := r.Sibling(r.Toml) // the directory as a kill at this moment would leave it
		r.CopyState(crashed)
		x.End()
		crashed.CopyState(r)
	}
	x := r.Start()
	x.Published(10)
	x.End()
	found := map[string]bool{}
	for _, l := range letters(r, "dead") {
		found[l.key] = true
	}
	if fmt.Sprint(found) != fmt.Sprint(bad) {
		t.Errorf("dead letters of %v, want %v", found, bad)
	}
}
