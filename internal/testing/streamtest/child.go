package streamtest

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
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// The test binary runs itself as a child process that tests can kill.

// ChildVariable is the environment variable that holds a ChildSpec as JSON. It is set only in child processes.
const ChildVariable = "STREAMDP_TEST_CHILD"

// ChildSpec says what a child process runs.
type ChildSpec struct {
	Role   string // "daemon", "reader", "naive", "broker" or "rival"
	Config string // the text of the configuration
	Seed   uint64
	Real   bool // secrets are random, not derived from the seed
	Fetch  int
	Memory int64 // like GOMEMLIMIT, in bytes; 0: no limit

	Reloads []string // configurations that a daemon loads in turn, repeatedly

	Port   int // of the broker
	Data   string
	Topics []string

	Members int // processes that read merged streams: a daemon and its readers; 0: the daemon reads alone
	Self    int // the index of this process among them
	Procs   int // like GOMAXPROCS; 0: all processors

	Rival   string // a key of kafkatest.Rivals
	Addrs   []string
	Records int
}

// Child is the main function of a child process. It prints "up" when it is ready.
func Child(text string) error {
	var spec ChildSpec
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
	if name := os.Getenv("STREAMDP_CHILD_PROFILE"); name != "" { // a file for each process; its number is appended
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
	var d *stream.Daemon
	var in *stream.Inside
	o := stream.Options{
		Config: cfg, Key: connect.InsecureKey(spec.Seed), InsecureSeed: &spec.Seed, Version: "test",
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	o.Hooks.FetchBytes = spec.Fetch
	o.Hooks.Observe = func() {
		if d == nil {
			return
		}
		if all := in.Tasks(); len(all) > 0 && all[0].Ran() { // an instance of a group may have no task
			up.Do(func() { fmt.Println("up", d.Addr()) })
		}
	}
	o.Hooks.Opened = func(i *stream.Inside) { in = i }
	if spec.Real {
		o.InsecureSeed = nil
	}
	if spec.Memory > 0 {
		debug.SetMemoryLimit(spec.Memory)
		debug.SetGCPercent(20) // otherwise the peak shows how late the collector ran
	}
	if len(spec.Reloads) > 0 {
		n := 0
		o.Load = func() (*config.Config, error) {
			n++
			return config.Parse("child.toml", []byte(spec.Reloads[n%len(spec.Reloads)]))
		}
	}
	d, err = stream.New(o)
	if err != nil {
		return err
	}
	defer d.Close()
	if spec.Members > 0 {
		var reading sync.WaitGroup
		defer reading.Wait()
		p := in.Process
		p.Partials = input.NewSharedSummation(p.PartialsOf("group", OverKafka(p.Client), fixtures.OneShard))
		p.Partials.Regroup(input.Team{Generation: 1, Members: spec.Members, Self: spec.Self})
		reading.Go(func() { _ = p.Partials.Run(ctx, nil) })
	}
	if len(spec.Reloads) > 0 {
		var reloading sync.WaitGroup
		defer reloading.Wait()
		reloading.Go(func() {
			for ctx.Err() == nil {
				_, _ = d.Reload(httpapi.ReloadRequest{Open: true})
			}
		})
	}
	return d.Run(ctx)
}

// read sums partitions for a daemon in another process.
func read(ctx context.Context, cfg *config.Config, spec ChildSpec) error {
	client, err := kafka.NewClient(kafka.Options{Brokers: cfg.Kafka.Brokers})
	if err != nil {
		return err
	}
	defer client.Close()
	h := &epoch.Process{Cfg: cfg, Key: connect.InsecureKey(spec.Seed),
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Client: client,
		Memory:     kafka.NewMemory(cfg.Kafka.FetchMemory),
		FetchBytes: 1 << 20, Metrics: monitor.NewMetrics(false, false, "test", true)}
	h.Current.Store(cfg)
	p := input.NewSharedSummation(h.PartialsOf("group", OverKafka(client), fixtures.OneShard))
	p.Regroup(input.Team{Generation: 1, Members: spec.Members, Self: spec.Self})
	return p.Run(ctx, func() { fmt.Println("up") })
}

// OverKafka returns the log of the sums of merged streams in the tests' group.
func OverKafka(c *kafka.Client) input.SumLog {
	return &input.KafkaSums{Client: c, Topic: "group.partials", Now: time.Now}
}

// naive is the control of the kill test: the simplest possible loop. It reads records at least once, draws fresh noise
// in every attempt, publishes, and then commits.
func naive(ctx context.Context, cfg *config.Config, spec ChildSpec) error {
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
	secret := dp.NewSecret() // the secret of this attempt
	keys, err := dp.NewEpoch(connect.InsecureKey(spec.Seed), &secret, s.Name, 1, keys.NewNonce(), [32]byte{})
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
	reader, err := client.NewReader(kafka.ReaderOptions{Topic: s.Input.Topic, PartitionMaxBytes: spec.Fetch},
		kafka.Position{Next: saved.Next, LeaderEpoch: -1})
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
			_, err = client.Produce(ctx, s.Output.Topic, 0,
				[]kafka.Message{
					{Key: rel[0].Key, Value: rel[0].Value, Headers: rel[0].Headers, Time: time.UnixMilli(1)}})
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
			f, err := state.OS{}.Create(path + ".tmp")
			if err := state.Write(f, err, data); err != nil {
				return err
			}
			if err := os.Rename(path+".tmp", path); err != nil {
				return err
			}
		}
	}
	return nil
}

// Process is a running child.
type Process struct {
	t      testing.TB
	Cmd    *exec.Cmd
	Stderr *fixtures.Journal
	Lines  *bufio.Reader
	Addr   string // the address that it serves
	Done   chan struct{}
	Err    error
}

// Spawn starts a child process.
func Spawn(t testing.TB, spec ChildSpec) *Process {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, Cmd: exec.Command(os.Args[0]), Stderr: &fixtures.Journal{}, Done: make(chan struct{})}
	p.Cmd.Env = append(os.Environ(), ChildVariable+"="+string(text))
	p.Cmd.Stderr = p.Stderr
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.Cmd.Stdout = w
	p.Lines = bufio.NewReader(out)
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		p.Err = p.Cmd.Wait()
		close(p.Done)
	}()
	t.Cleanup(func() {
		p.Cmd.Process.Kill()
		<-p.Done
		out.Close()
	})
	return p
}

// Up waits until the child is ready.
func (p *Process) Up() *Process {
	p.t.Helper()
	line, err := p.Lines.ReadString('\n')
	if err != nil {
		<-p.Done
		p.t.Fatalf("the child ended before it was up: %v %v\n%s", err, p.Err, p.Stderr)
	}
	p.Addr = strings.TrimSpace(strings.TrimPrefix(line, "up"))
	return p
}

// Kill kills the child. It fails the test if the child had ended already.
func (p *Process) Kill() {
	p.t.Helper()
	p.Cmd.Process.Kill()
	<-p.Done
	var exit *exec.ExitError
	if !errors.As(p.Err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		p.t.Fatalf("the child ended by itself: %v\n%s", p.Err, p.Stderr)
	}
}

// Terminate sends SIGTERM to the child and returns its exit code.
func (p *Process) Terminate() int {
	p.t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.Done:
	case <-time.After(fixtures.Patience):
		p.t.Fatalf("the child does not end\n%s", p.Stderr)
	}
	return p.Cmd.ProcessState.ExitCode()
}

var _ io.Writer = (*fixtures.Journal)(nil)
