package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
)

// mirrors fails unless the control topic holds the lines of the ledger, in order.
func mirrors(r *rig) {
	r.t.Helper()
	data, err := os.ReadFile(r.ledgerFile())
	if err != nil {
		r.t.Fatal(err)
	}
	var got []byte
	for _, m := range r.control() {
		got = append(append(got, m.Value...), '\n')
	}
	if !bytes.Equal(got, data) {
		r.t.Errorf("the control topic holds\n%sthe ledger\n%s", got, data)
	}
}

// TestMirror: the control topic is made, fit, and holds the ledger's lines, also those
// that were written before there was one.
func TestMirror(t *testing.T) {
	t.Parallel()
	r := mirrored(t, rollsStream)
	r.topic = ""
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	x.end()
	r.topic = "control"
	x = r.start()
	x.published(2)
	mirrors(r)
	r.produce(250, 750)
	x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
	x.end()
	mirrors(r)
	settings, err := dial(t, r.addr).TopicConfig(t.Context(), "control", ControlSettings...)
	topic, err2 := dial(t, r.addr).Topic(t.Context(), "control")
	if err != nil || err2 != nil || UnfitControl(len(topic.Partitions), settings) != "" {
		t.Errorf("the control topic has %v, %d partitions", settings, len(topic.Partitions))
	}
	// One that is deleted gets all lines again.
	kafkatest.DeleteTopic(t, r.broker.Addrs(), "control")
	x = r.start()
	x.published(2)
	x.end()
	mirrors(r)
}

// TestUnfitControl: a topic that may lose lines, or their order, is refused.
func TestUnfitControl(t *testing.T) {
	t.Parallel()
	for says, make := range map[string]func(*rig) error{
		"partitions": func(r *rig) error { return r.client.CreateTopic(t.Context(), "control", 2, controlSettings) },
		"cleanup.policy = compact": func(r *rig) error {
			return r.client.CreateTopic(t.Context(), "control", 1, map[string]string{"cleanup.policy": "compact", "retention.ms": "-1"})
		},
		"retention.ms = 1000": func(r *rig) error {
			return r.client.CreateTopic(t.Context(), "control", 1, map[string]string{"retention.ms": "1000"})
		},
		"lost its first 1 records": func(r *rig) error {
			x := r.start()
			x.until("epoch 1", func(s TaskStatus) bool { return s.Epoch == 1 && s.State == stateRunning })
			x.end()
			kafkatest.DeleteRecords(r.t, r.broker.Addrs(), "control", 0, 1)
			return nil
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			r := mirrored(t, ordersStream)
			r.t = t
			must(t, make(r))
			x := r.start()
			if err := x.ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), says) {
				t.Errorf("ended with %v", err)
			}
			if s := x.d.Status()[0]; s.Reason != haltControl {
				t.Errorf("reason %s", s.Reason)
			}
		})
	}
}

