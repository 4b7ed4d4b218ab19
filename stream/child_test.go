package stream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
)

// The test binary executes itself as a process that can be killed.

// childVariable holds a childSpec as JSON where the binary is such a process.
const childVariable = "STREAMDP_TEST_CHILD"

// childSpec says what a child process does.
type childSpec struct {
	Role   string // "daemon", "reader", "naive", "broker" or "rival"
	Config string // text
	Seed   uint64
	Real   bool // secrets are drawn, not made from the seed
	Fetch  int
	Memory int64 // like GOMEMLIMIT, in bytes; 0: none

	Reloads []string // configurations that a daemon takes one after the other, again and again

	Port   int // broker
	Data   string
	Topics []string

	Members int // that read merged streams: a daemon and readers for it; 0: nobody shares them
	Self    int // place among them
	Procs   int // like GOMAXPROCS; 0: all processors

	Rival   string // of kafkatest.Rivals
	Addrs   []string
	Records int
}

// child is the main function of a child process. It prints "up" when it works.
func child(text string) error {
	var spec childSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return err
	}
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if spec.Role == "broker" {
		b, err := embedded.Start(embedded.Options{Port: spec.Port, DataDir: spec.Data, Topics: spec.Topics})
		if err != nil {
			return err
		}
		fmt.Println("up", b.Addr())
		<-ctx.Done()
		b.Close()
		return nil
	}
	if spec.Role == "rival" {
		n, took, err := kafkatest.Rivals[spec.Rival](ctx, spec.Addrs, spec.Topics[0], spec.Records)
		fmt.Println("up", float64(n)/took.Seconds())
		return err
	}
	cfg, err := config.Parse("child.toml", []byte(spec.Config))
	if err != nil {
		return err
	}
	if spec.Role == "naive" {
		return naive(ctx, cfg, spec)
	}
	if spec.Procs > 0 {
		runtime.GOMAXPROCS(spec.Procs)
	}
	if spec.Role == "reader" {
		return read(ctx, cfg, spec)
	}
	if name := os.Getenv("STREAMDP_CHILD_PROFILE"); name != "" { // of each process, its number behind it
		f, err := os.Create(fmt.Sprintf("%s.%d", name, os.Getpid()))
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			f.Close()
		}()
	}
	var up sync.Once
	var d *Daemon
	var in *Inside
	o := Options{
		Config: cfg, Key: InsecureKey(spec.Seed), InsecureSeed: &spec.Seed, Version: "test",
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	o.Hooks.FetchBytes = spec.Fetch
	o.Hooks.Observe = func() {
		if d == nil {
			return
		}
		if all := in.Tasks(); len(all) > 0 && all[0].ran.Load() { // instances of a group may have none
			up.Do(func() { fmt.Println("up", d.Addr()) })
		}
	}
	o.Hooks.Opened = func(i *Inside) { in = i }
	if spec.Real {
		o.InsecureSeed = nil
	}
	if spec.Memory > 0 {
		debug.SetMemoryLimit(spec.Memory)
	}
	if len(spec.Reloads) > 0 {
		n := 0
		o.Load = func() (*config.Config, error) {
			n++
			return config.Parse("child.toml", []byte(spec.Reloads[n%len(spec.Reloads)]))
		}
	}
	d, err = New(o)
	if err != nil {
		return err
	}
	defer d.Close()
	if spec.Members > 0 {
		var reading sync.WaitGroup
		defer reading.Wait()
		p := in.Process
		p.partials = newPartials(p.partialsOf("group", overKafka(p.client), oneShard))
		p.partials.regroup(team{1, spec.Members, spec.Self})
		reading.Go(func() { _ = p.partials.run(ctx, nil) })
	}
	if len(spec.Reloads) > 0 {
		var reloading sync.WaitGroup
		defer reloading.Wait()
		reloading.Go(func() {
			for ctx.Err() == nil {
				_, _ = d.Reload(ReloadRequest{Open: true})
			}
		})
	}
	return d.Run(ctx)
}

// read sums partitions for a daemon in another process.
func read(ctx context.Context, cfg *config.Config, spec childSpec) error {
	client, err := kafka.NewClient(kafka.Options{Brokers: cfg.Kafka.Brokers})
	if err != nil {
		return err
	}
	defer client.Close()
	h := &host{cfg: cfg, key: InsecureKey(spec.Seed), log: slog.New(slog.NewTextHandler(os.Stderr, nil)), client: client, memory: kafka.NewMemory(cfg.Kafka.FetchMemory),
		fetchBytes: 1 << 20, metrics: newMetrics(false, false, "test", true)}
	h.current.Store(cfg)
	p := newPartials(h.partialsOf("group", overKafka(client), oneShard))
	p.regroup(team{1, spec.Members, spec.Self})
	return p.run(ctx, func() { fmt.Println("up") })
}

