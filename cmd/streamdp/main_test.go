package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"streamdp/internal/cases"
	"streamdp/internal/kafka"
	"streamdp/internal/kafka/embedded"
	"streamdp/stream"
)

var update = flag.Bool("update", false, "write golden files anew")

// asProgram makes a test binary the program that it tests: exit codes, signals
// and locks are those of a real process.
const asProgram = "STREAMDP_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	flag.Parse()
	os.Exit(m.Run())
}

// program returns a command that runs streamdp.
func program(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), asProgram+"=1")
	return c
}

// patience is how long a program may run, on a machine with more to do: beyond it, it
// hangs.
const patience = 5 * time.Minute

// call runs the program to its end.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := program(ctx, args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String(), errs.String()
}

// want runs the program and fails unless it ends with the code and its standard
// error holds the text.
func want(t *testing.T, code int, text string, args ...string) (stdout string) {
	t.Helper()
	got, out, errs := call(t, args...)
	if got != code || !strings.Contains(errs, text) {
		t.Errorf("streamdp %s: exit code %d, want %d\nstandard error %q\nmust hold %q", strings.Join(args, " "), got, code, errs, text)
	}
	return out
}

// site is a broker, a configuration file and a key.
type site struct {
	t      *testing.T
	broker *embedded.Broker
	dir    string
	config string
}

const siteConfig = `[kafka]
brokers = [%q]
[state]
dir = %q
key_file = %q
commit_interval = "10ms"
[http]
listen = "127.0.0.1:0"
[log]
format = "text"
[stream.orders]
input  = { topic = "orders", columns = ["amount", "items"] }
output = { topic = "orders.dp" }
step   = 10
%s
[stream.orders.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = %s
[stream.orders.moments]
clip = 1.0
`

func newSite(t *testing.T) *site {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s := &site{t: t, broker: b, dir: t.TempDir()}
	s.config = filepath.Join(s.dir, "streamdp.toml")
	s.write("", "1.0")
	want(t, exitDone, "", "keygen", filepath.Join(s.dir, "key"))
	return s
}

// write writes the configuration with further keys of the stream and a limit.
func (s *site) write(extra, limit string) {
	s.t.Helper()
	text := fmt.Sprintf(siteConfig, s.broker.Addr(), filepath.Join(s.dir, "state"), filepath.Join(s.dir, "key"), extra, limit)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) feed(rows int) {
	s.t.Helper()
	var b strings.Builder
	b.WriteString("amount,items\n")
	for i := range rows {
		fmt.Fprintf(&b, "0.%d,0.%d\n", i%10, i%7)
	}
	file := filepath.Join(s.dir, "rows.csv")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	want(s.t, exitDone, fmt.Sprintf("%d records sent", rows), "feed", "-c", s.config, "--stream", "orders", "--csv", file)
}

// start starts the daemon and waits until it serves; stop ends it by a signal.
func (s *site) start() *daemon {
	s.t.Helper()
	c := program(context.Background(), "run", "-c", s.config, "--log-format", "json")
	errs, err := c.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	d := &daemon{t: s.t, cmd: c, log: new(bytes.Buffer), read: make(chan struct{})}
	s.t.Cleanup(func() { c.Process.Kill() })
	address := make(chan string, 1)
	go func() {
		defer close(d.read)
		dec := json.NewDecoder(io.TeeReader(errs, d.log))
		for {
			var line struct{ Msg, Address string }
			if dec.Decode(&line) != nil {
				return
			}
			if line.Msg == "serving" {
				address <- line.Address
			}
		}
	}()
	select {
	case a := <-address:
		d.url = "http://" + a
	case <-time.After(20 * time.Second):
		s.t.Fatal("the daemon does not serve")
	}
	return d
}

type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	log  *bytes.Buffer
	read chan struct{}
}

func (d *daemon) stop(s os.Signal) int {
	d.t.Helper()
	d.cmd.Process.Signal(s)
	<-d.read
	d.cmd.Wait()
	return d.cmd.ProcessState.ExitCode()
}