// TestClaims: of two copies that run at once one opens the next epoch, and of two fresh
// directories one opens the first. The other has charged nothing and released nothing.
func TestClaims(t *testing.T) {
	t.Parallel()
	halted := func(s TaskStatus) bool { return s.State == stateHalted }
	t.Run("copies", func(t *testing.T) {
		t.Parallel()
		r := mirrored(t, rollsStream)
		r.produce(0, 250)
		x := r.start()
		x.published(2)
		x.end()
		s := r.sibling(rollsStream)
		r.copyState(s)
		x, y := r.start(), s.start()
		x.published(2)
		y.published(2)
		r.produce(250, 1000)
		done := func(s TaskStatus) bool { return halted(s) || s.Epoch == 4 && s.Outbox == 0 }
		x.until("the end", done)
		y.until("the end", done)
		if halted(x.d.Status()[0]) == halted(y.d.Status()[0]) {
			t.Fatalf("%+v\n%+v", x.d.Status()[0], y.d.Status()[0])
		}
		v := r.history("orders.dp")
		if len(v.bytes) != 12 {
			t.Errorf("%d releases", len(v.bytes))
		}
		for _, c := range []*running{x, y} {
			c.stop()
			<-c.done
		}
		loser := map[bool]*rig{true: r, false: s}[halted(x.d.Status()[0])]
		if err := loser.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "newest copy") {
			t.Errorf("the copy that lost ended with %v", err)
		}
	})
	t.Run("fresh directories", func(t *testing.T) {
		t.Parallel()
		r := mirrored(t, ordersStream)
		s := r.sibling(ordersStream)
		x, y := r.start(), s.start()
		ready := func(s TaskStatus) bool { return halted(s) || s.State == stateRunning }
		x.until("ready", ready)
		y.until("ready", ready)
		if halted(x.d.Status()[0]) == halted(y.d.Status()[0]) {
			t.Fatalf("%+v\n%+v", x.d.Status()[0], y.d.Status()[0])
		}
		won, lost, loser := x, y, s
		if halted(x.d.Status()[0]) {
			won, lost, loser = y, x, r
		}
		if _, err := os.Stat(loser.ledgerFile()); err == nil {
			if got := loser.kinds(); got != "" && got != "open void" {
				t.Errorf("the ledger of the directory that lost: %s", got)
			}
		}
		if s := lost.d.Status()[0]; s.Reason != haltControl || s.ChargedEpsilon != 0 || !strings.Contains(s.Message, "epoch open orders") {
			t.Errorf("the directory that lost: %+v", s)
		}
		lost.stop()
		<-lost.done
		// It does not open another epoch by itself.
		if err := loser.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "another state directory opened epoch 1") {
			t.Errorf("the directory that lost ended with %v", err)
		}
		r.produce(0, 1000)
		won.published(10)
		won.end()
		// An operator may, under a number that nobody used.
		must(t, loser.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, ordersTask, OpenRequest{}) }))
		all := loser.entries()
		if last := all[len(all)-1]; last.Kind != kindOpen || last.Epoch < 2 {
			t.Errorf("opened %+v", last)
		}
		x = loser.start()
		x.until("it runs", func(s TaskStatus) bool { return s.State == stateRunning })
		x.end()
	})
}

// TestForkedLines: of two copies that write another line of one number, before either has
// read the other's, the one that is first in the topic goes on, and the other halts.
func TestForkedLines(t *testing.T) {
	t.Parallel()
	key := newLedgerKey(InsecureKey(1))
	file := sealedLedger(t, newSimDisk("/s"), key)
	ledgerWith := func(ends ...int64) (*ledger, [][]byte) {
		d := newSimDisk("/s")
		f, err := d.Append("/s/" + ledgerName)
		must(t, write(f, err, file))
		l, err := openLedger(d, "/s", key)
		must(t, err)
		for _, end := range ends {
			must(t, l.append(ending(kindClose, 2, end)))
		}
		lines, err := l.raw(0)
		must(t, err)
		return l, lines
	}
	l, own := ledgerWith(2000)
	_, other := ledgerWith(3000, 4000)
	shared := len(own) - 1
	for name, c := range map[string]struct {
		topic  [][]byte
		forked uint64
	}{
		"ours first":        {append(slices.Clone(own), other[shared:]...), 0},
		"theirs first":      {append(slices.Clone(other), own[shared]), uint64(shared) + 1},
		"theirs in between": {append(append(slices.Clone(own[:shared]), other[shared]), own[shared], other[shared+1]), uint64(shared) + 1},
	} {
		m := &mirror{key: make([]byte, 32), ledger: l, claims: map[claimed]claim{}, newest: map[string][]newestOf{}}
		id, _ := l.identity()
		for _, line := range c.topic {
			m.line(&kafka.Record{Value: line, Headers: []kafka.Header{{Key: mirrorHeader, Value: m.header(id, line)}}})
		}
		if m.forked != c.forked || len(m.lacks) > 0 {
			t.Errorf("%s: forked at line %d, lacks %d", name, m.forked, len(m.lacks))
		}
	}
}

