package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/task"
)

func epochCommand(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "epoch",
		Short: "List, open, close and export epochs",
		Long: "An epoch is one run of a stream's mechanism with one configuration and one key.\n" +
			"It is charged once. If a task refuses to continue or has halted, a new epoch\n" +
			"always lets it continue.",
	}
	c.AddCommand(epochListCommand(g), epochOpenCommand(g), epochCloseCommand(g), epochExportCommand(g))
	return c
}

func epochListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "list -c FILE",
		Short: "List all epochs and what they charge",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			books, err := g.books(c.Context(), cfg)
			if err != nil {
				return err
			}
			epochs := books.Epochs()
			if g.json {
				return json.NewEncoder(g.stdout).Encode(epochs)
			}
			if len(epochs) == 0 {
				fmt.Fprintf(g.stderr, "%s no epochs\n", ledgersOf(cfg, "has", "have"))
				return nil
			}
			w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
			fmt.Fprintln(w,
				"STREAM\tPARTITION\tEPOCH\tSTATE\tTOPIC\tLOG\tOFFSETS\tUNIT\tEPSILON\tDELTA\tADJACENCY\tOPENED\tREASON")
			for _, e := range epochs {
				unit := "record"
				if e.Unit != "" {
					unit = e.Unit
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s/%s\t%d\t[%d, %s)\t%s\t%g\t%g\t%s\t%s\t%s\n", e.Stream,
					core.PartitionName(e.Partition), e.Epoch, e.State,
					e.Topic, core.PartitionName(e.Partition), e.Incarnation, e.First, words.Offset(e.End), unit,
					e.Epsilon, e.Delta, e.Adjacency, e.Opened.UTC().Format("2006-01-02 15:04Z"), e.Reason)
			}
			return w.Flush()
		},
	}
}

// epochFlags are the flags that the commands open and close share.
type epochFlags struct {
	partition int
	yes       bool
	open      epoch.OpenRequest
}

func epochOpenCommand(g *globals) *cobra.Command {
	var f epochFlags
	c := &cobra.Command{
		Use:   "open STREAM -c FILE",
		Short: "Close the open epoch, if any, and open another one",
		Long: "Close the open epoch of a task and open another one under the present\n" +
			"configuration. The new epoch starts without state and is charged in full. If it\n" +
			"begins at the offset where the old one ended, no record pays twice. Persons pay\n" +
			"for every epoch, wherever it begins.",
		Args: needs("STREAM"),
		RunE: func(c *cobra.Command, args []string) error { return g.changeEpoch(c.Context(), "open", args[0], &f) },
	}
	f.register(c)
	c.Flags().StringVar(&f.open.From, "from", "continue", "where the new epoch begins: continue, earliest, latest or "+
		"an offset")
	c.Flags().BoolVar(&f.open.SameLog, "same-log", false,
		"assert that this is the log of the old epoch; needed if retention has deleted the record that proves it")
	return c
}

func epochCloseCommand(g *globals) *cobra.Command {
	var f epochFlags
	c := &cobra.Command{
		Use:   "close STREAM -c FILE",
		Short: "Close the open epoch and destroy its secret",
		Args:  needs("STREAM"),
		RunE:  func(c *cobra.Command, args []string) error { return g.changeEpoch(c.Context(), "close", args[0], &f) },
	}
	f.register(c)
	return c
}

func (f *epochFlags) register(c *cobra.Command) {
	c.Flags().IntVar(&f.partition, "partition", -1, "input partition (default: the stream's only one)")
	c.Flags().Lookup("partition").DefValue = "0" // so that the help omits it
	c.Flags().BoolVar(&f.open.DropOutbox, "drop-outbox", false, "discard releases that are not published yet")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
}

// changeEpoch asks the operator to confirm, and then calls change.
func (g *globals) changeEpoch(ctx context.Context, kind, name string, f *epochFlags) error {
	cfg, err := g.load()
	if err != nil {
		return err
	}
	books, err := g.books(ctx, cfg)
	if err != nil {
		return err
	}
	s := cfg.Named(name)
	if kind == "close" && (s == nil || f.partition >= 0 && !s.Input.Reads(f.partition) || f.partition < 0 && !s.Merge) {
		left := abandoned(books, s, name)
		if len(left) > 0 && (s == nil || f.partition >= 0 || slices.Contains(left, core.Merged)) {
			s = &config.Stream{Name: name, Merge: slices.Contains(left, core.Merged),
				Input: config.Input{Partitions: left}}
		}
	}
	if s == nil {
		return noStream(cfg, name)
	}
	task, err := taskOf(s, f.partition)
	if err != nil {
		return err
	}
	if kind == "open" && f.open.From != "continue" && new(config.Start).UnmarshalText([]byte(f.open.From)) != nil {
		return exit.Usagef("--from is %q, must be continue, earliest, latest or an offset", f.open.From)
	}
	f.open.Reason = "requested"
	if !f.yes {
		if err := g.confirm(books, s, task, kind, f.open.From); err != nil {
			return err
		}
	}
	if err := g.change(ctx, cfg, kind, task, f.open); err != nil {
		return err
	}
	if books, err = g.books(ctx, cfg); err != nil {
		return err
	}
	return g.changed(books, s, task)
}

// change lets a running process change the epoch: with [cluster] the instance that runs the task, otherwise the daemon
// that uses the state directory. If no daemon uses it, change takes the directory's lock and changes the epoch itself.
func (g *globals) change(ctx context.Context, cfg *config.Config, kind string, t core.Task,
	open epoch.OpenRequest) error {
	q := task.NewRequest(kind, t)
	q.Open = open
	if cfg.Cluster != nil {
		key, err := loadKey(cfg)
		if err != nil {
			return err
		}
		return cluster.Ask(ctx, cfg, key, q)
	}
	return g.command(ctx, cfg, q)
}