// until waits for a status that the condition accepts.
func (d *daemon) until(what string, ok func(stream.TaskStatus) bool) stream.TaskStatus {
	d.t.Helper()
	var last stream.TaskStatus
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		res, err := http.Get(d.url + "/api/v1/status")
		if err != nil {
			continue
		}
		var answer struct {
			Data struct{ Tasks []stream.TaskStatus }
		}
		err = json.NewDecoder(res.Body).Decode(&answer)
		res.Body.Close()
		if err == nil && len(answer.Data.Tasks) > 0 {
			if last = answer.Data.Tasks[0]; ok(last) {
				return last
			}
		}
	}
	d.t.Fatalf("never %s: %+v", what, last)
	return last
}

func released(step uint64) func(stream.TaskStatus) bool {
	return func(s stream.TaskStatus) bool { return s.Step >= step && s.Outbox == 0 }
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"frobnicate", exitUsage, "streamdp has no command \"frobnicate\"\nstreamdp --help lists commands and flags\n"},
		{"run", exitUsage, "a configuration is needed: -c FILE"},
		{"run --config.file x", exitUsage, "the flag is --config, or -c"},
		{"run --nope", exitUsage, "unknown flag: --nope"},
		{"run x -c y", exitUsage, "streamdp: run takes no argument \"x\"\nstreamdp run --help lists its flags\n"},
		{"epoch lst", exitUsage, "streamdp: epoch has no command \"lst\"\n"},
		{"epoch open -c x", exitUsage, "streamdp: epoch open needs STREAM\n"},
		{"completion nosh", exitUsage, "streamdp: completion has no command \"nosh\"\n"},
		{"completion bash x", exitUsage, "takes no argument \"x\"\n"},
		{"run -c /nonexistent/file", exitConfig, "no such file"},
		{"keygen", exitUsage, "streamdp: keygen needs FILE"},
		{"keygen /nonexistent/dir/key", exitFailure, "make its folder first: mkdir -p -m 700 /nonexistent/dir"},
		{"demo --clip x", exitUsage, "invalid argument"},
		{"demo --once --csv x", exitUsage, "--clip is needed"},
		{"demo --once --adjacency add-remove", exitUsage, "must be \"zero-out\" or \"replace\""},
		{"demo --once --epsilon -1", exitUsage, "streamdp: --epsilon: must be positive (-1)\nstreamdp"},
		{"demo --once --epsilon 1e9", exitUsage, "too small for a clip bound"},
		{"demo --once --scale 3", exitUsage, "--scale goes with --csv"},
		{"feed --csv x", exitUsage, "--brokers and --topic are needed"},
		{"feed", exitUsage, "give either --csv FILE or --ndjson FILE"},
		{"feed --csv x --codec avro --brokers a:1 --topic t", exitUsage, "--codec is \"avro\""},
		{"plan -c ../../examples/orders.toml --steps 0", exitUsage, "must be a positive number"},
		{"plan -c ../../examples/orders.toml --stream nope", exitUsage, "no stream nope"},
		{"audit", exitUsage, "a configuration is needed: -c FILE"},
		{"audit x -c ../../examples/orders.toml", exitUsage, "takes no argument"},
		{"audit --slow", exitUsage, "unknown flag: --slow"},
		{"epoch open nope -c ../../examples/orders.toml", exitUsage, "no stream nope"},
		{"status --url http://127.0.0.1:1", exitFailure, "no daemon answers"},
		{"status --url 127.0.0.1:1", exitFailure, "no daemon answers"},
		{"version --log-level", exitUsage, "flag needs an argument"},
	} {
		want(t, c.code, c.text, strings.Fields(c.args)...)
	}
	if out := want(t, exitDone, "", "version"); !strings.HasPrefix(out, "streamdp ") {
		t.Errorf("version prints %q", out)
	}
	var v map[string]string
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "version", "--json")), &v); err != nil || v["version"] == "" {
		t.Errorf("version --json: %v, %v", v, err)
	}
	if out := want(t, exitDone, "", "completion", "bash"); !strings.Contains(out, "complete") {
		t.Error("completion prints no completion")
	}
	if out := want(t, exitDone, "", "--help"); !strings.Contains(out, "demo --once") {
		t.Error("the help does not begin with the demonstration")
	}
}

func TestFaultsOfAConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.toml")
	text := "[kafka]\nbrokers = []\n[stream.x]\ninput = { topic = \"a\", columns = [\"c\"] }\noutput = { topic = \"a\" }\n" +
		"step = 0\n[stream.x.privacy]\nepsilon = nan\ndelta = 2.0\nadjacency = \"add-remove\"\n[stream.x.moments]\nclib = 1.0\nfactorization = \"dense\"\n[http]\npprof = true\n"
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
		file + ":15: http.pprof: not in this version (true)",
	} {
		if !strings.Contains(errs, line) {
			t.Errorf("missing %q in\n%s", line, errs)
		}
	}
	want(t, exitConfig, "", "check", "-c", file)
}

func TestKeyFiles(t *testing.T) {
	s := newSite(t)
	key := filepath.Join(s.dir, "key")
	want(t, exitFailure, "file exists: a key is never overwritten", "keygen", key)
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
		{0o644, "", "must not be open to others"},
		{0o640, "", "must not be readable for its group"},
		{0o600, "abc", "must hold 64 hexadecimal digits"},
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
	want(t, exitConfig, "no such file or directory: streamdp keygen writes one", "run", "-c", s.config)
	want(t, exitDone, "", "keygen", key)
	s.write(fmt.Sprintf("\n[kafka.sasl]\nmechanism = \"plain\"\nusername = \"u\"\npassword_file = %q\n", filepath.Join(s.dir, "password")), "3")
	for _, args := range []string{"run", "check", "feed --stream orders --csv /dev/null"} {
		want(t, exitConfig, "password file: open", append(strings.Fields(args), "-c", s.config)...)
	}
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
	var tasks struct{ Tasks []stream.TaskStatus }
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "status", "--json", "--url", d.url)), &tasks); err != nil || len(tasks.Tasks) != 1 {
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
	// The log says where a restart goes on, and that the end was one.
	for _, line := range []string{`"msg":"task running","task":"orders-0","epoch":1,"step":3,"next_offset":30,`, `"msg":"stopped"`} {
		if !strings.Contains(d.log.String(), line) {
			t.Errorf("the log lacks %s:\n%s", line, d.log)
		}
	}
	if n := len(s.releases()); n != 4 {
		t.Errorf("%d releases, want 4", n)
	}
}

