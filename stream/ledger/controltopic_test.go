package ledger_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// mirrors fails unless the control topic has the lines of the ledger, in order.
func mirrors(r *streamtest.Rig) {
	r.T.Helper()
	data, err := os.ReadFile(r.LedgerFile())
	if err != nil {
		r.T.Fatal(err)
	}
	var got []byte
	for _, m := range r.Control() {
		got = append(append(got, m.Value...), '\n')
	}
	if !bytes.Equal(got, data) {
		r.T.Errorf("the control topic holds\n%sthe ledger\n%s", got, data)
	}
}

// TestMirror: the control topic is created with the right settings, and gets the ledger's lines, including those
// written before the topic was configured.
func TestMirror(t *testing.T) {
	t.Parallel()
	r := streamtest.Mirrored(t, fixtures.RollsStream)
	r.Topic = ""
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()
	r.Topic = "control"
	x = r.Start()
	x.Published(2)
	mirrors(r)
	r.Produce(250, 750)
	x.Until("epoch 3", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 2 && s.Outbox == 0 })
	x.End()
	mirrors(r)
	settings, err := fixtures.Dial(t, r.Addr).TopicConfig(t.Context(), "control", ledger.SettingNames...)
	topic, err2 := fixtures.Dial(t, r.Addr).Topic(t.Context(), "control")
	if err != nil || err2 != nil || ledger.UnfitControl(len(topic.Partitions), settings) != "" {
		t.Errorf("the control topic has %v, %d partitions", settings, len(topic.Partitions))
	}
	// A topic that was deleted gets all lines again.
	kafkatest.DeleteTopic(t, r.Broker.Addrs(), "control")
	x = r.Start()
	x.Published(2)
	x.End()
	mirrors(r)
}

// TestUnfitControl: a topic that may lose lines or their order is refused.
func TestUnfitControl(t *testing.T) {
	t.Parallel()
	for says, make := range map[string]func(*streamtest.Rig) error{
		"partitions": func(r *streamtest.Rig) error {
			return r.Client.CreateTopic(t.Context(), "control", 2, ledger.TopicSpec.Settings)
		},
		"cleanup.policy = compact": func(r *streamtest.Rig) error {
			return r.Client.CreateTopic(t.Context(), "control", 1,
				map[string]string{"cleanup.policy": "compact", "retention.ms": "-1"})
		},
		"retention.ms = 1000": func(r *streamtest.Rig) error {
			return r.Client.CreateTopic(t.Context(), "control", 1, map[string]string{"retention.ms": "1000"})
		},
		"lost its first 1 records": func(r *streamtest.Rig) error {
			x := r.Start()
			x.Until("epoch 1",
				func(s monitor.TaskStatus) bool { return s.Epoch == 1 && s.State == monitor.StateRunning })
			x.End()
			kafkatest.DeleteRecords(r.T, r.Broker.Addrs(), "control", 0, 1)
			return nil
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			r := streamtest.Mirrored(t, fixtures.OrdersStream)
			r.T = t
			fixtures.Must(t, make(r))
			x := r.Start()
			if err := x.Ends(); !errors.Is(err, failure.ErrHalted) || !strings.Contains(err.Error(), says) {
				t.Errorf("ended with %v", err)
			}
			if s := x.D.Status()[0]; s.Reason != failure.ControlTopic {
				t.Errorf("reason %s", s.Reason)
			}
		})
	}
}

