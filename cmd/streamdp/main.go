// Command streamdp publishes differentially private statistics of Kafka
// streams.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/failure"
)

// These are the exit codes. docs/operations.md explains each of them.
const (
	exitDone        = 0
	exitFailure     = 1   // the command failed while running
	exitUsage       = 2   // the command line is invalid
	exitConfig      = 3   // the configuration or the key file is invalid
	exitState       = 4   // the state is damaged, missing, locked, or older than the output
	exitNothing     = 5   // nothing to do: budget or horizon is used up
	exitInterrupted = 130 // the user interrupted twice
)

func main() {
	keepSecrets()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := interruptible()
	defer stop()
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	c, err := root.ExecuteContextC(ctx)
	return exitCode(c, err, stderr)
}

// interruptible returns a context that the first SIGINT or SIGTERM cancels. The second one ends the process at once,
// which is safe at any moment.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		if _, ok := <-signals; !ok {
			return
		}
		cancel()
		if _, ok := <-signals; ok {
			os.Exit(exitInterrupted)
		}
	}()
	return ctx, func() { signal.Stop(signals); close(signals); cancel() }
}

// noStream returns the error that the configuration does not have the stream. It lists the streams that exist.
func noStream(cfg *config.Config, name string) error {
	var names []string
	for _, s := range cfg.Streams {
		names = append(names, s.Name)
	}
	for _, p := range cfg.Patterns {
		names = append(names, p.Name+".TOPIC for topics that match "+p.Input.Topics)
	}
	if name == "" {
		return exit.Usagef("give --stream, one of %s", strings.Join(names, ", "))
	}
	return exit.Usagef("the configuration has no stream %s, only %s", name, strings.Join(names, ", "))
}

// exitCode prints the error of a command and returns its exit code. No other code chooses
// exit codes.
func exitCode(c *cobra.Command, err error, stderr io.Writer) int {
	if err == nil {
		return exitDone
	}
	code := exitFailure
	var faults config.Faults
	switch {
	case errors.As(err, new(exit.Usage)):
		code = exitUsage
	case errors.As(err, &faults):
		fmt.Fprintln(stderr, faults)
		return exitConfig
	case errors.As(err, new(exit.Config)), errors.Is(err, connect.ErrCredentials):
		code = exitConfig
	case errors.As(err, new(wrong)):
	case errors.Is(err, failure.ErrNothing):
		code = exitNothing
	case errors.Is(err, failure.ErrState), errors.Is(err, failure.ErrHalted):
		code = exitState
	}
	fmt.Fprintf(stderr, "streamdp: %s\n", err)
	if code == exitUsage {
		lists := "its flags"
		if c.HasAvailableSubCommands() {
			lists = "commands and flags"
		}
		fmt.Fprintf(stderr, "%s --help lists %s\n", c.CommandPath(), lists)
	}
	return code
}

// globals holds the flags that every command has.
type globals struct {
	config    string
	json      bool
	logLevel  string
	logFormat string

	stdout, stderr io.Writer
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	g := &globals{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "streamdp",
		Short: "Differentially private statistics of Kafka streams",
		Long: "streamdp consumes Kafka records and publishes only differentially private\n" +
			"results: running means, second moments, covariances, regressions.\n\n" +
			"Start with: streamdp demo --once",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if strings.Contains(err.Error(), "--config.file") {
			err = errors.New("unknown flag --config.file: the flag is --config, or -c")
		}
		return exit.Usage{Err: err}
	})
	f := root.PersistentFlags()
	f.StringVarP(&g.config, "config", "c", "",
		"configuration: a file, or a directory whose *.toml files are read as one")
	f.BoolVar(&g.json, "json", false, "print JSON, for programs, where a command supports it")
	f.StringVar(&g.logLevel, "log-level", "", "debug, info, warn or error (default: log.level of the configuration)")
	f.StringVar(&g.logFormat, "log-format", "", "json or text (default: log.format of the configuration)")
	for _, c := range []*cobra.Command{
		runCommand(g), checkCommand(g), planCommand(g), demoCommand(g), feedCommand(g), fitCommand(g), replayCommand(g),
		reloadCommand(g), statusCommand(g), epochCommand(g), ledgerCommand(g), reportCommand(g),
		republishCommand(g), recoverCommand(g), verifyCommand(g), inspectCommand(g), auditCommand(g), clusterCommand(g),
		keygenCommand(g), manCommand(), versionCommand(g),
	} {
		root.AddCommand(c)
	}
	root.InitDefaultCompletionCmd()
	g.complete(root)
	strict(root)
	return root
}

