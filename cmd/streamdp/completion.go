package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/fit"
)

// flagValues are the values that a shell offers for flags with these names, for any command.
var flagValues = map[string][]string{
	"adjacency":  {"zero-out", "replace"},
	"codec":      feedCodecs,
	"header":     {"auto", "yes", "no"},
	"log-format": {"json", "text"},
	"log-level":  {"debug", "info", "warn", "error"},
	"solver":     fit.Solvers(),
	"target":     {"last"},
	"workload":   {"mean", "sum", "exponential", "window"},
}

// flagFiles are the file extensions that a shell offers for flags with these names.
var flagFiles = map[string][]string{
	"config": {"toml"},
	"csv":    {"csv", "gz"},
	"ndjson": {"ndjson", "json", "jsonl", "gz"},
	"plot":   {"svg", "png"},
}

// complete lets a shell offer values for the flags and arguments of a command and its children. For --stream and
// --partition it offers the streams and partitions of the configuration that -c names.
func (g *globals) complete(c *cobra.Command) {
	offer := func(flag string, values func(args []string) []string) {
		must(
			c.RegisterFlagCompletionFunc(flag,
				func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
					return startingWith(values(args), begun), cobra.ShellCompDirectiveNoFileComp
				}))
	}
	for name, values := range flagValues {
		if c.Flags().Lookup(name) != nil || c.PersistentFlags().Lookup(name) != nil {
			offer(name, func([]string) []string { return values })
		}
	}
	for name, endings := range flagFiles {
		if f := c.Flags().Lookup(name); f != nil {
			must(c.MarkFlagFilename(name, endings...))
		} else if c.PersistentFlags().Lookup(name) != nil {
			must(c.MarkPersistentFlagFilename(name, endings...))
		}
	}
	if c.Flags().Lookup("stream") != nil {
		offer("stream", func([]string) []string { return g.streamNames() })
	}
	if c.Flags().Lookup("partition") != nil {
		offer("partition", func(args []string) []string {
			name, _ := c.Flags().GetString("stream") // "" if the command has no such flag
			if len(args) > 0 {
				name = args[0]
			}
			return g.partitions(name)
		})
	}
	if f := c.Flags().Lookup("from"); f != nil && f.DefValue == "continue" {
		offer("from", func([]string) []string { return []string{"continue", "earliest", "latest"} })
	}
	if strings.Contains(c.Use, " STREAM") {
		c.ValidArgsFunction = func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return startingWith(g.streamNames(), begun), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, child := range c.Commands() {
		g.complete(child)
	}
}

// must panics on an error. An error means that a flag of the command does not exist, or has two completions.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func startingWith(values []string, begun string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !strings.HasPrefix(v, begun) })
}

// configured returns the configuration's streams, or none if it has a fault: a shell must not print faults into the
// line that the user types.
func (g *globals) configured() []*config.Stream {
	if g.config == "" {
		return nil
	}
	cfg, err := config.Load(g.config)
	if err != nil {
		return nil
	}
	return known(cfg).Streams
}

func (g *globals) streamNames() (names []string) {
	for _, s := range g.configured() {
		names = append(names, s.Name)
	}
	return names
}

// partitions returns the partitions of the stream of that name, or of the only stream if the name is empty.
func (g *globals) partitions(name string) (numbers []string) {
	streams := g.configured()
	for _, s := range streams {
		if s.Name != name && (name != "" || len(streams) > 1) {
			continue
		}
		for _, p := range s.Input.Partitions {
			if p != config.AllPartitions {
				numbers = append(numbers, strconv.Itoa(p))
			}
		}
	}
	return numbers
}