// TestOldCopyOfForked: an older copy of a ledger, of which two others wrote different lines,
// takes over those that came first; but where the second directory had lines that it never
// mirrored before, it halts.
func TestOldCopyOfForked(t *testing.T) {
	t.Parallel()
	key := newLedgerKey(InsecureKey(1))
	file := sealedLedger(t, newSimDisk("/s"), key)
	ledgerWith := func(ends ...int64) (*ledger, [][]byte) {
		d := newSimDisk("/s")
		f, err := d.Append("/s/" + ledgerName)
		must(t, write(f, err, file))
		l, err := openLedger(d, "/s", key)
		must(t, err)
		for i, end := range ends {
			must(t, l.append(Entry{Kind: kindLimit, Stream: "orders", Source: core.Source{Topic: "orders"}, LimitEpsilon: float64(end), LimitDelta: 1e-6, Reason: fmt.Sprint(i)}))
		}
		lines, err := l.raw(0)
		must(t, err)
		return l, lines
	}
	_, won := ledgerWith(2000, 2001, 2002)
	_, lost := ledgerWith(3000, 3001)
	_, third := ledgerWith(4000, 4001)
	l, own := ledgerWith()
	n := len(own)
	topic := func(parts ...[][]byte) [][]byte { return slices.Concat(parts...) }
	for name, c := range map[string]struct {
		topic  [][]byte
		lacks  [][]byte
		forked uint64
	}{
		"one behind the other": {topic(won, lost[n:]), won[n:], 0},
		"one in the other":     {topic(won[:n+1], lost[n:], won[n+1:]), won[n:], 0},
		"two in the other":     {topic(won[:n+1], lost[n:n+1], third[n:], lost[n+1:], won[n+1:]), won[n:], 0},
		"written again":        {topic(won, won[n:]), won[n:], 0},
		"all written at once":  {topic(won, lost), won[n:], uint64(n) + 1},
		"one missing":          {topic(won[:n+1], won[n+2:]), won[n : n+1], uint64(n) + 3},
		"of none":              {topic(won[:n+1], lost[n+1:]), won[n : n+1], uint64(n) + 2},
	} {
		m := &mirror{key: make([]byte, 32), ledger: l, claims: map[claimed]claim{}, newest: map[string][]newestOf{}}
		id, _ := l.identity()
		for _, line := range c.topic {
			m.line(&kafka.Record{Value: line, Headers: []kafka.Header{{Key: mirrorHeader, Value: m.header(id, line)}}})
		}
		if m.forked != c.forked || !slices.EqualFunc(m.lacks, c.lacks, bytes.Equal) {
			t.Errorf("%s: forked at line %d of %d, lacks %d", name, m.forked, n, len(m.lacks))
			continue
		}
		if c.forked == 0 {
			old, _ := ledgerWith()
			if err := old.adopt(m.lacks); err != nil || old.lines() != n+3 {
				t.Errorf("%s: %d lines, %v", name, old.lines(), err)
			}
		}
	}
}

// TestClaimsMerged: a fresh directory in which the stream is merged is no other stream: it
// does not open an epoch by itself over partitions that another one charged, nor does one
// in which it is merged no longer.
func TestClaimsMerged(t *testing.T) {
	t.Parallel()
	merged := with(mergedStream, `"all"`, "[0]")
	for name, c := range map[string][2]string{"merged": {ordersStream, merged}, "merged no longer": {merged, ordersStream}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := mirrored(t, c[0])
			x := r.start()
			x.until("running", func(s TaskStatus) bool { return s.State == stateRunning })
			x.end()
			s := r.sibling(c[1])
			if err := s.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "another state directory opened epoch 1") {
				t.Errorf("the fresh directory ended with %v", err)
			}
			task := core.Task{Stream: "orders", Partition: core.Merged}
			if c[1] == ordersStream {
				task.Partition = 0
			}
			must(t, s.offline(func(ctx context.Context, d *Daemon) error { return d.OpenEpoch(ctx, task, OpenRequest{}) }))
			all := s.entries()
			if last := all[len(all)-1]; last.Kind != kindOpen || last.Epoch != 2 {
				t.Errorf("opened %+v", last)
			}
			x = s.start()
			x.until("it runs", func(s TaskStatus) bool { return s.State == stateRunning })
			x.end()
		})
	}
}

