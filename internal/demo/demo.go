// Package demo shows the daemon at work on a stream whose true values are known: it runs a broker in the process, a
// feeder and the daemon, and compares all releases with the true values (the truth).
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/feed"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/truth"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
)

// Options are the options of a demonstration. Faults in them are [exit.Usage] errors that name the flags of streamdp
// demo.
type Options struct {
	Once      bool // end when the stream is consumed; otherwise run until the context ends
	Open      bool // open the page in a browser
	Persons   bool // run the demonstration of persons
	Instances int  // at least 2: run the demonstration of instances, with as many processes

	File        *File   // the rows to stream; nil: made-up ones
	Clip        float64 // bound on a row's norm after scaling; 0: the default for made-up rows
	Step        string  // length of a step: offsets, or a period of the clock
	Workload    string  // workload of moments
	Epsilon     float64
	Delta       float64
	Adjacency   string
	Listen      string // address at which metrics and status are served
	Diagnostics bool   // compare releases with the truth, an exact function of File
	// Seed is a number from which keys and data are derived. The result is reproducible, but protects nothing. Nil:
	// keys and data are drawn at random.
	Seed *uint64

	JSON    bool      // print the result as JSON
	Stdout  io.Writer // the result is written here
	Stderr  io.Writer // progress messages are written here
	Log     *slog.Logger
	Version string // version of this build

	// Progress returns a progress bar for total units of work. total is 0 if the number is unknown.
	Progress func(total int64) Bar
	// Program returns a command that starts a process which calls RunInstance with this configuration and seed. Only
	// the demonstration of instances needs it.
	Program func(configuration string, seed uint64) (*exec.Cmd, error)
}

// File has the rows of a user's file. Centre and scale are public constants, one per column.
type File struct {
	Columns []string
	Centre  []float64
	Scale   []float64
	Next    func() (cells []string, err error) // io.EOF after the last row
}

// Bar shows the progress of some work.
type Bar interface {
	Set64(done int64) error
	Finish() error
}

// madeUpRows is the number of rows of the synthetic stream with Once.
const madeUpRows = 40_000

// Run runs the demonstration until its stream is consumed or, without Once, until ctx ends. In both cases it prints the
// result and returns nil.
func Run(ctx context.Context, o Options) error {
	switch {
	case o.Instances > 0:
		return runInstances(ctx, &o)
	case o.Persons:
		return runPersons(ctx, &o)
	}
	return runStream(ctx, &o)
}

// demonstration is the state of a running demonstration.
type demonstration struct {
	o       *Options
	step    uint64 // offsets per step; 0: steps are by the clock
	names   []string
	centre  []float64
	scale   []float64
	rows    func() ([]string, error) // returns the cells of the next row
	total   int64                    // number of rows, 0 if unknown
	mu      sync.Mutex               // guards truth, which the daemon's page also reads
	truth   *truth.Truth             // nil if the rows come from a file and the truth must not be shown
	records int64
	client  *kafka.Client // connected to the broker
	read    int64         // next offset of the boundary topic
}

// runStream runs the demonstration of one stream: broker, daemon, rows, and the comparison.
func runStream(ctx context.Context, o *Options) error {
	begun := time.Now()
	d := &demonstration{o: o}
	if err := d.steps(); err != nil {
		return err
	}
	d.open()
	dir, err := os.MkdirTemp("", "streamdp-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	broker, err := embedded.Start(embedded.Options{})
	if err != nil {
		return err
	}
	defer broker.Close()
	// Retention is unlimited: with a limit, producers' timestamps would decide which records Kafka deletes, and the
	// daemon would warn.
	if err := broker.CreateTopic(ctx, "demo", d.partitions(), map[string]string{"retention.ms": "-1"}); err != nil {
		return err
	}
	cfg, err := config.Parse("demo configuration", d.configuration(broker.Addr(), dir))
	if err != nil {
		return flagFaults(err)
	}
	if err := described(cfg); err != nil {
		return err
	}
	if o.File == nil || o.Diagnostics {
		if d.truth = truth.New(cfg.Stream("demo")); d.live() {
			d.truth.Merge(livePartitions)
		}
	}

	daemon, err := d.daemon(cfg)
	if err != nil {
		return err
	}
	defer daemon.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- daemon.Run(running) }()
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{broker.Addr()}})
	if err != nil {
		return err
	}
	defer client.Close()
	d.mu.Lock()
	d.client = client
	d.mu.Unlock()

	if !o.Once {
		if err := serving(ctx, daemon, done); err != nil {
			return err
		}
		page := "http://" + daemon.Addr() + "/"
		fmt.Fprintf(o.Stderr,
			"the page is at %s\n"+
				"broker at %s, topics demo and demo.dp; status at %sapi/v1/status, metrics at %[1]smetrics; "+
				"interrupt to end\n", page, broker.Addr(), page)
		if o.Open {
			if err := openPage(page); err != nil {
				fmt.Fprintf(o.Stderr, "streamdp: warning: %s\n", err)
			}
		}
	}
	bar := o.Progress(d.total)
	if err := d.feed(running, client, bar); err != nil && ctx.Err() == nil {
		return err
	}
	if err := d.consumed(ctx, daemon, done, bar); err != nil {
		return err
	}
	bar.Finish()
	stop()
	if err := <-done; err != nil {
		return err
	}
	result, last, err := d.judge(client)
	if err != nil {
		return err
	}
	if result.Seconds = time.Since(begun).Seconds(); d.truth == nil {
		result.Seconds = math.Ceil(result.Seconds) // rounded, because the duration depends on the records
	}
	if o.JSON {
		return json.NewEncoder(o.Stdout).Encode(result)
	}
	return d.print(o.Stdout, result, last)
}

