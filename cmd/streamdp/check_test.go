package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/tracetest"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/twmb/franz-go/pkg/kfake"
)

func TestFaultsOfAConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.toml")
	text := "[kafka]\nbrokers = []\n[stream.x]\ninput = { topic = \"a\", columns = [\"c\"] }\n" +
		"output = { topic = \"a\" }\n" +
		"step = 0\n[stream.x.privacy]\nepsilon = nan\ndelta = 2.0\nadjacency = \"add-remove\"\n[stream.x.moments]\n" +
		"clib = 1.0\nfactorization = \"dense\"\n[http]\npprof = true\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, errs := call(t, "check", "-c", file)
	for _, line := range []string{
		file + ":2: kafka.brokers: must name at least one broker",
		file + ":8: stream.x.privacy.epsilon: ",
		file + ":9: stream.x.privacy.delta: must be in (0, 1) (2.0)",
		file + ":10: stream.x.privacy.adjacency: must be \"zero-out\" or \"replace\" (\"add-remove\")",
		file + ":12: stream.x.moments.clib: unknown key (did you mean clip?)",
		file + ":13: stream.x.moments.factorization: \"dense\" needs the stream's horizon",
		file + ":15: http.pprof: unknown key (remove it: it has no effect in this version)",
	} {
		if !strings.Contains(errs, line) {
			t.Errorf("missing %q in\n%s", line, errs)
		}
	}
	want(t, exitConfig, "", "check", "-c", file)
}

// TestCheckReportsAll: a fault of the key file does not hide faults of streams.
func TestCheckReportsAll(t *testing.T) {
	s := newSite(t)
	if err := os.Remove(filepath.Join(s.dir, "key")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config, []byte(strings.Replace(string(text), "clip = 1.0", "clip = 1e300", 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, _, errs := call(t, "check", "-c", s.config)
	for _, fault := range []string{"no such file", "stream orders: lattice step"} {
		if !strings.Contains(errs, fault) {
			t.Errorf("check says %q, not %q", errs, fault)
		}
	}
	want(t, exitConfig, "", "check", "-c", s.config)
}

func TestCheckConnect(t *testing.T) {
	s := newSite(t)
	_, out, errs := call(t, "check", "--connect", "-c", s.config)
	if !strings.Contains(out, "zero-out") || strings.Count(errs, "warning") != 2 ||
		!strings.Contains(errs, "producers' timestamps decide when records of topic orders are deleted") {
		t.Errorf("check --connect: %s%s", out, errs)
	}
	s.broker.Close()
	want(t, exitFailure, "streamdp: broker "+s.broker.Addr()+": kafka connect: dial tcp "+s.broker.Addr()+": ", "check",
		"--connect", "-c", s.config)
}

// TestCheckConnectPassword: a wrong password is reported as such, with the table that configures it.
func TestCheckConnectPassword(t *testing.T) {
	s := newSite(t)
	b, err := embedded.Start(
		embedded.Options{Extra: []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "secret")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s.broker = b
	password := filepath.Join(s.dir, "password")
	if err := os.WriteFile(password, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.write(fmt.Sprintf("\n[kafka.sasl]\nmechanism = \"plain\"\nusername = \"u\"\npassword_file = %q\n", password), "3")
	code, _, errs := call(t, "check", "--connect", "-c", s.config)
	if code != exitFailure ||
		!strings.Contains(errs, "the brokers refuse the credentials in [kafka.sasl]: broker "+b.Addr()+": ") ||
		!strings.Contains(errs, "(error 58)") || strings.Contains(errs, "wrong") {
		t.Errorf("code %d: %s", code, errs)
	}
}

// TestCheckIsDocumented: every line that check prints, and every array of noise, is in the tables of
// docs/operations.md.
func TestCheckIsDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## What check prints\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := func(kind, name string) {
		if !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/operations.md has no %s %q", kind, name)
		}
	}
	examples, err := filepath.Glob(filepath.Join(cases.Root(t), "examples", "*.toml"))
	if err != nil || len(examples) < 5 {
		t.Fatalf("%v, %v", examples, err)
	}
	line := regexp.MustCompile(`(?m)^  (\S+(?: \S+)*)  +(\S.*)$`)
	for _, file := range examples {
		c, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range c.Streams {
			d, err := dryrun.Describe(s)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Divide(c, s); err != nil {
				t.Fatal(err)
			}
			for name := range d.Noise {
				named("array", name)
			}
			var out bytes.Buffer
			if err := plan.PrintGuarantee(&out, d, "configuration", "{}"); err != nil {
				t.Fatal(err)
			}
			found := line.FindAllStringSubmatch(out.String(), -1)
			if len(found) < 10 {
				t.Errorf("%s: check prints\n%s", file, out.String())
			}
			for _, m := range found {
				named("line", m[1])
			}
		}
	}
}

// TestCheckTraces: check reads the files of [trace], and with --connect asks the collector. A collector that does not
// answer is only a warning, because nothing depends on it.
func TestCheckTraces(t *testing.T) {
	s := newSite(t)
	c := tracetest.New(t)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	headers := filepath.Join(s.dir, "headers")
	table := fmt.Sprintf("\n[trace]\nendpoint = %q\nheaders_file = %q\n", c.Server.URL, headers)
	for path, text := range map[string]string{s.config: string(text) + table, headers: "X-Key: hunter2\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if said := want(t, exitDone, "", "check", "--connect", "-c", s.config); strings.Contains(said, "trace") {
		t.Error(said)
	}
	if path, header, _ := c.Last(); path != "/v1/traces" || header.Get("X-Key") != "hunter2" {
		t.Errorf("the collector was asked at %q with %v", path, header)
	}
	c.Status.Store(401)
	want(t, exitDone,
		"trace.endpoint: the collector answered 401 Unauthorized; until the collector accepts traces, the daemon "+
			"drops them",
		"check", "--connect", "-c", s.config)
	requests := c.Requests.Load()
	want(t, exitDone, "", "check", "-c", s.config)
	if c.Requests.Load() != requests {
		t.Error("check without --connect asks the collector")
	}
	if err := os.Chmod(headers, 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, exitConfig, "must not be accessible to others", "check", "-c", s.config)
}
