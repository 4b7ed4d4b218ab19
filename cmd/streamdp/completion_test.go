package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/fit"
)

// completions returns the suggestions of a shell after the words.
func completions(t *testing.T, words ...string) []string {
	t.Helper()
	code, out, errs := call(t, append([]string{cobra.ShellCompNoDescRequestCmd}, words...)...)
	if code != exitDone {
		t.Fatalf("%q: exit code %d: %s", words, code, errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[:len(lines)-1] // the last line is an instruction to the shell
}

func TestCompletions(t *testing.T) {
	dir := t.TempDir()
	two := filepath.Join(dir, "two.toml")
	text := "[kafka]\nbrokers = [\"localhost:9092\"]\n[state]\ndir = \"" + dir + "\"\nkey_file = \"" + dir + "/key\"\n"
	for _, name := range []string{"orders", "returns"} {
		text += "[stream." + name + "]\ninput = { topic = \"" + name +
			"\", columns = [\"x\"], partition = [0, 3] }\noutput = { topic = \"" + name +
			".dp\" }\ncentre = [0.0]\nscale = [1.0]\nstep = 100\n" +
			"[stream." + name + ".privacy]\nepsilon = 1\ndelta = 1e-8\nadjacency = \"zero-out\"\n[stream." + name +
			".moments]\nclip = 1.0\n"
	}
	faulty := filepath.Join(dir, "faulty.toml")
	for file, text := range map[string]string{two: text, faulty: "[stream.orders"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"fit", "--solver", ""}, strings.Join(fit.Solvers(), " ")},
		{[]string{"fit", "--solver", "ihm"}, "ihm"},
		{[]string{"fit", "--adjacency", ""}, "zero-out replace"},
		{[]string{"feed", "--codec", "j"}, "json json-array"},
		{[]string{"plan", "-c", two, "--stream", ""}, "orders returns"},
		{[]string{"verify", "-c", two, "--stream", "r"}, "returns"},
		{[]string{"verify", "-c", two, "--stream", "orders", "--partition", ""}, "0 3"},
		{[]string{"verify", "-c", two, "--partition", ""}, ""}, // no suggestion: the stream is unknown
		{[]string{"epoch", "open", "-c", two, ""}, "orders returns"},
		{[]string{"epoch", "close", "-c", two, "returns", ""}, ""},
		{[]string{"epoch", "close", "-c", two, "returns", "--partition", "3"}, "3"},
		{[]string{"epoch", "open", "-c", two, "orders", "--from", "e"}, "earliest"},
		{[]string{"plan", "-c", faulty, "--stream", ""}, ""},
		{[]string{"plan", "--stream", ""}, ""},
		{[]string{"run", "--log-level", "w"}, "warn"},
		{[]string{"run", "-c", ""}, "toml"}, // the shell offers files with this extension
	} {
		if got := strings.Join(completions(t, c.words...), " "); got != c.want {
			t.Errorf("%q: %q, want %q", c.words, got, c.want)
		}
	}
}

func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	want(t, exitDone, "", "man", dir)
	pages := 0
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		pages++
		if !strings.Contains(string(page), ".SH SYNOPSIS") || !strings.HasPrefix(string(page), ".nh\n.TH ") {
			t.Errorf("%s is not a manual page: %.80q", name, page)
		}
		for _, child := range c.Commands() {
			if child.IsAvailableCommand() {
				each(child)
			}
		}
	}
	each(newRoot(nil, nil))
	if files, err := os.ReadDir(dir); err != nil || len(files) != pages || pages < 20 {
		t.Errorf("%d pages of %d commands: %v", len(files), pages, err)
	}
}
