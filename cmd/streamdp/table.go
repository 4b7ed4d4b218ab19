package main

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"streamdp/internal/column"
	"streamdp/internal/decimal"
)

// table reads the rows of a CSV file, plain or compressed.
type table struct {
	header []string // of the whole file: its first line, or c1 … cN
	names  []string // of the columns that next returns
	pick   []int
	rows   *csv.Reader
	first  []string // a first line that is a row
	read   *counter
	size   int64 // of the file, 0 if unknown
	close  func() error
}

// counter counts what is read from the file itself, for a progress bar.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// openFile opens a file, "-" for standard input, and unpacks .gz.
func openFile(path string) (r io.Reader, read *counter, size int64, close func() error, err error) {
	f := os.Stdin
	if path != "-" {
		if f, err = os.Open(path); err != nil {
			return nil, nil, 0, nil, err
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
	}
	read = &counter{Reader: f}
	r = bufio.NewReaderSize(read, 1<<16)
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(r); err != nil {
			f.Close()
			return nil, nil, 0, nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, read, size, f.Close, nil
}

// openTable opens a CSV file. header is "auto", "yes" or "no"; auto takes the
// first line for a row where every cell of the chosen columns is a number, for a
// header where none is, and refuses what may be either: a damaged record that passed
// for a header would be published, and the others would be one fewer. columns are names
// or 1-based numbers, none for all.
func openTable(path, header string, columns []string) (*table, error) {
	r, read, size, close, err := openFile(path)
	if err != nil {
		return nil, err
	}
	t := &table{rows: csv.NewReader(r), read: read, size: size, close: close}
	t.rows.FieldsPerRecord = -1 // a short line is a bad record, not the end
	t.rows.LazyQuotes = true
	t.rows.ReuseRecord = true
	line, err := t.rows.Read()
	if err != nil {
		close()
		if err == io.EOF {
			err = errors.New("is empty")
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	line = slices.Clone(line)
	numbered := make([]string, len(line))
	for i := range line {
		numbered[i] = fmt.Sprintf("c%d", i+1)
	}
	names, err := pickColumns(line, columns)
	isHeader := header == "yes"
	if header == "auto" {
		plain, plainErr := pickColumns(numbered, columns)
		// A line with numbers and without the chosen names is data, which no message
		// may show.
		isHeader = (plainErr != nil || !allNumbers(line, plain)) && (err == nil || !anyNumber(line, all(len(line))))
		if isHeader && plainErr == nil && anyNumber(line, plain) {
			close()
			return nil, usagef("%s: the first line has numbers and cells that are none: say --header yes or --header no", path)
		}
	}
	if isHeader {
		t.header = line
	} else {
		t.header, t.first = numbered, line
		names, err = pickColumns(numbered, columns)
	}
	if err != nil {
		close()
		return nil, usagef("%s: %w", path, err)
	}
	t.pick = names
	for _, i := range names {
		t.names = append(t.names, t.header[i])
	}
	return t, nil
}

// label chooses the columns that carry the labels or, where the file names its
// columns otherwise, takes all, which must be as many.
func (t *table) label(path string, labels []string) error {
	pick := make([]int, len(labels))
	for k, l := range labels {
		if pick[k] = slices.Index(t.header, l); pick[k] < 0 {
			pick = t.pick
			break
		}
	}
	if len(pick) != len(labels) {
		t.close()
		return usagef("%s: has %d columns, the stream has %d (%s): choose them with --columns", path, len(pick), len(labels), strings.Join(labels, ", "))
	}
	t.pick, t.names = pick, labels
	return nil
}

// all returns 0, 1, … n − 1.
func all(n int) []int {
	pick := make([]int, n)
	for i := range pick {
		pick[i] = i
	}
	return pick
}

// pickColumns finds columns by name or 1-based number.
func pickColumns(header, columns []string) ([]int, error) {
	if len(columns) == 0 {
		return all(len(header)), nil
	}
	var pick []int
	for _, c := range columns {
		i := slices.Index(header, c)
		if i < 0 {
			n, err := strconv.Atoi(c)
			if err != nil || n < 1 || n > len(header) {
				return nil, fmt.Errorf("no column %q among %s", c, strings.Join(header, ", "))
			}
			i = n - 1
		}
		pick = append(pick, i)
	}
	return pick, nil
}

func allNumbers(line []string, pick []int) bool {
	for _, i := range pick {
		if _, ok := number(line[i]); !ok {
			return false
		}
	}
	return true
}

func anyNumber(line []string, pick []int) bool {
	for _, i := range pick {
		if _, ok := number(line[i]); ok {
			return true
		}
	}
	return false
}

// number reads a decimal number as the daemon's codecs do.
func number(cell string) (float64, bool) {
	cell = strings.Trim(cell, " \t")
	f, n := decimal.Plain([]byte(cell))
	return f, n > 0 && n == len(cell)
}

// next returns the whole next line. It is valid until the next call.
func (t *table) next() ([]string, error) {
	if line := t.first; line != nil {
		t.first = nil
		return line, nil
	}
	return t.rows.Read()
}

// picked returns the chosen cells of a line; one that is not there is empty.
func (t *table) picked(line []string) []string {
	cells := make([]string, len(t.pick))
	for k, i := range t.pick {
		if i < len(line) {
			cells[k] = line[i]
		}
	}
	return cells
}

// encodeRow makes a record's value, in the form that a codec reads. A cell that
// is no number stays what it is where the form allows it, and makes the record
// invalid: the daemon decides, not the feeder.
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

// appendJSON appends a cell as a number if it is one, as null if it is empty,
// else as a string.
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

// appendObject appends a JSON object; paths of several names become nested
// objects, whose members must stand together.
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
