package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/internal/table"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/preflight"
)

func checkCommand(g *globals) *cobra.Command {
	var connect bool
	var sample, name, header string
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration and print its privacy statement",
		Long: "Check the configuration and the key file, build every estimator, and print\n" +
			"what each stream promises. Every fault is reported at once.\n\n" +
			"With --connect it also asks the brokers for each permission that the daemon\n" +
			"needs, and the schema registry for every version of the records' schemas. What\n" +
			"is missing, or does not go with the columns, it names. Asking changes nothing.\n\n" +
			"With --sample it decodes the records of a file as the stream would, and says\n" +
			"how many give a row and which columns hold no number: before any budget is\n" +
			"spent on a stream that reads nothing. What it prints is not private.",
		RunE: func(c *cobra.Command, _ []string) error {
			if sample != "" {
				return g.sample(c.Context(), sample, name, header)
			}
			return g.check(c.Context(), connect)
		},
	}
	c.Flags().StringVar(&sample, "sample", "",
		"decode the records of this file, as replay reads them, and check nothing else: not private")
	c.Flags().StringVar(&name, "stream", "", "stream whose records --sample has (default: the only one)")
	c.Flags().StringVar(&header, "header", "auto", "whether a CSV file of --sample has a header: "+table.HeaderUsage)
	c.Flags().BoolVar(&connect, "connect", false,
		"also ask the brokers and the schema registry: reachable, each permission there, topics and schemas "+
			"there and fit")
	return c
}

// sample decodes the records of a file and counts what they give.
func (g *globals) sample(ctx context.Context, file, name, header string) error {
	if err := table.CheckHeader(header); err != nil {
		return err
	}
	cfg, err := g.load()
	if err != nil {
		return err
	}
	s := decodedAs(cfg, name)
	if s == nil {
		return noStream(cfg, name)
	}
	schemas, err := openSchemas(ctx, cfg, s)
	if err != nil {
		return err
	}
	defer schemas.Close()
	x, err := dryrun.NewSample(schemas, s)
	if err != nil {
		return exit.Config{Err: fmt.Errorf("stream %s: %w", s.Name, err)}
	}
	next, _, _, done, err := values(file, header, &s.Input, s.Input.Fields(), texts(s))
	if err != nil {
		return err
	}
	defer done()
	for {
		value, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		x.Add(value)
	}
	if d, err := dryrun.Describe(s); err == nil && x.Records < d.WarmupOffsets { // the number of records is public
		fmt.Fprintf(g.stderr,
			"streamdp: warning: the warm-up takes the first %d records, and with these alone nothing else is "+
				"released (%s)\n", d.WarmupOffsets, fewerForWarmup)
	}
	fmt.Fprintln(g.stderr, "not private: every number here is an exact function of the records")
	if g.json {
		return json.NewEncoder(g.stdout).Encode(x)
	}
	fmt.Fprintf(g.stdout, "stream %s: %d records, %d rows, %d null", x.Stream, x.Records, x.Rows, x.Records-x.Rows)
	if x.Rows < x.Records {
		fmt.Fprintf(g.stdout, " (%s)", byReason(x.Null))
	}
	fmt.Fprintln(g.stdout)
	for _, c := range x.Columns {
		is := "is a number in"
		if !c.Plain {
			is = "can be used in"
		}
		switch {
		case x.Records == 0 || c.Numbers == x.Records:
		case c.Numbers == 0:
			fmt.Fprintf(g.stdout, "  column %s %s no record (%s)\n", c.Name, is, byReason(c.Null))
		default:
			fmt.Fprintf(g.stdout, "  column %s %s %d records (%s)\n", c.Name, is, c.Numbers, byReason(c.Null))
		}
	}
	return nil
}

// byReason lists counts by reason.
func byReason(found map[string]int64) string {
	var list []string
	for _, why := range slices.Sorted(maps.Keys(found)) {
		list = append(list, fmt.Sprintf("%s %d", why, found[why]))
	}
	return strings.Join(list, ", ")
}

// check checks the configuration and prints the guarantees. With connect it also checks the
// cluster.
func (g *globals) check(ctx context.Context, ask bool) error {
	cfg, err := g.load()
	if err != nil {
		return err
	}
	of := cfg.Representative()
	found, err := preflight.Check(ctx, cfg, ask)
	if err != nil {
		return err
	}
	if g.json {
		return json.NewEncoder(g.stdout).Encode(found)
	}
	fmt.Fprintf(g.stdout, "key %s\n", found.Key)
	for _, r := range found.Rights {
		fmt.Fprintf(g.stdout, "may %s\n", r)
	}
	for i, d := range found.Streams {
		fmt.Fprintln(g.stdout)
		if err := plan.PrintGuarantee(g.stdout, d, "configuration", canonical(of.Streams[i])); err != nil {
			return err
		}
	}
	g.printTaken(found.Config)
	for _, d := range found.Streams {
		warn(g, d)
	}
	for _, w := range found.Warnings {
		fmt.Fprintf(g.stderr, "streamdp: warning: %s\n", w)
	}
	return nil
}