// releases returns the keys in the output topic.
func (s *site) releases() []string {
	s.t.Helper()
	c, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	var found []string
	if err := c.ReadBack(context.Background(), "orders.dp", 0, 0, func(r *kafka.Record) error {
		if !slices.Contains(found, string(r.Key)) {
			found = append(found, string(r.Key))
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return found
}

// TestEpochs walks an operator's way out of every refusal: a changed
// configuration, a spent budget, a closed epoch.
func TestEpochs(t *testing.T) {
	s := newSite(t)
	// An empty ledger is said to be one, with its directory: it may be a wrong one.
	want(t, exitDone, "state has no epochs", "epoch", "list", "-c", s.config)
	want(t, exitDone, "state charges nothing\n", "ledger", "-c", s.config)
	want(t, exitDone, "charges nothing for stream orders", "ledger", "-c", s.config, "--stream", "orders")
	want(t, exitUsage, "neither the configuration nor the ledger has a stream nope", "ledger", "-c", s.config, "--stream", "nope")

	s.feed(25)
	d := s.start()
	d.until("two steps", released(2))
	// What can't open is refused before the open epoch is given up for it, by
	// the running daemon and without one.
	refused := func(closed, code int, text string, args ...string) {
		t.Helper()
		want(t, code, text, append([]string{"epoch", "open", "orders", "-c", s.config, "--yes"}, args...)...)
		if out := want(t, exitDone, "", "epoch", "list", "-c", s.config); strings.Count(out, "closed") != closed {
			t.Errorf("epochs after a refusal:\n%s", out)
		}
	}
	impossible := func() {
		t.Helper()
		refused(0, exitNothing, "budget of orders/0 spent", "--from", "earliest")
		refused(0, exitFailure, "start offset 9999 is not in the log of orders/0, which holds 0 to 25", "--from", "9999")
	}
	impossible()
	d.stop(syscall.SIGTERM)
	impossible()
	refused(0, exitUsage, "--from is \"sometime\", must be continue, earliest, latest or an offset", "--from", "sometime")
	refused(0, exitUsage, "stream orders does not read partition 3", "--partition", "3")

	d = s.start()
	d.until("running", func(s stream.TaskStatus) bool { return s.State == "running" })
	// While the daemon runs, commands go through its socket.
	said := func(text string, args ...string) {
		t.Helper()
		if out := want(t, exitDone, "", append([]string{"epoch"}, append(args, "orders", "-c", s.config, "--yes")...)...); !strings.Contains(out, text) {
			t.Errorf("epoch %v says %q, not %q", args, out, text)
		}
	}
	said("epoch 1 of orders-0 is closed; it is charged for offsets [0, 20) of orders/0\nrecords have paid at most 1 so far; the limit is 1\n", "close")
	<-d.read // nothing is left to run, and the daemon ends
	d.cmd.Wait()
	if code := d.cmd.ProcessState.ExitCode(); code != exitDone {
		t.Errorf("after closing: exit code %d\n%s", code, d.log)
	}
	want(t, exitNothing, "nothing to run: every epoch is closed or at its horizon; streamdp epoch open STREAM opens another\n", "run", "-c", s.config)

	// A new epoch where the old one ended: no record pays twice.
	said("epoch 2 of orders-0 is open from offset 20 of orders/0\n", "open")
	d = s.start()
	if st := d.until("running", func(s stream.TaskStatus) bool { return s.State == "running" }); st.Epoch != 2 || st.Base != 20 || st.ChargedEpsilon > 1.0000001 {
		t.Errorf("second epoch: %+v", st)
	}
	// From the beginning: over the limit.
	refused(1, exitNothing, "budget of orders/0 spent", "--from", "earliest")
	d.stop(syscall.SIGTERM)
	refused(1, exitNothing, "budget of orders/0 spent", "--from", "earliest")
	s.write("", "2.5")
	said(`"epoch":3,"state":"open"`, "open", "--from", "earliest", "--json")

	// A changed guarantee is refused with the difference.
	s.write("lattice_bits = 26", "2.5")
	want(t, exitState, "lattice_bits: 24 → 26", "run", "-c", s.config)
	want(t, exitDone, "", "epoch", "open", "orders", "-c", s.config, "--yes")
	out := want(t, exitDone, "", "epoch", "list", "-c", s.config)
	if strings.Count(out, "closed") != 3 && strings.Count(out, " open ") != 1 {
		t.Errorf("epochs:\n%s", out)
	}
	var epochs []stream.EpochInfo
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "epoch", "list", "--json", "-c", s.config)), &epochs); err != nil || len(epochs) < 4 {
		t.Errorf("epoch list --json: %+v, %v", epochs, err)
	}
	text := want(t, exitDone, "", "ledger", "-c", s.config, "--records", "3")
	for _, w := range []string{"orders/0 of cluster", "PERSON WITH 3", "[0, 20)", "orders-0 epoch 1 (1)", ", open)", "the limit is 2.5"} {
		if !strings.Contains(text, w) {
			t.Errorf("ledger does not say %q:\n%s", w, text)
		}
	}
	var spent []stream.Spent
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "ledger", "--json", "-c", s.config, "--stream", "orders")), &spent); err != nil || len(spent) != 1 || len(spent[0].Ranges) < 2 {
		t.Errorf("ledger --json: %+v, %v", spent, err)
	}
	want(t, exitUsage, "must be at least 1", "ledger", "-c", s.config, "--records", "0")
	want(t, exitDone, "", "epoch", "close", "orders", "-c", s.config, "--yes")
	want(t, exitFailure, "no open epoch", "epoch", "close", "orders", "-c", s.config, "--yes")

	// Without --yes it asks, and no answer is a no.
	want(t, exitFailure, "not done", "epoch", "open", "orders", "-c", s.config)
}

