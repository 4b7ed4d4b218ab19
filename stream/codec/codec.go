// Package codec turns the values of Kafka records into rows of numbers.
//
// A [Codec] reads one record. A [Decoder] reads all records of one response of the broker into a [Batch], several at
// once. For each record the batch has its row, or the [Reason] why it has none. For example, with columns "a" and "b"
// the JSON record {"a":1,"b":2.5} gives the row (1, 2.5), while {"a":1} gives no row and the reason [Missing].
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

// Reason says why a record gives no row. It names a class of faults and never has content of the record, because a
// refused record is personal data like any other.
type Reason uint8

// These are the reasons. If a record has several faults, the reason is the first one that the codec meets. Which one
// that is may change between versions.
const (
	Decoded     Reason = iota // no fault: the record has a row
	Null                      // the value is null: a tombstone, or a record of headers only
	Malformed                 // the value is not in the codec's format
	TooDeep                   // JSON nested deeper than 128 arrays and objects
	Arity                     // a packed value or JSON array whose length differs from the row's
	Missing                   // a column is absent, JSON null, or an empty cell
	Duplicate                 // a column, or an object on the path to one, occurs twice
	NotNumber                 // a column is not a number
	NotFinite                 // a column is NaN, infinite, or too large for a float64
	NoStep                    // a gradient without exactly one header with the step of its parameters
	Stale                     // a gradient whose parameters are too old, or not released yet
	NoClass                   // an example whose target is not a class
	TooLarge                  // the record is larger than input.max_record_bytes, and was not kept
	NoUser                    // decoded, but without a user key
	OverCap                   // decoded, but its person already has the maximum number of records that count
	Foreign                   // decoded, but its user key belongs to another partition
	Full                      // decoded, but the table of persons is full and does not have its person
	NotBoolean                // a column of type bool has another value
	NotCategory               // a column has a value that is not one of its categories
	NotTime                   // a column of type timestamp has a value that is not a time
	NoSchema                  // the record has no frame with the id of its schema, or the schema is unknown
	NoColumn                  // the record's schema does not have a column
	WrongType                 // the record's schema has a column with another type
	Reasons                   // number of reasons
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
// Decode writes one number per column to dst, whose length must be the number of columns. If all numbers are present
// and finite, it returns Decoded. If not, it sets dst to zero and returns the reason. The result depends only on the
// record of this call, so data of one record cannot get into the row of another. Decode accepts any bytes, does not
// allocate, and keeps no reference to the record. It panics if dst has the wrong length; no record can cause this, only
// an error in the calling code.
//
// A Codec is not safe for concurrent use: each decoding goroutine has its own.
type Codec interface {
	Decode(rec *Record, dst []float64) Reason
}

// New returns the codec with the given name. columns are its columns, in the order of the row; all of them are numbers.
// For columns of other types see [Format].
// Errors: faults of the configuration keys "codec" and "columns".
//
//	json        A JSON object. A column is a name, or a path "a.b[0].c" into nested
//	            objects and arrays; a backslash makes . \ [ or ] part of a name.
//	json-array  A JSON array of exactly one number per column. Columns are labels.
//	csv         One line of comma-separated cells (RFC 4180), with or without
//	            its line end. A column is a position, "1" the first cell.
//	            Further cells are ignored, but must be well-formed.
//	float64     Packed little-endian float64s, exactly one per column. Columns
//	            are labels.
//	float32     The same with float32s.
//	avro        An Avro record, protobuf a Protobuf message, and json-schema a JSON
//	            document, whose schema a [Format] names. A column is a path "a.b[0].c"
//	            into fields, keys of maps, and indexes of arrays.
//
// JSON is read strictly. The whole value must be one valid document (RFC 8259) in valid UTF-8, with \u escapes of whole
// surrogate pairs only, at most 128 levels deep. Names are compared with their escapes resolved, and upper and lower
// case differ. A name on the path of a column must not occur twice in its object; any other name may. A column's value
// must be a JSON number: a string, a boolean or null is not, unless the column has a type that accepts it.
//
// In a CSV cell a number is a decimal with optional sign, point and exponent, in quotes or not; spaces and tabs around
// it are allowed. "nan", "inf", hexadecimal, "1_000" and "1,5" are not numbers.
func New(name string, columns []string) (Codec, error) {
	return newCodec(Format{Name: name, Columns: columns}, "")
}

// newCodec returns the codec of a format with columns. user is the field with the user key, or "" if there is none.
func newCodec(f Format, user string) (Codec, error) {
	var faults fault.List
	name := f.Name
	faults.Check(len(f.Columns) > 0, "columns", "must name at least one column", nil)
	faults.Check(user == "" ||
		!column.Pathless(name), "key", "must not be \"field:…\" for codecs whose columns have no paths", nil)
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
		panic("codec: row and codec have different numbers of columns")
	}
	clear(dst)
}

// end sets the row to zero if the record is refused.
func end(dst []float64, r Reason) Reason {
	if r != Decoded {
		clear(dst)
	}
	return r
}
