package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"streamdp/stream"
)

func ledgerCommand(g *globals) *cobra.Command {
	var name string
	var records []int
	c := &cobra.Command{
		Use:   "ledger -c FILE",
		Short: "Show what records have paid, by whom, and what protects a person",
		Long: "For every input partition that the ledger knows, by ranges of offsets: what a\n" +
			"record in them is charged, by which epochs, and what a person with several\n" +
			"records in them is guaranteed. The ledger's chain is checked first.\n\n" +
			"The limit is the guarantee. The sum of the charges is one too if nobody chose\n" +
			"an epoch in view of releases.",
		RunE: func(*cobra.Command, []string) error {
			for _, k := range records {
				if k < 1 {
					return usagef("--records is %d, must be at least 1", k)
				}
			}
			cfg, err := g.load()
			if err != nil {
				return err
			}
			spent, err := stream.ReadSpent(cfg.State.Dir, name, records)
			if err != nil {
				return err
			}
			switch {
			case len(spent) > 0:
			case name == "":
				fmt.Fprintf(g.stderr, "the ledger of %s charges nothing\n", cfg.State.Dir)
			case cfg.Stream(name) == nil: // else the ledger may know it from an earlier configuration
				return usagef("neither the configuration nor the ledger has a stream %s", name)
			default:
				fmt.Fprintf(g.stderr, "the ledger of %s charges nothing for stream %s\n", cfg.State.Dir, name)
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(spent)
			}
			return printSpent(g.stdout, spent)
		},
	}
	c.Flags().StringVar(&name, "stream", "", "only partitions that this stream has read")
	c.Flags().IntSliceVar(&records, "records", []int{2, 10}, "numbers of records of a person")
	return c
}

func printSpent(out io.Writer, spent []stream.Spent) error {
	for i, s := range spent {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s/%d of cluster %s: a record pays at most epsilon %s at delta %g (%s); the limit is %g\n",
			s.Topic, s.Partition, s.Cluster, stream.AtMost(s.ChargedEpsilon), s.LimitDelta, s.Adjacency, s.LimitEpsilon)
		if s.Reserved != nil {
			fmt.Fprintf(out, "  set aside for sketches: %s\n", s.Reserved)
		}
		w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
		fmt.Fprint(w, "LOG\tOFFSETS\tEPSILON")
		if len(s.Ranges) > 0 {
			for _, p := range s.Ranges[0].Persons {
				fmt.Fprintf(w, "\tPERSON WITH %d", p.Records)
			}
		}
		fmt.Fprintln(w, "\tBY")
		for _, r := range s.Ranges {
			fmt.Fprintf(w, "%d\t[%d, %s)\t%s", r.Incarnation, r.First, offset(r.End), stream.AtMost(r.Epsilon))
			for _, p := range r.Persons {
				if p.Epsilon == nil {
					fmt.Fprint(w, "\tnone")
				} else {
					fmt.Fprintf(w, "\t%.6g", *p.Epsilon)
				}
			}
			var by []string
			for _, b := range r.By {
				open := ""
				if b.Open {
					open = ", open"
				}
				by = append(by, fmt.Sprintf("%s-%d epoch %d (%g%s)", b.Stream, b.Partition, b.Epoch, b.Epsilon, open))
			}
			fmt.Fprintf(w, "\t%s\n", strings.Join(by, ", "))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
