package codec

import (
	"strings"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/schema"
)

// Format says what the records of a stream hold: columns or, if Gradient is positive, a
// gradient.
type Format struct {
	// Name is the name of a codec, and Columns are the names of its columns; see [New].
	Name    string
	Columns []string
	// Specs says what the row's numbers are of each column; nil: each column is a number.
	Specs []column.Spec
	// Gradient, if it is positive, is the length of the gradient that a record holds; then
	// there are no Columns. The record has a header, named StepHeader, with the step whose
	// parameters the gradient was taken at. A row is the gradient, followed by that step.
	Gradient   int
	StepHeader string
	// Schema is the schema of all records of the codecs "avro", "protobuf" and "json-schema", which
	// have no frame around them; of Protobuf, rooted at their message. Nil: each record has a frame
	// with the id of its schema, and Schemas has the schemas.
	Schema  *schema.Schema
	Schemas Resolver
	// Message is the full name of the only Protobuf message that gives rows where each frame says which
	// message of its file a record is; "" for any of them.
	Message string
	// User says where records have their user key, "" if persons play no role:
	//
	//	record-key   the record's key; an empty one, or none, is no user key
	//	field:PATH   a string or an integer of a JSON object, PATH as a column; of a record with
	//	             a schema also an enumeration's symbol or a UUID; or the cell of a CSV
	//	             line, PATH its position
	//	header:NAME  the value of the header of that name, if there is exactly one
	User string
}

// Width returns the length of a row.
func (f Format) Width() int {
	if f.Gradient > 0 {
		return f.Gradient + 1
	}
	if f.Specs == nil {
		return len(f.Columns)
	}
	n := 0
	for i := range f.Specs {
		n += f.Specs[i].Width()
	}
	return n
}

// Compile returns the columns, in the order of the row. Its errors are faults of "columns", and of
// the keys of column.Spec inside "column.NAME".
func (f Format) Compile() ([]*column.Column, error) {
	specs := f.Specs
	if specs == nil {
		specs = column.Plain(f.Columns)
	}
	columns, errs := column.Compile(f.Name, specs)
	var faults fault.List
	for i, err := range errs {
		for _, err := range fault.All(err) {
			one := *err.(*fault.Fault)
			if one.Key == "path" && specs[i].Path == "" {
				one.Key = "columns"
			} else {
				one.Key = "column." + specs[i].Name + "." + one.Key
			}
			faults = append(faults, &one)
		}
	}
	return columns, faults.Err()
}

// Codec returns a codec for records of this format. Its errors are those of [New].
func (f Format) Codec() (Codec, error) {
	if f.Gradient > 0 {
		return newGradientCodec(f.Name, f.Gradient, f.StepHeader)
	}
	return newCodec(f, f.userField())
}

// schematic reports whether records have schemas.
func (f Format) schematic() bool {
	return f.Name == schema.Avro || f.Name == schema.Protobuf || f.Name == schema.JSON
}

// userField returns the path of the field with the user key, "" if it is in none.
func (f Format) userField() string {
	path, ok := strings.CutPrefix(f.User, fieldPrefix)
	if !ok {
		return ""
	}
	return path
}

// least returns a size in bytes below which a record cannot hold a row, 0 if even an empty
// record can.
func (f Format) least() int {
	if f.Gradient == 0 {
		return 0
	}
	switch f.Name {
	case "float64":
		return 8 * f.Gradient
	case "float32":
		return 4 * f.Gradient
	}
	return 2*f.Gradient + 1 // [0,0]
}
