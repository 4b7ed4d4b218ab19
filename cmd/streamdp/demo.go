package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/table"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
)

// demoFlags are the flags of demo.
type demoFlags struct {
	once, open, persons   bool
	csv, header, workload string
	diagnostics           bool
	columns               []string
	centre, scale         string
	clip, epsilon, delta  float64
	length                string
	step                  uint64 // offsets; 0: by the clock
	adjacency, listen     string
	seed                  uint64
	seeded                bool
	instances             int
	instance              string // configuration of the instance that this process is
}

// demoRecords is the length of the built-in stream with --once.
const demoRecords = 40_000

func demoCommand(g *globals) *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the daemon at work on a stream whose truth is known",
		Long: "Start a broker in this process, feed it a stream, run the daemon against it\n" +
			"over TCP, and compare every release with the truth.\n\n" +
			"Without --csv the stream is synthetic: nine correlated columns, the last one\n" +
			"heavy-tailed, so that rows are clipped. With --csv it is your file; centre,\n" +
			"scale and clip are then public constants that you give, never derived from\n" +
			"the rows, and the truth is compared and shown with --insecure-diagnostics only.\n\n" +
			"Without --once the synthetic stream lasts ten minutes, and broker and daemon run\n" +
			"on until they are interrupted. The records are in three partitions, which are\n" +
			"merged: there is one release a second. Two more streams predict a column y from\n" +
			"v1, v2 and v3 of partition 0, one while records come in and one for each window. The columns' means\n" +
			"swing, and every two minutes y is made in another way. The address of the page\n" +
			"that shows all this is printed, and --open opens it. A configuration of your\n" +
			"own may read topic demo (JSON, columns v1, v2 and so on) of the broker.\n\n" +
			"With --persons the log is one of a few busy persons and many with few records,\n" +
			"and three streams show what protecting a person instead of a record costs, and\n" +
			"what is then estimated.\n\n" +
			"With --instances so many processes share twelve partitions, with their state in\n" +
			"the broker. One of them is killed, and others go on with what it had. In the end\n" +
			"one process alone reads the same log, and all releases are compared with its.",
		RunE: func(c *cobra.Command, _ []string) error {
			f.seeded = c.Flags().Changed("insecure-seed")
			if f.instance != "" {
				return g.demoInstance(c.Context(), &f)
			}
			if f.once && f.open {
				return usagef("--open goes without --once: with it the daemon ends when the stream does")
			}
			if c.Flags().Changed("instances") {
				if err := f.instancesFlags(c.Flags().Changed); err != nil {
					return err
				}
				return g.demoInstances(c.Context(), &f)
			}
			if !f.once && f.csv == "" && !c.Flags().Changed("workload") {
				f.workload = "exponential" // what changes shall be seen
			}
			if f.persons {
				for _, name := range []string{"csv", "workload", "step", "clip", "centre", "scale", "header", "columns", "insecure-diagnostics"} {
					if c.Flags().Changed(name) {
						return usagef("--%s goes without --persons", name)
					}
				}
				return g.demoPersons(c.Context(), &f)
			}
			if err := f.steps(c.Flags().Changed("step")); err != nil {
				return err
			}
			for _, name := range []string{"header", "columns", "centre", "scale", "insecure-diagnostics"} {
				if f.csv == "" && c.Flags().Changed(name) {
					return usagef("--%s goes with --csv", name)
				}
			}
			return g.demo(c.Context(), &f)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&f.once, "once", false, "end when the stream is consumed; without it, run until interrupted")
	fl.BoolVar(&f.persons, "persons", false, "one made-up log three times: protected by record, by person, and by so many records as a person has")
	fl.IntVar(&f.instances, "instances", 0, fmt.Sprintf("processes that share the work, 2 to %d; one of them is killed", instancesMost))
	fl.StringVar(&f.instance, "instance", "", "be an instance with this configuration")
	fl.MarkHidden("instance")
	fl.BoolVar(&f.open, "open", false, "open the page in a browser")
	fl.StringVar(&f.csv, "csv", "", "CSV file to stream, also .gz")
	fl.StringVar(&f.header, "header", "auto", "whether the CSV file has a header: "+table.HeaderUsage)
	fl.StringSliceVar(&f.columns, "columns", nil, "columns of the CSV file, names or 1-based numbers (default: all)")
	fl.StringVar(&f.centre, "centre", "0", "constant to subtract, one number or one a column")
	fl.StringVar(&f.scale, "scale", "1", "constant to divide by, one number or one a column")
	fl.Float64Var(&f.clip, "clip", 0, "bound on a row's norm after scaling (required with --csv)")
	fl.StringVar(&f.length, "step", "100", "offsets per release; without --once and --csv of each of three partitions, which are merged, or a period of the clock, by default 1s")
	fl.StringVar(&f.workload, "workload", "mean", "what a release sums up: mean, sum, exponential (decay 0.99, by the clock 0.9; the default without --once) or window (20 steps)")
	fl.Float64Var(&f.epsilon, "epsilon", 1, "epsilon of the guarantee")
	fl.Float64Var(&f.delta, "delta", 1e-8, "delta of the guarantee")
	fl.StringVar(&f.adjacency, "adjacency", "zero-out", "what neighbouring streams differ in: zero-out or replace")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:0", "address of metrics and status")
	fl.BoolVar(&f.diagnostics, "insecure-diagnostics", false, "compare the releases of --csv with the truth, which is an exact function of the file")
	fl.Uint64Var(&f.seed, "insecure-seed", 0, "derive keys and data from a number: reproducible, and protecting nothing")
	return c
}

