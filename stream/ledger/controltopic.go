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

// ControlTopic keeps a copy of all lines of the ledger in the control topic. All state directories that may read the
// same input share this topic. The topic has one partition, so all of them see its lines in the same order. The line
// that opens an epoch is the claim to this epoch. If several directories claim an epoch, for example copies of one
// state directory, the first claim in the topic counts.
//
// The value of a record is the bytes of a line. Its header has the identity of the ledger, which is the hash of its
// first line, and a MAC under a key derived from the master key. Records without a valid MAC are ignored. A
// ControlTopic is safe for concurrent use.
type ControlTopic struct {
	*failure.Retrier
	log    signedlog.Log
	ledger *Ledger

	mu    sync.Mutex
	found bool  // the topic exists and has the right settings
	next  int64 // offset of the topic's first record that is not read yet
	sent  int   // number of lines of the ledger that are in the topic
	// lacks has the lines that a newer copy of the ledger wrote to the topic and that this ledger does not have.
	lacks [][]byte
	again bool // the topic has a line twice
	// forked is the number of the first line in which a copy of the ledger differs from this one; 0: no copy differs.
	forked uint64
	// late has the hashes, in hexadecimal, of lines whose number another copy used first; see method line.
	late   map[string]bool
	claims map[claimed]claim     // the first claim to each epoch
	first  map[claimed][32]byte  // the first ledger to open an epoch with this number over a source
	newest map[string][]newestOf // keyed by stream; one element per ledger and source with a valid claim
}

// claimed identifies an epoch of a task, or an epoch over one of the sources that the task reads. In the first case,
// source is the task's source, with partition −1 if the task is merged.
type claimed struct {
	stream string
	source core.Source
	epoch  uint64
}

// claim is a ledger's line that opened an epoch.
type claim struct{ ledger, line [32]byte }

// newestOf is the largest epoch that a ledger claimed over a source. The epoch may read only this source, or be a
// merged epoch that includes it.
type newestOf struct {
	ledger [32]byte
	source core.Source
	epoch  uint64
}

// mirrorHeader is the name of the header of a line's copy in the topic.
const mirrorHeader = "streamdp.ledger"

// NewControlTopic returns nil if no control topic is configured. All methods of a nil ControlTopic do nothing.
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

// Sync reads the new lines of the topic and appends the ledger's lines that are not in the topic yet. It returns a halt
// if the topic has lines of this ledger that the ledger itself does not have: this state directory is then an old copy,
// or another copy runs.
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
	sent := m.sent + len(lines) // tasks may add lines meanwhile
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
			"control topic %s lacks lines that were just written to it: check its settings, then restart",
			m.log.Topic)
	}
	return m.newer()
}

// newer returns a halt if a copy of this ledger has lines that this ledger does not have.
func (m *ControlTopic) newer() error {
	const way = "run the newest copy of the state directory, and remove the others"
	switch {
	case m.forked > 0:
		return failure.Haltf(failure.ControlTopic,
			"control topic %s has another line %d of this ledger: a copy of this state directory is running, or was "+
				"running and has charged epochs; %s", m.log.Topic, m.forked, way)
	case len(m.lacks) > 0:
		return failure.Haltf(failure.ControlTopic,
			"control topic %s has %d lines that this ledger lacks: this state directory is an old copy; %s; if the "+
				"newest copy is lost, take over the lines and open another epoch with: streamdp epoch open",
			m.log.Topic,
			len(m.lacks), way)
	}
	return nil
}

// Adopt appends to this ledger the lines that only the topic has. It is for an operator who opens an epoch with an old
// copy of the state because the newest copy is lost.
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

// Salvage is for repairs: it appends to this ledger the lines of the topic that continue it. It writes nothing to the
// topic. If the topic is missing or differs from the ledger in some line, Salvage appends nothing.
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

// takeOver appends to the ledger the lines in m.lacks.
func (m *ControlTopic) takeOver() error {
	if err := m.ledger.adopt(m.lacks); err != nil {
		return err
	}
	m.Log.Warn("took over lines of a newer copy of the ledger from the control topic", "lines", len(m.lacks))
	m.sent += len(m.lacks)
	m.lacks = nil
	return nil
}

