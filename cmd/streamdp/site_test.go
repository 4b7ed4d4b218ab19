package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/stream/monitor"
)

// site is a broker, a configuration file and a key.
type site struct {
	t      *testing.T
	broker *embedded.Broker
	dir    string
	config string
	binary string // path of the daemon's program; empty: this test binary
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

// write writes the configuration, with further keys of the stream and with a limit.
func (s *site) write(extra, limit string) {
	s.t.Helper()
	text := fmt.Sprintf(siteConfig, s.broker.Addr(), filepath.Join(s.dir, "state"), filepath.Join(s.dir, "key"),
		extra, limit)
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
	want(s.t, exitDone, fmt.Sprintf("%d records sent", rows), "feed", "-c", s.config, "--stream", "orders",
		"--csv", file)
}

// start starts the daemon and waits until it serves; stop ends the daemon with a signal.
func (s *site) start() *daemon {
	s.t.Helper()
	args := []string{"run", "-c", s.config, "--log-format", "json"}
	c := program(context.Background(), args...)
	if s.binary != "" {
		c = exec.Command(s.binary, args...)
	}
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
	case <-time.After(patience):
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

// until waits for a status that ok accepts.
func (d *daemon) until(what string, ok func(monitor.TaskStatus) bool) monitor.TaskStatus {
	d.t.Helper()
	var last monitor.TaskStatus
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		res, err := http.Get(d.url + "/api/v1/status")
		if err != nil {
			continue
		}
		var answer struct {
			Data struct{ Tasks []monitor.TaskStatus }
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

// shows waits until the metrics contain a text.
func (d *daemon) shows(text string) {
	d.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		res, err := http.Get(d.url + "/metrics")
		if err != nil {
			continue
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil && bytes.Contains(body, []byte(text)) {
			return
		}
	}
	d.t.Fatalf("the metrics never have %q", text)
}

func released(step uint64) func(monitor.TaskStatus) bool {
	return func(s monitor.TaskStatus) bool { return s.Step >= step && s.Outbox == 0 }
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