// daemon returns the daemon. Its master key is discarded at the end of the demonstration.
func (d *demonstration) daemon(cfg *config.Config) (*stream.Daemon, error) {
	secret := dp.NewSecret()
	o := stream.Options{Config: cfg, Key: &secret, Log: d.o.Log, Version: d.o.Version}
	if d.o.Seed != nil {
		o.Key, o.InsecureSeed = connect.InsecureKey(*d.o.Seed), d.o.Seed
	}
	if d.truth != nil {
		o.Truth = d.truthOf
	}
	return stream.New(o)
}

// seed returns the seed of made-up data.
func (o *Options) seed() uint64 {
	if o.Seed != nil {
		return *o.Seed
	}
	return rand.Uint64()
}

// feed sends all rows and adds them to the truth.
func (d *demonstration) feed(ctx context.Context, client *kafka.Client, bar Bar) error {
	// Rows go to the partitions in turn.
	all := make([]*feed.Sender, d.partitions())
	rate := 0
	if d.live() {
		rate = liveRate / livePartitions
	}
	for i := range all {
		all[i] = feed.NewSender(client, "demo", int32(i), rate)
	}
	defer func() { // an interrupt may leave some rows unsent
		for _, s := range all {
			d.records += int64(s.Sent())
		}
	}()
	names := make([]string, len(d.names))
	for i := range names {
		names[i] = fmt.Sprintf("v%d", i+1)
	}
	if d.live() {
		names = append(names, liveTarget)
	}
	encode := codec.NewEncoder("json", names, nil)
	for n := 0; ; n++ {
		s := all[n%len(all)]
		cells, err := d.rows()
		if err == io.EOF {
			err = nil
			for _, s := range all {
				err = errors.Join(err, s.Flush(ctx))
			}
			return err
		}
		if err != nil {
			return err
		}
		// Add the row to the truth before sending it: if an interrupt comes in between, the daemon may already have the
		// row.
		if d.truth != nil {
			d.mu.Lock()
			d.truth.Cells(cells)
			d.mu.Unlock()
		}
		if err := s.Send(ctx, nil, encode.Encode(cells)); err != nil {
			return err
		}
		if n%1000 == 999 {
			bar.Set64(int64(n + 1))
		}
	}
}

// serving waits until the daemon's HTTP server listens, or the user interrupts.
func serving(ctx context.Context, daemon *stream.Daemon, done chan error) error {
	for daemon.Addr() == "" && ctx.Err() == nil {
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// ended returns the error to report if the daemon stopped by itself.
func ended(err error) error {
	if err == nil {
		err = errors.New("the daemon ended before the stream was consumed")
	}
	return err
}

// consumed waits until every step is published or, without Once, until the user interrupts.
func (d *demonstration) consumed(ctx context.Context, daemon *stream.Daemon, done chan error, bar Bar) error {
	step := max(1, int64(d.step)) * int64(d.partitions())
	said := false
	for {
		s := d.status(daemon)
		if s.NextOffset > d.records-step && s.Outbox == 0 || ctx.Err() != nil {
			if d.o.Once || ctx.Err() != nil {
				return nil
			}
			if !said {
				bar.Finish()
				fmt.Fprintln(d.o.Stderr, "stream consumed")
				said = true
			}
		}
		select {
		case err := <-done:
			return ended(err)
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}
