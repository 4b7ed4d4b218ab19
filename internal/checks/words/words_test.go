package words

import (
	"bytes"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

var update = flag.Bool("update", false, "write smaller counts to testdata/counts.txt; larger ones still fail")

// phrases are signs of a sentence that needs a second reading: its subject is not named, or it says two things.
// CONTRIBUTING.md has the rules. A phrase is mended by a new sentence, not by a synonym.
var phrases = regexp.MustCompile(`(?m)` + strings.Join([]string{
	`takes? note of`,
	`\bso many\b`,
	`\b(?:is that of|are those of)\b`,
	`\bof (?:which|whom|what)\b`,
	`(?:^|[.:;] )Of [a-z]+ [^.]{3,60},? `,
	`(?:^|[.:;] )What [a-z]+ [^?]{3,80}(?:\.|,|:|;)`,
	`\bas (?:they are|it is|they have|it has)\b`,
	`\b(?:[Ww]hoever|[Ww]hichever|[Ww]hatever)\b`,
	`\bthe same[.;,]`,
	`\b(?:hardly|oftener|for ever)\b`,
	`, for (?:it|they|the|a|no|these|those|its|two|rows|records|each|that|there) [a-z]+`,
	`\b(?:that is so|is so|where that is)\b`,
	`\b(?:anew|beside|besides)\b`,
}, "|"))

// Limits of the number of phrases in ten thousand words: for each kind of text, and for each package and document
// that has enough words to tell.
const (
	mostOfKind = 8
	mostOfRoom = 15
	fewWords   = 1500
)

// columns is the longest line of Go code, where a tab counts for four.
const columns = 120

// text is the part of a file that a reader sees: all of a document, or the comments of Go source and its strings with
// words.
type text struct {
	file, room, kind string
	lines            []string
}

// texts returns the texts of all files under version control.
func texts(t *testing.T) []text {
	root := cases.Root(t)
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "*.go", "*.md").Output()
	if err != nil {
		t.Skipf("not run: the files are not in a git repository: %v", err)
	}
	var all []text
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		src, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		x := text{file: name, room: path.Dir(name), kind: "code"}
		switch {
		case strings.HasSuffix(name, ".md"):
			x.room, x.kind, x.lines = name, "documents", strings.Split(string(src), "\n")
		case strings.HasSuffix(name, "_test.go"):
			x.room, x.kind, x.lines = x.room+" (tests)", "tests", words(src)
		default:
			x.lines = words(src)
		}
		if !bytes.HasPrefix(src, []byte("// Code generated")) {
			all = append(all, x)
		}
	}
	return all
}

// words returns the lines of comments of a Go file, and the strings of several words.
func words(src []byte) (lines []string) {
	for _, tok := range tokens(src) {
		switch {
		case tok.kind == token.COMMENT:
			for line := range strings.SplitSeq(tok.lit, "\n") {
				lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(line, "//"), " "))
			}
		case tok.kind == token.STRING && tok.lit[0] == '"' && strings.Count(tok.lit, " ") > 2:
			lines = append(lines, strings.Trim(tok.lit, `"`))
		}
	}
	return lines
}

// lexeme is a token of a Go file with its place.
type lexeme struct {
	at, end int
	kind    token.Token
	lit     string
}

func tokens(src []byte) (all []lexeme) {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, kind, lit := s.Scan()
		if kind == token.EOF {
			return all
		}
		at := file.Offset(pos)
		all = append(all, lexeme{at, at + len(lit), kind, lit})
	}
}

// count returns the number of phrases and of words.
func count(lines []string) (phrase, word int) {
	joined := strings.Join(lines, "\n")
	return len(phrases.FindAllString(joined, -1)), len(strings.Fields(joined))
}

