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
		Short: "Have the running daemon read its configuration again",
		Long: "Have the daemon that runs on the configuration's state directory read its\n" +
			"configuration again, and print the difference. Streams are added, removed and\n" +
			"changed while the others go on: all of it or, where anything can't be taken,\n" +
			"nothing. What other tables say takes effect at a start only; so it is refused,\n" +
			"as is a change on which the guarantee of an open epoch depends.\n\n" +
			"Nothing is charged: a stream that is added waits, halted, until somebody opens\n" +
			"its first epoch with streamdp epoch open. With --open it is opened at once, as\n" +
			"at a start. The epoch of a stream that is removed stays open, and goes on when\n" +
			"the stream comes back.",
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
		"open the first epoch of each stream that is added, and of those that wait for it: it is charged")
	c.Flags().BoolVar(&q.DryRun, "dry-run", false, "print the difference and change nothing")
	return c
}

// printReload prints how the configuration differs, and what became of that. dry says that it is only what
// would.
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
		fmt.Fprintln(g.stdout, "changed outside of streams")
		printKeys(g.stdout, r.Process)
	}
	switch {
	case len(r.Added)+len(r.Removed)+len(r.Changed)+len(r.Process) == 0:
		fmt.Fprintln(g.stdout, "nothing differs")
	case dry:
		fmt.Fprintln(g.stdout, "nothing was changed")
	}
	if len(r.Opened) > 0 {
		fmt.Fprintf(g.stdout, "their next epochs open, and are charged: %s\n", strings.Join(r.Opened, ", "))
	}
	if len(r.Unopened) > 0 {
		fmt.Fprintf(g.stdout,
			"without an open epoch: %s; streamdp epoch open STREAM opens one, streamdp reload --open all of them\n",
			strings.Join(r.Unopened, ", "))
	}
	return nil
}

func printKeys(w io.Writer, keys []config.Difference) {
	for _, k := range keys {
		fmt.Fprintf(w, "  %s\n", k)
	}
}
