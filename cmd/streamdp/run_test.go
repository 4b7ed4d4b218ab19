package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

func TestKeyFiles(t *testing.T) {
	s := newSite(t)
	key := filepath.Join(s.dir, "key")
	want(t, exitFailure, "file exists: a key file is never overwritten", "keygen", key)
	info, err := os.Stat(key)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
	want(t, exitDone, "", "check", "-c", s.config)
	for _, c := range []struct {
		mode os.FileMode
		text string
		want string
	}{
		{0o644, "", "must not be accessible to others"},
		{0o640, "", "must not be readable for its group"},
		{0o600, "abc", "must contain 64 hexadecimal digits"},
		{0o600, strings.Repeat("0", 64), "must not be a key of zeros"},
	} {
		if c.text != "" {
			if err := os.WriteFile(key, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(key, c.mode); err != nil {
			t.Fatal(err)
		}
		want(t, exitConfig, c.want, "run", "-c", s.config)
		os.Chmod(key, 0o600)
	}
	os.Remove(key)
	want(t, exitConfig, "no such file or directory; create one with streamdp keygen", "run", "-c", s.config)
	want(t, exitDone, "", "keygen", key)
	s.write(
		fmt.Sprintf("\n[kafka.sasl]\nmechanism = \"plain\"\nusername = \"u\"\npassword_file = %q\n",
			filepath.Join(s.dir, "password")), "3")
	for _, args := range []string{"run", "check", "feed --stream orders --csv /dev/null"} {
		want(t, exitConfig, "password file: open", append(strings.Fields(args), "-c", s.config)...)
	}
}

// TestGuardedStatus: status reaches a listener with a certificate and a password, configured by file and by flags.
func TestGuardedStatus(t *testing.T) {
	s := newSite(t)
	pair := kafkatest.NewCertificate(t)
	file := func(name string, data []byte) string {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key, password, wrong := file("cert.pem", pair.Cert), file("key.pem", pair.Key),
		file("password", []byte("secret\n")), file("wrong", []byte("other\n"))
	other := file("other.pem", kafkatest.NewCertificate(t).Cert)
	s.write("", "1.0")
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	tables := fmt.Sprintf(
		"[http.tls]\ncert_file = %q\nkey_file = %q\n[http.basic_auth]\nusername = \"reader\"\npassword_file = %q\n",
		cert, key, password)
	guarded := strings.Replace(string(text), "[log]\n", tables+"[log]\n", 1)
	file("streamdp.toml", []byte(guarded))
	d := s.start()
	address := strings.TrimPrefix(d.url, "http://")
	file("streamdp.toml", []byte(strings.Replace(guarded, "127.0.0.1:0", address, 1)))

	flags := []string{"status", "--url", "https://" + address, "--ca-file", cert, "--user", "reader", "--password-file"}
	for _, args := range [][]string{{"status", "-c", s.config}, append(flags, password)} {
		if out := want(t, exitDone, "", args...); !strings.Contains(out, "orders-0") {
			t.Errorf("%q prints %q", args, out)
		}
	}
	want(t, exitFailure, "did not answer with a status, but with 401 Unauthorized: user and password are required",
		append(flags, wrong)...)
	want(t, exitFailure, "401 Unauthorized", flags[:5]...)
	want(t, exitFailure, "certificate", "status", "--url", "https://"+address)
	want(t, exitFailure, "certificate", "status", "--url", "https://"+address, "--ca-file", other)
	want(t, exitUsage, "give both --user and --password-file, or neither", "status", "--url", "https://"+address,
		"--user", "reader")
	want(t, exitConfig, "no such file", "status", "--url", "https://"+address, "--ca-file", cert+"x")
	file("cert.pem", kafkatest.NewCertificate(t).Cert)
	want(t, exitFailure, "the listener's certificate differs from", "status", "-c", s.config)
	if code := d.stop(syscall.SIGTERM); code != exitDone {
		t.Errorf("exit code %d\n%s", code, d.log)
	}
	want(t, exitConfig, "http.tls: certificate", "check", "-c", s.config)
}

func TestRun(t *testing.T) {
	s := newSite(t)
	s.feed(35)
	d := s.start()
	d.until("three steps", released(3))
	want(t, exitState, "in use by another process", "run", "-c", s.config)
	if limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", d.cmd.Process.Pid)); err == nil &&
		!slices.ContainsFunc(strings.Split(string(limits), "\n"), func(line string) bool {
			return slices.Equal(strings.Fields(line), strings.Fields("Max core file size 0 0 bytes"))
		}) {
		t.Errorf("core dumps are not off:\n%s", limits)
	}

	out := want(t, exitDone, "", "status", "--url", d.url)
	if !strings.Contains(out, "orders-0") || !strings.Contains(out, "running") {
		t.Errorf("status prints %q", out)
	}
	var tasks struct{ Tasks []monitor.TaskStatus }
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "status", "--json", "--url", d.url)), &tasks); err != nil ||
		len(tasks.Tasks) != 1 {
		t.Errorf("status --json: %+v, %v", tasks, err)
	}
	if code := d.stop(syscall.SIGTERM); code != exitDone {
		t.Errorf("SIGTERM: exit code %d\n%s", code, d.log)
	}
	s.feed(10)
	d = s.start()
	d.until("four steps", released(4))
	if code := d.stop(syscall.SIGINT); code != exitDone {
		t.Errorf("SIGINT: exit code %d\n%s", code, d.log)
	}
	// The log says where the restart continues, and that the daemon stopped regularly.
	for _, line := range []string{`"msg":"task running","task":"orders-0","epoch":1,"step":3,"next_offset":30,`,
		`"msg":"stopped"`} {
		if !strings.Contains(d.log.String(), line) {
			t.Errorf("the log lacks %s:\n%s", line, d.log)
		}
	}
	if n := len(s.releases()); n != 4 {
		t.Errorf("%d releases, want 4", n)
	}
}

