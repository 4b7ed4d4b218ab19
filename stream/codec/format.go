package codec

import "strings"

// Format says what the records of a stream hold: columns or, if Gradient is positive, a
// gradient.
type Format struct {
	// Name is the name of a codec, and Columns are the names of the numbers of a row; see
	// [New].
	Name    string
	Columns []string
	// Gradient, if it is positive, is the length of the gradient that a record holds; then
	// there are no Columns. The record has a header, named StepHeader, with the step whose
	// parameters the gradient was taken at. A row is the gradient, followed by that step.
	Gradient   int
	StepHeader string
	// User says where records have their user key, "" if persons play no role:
	//
	//	record-key   the record's key; an empty one, or none, is no user key
	//	field:PATH   a string or an integer of a JSON object, PATH as a column; or the cell of a
	//	             CSV line, PATH its position
	//	header:NAME  the value of the header of that name, if there is exactly one
	User string
}

// Width returns the length of a row.
func (f Format) Width() int {
	if f.Gradient > 0 {
		return f.Gradient + 1
	}
	return len(f.Columns)
}

// Codec returns a codec for records of this format. Its errors are those of [New].
func (f Format) Codec() (Codec, error) {
	if f.Gradient > 0 {
		return newGradientCodec(f.Name, f.Gradient, f.StepHeader)
	}
	path, _ := strings.CutPrefix(f.User, fieldPrefix)
	if path == f.User {
		path = ""
	}
	return newCodec(f.Name, f.Columns, path)
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
