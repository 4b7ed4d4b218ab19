package dryrun

import (
	"errors"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
)

// Sample counts how a stream's decoder handles records, before any budget is spent.
//
// Nothing in it is private: every number is an exact function of the records.
type Sample struct {
	Stream  string           `json:"stream"`
	Records int64            `json:"records"`
	Rows    int64            `json:"rows"`              // records that give a row
	Null    map[string]int64 `json:"null"`              // other records, by reason
	Columns []SampleColumn   `json:"columns,omitempty"` // empty if records have no field names

	whole   codec.Codec
	row     []float64
	limit   int
	columns []codec.Codec
	widths  []int // row width of each column's codec
}

// SampleColumn counts the values of records in one column, independent of the other columns.
type SampleColumn struct {
	Name    string           `json:"name"`
	Numbers int64            `json:"numbers"` // records with a usable value in the column
	Null    map[string]int64 `json:"null"`    // other records, by reason
	Plain   bool             `json:"-"`       // the value is a number, and is used unchanged
}

// NewSample returns an empty sample of stream s. x finds the schemas of the records, if they have any.
func NewSample(x *connect.Schemas, s *config.Stream) (*Sample, error) {
	f, err := x.Format(s)
	if err != nil {
		return nil, err
	}
	if f.Gradient > 0 {
		return nil, errors.New("gradients need a header with the step of their parameters, but records of a file " +
			"have no headers")
	}
	whole, err := f.Codec()
	if err != nil {
		return nil, err
	}
	of := &Sample{Stream: s.Name, Null: map[string]int64{}, whole: whole, row: make([]float64, f.Width()),
		limit: core.MaxRecordBytes(s)}
	if f.Name != "json" && f.Name != "csv" && !s.Input.Schemas() {
		return of, nil
	}
	for i, name := range f.Columns {
		one := f
		one.Columns, one.User = []string{name}, ""
		plain := true
		if f.Specs != nil {
			one.Specs = f.Specs[i : i+1]
			plain = one.Specs[0].Plain()
		}
		c, err := one.Codec()
		if err != nil {
			return nil, err
		}
		of.columns, of.widths = append(of.columns, c), append(of.widths, one.Width())
		of.Columns = append(of.Columns, SampleColumn{Name: name, Null: map[string]int64{}, Plain: plain})
	}
	return of, nil
}

// Add counts the value of a record.
func (x *Sample) Add(value []byte) {
	x.Records++
	if len(value) > x.limit {
		x.Null[codec.TooLarge.String()]++
		return
	}
	rec := &kafka.Record{Value: value}
	if why := x.whole.Decode(rec, x.row); why == codec.Decoded {
		x.Rows++
	} else {
		x.Null[why.String()]++
	}
	for j, c := range x.columns {
		if why := c.Decode(rec, x.row[:x.widths[j]]); why == codec.Decoded {
			x.Columns[j].Numbers++
		} else {
			x.Columns[j].Null[why.String()]++
		}
	}
}
