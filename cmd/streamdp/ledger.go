package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/recovery"
)

func ledgerCommand(g *globals) *cobra.Command {
	var name string
	var records, persons []int
	c := &cobra.Command{
		Use:   "ledger -c FILE",
		Short: "Show what records and persons have paid, and which epochs charged it",
		Long: "For every input partition whose records are protected, show by ranges of\n" +
			"offsets: the charge to a record, the epochs that charge it, and the guarantee of\n" +
			"a person with several records in the range. For every population whose persons\n" +
			"are protected, show the charge to a person, the epochs that charge it, and the\n" +
			"guarantee of several persons together. The command checks the ledger's hash\n" +
			"chain first.\n\n" +
			"The limit is the guarantee. The sum of the charges is a guarantee too, but only\n" +
			"if nobody looked at releases before deciding on an epoch.",
		RunE: func(c *cobra.Command, _ []string) error {
			for _, k := range records {
				if k < 1 {
					return exit.Usagef("--records is %d, must be at least 1", k)
				}
			}
			for _, k := range persons {
				if k < 1 {
					return exit.Usagef("--persons is %d, must be at least 1", k)
				}
			}
			cfg, err := g.load()
			if err != nil {
				return err
			}
			books, err := g.books(c.Context(), cfg)
			if err != nil {
				return err
			}
			spent, err := books.Spent(name, records)
			if err != nil {
				return err
			}
			populations, err := books.Populations(name, persons)
			if err != nil {
				return err
			}
			switch {
			case len(spent)+len(populations) > 0:
			case name == "":
				fmt.Fprintf(g.stderr, "%s nothing\n", ledgersOf(cfg, "charges", "charge"))
			case cfg.Named(name) == nil: // otherwise the ledger may have it, from an earlier configuration
				return exit.Usagef("neither the configuration nor the ledger has a stream %s", name)
			default:
				fmt.Fprintf(g.stderr, "%s nothing for stream %s\n", ledgersOf(cfg, "charges", "charge"), name)
			}
			if g.json {
				all := []any{}
				for _, s := range spent {
					all = append(all, s)
				}
				for _, p := range populations {
					all = append(all, p)
				}
				return json.NewEncoder(g.stdout).Encode(all)
			}
			if err := printSpent(g.stdout, spent); err != nil {
				return err
			}
			if len(spent) > 0 && len(populations) > 0 {
				fmt.Fprintln(g.stdout)
			}
			return printPopulations(g.stdout, populations)
		},
	}
	c.AddCommand(ledgerRepairCommand(g))
	c.Flags().StringVar(&name, "stream", "", "only partitions that this stream has read")
	c.Flags().IntSliceVar(&records, "records", []int{2, 10},
		"numbers of records of one person, for epochs that protect records")
	c.Flags().IntSliceVar(&persons, "persons", []int{2, 10},
		"numbers of persons taken together, for epochs that protect persons")
	return c
}

func ledgerRepairCommand(g *globals) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "repair -c FILE",
		Short: "Reconstruct a damaged, lost or outdated ledger",
		Long: "Reconstruct the ledger from those of its lines that are intact, and from the\n" +
			"control topic, manifests, checkpoints and secrets. The command shows the lines\n" +
			"to be added first. It keeps the old ledger under another name.\n\n" +
			"Where evidence is missing, the repair assumes the higher charge: if the closing\n" +
			"of an epoch without a horizon is lost, the epoch is charged without end. If you\n" +
			"have a backup of the newest ledger, prefer it. The command names and refuses a\n" +
			"manifest that nothing confirms. No daemon may run on the directory.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := g.alone()
			if err != nil {
				return err
			}
			key, err := loadKey(cfg)
			if err != nil {
				return err
			}
			log, err := g.logger("warn", cfg.Log.Format)
			if err != nil {
				return err
			}
			o := stream.Options{Config: cfg, Key: key, Log: log, Version: version()}
			diff, err := stream.RepairLedger(c.Context(), o, false)
			if err != nil {
				return err
			}
			if len(diff.Added) == 0 && diff.Dropped == 0 {
				if g.json {
					return json.NewEncoder(g.stdout).Encode(diff)
				}
				fmt.Fprintf(g.stderr, "the ledger of %s is complete: no other file shows a missing line\n",
					cfg.State.Dir)
				return nil
			}
			if !yes {
				printRepair(g.stderr, diff)
				if err := g.ask(); err != nil {
					return err
				}
			}
			if diff, err = stream.RepairLedger(c.Context(), o, true); err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(diff)
			}
			printRepair(g.stdout, diff)
			fmt.Fprintf(g.stdout, "repaired the ledger; the old one is %s\n", diff.Old)
			return nil
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// printRepair prints what a repair changes.
func printRepair(out io.Writer, r *recovery.LedgerRepair) {
	fmt.Fprintf(out, "%d lines of the ledger are intact; the %d bytes after them are damaged\n", r.Kept, r.Dropped)
	for _, e := range r.Added {
		fmt.Fprintf(out, "+ %s %s epoch %d", e.Kind, e.Task(), e.Epoch)
		switch e.Kind {
		case "open":
			fmt.Fprintf(out, ": epsilon %g at delta %g (%s) from offset %d of %s/%s", e.Epsilon, e.Delta,
				e.Cost.Adjacency, e.First, e.Topic, core.PartitionName(e.Source.Partition))
		case "close":
			fmt.Fprintf(out, ": charged up to offset %s", words.Offset(e.End))
		}
		fmt.Fprintln(out)
	}
}

