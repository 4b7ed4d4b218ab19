// Package codec turns the values of Kafka records into rows of numbers.
//
// A [Codec] reads one record. A [Decoder] reads all records of one response of the broker
// into a [Batch], several at once. For each record the batch holds its row, or the [Reason]
// why it has none. For example, with columns "a" and "b" the JSON record {"a":1,"b":2.5}
// gives the row (1, 2.5); {"a":1} gives no row and the reason [Missing].
package codec

import (
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/schema"
)

// Record is one committed Kafka record. Its slices are valid only until the
// next fetch.
type Record = kafka.Record

// Header is one header of a record.
type Header = kafka.Header

// Reason says why a record gives no row. It names a class of faults and never carries
// content, because a refused record is personal data like any other.
type Reason uint8

// The reasons. If a record has several faults, the reason is the fault that the codec
// meets first. Which one it meets first may change between versions.
const (
	Decoded     Reason = iota // none: the row is there
	Null                      // the value is null: a tombstone, or a record of headers only
	Malformed                 // the value is not in the codec's format
	TooDeep                   // JSON nested deeper than 128 arrays and objects
	Arity                     // a packed value or JSON array of another length than the row's
	Missing                   // a column is absent, JSON null, or an empty cell
	Duplicate                 // a column, or an object on the way to one, stands there twice
	NotNumber                 // a column holds something else than a number
	NotFinite                 // a column is NaN, infinite, or too large for a float64
	NoStep                    // a gradient without exactly one header that says where it was taken
	Stale                     // a gradient taken at parameters that are too old, or still to come
	NoClass                   // an example whose target is no class
	TooLarge                  // the record is beyond input.max_record_bytes, and was not held
	NoUser                    // decoded, and of nobody: it has no user key
	OverCap                   // decoded, and beyond what counts for its person
	Foreign                   // decoded, and of a user key that belongs to another partition
	Full                      // decoded, and of a person for whom there was no room
	NotBoolean                // a column of type bool holds something else
	NotCategory               // a column holds none of its categories
	NotTime                   // a column of type timestamp holds no time
	NoSchema                  // no frame says which schema the record was written by, or it is not known
	NoColumn                  // its schema lacks a column
	WrongType                 // its schema has a column with another type
	Reasons                   // their number
)

// String returns the reason's name, the value of the metric label "reason".
func (r Reason) String() string {
	if r >= Reasons {
		return "unknown"
	}
	return [Reasons]string{
		"decoded", "null", "malformed", "too-deep", "arity", "missing", "duplicate", "not-number", "not-finite",
		"no-step", "stale", "no-class", "too-large", "no-user", "over-cap", "foreign", "full",
		"not-boolean", "not-category", "not-time", "no-schema", "no-column", "wrong-type",
	}[r]
}

// Codec turns the value of a record into a row.
//
// Decode writes one number a column to dst, whose length must be the number of columns. If
// all numbers are there and finite, it returns Decoded. If not, it sets dst to zero and
// returns the reason. The result depends on this call's record alone: no record can appear
// in the row of another one. Decode accepts any bytes, does not allocate, and keeps no
// reference to the record. It panics if dst has the wrong length; that is the caller's
// fault, and no record can cause it.
//
// A Codec is not safe for concurrent use: each decoding goroutine has its own.
type Codec interface {
	Decode(rec *Record, dst []float64) Reason
}

// New returns the codec of the given name for the given columns, all of them numbers, in the
// order of the row; [Format] has columns of other types too. Its errors are faults of the keys "codec" and "columns".
//
//	json        A JSON object. A column is a name, or a path "a.b[0].c" into nested
//	            objects and arrays; a backslash makes . \ [ or ] part of a name.
//	json-array  A JSON array of exactly one number a column. Columns are labels.
//	csv         One line of comma-separated cells (RFC 4180), with or without
//	            its line end. A column is a position, "1" the first cell.
//	            Further cells are ignored, but must be well-formed.
//	float64     Packed little-endian float64s, exactly one a column. Columns
//	            are labels.
//	float32     The same of float32s.
//	avro        An Avro record, protobuf a Protobuf message, and json-schema a JSON
//	            document, whose schema a [Format] names. A column is a path "a.b[0].c"
//	            into fields, keys of maps, and indexes of arrays.
//
// JSON is read strictly. The whole value must be one valid document (RFC 8259) in valid
// UTF-8, with \u escapes of whole surrogate pairs only, at most 128 levels deep. Names are
// compared with their escapes resolved, and upper and lower case differ. A name on the path
// of a column must not occur twice in its object; any other name may. A column's value must
// be a JSON number: a string, a boolean or null is none, unless the column has a type that says so.
//
// In a CSV cell a number is a decimal with optional sign, point and exponent,
// in quotes or not; spaces and tabs around it are allowed. There is no "nan",
// no "inf", no hexadecimal, no "1_000" and no "1,5".
func New(name string, columns []string) (Codec, error) {
	return newCodec(Format{Name: name, Columns: columns}, "")
}

// newCodec returns the codec of a format of columns, with a user key in a field, "" for none.
func newCodec(f Format, user string) (Codec, error) {
	var faults fault.List
	name := f.Name
	faults.Check(len(f.Columns) > 0, "columns", "must name at least one column", nil)
	faults.Check(user == "" ||
		!column.Pathless(name), "key", "must not be a field for codecs whose columns have no paths", nil)
	seen := make(map[string]bool, len(f.Columns))
	for _, c := range f.Columns {
		faults.Check(c != "", "columns", "must not hold an empty name", nil)
		faults.Check(utf8.ValidString(c), "columns", "must be valid UTF-8", c)
		faults.Check(!seen[c], "columns", "must not name a column twice", c)
		seen[c] = true
	}
	columns, err := f.Compile()
	faults = append(faults, fault.All(err)...)
	if err != nil {
		columns = nil
	}
	var codec Codec
	switch name {
	case "json":
		codec = newJSON(columns, user, &faults)
	case "json-array":
		codec = newJSONArray(columns)
	case "csv":
		codec = newCSV(columns, user, &faults)
	case "float64", "float32":
		codec = newPacked(name, columns)
	case schema.Avro, schema.Protobuf, schema.JSON:
		codec = newSchemaCodec(f, columns, user, &faults)
	default:
		faults.Add("codec",
			`must be "json", "json-array", "csv", "float64", "float32", "avro", "protobuf" or "json-schema"`, name)
	}
	if len(faults) > 0 {
		return nil, faults.Err()
	}
	return codec, nil
}

// begin sets the row to zero before a record is decoded into it.
func begin(dst []float64, columns int) {
	if len(dst) != columns {
		panic("codec: row and codec differ in their number of columns")
	}
	clear(dst)
}

// end sets the row back to zero if the record is refused.
func end(dst []float64, r Reason) Reason {
	if r != Decoded {
		clear(dst)
	}
	return r
}
