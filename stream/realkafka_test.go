package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// endToEnd reads transactional input with restarts and an outage of the broker,
// which calls away while it is away, and a second time from scratch without
// either.
func endToEnd(t *testing.T, addrs []string, outage func(away func())) {
	s := newSite(t, addrs, kafkatest.Topic(t, addrs, nil))
	w := newTraffic(t, addrs, s.in)
	w.write(1230)
	w.settle(s)
	first := uint64(w.slots / 100)
	d := s.run()
	d.published(first)
	d.end()

	d = s.run()
	for range 10 {
		w.write(40)
		time.Sleep(10 * time.Millisecond)
	}
	if !w.open[0] {
		w.txns[0].Begin()
		w.open[0] = true
	}
	// Open during the outage, and then aborted.
	w.sent[0] = append(w.sent[0], w.send(w.txns[0], w.batch())...)
	d.wait("some more", func(s TaskStatus) bool { return s.Step > first })
	outage(func() {
		d.wait("trouble", func(s TaskStatus) bool { return s.State == stateRetrying })
		if code := d.ready(); code != http.StatusServiceUnavailable {
			t.Errorf("ready answers %d without a broker", code)
		}
	})
	d.wait("no trouble", func(s TaskStatus) bool { return s.State == stateRunning })
	if code := d.ready(); code != http.StatusOK {
		t.Errorf("ready answers %d with a broker", code)
	}
	w.finish(0, false)
	w.write(500)
	w.settle(s)
	d.published(uint64(w.slots / 100))
	d.end()

	w.write(700) // written while no daemon runs
	w.settle(s)
	s.fetch = 3000
	d = s.run()
	d.published(uint64(w.slots / 100))
	d.end()
	got := s.output()
	w.expect(got)
	t.Logf("%d slots, %d committed and %d aborted records, %d releases", w.slots, len(w.committed), w.aborted, len(got))

	settings, err := s.client.TopicConfig(t.Context(), s.out, "cleanup.policy")
	if err != nil || settings["cleanup.policy"] != "compact" {
		t.Errorf("output topic: %v, %v", settings, err)
	}

	again := newSite(t, addrs, s.in)
	d = again.run()
	d.published(uint64(w.slots / 100))
	d.end()
	second := again.output()
	for key, p := range got {
		if !p.equal(second[key]) {
			t.Errorf("release %s the second time:\n%s\nthe first time:\n%s", key, second[key].value, p.value)
		}
	}
	if len(second) != len(got) {
		t.Errorf("%d releases the second time, %d the first", len(second), len(got))
	}
}

