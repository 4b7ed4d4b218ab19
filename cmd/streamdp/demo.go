package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/demo"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/table"
)

func demoCommand(g *globals) *cobra.Command {
	var o demo.Options
	var rows demoRows
	var instance string // the instance's configuration; empty: this process is not an instance
	var seed uint64
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the daemon at work on a stream whose true values are known",
		Long: "Start a broker in this process, feed it a stream, run the daemon against it over\n" +
			"TCP, and compare every release with the truth.\n\n" +
			"Without --csv the stream is synthetic: nine correlated columns, the last one\n" +
			"heavy-tailed, so that some rows are clipped. With --csv the stream is your file.\n" +
			"Centre, scale and clip are then public constants that you give, never derived\n" +
			"from the rows. Releases are compared with the truth only with\n" +
			"--insecure-diagnostics.\n\n" +
			"With --once the command ends with the stream. Without it, the synthetic stream\n" +
			"lasts ten minutes, and broker and daemon then continue until they are\n" +
			"interrupted. The records are in three partitions, which are merged, with one\n" +
			"release per second. Two more streams predict a column y from v1, v2 and v3 of\n" +
			"partition 0: one continuously, the other once per window. The columns' means\n" +
			"swing, and every two minutes the relation of y to the other columns changes. The\n" +
			"command prints the address of a page that shows all this; --open opens it. Your\n" +
			"own daemon may read the topic demo (JSON, columns v1, v2 and so on) from the\n" +
			"broker.\n\n" +
			"With --persons the log has a few persons with many records and many with few.\n" +
			"Three streams show what protecting a person instead of a record costs, and what\n" +
			"is then estimated.\n\n" +
			"With --instances N, N processes share twelve partitions and keep their state in\n" +
			"the broker. One of them is killed, and the others continue its work. Finally a\n" +
			"single process reads the same log, and all releases are compared with its\n" +
			"releases.",
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("insecure-seed") {
				o.Seed = &seed
			}
			if instance != "" {
				return g.demoInstance(c.Context(), instance, o)
			}
			if err := demoUsage(&o, &rows, c.Flags().Changed); err != nil {
				return err
			}
			return g.demo(c.Context(), o, &rows)
		},
	}
	fl := c.Flags()
	fl.BoolVar(&o.Once, "once", false, "end when the stream is consumed; without it, run until interrupted")
	fl.BoolVar(&o.Persons, "persons", false,
		"run one made-up log three times: protecting a record, a person, or as many records as a person has")
	fl.IntVar(&o.Instances, "instances", 0,
		fmt.Sprintf("number of processes that share the work, 2 to %d; one of them is killed", demo.MaxInstances))
	fl.StringVar(&instance, "instance", "", "run as an instance with this configuration")
	fl.MarkHidden("instance")
	fl.BoolVar(&o.Open, "open", false, "open the page in a browser")
	fl.StringVar(&rows.csv, "csv", "", "CSV file to stream, also .gz")
	fl.StringVar(&rows.header, "header", "auto", "whether the CSV file has a header: "+table.HeaderUsage)
	fl.StringSliceVar(&rows.columns, "columns", nil, "columns of the CSV file, names or 1-based numbers (default: all)")
	fl.StringVar(&rows.centre, "centre", "0", "constant to subtract: one number, or one for each column")
	fl.StringVar(&rows.scale, "scale", "1", "constant to divide by: one number, or one for each column")
	fl.Float64Var(&o.Clip, "clip", 0, "bound on a row's norm after scaling (required with --csv)")
	fl.StringVar(&o.Step, "step", "100",
		"offsets per release, or a period of the clock; without --once and --csv the default is 1s, and offsets "+
			"count in each of the three merged partitions")
	fl.StringVar(&o.Workload, "workload", "mean",
		"workload of a release: mean, sum, exponential (decay 0.99, by the clock 0.9; the default without --once) "+
			"or window (20 steps)")
	fl.Float64Var(&o.Epsilon, "epsilon", 1, "epsilon of the guarantee")
	fl.Float64Var(&o.Delta, "delta", 1e-8, "delta of the guarantee")
	fl.StringVar(&o.Adjacency, "adjacency", "zero-out", "how neighbouring streams differ: zero-out or replace")
	fl.StringVar(&o.Listen, "listen", "127.0.0.1:0", "address of metrics and status")
	fl.BoolVar(&o.Diagnostics, "insecure-diagnostics", false,
		"compare the releases of --csv with the truth, an exact function of the file: not private")
	fl.Uint64Var(&seed, "insecure-seed", 0, "derive keys and data from a number: reproducible, but protects nothing")
	return c
}

