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

// taskFlags are the flags that select a task and one of its epochs.
type taskFlags struct {
	stream    string
	partition int
	epoch     uint64
}

func (f *taskFlags) register(c *cobra.Command, epoch string) {
	c.Flags().StringVar(&f.stream, "stream", "", "stream (default: the only one)")
	c.Flags().IntVar(&f.partition, "partition", -1, "input partition (default: the stream's only one)")
	c.Flags().Lookup("partition").DefValue = "0" // so that the help omits it
	if epoch != "" {
		c.Flags().Uint64Var(&f.epoch, "epoch", 0, epoch)
		c.Flags().Lookup("epoch").DefValue = "0"
	}
}

// load returns the configuration and the task that the flags select.
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

// taskOf returns the task of a stream's partition; −1 stands for the only partition.
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
		Short: "Restore the damaged or lost state of a task",
		Long: "Restore the state of a task's open epoch if its checkpoint is damaged or lost:\n" +
			"from the previous commit if that is intact, else from the epoch's first record\n" +
			"on. The command computes each release that the output holds again and compares\n" +
			"the bytes. If all match, it writes a checkpoint and the daemon can continue. At\n" +
			"the first difference it ends with exit code 1 and changes nothing.\n\n" +
			"It needs manifest, secret and ledger. --from restores manifest and secret from a\n" +
			"file of `streamdp epoch export --with-secret`.",
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
			return g.done("recovered %s: every published release was reproduced", t)
		},
	}
	f.register(c, "")
	c.Flags().StringVar(&from, "from", "", "exported epoch from which to restore manifest and secret")
	return c
}

func republishCommand(g *globals) *cobra.Command {
	var f taskFlags
	var q recovery.RepublishRequest
	c := &cobra.Command{
		Use:   "republish -c FILE",
		Short: "Publish committed releases again, with the same bytes",
		Long: "Publish every committed release of a task again: those in the archive\n" +
			"(state.archive), those not yet acknowledged and, with --from-log, those computed\n" +
			"again from the log of the open epoch. This charges nothing. The command first\n" +
			"compares the releases in the output, and sends nothing if one differs.",
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
			return g.done("published the committed releases of %s again", t)
		},
	}
	f.register(c, "only this epoch")
	c.Flags().BoolVar(&q.FromLog, "from-log", false, "compute the open epoch's releases from its log again")
	c.Flags().BoolVar(&q.OnlyCopy, "only-copy", false,
		"assert that no other copy of the state directory has run; needed if the output has lost the evidence")
	return c
}

func verifyCommand(g *globals) *cobra.Command {
	var f taskFlags
	var from string
	c := &cobra.Command{
		Use:   "verify -c FILE",
		Short: "Compute every published release again and compare its bytes",
		Long: "Compute every published release of a task again, from the log, the master key\n" +
			"and the epoch's manifest and secret, and compare the bytes. The command writes\n" +
			"nothing and may run while the daemon runs. If a release differs, the exit code\n" +
			"is 1.\n\n" +
			"It needs the epoch's secret and the log back to the epoch's first record. A\n" +
			"closed epoch's secret is destroyed after state.epoch_secret_retention; then its\n" +
			"releases cannot be verified any more.",
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
	c.Flags().StringVar(&from, "from", "", "read manifest and secret from this exported epoch, not from the state "+
		"directory")
	return c
}

// of sets the flags to the task of an exported epoch.
func (f *taskFlags) of(x *recovery.Export) error {
	m, err := core.ParseManifest([]byte(x.Manifest))
	if err != nil {
		return err
	}
	f.stream, f.partition = m.Stream, m.Partition
	return nil
}

// verify prints the findings of an audit of published releases.
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
		return wrong{errors.New("published releases differ from those computed again")}
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
	fmt.Fprintf(out, "%s up to step %d, for offsets [%d, %d), %s equal, byte for byte, to those computed from log, "+
		"key and manifest",
		words.Plural(v.Releases, "release"), v.Step, v.First, v.End, be)
	if v.Missing > 0 {
		fmt.Fprintf(out, "; %d more are missing from the output", v.Missing)
	}
	fmt.Fprintln(out)
}

func inspectCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show the contents of a state file, except for data",
		Long: "Show the contents of a manifest, a checkpoint, a ledger, an archive or an\n" +
			"exported epoch. The output contains no function of a record's content: no sums,\n" +
			"no noise, no secret.",
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

// shown formats a value of a state file for people.
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
		Short: "Write an epoch to one file: manifest, ledger and, on request, secret",
		Long: "Write an epoch to one file, as input of `streamdp verify --from` and `streamdp\n" +
			"recover --from`: its manifest, the ledger and, with --with-secret, the epoch's\n" +
			"secret. Anyone who has the secret and the master key can remove the noise from\n" +
			"the epoch's releases.",
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
	c.Flags().Lookup("partition").DefValue = "0" // so that the help omits it
	c.Flags().Uint64Var(&f.epoch, "epoch", 0, "epoch (default: the newest)")
	c.Flags().Lookup("epoch").DefValue = "0"
	c.Flags().StringVar(&to, "to", "", "new file to write, 0600 (default: standard output)")
	c.Flags().BoolVar(&secret, "with-secret", false, "include the epoch's secret")
	return c
}

// writePrivate writes a new file that only its owner can read.
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

// readExport reads an exported epoch. It returns nil if no name is given.
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

// command passes a request to the running daemon. If no daemon runs, it takes the directory's lock and carries the
// request out itself.
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

// done prints the result of a command.
func (g *globals) done(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if g.json {
		return json.NewEncoder(g.stdout).Encode(map[string]string{"status": "success", "message": text})
	}
	fmt.Fprintln(g.stdout, text)
	return nil
}

// wrong is the error of an audit or a recovery that found a fault: exit code 1.
type wrong struct{ error }

func (f wrong) Unwrap() error { return f.error }