func TestTransactionsEndToEnd(t *testing.T) {
	o := embedded.Options{DataDir: t.TempDir()}
	b, err := embedded.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { b.Close() }()
	addrs := b.Addrs()
	fmt.Sscanf(b.Addr(), "127.0.0.1:%d", &o.Port)
	endToEnd(t, addrs, func(away func()) {
		b.Close()
		away()
		if b, err = embedded.Start(o); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRealKafkaEndToEnd(t *testing.T) {
	b := kafkatest.NewReal(t)
	endToEnd(t, b.Addrs, func(away func()) {
		b.Kill()
		away()
		b.Start()
	})
}

// The conditions of input and output in which a task stops.
func logHalts(t *testing.T, addrs []string) {
	// begin runs a daemon to step 5 of a topic.
	begin := func(t *testing.T, table string) (*site, *siteRun, *kafkatest.Producer) {
		t.Helper()
		s := newSite(t, addrs, kafkatest.Topic(t, addrs, nil))
		s.table = table
		p := kafkatest.NewProducer(t, addrs, s.in, 0, "")
		p.Send(orders(0, 550)...)
		d := s.run()
		d.published(5)
		return s, d, p
	}
	t.Run("gap", func(t *testing.T) {
		s, d, p := begin(t, "")
		d.end()
		p.Send(orders(550, 300)...)
		kafkatest.DeleteRecords(t, addrs, s.in, 0, 620)
		d = s.run()
		d.halts(haltGap)
		if code := d.ready(); code != http.StatusServiceUnavailable {
			t.Errorf("ready answers %d when halted", code)
		}
		d.end()
		s.table = `on_gap = "null"`
		d = s.run()
		d.published(8)
		d.end()
		for key, rows := range map[string]string{"5": "100", "6": "0", "7": "80", "8": "100"} {
			if rel := s.output()["orders/0/1/"+key]; !strings.Contains(rel.value, `"rows":`+rows+`,`) {
				t.Errorf("rows of step %s, want %s: %.120s", key, rows, rel.value)
			}
		}
	})
	// remake makes the input topic again.
	remake := func(s *site, n int) {
		kafkatest.DeleteTopic(s.t, addrs, s.in)
		kafkatest.CreateTopic(s.t, addrs, s.in, nil)
		kafkatest.NewProducer(s.t, addrs, s.in, 0, "").Send(orders(1, n)...)
	}
	t.Run("made again, shorter", func(t *testing.T) {
		s, d, _ := begin(t, "")
		remake(s, 300)
		d.halts(haltReplaced)
		d.end()
		s.run().haltsAtStart(haltReplaced)
		if n := len(s.output()); n != 5 {
			t.Errorf("%d releases", n)
		}
	})
	t.Run("made again, longer", func(t *testing.T) {
		s, d, _ := begin(t, "")
		d.end() // while it runs it may see the new log when that is still short
		remake(s, 900)
		s.run().haltsAtStart(haltReplaced)
		if n := len(s.output()); n != 5 {
			t.Errorf("%d releases", n)
		}
	})
	t.Run("compacted", func(t *testing.T) {
		for _, policy := range []string{"compact", "compact,delete"} {
			s := newSite(t, addrs, kafkatest.Topic(t, addrs, map[string]string{"cleanup.policy": policy}))
			d := s.run()
			if <-d.done; !errors.Is(d.err, ErrHalted) || !strings.Contains(d.err.Error(), "is compacted") {
				t.Errorf("%s: %v", policy, d.err)
			}
		}
	})
	t.Run("too large", func(t *testing.T) {
		s := newSite(t, addrs, kafkatest.Topic(t, addrs, nil))
		kafkatest.CreateTopic(t, addrs, s.out, map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1000"})
		kafkatest.NewProducer(t, addrs, s.in, 0, "").Send(orders(0, 550)...)
		d := s.run()
		d.halts(haltTooLarge)
		d.end()
	})
	t.Run("output deleted", func(t *testing.T) {
		s, d, p := begin(t, "")
		kafkatest.DeleteTopic(t, addrs, s.out)
		p.Send(orders(550, 500)...)
		d.published(10)
		d.end()
		if got := s.output(); len(got) != 5 || got["orders/0/1/10"].value == "" {
			t.Errorf("%d releases in the new topic", len(got))
		}
	})
}

func orders(first, n int) []kafkatest.Record {
	rs := make([]kafkatest.Record, n)
	for i := range rs {
		rs[i].Value = orderRecord(first + i)
	}
	return rs
}

func TestLogHalts(t *testing.T) {
	b, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	logHalts(t, b.Addrs())
}

func TestRealKafkaLogHalts(t *testing.T) { logHalts(t, kafkatest.NewReal(t).Addrs) }

// The command itself: check, and a daemon that is killed again and again.
func TestRealKafkaCommand(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	bin := filepath.Join(t.TempDir(), "streamdp")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/streamdp/streamdp/cmd/streamdp").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// command returns one that reads the site's configuration.
	command := func(s *site, args ...string) (*exec.Cmd, *bytes.Buffer) {
		file := filepath.Join(s.dir, "streamdp.toml")
		if err := os.WriteFile(file, []byte(s.file()), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bin, append(args, "-c", file)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		return cmd, &stderr
	}
	keygen := func(s *site) {
		if out, err := exec.Command(bin, "keygen", filepath.Join(s.dir, "key")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}

	fine := newSite(t, addrs, kafkatest.Topic(t, addrs, nil))
	keygen(fine)
	compacted := *fine
	compacted.in = kafkatest.Topic(t, addrs, map[string]string{"cleanup.policy": "compact"})
	missing := *fine
	missing.in = "missing"
	small := *fine
	small.out = kafkatest.Topic(t, addrs, map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1000"})
	deletes := *fine
	deletes.out = kafkatest.Topic(t, addrs, nil)
	away := *fine
	away.addrs = []string{"127.0.0.1:1"}
	for name, test := range map[string]struct {
		s    *site
		code int
		text string // of standard error
	}{
		"fine":          {fine, 0, "no control topic"},
		"compacted":     {&compacted, 3, "is compacted"},
		"missing":       {&missing, 0, "does not exist yet"},
		"small output":  {&small, 3, "raise max.message.bytes"},
		"output ages":   {&deletes, 0, "deletes old releases"},
		"broker is not": {&away, 1, "connection refused"},
	} {
		cmd, stderr := command(test.s, "check", "--connect")
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != test.code || !strings.Contains(stderr.String(), test.text) {
			t.Errorf("check, %s: %v, %s", name, err, stderr)
		}
		if test.code == 0 && !strings.Contains(string(out), "epsilon") {
			t.Errorf("check, %s: no statement: %s", name, out)
		}
	}

	w := newTraffic(t, addrs, fine.in)
	w.write(300)
	fine.fetch = 0
	commits := 0
	for i := range 8 {
		cmd, stderr := command(fine, "run")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		for range 6 {
			w.write(60)
		}
		time.Sleep(time.Duration(30*i) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		if strings.Contains(stderr.String(), "level\":\"ERROR") {
			t.Fatal(stderr)
		}
		if _, err := os.Stat(filepath.Join(fine.dir, "state", "tasks", "orders-0", "checkpoint")); err == nil {
			commits++
		}
	}
	w.settle(fine)
	cmd, stderr := command(fine, "run")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	steps := int(w.slots / 100)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		// A kill between the charge of an epoch and its manifest voids the
		// epoch, and the next one takes its place.
		done := false
		for key := range fine.output() {
			done = done || strings.HasSuffix(key, fmt.Sprint("/", steps))
		}
		if done {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no release of step %d: %s", steps, stderr)
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v: %s", err, stderr)
	}
	w.expect(fine.output())
	t.Logf("%d releases, killed 8 times, %d of them with a checkpoint", steps, commits)
}

// brokerKills returns STREAMDP_BROKER_KILLS, or else n.
func brokerKills(t *testing.T, n int) int {
	if text := os.Getenv("STREAMDP_BROKER_KILLS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// TestRealKafkaKills kills the broker under load, three times or STREAMDP_BROKER_KILLS, and
// the daemon in every other outage. What comes out is what a daemon publishes that reads
// the same log in one go.
func TestRealKafkaKills(t *testing.T) {
	b := kafkatest.NewReal(t)
	kills := brokerKills(t, 3)
	s := newSite(t, b.Addrs, kafkatest.Topic(t, b.Addrs, nil))
	rng := rand.New(rand.NewPCG(33, 0))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	load.Go(func() {
		for n := 0; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
			list := make([]kafka.Message, 100)
			for i := range list {
				list[i] = kafka.Message{Value: orderRecord(n + i), Time: time.UnixMilli(1)}
			}
			// What is not acknowledged may be in the log, and is appended again: both
			// daemons read the same.
			sending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			if _, err := s.client.Produce(sending, s.in, 0, list); err == nil {
				n += len(list)
			}
			cancel()
		}
	})
	d := s.run()
	running := func(s TaskStatus) bool { return s.State == stateRunning }
	d.wait("it runs", running)
	for i := range kills {
		step := d.d.Status()[0].Step
		d.wait("a step", func(s TaskStatus) bool { return s.Step > step })
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond) // the moment of the kill, nothing waits for it
		b.Kill()
		if i%2 == 1 {
			d.wait("trouble", func(s TaskStatus) bool { return s.State == stateRetrying })
			d.stop()
			<-d.done
		}
		b.Start()
		if i%2 == 1 {
			d = s.run()
		}
		d.wait("it runs again", running)
	}
	stop()
	load.Wait()
	_, _, end, err := s.client.Offsets(t.Context(), s.in, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.published(uint64(end / 100))
	d.end()
	got := s.output()

	again := newSite(t, b.Addrs, s.in)
	d = again.run()
	d.published(uint64(end / 100))
	d.end()
	want := again.output()
	for key, p := range want {
		if !p.equal(got[key]) {
			t.Errorf("release %s:\n%s\nin one go:\n%s", key, got[key].value, p.value)
		}
	}
	if len(got) != len(want) || len(got) != int(end/100) {
		t.Errorf("%d releases, %d in one go, of %d steps", len(got), len(want), end/100)
	}
	t.Logf("%d kills of the broker, %d of the daemon's runs ended without it; %d offsets, %d releases", kills, kills/2, end, len(got))
}
