package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// write writes a file into a folder of the test's own, packed where its name says so.
func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	data := []byte(text)
	if strings.HasSuffix(name, ".gz") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		data = b.Bytes()
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readLines returns all lines that a lineReader finds.
func readLines(t *testing.T, text string) (found []string) {
	t.Helper()
	in := newLineReader(strings.NewReader(text))
	for {
		line, err := in.next()
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
	wide := strings.Repeat("x", 70_000) // more than the reader's buffer
	f("a\n"+wide+"\r\n"+wide+"\nb", "a", wide, wide, "b")
	most := strings.Repeat("x", maxLine)
	f(most+"\r\n"+most+"y\n"+most+most+"\nb\n"+most+"y", most, "", "", "b", "")
	if cap(newLineReaderAfter(t, most+most+most)) > maxLine*3/2 {
		t.Error("a long line is held")
	}
}

// newLineReaderAfter returns what a reader keeps after one line.
func newLineReaderAfter(t *testing.T, text string) []byte {
	t.Helper()
	in := newLineReader(strings.NewReader(text))
	if line, err := in.next(); err != nil || len(line) != 0 {
		t.Errorf("a long line has %d bytes, %v", len(line), err)
	}
	return in.long
}

// TestLinesStayApart: any bytes but an end of line, put in place of one line, leave
// all others and their number as they are.
func TestLinesStayApart(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	const alphabet = "\"\"\",,1.\r x\x00\xef\xbb\xbf\\'#;\t"
	for range 20_000 {
		lines := make([]string, 1+source.IntN(6))
		for i := range lines {
			for range source.IntN(6) {
				lines[i] += alphabet[source.IntN(len(alphabet)):][:1]
			}
			lines[i] = strings.TrimRight(lines[i], "\r") // the last is of the line's end
		}
		lines[0] = strings.TrimPrefix(lines[0], "\xef\xbb\xbf")
		end := []string{"\n", "\r\n"}[source.IntN(2)]
		if got := readLines(t, strings.Join(lines, end)+end); !slices.Equal(got, lines) {
			t.Fatalf("lines %q are read as %q", lines, got)
		}
	}
}

// TestSplitCells: cells of a line are those that encoding/csv finds, and where that finds
// a fault, none but for a quote inside a cell that begins without one.
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
		case line == "x": // encoding/csv skips it
		case err == nil:
			if agreed++; !ok || !slices.Equal(got, want) {
				t.Fatalf("%q has the cells %q, %t, encoding/csv has %q", line[1:], got, ok, want)
			}
		case strings.Contains(err.Error(), csv.ErrBareQuote.Error()):
		default:
			if refused++; ok {
				t.Fatalf("%q has the cells %q, encoding/csv says %v", line[1:], got, err)
			}
		}
	}
	if agreed < 10_000 || refused < 10_000 {
		t.Errorf("%d lines with cells and %d without are too few", agreed, refused)
	}
}

// damages returns lines that hold no row, and that a reader of whole files takes for something else than
// one line: for none, for two, or for the begin of what follows. It is a function because one is long, and the tests run
// this binary as a program hundreds of times.
func damages() map[string]string {
	return map[string]string{
		"empty":          ``,
		"open quote":     `"`,
		"quoted start":   `"1,2`,
		"quoted end":     `1,"2`,
		"behind a quote": `1,"2"x`,
		"two rows":       "1,2\r1,2",
		"cells missing":  `1`,
		"marks":          "\xef\xbb\xbf\xef\xbb\xbf1,2",
		"zero byte":      "\x00",
		"comment":        `#1,2`,
		"too long":       strings.Repeat("1", maxLine+1),
	}
}

// rowsWith returns n lines of two numbers, line k being another one.
func rowsWith(n, k int, line, end string) string {
	var b strings.Builder
	for i := range n {
		if i == k {
			b.WriteString(line + end)
			continue
		}
		fmt.Fprintf(&b, "0.%d,0.%d%s", i%10, i%7, end)
	}
	return b.String()
}

