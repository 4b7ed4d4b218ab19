package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

func clusterCommand(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Set up and watch instances that share tasks",
		Long: "With the table [cluster] in the configuration, several instances with the same\n" +
			"configuration and key share the tasks and keep their state in Kafka.",
	}
	c.AddCommand(clusterInitCommand(g), clusterStatusCommand(g), clusterCheckCommand(g), clusterImportCommand(g),
		clusterExportCommand(g))
	return c
}

// together loads the configuration, and fails if it has no [cluster].
func (g *globals) together() (*config.Config, error) {
	c, err := g.load()
	if err == nil && c.Cluster == nil {
		err = exit.Config{Err: errors.New("the configuration has no table [cluster]")}
	}
	return c, err
}

// togetherWithKey does what together does, and also reads the master key.
func (g *globals) togetherWithKey() (*config.Config, *[32]byte, error) {
	c, err := g.together()
	if err != nil {
		return nil, nil, err
	}
	key, err := loadKey(c)
	return c, key, err
}

func clusterInitCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "init -c FILE",
		Short: "Create the group's topics and start its ledgers, once",
		Long: "Create the topics of the group and start the ledger of each shard. No other\n" +
			"command creates them, so that a lost ledger cannot come back empty. Run it once,\n" +
			"before the first instance. If it fails, run it again.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, key, err := g.togetherWithKey()
			if err != nil {
				return err
			}
			begun := 0
			if err := cluster.Init(c.Context(), cfg, key, func(int) { begun++ }); err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(
					map[string]any{"group": cfg.Cluster.Group, "shards": cfg.Cluster.Shards, "begun": begun})
			}
			if begun == 0 {
				fmt.Fprintf(g.stdout, "group %s already has its topics and %d ledgers\n", cfg.Cluster.Group,
					cfg.Cluster.Shards)
				return nil
			}
			fmt.Fprintf(g.stdout,
				"group %s has its topics; started %d of %d ledgers\nnext, on each machine: streamdp run -c %s\n",
				cfg.Cluster.Group, begun, cfg.Cluster.Shards, g.config)
			return nil
		},
	}
}

func clusterStatusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "status -c FILE",
		Short: "Show the instances of the group and their shards",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := g.together()
			if err != nil {
				return err
			}
			s, err := cluster.Look(c.Context(), cfg)
			if err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(s)
			}
			if len(s.Members) == 0 {
				fmt.Fprintf(g.stdout, "group %s has no instances, so no task runs\n", s.Group)
				return nil
			}
			w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
			fmt.Fprintln(w, "INSTANCE\tVERSION\tSHARDS\tSTATUS PAGE\tSTANDS BY")
			for _, m := range s.Members {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", m.Instance, m.Version, words.Ranges(m.Shards), m.URL, m.Standby)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			if len(s.Unowned) > 0 {
				fmt.Fprintf(g.stdout, "\nno instance has these shards: %s\n", words.Ranges(s.Unowned))
			}
			return nil
		},
	}
}

func clusterCheckCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check the group's topics and everything in them",
		Long: "Check the settings of the group's topics. Check for each shard that its ledger\n" +
			"is complete, that every line and every value was written with this key, and that\n" +
			"the ledger is as long as the state says. Instances may run meanwhile.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, key, err := g.togetherWithKey()
			if err != nil {
				return err
			}
			found, err := cluster.Check(c.Context(), cfg, key)
			if err != nil {
				return err
			}
			faults := slices.Clone(found.Topics)
			lines, bytes := 0, int64(0)
			for _, s := range found.Shards {
				lines, bytes = lines+s.Lines, bytes+s.Bytes
				if s.Fault != "" {
					faults = append(faults, fmt.Sprintf("shard %d: %s", s.Shard, s.Fault))
				}
			}
			if g.json {
				if err := json.NewEncoder(g.stdout).Encode(found); err != nil {
					return err
				}
			} else if len(faults) == 0 {
				fmt.Fprintf(g.stdout, "group %s: %d shards are complete, with %d ledger lines and %s of state\n",
					cfg.Cluster.Group, len(found.Shards), lines, words.Size(bytes))
			}
			if len(faults) > 0 {
				return fmt.Errorf("%w: %s", failure.ErrState, strings.Join(faults, "; "))
			}
			return nil
		},
	}
}