// TestHangup: SIGHUP does not end the daemon. The daemon reads its configuration again and logs the result.
func TestHangup(t *testing.T) {
	s := newSite(t)
	s.feed(25)
	d := s.start()
	d.until("two steps", released(2))
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, metric string }{
		{strings.Replace(string(text), "[log]", "[lag]", 1), "streamdp_config_last_load_successful 0\n"},
		{string(text) + "[stream.orders.dead_letter]\nmode = \"reference\"\ntopic = \"rejected\"\n",
			"streamdp_config_last_load_successful 1\n"},
	} {
		if err := os.WriteFile(s.config, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		d.cmd.Process.Signal(syscall.SIGHUP)
		d.shows(c.metric)
	}
	s.feed(20)
	d.until("four steps", released(4))
	if code := d.stop(syscall.SIGTERM); code != exitDone ||
		!strings.Contains(d.log.String(), "lag: unknown key (did you mean log?)") ||
		!strings.Contains(d.log.String(), `"changed":["orders"]`) {
		t.Errorf("exit code %d\n%s", code, d.log)
	}
}

// TestReloadCommand: reload prints the differences and their effect.
func TestReloadCommand(t *testing.T) {
	s := newSite(t)
	want(t, exitFailure, "no daemon runs on", "reload", "-c", s.config)
	s.feed(25)
	d := s.start()
	d.until("two steps", released(2))
	prints := func(code int, wants, errs string, args ...string) {
		t.Helper()
		if out := want(t, code, errs, append([]string{"reload", "-c", s.config}, args...)...); out != wants {
			t.Errorf("%q prints\n%s\nwant\n%s", args, out, wants)
		}
	}
	prints(exitDone, "no differences\n", "")
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, stream, _ := strings.Cut(string(text), "[stream.orders]")
	sales := "[stream.orders]" + stream
	sales = strings.ReplaceAll(strings.ReplaceAll(sales, "stream.orders", "stream.sales"), `"orders`, `"sales`)
	moved := strings.Replace(string(text), `"orders.dp"`, `"orders.dp", create = false`, 1)
	write(moved + sales)
	difference := "added sales\nchanged orders\n  output.create: true → false\n"
	prints(exitDone, difference+"nothing was changed\n", "", "--dry-run")
	prints(exitDone,
		difference+
			"without an open epoch: sales-0; open one with streamdp epoch open STREAM, or all with streamdp reload "+
			"--open\n", "")
	prints(exitDone, "no differences\nopening and charging the next epochs of: sales-0\n", "", "--open")
	prints(exitDone, "no differences\n", "", "--open")
	write(strings.Replace(string(text), "step   = 10", "step = 20", 1))
	want(t, exitConfig,
		"stream orders: step: 10 → 20: the guarantee of the open epoch 1 of task orders-0 depends on this key: close "+
			"the epoch first: streamdp epoch close orders", "reload", "-c", s.config)
	write(strings.Replace(string(text), "[http]", "[kafka.tls]\n[http]", 1))
	prints(exitConfig,
		"removed sales\nchanged orders\n  output.create: false → true\nchanged keys outside of streams:\n"+
			"  kafka.tls: absent → present\n"+
			"  kafka.tls.ca_file: changed\n  kafka.tls.cert_file: changed\n  kafka.tls.key_file: changed\n",
		"nothing was changed: kafka.tls: absent → present: it takes effect only at a restart of the process")
	write(strings.Replace(string(text), "[log]", "[lag]", 1))
	want(t, exitConfig, "lag: unknown key", "reload", "-c", s.config)
	write(string(text))
	if out := want(t, exitDone, "", "reload", "-c", s.config, "--json"); !strings.Contains(out, `"removed":["sales"]`) {
		t.Error(out)
	}
	s.feed(20)
	d.until("four steps", released(4))
	if code := d.stop(syscall.SIGTERM); code != exitDone {
		t.Errorf("exit code %d\n%s", code, d.log)
	}
}

