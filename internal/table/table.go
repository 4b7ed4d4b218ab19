// Package table reads files in which every line is one record, even within quotes.
//
// [Open] opens a CSV file, chooses its columns and returns the cells of each line. [OpenFile] and [NewLines] read files
// of other forms, such as one JSON document per line. A mistake in the user's request is an [exit.Usage].
package table

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/internal/decimal"
	"github.com/streamdp/streamdp/internal/exit"
)

// Table reads the rows of a CSV file, plain or compressed. Each line is one row. A line that
// is empty, too long or not CSV is a row without cells.
type Table struct {
	// Names are the names of the columns that Picked returns.
	Names []string

	header  []string // names of all columns: the first line, the names of --header, or c1 … cN
	pick    []int
	file    *File
	lines   *Lines
	cells   []string // cells of the row that Next returned
	pending bool     // true while cells hold the first line, because it is a row
}

// Open opens a CSV file, "-" for standard input. columns are names or 1-based numbers. If there are none, all columns
// are chosen.
//
// header is "auto", "yes", "no" or the names of the columns. With auto, the first line is a row if all cells of the
// chosen columns are numbers, and a header if none is. Any other first line is an error. Otherwise a damaged record
// might be taken for a header, and be published instead of counted.
//
// Privacy: the first line is public, because it decides how all others are read. If header is "no" and columns are
// given, the first line is as private as any other.
func Open(path, header string, columns []string) (*Table, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	t := &Table{file: f, lines: NewLines(f)}
	if err = t.readHead(header, columns); err != nil {
		f.Close()
		if _, usage := err.(exit.Usage); usage {
			return nil, exit.Usagef("%s: %w", path, err)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, i := range t.pick {
		t.Names = append(t.Names, t.header[i])
	}
	return t, nil
}

// File returns the file of the table. Progress bars use its position.
func (t *Table) File() *File { return t.file }

// Close closes the file.
func (t *Table) Close() error { return t.file.Close() }

// readHead reads the first line, decides whether it is a header, and chooses columns.
func (t *Table) readHead(header string, columns []string) (err error) {
	first, err := t.Next()
	if err == io.EOF {
		return errors.New("is empty")
	}
	if err != nil {
		return err
	}
	t.header, t.pending = numbered(len(first)), true
	if names := headerNames(header); names != nil {
		if len(first) != len(names) {
			return exit.Usagef("the first line has %d columns, but --header names %d", len(first), len(names))
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
		return exit.Usagef(
			"the first line is empty, too long or not CSV: if it is a record, use --header no and choose the columns " +
				"by their numbers")
	}
	isHeader := header == "yes"
	if header == "auto" {
		_, named := pickColumns(first, columns)
		plain, err := pickColumns(t.header, columns)
		// A line that has numbers and lacks the chosen names is data, and no message may show it.
		isHeader = (err != nil || !allNumbers(first, plain)) && (named == nil || !anyNumber(first, all(len(first))))
		if isHeader && err == nil && anyNumber(first, plain) {
			return exit.Usagef("the first line has both numbers and other cells: use --header yes or " +
				"--header no")
		}
	}
	if isHeader {
		t.header, t.pending = slices.Clone(first), false
	}
	t.pick, err = pickColumns(t.header, columns)
	return err
}

// HeaderUsage is the end of the help text of --header.
const HeaderUsage = "auto, yes, no, or, for a file without a header, the names of its columns: a,b,c"

// CheckHeader checks a value of --header. Its error is an [exit.Usage].
func CheckHeader(header string) error {
	names := headerNames(header)
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) || !strings.Contains(header, ",") {
			return exit.Usagef("--header is %q, must be auto, yes, no, or distinct names separated by commas: a,b or "+
				"a,",
				header)
		}
	}
	return nil
}

// headerNames returns the names of columns in a value of --header, nil if it has none.
func headerNames(header string) []string {
	if slices.Contains([]string{"auto", "yes", "no"}, header) {
		return nil
	}
	names := strings.Split(strings.TrimSuffix(header, ","), ",") // "x," is a list of one name
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

// highest returns the names c1 … cN, where N is the highest of the given columns, which are numbers or names of the
// form cN.
func highest(columns []string) ([]string, error) {
	n := 0
	for _, c := range columns {
		i, err := strconv.Atoi(strings.TrimPrefix(c, "c"))
		if err != nil || i < 1 || i > 1_000_000 {
			return nil, exit.Usagef("no column %q: the file has no header, so its columns are named 1, 2 and so on", c)
		}
		n = max(n, i)
	}
	return numbered(n), nil
}

// Label chooses the columns whose names are the labels. If the file has other names, Label chooses all columns, and
// there must be as many columns as labels.
func (t *Table) Label(path string, labels []string) error {
	pick := make([]int, len(labels))
	for k, l := range labels {
		if pick[k] = slices.Index(t.header, l); pick[k] < 0 {
			pick = t.pick
			break
		}
	}
	if len(pick) != len(labels) {
		t.Close()
		return exit.Usagef("%s has %d columns, but the stream has %d (%s): choose columns with "+
			"--columns", path, len(pick),
			len(labels), strings.Join(labels, ", "))
	}
	t.pick, t.Names = pick, labels
	return nil
}

// Column returns the index of a column among the chosen columns, −1 if it was not chosen. The column is a name or a
// 1-based number in the file.
func (t *Table) Column(column string) int {
	if i := slices.Index(t.Names, column); i >= 0 {
		return i
	}
	if n, err := strconv.Atoi(column); err == nil && n >= 1 && n <= len(t.header) {
		return slices.Index(t.pick, n-1)
	}
	return -1
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
				return nil, exit.Usagef("no column %q among %s", c, strings.Join(header, ", "))
			}
			i = n - 1
		}
		pick = append(pick, i)
	}
	return pick, nil
}

func allNumbers(line []string, pick []int) bool {
	for _, i := range pick {
		if _, ok := Number(line[i]); !ok {
			return false
		}
	}
	return true
}

func anyNumber(line []string, pick []int) bool {
	for _, i := range pick {
		if _, ok := Number(line[i]); ok {
			return true
		}
	}
	return false
}

// Number parses a decimal number as the daemon's codecs do.
func Number(cell string) (float64, bool) {
	cell = strings.Trim(cell, " \t")
	f, n := decimal.Plain([]byte(cell))
	return f, n > 0 && n == len(cell)
}

// Next returns the cells of the next line, or no cells if the line is a null record. They are valid until the next
// call.
func (t *Table) Next() ([]string, error) {
	if t.pending {
		t.pending = false
		return t.cells, nil
	}
	line, err := t.lines.Next()
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

// Picked returns the chosen cells of a line. A missing cell is empty.
func (t *Table) Picked(line []string) []string {
	cells := make([]string, len(t.pick))
	for k, i := range t.pick {
		if i < len(line) {
			cells[k] = line[i]
		}
	}
	return cells
}

// Numbers parses the value of a flag: one number, or one number per column. Its error is an [exit.Usage] that names the
// flag.
func Numbers(flag, list string, columns int) ([]float64, error) {
	words := strings.Split(list, ",")
	if len(words) != 1 && len(words) != columns {
		return nil, exit.Usagef("%s has %d numbers, must have 1 or one for each of the %d columns", flag,
			len(words), columns)
	}
	x := make([]float64, columns)
	for i := range x {
		word := strings.TrimSpace(words[min(i, len(words)-1)])
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
			return nil, exit.Usagef("%s: %q is not a number", flag, word)
		}
		x[i] = v
	}
	return x, nil
}
