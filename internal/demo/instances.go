package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/feed"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
)

// MaxInstances is the largest number of processes in the demonstration of instances.
const MaxInstances = 6

// In the demonstration of instances, several processes share the partitions of a topic, and one of them is killed.
const (
	instancesPartitions = 12
	instancesShards     = 12
	instancesRecords    = 24_000 // with --once
	instancesRate       = 6000   // records per second with --once; otherwise the rate gives one release per second
	instancesSession    = time.Second
	instancesBack       = 10 * time.Second // without --once, the time until the killed instance comes back
	instancesAlone      = "demo.alone"     // output topic of the single process that repeats the releases
)

// instancesResult is the result that --json prints.
type instancesResult struct {
	Instances  int     `json:"instances"`
	Partitions int     `json:"partitions"`
	Records    int64   `json:"records"`
	Releases   int     `json:"releases"`
	Killed     string  `json:"killed"`
	Partial    []int   `json:"killed_had_partitions"`
	Takeover   float64 `json:"takeover_seconds"`
	// Duplicates is the number of releases published twice with the same bytes.
	Duplicates int `json:"duplicates"`
	// Conflicts is the number of keys with two different values. Different counts releases whose value differs from
	// that of the single process. Missing counts missing releases.
	Conflicts int     `json:"conflicts"`
	Different int     `json:"different"`
	Missing   int     `json:"missing"`
	Seconds   float64 `json:"seconds"`
	Insecure  bool    `json:"insecure"`
}

// instancesDemo is the state of a running demonstration of instances.
type instancesDemo struct {
	*demonstration
	dir    string
	broker string
	cfg    *config.Config // configuration of one instance
	client *kafka.Client
	all    []*instance
	sent   [instancesPartitions]atomic.Int64
	seen   outputs
	result instancesResult
}

// instance is an instance of the group that runs in its own process.
type instance struct {
	number int
	cmd    *exec.Cmd
	input  io.Closer // the instance shuts down when this is closed
	ended  chan error
}

func (x *instance) String() string { return fmt.Sprint("instance ", x.number) }

// steps parses the length of a step.
func (d *instancesDemo) steps() (err error) {
	const most = instancesRecords / instancesPartitions / 4
	if d.step, err = strconv.ParseUint(d.o.Step, 10, 31); err != nil || d.step == 0 || d.o.Once && d.step > most {
		return exit.Usagef("--step is %q, must be a number of offsets, with --once at most %d", d.o.Step, most)
	}
	return nil
}

