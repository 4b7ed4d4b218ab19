package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/client"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/monitor"
)

func statusCommand(g *globals) *cobra.Command {
	var e client.Endpoint
	c := &cobra.Command{
		Use:   "status [-c FILE | --url URL]",
		Short: "Show the tasks of a running daemon",
		Long: "Show the tasks of a running daemon. With [cluster] in the configuration, ask all\n" +
			"instances of the group at the addresses that they advertise. A password is sent\n" +
			"over TLS only.",
		RunE: func(c *cobra.Command, _ []string) error {
			var cfg *config.Config
			if e.URL == "" && g.config != "" {
				var err error
				if cfg, err = g.load(); err != nil {
					return err
				}
			}
			if cfg != nil && cfg.Cluster != nil {
				return g.groupStatus(c.Context(), cfg, e)
			}
			answer, err := e.Status(c.Context(), cfg)
			if err != nil {
				return err
			}
			if g.json {
				fmt.Fprintf(g.stdout, "%s\n", answer)
				return nil
			}
			data, err := client.Decode(answer)
			if err != nil {
				return err
			}
			err = printStatus(g, data.Tasks, nil)
			printPatterns(g, data.Patterns)
			return err
		},
	}
	c.Flags().StringVar(&e.URL, "url", "",
		"the daemon's HTTP address (default: http.listen of the configuration, else http://127.0.0.1:9464)")
	c.Flags().StringVar(&e.CAFile, "ca-file", "",
		"certificates (PEM) to trust instead of the system's (default with -c: http.tls.cert_file)")
	c.Flags().StringVar(&e.User, "user", "", "user of http.basic_auth; needs --password-file")
	c.Flags().StringVar(&e.PasswordFile, "password-file", "", "file that holds the password")
	return c
}

// groupStatus asks all instances of a group concurrently.
func (g *globals) groupStatus(ctx context.Context, cfg *config.Config, e client.Endpoint) error {
	look, err := cluster.Look(ctx, cfg)
	if err != nil {
		return err
	}
	all := e.Group(ctx, cfg, look.Members)
	if g.json {
		err = json.NewEncoder(g.stdout).Encode(map[string]any{"group": look, "instances": all})
	} else if len(all) == 0 {
		fmt.Fprintf(g.stdout, "group %s has no instances, so no task runs\n", look.Group)
	} else {
		err = printInstances(g, cfg, all)
	}
	if err != nil {
		return err
	}
	silent, halted := 0, 0
	for _, x := range all {
		if x.Error != "" {
			silent++
			fmt.Fprintf(g.stderr, "instance %s: %s\n", x.Instance, x.Error)
		}
		n, err := printHalted(g, x)
		if err != nil {
			return err
		}
		halted += n
	}
	switch {
	case silent > 0:
		return fmt.Errorf("%d of %d instances did not answer", silent, len(all))
	case len(look.Unowned) > 0:
		return fmt.Errorf("no instance has these shards, so their tasks do not run: %s", words.Ranges(look.Unowned))
	case halted > 0:
		return fmt.Errorf("%d shards are halted: their tasks do not run", halted)
	}
	return nil
}

// printHalted prints the reasons for which shards of an instance are halted, one line per reason, and returns the
// number of halted shards.
func printHalted(g *globals, x client.Instance) (n int, err error) {
	if x.Error != "" {
		return 0, nil
	}
	data, err := client.Decode(x.Status)
	if err != nil || data.Group == nil {
		return 0, err
	}
	var reasons []string
	shards := map[string][]int{}
	for _, s := range data.Group.Shards {
		if s.Halted() {
			if shards[s.Why] == nil {
				reasons = append(reasons, s.Why)
			}
			shards[s.Why] = append(shards[s.Why], s.Shard)
			n++
		}
	}
	for _, why := range reasons {
		fmt.Fprintf(g.stderr, "instance %s: shards %s: %s\n", x.Instance, words.Ranges(shards[why]),
			strings.Join(strings.Fields(why), " "))
	}
	return n, nil
}

// printInstances prints the tasks of all instances in one table.
func printInstances(g *globals, cfg *config.Config, all []client.Instance) error {
	type task struct {
		monitor.TaskStatus
		instance string
	}
	var tasks []task
	for _, x := range all {
		if x.Error != "" {
			continue
		}
		data, err := client.Decode(x.Status)
		if err != nil {
			return err
		}
		for _, t := range data.Tasks {
			tasks = append(tasks, task{t, x.Instance})
		}
	}
	place := map[string]int{}
	for i, s := range cfg.Streams {
		place[s.Name] = i
	}
	slices.SortStableFunc(tasks, func(a, b task) int {
		return cmp.Or(place[a.Stream]-place[b.Stream], a.Partition-b.Partition)
	})
	var list []monitor.TaskStatus
	var instances []string
	for _, t := range tasks {
		list, instances = append(list, t.TaskStatus), append(instances, t.instance)
	}
	return printStatus(g, list, instances)
}