// TestOldCopy: a state directory that lacks lines of the control topic does not start.
// An operator who has no newer one takes the lines over, with all that they charge.
func TestOldCopy(t *testing.T) {
	t.Parallel()
	r := mirrored(t, rollsStream)
	r.produce(0, 250)
	x := r.start()
	x.published(2)
	x.end()
	s := r.sibling(rollsStream)
	r.copyState(s)
	r.produce(250, 450)
	x = r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.Step == 3 && s.Outbox == 0 })
	x.end()
	newest := r.kinds()
	if err := s.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "3 lines that this ledger lacks") || !strings.Contains(err.Error(), "epoch open") {
		t.Errorf("the old copy ended with %v", err)
	}
	must(t, s.offline(func(ctx context.Context, d *Daemon) error {
		return d.OpenEpoch(ctx, ordersTask, OpenRequest{SameLog: true})
	}))
	if got := s.kinds(); !strings.HasPrefix(got, newest+" close") {
		t.Errorf("the ledger of the copy: %s, of the original: %s", got, newest)
	}
	all := s.entries()
	if last := all[len(all)-1]; last.Epoch != 3 {
		t.Errorf("epoch %d is open", last.Epoch)
	}
	// Now the original is the old copy.
	if err := r.start().ends(); !errors.Is(err, ErrHalted) || !strings.Contains(err.Error(), "lines that this ledger lacks") {
		t.Errorf("the original ended with %v", err)
	}
}

// TestForeignControl: what others write into the control topic, by chance or on
// purpose, is no line; nor is what another master key signed.
func TestForeignControl(t *testing.T) {
	t.Parallel()
	r := mirrored(t, rollsStream)
	r.produce(0, 450)
	other := r.sibling(rollsStream) // the same stream, under another key and elsewhere
	other.seed, other.toml = 8, with(rollsStream, `"orders.dp"`, `"other.dp"`)
	y := other.start()
	y.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning })
	y.end()
	lines := r.control()
	if len(lines) < 3 {
		t.Fatalf("%d lines", len(lines))
	}
	put := func(m ...kafka.Message) {
		for i := range m {
			m[i].Time = time.UnixMilli(1)
		}
		if _, err := dial(t, r.addr).Produce(t.Context(), "control", 0, m); err != nil {
			t.Fatal(err)
		}
	}
	put(kafka.Message{}, kafka.Message{Key: []byte("x"), Value: []byte("{}")}, kafka.Message{Value: lines[0].Value},
		kafka.Message{Value: lines[0].Value, Headers: []kafka.Header{{Key: mirrorHeader}}},
		kafka.Message{Value: lines[0].Value, Headers: []kafka.Header{{Key: mirrorHeader, Value: make([]byte, 64)}}},
		kafka.Message{Value: lines[0].Value, Headers: []kafka.Header{lines[0].Headers[0], lines[0].Headers[0]}})
	x := r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning })
	x.end()
	// Its own lines, damaged in every byte of one, sent again, and out of order.
	own := r.control()[len(lines)+6:]
	line := own[len(own)-1]
	for i := range line.Value {
		bad := line
		bad.Value = bytes.Clone(line.Value)
		bad.Value[i] ^= 1
		put(bad)
	}
	for i := range line.Headers[0].Value {
		bad := bytes.Clone(line.Headers[0].Value)
		bad[i] ^= 0x80
		put(kafka.Message{Value: line.Value, Headers: []kafka.Header{{Key: mirrorHeader, Value: bad}}})
	}
	put(own[1], own[0])
	x = r.start()
	x.until("epoch 2", func(s TaskStatus) bool { return s.Epoch == 2 && s.State == stateRunning })
	r.produce(450, 400)
	x.until("epoch 3", func(s TaskStatus) bool { return s.Epoch == 3 && s.State == stateRunning })
	x.end()
	if got := fmt.Sprint(len(r.entries())); got == "0" {
		t.Error("no ledger")
	}
}

// TestSharedControl: daemons of other streams share the topic without hindrance.
func TestSharedControl(t *testing.T) {
	t.Parallel()
	r := mirrored(t, rollsStream)
	s := r.sibling(with(rollsStream, "stream.orders", "stream.others", "stream.orders", "stream.others", "stream.orders", "stream.others", `"orders.dp"`, `"others.dp"`))
	r.produce(0, 950)
	x, y := r.start(), s.start()
	third := func(s TaskStatus) bool { return s.Epoch == 3 && s.Step == 1 && s.Outbox == 0 }
	x.until("epoch 3", third)
	y.until("epoch 3", third)
	x.end()
	y.end()
}
