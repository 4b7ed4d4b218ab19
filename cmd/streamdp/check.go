package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"streamdp/config"
	"streamdp/internal/kafka"
	"streamdp/stream"
)

// defaultMessageBytes is what brokers accept in a batch unless they are told
// otherwise.
const defaultMessageBytes = 1048588

// oversize says that a topic may not accept the stream's releases, "" if it does.
func oversize(d *stream.Description) string {
	if d.MessageBytes <= defaultMessageBytes {
		return ""
	}
	return fmt.Sprintf("a release takes up to %s, more than a topic accepts by default (%s): choose fewer output.values",
		size(d.MessageBytes), size(defaultMessageBytes))
}

func checkCommand(g *globals) *cobra.Command {
	var connect bool
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration and print its privacy statement",
		Long: "Check the configuration and the key file, build every estimator, and print\n" +
			"what each stream promises. Every fault is reported at once.",
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			var faults []error
			key, err := loadKey(cfg)
			if err != nil {
				faults = append(faults, err)
			}
			cluster, err := stream.Cluster(cfg)
			if err != nil {
				return err
			}
			var all []*stream.Description
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
			if len(faults) > 0 {
				return configError{errors.Join(faults...)}
			}
			warnings := []string{"there is no control topic in this version: a state directory restored without its newest ledger lines can overspend by the epochs they charged"}
			if s := cfg.Kafka.SASL; s != nil && s.Mechanism == "plain" && cfg.Kafka.TLS == nil {
				warnings = append(warnings, "kafka.sasl sends the password in the clear: add [kafka.tls], or use scram-sha-512")
			}
			if connect {
				found, err := checkCluster(c.Context(), cfg, cluster, all)
				if err != nil {
					return err
				}
				warnings = append(warnings, found...)
			}
			if g.json {
				return json.NewEncoder(g.stdout).Encode(struct {
					Key      string                `json:"key_id"`
					Streams  []*stream.Description `json:"streams"`
					Warnings []string              `json:"warnings"`
				}{config.KeyID(key), all, warnings})
			}
			fmt.Fprintf(g.stdout, "key %s\n", config.KeyID(key))
			for i, d := range all {
				fmt.Fprintln(g.stdout)
				s := cfg.Streams[i]
				if err := printGuarantee(g.stdout, d, "configuration", string(s.Canonical(s.Input.Partitions[0]))); err != nil {
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
		},
	}
	c.Flags().BoolVar(&connect, "connect", false, "also ask the brokers: reachable, topics there and fit")
	return c
}

// checkCluster looks at brokers and topics.
func checkCluster(ctx context.Context, cfg *config.Config, cluster kafka.Options, all []*stream.Description) (warnings []string, err error) {
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
	for i, s := range cfg.Streams {
		in, err := client.Topic(ctx, s.Input.Topic)
		if err != nil {
			return nil, err
		}
		last := s.Input.Partitions[len(s.Input.Partitions)-1]
		switch {
		case !in.Exists:
			warn("stream %s: input topic %s does not exist yet; run waits for it", s.Name, s.Input.Topic)
		case last >= len(in.Partitions):
			warn("stream %s: input topic %s has %d partitions, partition %d is configured; run waits for it", s.Name, s.Input.Topic, len(in.Partitions), last)
		default:
			settings, err := client.TopicConfig(ctx, s.Input.Topic, "cleanup.policy")
			if err != nil {
				return nil, err
			}
			if strings.Contains(settings["cleanup.policy"], "compact") && !s.Input.AllowCompacted {
				fault("stream %s: input topic %s is compacted; input.allow_compacted = true accepts it", s.Name, s.Input.Topic)
			}
		}
		out, err := client.Topic(ctx, s.Output.Topic)
		if err != nil {
			return nil, err
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
