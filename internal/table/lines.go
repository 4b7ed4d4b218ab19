package table

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
)

// File is an open file. Reading from it yields its content. If its name ends in .gz, the content is uncompressed.
type File struct {
	io.Reader
	// Size is the size of the stored file, 0 if unknown.
	Size int64

	stored counter
	close  func() error
}

// counter counts the bytes that are read from the stored file.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// OpenFile opens a file, "-" for standard input.
func OpenFile(path string) (*File, error) {
	f := os.Stdin
	if path != "-" {
		var err error
		if f, err = os.Open(path); err != nil {
			return nil, err
		}
	}
	opened := &File{stored: counter{Reader: f}, close: f.Close}
	if info, err := f.Stat(); path != "-" && err == nil && info.Mode().IsRegular() {
		opened.Size = info.Size()
	}
	opened.Reader = bufio.NewReaderSize(&opened.stored, 1<<16)
	if strings.HasSuffix(path, ".gz") {
		unpacked, err := gzip.NewReader(opened.Reader)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		opened.Reader = unpacked
	}
	return opened, nil
}

// Position returns the number of bytes of the stored file that have been read. At the end it equals Size.
func (f *File) Position() int64 { return f.stored.n }

// Close closes the file.
func (f *File) Close() error { return f.close() }

// MaxLine is the largest number of bytes of a line. A longer line is a null record, and at most this many bytes of it
// are kept in memory.
const MaxLine = 16 << 20

// Lines splits a file into lines. Every line is one record, even within quotes: the file "a\n\"b\n\nc" has four lines:
// a, "b, an empty line, and c.
//
// Privacy: the number of lines is public. The content of one line cannot add, remove or move another line. A line ends
// with LF or CRLF only. The last line may lack its end; it counts unless it is empty. A line longer than MaxLine counts
// as an empty one. A byte order mark before the first line does not belong to the line.
type Lines struct {
	in      *bufio.Reader
	long    []byte // the part read so far of a line that exceeds the reader's buffer
	started bool
}

// NewLines returns the lines of r.
func NewLines(r io.Reader) *Lines { return &Lines{in: bufio.NewReaderSize(r, 1<<16)} }

// Next returns the next line without its end, or io.EOF. The line is valid until the next call.
func (l *Lines) Next() ([]byte, error) {
	l.long = l.long[:0]
	tooLong, any := false, false
	for {
		part, err := l.in.ReadSlice('\n')
		any = any || len(part) > 0
		switch {
		case err != nil && err != io.EOF && err != bufio.ErrBufferFull:
			return nil, err
		case !any:
			return nil, io.EOF
		}
		if tooLong = tooLong || len(l.long)+len(part) > MaxLine+len("\r\n"); tooLong {
			l.long = l.long[:0]
		}
		if err == nil && len(l.long) == 0 && !tooLong {
			return l.trim(part), nil // the usual case, without a copy
		}
		if !tooLong {
			l.long = append(l.long, part...)
		}
		if err != bufio.ErrBufferFull {
			return l.trim(l.long), nil
		}
	}
}

// trim removes the end of a line, and the byte order mark of the first line.
func (l *Lines) trim(line []byte) []byte {
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	if !l.started {
		l.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) > MaxLine {
		return line[:0]
	}
	return line
}

// splitCells appends the cells of a line of CSV. A cell that begins with a quote ends at the next quote; but two quotes
// in a row stand for one and do not end the cell. Any other cell is taken literally. ok is false if a quote is not
// closed in the line, or if something other than a comma follows it.
func splitCells(cells []string, line string) (_ []string, ok bool) {
	for {
		if !strings.HasPrefix(line, `"`) {
			cell, rest, more := strings.Cut(line, ",")
			if cells = append(cells, cell); !more {
				return cells, true
			}
			line = rest
			continue
		}
		end := 1
		for ; end < len(line); end++ {
			if line[end] != '"' {
				continue
			}
			if end+1 == len(line) || line[end+1] != '"' {
				break
			}
			end++ // skips the first of two quotes
		}
		if end == len(line) {
			return cells, false
		}
		cells = append(cells, strings.ReplaceAll(line[1:end], `""`, `"`))
		if line = line[end+1:]; line == "" {
			return cells, true
		}
		if line[0] != ',' {
			return cells, false
		}
		line = line[1:]
	}
}
