package table

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzLines: a file has one line for each line end, and one more if it does not end with a line end; no line contains a
// part of another.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "a\n\"b\r\n\r\nc\rd\r\r\n", "\xef\xbb\xbfa,\"b\"\"c\"\n\xef\xbb\xbf,",
		"1,\"2\n3\",4"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want := bytes.Split(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), []byte("\n"))
		if len(want[len(want)-1]) == 0 && !bytes.Equal(data, []byte("\xef\xbb\xbf")) {
			want = want[:len(want)-1]
		}
		got := readLines(t, string(data))
		if len(got) != len(want) {
			t.Fatalf("%d lines, want %d: %q", len(got), len(want), got)
		}
		for i, line := range got {
			if line != strings.TrimSuffix(string(want[i]), "\r") {
				t.Fatalf("line %d is %q, want %q", i+1, line, want[i])
			}
			// Cells that are quoted and joined are split into the same cells again.
			cells, ok := splitCells(nil, line)
			if !ok {
				continue
			}
			quoted := make([]string, len(cells))
			for j, cell := range cells {
				quoted[j] = `"` + strings.ReplaceAll(cell, `"`, `""`) + `"`
			}
			again, ok := splitCells(nil, strings.Join(quoted, ","))
			if !ok || strings.Join(again, "\x00") != strings.Join(cells, "\x00") || len(again) != len(cells) {
				t.Fatalf("cells %q are read again as %q, %t", cells, again, ok)
			}
		}
	})
}
