package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
)

// counter counts the bytes read from the file, packed or not, for a progress bar.
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

// maxLine is the largest number of bytes of a line. A longer line is a null record; not more
// than this of it is kept in memory.
const maxLine = 16 << 20

// lineReader splits a file into lines. Every line is one record, whatever it holds: the file
// "a\n\"b\n\nc" has the four lines a, "b, the empty one, and c.
//
// Privacy: the number of lines is public. The content of one line cannot add, remove or
// shift another one. A line ends with LF or CRLF and with nothing else. The last line may
// lack its end; it counts unless it is empty. A line longer than maxLine counts as an empty
// one. A byte order mark before the first line is not part of the line.
type lineReader struct {
	in      *bufio.Reader
	long    []byte // what came of a line that the reader's buffer does not hold
	started bool
}

func newLineReader(r io.Reader) *lineReader { return &lineReader{in: bufio.NewReaderSize(r, 1<<16)} }

// next returns the next line without its end, or io.EOF. The line is valid until the next
// call.
func (l *lineReader) next() ([]byte, error) {
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
		if tooLong = tooLong || len(l.long)+len(part) > maxLine+len("\r\n"); tooLong {
			l.long = l.long[:0]
		}
		if err == nil && len(l.long) == 0 && !tooLong {
			return l.trim(part), nil // the usual case: no copy
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
func (l *lineReader) trim(line []byte) []byte {
	line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
	if !l.started {
		l.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) > maxLine {
		return line[:0]
	}
	return line
}

// splitCells appends the cells of a line of CSV. A cell that begins with a quote ends at the
// next single quote; two quotes stand for one. Any other cell is taken as it is. ok is false
// if a quote is not closed in the line, or if anything but a comma follows it.
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
			end++ // the first of two
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
