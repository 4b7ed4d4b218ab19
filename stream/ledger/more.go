package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// EntryBoundaries is where the boundaries of an epoch are whose steps are by the clock.
// Before the first of them, no record ties the epoch to its topic: a topic that was made
// anew would look like the one of the opening, in which boundaries were decided already.
type EntryBoundaries struct {
	Topic   string `json:"topic"`
	TopicID string `json:"topic_id,omitempty"` // where the brokers have one
	First   int64  `json:"first"`              // end of the topic when the epoch opened: none is before it
}

// EndsAt returns what a closing of the epoch at the checkpoint says of each partition.
func EndsAt(c *state.Checkpoint, mac func([32]byte) string) (all []EntryPart) {
	for _, p := range c.All() {
		e := EntryPart{Partition: p.Partition, End: p.Position.Next}
		if a := p.Position.Anchor; a != nil {
			e.AnchorOffset, e.Anchor = a.Offset, mac(a.Hash)
		}
		all = append(all, e)
	}
	return all
}

// ClosingBytes bounds the line that closes an epoch over so many partitions, in which offsets are below 2⁴⁰. It is
// the longest of the epoch's lines.
func ClosingBytes(partitions int) int {
	const most = 1 << 40
	part, err := json.Marshal(EntryPart{Partition: partitions, End: most, AnchorOffset: most, Anchor: strings.Repeat("0", 2*sha256.Size)})
	if err != nil {
		panic("stream: " + err.Error()) // unreachable: numbers and a text
	}
	return 4<<10 + partitions*(len(part)+len(","))
}

// LastIncarnation returns the newest incarnation of a source, 1 where there is none,
// the id of its topic, "" where none was recorded, and the newest close of it with an
// anchor, nil where there is none, with the id of the master key that the anchor is
// under. unproven says that a later close covers records and has no anchor.
func (l *Ledger) LastIncarnation(src core.Source) (n uint64, topicID string, last *Entry, lastKey string, unproven bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.index.Sources[src]
	if of == nil {
		return 1, "", nil, "", false
	}
	if of.anchor >= 0 {
		found, _ := l.Entries[of.anchor].View(src)
		last = &found
	}
	return of.incarnation, of.topicID, last, of.anchorKey, of.unproven
}

// accepted returns the hash that a repair accepts for a line of the ledger.
func (e *Entry) accepted() (head [32]byte, ok bool) {
	b, err := hex.DecodeString(e.Accepts)
	return [32]byte(append(b, make([]byte, 32)...)[:32]), err == nil && len(b) == 32 && !bytes.Equal(b, make([]byte, 32))
}

// TakenTopics returns the topics of the streams that patterns have made, by ledger lines, the oldest
// first: of those with an open epoch, or of all.
func (l *Ledger) TakenTopics(all bool) (list []config.Taken) {
	for _, t := range l.Tasks() {
		if !strings.Contains(t.Stream, ".") {
			continue
		}
		last := l.Newest(t)
		if last == nil || !all && last.Kind != KindOpen {
			continue
		}
		if x := (config.Taken{Stream: t.Stream, Topic: last.Topic}); !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
}

// WrittenTopics returns the topics that epochs published into.
func (l *Ledger) WrittenTopics() (list []string) {
	seen := map[string]bool{}
	for _, e := range l.All() {
		if e.Output != nil && !seen[e.Output.Topic] {
			seen[e.Output.Topic] = true
			list = append(list, e.Output.Topic)
		}
	}
	return list
}

// Expand returns a configuration with the streams that its patterns have made, as far as ledgers tell:
// what a command knows that asks no broker.
func (b *Books) Expand(c *config.Config) *config.Config {
	x, _ := c.Expand(b.Topics())
	return x
}

// Topics returns what ledgers say of topics that patterns match. Found is left open.
func (b *Books) Topics() (t config.Topics) {
	for _, l := range b.Ledgers {
		t.Kept = append(t.Kept, l.TakenTopics(true)...)
		t.Written = append(t.Written, l.WrittenTopics()...)
	}
	return t
}