// inside runs the program in this process, which is faster, and fails unless it is done
// and says the text.
func inside(t *testing.T, text string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(args, &out, &errs); code != exitDone || !strings.Contains(errs.String(), text) {
		t.Fatalf("streamdp %s: exit code %d\n%s\nmust hold %q", strings.Join(args, " "), code, errs.String(), text)
	}
	return out.String()
}

// fitted runs fit under keys that are always the same.
func fitted(t *testing.T, file string, more ...string) fitResult {
	t.Helper()
	out := inside(t, "", append([]string{"fit", "--csv", file, "--target", "2", "--epsilon", "2", "--delta", "1e-6", "--adjacency", "zero-out",
		"--clip-x", "1", "--clip-y", "1", "--insecure-seed", "1", "--json"}, more...)...)
	var r fitResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	r.Seconds = 0
	return r
}

// TestRecordsStayApart: whatever one line of a file holds, fit and replay count as many
// records, and release what they release where that line is any other null record. A line that
// is too long is the first one alone, without STREAMDP_SLOW=1.
func TestRecordsStayApart(t *testing.T) {
	config := siteOfLines(t).config
	const n = 1000
	const head = "amount,items\n"
	replayed := func(stream, name, text string, more ...string) string {
		t.Helper()
		return inside(t, fmt.Sprintf("%d records, %d releases\n", n, n/10),
			append([]string{"replay", "-c", config, "--stream", stream, "--insecure-seed", "1", write(t, name, text)}, more...)...)
	}
	documents := func(k int, line string) string {
		lines := slices.Repeat([]string{`{"amount":0.5,"items":0.25}`}, n)
		lines[k] = line
		return strings.Join(lines, "\n") + "\n"
	}
	bare := []string{"--header", "no"}
	for _, k := range []int{0, 400, n - 1} {
		null := rowsWith(n, k, "x,x", "\n")
		forms := []struct {
			what string
			run  func(line, rows string) any
			want any
		}{
			{what: "fit", run: func(_, rows string) any { return fitted(t, write(t, "a.csv", head+rows)) }},
			{what: "fit without a header", run: func(_, rows string) any {
				return fitted(t, write(t, "a.csv", rows), append(bare, "--columns", "1,2")...)
			}},
			{what: "replay", run: func(_, rows string) any { return replayed("orders", "a.csv", head+rows) }},
			{what: "replay with codec csv", run: func(_, rows string) any { return replayed("lines", "a.csv", rows, bare...) }},
			{what: "replay of values", run: func(_, rows string) any { return replayed("lines", "a.txt", rows) }},
			{what: "replay of JSON", run: func(line, _ string) any { return replayed("orders", "a.ndjson", documents(k, line)) }},
		}
		for i := range forms {
			forms[i].want = forms[i].run("{}", null)
		}
		if f := forms[0].want.(fitResult); f.N != n || forms[1].want.(fitResult).N != n {
			t.Fatalf("fit counts %d rows", f.N)
		}
		for name, line := range damages() {
			if k > 0 && name == "too long" && os.Getenv("STREAMDP_SLOW") == "" {
				continue
			}
			rows := rowsWith(n, k, line, "\n")
			for _, f := range forms {
				if got := f.run(line, rows); !reflect.DeepEqual(got, f.want) {
					t.Errorf("%s in line %d: %s gives other results than a null record", name, k, f.what)
				}
			}
		}
	}
}

