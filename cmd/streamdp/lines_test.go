package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/fit"
	"github.com/streamdp/streamdp/internal/table"
)

// write writes a file into a folder of the test, compressed if its name says so.
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

// damages returns damaged lines, none of which gives a row. An ordinary CSV reader would not take each of them for
// exactly one line, but for none, for two, or for the beginning of the next line. It is a function because one line is
// long, and the tests run this binary as a program hundreds of times.
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
		"too long":       strings.Repeat("1", table.MaxLine+1),
	}
}

// rowsWith returns n lines of two numbers, with the given line as line k.
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

// inside runs the program in this process, which is faster, and fails unless it succeeds and its standard error
// contains the text.
func inside(t *testing.T, text string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(args, &out, &errs); code != exitDone || !strings.Contains(errs.String(), text) {
		t.Fatalf("streamdp %s: exit code %d\n%s\nmust hold %q", strings.Join(args, " "), code, errs.String(), text)
	}
	return out.String()
}

// fitted runs fit with fixed keys.
func fitted(t *testing.T, file string, more ...string) fit.Result {
	t.Helper()
	out := inside(t, "",
		append(
			[]string{"fit", "--csv", file, "--target", "2", "--epsilon", "2", "--delta", "1e-6",
				"--adjacency", "zero-out",
				"--clip-x", "1", "--clip-y", "1", "--insecure-seed", "1", "--json"}, more...)...)
	var r fit.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	r.Seconds = 0
	return r
}

// TestRecordsStayApart: with any content of one line of a file, fit and replay count the same number of records, and
// release the same values as for any other null record in its place. Without STREAMDP_SLOW=1, only the first line is
// made too long.
func TestRecordsStayApart(t *testing.T) {
	config := siteOfLines(t).config
	const n = 1000
	const head = "amount,items\n"
	replayed := func(stream, name, text string, more ...string) string {
		t.Helper()
		return inside(t, fmt.Sprintf("%d records, %d releases\n", n, n/10),
			append([]string{"replay", "-c", config, "--stream", stream, "--insecure-seed", "1", write(t, name, text)},
				more...)...)
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
			{what: "replay with codec csv",
				run: func(_, rows string) any { return replayed("lines", "a.csv", rows, bare...) }},
			{what: "replay of values", run: func(_, rows string) any { return replayed("lines", "a.txt", rows) }},
			{what: "replay of JSON",
				run: func(line, _ string) any { return replayed("orders", "a.ndjson", documents(k, line)) }},
		}
		for i := range forms {
			forms[i].want = forms[i].run("{}", null)
		}
		if f := forms[0].want.(fit.Result); f.N != n || forms[1].want.(fit.Result).N != n {
			t.Fatalf("fit counts %d rows", f.N)
		}
		for name, line := range damages() {
			if k > 0 && name == "too long" && os.Getenv("STREAMDP_SLOW") == "" {
				continue
			}
			rows := rowsWith(n, k, line, "\n")
			for _, f := range forms {
				if got := f.run(line, rows); !reflect.DeepEqual(got, f.want) {
					t.Errorf("%s in line %d: %s gives results other than with a null record", name, k, f.what)
				}
			}
		}
	}
}

// siteOfLines returns a site with a second stream, named lines, that has the codec csv.
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

// TestFilesInEveryForm checks that the form of a file does not change results: CRLF, a byte order mark, a missing end
// of the last line, .gz and standard input change nothing.
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
		return inside(t, "200 records, 20 releases\n", "replay", "-c", s.config, "--stream", "orders",
			"--insecure-seed", "1", file)
	}
	releases := replay(write(t, "a.csv", file))
	for name, text := range map[string]string{
		"crlf.csv": crlf, "mark.csv": "\xef\xbb\xbf" + file, "end.csv": strings.TrimSuffix(file, "\n"),
		"all.csv":  "\xef\xbb\xbf" + strings.TrimSuffix(crlf, "\r\n"),
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
	out, _ := piped(crlf, "fit", "--csv", "-", "--target", "2", "--epsilon", "2", "--delta", "1e-6",
		"--adjacency", "zero-out",
		"--clip-x", "1", "--clip-y", "1", "--insecure-seed", "1", "--json")
	var got fit.Result
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Seconds = 0; !reflect.DeepEqual(got, want) {
		t.Errorf("fit of standard input gives %+v, want %+v", got, want)
	}
	if _, errs := piped("1,2\n\n\"\n3,4", "replay", "-c", s.config, "--stream", "lines"); !strings.HasPrefix(errs,
		"4 records, 0 releases") {
		t.Errorf("replay of standard input says %q", errs)
	}
}

// TestFirstLine checks what the first line decides and what it cannot decide.
func TestFirstLine(t *testing.T) {
	fit := []string{"fit", "--target", "last", "--epsilon", "2", "--delta", "1e-6", "--adjacency", "zero-out",
		"--clip-x", "1", "--clip-y", "1"}
	with := func(text string, more ...string) []string {
		return append(append(slices.Clone(fit), "--csv", write(t, "a.csv", text)), more...)
	}
	rows := rowsWith(100, -1, "", "\n")
	for _, first := range []string{"", `"`, `amount,"items`} {
		for _, more := range [][]string{nil, {"--header", "yes"}, {"--header", "no"}, {"--columns", "1,2"}} {
			want(t, exitUsage, "the first line is empty, too long or not CSV: ", with(first+"\n"+rows, more...)...)
		}
		if out := want(t, exitDone, "",
			with(first+"\n"+rows, "--header", "no", "--columns", "1,2")...); !strings.Contains(out, " on 101 rows") {
			t.Errorf("%q:\n%s", first, out)
		}
	}
	// Only the first record has a surplus cell. It must not change how other records are read.
	for _, columns := range []string{"1,2", "c1,c2"} {
		if out := want(t, exitDone, "",
			with("1,2,3\n"+rows, "--header", "no", "--columns", columns)...); !strings.Contains(out, "last of") &&
			!strings.Contains(out, "newton of c2 on 101 rows") {
			t.Errorf("columns %s:\n%s", columns, out)
		}
	}
	want(t, exitUsage, `no column "amount": the file has no header, so its columns are named 1, 2 and so on`,
		with("1.5,2\n"+rows, "--header", "no", "--columns", "amount")...)
	want(t, exitFailure, "is empty", with("")...)
	want(t, exitFailure, "has no rows", with("amount,items\n")...)
}