// printPopulations prints what persons have paid.
func printPopulations(out io.Writer, all []ledger.PopulationSpent) error {
	for i, p := range all {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "population %s: a person pays at most epsilon %s at delta %g (%s), mu %.6g; the limit is %g\n",
			p.Population, core.AtMost(p.ChargedEpsilon), p.LimitDelta, p.Adjacency, p.Mu, p.LimitEpsilon)
		for _, c := range p.Limits {
			fmt.Fprintf(out, "  the limit changed on %s: from epsilon %g at delta %g to %g at %g\n",
				c.Time.Format(time.DateTime), c.OldLimitEpsilon, c.OldLimitDelta, c.LimitEpsilon, c.LimitDelta)
		}
		for _, g := range p.Persons {
			if g.Epsilon == nil {
				fmt.Fprintf(out, "  %d persons together have no guarantee\n", g.Count)
			} else {
				fmt.Fprintf(out, "  %d persons together pay at most epsilon %.6g\n", g.Count, *g.Epsilon)
			}
		}
		if p.OnePartition {
			fmt.Fprintln(out,
				"  every user key counts in one partition only: mu is the root of the sum of its squares over the "+
					"epochs of a partition, for the partition where this is largest")
		} else {
			fmt.Fprintln(out, "  a person may have records in all partitions: mu is the root of the sum of its "+
				"squares "+
				"over all epochs")
		}
		if n := len(p.Epochs); n > 0 && p.Epochs[n-1].Period > 0 {
			fmt.Fprintf(out,
				"  the unit is one user key in one period of %d steps; a person with records in q periods of an epoch "+
					"pays q times as much\n", p.Epochs[n-1].Period)
			fmt.Fprintf(out,
				"  consecutive epochs of a task are grouped until they have %d steps; a person pays for one group "+
					"per task, and mu is for the most expensive group\n", p.Epochs[n-1].Period)
		}
		w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
		fmt.Fprintln(w, "TASK\tEPOCH\tTOPIC\tUSER KEY\tSTEPS\tAPART\tPER STEP\tPARTITIONER\tMU\tEPSILON\tSTATE")
		for _, e := range p.Epochs {
			state := "closed"
			switch {
			case e.Open:
				state = "open"
			case !e.Charged:
				state = "closed without a step, charges nothing"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%d\t%s\t%.6g\t%g\t%s\n",
				core.Task{Stream: e.Stream, Partition: e.Partition}, e.Epoch, e.Topic,
				e.Key, e.Cap, e.Separation, e.PerStep, e.Partitioner, e.Mu, e.Epsilon, state)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func printSpent(out io.Writer, spent []ledger.Spent) error {
	for i, s := range spent {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s/%d of cluster %s: a record pays at most epsilon %s at delta %g (%s); the limit is %g\n",
			s.Topic, s.Partition, s.Cluster, core.AtMost(s.ChargedEpsilon), s.LimitDelta, s.Adjacency, s.LimitEpsilon)
		for _, c := range s.Limits {
			fmt.Fprintf(out, "  the limit changed on %s: from epsilon %g at delta %g to %g at %g\n",
				c.Time.Format(time.DateTime), c.OldLimitEpsilon, c.OldLimitDelta, c.LimitEpsilon, c.LimitDelta)
		}
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
			fmt.Fprintf(w, "%d\t[%d, %s)\t%s", r.Incarnation, r.First, words.Offset(r.End), core.AtMost(r.Epsilon))
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
				by = append(by,
					fmt.Sprintf("%s epoch %d (%g%s)", core.Task{Stream: b.Stream, Partition: b.Partition}, b.Epoch,
						b.Epsilon, open))
			}
			fmt.Fprintf(w, "\t%s\n", strings.Join(by, ", "))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
