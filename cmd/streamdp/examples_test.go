package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/truth"
	"github.com/streamdp/streamdp/stream/monitor"
)

// TestExamples runs check and plan on every configuration of examples/, with this machine's paths.
func TestExamples(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	want(t, exitDone, "", "keygen", key)
	n := 0
	err := filepath.WalkDir(filepath.Join(cases.Root(t), "examples"),
		func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".toml" {
				return err
			}
			n++
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file := filepath.Join(dir, fmt.Sprint(n, ".toml"))
			own := strings.NewReplacer("/etc/streamdp/key", key, "${HOME}/streamdp/key", key, "/var/lib/streamdp",
				filepath.Join(dir, "state"), "${HOME}/streamdp/state",
				filepath.Join(dir, "state")).Replace(string(text))
			if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
				return err
			}
			for _, command := range []string{"check", "plan"} {
				if out := want(t, exitDone, "", command, "-c", file); !strings.Contains(out,
					"differential privacy for all releases") {
					t.Errorf("%s %s prints\n%s", command, path, out)
				}
			}
			return nil
		})
	if err != nil || n < 5 {
		t.Errorf("%d examples: %v", n, err)
	}
}

// TestHowTos checks that the configurations in the how-tos are complete. They may leave out the tables that every file
// has, a stream if the how-to is not about one, and its guarantee if the how-to is about something else.
func TestHowTos(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(cases.Root(t), "docs", "howto", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```toml\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			n++
			if !strings.Contains(block, "[stream.") {
				block += "[stream.orders]\ninput = { topic = \"orders\", columns = [\"amount\"] }\n" +
					"output = { topic = \"orders.dp\" }\nstep = 10\n" +
					"[stream.orders.privacy]\nepsilon = 1.0\ndelta = 1e-8\nadjacency = \"zero-out\"\n" +
					"[stream.orders.moments]\nclip = 1.0\n"
			}
			if _, rest, about := strings.Cut(block, "[stream."); about && !strings.Contains(block, "privacy") {
				name, _, _ := strings.Cut(rest, ".")
				block += "[stream." + name +
					".privacy]\nepsilon = 1.0\ndelta = 1e-8\nadjacency = \"zero-out\"\n[stream." + name +
					".moments]\nclip = 1.0\n"
			}
			if !strings.Contains(block, "[kafka]") {
				block += "[kafka]\nbrokers = [\"localhost:9092\"]\nboundary_topic = \"bounds\"\n"
			}
			if !strings.Contains(block, "[state]") {
				block += "[state]\ndir = \"state\"\nkey_file = \"key\"\n"
			}
			block = strings.NewReplacer("${HOME}", "/home", "${INSTANCE}", "a", "${PORT}", "9464").Replace(block)
			if _, err := config.Parse(filepath.Base(file), []byte(block)); err != nil {
				t.Errorf("%v\n%s", err, block)
			}
		}
	}
	if n < 4 {
		t.Errorf("%d configurations", n)
	}
}

// TestReadmeFiles: the files that the README's commands read exist, and a replay of the sample gives one release per
// hundred orders. Neither needs a key.
func TestReadmeFiles(t *testing.T) {
	t.Chdir(cases.Root(t))
	if out := want(t, exitDone, "", "replay", "-c", "examples/orders.toml", "examples/orders.csv"); strings.Count(out,
		"\n") != 20 {
		t.Errorf("the replay has %d releases, want 20", strings.Count(out, "\n"))
	}
	// Both commands report that a file is shorter than the warm-up.
	want(t, exitDone, "the warm-up takes the first 5000 records", "check", "-c", "examples/auto.toml", "--sample",
		"examples/orders.csv")
	want(t, exitDone, "all of them belong to the warm-up, which takes 5000", "replay", "-c", "examples/auto.toml",
		"examples/orders.csv")
	want(t, exitDone, "", "fit", "--csv", "examples/orders.csv", "--target", "amount", "--epsilon", "1", "--delta",
		"1e-8", "--adjacency", "zero-out")
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"replay -c examples/orders.toml examples/orders.csv", "fit --csv " +
		"examples/orders.csv --target amount --epsilon 1 --delta 1e-8 --adjacency zero-out"} {
		if !bytes.Contains(readme, []byte("./streamdp "+command)) {
			t.Errorf("the README does not contain %q", command)
		}
	}
}

// TestReadmeConfiguration: the README's first configuration is examples/auto.toml without comments. With this machine's
// addresses and paths it runs: a warm-up of 5000 records with any columns, and then a release for every hundred
// records.
func TestReadmeConfiguration(t *testing.T) {
	root := cases.Root(t)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```toml\n")
	first, _, found := strings.Cut(rest, "```")
	example, err := os.ReadFile(filepath.Join(root, "examples", "auto.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var bare strings.Builder
	for line := range strings.Lines(string(example)) {
		if !strings.HasPrefix(line, "#") {
			bare.WriteString(line)
		}
	}
	if !found || strings.TrimLeft(bare.String(), "\n") != first {
		t.Errorf("the README has\n%s\nthe example is\n%s", first, bare.String())
	}

	s := newSite(t)
	own := strings.NewReplacer("localhost:9092", s.broker.Addr(), "${HOME}/streamdp/key", filepath.Join(s.dir, "key"),
		"${HOME}/streamdp/state", filepath.Join(s.dir, "state")).Replace(first)
	if err := os.WriteFile(s.config, []byte(own+"[http]\nlisten = \"127.0.0.1:0\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var rows strings.Builder
	rows.WriteString("amount,items,weight\n")
	for i := range 5300 {
		fmt.Fprintf(&rows, "%d.%02d,%d,%g\n", 20+i*37%60, i%100, 1+i*11%9, 0.0002*float64(1+i*7%40))
	}
	want(t, exitDone, "5300 records sent", "feed", "-c", s.config, "--stream", "orders", "--csv",
		write(t, "orders.csv", rows.String()))
	d := s.start()
	d.until("a warm-up and three releases", func(x monitor.TaskStatus) bool { return x.Step == 4 && x.Outbox == 0 })
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var last truth.Release
	if err := client.ReadBack(t.Context(), "orders.dp", 0, 0, func(r *kafka.Record) error {
		if !bytes.HasSuffix(r.Key, []byte("/4")) {
			return nil
		}
		return json.Unmarshal(r.Value, &last)
	}); err != nil {
		t.Fatal(err)
	}
	// The noise of three steps is much larger than the spread of that many rows; it exceeds five standard deviations
	// once in 6·10⁵ runs.
	mean := last.Values["mean_original"]
	for j, exact := range []float64{50, 5, 0.0041} {
		if !(math.Abs(mean.Data.At(j)-exact) < 5*mean.SE.At(j)) {
			t.Errorf("mean %d is %g ± %g, the truth %g", j, mean.Data.At(j), mean.SE.At(j), exact)
		}
	}
	if scale := last.Bounds.Scale; !(scale[0] > 5 && scale[0] < 60 && scale[1] > 0.8 && scale[1] < 10 &&
		scale[2] > 0.0007 && scale[2] < 0.009) {
		t.Errorf("scales %g", scale)
	}
	if code := d.stop(os.Interrupt); code != exitDone {
		t.Errorf("exit code %d: %s", code, d.log)
	}
}