func TestPlan(t *testing.T) {
	file := filepath.Join(cases.Root(t), "examples", "orders.toml")
	got := want(t, exitDone, "", "plan", "-c", file)
	golden := filepath.Join("testdata", "plan.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(text) {
		t.Errorf("plan prints\n%s\nwant\n%s", got, text)
	}
	var plans []struct {
		Mu             float64
		Steps          []uint64
		Factorizations []struct {
			Factorization string
			Errors        []map[string]float64 `json:"standard_errors"`
		}
	}
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", file)), &plans); err != nil {
		t.Fatal(err)
	}
	if len(plans) != 1 || len(plans[0].Factorizations) != 4 || len(plans[0].Steps) != 5 {
		t.Errorf("plan --json: %+v", plans)
	}
}

// TestPlanWithHorizon: the last step is what a horizon is for, and steps after it
// have no noise to show.
func TestPlanWithHorizon(t *testing.T) {
	s := newSite(t)
	s.write("horizon = 50", "1.0")
	var plans []struct{ Steps []uint64 }
	if err := json.Unmarshal([]byte(want(t, exitDone, "", "plan", "--json", "-c", s.config)), &plans); err != nil {
		t.Fatal(err)
	}
	if len(plans) != 1 || !slices.Equal(plans[0].Steps, []uint64{1, 10, 50}) {
		t.Errorf("plan shows %+v", plans)
	}
	want(t, exitUsage, "--steps has no step of stream orders, which ends with step 50", "plan", "-c", s.config, "--steps", "100")
}