// abandoned returns the partitions of a stream that have an open epoch but that the configuration does not name. s is
// nil if the configuration does not have the stream.
func abandoned(books *ledger.Books, s *config.Stream, name string) (partitions []int) {
	for _, e := range books.Epochs() {
		if e.Stream == name && e.State == "open" &&
			(s == nil || !s.Input.Reads(e.Partition) && !(s.Merge && e.Partition == core.Merged)) {
			partitions = append(partitions, e.Partition)
		}
	}
	return partitions
}

// changed prints the task's newest epoch and what its records or persons have paid.
func (g *globals) changed(books *ledger.Books, s *config.Stream, t core.Task) error {
	for _, e := range slices.Backward(books.Epochs()) {
		if e.Stream != t.Stream || e.Partition != t.Partition {
			continue
		}
		if g.json {
			return json.NewEncoder(g.stdout).Encode(e)
		}
		if e.State == "open" {
			fmt.Fprintf(g.stdout, "epoch %d of %s is open from offset %s of %s\n", e.Epoch, t, firsts(e), inputOf(e))
		} else {
			fmt.Fprintf(g.stdout, "epoch %d of %s is closed and charged for offsets %s of %s\n", e.Epoch, t,
				ranges(e), inputOf(e))
		}
		if s.Input.Topic == "" { // the stream is not in the configuration
			break
		}
		charged, err := books.Charged(s, t.Partition)
		if err != nil {
			return err
		}
		payers := "records"
		if s.User != nil {
			payers = "persons of population " + s.User.Population
		}
		fmt.Fprintf(g.stdout, "%s have paid at most %s so far; the limit is %g\n", payers, core.AtMost(charged),
			s.Privacy.LimitEpsilon)
		break
	}
	return nil
}

// confirm prints what the change costs and asks the operator to confirm.
func (g *globals) confirm(books *ledger.Books, s *config.Stream, t core.Task, kind, from string) error {
	if kind == "close" {
		fmt.Fprintf(g.stderr, "This ends the open epoch of %s. Its secret and state are destroyed; its charge "+
			"remains.\n", t)
	} else {
		charged, err := books.Charged(s, t.Partition)
		if err != nil {
			return err
		}
		p := s.Privacy
		begins, err := beginning(books, s, t, from)
		if err != nil {
			return err
		}
		payers := fmt.Sprintf("Records of %s/%s", s.Input.Topic, core.PartitionName(t.Partition))
		if s.User != nil {
			payers = "It charges all persons again, wherever it begins. Persons of population " + s.User.Population
		}
		fmt.Fprintf(g.stderr, "A new epoch of %s charges epsilon %g at delta %g (%s).\nIt begins %s.\n"+
			"%s have paid at most %s so far; the limit is %g.\n",
			t, p.Epsilon, p.Delta, p.Adjacency, begins, payers, core.AtMost(charged), p.LimitEpsilon)
	}
	return g.ask()
}

// beginning describes where a new epoch of a task will begin, as far as the ledger shows it.
func beginning(books *ledger.Books, s *config.Stream, t core.Task, from string) (string, error) {
	for _, e := range slices.Backward(books.Epochs()) {
		switch {
		case from != "continue" || e.Stream != t.Stream || e.Partition != t.Partition:
		case e.State == "open":
			return fmt.Sprintf("after the last committed step of epoch %d (this epoch began at offset %s)",
				e.Epoch, firsts(e)), nil
		case len(e.Parts) > 0:
			return fmt.Sprintf("where epoch %d ended (its offsets: %s)", e.Epoch, ranges(e)), nil
		case e.End >= 0:
			return fmt.Sprintf("at offset %d, where epoch %d ended, or at the log's first offset if that is "+
				"later", e.End,
				e.Epoch), nil
		}
	}
	if from == "continue" { // the first epoch begins at input.start
		start, err := s.Input.Start.MarshalText()
		if err != nil {
			return "", err
		}
		from = string(start)
	}
	switch from {
	case "earliest":
		return "at the log's first offset", nil
	case "latest":
		return "at the end of the log", nil
	}
	return "at offset " + from, nil
}

// ask asks the operator to confirm.
func (g *globals) ask() error {
	fmt.Fprint(g.stderr, "Continue? [y/N] ")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	if err == io.EOF {
		fmt.Fprintln(g.stderr)
	} else if err != nil {
		return err
	}
	return errors.New("cancelled: not confirmed (--yes skips the question)")
}

// inputOf names the input of an epoch: one partition, or all partitions of a merged epoch.
func inputOf(e ledger.EpochInfo) string {
	if len(e.Parts) == 0 {
		return fmt.Sprintf("%s/%d", e.Topic, e.Partition)
	}
	var numbers []string
	for _, p := range e.Parts {
		numbers = append(numbers, fmt.Sprint(p.Partition))
	}
	return fmt.Sprintf("%s/%s", e.Topic, strings.Join(numbers, ","))
}

// firsts lists the first offset of an epoch in each partition.
func firsts(e ledger.EpochInfo) string {
	if len(e.Parts) == 0 {
		return fmt.Sprint(e.First)
	}
	var all []string
	for _, p := range e.Parts {
		all = append(all, fmt.Sprint(p.First))
	}
	return strings.Join(all, ",")
}

// ranges lists the offsets of an epoch in each partition.
func ranges(e ledger.EpochInfo) string {
	if len(e.Parts) == 0 {
		return fmt.Sprintf("[%d, %s)", e.First, words.Offset(e.End))
	}
	var all []string
	for _, p := range e.Parts {
		all = append(all, fmt.Sprintf("[%d, %s)", p.First, words.Offset(p.End)))
	}
	return strings.Join(all, ", ")
}