func clusterImportCommand(g *globals) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "import DIR -c FILE",
		Short: "Move the tasks of a state directory into the group",
		Long: "Move the tasks of DIR, the state directory of a daemon without [cluster], into\n" +
			"the group: all charges, and the open epochs, which continue where they are. Stop\n" +
			"the daemon and all instances first. Afterwards no daemon can run on DIR, and\n" +
			"none may run on a copy of it. If the command is interrupted, run it again. It\n" +
			"refuses tasks with protected persons, and input partitions that the group\n" +
			"already knows.",
		Args: needs("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, key, err := g.togetherWithKey()
			if err != nil {
				return err
			}
			if !yes {
				fmt.Fprintf(g.stderr,
					"The tasks of %s move to group %s. Afterwards the directory is read-only,\n"+
						"and its secrets and checkpoints are removed. This cannot be undone.\n", args[0],
					cfg.Cluster.Group)
				if err := g.ask(); err != nil {
					return err
				}
			}
			got, err := cluster.Import(c.Context(), cfg, key, args[0])
			if err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(got)
			}
			lines := 0
			for _, s := range got.Shards {
				lines += s.Lines
			}
			fmt.Fprintf(g.stdout,
				"group %s has %d tasks of %s, with %d ledger lines in %d shards; %d open epochs continue\n"+
					"next, on each machine: streamdp run -c %s\n",
				got.Group, got.Tasks, args[0], lines, len(got.Shards), got.Open, g.config)
			return nil
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

func clusterExportCommand(g *globals) *cobra.Command {
	var secrets bool
	c := &cobra.Command{
		Use:   "export DIR -c FILE",
		Short: "Copy the group's ledgers and manifests to a directory, for reading",
		Long: "Copy the manifests and the ledgers of all shards, joined into one, to DIR, which\n" +
			"must be new or empty. To read the copy, write a configuration without [cluster]\n" +
			"whose state.dir is DIR; then the commands ledger, report, epoch list and, with\n" +
			"--with-secrets, verify can use it. No daemon can run on it: it has no\n" +
			"checkpoints, and its ledger is marked as a copy. Instances may run meanwhile.",
		Args: needs("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, key, err := g.togetherWithKey()
			if err != nil {
				return err
			}
			got, err := cluster.Export(c.Context(), cfg, key, args[0], secrets)
			if err != nil {
				return err
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(got)
			}
			fmt.Fprintf(g.stdout, "%s now has a read-only copy of %d ledger lines about %d epochs, and %d files\n",
				got.Dir, got.Lines, got.Epochs, got.Files)
			return nil
		},
	}
	c.Flags().BoolVar(&secrets, "with-secrets", false,
		"also copy the epochs' secrets: with them and the master key, noise can be removed")
	return c
}

// books reads the ledgers of a configuration: from its state directory or, with [cluster], from Kafka.
func (g *globals) books(ctx context.Context, cfg *config.Config) (*ledger.Books, error) {
	if cfg.Cluster == nil {
		books, err := ledger.ReadBooks(cfg.State.Dir)
		if err == nil && books.Moved() != nil {
			fmt.Fprintf(g.stderr, "note: %v\n", books.Moved())
		}
		return books, err
	}
	key, err := loadKey(cfg)
	if err != nil {
		return nil, err
	}
	return cluster.ReadBooks(ctx, cfg, key)
}

// ledgersOf begins a sentence about the ledgers of a configuration. It continues the sentence with `one` if there is
// one ledger, and with `several` if there are more.
func ledgersOf(cfg *config.Config, one, several string) string {
	if cfg.Cluster == nil {
		return fmt.Sprintf("the ledger of %s %s", cfg.State.Dir, one)
	}
	return fmt.Sprintf("the ledgers of group %s %s", cfg.Cluster.Group, several)
}
