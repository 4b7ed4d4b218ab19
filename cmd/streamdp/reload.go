package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/client"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/stream/httpapi"
)

func reloadCommand(g *globals) *cobra.Command {
	var q httpapi.ReloadRequest
	c := &cobra.Command{
		Use:   "reload -c FILE",
		Short: "Make the running daemon read its configuration again",
		Long: "Make the daemon that runs on the configuration's state directory read its\n" +
			"configuration again, and print the differences. Streams are added, removed and\n" +
			"changed while the others continue. The change is all or nothing: if any part\n" +
			"cannot be applied, nothing is. A change outside of streams is refused, because\n" +
			"it takes effect only at a start. A change on which the guarantee of an open\n" +
			"epoch depends is refused too.\n\n" +
			"Nothing is charged. A new stream is halted until its first epoch is opened with\n" +
			"streamdp epoch open; with --open it is opened at once, as at a start. The epoch\n" +
			"of a removed stream stays open, and continues when the stream comes back.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			a, err := client.Reload(c.Context(), cfg.State.Dir, q)
			switch {
			case err != nil:
				return err
			case a == nil:
				return fmt.Errorf("no daemon runs on %s", cfg.State.Dir)
			}
			if a.Data != nil {
				if err := g.printReload(a.Data, q.DryRun && a.Status == "success"); err != nil {
					return err
				}
			}
			switch {
			case a.Status == "success":
				return nil
			case a.Configuration:
				return exit.Config{Err: errors.New(a.Error)}
			}
			return errors.New(a.Error)
		},
	}
	c.Flags().BoolVar(&q.Open, "open", false,
		"open and charge the first epoch of each new stream and of each stream that waits for one")
	c.Flags().BoolVar(&q.DryRun, "dry-run", false, "print the difference and change nothing")
	return c
}

// printReload prints how the configuration has changed, and what the reload did. With dry it prints what a reload would
// do.
func (g *globals) printReload(r *httpapi.Reload, dry bool) error {
	if g.json {
		return json.NewEncoder(g.stdout).Encode(r)
	}
	list := func(what string, names []string) {
		for _, name := range names {
			fmt.Fprintf(g.stdout, "%s %s\n", what, name)
		}
	}
	list("added", r.Added)
	list("removed", r.Removed)
	for _, s := range r.Changed {
		fmt.Fprintf(g.stdout, "changed %s\n", s.Stream)
		printKeys(g.stdout, s.Keys)
	}
	if len(r.Process) > 0 {
		fmt.Fprintln(g.stdout, "changed keys outside of streams:")
		printKeys(g.stdout, r.Process)
	}
	switch {
	case len(r.Added)+len(r.Removed)+len(r.Changed)+len(r.Process) == 0:
		fmt.Fprintln(g.stdout, "no differences")
	case dry:
		fmt.Fprintln(g.stdout, "nothing was changed")
	}
	if len(r.Opened) > 0 {
		fmt.Fprintf(g.stdout, "opening and charging the next epochs of: %s\n", strings.Join(r.Opened, ", "))
	}
	if len(r.Unopened) > 0 {
		fmt.Fprintf(g.stdout,
			"without an open epoch: %s; open one with streamdp epoch open STREAM, or all with streamdp reload --open\n",
			strings.Join(r.Unopened, ", "))
	}
	return nil
}

func printKeys(w io.Writer, keys []config.Difference) {
	for _, k := range keys {
		fmt.Fprintf(w, "  %s\n", k)
	}
}