// TestCheckReportsAll: what is wrong with the key hides nothing of the streams.
func TestCheckReportsAll(t *testing.T) {
	s := newSite(t)
	if err := os.Remove(filepath.Join(s.dir, "key")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config, []byte(strings.Replace(string(text), "clip = 1.0", "clip = 1e300", 1)), 0o600); err != nil {
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
	if !strings.Contains(out, "zero-out") || strings.Count(errs, "warning") != 1 {
		t.Errorf("check --connect: %s%s", out, errs)
	}
	s.broker.Close()
	want(t, exitFailure, "streamdp: broker "+s.broker.Addr()+": kafka connect: dial tcp "+s.broker.Addr()+": ", "check", "--connect", "-c", s.config)
}

func TestFeed(t *testing.T) {
	s := newSite(t)
	values := func() []string {
		t.Helper()
		c, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var found []string
		if err := c.ReadBack(context.Background(), "orders", 0, 0, func(r *kafka.Record) error {
			found = append(found, string(r.Value))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	file := func(name, text string) string {
		path := filepath.Join(s.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	to := []string{"feed", "--brokers", s.broker.Addr(), "--topic", "orders"}
	feed := func(args ...string) {
		t.Helper()
		want(t, exitDone, "records sent", append(slices.Clone(to), args...)...)
	}
	feed("--csv", file("a.csv", "x,y,b.c\n1,2.5,3\nword,,4\n"))
	feed("--csv", file("b.csv", "1,+2\n.5,3\n"), "--columns", "2,1")
	feed("--ndjson", file("c.ndjson", "{\"x\":1}\n\n[2]\n"))
	feed("--csv", file("d.csv", "7,8\n"), "--codec", "json-array")
	feed("--csv", file("e.csv", "7,\"8,9\"\n"), "--codec", "csv", "--header", "no")
	got := values()
	expected := []string{
		`{"x":1,"y":2.5,"b":{"c":3}}`, `{"x":"word","y":null,"b":{"c":4}}`,
		`{"c2":2,"c1":1}`, `{"c2":3,"c1":0.5}`,
		`{"x":1}`, `[2]`, `[7,8]`, `7,"8,9"`,
	}
	if !slices.Equal(got, expected) {
		t.Errorf("fed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(expected, "\n"))
	}
	want(t, exitFailure, "no partition", append(slices.Clone(to), "--partition", "7", "--csv", file("f.csv", "1,2\n"))...)
	want(t, exitUsage, "no column", append(slices.Clone(to), "--columns", "zzz", "--csv", file("g.csv", "x,y\n1,2\n"))...)
	// A line of numbers is no header, and no error shows it.
	want(t, exitUsage, "no column \"zzz\" among c1, c2\n", append(slices.Clone(to), "--columns", "zzz", "--csv", file("h.csv", "1.5,2\n"))...)
	want(t, exitUsage, "no column \"zzz\" among c1, c2\n", append(slices.Clone(to), "--columns", "zzz", "--csv", file("h2.csv", "1.5,word\n"))...)
	want(t, exitUsage, "--rate is -1", append(slices.Clone(to), "--rate", "-1", "--csv", file("i.csv", "1,2\n"))...)
	nowhere := []string{"feed", "--brokers", s.broker.Addr(), "--topic", "nowhere"}
	want(t, exitFailure, "topic nowhere does not exist: create it first, or give --create\n", append(slices.Clone(nowhere), "--csv", file("j.csv", "1,2\n"))...)
	// Created even for a file without rows, and once.
	want(t, exitDone, "0 records sent to nowhere/1", append(slices.Clone(nowhere), "--create", "--partition", "1", "--csv", file("j2.csv", "x,y\n"))...)
	for _, partition := range []string{"0", "1"} {
		want(t, exitDone, "1 records sent to nowhere/"+partition, append(slices.Clone(nowhere), "--create", "--partition", partition, "--csv", file("j3.csv", "1,2\n"))...)
	}
	want(t, exitUsage, "the configuration has no stream order, only orders\n", "feed", "-c", s.config, "--stream", "order", "--csv", file("j4.csv", "1,2\n"))

	// What the stream says holds, and what contradicts it is refused.
	stream := []string{"feed", "-c", s.config, "--stream", "orders"}
	want(t, exitUsage, "does not read partition 7", append(slices.Clone(stream), "--partition", "7", "--csv", file("k.csv", "1,2\n"))...)
	want(t, exitUsage, "--topic is what --stream takes", append(slices.Clone(stream), "--topic", "x", "--csv", file("l.csv", "1,2\n"))...)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	array := strings.Replace(string(text), "topic = \"orders\", columns", "topic = \"orders\", codec = \"json-array\", columns", 1)
	if err := os.WriteFile(s.config, []byte(array), 0o600); err != nil {
		t.Fatal(err)
	}
	n := len(values())
	want(t, exitDone, "1 records sent", append(slices.Clone(stream), "--csv", file("m.csv", "id,items,amount\n1,2,3\n"))...)
	want(t, exitDone, "1 records sent", append(slices.Clone(stream), "--csv", file("n.csv", "4,5\n"))...)
	want(t, exitDone, "1 records sent", append(slices.Clone(stream), "--columns", "id,items", "--csv", file("o.csv", "id,items,amount\n1,2,3\n"))...)
	if got := values()[n:]; !slices.Equal(got, []string{"[3,2]", "[4,5]", "[1,2]"}) {
		t.Errorf("fed to columns amount, items: %s", got)
	}
	want(t, exitUsage, "has 3 columns, the stream has 2 (amount, items)", append(slices.Clone(stream), "--csv", file("p.csv", "1,2,3\n"))...)
}
