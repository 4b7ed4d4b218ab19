package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/plan"
	"github.com/streamdp/streamdp/internal/table"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
)

// defaultMessageBytes is the size of batch that brokers accept by default.
const defaultMessageBytes = 1048588

// oversize returns a warning if a topic may refuse the stream's releases, else "".
func oversize(d *core.Description) string {
	if d.MessageBytes <= defaultMessageBytes {
		return ""
	}
	return fmt.Sprintf("a release takes up to %s, more than a topic accepts by default (%s): choose fewer output.values",
		words.Size(d.MessageBytes), words.Size(defaultMessageBytes))
}

func checkCommand(g *globals) *cobra.Command {
	var connect bool
	var sample, name, header string
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration and print its privacy statement",
		Long: "Check the configuration and the key file, build every estimator, and print\n" +
			"what each stream promises. Every fault is reported at once.\n\n" +
			"With --connect it also asks the brokers for each permission that the daemon\n" +
			"needs, and the schema registry for every version of the records' schemas. What\n" +
			"is missing, or does not go with the columns, it names. Asking changes nothing.\n\n" +
			"With --sample it decodes the records of a file as the stream would, and says\n" +
			"how many give a row and which columns hold no number: before any budget is\n" +
			"spent on a stream that reads nothing. What it prints is not private.",
		RunE: func(c *cobra.Command, _ []string) error {
			if sample != "" {
				return g.sample(c.Context(), sample, name, header)
			}
			return g.check(c.Context(), connect)
		},
	}
	c.Flags().StringVar(&sample, "sample", "", "decode the records of this file, as replay reads them, and check nothing else: not private")
	c.Flags().StringVar(&name, "stream", "", "stream whose records --sample has (default: the only one)")
	c.Flags().StringVar(&header, "header", "auto", "whether a CSV file of --sample has a header: "+table.HeaderUsage)
	c.Flags().BoolVar(&connect, "connect", false, "also ask the brokers and the schema registry: reachable, each permission there, topics and schemas there and fit")
	return c
}

// sample decodes the records of a file and counts what they give.
func (g *globals) sample(ctx context.Context, file, name, header string) error {
	if err := table.CheckHeader(header); err != nil {
		return err
	}
	cfg, err := g.load()
	if err != nil {
		return err
	}
	s := decodedAs(cfg, name)
	if s == nil {
		return noStream(cfg, name)
	}
	schemas, err := openSchemas(ctx, cfg, s)
	if err != nil {
		return err
	}
	defer schemas.Close()
	x, err := dryrun.NewSample(schemas, s)
	if err != nil {
		return configError{fmt.Errorf("stream %s: %w", s.Name, err)}
	}
	next, _, _, done, err := values(file, header, &s.Input, s.Input.Fields(), texts(s))
	if err != nil {
		return err
	}
	defer done()
	for {
		value, err := next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		x.Add(value)
	}
	if d, err := dryrun.Describe(s); err == nil && x.Records < d.WarmupOffsets { // the number of records is public
		fmt.Fprintf(g.stderr, "streamdp: warning: the warm-up takes the first %d records, and with these alone nothing else is released (%s)\n", d.WarmupOffsets, fewerForWarmup)
	}
	fmt.Fprintln(g.stderr, "not private: every number here is an exact function of the records")
	if g.json {
		return json.NewEncoder(g.stdout).Encode(x)
	}
	fmt.Fprintf(g.stdout, "stream %s: %d records, %d rows, %d null", x.Stream, x.Records, x.Rows, x.Records-x.Rows)
	if x.Rows < x.Records {
		fmt.Fprintf(g.stdout, " (%s)", byReason(x.Null))
	}
	fmt.Fprintln(g.stdout)
	for _, c := range x.Columns {
		is := "is a number in"
		if !c.Plain {
			is = "can be used in"
		}
		switch {
		case x.Records == 0 || c.Numbers == x.Records:
		case c.Numbers == 0:
			fmt.Fprintf(g.stdout, "  column %s %s no record (%s)\n", c.Name, is, byReason(c.Null))
		default:
			fmt.Fprintf(g.stdout, "  column %s %s %d records (%s)\n", c.Name, is, c.Numbers, byReason(c.Null))
		}
	}
	return nil
}

// byReason lists counts by reason.
func byReason(found map[string]int64) string {
	var list []string
	for _, why := range slices.Sorted(maps.Keys(found)) {
		list = append(list, fmt.Sprintf("%s %d", why, found[why]))
	}
	return strings.Join(list, ", ")
}

