package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// clusterConfig returns the configuration of the how-to about instances.
func clusterConfig(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "docs", "howto", "cluster.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```toml\n")
	block, _, _ := strings.Cut(rest, "```")
	return block
}

// clusterSite is a group of instances on a broker.
type clusterSite struct {
	t          *testing.T
	addrs      []string
	dir, group string
}

const clusterPartitions = 4

func newClusterSite(t *testing.T, addrs []string) *clusterSite {
	t.Helper()
	s := &clusterSite{t: t, addrs: addrs, dir: t.TempDir(), group: fmt.Sprintf("g%d", time.Now().UnixNano())}
	c := s.client()
	if err := c.CreateTopic(t.Context(), s.group+"-in", clusterPartitions, nil); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"key", "other"} {
		want(t, exitDone, "", "keygen", filepath.Join(s.dir, key))
	}
	return s
}

func (s *clusterSite) client() *kafka.Client {
	s.t.Helper()
	c, err := kafka.NewClient(kafka.Options{Brokers: s.addrs})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// file writes the configuration of an instance, with replacements, and returns its name.
func (s *clusterSite) file(instance string, replace ...string) string {
	s.t.Helper()
	text := clusterConfig(s.t)
	replace = append([]string{
		"localhost:9092", strings.Join(s.addrs, `", "`), "${HOME}/streamdp", s.dir, "${HOME}/streamdp", s.dir,
		"${INSTANCE}", instance, "${INSTANCE}", instance, "${PORT}", "0",
		`"orders-dp"`, strconv.Quote(s.group), "shards   = 16", "shards = 4\nsession_timeout = \"6s\"", `"orders"`,
		strconv.Quote(s.group + "-in"), `"orders.dp"`, strconv.Quote(s.group + "-out"),
	}, replace...)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(text, replace[i]) {
			s.t.Fatalf("nothing to replace: %s", replace[i])
		}
		text = strings.Replace(text, replace[i], replace[i+1], 1)
	}
	name := filepath.Join(s.dir, instance+".toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return name
}

// feed writes records to all partitions.
func (s *clusterSite) feed(from, n int) {
	s.t.Helper()
	c := s.client()
	for p := range int32(clusterPartitions) {
		var list []kafka.Message
		for i := from; i < from+n; i++ {
			list = append(list,
				kafka.Message{Value: fmt.Appendf(nil, `{"amount":%d,"items":%d,"weight":1}`, i*37%97, i%7),
					Time: time.Now().Truncate(time.Millisecond)})
		}
		if _, err := c.Produce(s.t.Context(), s.group+"-in", p, list); err != nil {
			s.t.Fatal(err)
		}
	}
}

// instance starts an instance.
func (s *clusterSite) instance(file string) *daemon {
	d := (&site{t: s.t, config: file}).start()
	s.t.Cleanup(func() {
		if s.t.Failed() {
			d.stop(syscall.SIGKILL)
			s.t.Logf("%s:\n%s", filepath.Base(file), d.log)
		}
	})
	return d
}

// steps waits until each task of the group has released at least step steps, and exactly these instances run the tasks.
// It returns the time that this took.
func (s *clusterSite) steps(file string, step uint64, instances ...string) time.Duration {
	s.t.Helper()
	begun := time.Now()
	var out, errs string
	for time.Since(begun) < time.Minute {
		var answer struct {
			Group     cluster.Status
			Instances []struct {
				Instance string
				Status   struct{ Tasks []monitor.TaskStatus }
			}
		}
		var code int
		code, out, errs = call(s.t, "status", "--json", "-c", file)
		if code == exitDone && json.Unmarshal([]byte(out), &answer) == nil && len(answer.Instances) == len(instances) {
			done := 0
			for i, x := range answer.Instances {
				if x.Instance != instances[i] {
					done = -1 << 20
				}
				for _, t := range x.Status.Tasks {
					if t.Step == step && t.Outbox == 0 {
						done++
					}
				}
			}
			if done == clusterPartitions {
				return time.Since(begun)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.t.Fatalf("never step %d by %v\n%s%s", step, instances, out, errs)
	return 0
}

// TestClusterCommands sets up and runs a group as an operator does.
func TestClusterCommands(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(embedded.Options{Extra: []kfake.Opt{kfake.GroupMinSessionTimeout(100 * time.Millisecond)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s := newClusterSite(t, b.Addrs())
	a := s.file("a", `"6s"`, `"1s"`)
	s.begins(a)
	x := s.instance(a)
	s.feed(0, 250)
	s.steps(a, 2, "a")
	s.every(a, a)
	x.cmd.Process.Kill()
	x.stop(syscall.SIGKILL)

	// A second group uses the state directory of the first. It must be refused, because the directory belongs to
	// another ledger.
	other := s.file("a", `"6s"`, `"1s"`, strconv.Quote(s.group), strconv.Quote(s.group+"-2"))
	want(t, exitDone, "", "cluster", "init", "-c", other)
	s.instance(other)
	const halted = "instance a: shards 0-3: witness: the witness in the state directory belongs to " +
		"another ledger: of another group"
	for late := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		code, out, errs := call(t, "status", "-c", other)
		if code == exitFailure && strings.Contains(errs, halted) &&
			strings.Contains(errs, "4 shards are halted: their tasks do not run") {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("code %d\n%s%s", code, out, errs)
		}
	}
}

// begins runs commands that need a group before it exists, and then creates it.
func (s *clusterSite) begins(a string) {
	s.t.Helper()
	t := s.t
	makes := "topic " + s.group + ".state does not exist: create it with streamdp cluster init"
	want(t, exitState, makes, "cluster", "check", "-c", a)
	want(t, exitState, makes, "epoch", "list", "-c", a)
	want(t, exitState, makes, "ledger", "-c", a)
	want(t, exitFailure, makes, "run", "-c", a)
	if out := want(t, exitDone, "", "cluster", "status", "-c", a); !strings.Contains(out, "has no instances") {
		t.Error(out)
	}
	if out := want(t, exitDone, "", "cluster", "init", "-c", a); !strings.Contains(out, "started 4 of 4 ledgers") {
		t.Error(out)
	}
	if out := want(t, exitDone, "", "cluster", "init", "-c", a); !strings.Contains(out, "already has its topics and "+
		"4 ledgers") {
		t.Error(out)
	}
	want(t, exitDone, "have no epochs", "epoch", "list", "-c", a)
	// These configurations differ from the group's configuration or key.
	shards := s.file("shards", "shards = 4", "shards = 8")
	key := s.file("key", `/key"`, `/other"`)
	for _, c := range []struct{ file, init, run, list string }{
		{shards, "has 4 partitions, but the configuration has 8 shards",
			"has 4 partitions, but the configuration has 8 shards",
			"has 4 partitions, but the configuration has 8 shards"},
		{key, "the shard was created with key", "", "the shard was created with key"},
	} {
		for _, args := range [][]string{{c.init, "cluster", "init"}, {c.init, "cluster", "check"},
			{c.list, "epoch", "list"}, {c.run, "run"}} {
			if args[0] == "" {
				continue
			}
			code, _, errs := call(t, append(args[1:], "-c", c.file)...)
			if code == exitDone || !strings.Contains(errs, args[0]) {
				t.Errorf("%v -c %s: code %d, %s, want %q", args[1:], filepath.Base(c.file), code, errs, args[0])
			}
		}
	}
}

// every runs the everyday commands, with configurations of two instances.
func (s *clusterSite) every(a, b string) {
	s.t.Helper()
	t := s.t
	if out := want(t, exitDone, "", "cluster", "check", "-c", a); !strings.Contains(out,
		"4 shards are complete, with 4 ledger lines") {
		t.Error(out)
	}
	if out := want(t, exitDone, "", "status", "-c", a); !strings.Contains(out, "INSTANCE\n") ||
		strings.Count(out, "\norders-") != clusterPartitions {
		t.Error(out)
	}
	if out := want(t, exitDone, "", "ledger", "-c", b); !strings.Contains(out, s.group+"-in/3") {
		t.Error(out)
	}
	if out := want(t, exitDone, "", "epoch", "close", "orders", "--partition", "2", "--yes", "-c",
		a); !strings.Contains(out, "epoch 1 of orders-2 is closed") {
		t.Error(out)
	}
	want(t, exitFailure, "the task has no open epoch", "epoch", "close", "orders", "--partition", "2", "--yes", "-c", b)
	if out := want(t, exitDone, "", "epoch", "open", "orders", "--partition", "2", "--yes", "-c",
		b); !strings.Contains(out, "epoch 2 of orders-2 is open from offset 200") {
		t.Error(out)
	}
	want(t, exitFailure, "has no task orders-9", "epoch", "close", "orders", "--partition", "9", "--yes", "-c", a)
	if out := want(t, exitDone, "", "epoch", "list", "-c", a); strings.Count(out, "\norders ") != clusterPartitions+1 {
		t.Error(out)
	}
	want(t, exitConfig, "not possible with [cluster]", "verify", "-c", a)
	// This copy is for commands that read files.
	copied := filepath.Join(s.dir, "copy")
	if out := want(t, exitDone, "", "cluster", "export", copied, "--with-secrets", "-c", a); !strings.Contains(out,
		"7 ledger lines about 5 epochs") && !strings.Contains(out, "8 ledger lines about 5 epochs") {
		t.Error(out)
	}
	text, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), "[cluster]")
	_, rest, _ = strings.Cut(rest, "[stream.orders]")
	alone := filepath.Join(s.dir, "alone.toml")
	if err := os.WriteFile(alone,
		[]byte(strings.Replace(head, filepath.Join(s.dir, "state-a"), copied, 1)+"[stream.orders]"+rest),
		0o600); err != nil {
		t.Fatal(err)
	}
	if out := want(t, exitDone, "note: this directory is a copy of the ledgers of group", "epoch", "list", "-c",
		alone); strings.Count(out, "\norders ") != clusterPartitions+1 {
		t.Error(out)
	}
	want(t, exitDone, "", "verify", "--partition", "1", "-c", alone)
	want(t, exitState, "a copy of the ledgers of group", "run", "-c", alone)
	want(t, exitState, "a copy of the ledgers of group", "cluster", "import", copied, "--yes", "-c", a)
}

// TestRealKafkaClusterCommands runs two instances on Apache Kafka, stops one and kills the other. It also tries topics
// with wrong settings.
func TestRealKafkaClusterCommands(t *testing.T) {
	s := newClusterSite(t, kafkatest.NewReal(t).Addrs)
	a, b := s.file("a"), s.file("b")
	s.begins(a)
	x, y := s.instance(a), s.instance(b)
	s.feed(0, 250)
	s.steps(a, 2, "a", "b")
	s.every(a, b)
	for _, d := range []*daemon{x, y} {
		res, err := http.Get(d.url + "/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("page: %s, %v", res.Status, err)
		}
		res.Body.Close()
	}
	// After SIGTERM nobody waits for the session timeout.
	if code := x.stop(syscall.SIGTERM); code != exitDone {
		t.Errorf("code %d\n%s", code, x.log)
	}
	if took := s.runBy(b, "b"); took > 5*time.Second {
		t.Errorf("b took over from a stopped instance in %v", took)
	} else {
		t.Logf("SIGTERM: %v", took)
	}
	x = s.instance(a)
	s.runBy(b, "a", "b")
	y.stop(syscall.SIGKILL)
	t.Logf("SIGKILL: %v", s.runBy(a, "a"))
	s.feed(250, 150)
	if out := want(t, exitDone, "", "cluster", "check", "-c", a); !strings.Contains(out, "4 shards are complete") {
		t.Error(out)
	}
	// One file has a different key, another a different limit.
	for words, file := range map[string]string{
		"most instances have another master key":    s.file("k", `/key"`, `/other"`),
		"most instances have another configuration": s.file("l", "limit_epsilon = 3.0", "limit_epsilon = 4.0"),
	} {
		z := s.instance(file)
		s.says(z.url+"/-/ready", words)
		z.stop(syscall.SIGTERM)
	}
	if code := x.stop(syscall.SIGTERM); code != exitDone {
		t.Errorf("code %d\n%s", code, x.log)
	}
	// With these settings of a topic, state or ledger entries would be lost.
	for _, c := range []struct{ topic, name, bad, good string }{
		{".ledger", "cleanup.policy", "compact", "delete"},
		{".ledger", "retention.ms", "1000000000", "-1"},
		{".state", "cleanup.policy", "delete", "compact"},
		{".state", "unclean.leader.election.enable", "true", "false"},
	} {
		s.set(s.group+c.topic, c.name, c.bad)
		words := fmt.Sprintf("topic %s%s has %s = %s, not %s", s.group, c.topic, c.name, c.bad, c.good)
		want(t, exitState, words, "cluster", "check", "-c", a)
		want(t, exitFailure, words, "cluster", "init", "-c", a)
		want(t, exitFailure, words, "run", "-c", a)
		s.set(s.group+c.topic, c.name, c.good)
	}
	replicated := s.file("r", "allow_unreplicated = true", "allow_unreplicated = false")
	want(t, exitState, "fewer than 3 replicas", "cluster", "check", "-c", replicated)
	want(t, exitFailure, "fewer than 3 replicas", "run", "-c", replicated)
}

// runBy waits until exactly these instances run all tasks.
func (s *clusterSite) runBy(file string, instances ...string) time.Duration {
	s.t.Helper()
	begun := time.Now()
	for out := ""; ; time.Sleep(50 * time.Millisecond) {
		if time.Since(begun) > time.Minute {
			s.t.Fatalf("never run by %v\n%s", instances, out)
		}
		var answer struct {
			Instances []struct {
				Instance string
				Status   struct{ Tasks []monitor.TaskStatus }
			}
		}
		var code int
		if code, out, _ = call(s.t, "status", "--json", "-c", file); code != exitDone ||
			json.Unmarshal([]byte(out), &answer) != nil || len(answer.Instances) != len(instances) {
			continue
		}
		tasks := 0
		for i, x := range answer.Instances {
			if x.Instance == instances[i] {
				for _, t := range x.Status.Tasks {
					if t.State == "running" {
						tasks++
					}
				}
			}
		}
		if tasks == clusterPartitions {
			return time.Since(begun)
		}
	}
}

// says waits until an address answers with words.
func (s *clusterSite) says(url, words string) {
	s.t.Helper()
	var body []byte
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if res, err := http.Get(url); err == nil {
			body, _ = io.ReadAll(res.Body)
			res.Body.Close()
			if strings.Contains(string(body), words) {
				return
			}
		}
	}
	s.t.Errorf("%s never says %q: %s", url, words, body)
}

// set changes a setting of a topic, and waits until the broker reports it.
func (s *clusterSite) set(topic, name, value string) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.addrs...))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	q := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Op, c.Value = name, kmsg.IncrementalAlterConfigOpSet, &value
	r.Configs = append(r.Configs, c)
	q.Resources = append(q.Resources, r)
	answer, err := q.RequestWith(s.t.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(answer.Resources[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if is, err := s.client().TopicConfig(context.Background(), topic, name); err == nil && is[name] == value {
			return
		}
	}
	s.t.Fatalf("%s of %s never is %s", name, topic, value)
}
