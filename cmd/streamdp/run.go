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
		Long: "Run the daemon until SIGTERM or SIGINT, or until every epoch is closed. With\n" +
			"[cluster] in the configuration it runs the tasks that its group assigns to it\n" +
			"and does not end by itself; see streamdp cluster.\n\n" +
			"The daemon opens an epoch, and charges its budget, when a task runs for the\n" +
			"first time, and after a horizon if on_horizon is \"rollover\". All other epochs\n" +
			"are opened by streamdp epoch open.\n\n" +
			"SIGHUP makes it read the configuration again; see streamdp reload.",
		RunE: func(c *cobra.Command, _ []string) error {
			// Without Notify, SIGHUP would end the process.
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
					_, _ = d.Reload(httpapi.ReloadRequest{}) // it logs the result itself
				}
			}()
			return d.Run(c.Context())
		},
	}
}

// daemon builds the configured daemon for the given tasks. nil stands for all tasks.
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
		level = "warn" // a command prints its own result
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
	if g.logLevel == "" { // the flag overrides the file
		o.SetLevel = func(level string) { _ = least.UnmarshalText([]byte(level)) } // no error: config has checked it
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

// one returns the only element of a list. If there are several, the error tells the user which flag chooses one.
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
