package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/httpapi"
)

func runCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "run -c FILE",
		Short: "Run the daemon",
		Long: "Run the daemon until SIGTERM or SIGINT, or until every epoch is closed. Where the\n" +
			"configuration has [cluster] it runs the tasks that its group gives to it, and does\n" +
			"not end by itself; see streamdp cluster.\n\n" +
			"An epoch is opened, and its budget charged, the first time a task runs, and\n" +
			"after a horizon where on_horizon is \"rollover\"; every other one is opened by\n" +
			"streamdp epoch open.\n\n" +
			"SIGHUP makes it read the configuration again; see streamdp reload.",
		RunE: func(c *cobra.Command, _ []string) error {
			// Unless it is asked for, the signal ends the process.
			hangups := make(chan os.Signal, 1)
			signal.Notify(hangups, syscall.SIGHUP)
			defer signal.Stop(hangups)
			d, err := g.daemon(nil)
			if err != nil {
				return err
			}
			defer d.Close()
			go func() {
				for range hangups {
					_, _ = d.Reload(httpapi.ReloadRequest{}) // which says in the log what came of it
				}
			}()
			return d.Run(c.Context())
		},
	}
}

// daemon builds the configured daemon, for all tasks or for some of them.
func (g *globals) daemon(tasks []core.Task) (*stream.Daemon, error) {
	read := g.load
	if tasks != nil {
		read = g.alone
	}
	cfg, err := read()
	if err != nil {
		return nil, err
	}
	level := cfg.Log.Level
	if tasks != nil {
		level = "warn" // a command says itself what it has done
	}
	log, least, err := g.adjustable(level, cfg.Log.Format)
	if err != nil {
		return nil, err
	}
	key, err := loadKey(cfg)
	if err != nil {
		return nil, err
	}
	o := stream.Options{Config: cfg, Key: key, Log: log, Version: version(), Tasks: tasks, Load: read}
	if g.logLevel == "" { // the flag goes before the file
		o.SetLevel = func(level string) { _ = least.UnmarshalText([]byte(level)) } // which a configuration has checked
	}
	return stream.New(o)
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
			fmt.Fprintf(g.stdout, "streamdp %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS,
				runtime.GOARCH)
			return nil
		},
	}
}

// one returns the only element of a list. With several, the user must choose by the flag.
func one[T any](list []T, what, flag string) (T, error) {
	var zero T
	switch len(list) {
	case 0:
		return zero, errors.New("there is no " + what)
	case 1:
		return list[0], nil
	}
	return zero, exit.Usagef("there are several %ss: choose one with %s", what, flag)
}