// TestClaims: if two copies of a directory run at once, only one opens the next epoch; if two new directories run, only
// one opens the first epoch. The other charges and releases nothing.
func TestClaims(t *testing.T) {
	t.Parallel()
	halted := func(s monitor.TaskStatus) bool { return s.State == monitor.StateHalted }
	t.Run("copies", func(t *testing.T) {
		t.Parallel()
		r := streamtest.Mirrored(t, fixtures.RollsStream)
		r.Produce(0, 250)
		x := r.Start()
		x.Published(2)
		x.End()
		s := r.Sibling(fixtures.RollsStream)
		r.CopyState(s)
		x, y := r.Start(), s.Start()
		x.Published(2)
		y.Published(2)
		r.Produce(250, 1000)
		done := func(s monitor.TaskStatus) bool { return halted(s) || s.Epoch == 4 && s.Outbox == 0 }
		x.Until("the end", done)
		y.Until("the end", done)
		if halted(x.D.Status()[0]) == halted(y.D.Status()[0]) {
			t.Fatalf("%+v\n%+v", x.D.Status()[0], y.D.Status()[0])
		}
		v := r.History("orders.dp")
		if len(v.Bytes) != 12 {
			t.Errorf("%d releases", len(v.Bytes))
		}
		for _, c := range []*streamtest.Running{x, y} {
			c.Stop()
			<-c.Done
		}
		loser := map[bool]*streamtest.Rig{true: r, false: s}[halted(x.D.Status()[0])]
		if err := loser.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
			!strings.Contains(err.Error(), "newest copy") {
			t.Errorf("the copy that lost ended with %v", err)
		}
	})
	t.Run("fresh directories", func(t *testing.T) {
		t.Parallel()
		r := streamtest.Mirrored(t, fixtures.OrdersStream)
		s := r.Sibling(fixtures.OrdersStream)
		x, y := r.Start(), s.Start()
		ready := func(s monitor.TaskStatus) bool { return halted(s) || s.State == monitor.StateRunning }
		x.Until("ready", ready)
		y.Until("ready", ready)
		if halted(x.D.Status()[0]) == halted(y.D.Status()[0]) {
			t.Fatalf("%+v\n%+v", x.D.Status()[0], y.D.Status()[0])
		}
		won, lost, loser := x, y, s
		if halted(x.D.Status()[0]) {
			won, lost, loser = y, x, r
		}
		if _, err := os.Stat(loser.LedgerFile()); err == nil {
			if got := loser.Kinds(); got != "" && got != "open void" {
				t.Errorf("the ledger of the directory that lost: %s", got)
			}
		}
		if s := lost.D.Status()[0]; s.Reason != failure.ControlTopic || s.ChargedEpsilon != 0 ||
			!strings.Contains(s.Message, "epoch open orders") {
			t.Errorf("the directory that lost: %+v", s)
		}
		lost.Stop()
		<-lost.Done
		// The loser does not open another epoch by itself.
		if err := loser.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
			!strings.Contains(err.Error(), "another state directory opened epoch 1") {
			t.Errorf("the directory that lost ended with %v", err)
		}
		r.Produce(0, 1000)
		won.Published(10)
		won.End()
		// An operator may open one, with a number that was not used.
		fixtures.Must(t, loser.Offline(func(ctx context.Context, d *stream.Daemon) error {
			return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{})
		}))
		all := loser.Entries()
		if last := all[len(all)-1]; last.Kind != ledger.KindOpen || last.Epoch < 2 {
			t.Errorf("opened %+v", last)
		}
		x = loser.Start()
		x.Until("it runs", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
		x.End()
	})
}

// TestForkedLines: two copies write different lines with the same number before either has read the other's. The copy
// whose line is first in the topic continues, and the other halts.
func TestForkedLines(t *testing.T) {
	t.Parallel()
	key := ledger.NewKey(connect.InsecureKey(1))
	file := sealedLedger(t, simdisk.NewSimDisk("/s"), key)
	ledgerWith := func(ends ...int64) (*ledger.Ledger, [][]byte) {
		d := simdisk.NewSimDisk("/s")
		f, err := d.Append("/s/" + ledger.FileName)
		fixtures.Must(t, state.Write(f, err, file))
		l, err := ledger.Open(d, "/s", key)
		fixtures.Must(t, err)
		for _, end := range ends {
			fixtures.Must(t, l.Append(ending(ledger.KindClose, 2, end)))
		}
		lines, err := l.Raw(0)
		fixtures.Must(t, err)
		return l, lines
	}
	l, own := ledgerWith(2000)
	_, other := ledgerWith(3000, 4000)
	shared := len(own) - 1
	for name, c := range map[string]struct {
		topic  [][]byte
		forked uint64
	}{
		"ours first":   {append(slices.Clone(own), other[shared:]...), 0},
		"theirs first": {append(slices.Clone(other), own[shared]), uint64(shared) + 1},
		"theirs in between": {append(append(slices.Clone(own[:shared]), other[shared]), own[shared], other[shared+1]),
			uint64(shared) + 1},
	} {
		m := ledger.ControlTopicOf(l)
		id, _ := l.Identity()
		for _, line := range c.topic {
			m.Line(
				&kafka.Record{Value: line,
					Headers: []kafka.Header{{Key: ledger.MirrorHeader, Value: m.Header(id, line)}}})
		}
		if (*m.Forked()) != c.forked || len((*m.Lacks())) > 0 {
			t.Errorf("%s: forked at line %d, lacks %d", name, (*m.Forked()), len((*m.Lacks())))
		}
	}
}

