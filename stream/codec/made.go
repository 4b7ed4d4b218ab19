package codec

import "github.com/streamdp/streamdp/internal/column"

// made is a column that is not plainly a number, and where its numbers are in the row.
type made struct {
	*column.Column
	at int
}

// faultReasons are the reasons of a column's faults.
var faultReasons = [column.Faults]Reason{
	column.OK: Decoded, column.Missing: Missing, column.NotNumber: NotNumber, column.NotFinite: NotFinite,
	column.NotBoolean: NotBoolean, column.NotCategory: NotCategory, column.NotTime: NotTime,
}

// FaultReason returns the reason of a column's fault.
func FaultReason(f column.Fault) Reason { return faultReasons[f] }

// put writes the numbers that a value gives.
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

// widthOf returns how many numbers of a row columns have.
func widthOf(columns []*column.Column) int {
	n := 0
	for _, c := range columns {
		n += c.Width()
	}
	return n
}

// plain reports whether all columns are plain numbers, which need no step of their own.
func plain(columns []*column.Column) bool {
	for _, c := range columns {
		if !c.Plain() {
			return false
		}
	}
	return true
}

// places returns the columns with their places in the row.
func places(columns []*column.Column) []made {
	all, at := make([]made, len(columns)), 0
	for i, c := range columns {
		all[i] = made{c, at}
		at += c.Width()
	}
	return all
}
