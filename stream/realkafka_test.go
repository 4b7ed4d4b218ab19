package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
)

// endToEnd reads transactional input, with restarts and an outage of the broker. The function outage makes the outage,
// and calls away while the broker is down. endToEnd then reads the input a second time from scratch, without restarts
// and outage.
func endToEnd(t *testing.T, addrs []string, outage func(away func())) {
	s := streamtest.NewSite(t, addrs, kafkatest.Topic(t, addrs, nil))
	w := streamtest.NewTraffic(t, addrs, s.In)
	w.Write(1230)
	w.Settle(s)
	first := uint64(w.Slots / 100)
	d := s.Run()
	d.Published(first)
	d.End()

	d = s.Run()
	for range 10 {
		w.Write(40)
		time.Sleep(10 * time.Millisecond)
	}
	if !w.Open[0] {
		w.Txns[0].Begin()
		w.Open[0] = true
	}
	// This transaction is open during the outage, and aborted after it.
	w.Sent[0] = append(w.Sent[0], w.Send(w.Txns[0], w.Batch())...)
	d.Wait("some more", func(s monitor.TaskStatus) bool { return s.Step > first })
	outage(func() {
		d.Wait("trouble", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
		if code := d.Ready(); code != http.StatusServiceUnavailable {
			t.Errorf("ready answers %d without a broker", code)
		}
	})
	d.Wait("no trouble", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	if code := d.Ready(); code != http.StatusOK {
		t.Errorf("ready answers %d with a broker", code)
	}
	w.Finish(0, false)
	w.Write(500)
	w.Settle(s)
	d.Published(uint64(w.Slots / 100))
	d.End()

	w.Write(700) // written while no daemon runs
	w.Settle(s)
	s.Fetch = 3000
	d = s.Run()
	d.Published(uint64(w.Slots / 100))
	d.End()
	got := s.Output()
	w.Expect(got)
	t.Logf("%d slots, %d committed and %d aborted records, %d releases", w.Slots, len(w.Committed), w.Aborted, len(got))

	settings, err := s.Client.TopicConfig(t.Context(), s.Out, "cleanup.policy")
	if err != nil || settings["cleanup.policy"] != "compact" {
		t.Errorf("output topic: %v, %v", settings, err)
	}

	again := streamtest.NewSite(t, addrs, s.In)
	d = again.Run()
	d.Published(uint64(w.Slots / 100))
	d.End()
	second := again.Output()
	for key, p := range got {
		if !p.Equal(second[key]) {
			t.Errorf("release %s the second time:\n%s\nthe first time:\n%s", key, second[key].Value, p.Value)
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

// logHalts tests the conditions of input and output in which a task halts.
func logHalts(t *testing.T, addrs []string) {
	// begin runs a daemon to step 5 of a topic.
	begin := func(t *testing.T, table string) (*streamtest.Site, *streamtest.SiteRun, *kafkatest.Producer) {
		t.Helper()
		s := streamtest.NewSite(t, addrs, kafkatest.Topic(t, addrs, nil))
		s.Table = table
		p := kafkatest.NewProducer(t, addrs, s.In, 0, "")
		p.Send(orders(0, 550)...)
		d := s.Run()
		d.Published(5)
		return s, d, p
	}
	t.Run("gap", func(t *testing.T) {
		s, d, p := begin(t, "")
		d.End()
		p.Send(orders(550, 300)...)
		kafkatest.DeleteRecords(t, addrs, s.In, 0, 620)
		d = s.Run()
		d.Halts(failure.Gap)
		if code := d.Ready(); code != http.StatusServiceUnavailable {
			t.Errorf("ready answers %d when halted", code)
		}
		d.End()
		s.Table = `on_gap = "null"`
		d = s.Run()
		d.Published(8)
		d.End()
		for key, rows := range map[string]string{"5": "100", "6": "0", "7": "80", "8": "100"} {
			if rel := s.Output()["orders/0/1/"+key]; !strings.Contains(rel.Value, `"rows":`+rows+`,`) {
				t.Errorf("rows of step %s, want %s: %.120s", key, rows, rel.Value)
			}
		}
	})
	// remake creates the input topic again.
	remake := func(s *streamtest.Site, n int) {
		kafkatest.DeleteTopic(s.T, addrs, s.In)
		kafkatest.CreateTopic(s.T, addrs, s.In, nil)
		kafkatest.NewProducer(s.T, addrs, s.In, 0, "").Send(orders(1, n)...)
	}
	t.Run("made again, shorter", func(t *testing.T) {
		s, d, _ := begin(t, "")
		remake(s, 300)
		d.Halts(failure.Replaced)
		d.End()
		s.Run().HaltsAtStart(failure.Replaced)
		if n := len(s.Output()); n != 5 {
			t.Errorf("%d releases", n)
		}
	})
	t.Run("made again, longer", func(t *testing.T) {
		s, d, _ := begin(t, "")
		d.End() // a running daemon may see the new log while it is still short
		remake(s, 900)
		s.Run().HaltsAtStart(failure.Replaced)
		if n := len(s.Output()); n != 5 {
			t.Errorf("%d releases", n)
		}
	})
	t.Run("compacted", func(t *testing.T) {
		for _, policy := range []string{"compact", "compact,delete"} {
			s := streamtest.NewSite(t, addrs, kafkatest.Topic(t, addrs, map[string]string{"cleanup.policy": policy}))
			d := s.Run()
			if <-d.Done; !errors.Is(d.Err, failure.ErrHalted) || !strings.Contains(d.Err.Error(), "is compacted") {
				t.Errorf("%s: %v", policy, d.Err)
			}
		}
	})
	t.Run("too large", func(t *testing.T) {
		s := streamtest.NewSite(t, addrs, kafkatest.Topic(t, addrs, nil))
		kafkatest.CreateTopic(t, addrs, s.Out,
			map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1000"})
		kafkatest.NewProducer(t, addrs, s.In, 0, "").Send(orders(0, 550)...)
		d := s.Run()
		d.Halts(failure.ReleaseTooLarge)
		d.End()
	})
	t.Run("output deleted", func(t *testing.T) {
		s, d, p := begin(t, "")
		kafkatest.DeleteTopic(t, addrs, s.Out)
		p.Send(orders(550, 500)...)
		d.Published(10)
		d.End()
		if got := s.Output(); len(got) != 5 || got["orders/0/1/10"].Value == "" {
			t.Errorf("%d releases in the new topic", len(got))
		}
	})
}

func orders(first, n int) []kafkatest.Record {
	rs := make([]kafkatest.Record, n)
	for i := range rs {
		rs[i].Value = fixtures.OrderRecord(first + i)
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

// TestRealKafkaCommand runs the command itself: check, and a daemon that is killed again and again.
func TestRealKafkaCommand(t *testing.T) {
	addrs := kafkatest.NewReal(t).Addrs
	bin := filepath.Join(t.TempDir(), "streamdp")
	if out, err := exec.Command("go", "build", "-o", bin,
		"github.com/streamdp/streamdp/cmd/streamdp").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// command returns a command that reads the site's configuration.
	command := func(s *streamtest.Site, args ...string) (*exec.Cmd, *bytes.Buffer) {
		file := filepath.Join(s.Dir, "streamdp.toml")
		if err := os.WriteFile(file, []byte(s.File()), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(bin, append(args, "-c", file)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		return cmd, &stderr
	}
	keygen := func(s *streamtest.Site) {
		if out, err := exec.Command(bin, "keygen", filepath.Join(s.Dir, "key")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}

	fine := streamtest.NewSite(t, addrs, kafkatest.Topic(t, addrs, nil))
	keygen(fine)
	compacted := *fine
	compacted.In = kafkatest.Topic(t, addrs, map[string]string{"cleanup.policy": "compact"})
	missing := *fine
	missing.In = "missing"
	small := *fine
	small.Out = kafkatest.Topic(t, addrs, map[string]string{"cleanup.policy": "compact", "max.message.bytes": "1000"})
	deletes := *fine
	deletes.Out = kafkatest.Topic(t, addrs, nil)
	away := *fine
	away.Addrs = []string{"127.0.0.1:1"}
	for name, test := range map[string]struct {
		s    *streamtest.Site
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

	w := streamtest.NewTraffic(t, addrs, fine.In)
	w.Write(300)
	fine.Fetch = 0
	commits := 0
	for i := range 8 {
		cmd, stderr := command(fine, "run")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		for range 6 {
			w.Write(60)
		}
		time.Sleep(time.Duration(30*i) * time.Millisecond)
		cmd.Process.Kill()
		cmd.Wait()
		if strings.Contains(stderr.String(), "level\":\"ERROR") {
			t.Fatal(stderr)
		}
		if _, err := os.Stat(filepath.Join(fine.Dir, "state", "tasks", "orders-0", "checkpoint")); err == nil {
			commits++
		}
	}
	w.Settle(fine)
	cmd, stderr := command(fine, "run")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	steps := int(w.Slots / 100)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		// If a kill comes between the charge of an epoch and its manifest, the charge is taken back and the next epoch
		// is opened instead.
		done := false
		for key := range fine.Output() {
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
	w.Expect(fine.Output())
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

// TestRealKafkaKills kills the broker under load, three times or STREAMDP_BROKER_KILLS times, and the daemon in every
// other outage. The releases equal those of a daemon that reads the same log without interruption.
func TestRealKafkaKills(t *testing.T) {
	b := kafkatest.NewReal(t)
	kills := brokerKills(t, 3)
	s := streamtest.NewSite(t, b.Addrs, kafkatest.Topic(t, b.Addrs, nil))
	rng := rand.New(rand.NewPCG(33, 0))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	load.Go(func() {
		for n := 0; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
			list := make([]kafka.Message, 100)
			for i := range list {
				list[i] = kafka.Message{Value: fixtures.OrderRecord(n + i), Time: time.UnixMilli(1)}
			}
			// Unacknowledged records may be in the log, and are appended again; both daemons read the same log.
			sending, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			if _, err := s.Client.Produce(sending, s.In, 0, list); err == nil {
				n += len(list)
			}
			cancel()
		}
	})
	d := s.Run()
	running := func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning }
	d.Wait("it runs", running)
	for i := range kills {
		step := d.D.Status()[0].Step
		d.Wait("a step", func(s monitor.TaskStatus) bool { return s.Step > step })
		// the kill comes at a random moment
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		b.Kill()
		if i%2 == 1 {
			d.Wait("trouble", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRetrying })
			d.Stop()
			<-d.Done
		}
		b.Start()
		if i%2 == 1 {
			d = s.Run()
		}
		d.Wait("it runs again", running)
	}
	stop()
	load.Wait()
	end, err := s.Client.End(t.Context(), s.In, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.Published(uint64(end / 100))
	d.End()
	got := s.Output()

	again := streamtest.NewSite(t, b.Addrs, s.In)
	d = again.Run()
	d.Published(uint64(end / 100))
	d.End()
	want := again.Output()
	for key, p := range want {
		if !p.Equal(got[key]) {
			t.Errorf("release %s:\n%s\nwithout interruption:\n%s", key, got[key].Value, p.Value)
		}
	}
	if len(got) != len(want) || len(got) != int(end/100) {
		t.Errorf("%d releases, %d without interruption, of %d steps", len(got), len(want), end/100)
	}
	t.Logf("%d kills of the broker, %d of the daemon's runs ended without it; %d offsets, %d releases", kills, kills/2,
		end, len(got))
}