// TestOldCopyOfForked: two copies of a ledger wrote different lines. An older copy appends the lines that came first to
// its own ledger. It halts, however, if the second copy wrote lines from before it had a control topic.
func TestOldCopyOfForked(t *testing.T) {
	t.Parallel()
	key := ledger.NewKey(connect.InsecureKey(1))
	file := sealedLedger(t, simdisk.NewSimDisk("/s"), key)
	ledgerWith := func(ends ...int64) (*ledger.Ledger, [][]byte) {
		d := simdisk.NewSimDisk("/s")
		f, err := d.Append("/s/" + ledger.FileName)
		fixtures.Must(t, state.Write(f, err, file))
		l, err := ledger.Open(d, "/s", key)
		fixtures.Must(t, err)
		for i, end := range ends {
			fixtures.Must(t,
				l.Append(
					ledger.Entry{Kind: ledger.KindLimit, Stream: "orders", Source: core.Source{Topic: "orders"},
						LimitEpsilon: float64(end), LimitDelta: 1e-6, Reason: fmt.Sprint(i)}))
		}
		lines, err := l.Raw(0)
		fixtures.Must(t, err)
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
		m := ledger.ControlTopicOf(l)
		id, _ := l.Identity()
		for _, line := range c.topic {
			m.Line(
				&kafka.Record{Value: line,
					Headers: []kafka.Header{{Key: ledger.MirrorHeader, Value: m.Header(id, line)}}})
		}
		if (*m.Forked()) != c.forked || !slices.EqualFunc((*m.Lacks()), c.lacks, bytes.Equal) {
			t.Errorf("%s: forked at line %d of %d, lacks %d", name, (*m.Forked()), n, len((*m.Lacks())))
			continue
		}
		if c.forked == 0 {
			old, _ := ledgerWith()
			if err := old.Adopt((*m.Lacks())); err != nil || old.Lines() != n+3 {
				t.Errorf("%s: %d lines, %v", name, old.Lines(), err)
			}
		}
	}
}

// TestClaimsMerged: a new directory in which the stream is merged counts as the same stream: it does not open an epoch
// by itself over partitions that another directory charged. The same holds for a directory in which the stream is no
// longer merged.
func TestClaimsMerged(t *testing.T) {
	t.Parallel()
	merged := fixtures.With(fixtures.MergedStream, `"all"`, "[0]")
	for name, c := range map[string][2]string{
		"merged": {fixtures.OrdersStream, merged}, "merged no longer": {merged, fixtures.OrdersStream},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := streamtest.Mirrored(t, c[0])
			x := r.Start()
			x.Until("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			x.End()
			s := r.Sibling(c[1])
			if err := s.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
				!strings.Contains(err.Error(), "another state directory opened epoch 1") {
				t.Errorf("the fresh directory ended with %v", err)
			}
			task := core.Task{Stream: "orders", Partition: core.Merged}
			if c[1] == fixtures.OrdersStream {
				task.Partition = 0
			}
			fixtures.Must(t, s.Offline(func(ctx context.Context, d *stream.Daemon) error {
				return streamtest.OpenEpoch(ctx, d, task, epoch.OpenRequest{})
			}))
			all := s.Entries()
			if last := all[len(all)-1]; last.Kind != ledger.KindOpen || last.Epoch != 2 {
				t.Errorf("opened %+v", last)
			}
			x = s.Start()
			x.Until("it runs", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
			x.End()
		})
	}
}

