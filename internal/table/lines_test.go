package table

import (
	"encoding/csv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// readLines returns all lines that Lines finds.
func readLines(t *testing.T, text string) (found []string) {
	t.Helper()
	in := NewLines(strings.NewReader(text))
	for {
		line, err := in.Next()
		if err != nil {
			return found
		}
		found = append(found, string(line))
	}
}

func TestLines(t *testing.T) {
	f := func(text string, lines ...string) {
		t.Helper()
		if got := readLines(t, text); !slices.Equal(got, lines) {
			t.Errorf("%.40q has the lines %.200q, want %.200q", text, got, lines)
		}
	}
	f("")
	f("a", "a")
	f("a\n", "a")
	f("\n", "")
	f("a\n\n\"b\r\n\r\nc\rd\r\r\n", "a", "", `"b`, "", "c\rd\r")
	f("\xef\xbb\xbfa\n\xef\xbb\xbfb\n", "a", "\xef\xbb\xbfb")
	f("\xef\xbb\xbf", "")
	wide := strings.Repeat("x", 70_000) // longer than the reader's buffer
	f("a\n"+wide+"\r\n"+wide+"\nb", "a", wide, wide, "b")
	most := strings.Repeat("x", MaxLine)
	f(most+"\r\n"+most+"y\n"+most+most+"\nb\n"+most+"y", most, "", "", "b", "")
	if cap(keptAfter(t, most+most+most)) > MaxLine*3/2 {
		t.Error("a long line stays in memory")
	}
}

// keptAfter returns the bytes that a reader keeps after one line.
func keptAfter(t *testing.T, text string) []byte {
	t.Helper()
	in := NewLines(strings.NewReader(text))
	if line, err := in.Next(); err != nil || len(line) != 0 {
		t.Errorf("a long line has %d bytes, %v", len(line), err)
	}
	return in.long
}

// TestLinesStayApart: replacing one line by any bytes except an end of line changes neither the other lines nor their
// number.
func TestLinesStayApart(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	const alphabet = "\"\"\",,1.\r x\x00\xef\xbb\xbf\\'#;\t"
	for range 20_000 {
		lines := make([]string, 1+source.IntN(6))
		for i := range lines {
			for range source.IntN(6) {
				lines[i] += alphabet[source.IntN(len(alphabet)):][:1]
			}
			lines[i] = strings.TrimRight(lines[i], "\r") // a last \r belongs to the line's end
		}
		lines[0] = strings.TrimPrefix(lines[0], "\xef\xbb\xbf")
		end := []string{"\n", "\r\n"}[source.IntN(2)]
		if got := readLines(t, strings.Join(lines, end)+end); !slices.Equal(got, lines) {
			t.Fatalf("lines %q are read as %q", lines, got)
		}
	}
}

// TestSplitCells: a line has the cells that encoding/csv finds. If encoding/csv reports a fault, the line has no cells.
// The exception is a quote inside a cell that begins without a quote.
func TestSplitCells(t *testing.T) {
	f := func(line string, ok bool, cells ...string) {
		t.Helper()
		got, k := splitCells(nil, line)
		if k != ok || ok && !slices.Equal(got, cells) {
			t.Errorf("%q has the cells %q, %t", line, got, k)
		}
	}
	f(`1,2`, true, "1", "2")
	f(`,`, true, "", "")
	f(`"1","a,b",""`, true, "1", "a,b", "")
	f(`"a""b""",c`, true, `a"b"`, "c")
	f(`5" pipe,2`, true, `5" pipe`, "2")
	f(`"`, false)
	f(`1,"2`, false)
	f(`1,"2""`, false)
	f(`1,"2"x,3`, false)
	source := rand.New(rand.NewPCG(3, 4))
	const alphabet = `"",,1a `
	agreed, refused := 0, 0
	for range 100_000 {
		line := "x"
		for range source.IntN(12) {
			line += alphabet[source.IntN(len(alphabet)):][:1]
		}
		got, ok := splitCells(nil, line[1:])
		r := csv.NewReader(strings.NewReader(line[1:]))
		want, err := r.Read()
		switch {
		case line == "x": // skipped: encoding/csv ignores such a line
		case err == nil:
			if agreed++; !ok || !slices.Equal(got, want) {
				t.Fatalf("%q has the cells %q, %t, but encoding/csv has %q", line[1:], got, ok, want)
			}
		case strings.Contains(err.Error(), csv.ErrBareQuote.Error()):
		default:
			if refused++; ok {
				t.Fatalf("%q has the cells %q, but encoding/csv says %v", line[1:], got, err)
			}
		}
	}
	if agreed < 10_000 || refused < 10_000 {
		t.Errorf("%d lines with cells and %d without are too few", agreed, refused)
	}
}
