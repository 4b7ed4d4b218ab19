package ledger

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// EntryPart is one partition in a line about a merged epoch. An opening lists all partitions in one line, so that
// either all of them are charged or none: if a crash tears the line, it is cut off as a whole.
type EntryPart struct {
	Partition   int    `json:"partition"`
	Incarnation uint64 `json:"incarnation,omitempty"` // open
	First       int64  `json:"first,omitempty"`       // in an opening: first offset
	End         int64  `json:"end,omitempty"`         // open, close: as Entry.End

	// close
	AnchorOffset int64  `json:"anchor_offset,omitempty"`
	Anchor       string `json:"anchor,omitempty"`
}

// Views returns the entry as seen by each source that it concerns: the entry itself, or one entry for each partition of
// a merged epoch.
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

// View returns the entry as seen by one source. ok is false if the entry does not concern it.
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

// Sources returns the sources that the entry concerns.
func (e *Entry) Sources() (all []core.Source) {
	for _, v := range e.Views() {
		all = append(all, v.Source)
	}
	return all
}

// Charge sets the ranges that an opening charges: the parts of a merged epoch, or the single part of any other epoch.
func (e *Entry) Charge(parts []EntryPart) {
	if e.Partition == core.Merged {
		e.Parts = parts
		e.addUp()
		return
	}
	e.Incarnation, e.First, e.End = parts[0].Incarnation, parts[0].First, parts[0].End
}

// addUp sets First and End to the sums over the parts. If a part's End is −1, the sum is −1 too.
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

// sound reports whether a line's parts are valid: partitions are in ascending order, each part of an opening is a valid
// range, and First and End are the sums over the parts. If the line is a closing, opened is the epoch's opening;
// otherwise it is nil.
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

// closing returns the line that would close the epoch of opening e. ends has one end for each view of e, and steps is a
// lower bound on the steps of the epoch.
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

// EntryBoundaries locates the boundary topic of an epoch whose steps are by the clock. Until the epoch has its first
// boundary, only these two fields tie it to the topic. Without them, a recreated topic could not be distinguished from
// the topic at the opening, in which boundaries may already have been decided.
type EntryBoundaries struct {
	Topic   string `json:"topic"`
	TopicID string `json:"topic_id,omitempty"` // "" if the brokers have none
	// First is the end offset of the topic when the epoch opened. All boundaries of the epoch are at or after it.
	First int64 `json:"first"`
}

// EndsAt returns the ends of all partitions for a line that closes the epoch at the checkpoint.
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

// ClosingBytes returns an upper bound on the length of the line that closes an epoch over this number of partitions
// with offsets below 2⁴⁰. It is the longest of an epoch's lines.
func ClosingBytes(partitions int) int {
	const most = 1 << 40
	part, err := json.Marshal(EntryPart{
		Partition: partitions, End: most, AnchorOffset: most, Anchor: strings.Repeat("0", 2*sha256.Size)})
	if err != nil {
		panic("stream: " + err.Error()) // unreachable: the line has only numbers and strings, which always encode
	}
	return 4<<10 + partitions*(len(part)+len(","))
}