// needs checks that the command line has an argument for each name.
func needs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		path := strings.TrimPrefix(c.CommandPath(), "streamdp ")
		switch {
		case c.HasSubCommands() && len(args) > 0:
			return exit.Usagef("%s has no command %q", path, args[0])
		case len(args) < len(names):
			return exit.Usagef("%s needs %s", path, strings.Join(names[len(args):], " "))
		case len(args) > len(names):
			return exit.Usagef("%s takes no argument %q", path, args[len(names)])
		}
		return nil
	}
}

// strict turns an unknown argument into a usage error, for a command, its children and cobra's own commands. A command
// that only has children shows its help.
func strict(c *cobra.Command) {
	if c.Args == nil || c.HasSubCommands() || c.Parent().Name() == "completion" {
		c.Args = needs()
	}
	if !c.Runnable() {
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	for _, child := range c.Commands() {
		strict(child)
	}
}

// load reads the configuration that the flags name.
func (g *globals) load() (*config.Config, error) {
	if g.config == "" {
		return nil, exit.Usagef("a configuration is required: -c FILE")
	}
	c, err := config.Load(g.config)
	var faults config.Faults
	if err != nil && !errors.As(err, &faults) {
		return nil, exit.Config{Err: err}
	}
	if err == nil {
		c = known(c)
	}
	return c, err
}

// alone reads the configuration for a command that works on a state directory. It fails if the configuration has
// [cluster].
func (g *globals) alone() (*config.Config, error) {
	c, err := g.load()
	if err == nil && c.Cluster != nil {
		return nil, exit.Config{Err: connect.ErrCluster}
	}
	return c, err
}

// loadKey reads the master key of a configuration.
func loadKey(c *config.Config) (*[32]byte, error) {
	key, err := credentials.LoadKey(c.State.KeyFile, c.State.KeyGroupReadable)
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	return key, nil
}

// logger returns a logger with level and format from the flags or, without flags, from the configuration.
func (g *globals) logger(level, format string) (*slog.Logger, error) {
	log, _, err := g.adjustable(level, format)
	return log, err
}

// adjustable returns the logger that the function logger returns, and its lowest level, which can be changed later.
func (g *globals) adjustable(level, format string) (*slog.Logger, *slog.LevelVar, error) {
	if g.logLevel != "" {
		level = g.logLevel
	}
	if g.logFormat != "" {
		format = g.logFormat
	}
	l := new(slog.LevelVar)
	if err := l.UnmarshalText([]byte(level)); err != nil || strings.ContainsAny(level, "+-") {
		return nil, nil, exit.Usagef("log level is %q, must be debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(g.stderr, o)), l, nil
	case "text":
		return slog.New(slog.NewTextHandler(g.stderr, o)), l, nil
	}
	return nil, nil, exit.Usagef("log format is %q, must be json or text", format)
}

// release is the version that the linker sets: see deploy/release.
var release string

// version returns the version of this build: the version that the linker set, otherwise that of the module, otherwise
// the commit.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, dirty := "devel", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = "devel-" + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	return revision + dirty
}

// wholeSeconds returns the time since then, rounded up to whole seconds. The duration depends on the records; whole
// seconds reveal little about it.
func wholeSeconds(then time.Time) float64 { return math.Ceil(time.Since(then).Seconds()) }