// demoRows are the flags that choose a file and the rows to stream from it.
type demoRows struct {
	csv, header   string
	columns       []string
	centre, scale string
}

// demoUsage reports flags that cannot be used together, and fills in defaults.
func demoUsage(o *demo.Options, rows *demoRows, changed func(string) bool) error {
	without := func(flag string, names ...string) error {
		for _, name := range names {
			if changed(name) {
				return exit.Usagef("--%s cannot be used with --%s", name, flag)
			}
		}
		return nil
	}
	if o.Once && o.Open {
		return exit.Usagef("--open cannot be used with --once, with which the daemon ends with the stream")
	}
	if changed("instances") {
		err := without("instances", "csv", "header", "columns", "centre", "scale", "insecure-diagnostics", "persons",
			"listen")
		if err != nil {
			return err
		}
		if o.Instances < 2 || o.Instances > demo.MaxInstances {
			return exit.Usagef("--instances is %d, must be 2 to %d", o.Instances, demo.MaxInstances)
		}
		return nil
	}
	if o.Persons {
		return without("persons", "csv", "workload", "step", "clip", "centre", "scale", "header", "columns",
			"insecure-diagnostics")
	}
	if rows.csv == "" {
		for _, name := range []string{"header", "columns", "centre", "scale", "insecure-diagnostics"} {
			if changed(name) {
				return exit.Usagef("--%s needs --csv", name)
			}
		}
		if !o.Once && !changed("workload") {
			o.Workload = "exponential" // so that changes become visible
		}
		if !o.Once && !changed("step") {
			o.Step = "1s"
		}
		return nil
	}
	if err := table.CheckHeader(rows.header); err != nil {
		return err
	}
	if !(o.Clip > 0) {
		return exit.Usagef("--clip is required: a public bound on a row's norm after scaling")
	}
	return nil
}

// demo runs the demonstration.
func (g *globals) demo(ctx context.Context, o demo.Options, rows *demoRows) (err error) {
	if o.Log, err = g.logger("warn", "text"); err != nil {
		return err
	}
	if rows.csv != "" {
		t, err := table.Open(rows.csv, rows.header, rows.columns)
		if err != nil {
			return err
		}
		defer t.Close()
		if o.File, err = rows.file(t); err != nil {
			return err
		}
	}
	o.JSON, o.Stdout, o.Stderr, o.Version = g.json, g.stdout, g.stderr, version()
	o.Progress = func(total int64) demo.Bar { return progress(g.stderr, total, "demo") }
	o.Program = instanceProgram
	return demo.Run(ctx, o)
}

// file returns a table's chosen columns as rows for the demonstration.
func (f *demoRows) file(t *table.Table) (rows *demo.File, err error) {
	rows = &demo.File{Columns: t.Names, Next: func() ([]string, error) {
		line, err := t.Next()
		if err != nil {
			return nil, err
		}
		return t.Picked(line), nil
	}}
	if rows.Centre, err = table.Numbers("--centre", f.centre, len(t.Names)); err != nil {
		return nil, err
	}
	rows.Scale, err = table.Numbers("--scale", f.scale, len(t.Names))
	return rows, err
}

// instanceProgram returns the command that runs an instance of the demonstration: this same program.
func instanceProgram(configuration string, seed uint64) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	number := strconv.FormatUint(seed, 10)
	return exec.Command(program, "demo", "--instance", configuration, "--insecure-seed", number), nil
}

// demoInstance runs an instance in a process of its own. It shuts down when its standard input ends.
func (g *globals) demoInstance(ctx context.Context, configuration string, o demo.Options) (err error) {
	if o.Log, err = g.logger("warn", "text"); err != nil {
		return err
	}
	o.Version = version()
	return demo.RunInstance(ctx, configuration, os.Stdin, o)
}