// TestOldCopy: a daemon does not start if lines of the control topic are missing in its ledger. If there is no newer
// copy, an operator can append these lines to the ledger, with all their charges.
func TestOldCopy(t *testing.T) {
	t.Parallel()
	r := streamtest.Mirrored(t, fixtures.RollsStream)
	r.Produce(0, 250)
	x := r.Start()
	x.Published(2)
	x.End()
	s := r.Sibling(fixtures.RollsStream)
	r.CopyState(s)
	r.Produce(250, 450)
	x = r.Start()
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.Step == 3 && s.Outbox == 0 })
	x.End()
	newest := r.Kinds()
	if err := s.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), "3 lines that this ledger lacks") ||
		!strings.Contains(err.Error(), "epoch open") {
		t.Errorf("the old copy ended with %v", err)
	}
	fixtures.Must(t, s.Offline(func(ctx context.Context, d *stream.Daemon) error {
		return streamtest.OpenEpoch(ctx, d, fixtures.OrdersTask, epoch.OpenRequest{SameLog: true})
	}))
	if got := s.Kinds(); !strings.HasPrefix(got, newest+" close") {
		t.Errorf("the ledger of the copy: %s, of the original: %s", got, newest)
	}
	all := s.Entries()
	if last := all[len(all)-1]; last.Epoch != 3 {
		t.Errorf("epoch %d is open", last.Epoch)
	}
	// Now the original directory is the old copy.
	if err := r.Start().Ends(); !errors.Is(err, failure.ErrHalted) ||
		!strings.Contains(err.Error(), "lines that this ledger lacks") {
		t.Errorf("the original ended with %v", err)
	}
}

// TestForeignControl: the daemon ignores records that other programs write into the control topic, by accident or on
// purpose, and lines that are signed with another master key.
func TestForeignControl(t *testing.T) {
	t.Parallel()
	r := streamtest.Mirrored(t, fixtures.RollsStream)
	r.Produce(0, 450)
	other := r.Sibling(fixtures.RollsStream) // the same stream, with another key in another directory
	other.Seed, other.Toml = 8, fixtures.With(fixtures.RollsStream, `"orders.dp"`, `"other.dp"`)
	y := other.Start()
	y.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.State == monitor.StateRunning })
	y.End()
	lines := r.Control()
	if len(lines) < 3 {
		t.Fatalf("%d lines", len(lines))
	}
	put := func(m ...kafka.Message) {
		for i := range m {
			m[i].Time = time.UnixMilli(1)
		}
		if _, err := fixtures.Dial(t, r.Addr).Produce(t.Context(), "control", 0, m); err != nil {
			t.Fatal(err)
		}
	}
	put(kafka.Message{}, kafka.Message{Key: []byte("x"), Value: []byte("{}")}, kafka.Message{Value: lines[0].Value},
		kafka.Message{Value: lines[0].Value, Headers: []kafka.Header{{Key: ledger.MirrorHeader}}},
		kafka.Message{Value: lines[0].Value,
			Headers: []kafka.Header{{Key: ledger.MirrorHeader, Value: make([]byte, 64)}}},
		kafka.Message{Value: lines[0].Value, Headers: []kafka.Header{lines[0].Headers[0], lines[0].Headers[0]}})
	x := r.Start()
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.State == monitor.StateRunning })
	x.End()
	// These are lines of the ledger itself: one of them damaged in each byte, lines sent again, and lines out of order.
	own := r.Control()[len(lines)+6:]
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
		put(kafka.Message{Value: line.Value, Headers: []kafka.Header{{Key: ledger.MirrorHeader, Value: bad}}})
	}
	put(own[1], own[0])
	x = r.Start()
	x.Until("epoch 2", func(s monitor.TaskStatus) bool { return s.Epoch == 2 && s.State == monitor.StateRunning })
	r.Produce(450, 400)
	x.Until("epoch 3", func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.State == monitor.StateRunning })
	x.End()
	if got := fmt.Sprint(len(r.Entries())); got == "0" {
		t.Error("no ledger")
	}
}

// TestSharedControl: daemons of other streams share the topic without interference.
func TestSharedControl(t *testing.T) {
	t.Parallel()
	r := streamtest.Mirrored(t, fixtures.RollsStream)
	s := r.Sibling(
		fixtures.With(fixtures.RollsStream, "stream.orders", "stream.others", "stream.orders", "stream.others",
			"stream.orders", "stream.others", `"orders.dp"`, `"others.dp"`))
	r.Produce(0, 950)
	x, y := r.Start(), s.Start()
	third := func(s monitor.TaskStatus) bool { return s.Epoch == 3 && s.Step == 1 && s.Outbox == 0 }
	x.Until("epoch 3", third)
	y.Until("epoch 3", third)
	x.End()
	y.End()
}