// TestPhrases counts phrases. In each kind of text, their number must not be above that in testdata/counts.txt. No
// package and no document may have many.
func TestPhrases(t *testing.T) {
	type counter struct{ phrases, words int }
	kinds, rooms, where := map[string]counter{}, map[string]counter{}, map[string][]string{}
	add := func(m map[string]counter, key string, p, w int) {
		m[key] = counter{m[key].phrases + p, m[key].words + w}
	}
	for _, x := range texts(t) {
		if x.room == "internal/checks/words (tests)" {
			continue // it has the list
		}
		p, w := count(x.lines)
		add(kinds, x.kind, p, w)
		add(rooms, x.room, p, w)
		for _, line := range x.lines {
			if found := phrases.FindString(line); found != "" {
				where[x.room] = append(where[x.room],
					fmt.Sprintf("%s: %q in %q", x.file, strings.TrimSpace(found), line))
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if c := kinds[kind]; c.words < 10000 || c.phrases*10000 > mostOfKind*c.words {
			t.Errorf("%s: %d phrases in %d words, more than %d in ten thousand", kind, c.phrases, c.words, mostOfKind)
		}
	}
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		if c := rooms[room]; c.phrases*10000 > mostOfRoom*max(c.words, fewWords) {
			t.Errorf("%s: %d phrases in %d words, more than %d in ten thousand:\n\t%s", room, c.phrases, c.words,
				mostOfRoom, strings.Join(where[room], "\n\t"))
		}
	}

	const file = "testdata/counts.txt"
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var now strings.Builder
	for line := range strings.Lines(string(kept)) {
		var kind string
		var most int
		if _, err := fmt.Sscan(line, &kind, &most); err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
		if got := kinds[kind].phrases; got > most {
			t.Errorf("%s: %d phrases, %s allows %d. Write the new sentences again, by the rules in CONTRIBUTING.md",
				kind, got, file, most)
		} else if got < most {
			t.Logf("%s: %d phrases, %s allows %d: run go test ./internal/checks/words -update", kind, got, file, most)
			most = got
		}
		fmt.Fprintln(&now, kind, most)
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(file, []byte(now.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPhrasesAreFound checks that the patterns find the phrases, in comments and in messages, and nothing in plain
// sentences.
func TestPhrasesAreFound(t *testing.T) {
	comment := func(text string) string { return "package p\n//" + " " + text + "\n" }
	message := func(text string) string { return "package p\nvar e = errors." + "New(" + text + ")\n" }
	for src, want := range map[string]int{
		comment("The state of a task that is nobody's."):          0,
		comment("What is left goes to whoever asks."):             1,
		comment("It is an array of which no element is zero."):    1,
		message(`"no offset, for it is hardly known besides"`):    3,
		message("`a raw string, for it is hardly known besides`"): 0,
	} {
		if got, _ := count(words([]byte(src))); got != want {
			t.Errorf("%d phrases, want %d, in %s", got, want, src)
		}
	}
}

// TestColumns: no line of Go code is longer than 120 columns, except within raw strings and where a single word is
// longer, such as an address.
func TestColumns(t *testing.T) {
	root := cases.Root(t)
	for _, x := range texts(t) {
		if x.kind == "documents" {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, x.file))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range long(src) {
			t.Errorf("%s:%d: longer than %d columns", x.file, n, columns)
		}
	}
	for src, want := range map[string][]int{
		"package p\n\n// " + strings.Repeat("word ", 24) + "\n":                       {3},
		"package p\n\n// " + strings.Repeat("x", 140) + "\n":                          nil,
		"package p\n\nvar s = `" + strings.Repeat("word ", 30) + "`\n":                nil,
		"package p\n\nvar s = \"" + strings.Repeat("word ", 30) + "\"\n":              {3},
		"package p\n\nfunc f() {\n\t_ = 1 + " + strings.Repeat("1 + ", 28) + "1\n}\n": {4},
	} {
		if got := long([]byte(src)); !slices.Equal(got, want) {
			t.Errorf("lines %v, want %v, in %s", got, want, src)
		}
	}
}

// long returns the numbers of the lines that are too long.
func long(src []byte) (numbers []int) {
	raw := make([]bool, len(src)+1) // bytes of raw strings
	for _, tok := range tokens(src) {
		if tok.kind == token.STRING && tok.lit[0] == '`' {
			for i := tok.at; i < min(tok.end, len(src)); i++ {
				raw[i] = true
			}
		}
	}
	n, at := 0, 0
	for line := range bytes.Lines(src) {
		n++
		content := bytes.TrimRight(line, "\n")
		width := utf8.RuneCount(content) + 3*bytes.Count(content, []byte{'\t'})
		if width > columns && !slices.Contains(raw[at:at+len(content)], true) &&
			bytes.ContainsAny(bytes.TrimPrefix(bytes.TrimSpace(content), []byte("// ")), " \t") {
			numbers = append(numbers, n)
		}
		at += len(line)
	}
	return numbers
}