// check checks the configuration and prints the guarantees. With connect it also checks the
// cluster.
func (g *globals) check(ctx context.Context, c bool) error {
	cfg, err := g.load()
	if err != nil {
		return err
	}
	key, keyFault := loadKey(cfg)
	cluster, err := connect.Cluster(cfg)
	if err != nil {
		return err
	}
	if err := httpapi.CheckAccess(cfg); err != nil {
		return err
	}
	refused, err := connect.CheckTrace(ctx, cfg, c)
	if err != nil {
		return err
	}
	of := cfg.Representative()
	all, faults := describeAll(of, c)
	warnings := configurationWarnings(cfg)
	_, schemaFaults := checkSchemas(ctx, of, false)
	if errors.Is(schemaFaults, connect.ErrCredentials) {
		return schemaFaults
	}
	if faults := errors.Join(keyFault, faults, schemaFaults); faults != nil {
		return configError{faults}
	}
	for i, s := range of.Streams {
		all[i].Stream = title(s)
	}
	var rights []connect.Right
	if refused != nil {
		warnings = append(warnings, fmt.Sprintf("trace.endpoint: %v; run drops traces until the collector takes them", refused))
	}
	if c {
		var found []string
		if cfg, rights, found, err = checkCluster(ctx, cfg, cluster, all); err != nil {
			return err
		}
		more, err := checkSchemas(ctx, cfg, true)
		if err != nil {
			return configError{err}
		}
		warnings = append(append(warnings, found...), more...)
	}
	if g.json {
		return json.NewEncoder(g.stdout).Encode(struct {
			Key      string              `json:"key_id"`
			Streams  []*core.Description `json:"streams"`
			Rights   []connect.Right     `json:"rights,omitempty"`
			Warnings []string            `json:"warnings"`
		}{credentials.KeyID(key), all, rights, warnings})
	}
	fmt.Fprintf(g.stdout, "key %s\n", credentials.KeyID(key))
	for _, r := range rights {
		fmt.Fprintf(g.stdout, "may %s\n", r)
	}
	for i, d := range all {
		fmt.Fprintln(g.stdout)
		if err := plan.PrintGuarantee(g.stdout, d, "configuration", canonical(of.Streams[i])); err != nil {
			return err
		}
	}
	g.printTaken(cfg)
	for _, d := range all {
		warn(g, d)
	}
	for _, w := range warnings {
		fmt.Fprintf(g.stderr, "streamdp: warning: %s\n", w)
	}
	return nil
}

// describeAll builds every stream's estimator and describes it. Without connect, a release
// that is larger than a topic accepts by default is an error; with connect, checkCluster
// asks the topic.
func describeAll(cfg *config.Config, connect bool) (all []*core.Description, _ error) {
	var faults []error
	for _, s := range cfg.Streams {
		d, err := dryrun.Describe(s)
		if err == nil {
			err = d.Divide(cfg, s)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("stream %s: %w", title(s), err))
			continue
		}
		if large := oversize(d); !connect && large != "" {
			faults = append(faults, fmt.Errorf("stream %s: %s, or check --connect against a topic with a larger max.message.bytes", title(s), large))
		}
		all = append(all, d)
	}
	return all, errors.Join(faults...)
}

// checkSchemas compares the columns with the schemas of the records, with connect those in the
// registry too.
func checkSchemas(ctx context.Context, cfg *config.Config, c bool) (warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return connect.CheckSchemas(ctx, cfg, c)
}

// configurationWarnings returns dangers of a configuration that are not faults.
func configurationWarnings(cfg *config.Config) []string {
	var warnings []string
	if cfg.Kafka.ControlTopic == "" && cfg.Cluster == nil {
		warnings = append(warnings, "no control topic (kafka.control_topic): a state directory restored without its newest ledger lines can overspend by the epochs they charged, and copies that run at once are noticed only after one release")
	}
	if s := cfg.Kafka.SASL; s != nil && s.Mechanism == "plain" && cfg.Kafka.TLS == nil {
		warnings = append(warnings, "kafka.sasl sends the password in the clear: add [kafka.tls], or use scram-sha-512")
	}
	if s := cfg.Kafka.SASL; s != nil && s.Token() && cfg.Kafka.TLS == nil {
		warnings = append(warnings, "kafka.sasl sends the token in the clear, and whoever has it may use it until it ends: add [kafka.tls]")
	}
	if s := cfg.Kafka.SASL; s != nil && s.AWS() && cfg.Kafka.TLS == nil {
		warnings = append(warnings, "kafka.sasl sends a signature in the clear, and whoever has it may log in for 15 minutes: add [kafka.tls]")
	}
	if r := cfg.Registry; r != nil && r.InClear() {
		warnings = append(warnings, "registry.urls gets the password or the token in the clear: use https")
	}
	if h := &cfg.HTTP; h.BasicAuth != nil && h.TLS == nil && !config.Loopback(h.Listen) {
		warnings = append(warnings, "http.basic_auth gets the password in the clear: add [http.tls]")
	}
	return warnings
}