// runInstances runs the demonstration of instances. All keys are derived from one number, so that a single process can
// publish the same releases afterwards. Its records are made up, so nobody needs protection.
func runInstances(ctx context.Context, o *Options) (err error) {
	begun := time.Now()
	if o.Seed == nil {
		seed := rand.Uint64()
		o.Seed = &seed
	}
	d := &instancesDemo{
		demonstration: &demonstration{o: o},
		result:        instancesResult{Instances: o.Instances, Partitions: instancesPartitions, Insecure: true},
	}
	if err := d.steps(); err != nil {
		return err
	}
	d.open()
	if o.Once {
		d.total = instancesRecords
	}
	if d.dir, err = os.MkdirTemp("", "streamdp-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	broker, err := embedded.Start(embedded.Options{MinSession: instancesSession})
	if err != nil {
		return err
	}
	defer broker.Close()
	d.broker = broker.Addr()
	if err := broker.CreateTopic(ctx, "demo", instancesPartitions,
		map[string]string{"retention.ms": "-1"}); err != nil {
		return err
	}
	if d.client, err = kafka.NewClient(kafka.Options{Brokers: []string{d.broker}}); err != nil {
		return err
	}
	defer d.client.Close()
	defer d.end()
	if err := d.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // nothing was published
		}
		return err
	}
	feeding, stop := context.WithCancel(ctx)
	defer stop()
	fed := make(chan error, 1)
	go func() { fed <- d.feedAll(feeding) }()
	if err := d.showKill(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	select {
	case err = <-fed:
	case <-ctx.Done():
		err = <-fed
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	if ctx.Err() == nil {
		if err := d.until(ctx, "all releases", func() bool { return len(d.seen.values) >= d.expected() }); err != nil {
			return err
		}
		if !o.Once {
			fmt.Fprintln(o.Stderr, "stream consumed; the pages stay until you interrupt")
			<-ctx.Done()
		}
	}
	d.end()
	// An interrupt ends the stream, but the comparison still follows.
	comparing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := d.compareAlone(comparing); err != nil {
		return err
	}
	d.result.Seconds = time.Since(begun).Seconds()
	if o.JSON {
		err = json.NewEncoder(o.Stdout).Encode(d.result)
	} else {
		err = d.result.print(o.Stdout)
	}
	if r := d.result; err == nil && r.Conflicts+r.Different+r.Missing > 0 {
		err = errors.New("the releases of the instances differ from those of a single process")
	}
	return err
}

// begin creates the topics of the group and starts the instances.
func (d *instancesDemo) begin(ctx context.Context) error {
	for n := 1; n <= d.o.Instances; n++ {
		text := d.instanceText(n, "demo.dp")
		cfg, err := config.Parse("demo configuration", text)
		if err != nil {
			return flagFaults(err)
		}
		if n == 1 {
			if err := described(cfg); err != nil {
				return err
			}
			if err := cluster.Init(ctx, cfg, connect.InsecureKey(*d.o.Seed), func(int) {}); err != nil {
				return err
			}
			d.cfg = cfg
		}
		if err := os.WriteFile(d.path(n, "toml"), text, 0o600); err != nil {
			return err
		}
		x := &instance{number: n}
		d.all = append(d.all, x)
		if err := d.start(x); err != nil {
			return err
		}
	}
	return d.shared(ctx)
}

// shared waits until every instance has a shard, and prints the partitions of each instance.
func (d *instancesDemo) shared(ctx context.Context) error {
	return d.until(ctx, "the instances to share the partitions", func() bool {
		s, err := cluster.Look(ctx, d.cfg)
		if err != nil || len(s.Members) < d.o.Instances || len(s.Unowned) > 0 {
			return false
		}
		for _, m := range s.Members {
			if len(m.Shards) == 0 {
				return false
			}
		}
		d.say(s)
		return true
	})
}

// say prints which partitions each instance has.
func (d *instancesDemo) say(s *cluster.Status) {
	slices.SortFunc(s.Members, func(a, b cluster.MemberStatus) int { return strings.Compare(a.Instance, b.Instance) })
	for i, m := range s.Members {
		fmt.Fprintf(d.o.Stderr, "%s has partitions %s; its page is at %s\n", m.Instance,
			words.Ranges(d.partitionsOf(m)), m.URL)
		if d.o.Open && i == 0 {
			if err := openPage(m.URL); err != nil {
				fmt.Fprintf(d.o.Stderr, "streamdp: warning: %s\n", err)
			}
			d.o.Open = false
		}
	}
}

// partitionsOf returns the input partitions in a member's shards.
func (d *instancesDemo) partitionsOf(m cluster.MemberStatus) (list []int) {
	for p := range instancesPartitions {
		if slices.Contains(m.Shards, d.cfg.Cluster.Shard("demo", p)) {
			list = append(list, p)
		}
	}
	return list
}

func (d *instancesDemo) path(n int, ending string) string {
	return filepath.Join(d.dir, fmt.Sprintf("%d.%s", n, ending))
}

// start starts an instance in its own process. Its messages go into a file.
func (d *instancesDemo) start(x *instance) error {
	var err error
	if x.cmd, err = d.o.Program(d.path(x.number, "toml"), *d.o.Seed); err != nil {
		return err
	}
	log, err := os.OpenFile(d.path(x.number, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	x.cmd.Stderr = log
	if x.input, err = x.cmd.StdinPipe(); err != nil {
		return err
	}
	ownGroup(x.cmd)
	if err := x.cmd.Start(); err != nil {
		return err
	}
	x.ended = make(chan error, 1)
	go func() { x.ended <- x.cmd.Wait() }()
	return nil
}

// RunInstance runs an instance with this configuration. It shuts down when input ends. This also happens if the
// demonstration's process dies. It uses only the options Seed, Log and Version.
func RunInstance(ctx context.Context, configuration string, input io.Reader, o Options) error {
	text, err := os.ReadFile(configuration)
	if err != nil {
		return err
	}
	cfg, err := config.Parse(configuration, text)
	if err != nil {
		return err
	}
	daemon, err := (&demonstration{o: &o}).daemon(cfg)
	if err != nil {
		return err
	}
	defer daemon.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		io.Copy(io.Discard, input)
		stop()
	}()
	return daemon.Run(running)
}

// end shuts all instances down.
func (d *instancesDemo) end() {
	for _, x := range d.all {
		if x.input != nil {
			x.input.Close()
		}
	}
	for _, x := range d.all {
		if x.input == nil {
			continue
		}
		select {
		case <-x.ended:
		case <-time.After(20 * time.Second):
			x.cmd.Process.Kill()
			<-x.ended
		}
		x.input = nil
	}
}

// feedAll sends all rows, to the partitions in turn.
func (d *instancesDemo) feedAll(ctx context.Context) error {
	rate := instancesRate / instancesPartitions
	if !d.o.Once {
		rate = int(d.step)
	}
	var all [instancesPartitions]*feed.Sender
	for p := range all {
		all[p] = feed.NewSender(d.client, "demo", int32(p), rate)
	}
	encode := codec.NewEncoder("json", d.names, nil)
	for n := int64(0); n < d.total; n++ {
		p := n % instancesPartitions
		cells, err := d.rows()
		if err != nil {
			return err
		}
		s := all[p]
		if err := s.Send(ctx, nil, encode.Encode(cells[:len(d.names)])); err != nil {
			return err
		}
		d.sent[p].Store(int64(s.Sent()))
	}
	for p, s := range all {
		if err := s.Flush(ctx); err != nil {
			return err
		}
		d.sent[p].Store(int64(s.Sent()))
	}
	return nil
}

// expected returns the number of releases that the rows sent so far should give.
func (d *instancesDemo) expected() (n int) {
	for p := range d.sent {
		n += int(d.sent[p].Load() / int64(d.step))
	}
	return n
}

// showKill kills an instance as soon as every partition has published a release, and shows that others take over its
// partitions. Without --once the instance comes back later.
func (d *instancesDemo) showKill(ctx context.Context) error {
	every := make([]int, instancesPartitions)
	for p := range every {
		every[p] = p
	}
	if err := d.until(ctx, "a release of every partition", func() bool { return d.seen.have(every, 2) }); err != nil {
		return err
	}
	s, err := cluster.Look(ctx, d.cfg)
	if err != nil {
		return err
	}
	var victim cluster.MemberStatus
	for _, m := range s.Members {
		if len(d.partitionsOf(m)) > len(d.partitionsOf(victim)) {
			victim = m
		}
	}
	i := slices.IndexFunc(d.all, func(x *instance) bool { return x.String() == victim.Instance })
	if i < 0 {
		return fmt.Errorf("%q is not an instance of the demonstration", victim.Instance)
	}
	x, had := d.all[i], d.partitionsOf(victim)
	fmt.Fprintf(d.o.Stderr, "killed %s, which had partitions %s\n", x, words.Ranges(had))
	x.cmd.Process.Kill()
	<-x.ended
	x.input = nil
	died := time.Now()
	d.result.Killed, d.result.Partial = x.String(), had
	if err := d.seen.follow(ctx, d.client); err != nil {
		return err
	}
	clear(d.seen.lately)
	if err := d.until(ctx, "others to take over", func() bool { return d.seen.have(had, 1) }); err != nil {
		return err
	}
	d.result.Takeover = time.Since(died).Seconds()
	fmt.Fprintf(d.o.Stderr, "after %.1f s other instances publish the releases of its partitions\n", d.result.Takeover)
	if s, err = cluster.Look(ctx, d.cfg); err != nil {
		return err
	}
	d.say(s)
	if d.o.Once {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(instancesBack):
	}
	fmt.Fprintf(d.o.Stderr, "%s starts again\n", x)
	if err := d.start(x); err != nil {
		return err
	}
	if err := d.shared(ctx); err != nil {
		return err
	}
	fmt.Fprintln(d.o.Stderr, "interrupt to end")
	return nil
}

// until reads the outputs until ok returns true.
func (d *instancesDemo) until(ctx context.Context, what string, ok func() bool) error {
	for deadline := time.Now().Add(time.Minute); ; {
		if err := d.seen.follow(ctx, d.client); err != nil {
			return err
		}
		if ok() {
			return nil
		}
		for _, x := range d.all {
			if x.input == nil {
				continue
			}
			select {
			case err := <-x.ended:
				x.input = nil
				log, _ := os.ReadFile(d.path(x.number, "log"))
				return fmt.Errorf("%s ended unexpectedly: %v\n%s", x, err, bytes.TrimSpace(log))
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited a minute for %s", what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// outputs holds what was read from the output topics.
type outputs struct {
	next       int64
	values     map[string][]byte
	lately     map[int]int // number of releases by partition since the map was last cleared
	duplicates int
	conflicts  map[string]bool
}

// follow reads new releases.
func (o *outputs) follow(ctx context.Context, client *kafka.Client) error {
	if o.values == nil {
		o.values, o.lately, o.conflicts = map[string][]byte{}, map[int]int{}, map[string]bool{}
	}
	return o.read(ctx, client, "demo.dp")
}

func (o *outputs) read(ctx context.Context, client *kafka.Client, topic string) error {
	if t, err := client.Topic(ctx, topic); err != nil || !t.Exists {
		return err // the topic may not exist yet: the first release creates it
	}
	return client.ReadBack(ctx, topic, 0, o.next, func(r *kafka.Record) error {
		task, _, _, ok := core.ParseIdentity(r.Key)
		if !ok {
			return fmt.Errorf("topic %s has a message with the unknown key %q", topic, r.Key)
		}
		o.next = r.Offset + 1
		o.lately[task.Partition]++
		key := string(r.Key)
		switch was, known := o.values[key]; {
		case !known:
			o.values[key] = bytes.Clone(r.Value)
		case bytes.Equal(was, r.Value):
			o.duplicates++
		default:
			o.conflicts[key] = true
		}
		return nil
	})
}

// have reports whether lately counts at least n releases for each of the partitions.
func (o *outputs) have(partitions []int, n int) bool {
	return !slices.ContainsFunc(partitions, func(p int) bool { return o.lately[p] < n })
}

// compareAlone runs a single process without [cluster] over the same records with the same keys, and compares the
// releases.
func (d *instancesDemo) compareAlone(ctx context.Context) error {
	if err := d.seen.follow(ctx, d.client); err != nil {
		return err
	}
	cfg, err := config.Parse("demo configuration", d.instanceText(0, instancesAlone))
	if err != nil {
		return err
	}
	daemon, err := (&demonstration{o: d.o}).daemon(cfg)
	if err != nil {
		return err
	}
	defer daemon.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- daemon.Run(running) }()
	alone := outputs{values: map[string][]byte{}, lately: map[int]int{}, conflicts: map[string]bool{}}
	for len(alone.values) < d.expected() {
		if err := alone.read(ctx, d.client, instancesAlone); err != nil {
			return err
		}
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
			return fmt.Errorf("a single process published %d of %d releases in a "+
				"minute", len(alone.values), d.expected())
		case <-time.After(10 * time.Millisecond):
		}
	}
	stop()
	if err := <-done; err != nil {
		return err
	}
	r := &d.result
	for p := range d.sent {
		r.Records += d.sent[p].Load()
	}
	r.Releases, r.Duplicates, r.Conflicts = len(d.seen.values), d.seen.duplicates, len(d.seen.conflicts)
	for key, value := range d.seen.values {
		if !bytes.Equal(alone.values[key], value) {
			r.Different++
		}
	}
	if d.o.Once { // after an interrupt some releases are unpublished
		r.Missing = max(0, len(alone.values)-len(d.seen.values))
	}
	return nil
}

func (r *instancesResult) print(w io.Writer) error {
	fmt.Fprintf(w, "%d records in %d partitions, %d releases by %d instances, in %g s\n", r.Records, r.Partitions,
		r.Releases, r.Instances, math.Round(10*r.Seconds)/10)
	switch {
	case r.Takeover > 0:
		fmt.Fprintf(w, "%s was killed; others published the releases of its partitions %.1f s later (session "+
			"timeout %v)\n",
			r.Killed, r.Takeover, instancesSession)
	case r.Killed != "":
		fmt.Fprintf(w, "%s was killed; you interrupted before others published the releases of its partitions\n",
			r.Killed)
	}
	if r.Releases == 0 {
		_, err := fmt.Fprintln(w, "INSECURE: keys are derived from a known number; nothing was published")
		return err
	}
	fmt.Fprintf(w, "%d releases were published twice with the same bytes, %d with different "+
		"values\n", r.Duplicates, r.Conflicts)
	if r.Different+r.Missing == 0 {
		fmt.Fprintln(w, "a single process that reads the same log publishes the same releases, byte for byte")
	} else {
		fmt.Fprintf(w,
			"of the releases of a single process that reads the same log, %d have other bytes here and %d are "+
				"missing here\n",
			r.Different, r.Missing)
	}
	_, err := fmt.Fprintln(w, "INSECURE: keys are derived from a known number; nothing was protected")
	return err
}

// instanceText returns the configuration of instance n. For n = 0 it is the configuration of the single process,
// without [cluster].
func (d *instancesDemo) instanceText(n int, output string) []byte {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	cluster := ""
	if n > 0 {
		cluster = fmt.Sprintf(
			"[cluster]\ngroup = \"demo-instances\"\nshards = %d\nsession_timeout = %q\ninstance = \"instance %d\"\n"+
				"allow_unreplicated = true\n", instancesShards, instancesSession, n)
	}
	var columns []string
	for _, name := range d.names {
		columns = append(columns, quote(name))
	}
	return fmt.Appendf(nil, `[kafka]
brokers = [%s]
[state]
dir = %s
key_file = "unused"
commit_interval = "50ms"
[http]
listen = "127.0.0.1:0"
%s[stream.demo]
input = { topic = "demo", partition = "all", codec = "json", columns = [%s] }
output = { topic = %s }
centre = %s
scale = %s
step = %d
[stream.demo.privacy]
epsilon = %g
delta = %g
adjacency = %s
[stream.demo.moments]
%s`, quote(d.broker), quote(d.path(n, "state")), cluster, strings.Join(columns, ", "), quote(output), tomlNumbers(d.centre), tomlNumbers(d.scale), d.step,
		d.o.Epsilon, d.o.Delta, quote(d.o.Adjacency), d.o.moments(0.99))
}