// exists creates the topic if it is missing. It returns a halt if the topic's settings could lose lines or change their
// order.
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

// TopicSpec says how the control topic is created and which settings it must have.
var TopicSpec = kafka.TopicSpec{Partitions: 1, Settings: topicSettings, Looked: SettingNames, Unfit: UnfitControl}

var topicSettings = map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

// SettingNames are the settings of a control topic that UnfitControl checks.
var SettingNames = []string{"cleanup.policy", "retention.ms", "retention.bytes"}

// UnfitControl returns why a topic with these partitions and settings cannot be the control topic, or "" if it can.
func UnfitControl(partitions int, settings map[string]string) string {
	if partitions != 1 {
		return fmt.Sprintf("has %d partitions, but must have one: lines in several partitions have no common "+
			"order", partitions)
	}
	for _, name := range SettingNames {
		if is, want := settings[name], topicSettings[name]; is != want && is != "" {
			return fmt.Sprintf("has %s = %s, but must have %s: none of its lines may be deleted", name, is, want)
		}
	}
	return ""
}

// read reads the new records of the topic up to its end. If the topic was recreated, it is read from its start and all
// lines are written to it again.
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
			"control topic %s lost its first %d records: delete the topic, so that all daemons write their lines to "+
				"it again",
			m.log.Topic, start)
	}
	if end < m.next {
		m.Log.Warn("the control topic was recreated: writing all lines of the ledger to it again", "topic",
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

// line processes a record, if it is a line of a ledger and signed with our key.
//
// If two copies of a ledger both write before either has read the other's line, the topic gets two lines with the same
// number. The first of them counts, both for the copy that wrote it and for an older copy that reads both and appends
// the first to its own ledger. The copy that wrote the second line finds the first one when it reads its own line back,
// and halts. For an opening it reads the line back before it draws noise (claim in package epoch). So nothing was
// released under the second line or the lines that continue it. Those later lines are recognized because each contains
// the hash of the line before it.
//
// This is not true for copies that ran before a control topic was configured. Each of these copies later writes all of
// its lines at once, including the lines that the copies have in common. So once the topic has a line twice, an older
// copy cannot assume that nothing was released under a second line, and halts.
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
	known := e.Seq <= lines // other tasks may append meanwhile
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

// second records the hash of a line whose number another line in the topic already had.
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

// claim records an opening. The opening counts if it is the first claim to this epoch of this task, and if no other
// ledger earlier opened an epoch with this number over one of its sources. So if a stream is merged in one directory
// and not in another, only one directory gets epoch 1. One ledger, however, may have a merged and an unmerged epoch
// with the same number, one after the other.
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

// foreign reports whether another ledger was the first to open an epoch with the opening's number over one of its
// sources.
func (m *ControlTopic) foreign(opened *Entry, own [32]byte) bool {
	return slices.ContainsFunc(append(opened.Sources(), opened.Source), func(src core.Source) bool {
		first, taken := m.first[claimed{opened.Stream, src, opened.Epoch}]
		return taken && first != own
	})
}

// Others returns the largest epoch that other ledgers claimed over any of a stream's sources, 0 if there is none. A
// merged epoch counts for each of its partitions. So epoch numbers keep increasing when a stream becomes merged or
// stops being merged.
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

// Ours returns a halt if another state directory claimed the epoch of an opening earlier, or has since claimed a later
// epoch.
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

// Taken returns the error that halts a task because another state directory runs it.
func (m *ControlTopic) Taken(t core.Task, epoch uint64) error {
	return failure.Haltf(failure.ControlTopic,
		"control topic %s says that another state directory opened epoch %d of this task: run only the newest "+
			"directory, and remove the others; if the newest is lost, accept a new budget with: streamdp epoch open "+
			"%s", m.log.Topic, epoch,
		failure.EpochArgs(t))
}
