package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/internal/decimal"
)

// table reads the rows of a CSV file, plain or compressed. Each line is one row. A line that
// is empty, too long or not CSV is a row without cells.
type table struct {
	header  []string // of the whole file: its first line, or names that --header has, or c1 … cN
	names   []string // of the columns that next returns
	pick    []int
	lines   *lineReader
	cells   []string // of the row that next returned
	pending bool     // cells are those of a first line that is a row
	read    *counter
	size    int64 // of the file, 0 if unknown
	close   func() error
}

// openTable opens a CSV file. columns are names or 1-based numbers, none for all.
//
// header is "auto", "yes", "no" or the names of the columns. With auto, the first line is a row if every cell of the
// chosen columns is a number, and a header if none is. In any other case auto is an error: a
// damaged record, taken for a header, would be published, and one record would be missing.
//
// Privacy: the first line is public, because it decides how all others are read. It is
// private like any other record if header is "no" and columns are given.
func openTable(path, header string, columns []string) (*table, error) {
	r, read, size, close, err := openFile(path)
	if err != nil {
		return nil, err
	}
	t := &table{lines: newLineReader(r), read: read, size: size, close: close}
	if err = t.readHead(header, columns); err != nil {
		close()
		if _, usage := err.(usageError); usage {
			return nil, usagef("%s: %w", path, err)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, i := range t.pick {
		t.names = append(t.names, t.header[i])
	}
	return t, nil
}

// readHead reads the first line, decides whether it is a header, and chooses columns.
func (t *table) readHead(header string, columns []string) (err error) {
	first, err := t.next()
	if err == io.EOF {
		return errors.New("is empty")
	}
	if err != nil {
		return err
	}
	t.header, t.pending = numbered(len(first)), true
	if names := headerNames(header); names != nil {
		if len(first) != len(names) {
			return usagef("the first line has %d columns, --header names %d", len(first), len(names))
		}
		t.header = names
		t.pick, err = pickColumns(t.header, columns)
		return err
	}
	if header == "no" && len(columns) > 0 {
		if t.header, err = highest(columns); err == nil {
			t.pick, err = pickColumns(t.header, columns)
		}
		return err
	}
	if len(first) == 0 {
		return usagef("the first line is empty, too long or no CSV: if it is a record, say --header no and choose the columns by their numbers")
	}
	isHeader := header == "yes"
	if header == "auto" {
		_, named := pickColumns(first, columns)
		plain, err := pickColumns(t.header, columns)
		// A line that holds numbers, and not the chosen names, is data: no message may show
		// it.
		isHeader = (err != nil || !allNumbers(first, plain)) && (named == nil || !anyNumber(first, all(len(first))))
		if isHeader && err == nil && anyNumber(first, plain) {
			return usagef("the first line has numbers and cells that are none: say --header yes or --header no")
		}
	}
	if isHeader {
		t.header, t.pending = slices.Clone(first), false
	}
	t.pick, err = pickColumns(t.header, columns)
	return err
}

// headerUsage ends the help of --header.
const headerUsage = "auto, yes, no, or where it has none the names of its columns, a,b,c"

// checkHeader checks a value of --header.
func checkHeader(header string) error {
	names := headerNames(header)
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) || !strings.Contains(header, ",") {
			return usagef("--header is %q, must be auto, yes, no, or names that differ, with commas: a,b or a,", header)
		}
	}
	return nil
}

// headerNames returns the names of columns that a value of --header has, nil if it has none.
func headerNames(header string) []string {
	if slices.Contains([]string{"auto", "yes", "no"}, header) {
		return nil
	}
	names := strings.Split(strings.TrimSuffix(header, ","), ",") // "x," is one name
	for i, name := range names {
		names[i] = strings.TrimSpace(name)
	}
	return names
}

// numbered returns the names c1 … cN for n columns.
func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("c%d", i+1)
	}
	return names
}

// highest returns the names c1 … cN, where N is the highest of the given columns. These are
// numbers, or names of the form cN.
func highest(columns []string) ([]string, error) {
	n := 0
	for _, c := range columns {
		i, err := strconv.Atoi(strings.TrimPrefix(c, "c"))
		if err != nil || i < 1 || i > 1_000_000 {
			return nil, usagef("no column %q in a file without a header, whose columns are 1, 2 and so on", c)
		}
		n = max(n, i)
	}
	return numbered(n), nil
}

// label chooses the columns whose names are the labels. If the file has other names, label
// takes all columns; then there must be as many as labels.
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
				return nil, usagef("no column %q among %s", c, strings.Join(header, ", "))
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

// next returns the cells of the next line, none if the line has none. They are valid until
// the next call.
func (t *table) next() ([]string, error) {
	if t.pending {
		t.pending = false
		return t.cells, nil
	}
	line, err := t.lines.next()
	if err != nil {
		return nil, err
	}
	cells, ok := t.cells[:0], len(line) > 0
	if ok {
		cells, ok = splitCells(cells, string(line))
	}
	if !ok {
		cells = cells[:0]
	}
	t.cells = cells
	return cells, nil
}

// picked returns the chosen cells of a line. A cell that the line lacks is empty.
func (t *table) picked(line []string) []string {
	cells := make([]string, len(t.pick))
	for k, i := range t.pick {
		if i < len(line) {
			cells[k] = line[i]
		}
	}
	return cells
}

// numbers parses a list of one number, or of one number per column.
func numbers(flag, list string, columns int) ([]float64, error) {
	words := strings.Split(list, ",")
	if len(words) != 1 && len(words) != columns {
		return nil, usagef("%s has %d numbers, must have 1 or one for each of the %d columns", flag, len(words), columns)
	}
	x := make([]float64, columns)
	for i := range x {
		word := strings.TrimSpace(words[min(i, len(words)-1)])
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
			return nil, usagef("%s: %q is not a number", flag, word)
		}
		x[i] = v
	}
	return x, nil
}
