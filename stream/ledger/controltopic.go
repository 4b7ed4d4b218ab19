package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/signedlog"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
)

// ControlTopic keeps all lines of the ledger in the control topic too, which all state
// directories share that may read the same input. The topic has one partition, so all
// see its lines in one order. The line that opens an epoch is the claim to it: of two,
// by copies of a state directory or by a second one, the first in that order counts.
//
// A record is a line: the value its bytes, the header the identity of the ledger, which
// is the hash of its first line, and a MAC under a key that follows from the master key.
// Records without a valid MAC are nobody's. It is safe for concurrent use.
type ControlTopic struct {
	*failure.Retrier
	log    signedlog.Log
	ledger *Ledger

	mu     sync.Mutex
	found  bool                  // the topic is there and fit
	next   int64                 // of the topic, what was not read yet
	sent   int                   // lines of the ledger that the topic holds
	lacks  [][]byte              // lines of the ledger's newer copy that the ledger lacks
	again  bool                  // a line was written that was there already
	forked uint64                // first line that a copy of the ledger has and this one has not; 0: none
	late   map[string]bool       // hashes, in hexadecimal, of lines of copies that came second; see line
	claims map[claimed]claim     // the first of each task's epoch
	first  map[claimed][32]byte  // the ledger that was first to open an epoch of that number over a source
	newest map[string][]newestOf // by stream; of each ledger with a claim that counts
}

// claimed is an epoch of a task, whose source is merged (−1) or one partition, or an epoch
// over one of the sources that it reads.
type claimed struct {
	stream string
	source core.Source
	epoch  uint64
}

// claim is who opened an epoch first.
type claim struct{ ledger, line [32]byte }

// newestOf is the largest epoch that a ledger claimed of a source, with a task of its own or
// as one partition of a merged epoch.
type newestOf struct {
	ledger [32]byte
	source core.Source
	epoch  uint64
}

// mirrorHeader is the name of the header of a mirrored line.
const mirrorHeader = "streamdp.ledger"

// NewControlTopic returns nil where no control topic is configured, and a nil mirror does
// nothing.
func NewControlTopic(l *Ledger, master *[32]byte, client *kafka.Client, topic string,
	r *failure.Retrier) *ControlTopic {
	if topic == "" {
		return nil
	}
	key := keys.Derive(master, keys.ForControl, nil)
	m := newControlTopic(l, signedlog.Log{Client: client, Topic: topic, Header: mirrorHeader, Key: key})
	m.Retrier = r
	return m
}

func newControlTopic(l *Ledger, log signedlog.Log) *ControlTopic {
	return &ControlTopic{log: log, ledger: l, claims: map[claimed]claim{}, newest: map[string][]newestOf{}}
}

// header returns the header of a line: the ledger's identity and the MAC.
func (m *ControlTopic) header(id [32]byte, line []byte) []byte {
	return m.log.Sign(id[:], signedlog.Sized(line))
}

// Sync reads what is new in the topic and adds the ledger's lines that it lacks. It halts
// where the topic holds lines of this ledger that the ledger has not: then this state
// directory is an old copy, or another copy runs.
func (m *ControlTopic) Sync(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.exists(ctx); err != nil {
		return err
	}
	if err := m.read(ctx); err != nil {
		return err
	}
	if err := m.newer(); err != nil {
		return err
	}
	lines, err := m.ledger.raw(m.sent)
	if err != nil || len(lines) == 0 {
		return err
	}
	sent := m.sent + len(lines) // tasks may add others meanwhile
	id, _ := m.ledger.identity()
	messages := make([]kafka.Message, len(lines))
	for i, line := range lines {
		messages[i] = kafka.Message{
			Value: line, Time: time.UnixMilli(1),
			Headers: m.log.Headers(m.header(id, line)),
		}
	}
	if err := m.Do(ctx, "control topic", func() error { return m.log.Append(ctx, messages) }); err != nil {
		return err
	}
	if err := m.read(ctx); err != nil {
		return err
	}
	if m.sent < sent && m.forked == 0 {
		return failure.Haltf(failure.ControlTopic,
			"control topic %s does not hold what was written to it: look at its settings, then start again",
			m.log.Topic)
	}
	return m.newer()
}

// newer halts where a copy of this ledger has lines that this one has not.
func (m *ControlTopic) newer() error {
	const way = "run the newest copy of the state directory, and remove the others"
	switch {
	case m.forked > 0:
		return failure.Haltf(failure.ControlTopic,
			"control topic %s holds another line %d of this ledger: a copy of this state directory went "+
				"on, or runs; %s", m.log.Topic, m.forked, way)
	case len(m.lacks) > 0:
		return failure.Haltf(failure.ControlTopic,
			"control topic %s holds %d lines that this ledger lacks: this state directory is an old copy; %s; "+
				"where it is lost, streamdp epoch open takes the lines over and opens another epoch", m.log.Topic,
			len(m.lacks), way)
	}
	return nil
}

