package codec

import (
	"strings"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/schema"
)

// Format describes the records of a stream: columns or, if Gradient is positive, a gradient.
type Format struct {
	// Name is the name of a codec, and Columns are the names of its columns; see [New].
	Name    string
	Columns []string
	// Specs describe how each column becomes numbers of the row; nil: each column is a number.
	Specs []column.Spec
	// Gradient, if positive, is the length of the gradient that a record contains; there are no Columns then. The
	// record has a header, named StepHeader, with a step: the gradient was computed with the parameters released at
	// this step. A row is the gradient, followed by the step.
	Gradient   int
	StepHeader string
	// Schema is the one schema of all records, for the codecs "avro", "protobuf" and "json-schema" without frames. For
	// Protobuf its root is the message of the records. nil: each record has a frame with the id of its schema, and
	// Schemas finds the schemas.
	Schema  *schema.Schema
	Schemas Resolver
	// Message is the full name of the only Protobuf message that gives rows; "": any message does. It applies if frames
	// say which message of the schema file a record is.
	Message string
	// User says which part of a record has the user key; "" if the stream does not protect persons:
	//
	//	record-key   the record's key; an empty or missing key is no user key
	//	field:PATH   a string or an integer in a JSON object, with PATH as for a column; in a record with
	//	             a schema also an enumeration's symbol or a UUID; in a CSV line the cell at
	//	             position PATH
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

// Compile returns the columns, in the order of the row.
// Errors: faults of the configuration keys "columns" and "column.NAME".
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

// Codec returns a codec for records of this format. It fails as [New] does.
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

// userField returns the path of the field with the user key, or "" if the key is not in a field.
func (f Format) userField() string {
	path, ok := strings.CutPrefix(f.User, fieldPrefix)
	if !ok {
		return ""
	}
	return path
}

// least returns the smallest size in bytes of a record that can have a row. It is 0 if even an empty record can have
// one.
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
	return 2*f.Gradient + 1 // length of an array such as [0,0]
}