// checkRights asks the brokers whether this user may do what the daemon will do, and returns what it
// needs and may; nothing, with a warning, where the brokers do not tell. What is missing is a fault,
// with the command that grants it.
func checkRights(ctx context.Context, cfg *config.Config, cluster kafka.Options) (rights []connect.Right, warnings []string, err error) {
	needs := connect.Rights(cfg)
	missing, err := connect.MissingRights(ctx, cluster, needs)
	switch {
	case errors.Is(err, connect.ErrSilent):
		return nil, []string{"whether this user may do what the daemon needs is not known: " + err.Error()}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("permissions: %w", err)
	}
	principal := "User:NAME"
	if s := cfg.Kafka.SASL; s != nil && s.Username != "" {
		principal = "User:" + s.Username
	}
	var faults []error
	for _, r := range missing {
		how := r.Grant(cfg.Kafka.Brokers[0], principal)
		if s := cfg.Kafka.SASL; s != nil && s.AWS() {
			how = "allow it in the IAM policy"
		}
		faults = append(faults, fmt.Errorf("this user may not %s: %s", r, how))
	}
	if len(faults) > 0 {
		return nil, nil, configError{errors.Join(faults...)}
	}
	return needs, nil, nil
}

// checkCluster checks the brokers, what this user may do, and the topics. It returns the configuration
// with the topics that its patterns would take, and the rights that this user needs and has.
func checkCluster(ctx context.Context, cfg *config.Config, cluster kafka.Options, of []*core.Description) (_ *config.Config, rights []connect.Right, warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client, err := kafka.NewClient(cluster)
	if err != nil {
		return nil, nil, nil, err
	}
	defer client.Close()
	if err := client.Probe(ctx); kafka.Unauthorized(err) {
		return nil, nil, nil, fmt.Errorf("the brokers refuse what [kafka.sasl] says: %w", err)
	} else if err != nil {
		return nil, nil, nil, err
	}
	described := map[string]*core.Description{}
	for _, d := range of {
		described[d.Stream] = d
	}
	cfg, all, found, err := matched(ctx, client, cfg, described)
	if err != nil {
		return nil, nil, nil, err
	}
	warnings = append(warnings, found...)
	rights, found, err = checkRights(ctx, cfg, cluster)
	if err != nil {
		return nil, nil, nil, err
	}
	warnings = append(warnings, found...)
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if name := cfg.Kafka.ControlTopic; name != "" {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return nil, nil, nil, err
		}
		if t.Exists {
			settings, err := client.TopicConfig(ctx, name, ledger.SettingNames...)
			if err != nil {
				return nil, nil, nil, err
			}
			if why := ledger.UnfitControl(len(t.Partitions), settings); why != "" {
				fault("kafka.control_topic: topic %s %s", name, why)
			}
		}
	}
	if name := cfg.Kafka.BoundaryTopic; name != "" {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return nil, nil, nil, err
		}
		if t.Exists {
			settings, err := client.TopicConfig(ctx, name, boundary.SettingNames...)
			if err != nil {
				return nil, nil, nil, err
			}
			if why := boundary.Unfit(len(t.Partitions), settings); why != "" {
				fault("kafka.boundary_topic: topic %s %s", name, why)
			}
			if boundary.BrokersStamp(settings) {
				warn("kafka.boundary_topic: records of topic %s bear the time at which brokers appended them, which tells when the partitions answered: set message.timestamp.type = CreateTime", name)
			}
		}
	}
	for i, s := range cfg.Streams {
		in, err := client.Topic(ctx, s.Input.Topic)
		if err != nil {
			return nil, nil, nil, err
		}
		last := max(0, slices.Max(s.Input.Partitions)) // 0 for all
		switch {
		case !in.Exists:
			warn("stream %s: input topic %s does not exist yet; run waits for it", s.Name, s.Input.Topic)
		case last >= len(in.Partitions):
			warn("stream %s: input topic %s has %d partitions, partition %d is configured; run waits for it", s.Name, s.Input.Topic, len(in.Partitions), last)
		default:
			settings, err := client.TopicConfig(ctx, s.Input.Topic, input.RetentionSettings...)
			if err != nil {
				return nil, nil, nil, err
			}
			if strings.Contains(settings["cleanup.policy"], "compact") && !s.Input.AllowCompacted {
				fault("stream %s: input topic %s is compacted; set its cleanup.policy to delete, or accept it with input.allow_compacted = true", s.Name, s.Input.Topic)
			}
			if input.ProducersDecideRetention(settings) {
				warn("stream %s: producers' timestamps decide when records of %s are deleted, which the guarantee does not cover: set message.timestamp.type = LogAppendTime", s.Name, s.Input.Topic)
			}
		}
		if unread := connect.Unread(cfg, in); len(unread) > 0 {
			warn("stream %s: partitions %v of input topic %s are read by no stream of this configuration", s.Name, unread, s.Input.Topic)
		}
		if s.Input.All() && s.Merge && cfg.Cluster == nil {
			waiting, err := notMerged(cfg, s, len(in.Partitions))
			if err != nil {
				return nil, nil, nil, err
			}
			if len(waiting) > 0 {
				warn("stream %s: partitions %v of input topic %s were added since the open epoch began; the next epoch reads them: streamdp epoch open %s", s.Name, waiting, s.Input.Topic, s.Name)
			}
		}
		if s.Input.All() && !s.Merge && cfg.Cluster == nil {
			fresh, err := withoutEpoch(cfg, s, len(in.Partitions))
			if err != nil {
				return nil, nil, nil, err
			}
			if len(fresh) > 0 {
				warn("stream %s: partitions %v of input topic %s have no epoch yet; run opens one for each", s.Name, fresh, s.Input.Topic)
			}
		}
		out, err := client.Topic(ctx, s.Output.Topic)
		if err != nil {
			return nil, nil, nil, err
		}
		if s.DeadLetter.Mode != "off" {
			if dead, err := client.Topic(ctx, s.DeadLetter.Topic); err != nil {
				return nil, nil, nil, err
			} else if !dead.Exists {
				warn("stream %s: dead_letter.topic %s does not exist; dead letters wait for it", s.Name, s.DeadLetter.Topic)
			}
		}
		limit := int64(defaultMessageBytes)
		switch {
		case !out.Exists && !s.Output.Create:
			warn("stream %s: output topic %s does not exist, and output.create is false; run waits for it", s.Name, s.Output.Topic)
		case out.Exists:
			settings, err := client.TopicConfig(ctx, s.Output.Topic, "cleanup.policy", "max.message.bytes")
			if kafka.Unauthorized(err) {
				warn("stream %s: this user may not see the settings of output topic %s: whether it keeps releases, and takes large ones, is not known", s.Name, s.Output.Topic)
			} else if err != nil {
				return nil, nil, nil, err
			}
			if strings.Contains(settings["cleanup.policy"], "delete") {
				warn("stream %s: output topic %s deletes old releases: a restart after that halts, because a restored state can't be told any more", s.Name, s.Output.Topic)
			}
			if n, err := strconv.ParseInt(settings["max.message.bytes"], 10, 64); err == nil {
				limit = n
			}
		}
		if all[i].MessageBytes > limit {
			fault("stream %s: a release takes up to %s, output topic %s accepts %s: choose fewer output.values or raise max.message.bytes",
				s.Name, words.Size(all[i].MessageBytes), s.Output.Topic, words.Size(limit))
		}
	}
	if len(faults) > 0 {
		return nil, nil, nil, configError{errors.Join(faults...)}
	}
	return cfg, rights, warnings, nil
}

// withoutEpoch returns those of n partitions for which a stream of all partitions never
// opened an epoch. A state directory without a ledger has none.
func withoutEpoch(cfg *config.Config, s *config.Stream, n int) (fresh []int, err error) {
	books, err := ledger.ReadBooks(cfg.State.Dir)
	if err != nil {
		return nil, err
	}
	epochs := books.Epochs()
	for p := range n {
		if !slices.ContainsFunc(epochs, func(e ledger.EpochInfo) bool { return e.Stream == s.Name && e.Partition == p }) {
			fresh = append(fresh, p)
		}
	}
	return fresh, nil
}

// notMerged returns those of n partitions that the open epoch of a merged stream does not
// read, none where no epoch is open.
func notMerged(cfg *config.Config, s *config.Stream, n int) (waiting []int, err error) {
	books, err := ledger.ReadBooks(cfg.State.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range books.Epochs() {
		if e.Stream != s.Name || e.Partition != core.Merged || e.State != "open" {
			continue
		}
		for p := range n {
			if !slices.ContainsFunc(e.Parts, func(x ledger.EntryPart) bool { return x.Partition == p }) {
				waiting = append(waiting, p)
			}
		}
	}
	return waiting, nil
}