// printStatus prints a table of tasks. instances has the name of the instance that runs each task; nil: one daemon runs
// all of them.
func printStatus(g *globals, tasks []monitor.TaskStatus, instances []string) error {
	w := tabwriter.NewWriter(g.stdout, 2, 0, 2, ' ', 0)
	fmt.Fprint(w, "TASK\tSTATE\tEPOCH\tSTEP\tOFFSET\tLAG\tOUTBOX\tEPSILON\tCHARGED\tLIMIT")
	if instances != nil {
		fmt.Fprint(w, "\tINSTANCE")
	}
	fmt.Fprintln(w)
	for i, t := range tasks {
		step := fmt.Sprint(t.Step)
		if t.Horizon > 0 {
			step += fmt.Sprintf("/%d", t.Horizon)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%g\t%s\t%g", core.Task{Stream: t.Stream, Partition: t.Partition},
			t.State, t.Epoch, step, t.NextOffset, t.Lag, t.Outbox,
			t.Epsilon, core.AtMost(t.ChargedEpsilon), t.LimitEpsilon)
		if instances != nil {
			fmt.Fprintf(w, "\t%s", instances[i])
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, t := range tasks {
		if words := personsOf(&t); words != "" {
			fmt.Fprintf(g.stdout, "\n%s: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition}, words)
		}
		if t.Message != "" {
			fmt.Fprintf(g.stdout, "\n%s: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition}, t.Message)
		}
		if t.FewValid {
			fmt.Fprintf(g.stdout,
				"\n%s: warning: the released counts show almost no valid records; check that columns, codec, centre, "+
					"scale "+
					"and clip fit the topic\n",
				core.Task{Stream: t.Stream, Partition: t.Partition})
		}
		for _, warning := range t.Warnings {
			fmt.Fprintf(g.stdout, "\n%s: warning: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition}, warning)
		}
		for _, x := range t.Schemas {
			if len(x.Faults) > 0 {
				fmt.Fprintf(g.stdout,
					"\n%s: warning: records with the newest schema of %s, version %d (id %d), give no rows: %s\n",
					core.Task{Stream: t.Stream, Partition: t.Partition}, x.Subject, x.Version, x.ID,
					strings.Join(x.Faults, "; "))
			}
		}
		if words := verdicts[t.Verdict]; words != "" {
			fmt.Fprintf(g.stdout, "\n%s: bounds %s: %s\n", core.Task{Stream: t.Stream, Partition: t.Partition},
				t.Verdict, words)
		}
	}
	return nil
}

// personsOf describes the persons whose data a task's numbers describe. It returns "" if the unit is a single record.
func personsOf(t *monitor.TaskStatus) string {
	if t.Unit == "" || t.Unit == "record" {
		return ""
	}
	p := t.Person
	if p == nil {
		return "epsilon and limit are for all records of a person"
	}
	text := fmt.Sprintf(
		"epsilon, charged and limit are for a person (%s, population %s), who counts in at most %d steps, at "+
			"least %d apart, with at most %d records in each",
		p.Key, p.Population, p.Cap, p.Separation, p.PerStep)
	if p.Period > 0 {
		text += fmt.Sprintf(", in each period of %d steps; a person with records in several periods pays for each",
			p.Period)
	}
	if p.EpsilonRecord != nil {
		text += fmt.Sprintf("; one record pays at most epsilon %g", *p.EpsilonRecord)
	}
	return text
}

// verdicts explains each verdict that a release can give on the bounds that a warm-up found.
var verdicts = map[string]string{
	"partial": "a column is frozen because too few rows have different values in it: its mean is its centre and its " +
		"moments are 0",
	"stale": "fewer rows are within the clip norm than in the warm-up, so the bounds no longer fit; a new epoch " +
		"finds new bounds",
	"biased": "the effect of clipping is more than twice the noise at the horizon (or at the step that tune sets, or " +
		"at " +
		"step 10 000): use se_with_clipping",
	"fail": "the warm-up found no bounds: too few valid records (is a column mistyped?), or no column varies; its " +
		"release says how many records it needs",
}
