package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// directory writes files into a directory. names and texts alternate.
func directory(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, files[i]), []byte(files[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDirectory: the files of a directory are one configuration. A fault names the file that has it, and a key that two
// files have is reported with both places.
func TestDirectory(t *testing.T) {
	process, stream, _ := strings.Cut(orders, "[stream.orders]\n")
	stream = "[stream.orders]\n" + stream
	dir := directory(t, "10-process.toml", process, "20-orders.toml", stream, ".#20-orders.toml", "no TOML",
		"readme.txt", "no TOML")
	if err := os.Mkdir(filepath.Join(dir, "old.toml"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := parse(t, orders); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	text, err := Text(dir)
	if err != nil || string(text) != process+stream {
		t.Errorf("%v: %s", err, text)
	}

	f := func(want []string, files ...string) {
		t.Helper()
		dir := directory(t, files...)
		_, err := Load(dir)
		faults, ok := err.(Faults)
		if !ok {
			t.Fatalf("%v", err)
		}
		got := strings.Split(strings.ReplaceAll(faults.Error(), dir+"/", ""), "\n")
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	broken := strings.Replace(stream, "step   = 100 ", "step   = 100.5", 1)
	f([]string{
		"a.toml:7: http.listen: must be a string (1)",
		"b.toml:6: stream.orders.step: must be a number of offsets, or a duration such as \"1m\" (100.5)",
		"b.toml:13: stream.orders.moments.clib: unknown key (did you mean clip?)",
		"c.toml:4: stream.other.horizo: unknown key (did you mean horizon?)",
	}, "a.toml", strings.Replace(process, `"127.0.0.1:9464"`, "1", 1), "b.toml",
		strings.Replace(broken, "clip =", "clib =", 1),
		"c.toml", strings.Replace(other, "step =", "horizo = 1\nstep =", 1))
	// One key is in two files, and one table is a plain value in another file.
	f([]string{
		"b.toml:2: kafka.brokers: is also set in a.toml:2",
		"c.toml:1: http.listen: is also set in a.toml:7",
		"c.toml:2: state: is also set in a.toml:3",
		"d.toml:1: stream.orders.moments.clip: is also set in a.toml:21",
	}, "a.toml", orders, "b.toml", "[kafka]\nbrokers = [\"other:9092\"]\n", "c.toml",
		"http.listen = \"a:1\"\nstate = 1\n", "d.toml", "stream.orders.moments.clip = 2\n")
	// A text that is not TOML hides all other faults, except those of other texts that are not TOML.
	f([]string{
		"b.toml:1: not TOML: expected '.' or '=', but got '\\n' instead",
		"c.toml:2: not TOML: expected '.' or '=', but got '\\n' instead",
	}, "a.toml", process, "b.toml", "clip\n", "c.toml", "[log]\nlevel\n")

	for _, dir := range []string{t.TempDir(), filepath.Join(dir, "absent")} {
		if _, err := Load(dir); err == nil || !strings.HasPrefix(err.Error(), "configuration: ") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestDifferences: every difference between two files is found, inside and outside the digest. Paths of files and
// values of environment variables are not shown.
func TestDifferences(t *testing.T) {
	t.Setenv("STREAMDP_TEST_TOPIC", "secret.dp")
	text := func(list []Difference) string {
		var lines []string
		for _, d := range list {
			lines = append(lines, d.String())
		}
		return strings.Join(lines, "\n")
	}
	f := func(old, new, process, stream string) {
		t.Helper()
		src := strings.Replace(orders, old, new, 1)
		if src == orders {
			t.Fatalf("%q is not there", old)
		}
		a, b := parse(t, orders), parse(t, src)
		if got := text(Differences(a, b)); got != process {
			t.Errorf("%s: got %q, want %q", new, got, process)
		}
		if got := text(a.Streams[0].Differences(b.Streams[0])); got != stream {
			t.Errorf("%s: got %q, want %q", new, got, stream)
		}
	}
	f("# public", "# known", "", "")
	f("localhost:9092", "localhost:9093", `kafka.brokers: ["localhost:9092"] → ["localhost:9093"]`, "")
	f(`key_file`, "commit_interval = \"1s\"\nkey_file", `state.commit_interval: "200ms" → "1s"`, "")
	f("/etc/streamdp/key", "/etc/key", "state.key_file: changed", "")
	f("[http]", "[kafka.tls]\n[http]", `kafka.tls: absent → present
kafka.tls.ca_file: changed
kafka.tls.cert_file: changed
kafka.tls.key_file: changed`, "")
	f(`"operator"`, `"public"`, `http.exposure: "operator" → "public"`, "")
	f("step   = 100", "step   = 50", "", "step: 100 → 50")
	f("clip = 1.0", `clip = "auto"`, "", `moments.clip: 1 → "auto"`)
	f(`"orders.dp"`, `"others.dp"`, "", `output.topic: "orders.dp" → "others.dp"`)
	f(`"orders.dp"`, `"${STREAMDP_TEST_TOPIC}"`, "", "output.topic: changed")
	f(`partition = 0`, `partition = [0, 1]`, "", "input.partition: [0] → [0,1]")
	f(`partition = 0`, `partition = "all"`, "", `input.partition: [0] → "all"`)
	f("limit_epsilon = 3.0", "limit_epsilon = 4", "", "privacy.limit_epsilon: 3 → 4")
	f("step   = 100", "step   = 100\nhorizon = 9\non_horizon = \"rollover\"", "", `horizon: 0 → 9
on_horizon: "halt" → "rollover"`)
	f("step   = 100", "step   = 100\ninput.column.items.transform = \"log1p\"", "",
		`input.column.items.transform: absent → "log1p"`)
	f("step   = 100", "step   = 100\non_gap = \"null\"", "", `on_gap: "halt" → "null"`)
}

// TestDifferencesHidden: values of environment variables are also hidden for columns whose names have dots, for
// patterns, and if the digest of an open epoch differs.
func TestDifferencesHidden(t *testing.T) {
	for name, edit := range map[string]func(string) string{
		"a column": func(s string) string {
			return strings.NewReplacer(`"amount"`, `"a.b"`, "step   = 100",
				"step = 100\ninput.column.\"a.b\".path = \"${STREAMDP_TEST_PATH}\"").Replace(s)
		},
		"a pattern": func(s string) string {
			return strings.NewReplacer(`topic = "orders",`, `topics = "${STREAMDP_TEST_PATH}",`, `"orders.dp"`,
				`"*.dp"`).Replace(s)
		},
	} {
		t.Setenv("STREAMDP_TEST_PATH", "hush1")
		a := parse(t, edit(orders))
		t.Setenv("STREAMDP_TEST_PATH", "hush2")
		b := parse(t, edit(orders))
		of := func(c *Config) *Stream { return append(c.Streams, c.Patterns...)[0] }
		list := of(a).Differences(of(b))
		if len(list) != 1 || !strings.HasSuffix(list[0].String(), ": changed") {
			t.Errorf("%s: %v", name, list)
		}
		if text := fmt.Sprint(of(a).Changes(of(b).Canonical(0), 0)); strings.Contains(text, "hush") ||
			name == "a column" && !strings.Contains(text, "input.column.a.b.path: changed") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
