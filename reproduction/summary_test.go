package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

var (
	summaryNumber  = regexp.MustCompile(`[-+]?\d+(\.\d+)?(e[-+]?\d+)?`)
	summaryHeading = regexp.MustCompile(`(?m)^(#+) (.*)$`)
	summaryLink    = regexp.MustCompile(`\]\([^)#]*#?([^)]*)\)`)
)

// TestSummary checks the numbers of each section of docs/reproduction.md: they must appear in the section of RESULTS.md
// that it links to, or in a CSV file linked there. All numbers in a row of a table, except those of its first cell,
// must appear in one line there.
func TestSummary(t *testing.T) {
	t.Parallel()
	root := cases.Root(t)
	page, err := os.ReadFile(filepath.Join(root, "..", "docs", "reproduction.md"))
	if err != nil {
		t.Fatal(err)
	}
	results, err := os.ReadFile(filepath.Join(root, "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		name, _, _ := strings.Cut(section, "\n")
		link := summaryLink.FindStringSubmatch(section)
		if link == nil {
			t.Errorf("%s: no link to the results", name)
			continue
		}
		source := resultsSection(t, string(results), link[1])
		for _, file := range resultsLink.FindAllStringSubmatch(source, -1) {
			text, err := os.ReadFile(filepath.Join(root, "results", file[1]))
			if err != nil {
				t.Fatal(err)
			}
			source += string(text)
		}
		lines := numbersOf(source)
		all := slices.Concat(lines...)
		text := exponents.Replace(summaryLink.ReplaceAllString(section, "]"))
		above := ""
		for line := range strings.Lines(text) {
			row := strings.HasPrefix(line, "|") && strings.HasPrefix(above, "|")
			above = line
			for _, n := range summaryNumber.FindAllString(line, -1) {
				if found++; !slices.Contains(all, n) {
					t.Errorf("%s: the results do not have %s: %s", name, n, line)
				}
			}
			if !row {
				continue
			}
			_, values, _ := strings.Cut(line[1:], "|")
			numbers := summaryNumber.FindAllString(values, -1)
			if !slices.ContainsFunc(lines, func(have []string) bool {
				return !slices.ContainsFunc(numbers, func(n string) bool { return !slices.Contains(have, n) })
			}) {
				t.Errorf("%s: no line of the results has all numbers of %s", name, line)
			}
		}
	}
	if found < 200 {
		t.Errorf("only %d numbers were looked up", found)
	}
}

// resultsSection returns the section of a text with the given anchor, including its subsections.
func resultsSection(t *testing.T, text, anchor string) string {
	t.Helper()
	end, level := -1, 0
	begin := -1
	for _, h := range summaryHeading.FindAllStringSubmatchIndex(text, -1) {
		switch depth := h[3] - h[2]; {
		case begin < 0 && cases.Anchor(text[h[4]:h[5]]) == anchor:
			begin, level = h[0], depth
		case begin >= 0 && end < 0 && depth <= level:
			end = h[0]
		}
	}
	if begin < 0 {
		t.Fatalf("RESULTS.md has no heading with the anchor %q", anchor)
	}
	if end < 0 {
		end = len(text)
	}
	return text[begin:end]
}

// exponents writes powers of ten as CSV files do.
var exponents = strings.NewReplacer("·10^", "e")

// numbersOf returns the numbers of each line.
func numbersOf(text string) [][]string {
	var lines [][]string
	for line := range strings.Lines(exponents.Replace(text)) {
		lines = append(lines, summaryNumber.FindAllString(line, -1))
	}
	return lines
}
