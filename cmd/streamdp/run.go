package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"streamdp/stream"
)

func runCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "run -c FILE",
		Short: "Run the daemon",
		Long: "Run the daemon until SIGTERM or SIGINT, or until every epoch is closed.\n\n" +
			"An epoch is opened, and its budget charged, the first time a task runs, and\n" +
			"after a horizon where on_horizon is \"rollover\"; every other one is opened by\n" +
			"streamdp epoch open.",
		RunE: func(c *cobra.Command, _ []string) error {
			d, err := g.daemon(nil)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.Run(c.Context())
		},
	}
}

// daemon builds the configured daemon, for some of its tasks or all.
func (g *globals) daemon(tasks []stream.Task) (*stream.Daemon, error) {
	cfg, err := g.load()
	if err != nil {
		return nil, err
	}
	level := cfg.Log.Level
	if tasks != nil {
		level = "warn" // a command says itself what it has done
	}
	log, err := g.logger(level, cfg.Log.Format)
	if err != nil {
		return nil, err
	}
	key, err := loadKey(cfg)
	if err != nil {
		return nil, err
	}
	return stream.New(stream.Options{Config: cfg, Key: key, Log: log, Version: version(), Tasks: tasks})
}

func versionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			if g.json {
				return json.NewEncoder(g.stdout).Encode(map[string]string{
					"version": version(), "go": runtime.Version(), "arch": runtime.GOARCH,
				})
			}
			fmt.Fprintf(g.stdout, "streamdp %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

// one returns the only element that flags may leave out.
func one[T any](list []T, what, flag string) (T, error) {
	var zero T
	switch len(list) {
	case 0:
		return zero, errors.New("there is no " + what)
	case 1:
		return list[0], nil
	}
	return zero, usagef("there are several %ss: choose one with %s", what, flag)
}
