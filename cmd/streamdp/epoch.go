package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"streamdp/config"
	"streamdp/stream"
)

func epochCommand(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "epoch",
		Short: "List, open and close epochs",
		Long: "An epoch is one run of a stream's mechanism with one configuration and one\n" +
			"key, charged once. A new one is the way out of every refusal and every halt.",
	}
	c.AddCommand(epochListCommand(g), epochOpenCommand(g), epochCloseCommand(g))
	return c
}

func epochListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "list -c FILE",
		Short: "List all epochs and what they charge",
		RunE: func(*cobra.Command, []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			epochs, err := stream.ReadEpochs(cfg.State.Dir)
			if err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(epochs)
			}
			if len(epochs) == 0 {
				fmt.Fprintf(g.stderr, "the ledger of %s has no epochs\n", cfg.State.Dir)
				return nil
			}
			w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
			fmt.Fprintln(w, "STREAM\tPARTITION\tEPOCH\tSTATE\tTOPIC\tLOG\tOFFSETS\tEPSILON\tDELTA\tADJACENCY\tOPENED\tREASON")
			for _, e := range epochs {
				fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s/%d\t%d\t[%d, %s)\t%g\t%g\t%s\t%s\t%s\n", e.Stream, e.Partition, e.Epoch, e.State,
					e.Topic, e.Partition, e.Incarnation, e.First, offset(e.End), e.Epsilon, e.Delta, e.Adjacency, e.Opened.UTC().Format("2006-01-02 15:04Z"), e.Reason)
			}
			return w.Flush()
		},
	}
}

// offset is the end of a range of offsets, −1 for none.
func offset(end int64) string {
	if end < 0 {
		return "…"
	}
	return fmt.Sprint(end)
}

// epochFlags are what open and close have in common.
type epochFlags struct {
	partition int
	yes       bool
	open      stream.OpenRequest
}

func epochOpenCommand(g *globals) *cobra.Command {
	var f epochFlags
	c := &cobra.Command{
		Use:   "open STREAM -c FILE",
		Short: "Close the open epoch, if there is one, and open another",
		Long: "Close the open epoch of a task and open another under the present\n" +
			"configuration. The new one starts from nothing and is charged in full; where\n" +
			"it begins at the offset at which the old one ended, no record pays twice.",
		Args: needs("STREAM"),
		RunE: func(c *cobra.Command, args []string) error { return g.changeEpoch(c.Context(), "open", args[0], &f) },
	}
	f.register(c)
	c.Flags().StringVar(&f.open.From, "from", "continue", "where it begins: continue, earliest, latest or an offset")
	c.Flags().BoolVar(&f.open.SameLog, "same-log", false, "assert that the log is the one of the old epoch, where retention has deleted the record that would prove it")
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
	c.Flags().Lookup("partition").DefValue = "0" // which the help leaves out
	c.Flags().BoolVar(&f.open.DropOutbox, "drop-outbox", false, "give up releases that are not published yet")
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
}

// changeEpoch asks the operator, then the running daemon or, where none runs,
// does it itself under the directory's lock.
func (g *globals) changeEpoch(ctx context.Context, kind, name string, f *epochFlags) error {
	cfg, err := g.load()
	if err != nil {
		return err
	}
	s := cfg.Stream(name)
	if s == nil {
		return noStream(cfg, name)
	}
	task := stream.Task{Stream: name, Partition: f.partition}
	if f.partition < 0 {
		if task.Partition, err = one(s.Input.Partitions, "partition", "--partition"); err != nil {
			return err
		}
	} else if !slices.Contains(s.Input.Partitions, f.partition) {
		return usagef("stream %s does not read partition %d", name, f.partition)
	}
	if kind == "open" && f.open.From != "continue" && new(config.Start).UnmarshalText([]byte(f.open.From)) != nil {
		return usagef("--from is %q, must be continue, earliest, latest or an offset", f.open.From)
	}
	f.open.Reason = "requested"
	if !f.yes {
		if err := g.confirm(cfg, s, task, kind); err != nil {
			return err
		}
	}
	asked, err := askDaemon(ctx, cfg, kind, stream.ControlRequest{Stream: name, Partition: task.Partition, Open: f.open})
	if err == nil && !asked {
		err = g.changeAlone(ctx, kind, task, f.open)
	}
	if err != nil {
		return err
	}
	return g.changed(cfg, s, task)
}

