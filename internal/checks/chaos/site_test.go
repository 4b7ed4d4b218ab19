package chaos

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

const (
	partitions = 8 // of the input; each stream has as many tasks
	shards     = 6
	session    = 2 * time.Second // the group's session timeout
	stepLength = 10              // in offsets
	stepsEpoch = 20
	patience   = 2 * time.Minute
)

// streams are the names of two streams that read the same partitions, so that the tasks of a shard share a budget.
var streams = []string{"means", "sums"}

// site is a group of instances, with an input and outputs that only it uses.
type site struct {
	t         *testing.T
	three     *kafkatest.Three
	rng       *rand.Rand
	bin, dir  string
	group, in string
	edit      func(i int, text string) string // changes the configuration of instance i; may be nil
	merged    bool                            // all partitions are one task
	instances []*instance
	feed      *feed
	watch     *watch
}

// instance is a process that runs `streamdp run`.
type instance struct {
	s      *site
	number int
	cmd    *exec.Cmd // nil: it is not running
	starts int
}

// built builds the program, once for all tests.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "streamdp-chaos-")
	if err != nil {
		return "", err
	}
	removeBuilt = func() { os.RemoveAll(dir) }
	bin := filepath.Join(dir, "streamdp")
	if out, err := exec.Command("go", "build", "-o", bin,
		"github.com/streamdp/streamdp/cmd/streamdp").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

var removeBuilt = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	removeBuilt()
	os.Exit(code)
}

// newSite builds the program and writes a configuration for each instance.
func newSite(t *testing.T, name string, seed uint64, instances int, edit func(int, string) string) *site {
	t.Helper()
	three := kafkatest.NewThree(t)
	name = fmt.Sprintf("%s-%d", name, time.Now().UnixNano())
	s := &site{t: t, three: three, rng: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), group: name,
		in: name + "-in", edit: edit}
	var err error
	if s.bin, err = built(); err != nil {
		t.Fatal(err)
	}
	s.command("keygen", filepath.Join(s.dir, "key"))
	createTopic(t, three.Addrs, s.in, partitions)
	for _, stream := range streams {
		createTopic(t, three.Addrs, s.out(stream), 1)
	}
	for i := range instances {
		if err := os.WriteFile(s.file(i), []byte(s.configuration(i)), 0o600); err != nil {
			t.Fatal(err)
		}
		s.instances = append(s.instances, &instance{s: s, number: i})
	}
	t.Cleanup(func() {
		for _, x := range s.instances {
			x.kill()
			if t.Failed() {
				t.Logf("instance %d said last\n%s", x.number, x.tail(30))
			}
		}
	})
	return s
}

func (s *site) out(stream string) string { return s.group + "-" + stream }

func (s *site) file(i int) string { return filepath.Join(s.dir, fmt.Sprintf("streamdp-%d.toml", i)) }

// configuration returns the configuration of an instance. Instances differ only in their state directory and name.
func (s *site) configuration(i int) string {
	text := fmt.Sprintf(`[kafka]
brokers = ["%s"]
[state]
dir = %q
key_file = %q
commit_interval = "20ms"
[http]
listen = "127.0.0.1:0"
[cluster]
group = %q
shards = %d
session_timeout = %q
instance = "instance-%d"
`, strings.Join(s.three.Addrs, `", "`), filepath.Join(s.dir, fmt.Sprint("state-", i)), filepath.Join(s.dir, "key"), s.group, shards, session, i)
	for _, stream := range streams {
		text += fmt.Sprintf(`[stream.%s]
input = { topic = %q, partition = "all", codec = "json", columns = ["amount", "items"] }
output = { topic = %q }
centre = [40.0, 3.0]
scale = [80.0, 5.0]
step = %d
horizon = %d
on_horizon = "rollover"
[stream.%[1]s.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 20.0
[stream.%[1]s.moments]
clip = 1.0
`, stream, s.in, s.out(stream), stepLength, stepsEpoch)
	}
	if s.edit != nil {
		text = s.edit(i, text)
	}
	return text
}

// command runs a streamdp command that must end successfully.
func (s *site) command(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	var errs bytes.Buffer
	c := exec.CommandContext(ctx, s.bin, args...)
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		s.t.Fatalf("streamdp %s: %v\n%s%s", strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

func (x *instance) logFile() string { return filepath.Join(x.s.dir, fmt.Sprint("log-", x.number)) }

// start starts the instance.
func (x *instance) start() {
	x.s.t.Helper()
	log, err := os.OpenFile(x.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		x.s.t.Fatal(err)
	}
	defer log.Close()
	x.cmd = exec.Command(x.s.bin, "run", "-c", x.s.file(x.number))
	x.cmd.Stderr = log
	if err := x.cmd.Start(); err != nil {
		x.s.t.Fatal(err)
	}
	x.starts++
}

// kill kills the instance as a crash would.
func (x *instance) kill() {
	if x.cmd == nil {
		return
	}
	x.cmd.Process.Kill()
	x.cmd.Wait()
	x.cmd = nil
}

// tail returns the last lines of the instance's log.
func (x *instance) tail(n int) string {
	data, _ := os.ReadFile(x.logFile())
	lines := strings.SplitAfter(string(data), "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}

// tasks returns all tasks, named as in their releases' keys.
func (s *site) tasks() (all []task) {
	for _, stream := range streams {
		if s.merged {
			all = append(all, task{stream, "merged"})
			continue
		}
		for p := range partitions {
			all = append(all, task{stream, strconv.Itoa(p)})
		}
	}
	return all
}

// progress waits until every task has published something after `since`. It returns the time at which the last task did
// so.
func (s *site) progress(since time.Time) time.Duration {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		var longest time.Duration
		var missing []task
		for _, t := range s.tasks() {
			if at, ok := s.watch.next(t, since); !ok {
				missing = append(missing, t)
			} else {
				longest = max(longest, at.Sub(since))
			}
		}
		if len(missing) == 0 {
			return longest
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no release in %v of %v", patience, missing)
		}
		s.alive()
	}
}

// alive fails if an instance has ended by itself.
func (s *site) alive() {
	s.t.Helper()
	for _, x := range s.instances {
		if x.cmd == nil {
			continue
		}
		var status syscall.WaitStatus
		if pid, _ := syscall.Wait4(x.cmd.Process.Pid, &status, syscall.WNOHANG, nil); pid == x.cmd.Process.Pid {
			x.cmd = nil
			s.t.Fatalf("instance %d ended by itself: %v\n%s", x.number, status, x.tail(30))
		}
	}
}
