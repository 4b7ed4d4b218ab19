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

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/stream"
	"streamdp/stream/core"
)

// defaultMessageBytes is the size of batch that brokers accept by default.
const defaultMessageBytes = 1048588

// oversize returns a warning if a topic may refuse the stream's releases, else "".
func oversize(d *core.Description) string {
	if d.MessageBytes <= defaultMessageBytes {
		return ""
	}
	return fmt.Sprintf("a release takes up to %s, more than a topic accepts by default (%s): choose fewer output.values",
		size(d.MessageBytes), size(defaultMessageBytes))
}

func checkCommand(g *globals) *cobra.Command {
	var connect bool
	var sample, name, header string
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration and print its privacy statement",
		Long: "Check the configuration and the key file, build every estimator, and print\n" +
			"what each stream promises. Every fault is reported at once.\n\n" +
			"With --sample it decodes the records of a file as the stream would, and says\n" +
			"how many give a row and which columns hold no number: before any budget is\n" +
			"spent on a stream that reads nothing. What it prints is not private.",
		RunE: func(c *cobra.Command, _ []string) error {
			if sample != "" {
				return g.sample(sample, name, header)
			}
			return g.check(c.Context(), connect)
		},
	}
	c.Flags().StringVar(&sample, "sample", "", "decode the records of this file, as replay reads them, and check nothing else: not private")
	c.Flags().StringVar(&name, "stream", "", "stream whose records --sample has (default: the only one)")
	c.Flags().StringVar(&header, "header", "auto", "whether a CSV file of --sample has a header: "+headerUsage)
	c.Flags().BoolVar(&connect, "connect", false, "also ask the brokers: reachable, topics there and fit")
	return c
}

