package ledger

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// EntryPart is what a line about a merged epoch says of one of its partitions. An opening
// has one of each partition in one line, so that all of them are charged or none: a line
// that a crash tore is cut off whole.
type EntryPart struct {
	Partition   int    `json:"partition"`
	Incarnation uint64 `json:"incarnation,omitempty"` // open
	First       int64  `json:"first,omitempty"`       // open: first offset
	End         int64  `json:"end,omitempty"`         // open, close: as in Entry

	// close
	AnchorOffset int64  `json:"anchor_offset,omitempty"`
	Anchor       string `json:"anchor,omitempty"`
}

// Views returns the entry as it is for each source that it concerns: itself, or one for
// each partition of a merged epoch.
func (e *Entry) Views() []Entry {
	if e.Partition != core.Merged {
		return []Entry{*e}
	}
	all := make([]Entry, len(e.Parts))
	for i, p := range e.Parts {
		v := *e
		v.Partition, v.Incarnation, v.First, v.End, v.AnchorOffset, v.Anchor, v.Parts = p.Partition, p.Incarnation,
			p.First, p.End, p.AnchorOffset, p.Anchor, nil
		all[i] = v
	}
	return all
}

// View returns the entry as it is for one source; ok is false where it does not concern it.
func (e *Entry) View(s core.Source) (v Entry, ok bool) {
	if e.Cluster != s.Cluster || e.Topic != s.Topic {
		return v, false
	}
	if e.Partition != core.Merged {
		return *e, e.Partition == s.Partition
	}
	i, ok := slices.BinarySearchFunc(e.Parts, s.Partition, func(p EntryPart, n int) int { return p.Partition - n })
	if !ok {
		return v, false
	}
	one := *e
	one.Parts = e.Parts[i : i+1]
	return one.Views()[0], true
}

// Concerns reports whether the entry is about a source.
func (e *Entry) Concerns(s core.Source) bool {
	_, ok := e.View(s)
	return ok
}

// Sources returns what the entry concerns.
func (e *Entry) Sources() (all []core.Source) {
	for _, v := range e.Views() {
		all = append(all, v.Source)
	}
	return all
}

// Charge sets what an opening charges: the parts of a merged epoch, or the only part of another one.
func (e *Entry) Charge(parts []EntryPart) {
	if e.Partition == core.Merged {
		e.Parts = parts
		e.addUp()
		return
	}
	e.Incarnation, e.First, e.End = parts[0].Incarnation, parts[0].First, parts[0].End
}

// addUp sets First and End to the sums over the parts; End is −1 where one of them is.
func (e *Entry) addUp() {
	e.First, e.End = 0, 0
	for _, p := range e.Parts {
		e.First += p.First
		if p.End < 0 {
			e.End = -1
		} else if e.End >= 0 {
			e.End += p.End
		}
	}
}

// sound reports whether the parts of a line can be: ascending partitions, of which an
// opening charges a range each; and sums that are theirs. opened is the epoch's opening
// for a close, nil for an opening.
func (e *Entry) sound(opened *Entry) bool {
	if e.Partition != core.Merged {
		return len(e.Parts) == 0
	}
	if len(e.Parts) == 0 {
		return false
	}
	for i, p := range e.Parts {
		if i > 0 && p.Partition <= e.Parts[i-1].Partition || p.Partition < 0 {
			return false
		}
		if opened == nil {
			if v := (&Entry{First: p.First, End: p.End}); !v.chargesOffsets() {
				return false
			}
			continue
		}
		if len(opened.Parts) != len(e.Parts) || opened.Parts[i].Partition != p.Partition ||
			p.End != -1 && p.End < opened.Parts[i].First {
			return false
		}
	}
	total := *e
	total.addUp()
	return opened != nil && total.End == e.End || total.First == e.First && total.End == e.End
}

// closing returns the line that would close an opening's epoch at these ends, one for each
// of its views, after so many steps or more.
func (e *Entry) closing(ends []EntryPart, steps uint64) *Entry {
	c := &Entry{Kind: KindClose, Stream: e.Stream, Source: e.Source, Epoch: e.Epoch}
	if e.stretches() {
		c.Steps = steps
	}
	if e.Partition == core.Merged {
		c.Parts = ends
		c.addUp()
		return c
	}
	c.End, c.AnchorOffset, c.Anchor = ends[0].End, ends[0].AnchorOffset, ends[0].Anchor
	return c
}

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
	part,
		err := json.Marshal(
		EntryPart{Partition: partitions, End: most, AnchorOffset: most, Anchor: strings.Repeat("0", 2*sha256.Size)})
	if err != nil {
		panic("stream: " + err.Error()) // unreachable: numbers and a text
	}
	return 4<<10 + partitions*(len(part)+len(","))
}
