package main

import (
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"streamdp/internal/column"
	"streamdp/internal/decimal"
)

// encodeRow makes a record's value in the form that a codec reads. A cell that is not a
// number is kept if the form allows it, and makes the record invalid. The daemon refuses
// such a record; feed does not.
func encodeRow(codec string, names, cells []string) []byte {
	switch codec {
	case "csv":
		var b strings.Builder
		w := csv.NewWriter(&b)
		w.Write(cells)
		w.Flush()
		return []byte(strings.TrimSuffix(b.String(), "\n"))
	case "float64", "float32":
		var b []byte
		for _, c := range cells {
			f, ok := number(c)
			if !ok {
				f = math.NaN()
			}
			if codec == "float64" {
				b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
			} else {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f)))
			}
		}
		return b
	case "json-array":
		b := []byte{'['}
		for i, c := range cells {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendJSON(b, c)
		}
		return append(b, ']')
	}
	paths := make([][]string, len(names))
	for i, name := range names {
		path, ok := column.Path(name)
		if !ok {
			path = []string{name}
		}
		paths[i] = path
	}
	return appendObject(nil, paths, cells)
}

// appendJSON appends a cell: a number if it is one, null if it is empty, otherwise a
// string.
func appendJSON(b []byte, cell string) []byte {
	cell = strings.Trim(cell, " \t")
	if f, n := decimal.JSON([]byte(cell)); n > 0 && n == len(cell) && !math.IsInf(f, 0) {
		return append(b, cell...)
	}
	if f, ok := number(cell); ok && !math.IsInf(f, 0) {
		return strconv.AppendFloat(b, f, 'g', -1, 64) // "+1", ".5"
	}
	if cell == "" {
		return append(b, "null"...)
	}
	s, err := json.Marshal(cell)
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, s...)
}

// appendObject appends a JSON object. A path of several names becomes a nested object; all
// paths into it must follow one another.
func appendObject(b []byte, paths [][]string, cells []string) []byte {
	b = append(b, '{')
	for i := 0; i < len(paths); {
		if i > 0 {
			b = append(b, ',')
		}
		head, j := paths[i][0], i+1
		key, err := json.Marshal(head)
		if err != nil {
			key = []byte(`""`)
		}
		b = append(append(b, key...), ':')
		if len(paths[i]) == 1 {
			b = appendJSON(b, cells[i])
		} else {
			var inner [][]string
			for j = i; j < len(paths) && len(paths[j]) > 1 && paths[j][0] == head; j++ {
				inner = append(inner, paths[j][1:])
			}
			b = appendObject(b, inner, cells[i:j])
		}
		i = j
	}
	return append(b, '}')
}