// sample decodes the records of a file and counts what they give.
func (g *globals) sample(file, name, header string) error {
	if err := checkHeader(header); err != nil {
		return err
	}
	cfg, err := g.load()
	if err != nil {
		return err
	}
	if name == "" && len(cfg.Streams) == 1 {
		name = cfg.Streams[0].Name
	}
	s := cfg.Stream(name)
	if s == nil {
		return noStream(cfg, name)
	}
	x, err := stream.NewSample(s)
	if err != nil {
		return configError{fmt.Errorf("stream %s: %w", s.Name, err)}
	}
	next, _, _, done, err := values(file, header, s.Input.Codec, s.Input.Columns)
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
	if d, err := stream.Describe(s); err == nil && x.Records < d.WarmupOffsets { // the number of records is public
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
		switch {
		case x.Records == 0 || c.Numbers == x.Records:
		case c.Numbers == 0:
			fmt.Fprintf(g.stdout, "  column %s is a number in no record (%s)\n", c.Name, byReason(c.Null))
		default:
			fmt.Fprintf(g.stdout, "  column %s is a number in %d records (%s)\n", c.Name, c.Numbers, byReason(c.Null))
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
func (g *globals) check(ctx context.Context, connect bool) error {
	cfg, err := g.load()
	if err != nil {
		return err
	}
	key, keyFault := loadKey(cfg)
	cluster, err := stream.Cluster(cfg)
	if err != nil {
		return err
	}
	if err := stream.CheckAccess(cfg); err != nil {
		return err
	}
	all, faults := describeAll(cfg, connect)
	if faults := errors.Join(keyFault, faults); faults != nil {
		return configError{faults}
	}
	warnings := configurationWarnings(cfg)
	if connect {
		found, err := checkCluster(ctx, cfg, cluster, all)
		if err != nil {
			return err
		}
		warnings = append(warnings, found...)
	}
	if g.json {
		return json.NewEncoder(g.stdout).Encode(struct {
			Key      string              `json:"key_id"`
			Streams  []*core.Description `json:"streams"`
			Warnings []string            `json:"warnings"`
		}{config.KeyID(key), all, warnings})
	}
	fmt.Fprintf(g.stdout, "key %s\n", config.KeyID(key))
	for i, d := range all {
		fmt.Fprintln(g.stdout)
		s := cfg.Streams[i]
		if err := printGuarantee(g.stdout, d, "configuration", string(s.Canonical(s.Input.First()))); err != nil {
			return err
		}
	}
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
		d, err := stream.Describe(s)
		if err == nil {
			err = d.Divide(cfg, s)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("stream %s: %w", s.Name, err))
			continue
		}
		if large := oversize(d); !connect && large != "" {
			faults = append(faults, fmt.Errorf("stream %s: %s, or check --connect against a topic with a larger max.message.bytes", s.Name, large))
		}
		all = append(all, d)
	}
	return all, errors.Join(faults...)
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
	if h := &cfg.HTTP; h.BasicAuth != nil && h.TLS == nil && !config.Loopback(h.Listen) {
		warnings = append(warnings, "http.basic_auth gets the password in the clear: add [http.tls]")
	}
	return warnings
}

// checkCluster checks the brokers and the topics.
func checkCluster(ctx context.Context, cfg *config.Config, cluster kafka.Options, all []*core.Description) (warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client, err := kafka.NewClient(cluster)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := client.Probe(ctx); err != nil {
		return nil, err
	}
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if name := cfg.Kafka.ControlTopic; name != "" {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return nil, err
		}
		if t.Exists {
			settings, err := client.TopicConfig(ctx, name, stream.ControlSettings...)
			if err != nil {
				return nil, err
			}
			if why := stream.UnfitControl(len(t.Partitions), settings); why != "" {
				fault("kafka.control_topic: topic %s %s", name, why)
			}
		}
	}
	if name := cfg.Kafka.BoundaryTopic; name != "" {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return nil, err
		}
		if t.Exists {
			settings, err := client.TopicConfig(ctx, name, stream.BoundarySettings...)
			if err != nil {
				return nil, err
			}
			if why := stream.UnfitBoundary(len(t.Partitions), settings); why != "" {
				fault("kafka.boundary_topic: topic %s %s", name, why)
			}
			if stream.BrokersStampBoundaries(settings) {
				warn("kafka.boundary_topic: records of topic %s bear the time at which brokers appended them, which tells when the partitions answered: set message.timestamp.type = CreateTime", name)
			}
		}
	}
	for i, s := range cfg.Streams {
		in, err := client.Topic(ctx, s.Input.Topic)
		if err != nil {
			return nil, err
		}
		last := max(0, slices.Max(s.Input.Partitions)) // 0 for all
		switch {
		case !in.Exists:
			warn("stream %s: input topic %s does not exist yet; run waits for it", s.Name, s.Input.Topic)
		case last >= len(in.Partitions):
			warn("stream %s: input topic %s has %d partitions, partition %d is configured; run waits for it", s.Name, s.Input.Topic, len(in.Partitions), last)
		default:
			settings, err := client.TopicConfig(ctx, s.Input.Topic, stream.RetentionSettings...)
			if err != nil {
				return nil, err
			}
			if strings.Contains(settings["cleanup.policy"], "compact") && !s.Input.AllowCompacted {
				fault("stream %s: input topic %s is compacted; set its cleanup.policy to delete, or accept it with input.allow_compacted = true", s.Name, s.Input.Topic)
			}
			if stream.ProducersDecideRetention(settings) {
				warn("stream %s: producers' timestamps decide when records of %s are deleted, which the guarantee does not cover: set message.timestamp.type = LogAppendTime", s.Name, s.Input.Topic)
			}
		}
		if unread := stream.Unread(cfg, in); len(unread) > 0 {
			warn("stream %s: partitions %v of input topic %s are read by no stream of this configuration", s.Name, unread, s.Input.Topic)
		}
		if s.Input.All() && s.Merge && cfg.Cluster == nil {
			waiting, err := notMerged(cfg, s, len(in.Partitions))
			if err != nil {
				return nil, err
			}
			if len(waiting) > 0 {
				warn("stream %s: partitions %v of input topic %s were added since the open epoch began; the next epoch reads them: streamdp epoch open %s", s.Name, waiting, s.Input.Topic, s.Name)
			}
		}
		if s.Input.All() && !s.Merge && cfg.Cluster == nil {
			fresh, err := withoutEpoch(cfg, s, len(in.Partitions))
			if err != nil {
				return nil, err
			}
			if len(fresh) > 0 {
				warn("stream %s: partitions %v of input topic %s have no epoch yet; run opens one for each", s.Name, fresh, s.Input.Topic)
			}
		}
		out, err := client.Topic(ctx, s.Output.Topic)
		if err != nil {
			return nil, err
		}
		if s.DeadLetter.Mode != "off" {
			if dead, err := client.Topic(ctx, s.DeadLetter.Topic); err != nil {
				return nil, err
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
			if err != nil {
				return nil, err
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
				s.Name, size(all[i].MessageBytes), s.Output.Topic, size(limit))
		}
	}
	if len(faults) > 0 {
		return nil, configError{errors.Join(faults...)}
	}
	return warnings, nil
}

// withoutEpoch returns those of n partitions for which a stream of all partitions never
// opened an epoch. A state directory without a ledger has none.
func withoutEpoch(cfg *config.Config, s *config.Stream, n int) (fresh []int, err error) {
	books, err := stream.ReadBooks(cfg.State.Dir)
	if err != nil {
		return nil, err
	}
	epochs := books.Epochs()
	for p := range n {
		if !slices.ContainsFunc(epochs, func(e stream.EpochInfo) bool { return e.Stream == s.Name && e.Partition == p }) {
			fresh = append(fresh, p)
		}
	}
	return fresh, nil
}

// notMerged returns those of n partitions that the open epoch of a merged stream does not
// read, none where no epoch is open.
func notMerged(cfg *config.Config, s *config.Stream, n int) (waiting []int, err error) {
	books, err := stream.ReadBooks(cfg.State.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range books.Epochs() {
		if e.Stream != s.Name || e.Partition != core.Merged || e.State != "open" {
			continue
		}
		for p := range n {
			if !slices.ContainsFunc(e.Parts, func(x stream.EntryPart) bool { return x.Partition == p }) {
				waiting = append(waiting, p)
			}
		}
	}
	return waiting, nil
}
