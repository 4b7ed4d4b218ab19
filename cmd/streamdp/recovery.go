package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/client"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/task"
)

// taskFlags name a task, and an epoch of it.
type taskFlags struct {
	stream    string
	partition int
	epoch     uint64
}

func (f *taskFlags) register(c *cobra.Command, epoch string) {
	c.Flags().StringVar(&f.stream, "stream", "", "stream (default: the only one)")
	c.Flags().IntVar(&f.partition, "partition", -1, "input partition (default: the stream's only one)")
	c.Flags().Lookup("partition").DefValue = "0" // which the help leaves out
	if epoch != "" {
		c.Flags().Uint64Var(&f.epoch, "epoch", 0, epoch)
		c.Flags().Lookup("epoch").DefValue = "0"
	}
}

// load returns the configuration and the task that the flags name.
func (f *taskFlags) load(g *globals) (cfg *config.Config, t core.Task, err error) {
	if cfg, err = g.alone(); err != nil {
		return nil, t, err
	}
	s := cfg.Stream(f.stream)
	if f.stream == "" && len(cfg.Streams) == 1 {
		s = cfg.Streams[0]
	}
	if s == nil {
		return nil, t, noStream(cfg, f.stream)
	}
	t, err = taskOf(s, f.partition)
	return cfg, t, err
}

// taskOf returns the task of a stream's partition, −1 for its only one.
func taskOf(s *config.Stream, partition int) (t core.Task, err error) {
	t = core.Task{Stream: s.Name, Partition: partition}
	switch {
	case partition < 0 && s.Merge:
		t.Partition = core.Merged
	case partition < 0 && s.Input.All():
		err = exit.Usagef("stream %s reads every partition: name one with --partition", s.Name)
	case partition < 0:
		t.Partition, err = one(s.Input.Partitions, "partition", "--partition")
	case !s.Input.Reads(partition):
		err = exit.Usagef("stream %s does not read partition %d", s.Name, partition)
	}
	return t, err
}

func recoverCommand(g *globals) *cobra.Command {
	var f taskFlags
	var from string
	c := &cobra.Command{
		Use:   "recover -c FILE",
		Short: "Bring a task's damaged or lost state back",
		Long: "Bring back the state of a task's open epoch whose checkpoint is damaged or lost:\n" +
			"from the commit before it where that is whole, else from the epoch's first\n" +
			"record on. Every release that the output holds is worked out again and its bytes\n" +
			"are compared. When all have matched, a checkpoint is written, and the daemon can\n" +
			"go on. On the first difference the command ends with 1 and changes nothing.\n\n" +
			"Manifest, secret and ledger must be there; --from brings the first two back from\n" +
			"a file of `streamdp epoch export --with-secret`.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, t, err := f.load(g)
			if err != nil {
				return err
			}
			x, err := readExport(from)
			if err != nil {
				return err
			}
			q := task.NewRequest(task.RequestRecover, t)
			q.From = x
			err = g.command(c.Context(), cfg, q)
			if errors.Is(err, failure.ErrHalted) {
				return wrong{err}
			}
			if err != nil {
				return err
			}
			return g.done("recovered %s: all that is published has come out again", t)
		},
	}
	f.register(c, "")
	c.Flags().StringVar(&from, "from", "", "exported epoch that brings manifest and secret back")
	return c
}

func republishCommand(g *globals) *cobra.Command {
	var f taskFlags
	var q recovery.RepublishRequest
	c := &cobra.Command{
		Use:   "republish -c FILE",
		Short: "Publish committed releases again, the same bytes",
		Long: "Publish every committed release of a task again: those that the archive holds\n" +
			"(state.archive), those that are not acknowledged yet, and with --from-log those\n" +
			"that the log of the open epoch gives again. It charges nothing. What the output\n" +
			"holds is compared first; where one release differs, nothing is sent.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, t, err := f.load(g)
			if err != nil {
				return err
			}
			q.Epoch = f.epoch
			asked := task.NewRequest(task.RequestRepublish, t)
			asked.Republish = q
			if err := g.command(c.Context(), cfg, asked); err != nil {
				return err
			}
			return g.done("published what is committed of %s again", t)
		},
	}
	f.register(c, "only this epoch")
	c.Flags().BoolVar(&q.FromLog, "from-log", false, "work the open epoch's releases out of its log again")
	c.Flags().BoolVar(&q.OnlyCopy, "only-copy", false,
		"assert that no other copy of the state directory has run, where the output lost what would tell")
	return c
}