// demo is a running demonstration.
type demo struct {
	f       *demoFlags
	names   []string
	centre  []float64
	scale   []float64
	rows    func() ([]string, error) // cells of the next row
	total   int64                    // rows, 0 if unknown
	mu      sync.Mutex               // guards truth, which the daemon's page asks for
	truth   *truth                   // nil where it is that of a file, and not to be shown
	records int64
	client  *kafka.Client // of the broker
	read    int64         // of the boundary topic
}

// demo runs the demonstration: broker, daemon, rows, and the comparison.
func (g *globals) demo(ctx context.Context, f *demoFlags) (err error) {
	begun := time.Now()
	d := &demo{f: f}
	closeInput, err := d.open()
	if err != nil {
		return err
	}
	defer closeInput()
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
	// Nothing is deleted, so that producers' timestamps decide nothing.
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
	if f.csv == "" || f.diagnostics {
		if d.truth = newTruth(cfg.Stream("demo")); d.live() {
			d.truth.merge(livePartitions)
		}
	}

	daemon, err := g.demoDaemon(d, cfg)
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

	if !f.once {
		if err := serving(ctx, daemon, done); err != nil {
			return err
		}
		page := "http://" + daemon.Addr() + "/"
		fmt.Fprintf(g.stderr, "the page is at %s\nbroker at %s, topics demo and demo.dp; status at %sapi/v1/status, metrics at %[1]smetrics; interrupt to end\n", page, broker.Addr(), page)
		if f.open {
			if err := openPage(page); err != nil {
				fmt.Fprintf(g.stderr, "streamdp: warning: %s\n", err)
			}
		}
	}
	bar := progress(g.stderr, d.total, "demo")
	if err := d.feed(running, client, bar); err != nil && ctx.Err() == nil {
		return err
	}
	if err := d.consumed(ctx, daemon, done, bar, g.stderr); err != nil {
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
	if result.Seconds = wholeSeconds(begun); d.truth != nil {
		result.Seconds = time.Since(begun).Seconds()
	}
	if g.json {
		return json.NewEncoder(g.stdout).Encode(result)
	}
	return d.print(g.stdout, result, last)
}

// demoDaemon returns the daemon. Its master key exists as long as the demonstration.
func (g *globals) demoDaemon(d *demo, cfg *config.Config) (*stream.Daemon, error) {
	log, err := g.logger("warn", "text")
	if err != nil {
		return nil, err
	}
	secret := dp.NewSecret()
	o := stream.Options{Config: cfg, Key: &secret, Log: log, Version: version()}
	if d.f.seeded {
		o.Key, o.InsecureSeed = connect.InsecureKey(d.f.seed), &d.f.seed
	}
	if d.truth != nil {
		o.Truth = d.truthOf
	}
	return stream.New(o)
}

// feed sends all rows and adds them to the truth.
func (d *demo) feed(ctx context.Context, client *kafka.Client, bar *progressbar.ProgressBar) error {
	// The rows go round the partitions.
	all := make([]*sender, d.partitions())
	for i := range all {
		all[i] = &sender{client: client, topic: "demo", partition: int32(i), started: time.Now()}
		if d.live() {
			all[i].rate = liveRate / livePartitions
		}
	}
	defer func() { // an interrupt may leave some unsent
		for _, s := range all {
			d.records += int64(s.count - len(s.batch))
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
				err = errors.Join(err, s.flush(ctx))
			}
			return err
		}
		if err != nil {
			return err
		}
		// Add first, then send: at an interrupt the daemon may have the row already.
		if d.truth != nil {
			d.mu.Lock()
			d.truth.cells(cells)
			d.mu.Unlock()
		}
		if err := s.send(ctx, encode.Encode(cells)); err != nil {
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

// ended returns the error of a daemon that stopped by itself.
func ended(err error) error {
	if err == nil {
		err = errors.New("the daemon ended before the stream was consumed")
	}
	return err
}

// consumed waits until every step is published or, without --once, until the
// user interrupts.
func (d *demo) consumed(ctx context.Context, daemon *stream.Daemon, done chan error, bar *progressbar.ProgressBar, stderr io.Writer) error {
	step := max(1, int64(d.f.step)) * int64(d.partitions())
	said := false
	for {
		s := d.status(daemon)
		if s.NextOffset > d.records-step && s.Outbox == 0 || ctx.Err() != nil {
			if d.f.once || ctx.Err() != nil {
				return nil
			}
			if !said {
				bar.Finish()
				fmt.Fprintln(stderr, "stream consumed")
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