// TestStatusVerdicts: status explains a release's verdict on bounds that a warm-up found, unless the verdict is good.
// It also repeats warnings.
func TestStatusVerdicts(t *testing.T) {
	t.Parallel()
	for verdict, words := range map[string]string{"": "", "ok": "", "partial": "frozen", "stale": "no longer " +
		"fit", "biased": "se_with_clipping", "fail": "needs"} {
		var out bytes.Buffer
		if err := printStatus(&globals{stdout: &out}, []monitor.TaskStatus{{Stream: "orders", Verdict: verdict}},
			nil); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out.String(), "\norders-0: bounds "+verdict+": "); got != (words != "") ||
			!strings.Contains(out.String(), words) {
			t.Errorf("verdict %q: %s", verdict, out.String())
		}
	}
	epsilon := 0.1234
	for _, c := range []struct {
		s    monitor.TaskStatus
		want string
	}{
		{monitor.TaskStatus{Stream: "orders", Unit: "record"}, ""},
		{monitor.TaskStatus{Stream: "orders", Unit: "person"},
			"\norders-0: epsilon and limit are for all records of a person\n"},
		{monitor.TaskStatus{Stream: "orders", Unit: "person",
			Person: &core.Protected{Key: "record-key", Cap: 12, Separation: 720, PerStep: 1, Population: "shop",
				EpsilonRecord: &epsilon}},
			"\norders-0: epsilon, charged and limit are for a person (record-key, population shop), who counts " +
				"in at most 12 steps, at least 720 apart, with at most 1 records in each; one record pays at most " +
				"epsilon 0.1234\n"},
	} {
		var out bytes.Buffer
		if err := printStatus(&globals{stdout: &out}, []monitor.TaskStatus{c.s}, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), c.want) || strings.Contains(out.String(), "person") != (c.want != "") {
			t.Errorf("%+v: %s", c.s, out.String())
		}
	}
	var out bytes.Buffer
	if err := printStatus(&globals{stdout: &out},
		[]monitor.TaskStatus{{Stream: "orders", Warnings: []string{"few records"}}}, nil); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\norders-0: warning: few records\n") {
		t.Errorf("a warning: %s", out.String())
	}
}

// TestClusterRefused: commands for a state directory refuse a configuration with [cluster].
func TestClusterRefused(t *testing.T) {
	s := newSite(t)
	s.write("\n[cluster]\ngroup = \"g\"\n", "3")
	want(t, exitDone, "", "check", "-c", s.config)
	for _, args := range []string{"epoch export orders", "ledger repair", "recover", "republish", "verify"} {
		want(t, exitConfig, "not possible with [cluster]", append(strings.Fields(args), "-c", s.config)...)
	}
}