// changeAlone changes the epoch where no daemon runs.
func (g *globals) changeAlone(ctx context.Context, kind string, task stream.Task, open stream.OpenRequest) error {
	d, err := g.daemon([]stream.Task{task})
	if err != nil {
		return err
	}
	defer d.Close()
	if kind == "open" {
		return d.OpenEpoch(ctx, task, open)
	}
	return d.CloseEpoch(ctx, task, open.DropOutbox)
}

// changed shows the task's newest epoch and what is spent.
func (g *globals) changed(cfg *config.Config, s *config.Stream, t stream.Task) error {
	epochs, err := stream.ReadEpochs(cfg.State.Dir)
	if err != nil {
		return err
	}
	charged, err := stream.ChargedEpsilon(cfg.State.Dir, s, t.Partition)
	if err != nil {
		return err
	}
	for _, e := range slices.Backward(epochs) {
		if e.Stream != t.Stream || e.Partition != t.Partition {
			continue
		}
		if g.json {
			return json.NewEncoder(g.stdout).Encode(e)
		}
		if e.State == "open" {
			fmt.Fprintf(g.stdout, "epoch %d of %s is open from offset %d of %s/%d\n", e.Epoch, t, e.First, e.Topic, e.Partition)
		} else {
			fmt.Fprintf(g.stdout, "epoch %d of %s is closed; it is charged for offsets [%d, %s) of %s/%d\n", e.Epoch, t, e.First, offset(e.End), e.Topic, e.Partition)
		}
		fmt.Fprintf(g.stdout, "records have paid at most %s so far; the limit is %g\n", stream.AtMost(charged), s.Privacy.LimitEpsilon)
		break
	}
	return nil
}

// confirm shows what the change charges and asks for a yes.
func (g *globals) confirm(cfg *config.Config, s *config.Stream, t stream.Task, kind string) error {
	if kind == "close" {
		fmt.Fprintf(g.stderr, "The open epoch of %s ends. Its secret and state are destroyed; its charge stays.\n", t)
	} else {
		charged, err := stream.ChargedEpsilon(cfg.State.Dir, s, t.Partition)
		if err != nil {
			return err
		}
		p := s.Privacy
		fmt.Fprintf(g.stderr, "A new epoch of %s charges epsilon %g at delta %g (%s).\n"+
			"Records of %s/%d have paid at most %s so far; the limit is %g.\n",
			t, p.Epsilon, p.Delta, p.Adjacency, s.Input.Topic, t.Partition, stream.AtMost(charged), p.LimitEpsilon)
	}
	fmt.Fprint(g.stderr, "Go on? [y/N] ")
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
		return nil
	}
	if err == io.EOF {
		fmt.Fprintln(g.stderr)
	} else if err != nil {
		return err
	}
	return errors.New("not done (--yes does not ask)")
}

// askDaemon sends a request to the daemon that runs on the state directory; it
// reports whether there is one.
func askDaemon(ctx context.Context, cfg *config.Config, kind string, q stream.ControlRequest) (asked bool, err error) {
	path := filepath.Join(cfg.State.Dir, stream.ControlSocket)
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	body, err := json.Marshal(q)
	if err != nil {
		return false, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://daemon/epoch/"+kind, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	res, err := client.Do(req)
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false, nil // no daemon
	}
	if err != nil {
		return true, err
	}
	defer res.Body.Close()
	var answer stream.ControlAnswer
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		return true, fmt.Errorf("the daemon answered %s", res.Status)
	}
	return true, answer.Err()
}
