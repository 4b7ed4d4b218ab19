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
		Long: "Check the configuration and the key file, build every estimator, and print the\n" +
			"guarantee of each stream. All faults are reported at once.\n\n" +
			"With --connect, also ask the brokers for each permission that the daemon needs,\n" +
			"and the schema registry for every version of the records' schemas. The command\n" +
			"names what is missing or does not fit the columns. It changes nothing.\n\n" +
			"With --sample, decode the records of a file as the stream would, and print how\n" +
			"many give a row and which columns contain no numbers. This finds a wrong codec\n" +
			"or column before budget is spent on it. The output is not private.",
		RunE: func(c *cobra.Command, _ []string) error {
			if sample != "" {
				return g.sample(c.Context(), sample, name, header)
			}
			return g.check(c.Context(), connect)
		},
	}
	c.Flags().StringVar(&sample, "sample", "",
		"only decode the records of this file, which is read as by replay; the output is not private")
	c.Flags().StringVar(&name, "stream", "", "stream whose records --sample contains (default: the only one)")
	c.Flags().StringVar(&header, "header", "auto", "whether a CSV file of --sample has a header: "+table.HeaderUsage)
	c.Flags().BoolVar(&connect, "connect", false,
		"also ask brokers and schema registry: are they reachable, do permissions, topics and schemas "+
			"suffice")
	return c
}

// sample decodes the records of a file and counts rows, null records and usable columns.
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
			"streamdp: warning: the warm-up takes the first %d records, so a stream of only these records has no "+
				"release after the warm-up (%s)\n", d.WarmupOffsets, fewerForWarmup)
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

// byReason formats counts by reason.
func byReason(found map[string]int64) string {
	var list []string
	for _, why := range slices.Sorted(maps.Keys(found)) {
		list = append(list, fmt.Sprintf("%s %d", why, found[why]))
	}
	return strings.Join(list, ", ")
}

// check checks the configuration and prints the guarantees. If ask is true, it also checks what brokers and registry
// say.
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
