package input

import (
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/monitor"
)

// Adder takes the records of the open step. It is a core, or a leaf of one.
type Adder interface {
	First() int64
	End() int64
	Warm(tags []persons.Tag)
	AddOf(offset int64, row []float64, tag persons.Tag) persons.Answer
}

// AddRecords adds those records of a batch that belong to the open step, beginning with the record of index next. It
// returns the next record's index, and whether the batch reaches the step's end. If pause is not nil, it is called once
// per 64 records; if it returns true, AddRecords returns early, with ended = false and records left. If counts is not
// nil, AddRecords adds to it the numbers of records that do not count for their person.
//
// AddRecords is called for each step and each batch, so it allocates nothing.
func AddRecords(
	into Adder, b *codec.Batch, next int, counts *monitor.Counts, pause func() bool,
) (after int, ended bool) {
	end := into.End()
	for ; next < len(b.Records); next++ {
		offset := b.Records[next].Offset
		if offset >= end {
			return next, true
		}
		if next&63 == 63 && pause != nil && pause() {
			return next, false
		}
		if next&63 == 0 {
			into.Warm(b.TagsFrom(next, 64))
		}
		if why := into.AddOf(offset, b.Row(next), b.Tag(next)); why != persons.Counts && counts != nil {
			counts.Uncounted(b.Reasons[next], why)
		}
	}
	return next, b.Next >= end
}