// Adopt takes over the lines that a newer copy of the ledger has, for an operator who
// opens an epoch with what is left of the state.
func (m *ControlTopic) Adopt(ctx context.Context) error {
	err := m.Sync(ctx)
	if err == nil || m == nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.forked > 0 || len(m.lacks) == 0 {
		return err
	}
	return m.takeOver()
}

// Salvage takes over the lines of this ledger that follow its own in the topic, for a
// repair. It writes nothing to the topic. Where the topic is missing, or holds another
// line where the ledger has one, it takes none.
func (m *ControlTopic) Salvage(ctx context.Context) error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	there := false
	err := m.Do(ctx, "control topic", func() error {
		t, err := m.log.Client.Topic(ctx, m.log.Topic)
		there = err == nil && t.Exists
		return err
	})
	if err != nil || !there {
		return err
	}
	if err := m.read(ctx); err != nil || m.forked > 0 || len(m.lacks) == 0 {
		return err
	}
	return m.takeOver()
}

// takeOver adds the lines that the ledger lacks to it.
func (m *ControlTopic) takeOver() error {
	if err := m.ledger.adopt(m.lacks); err != nil {
		return err
	}
	m.Log.Warn("lines of a newer copy of the ledger were taken over from the control topic", "lines", len(m.lacks))
	m.sent += len(m.lacks)
	m.lacks = nil
	return nil
}

// exists makes the topic where it is missing, and halts where it could lose lines or
// their order.
func (m *ControlTopic) exists(ctx context.Context) error {
	if m.found {
		return nil
	}
	err := m.Do(ctx, "control topic", func() error {
		found, err := m.log.Client.Ensure(ctx, m.log.Topic, &TopicSpec)
		if err == nil && found.Unfit != "" {
			return failure.Haltf(failure.ControlTopic, "control topic %s %s", m.log.Topic, found.Unfit)
		}
		return err
	})
	m.found = err == nil
	return err
}

// TopicSpec says how the control topic is made and what it must be like.
var TopicSpec = kafka.TopicSpec{Partitions: 1, Settings: topicSettings, Looked: SettingNames, Unfit: UnfitControl}

var topicSettings = map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

// SettingNames are the settings of a control topic that UnfitControl looks at.
var SettingNames = []string{"cleanup.policy", "retention.ms", "retention.bytes"}

// UnfitControl says why a topic with so many partitions and these settings can't be
// the control topic, empty where it can.
func UnfitControl(partitions int, settings map[string]string) string {
	if partitions != 1 {
		return fmt.Sprintf("has %d partitions, and must have one: lines in several have no order", partitions)
	}
	for _, name := range SettingNames {
		if is, want := settings[name], topicSettings[name]; is != want && is != "" {
			return fmt.Sprintf("has %s = %s, and must have %s: no line of it may be deleted", name, is, want)
		}
	}
	return ""
}

// read reads the topic on, to its end. A topic that was made anew is read whole, and
// gets all lines again.
func (m *ControlTopic) read(ctx context.Context) error {
	var start, end int64
	if err := m.Do(ctx, "control topic", func() (err error) {
		start, end, err = m.log.Bounds(ctx)
		return err
	}); err != nil {
		return err
	}
	if start > 0 {
		return failure.Haltf(failure.ControlTopic,
			"control topic %s lost its first %d records: delete it, and let all daemons write their lines to it again",
			m.log.Topic, start)
	}
	if end < m.next {
		m.Log.Warn("the control topic was made anew: all lines of the ledger are written to it again", "topic",
			m.log.Topic)
		m.next, m.sent, m.lacks, m.again, m.forked, m.late = 0, 0, nil, false, 0, nil
		m.claims, m.first, m.newest = map[claimed]claim{}, nil, map[string][]newestOf{}
	}
	if end == m.next {
		return nil
	}
	err := m.log.Read(ctx, m.next, func(rec *kafka.Record) error {
		m.next = rec.Offset + 1
		m.line(rec)
		return nil
	})
	if kafka.Lost(err) {
		return failure.Haltf(failure.ControlTopic, "control topic %s: %w", m.log.Topic, err)
	}
	m.next = max(m.next, end)
	return err
}

