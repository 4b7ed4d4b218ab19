package codec

import "github.com/streamdp/streamdp/internal/column"

// made is a column whose value must be converted, with the index of its numbers in the row.
type made struct {
	*column.Column
	at int
}

// faultReasons maps the faults of a column's value to reasons.
var faultReasons = [column.Faults]Reason{
	column.OK: Decoded, column.Missing: Missing, column.NotNumber: NotNumber, column.NotFinite: NotFinite,
	column.NotBoolean: NotBoolean, column.NotCategory: NotCategory, column.NotTime: NotTime,
}

// FaultReason returns the reason for a fault of a column's value.
func FaultReason(f column.Fault) Reason { return faultReasons[f] }

// put converts a value and writes its numbers to the row dst.
func (m *made) put(dst []float64, v *column.Value) Reason {
	return faultReasons[m.Put(dst[m.at:], v)]
}

// putAll writes the numbers of all columns that read one value.
func putAll(columns []made, dst []float64, v *column.Value) Reason {
	for i := range columns {
		if r := columns[i].put(dst, v); r != Decoded {
			return r
		}
	}
	return Decoded
}

// widthOf returns how many entries of a row the columns need.
func widthOf(columns []*column.Column) int {
	n := 0
	for _, c := range columns {
		n += c.Width()
	}
	return n
}

// plain reports whether all columns are numbers that need no conversion.
func plain(columns []*column.Column) bool {
	for _, c := range columns {
		if !c.Plain() {
			return false
		}
	}
	return true
}

// places returns the columns with their indexes in the row.
func places(columns []*column.Column) []made {
	all, at := make([]made, len(columns)), 0
	for i, c := range columns {
		all[i] = made{c, at}
		at += c.Width()
	}
	return all
}