// siteOfLines is a site whose second stream, lines, has the codec csv.
func siteOfLines(t *testing.T) *site {
	s := newSite(t)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, `[stream.lines]
input = { topic = "orders", codec = "csv", columns = ["1", "2"] }
output.topic = "lines.dp"
step = 10
privacy = { epsilon = 1.0, delta = 1e-8, adjacency = "zero-out", limit_epsilon = 1.0 }
moments.clip = 1.0
`...)
	if err := os.WriteFile(s.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFilesInEveryForm: CRLF, a byte order mark, a last line without its end, .gz and
// standard input change nothing.
func TestFilesInEveryForm(t *testing.T) {
	s := siteOfLines(t)
	const n = 200
	rows := rowsWith(n, 7, `"`, "\n")
	file := "amount,items\n" + rows
	crlf := strings.ReplaceAll(file, "\n", "\r\n")
	want := fitted(t, write(t, "a.csv", file))
	if want.N != n || !slices.Equal(want.Columns, []string{"amount"}) {
		t.Fatalf("fit says %+v", want)
	}
	replay := func(file string) string {
		t.Helper()
		return inside(t, "200 records, 20 releases\n", "replay", "-c", s.config, "--stream", "orders", "--insecure-seed", "1", file)
	}
	releases := replay(write(t, "a.csv", file))
	for name, text := range map[string]string{
		"crlf.csv": crlf, "mark.csv": "\xef\xbb\xbf" + file, "end.csv": strings.TrimSuffix(file, "\n"), "all.csv": "\xef\xbb\xbf" + strings.TrimSuffix(crlf, "\r\n"),
		"a.csv.gz": file, "crlf.csv.gz": crlf,
	} {
		path := write(t, name, text)
		if got := fitted(t, path); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: fit gives %+v, want %+v", name, got, want)
		}
		if replay(path) != releases {
			t.Errorf("%s: replay gives other releases", name)
		}
	}
	piped := func(text string, args ...string) (stdout, stderr string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := program(ctx, args...)
		var out, errs bytes.Buffer
		c.Stdin, c.Stdout, c.Stderr = strings.NewReader(text), &out, &errs
		if err := c.Run(); err != nil {
			t.Fatalf("%v\n%s", err, errs.String())
		}
		return out.String(), errs.String()
	}
	out, _ := piped(crlf, "fit", "--csv", "-", "--target", "2", "--epsilon", "2", "--delta", "1e-6", "--adjacency", "zero-out",
		"--clip-x", "1", "--clip-y", "1", "--insecure-seed", "1", "--json")
	var got fitResult
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Seconds = 0; !reflect.DeepEqual(got, want) {
		t.Errorf("fit of standard input gives %+v, want %+v", got, want)
	}
	if _, errs := piped("1,2\n\n\"\n3,4", "replay", "-c", s.config, "--stream", "lines"); !strings.HasPrefix(errs, "4 records, 0 releases") {
		t.Errorf("replay of standard input says %q", errs)
	}
}

// TestFirstLine: what the first line decides, and what it can't.
func TestFirstLine(t *testing.T) {
	fit := []string{"fit", "--target", "last", "--epsilon", "2", "--delta", "1e-6", "--adjacency", "zero-out", "--clip-x", "1", "--clip-y", "1"}
	with := func(text string, more ...string) []string {
		return append(append(slices.Clone(fit), "--csv", write(t, "a.csv", text)), more...)
	}
	rows := rowsWith(100, -1, "", "\n")
	for _, first := range []string{"", `"`, `amount,"items`} {
		for _, more := range [][]string{nil, {"--header", "yes"}, {"--header", "no"}, {"--columns", "1,2"}} {
			want(t, exitUsage, "the first line is empty, too long or no CSV: ", with(first+"\n"+rows, more...)...)
		}
		if out := want(t, exitDone, "", with(first+"\n"+rows, "--header", "no", "--columns", "1,2")...); !strings.Contains(out, " on 101 rows") {
			t.Errorf("%q:\n%s", first, out)
		}
	}
	// A cell too many is none of the first record's alone.
	for _, columns := range []string{"1,2", "c1,c2"} {
		if out := want(t, exitDone, "", with("1,2,3\n"+rows, "--header", "no", "--columns", columns)...); !strings.Contains(out, "last of") && !strings.Contains(out, "newton of c2 on 101 rows") {
			t.Errorf("columns %s:\n%s", columns, out)
		}
	}
	want(t, exitUsage, `no column "amount" in a file without a header, whose columns are 1, 2 and so on`, with("1.5,2\n"+rows, "--header", "no", "--columns", "amount")...)
	want(t, exitFailure, "is empty", with("")...)
	want(t, exitFailure, "has no rows", with("amount,items\n")...)
}