func verifyCommand(g *globals) *cobra.Command {
	var f taskFlags
	var from string
	c := &cobra.Command{
		Use:   "verify -c FILE",
		Short: "Work every published release out again and compare its bytes",
		Long: "Work every published release of a task out again, from the log, the master key,\n" +
			"and the manifest and secret of its epoch, and compare the bytes. It writes\n" +
			"nothing and may run beside the daemon. The first release of an epoch that\n" +
			"differs ends with exit code 1.\n\n" +
			"It works as long as the epoch's secret exists and the log goes back to the\n" +
			"epoch's first record. A closed epoch's secret is destroyed after\n" +
			"state.epoch_secret_retention, and then nobody can verify it any more.",
		RunE: func(c *cobra.Command, _ []string) error {
			x, err := readExport(from)
			if err != nil {
				return err
			}
			if x != nil && f.stream == "" {
				if err := f.of(x); err != nil {
					return err
				}
			}
			cfg, t, err := f.load(g)
			if err != nil {
				return err
			}
			key, err := loadKey(cfg)
			if err != nil {
				return err
			}
			log, err := g.logger("warn", cfg.Log.Format)
			if err != nil {
				return err
			}
			return g.verify(c.Context(), recovery.Audit{Config: cfg, Key: key, Log: log, From: x, Epoch: f.epoch}, t)
		},
	}
	f.register(c, "only this epoch")
	c.Flags().StringVar(&from, "from", "", "exported epoch, instead of the state directory's")
	return c
}

// of takes the task of an exported epoch.
func (f *taskFlags) of(x *recovery.Export) error {
	m, err := core.ParseManifest([]byte(x.Manifest))
	if err != nil {
		return err
	}
	f.stream, f.partition = m.Stream, m.Partition
	return nil
}

// verify prints what an audit of published releases finds.
func (g *globals) verify(ctx context.Context, a recovery.Audit, t core.Task) error {
	all, err := recovery.Verify(ctx, a, t)
	if err != nil {
		return err
	}
	differ, verified := 0, 0
	for _, v := range all {
		switch {
		case v.Difference != "":
			differ++
		case v.Unverifiable == "":
			verified++
		}
	}
	if g.json {
		if err := json.NewEncoder(g.stdout).Encode(all); err != nil {
			return err
		}
	} else {
		for _, v := range all {
			printVerification(g.stdout, v)
		}
	}
	switch {
	case differ > 0:
		return wrong{errors.New("published releases differ from what was worked out again")}
	case verified == 0:
		return wrong{errors.New("no epoch could be verified")}
	}
	return nil
}

func printVerification(out io.Writer, v recovery.Verification) {
	fmt.Fprintf(out, "%s epoch %d: ", core.Task{Stream: v.Stream, Partition: v.Partition}, v.Epoch)
	switch {
	case v.Unverifiable != "":
		fmt.Fprintf(out, "not verified: %s\n", v.Unverifiable)
		return
	case v.Difference != "":
		fmt.Fprintf(out, "DIFFERS at %s\n", v.Difference)
		return
	}
	be := "are"
	if v.Releases == 1 {
		be = "is"
	}
	fmt.Fprintf(out, "%s up to step %d, of offsets [%d, %d), %s the bytes that log, key and manifest give",
		words.Plural(v.Releases, "release"), v.Step, v.First, v.End, be)
	if v.Missing > 0 {
		fmt.Fprintf(out, "; %d more are not in the output", v.Missing)
	}
	fmt.Fprintln(out)
}

func inspectCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a file of the state directory says, without any data",
		Long: "Show what a manifest, a checkpoint, a ledger, an archive or an exported epoch\n" +
			"says. Nothing of it is a function of a record's content: no sums, no noise, no\n" +
			"secret.",
		Args: needs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			fields, err := recovery.Inspect(data)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if g.json {
				object := map[string]any{}
				for _, f := range fields {
					object[strings.ReplaceAll(f.Name, " ", "_")] = f.Value
				}
				return json.NewEncoder(g.stdout).Encode(object)
			}
			for _, f := range fields {
				fmt.Fprintf(g.stdout, "%-29s %s\n", f.Name, shown(f.Value))
			}
			return nil
		},
	}
}

// shown writes a value of a state file for people.
func shown(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case [2]uint64:
		return fmt.Sprintf("%d to %d", v[0], v[1])
	}
	text, err := json.Marshal(value)
	switch {
	case err != nil:
		return fmt.Sprint(value)
	case string(text) == "null" || string(text) == "[]" || string(text) == "{}":
		return "none"
	case text[0] == '[':
		var each []json.RawMessage
		if json.Unmarshal(text, &each) != nil {
			return string(text)
		}
		var all []string
		for _, one := range each {
			all = append(all, plan.InWords(one))
		}
		return strings.Join(all, "; ")
	}
	return plan.InWords(text)
}

func epochExportCommand(g *globals) *cobra.Command {
	var f taskFlags
	var to string
	var secret bool
	c := &cobra.Command{
		Use:   "export STREAM -c FILE",
		Short: "Write an epoch to one file: manifest, ledger and, if asked for, secret",
		Long: "Write what `streamdp verify --from` and `streamdp recover --from` take: the\n" +
			"epoch's manifest and the ledger, and with --with-secret the epoch's secret.\n" +
			"Whoever has the secret and the master key can take the noise off its releases.",
		Args: needs("STREAM"),
		RunE: func(_ *cobra.Command, args []string) error {
			cfg, err := g.alone()
			if err != nil {
				return err
			}
			s := cfg.Stream(args[0])
			if s == nil {
				return noStream(cfg, args[0])
			}
			if secret && to == "" {
				return exit.Usagef("--with-secret needs --to FILE: a secret is not printed")
			}
			t, err := taskOf(s, f.partition)
			if err != nil {
				return err
			}
			key, err := loadKey(cfg)
			if err != nil {
				return err
			}
			x, err := recovery.ExportEpoch(cfg, key, t, f.epoch, secret)
			if err != nil {
				return err
			}
			data, err := x.Encode()
			if err != nil {
				return err
			}
			if to == "" {
				_, err := g.stdout.Write(data)
				return err
			}
			return writePrivate(to, data)
		},
	}
	c.Flags().IntVar(&f.partition, "partition", -1, "input partition (default: the stream's only one)")
	c.Flags().Lookup("partition").DefValue = "0" // which the help leaves out
	c.Flags().Uint64Var(&f.epoch, "epoch", 0, "epoch (default: the newest)")
	c.Flags().Lookup("epoch").DefValue = "0"
	c.Flags().StringVar(&to, "to", "", "new file to write, 0600 (default: standard output)")
	c.Flags().BoolVar(&secret, "with-secret", false, "with the epoch's secret")
	return c
}

// writePrivate writes a new file that nobody else can read.
func writePrivate(name string, data []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// readExport reads an exported epoch; nil where no name is given.
func readExport(name string) (*recovery.Export, error) {
	if name == "" {
		return nil, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	x, err := recovery.ParseExport(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return x, nil
}

// command asks the running daemon or, where none runs, does it itself under the
// directory's lock.
func (g *globals) command(ctx context.Context, cfg *config.Config, q task.Request) error {
	asked, err := client.Change(ctx, cfg.State.Dir, q)
	if asked || err != nil {
		return err
	}
	d, err := g.daemon([]core.Task{q.Task()})
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Do(ctx, q)
}

// done says what a command has done.
func (g *globals) done(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if g.json {
		return json.NewEncoder(g.stdout).Encode(map[string]string{"status": "success", "message": text})
	}
	fmt.Fprintln(g.stdout, text)
	return nil
}

// wrong is an audit or a recovery that found something wrong: exit code 1.
type wrong struct{ error }

func (f wrong) Unwrap() error { return f.error }