// overKafka is the log of merged streams of the tests' group.
func overKafka(c *kafka.Client) sumLog {
	return &kafkaParts{client: c, topic: "group.partials", now: time.Now}
}

// naive is the loop that everybody writes first, the control variant of the
// kill test: at least once, fresh noise in every attempt, publish, then commit.
func naive(ctx context.Context, cfg *config.Config, spec childSpec) error {
	s := cfg.Streams[0]
	client, err := kafka.NewClient(kafka.Options{Brokers: cfg.Kafka.Brokers})
	if err != nil {
		return err
	}
	defer client.Close()
	var saved struct {
		Step  uint64
		Next  int64
		State []byte
	}
	path := filepath.Join(cfg.State.Dir, "naive.json")
	if data, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(data, &saved); err != nil {
			return err
		}
	}
	mech, err := core.NewMechanism(s, nil, nil)
	if err != nil {
		return err
	}
	secret := dp.NewSecret() // of this attempt
	keys, err := dp.NewEpoch(InsecureKey(spec.Seed), &secret, s.Name, 1, dp.NewNonce(), [32]byte{})
	if err != nil {
		return err
	}
	m := &core.Manifest{Stream: s.Name, Epoch: 1, Version: "test"}
	c, err := core.New(s, m, nil, mech, keys)
	if err != nil {
		return err
	}
	if saved.State != nil {
		if err := c.Resume(saved.State, saved.Step, c.Transcript(), []int64{saved.Next}); err != nil {
			return err
		}
	}
	reader, err := client.NewReader(kafka.ReaderOptions{Topic: s.Input.Topic, PartitionMaxBytes: spec.Fetch}, kafka.Position{Next: saved.Next, LeaderEpoch: -1})
	if err != nil {
		return err
	}
	dec, err := codec.NewDecoder(core.FormatOf(s), runtime.GOMAXPROCS(0))
	if err != nil {
		return err
	}
	fmt.Println("up")
	var b codec.Batch
	for ctx.Err() == nil {
		if err := reader.Fetch(ctx, &b.Chunk); err != nil {
			if kafka.Retriable(err) {
				continue
			}
			return err
		}
		dec.Decode(&b)
		for i := range b.Records {
			c.Add(b.Records[i].Offset, b.Row(i))
			if b.Records[i].Offset+1 < c.End() {
				continue
			}
			rel, err := c.Close()
			if err != nil {
				return err
			}
			_, err = client.Produce(ctx, s.Output.Topic, 0, []kafka.Message{{Key: rel[0].Key, Value: rel[0].Value, Headers: rel[0].Headers, Time: time.UnixMilli(1)}})
			if err != nil {
				return err
			}
			saved.Step, saved.Next = c.Step(), c.First()
			if saved.State, err = mech.AppendBinary(saved.State[:0]); err != nil {
				return err
			}
			data, err := json.Marshal(saved)
			if err != nil {
				return err
			}
			os.Remove(path + ".tmp")
			f, err := osDisk{}.Create(path + ".tmp")
			if err := write(f, err, data); err != nil {
				return err
			}
			if err := os.Rename(path+".tmp", path); err != nil {
				return err
			}
		}
	}
	return nil
}

// process is a running child.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	stderr *journal
	lines  *bufio.Reader
	addr   string // what it serves
	done   chan struct{}
	err    error
}

// spawn starts a child process.
func spawn(t testing.TB, spec childSpec) *process {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0]), stderr: &journal{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	p.cmd.Stderr = p.stderr
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout = w
	p.lines = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		out.Close()
	})
	return p
}

// up waits until the child works.
func (p *process) up() *process {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		<-p.done
		p.t.Fatalf("the child ended before it was up: %v %v\n%s", err, p.err, p.stderr)
	}
	p.addr = strings.TrimSpace(strings.TrimPrefix(line, "up"))
	return p
}

// kill ends the child without its knowledge, and reports whether it was alive.
func (p *process) kill() {
	p.t.Helper()
	p.cmd.Process.Kill()
	<-p.done
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the child ended by itself: %v\n%s", p.err, p.stderr)
	}
}

// terminate asks the child to end and returns its exit code.
func (p *process) terminate() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the child does not end\n%s", p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

var _ io.Writer = (*journal)(nil)