// line takes note of a record, if it is a line of a ledger with our key.
//
// Copies of a ledger that write before either reads the other write two lines of one
// number. The first in the topic counts, for the one that wrote it, and for an older copy
// that reads both and takes it over. The copy that wrote the second meets the first when
// it reads its own line back, and halts; it does that before it draws noise for an opening
// ([runner.claim]). So nothing was released under what follows the second line. Such lines
// are told by the line before them.
//
// That does not hold of copies that ran before they had a control topic. They write all of
// their lines at once, those that they share too. So where lines were written again, an
// older copy takes no second line for one that released nothing, and halts.
func (m *ControlTopic) line(rec *kafka.Record) {
	header, _ := m.log.Signature(rec)
	if len(header) != 64 {
		return
	}
	id := [32]byte(header)
	if !m.log.Signed(rec, id[:], signedlog.Sized(rec.Value)) {
		return
	}
	var e Entry
	if json.Unmarshal(rec.Value, &e) != nil || e.Seq == 0 {
		return
	}
	hash := sha256.Sum256(rec.Value)
	if e.Kind == KindOpen {
		m.claim(&e, claim{id, hash})
	}
	if own, ok := m.ledger.identity(); !ok || own != id || m.forked > 0 {
		return
	}
	lines := uint64(m.ledger.lines())
	have, _ := m.ledger.hashOf(e.Seq)
	known := e.Seq <= lines // others may append meanwhile
	next := lines + uint64(len(m.lacks)) + 1
	switch {
	case known && have == hash:
		m.again = m.again || e.Seq <= uint64(m.sent)
		m.sent = max(m.sent, int(e.Seq))
	case m.late[e.Prev], known && e.Seq <= uint64(m.sent):
		m.second(hash)
	case !known && e.Seq < next && bytes.Equal(rec.Value, m.lacks[e.Seq-lines-1]):
		m.again = true
	case !known && e.Seq < next && !m.again:
		m.second(hash)
	case !known && e.Seq == next && e.Prev == m.newestLine():
		m.lacks = append(m.lacks, bytes.Clone(rec.Value))
	default:
		m.forked = e.Seq
	}
}

// second takes note of a line that came after another one of its number.
func (m *ControlTopic) second(hash [32]byte) {
	if m.late == nil {
		m.late = map[string]bool{}
	}
	m.late[hex.EncodeToString(hash[:])] = true
}

// newestLine returns the hash, in hexadecimal, of the last line of the ledger's newest copy.
func (m *ControlTopic) newestLine() string {
	hash := m.ledger.HeadHash()
	if n := len(m.lacks); n > 0 {
		hash = sha256.Sum256(m.lacks[n-1])
	}
	return hex.EncodeToString(hash[:])
}

// claim takes note of an opening. It counts if it is the first of its task and epoch, and no
// other ledger opened an epoch of that number over one of its sources before: of a directory
// in which a stream is merged and one in which it is not, one gets epoch 1. One ledger may
// have both, one after the other.
func (m *ControlTopic) claim(e *Entry, by claim) {
	epoch := claimed{e.Stream, e.Source, e.Epoch}
	if _, taken := m.claims[epoch]; taken || m.foreign(e, by.ledger) {
		return
	}
	m.claims[epoch] = by
	if m.first == nil {
		m.first = map[claimed][32]byte{}
	}
	for _, src := range append(e.Sources(), e.Source) {
		m.first[claimed{e.Stream, src, e.Epoch}] = by.ledger
		list := m.newest[e.Stream]
		i := slices.IndexFunc(list, func(n newestOf) bool { return n.ledger == by.ledger && n.source == src })
		if i < 0 {
			m.newest[e.Stream] = append(list, newestOf{by.ledger, src, e.Epoch})
			continue
		}
		list[i].epoch = max(list[i].epoch, e.Epoch)
	}
}

// foreign reports whether another ledger was the first to open an epoch of the number of an
// opening over one of its sources.
func (m *ControlTopic) foreign(opened *Entry, own [32]byte) bool {
	return slices.ContainsFunc(append(opened.Sources(), opened.Source), func(src core.Source) bool {
		first, taken := m.first[claimed{opened.Stream, src, opened.Epoch}]
		return taken && first != own
	})
}

// Others returns the largest epoch that other ledgers claimed of one of a stream's sources,
// 0 where there is none. One that merges partitions counts for each of them, so that a
// stream that becomes merged, or is so no longer, is no other stream.
func (m *ControlTopic) Others(stream string, sources []core.Source) (epoch uint64) {
	if m == nil {
		return 0
	}
	own, _ := m.ledger.identity()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.newest[stream] {
		if n.ledger != own && slices.Contains(sources, n.source) {
			epoch = max(epoch, n.epoch)
		}
	}
	return epoch
}

// Ours halts where the epoch of an opening was claimed by another state directory before,
// or a later one was claimed since.
func (m *ControlTopic) Ours(opened *Entry) error {
	if m == nil {
		return nil
	}
	own, _ := m.ledger.identity()
	m.mu.Lock()
	first, claimed := m.claims[claimed{opened.Stream, opened.Source, opened.Epoch}]
	foreign := m.foreign(opened, own)
	m.mu.Unlock()
	if line, _ := m.ledger.hashOf(opened.Seq); foreign || claimed && (first.ledger != own || first.line != line) {
		return m.Taken(opened.Task(), opened.Epoch)
	}
	if n := m.Others(opened.Stream, append(opened.Sources(), opened.Source)); n > opened.Epoch {
		return m.Taken(opened.Task(), n)
	}
	return nil
}

// Taken is the halt of a state directory whose task another one runs.
func (m *ControlTopic) Taken(t core.Task, epoch uint64) error {
	return failure.Haltf(failure.ControlTopic,
		"control topic %s says that another state directory opened epoch %d of this task: run one of them, the "+
			"newest, and remove the others; "+
			"where the other one is lost, accept a new budget with: streamdp epoch open %s", m.log.Topic, epoch,
		failure.EpochArgs(t))
}
