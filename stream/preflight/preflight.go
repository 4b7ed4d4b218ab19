// Package preflight finds faults that would stop a daemon, before it starts: in the configuration and the files that it
// names, on the brokers, and in the schema registry. It changes nothing.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/httpapi"
)

// patience is the maximum time for an answer of the brokers or the schema registry.
const patience = 30 * time.Second

// Report describes a configuration that can be run.
type Report struct {
	Key string `json:"key_id"`
	// Streams describes the streams of [config.Config.Representative], each under its [Title].
	Streams []*core.Description `json:"streams"`
	// Rights are the rights that the daemon needs and this user has, if the brokers were asked and report rights.
	Rights   []connect.Right `json:"rights,omitempty"`
	Warnings []string        `json:"warnings"`
	// Config has a stream for each topic that its patterns would take, if the brokers were asked.
	Config *config.Config `json:"-"`
}

// Check looks for every fault that would stop a daemon with this configuration. If ask is true, it also asks the
// brokers, the schema registry and the collector of traces.
//
// Errors: an [exit.Config] with every fault of the configuration or, if it has none, of the topics and of this user's
// rights; connect.ErrCredentials; the error of a server that does not answer.
func Check(ctx context.Context, cfg *config.Config, ask bool) (*Report, error) {
	key, keyFault := credentials.LoadKey(cfg.State.KeyFile, cfg.State.KeyGroupReadable)
	cluster, err := connect.Cluster(cfg)
	if err != nil {
		return nil, err
	}
	if err := httpapi.CheckAccess(cfg); err != nil {
		return nil, err
	}
	refused, err := connect.CheckTrace(ctx, cfg, ask)
	if err != nil {
		return nil, err
	}
	of := cfg.Representative()
	all, faults := Describe(of, ask)
	r := &Report{Streams: all, Warnings: dangers(cfg), Config: cfg}
	_, schemaFaults := schemas(ctx, of, false)
	if errors.Is(schemaFaults, connect.ErrCredentials) {
		return nil, schemaFaults
	}
	if faults := errors.Join(keyFault, faults, schemaFaults); faults != nil {
		return nil, exit.Config{Err: faults}
	}
	r.Key = credentials.KeyID(key)
	for i, s := range of.Streams {
		all[i].Stream = Title(s)
	}
	if refused != nil {
		r.Warnings = append(r.Warnings, fmt.Sprintf("trace.endpoint: %v; until the collector accepts traces, the "+
			"daemon drops them", refused))
	}
	if !ask {
		return r, nil
	}
	if err := r.ask(ctx, cluster); err != nil {
		return nil, err
	}
	more, err := schemas(ctx, r.Config, true)
	if err != nil {
		return nil, exit.Config{Err: err}
	}
	r.Warnings = append(r.Warnings, more...)
	return r, nil
}

// Title returns the name under which a stream of [config.Config.Representative] is shown. It is the stream's own name
// or, if the stream represents the topics of a pattern, the pattern's name.
func Title(s *config.Stream) string {
	if s.Pattern() != "" {
		return s.Pattern() + ".*"
	}
	return s.Name
}

// Describe builds every stream's estimator and describes it. A release larger than a topic accepts by default is a
// fault, unless anySize is set because the topic itself will be asked.
//
// Errors: an [exit.Config] with every fault.
func Describe(cfg *config.Config, anySize bool) (all []*core.Description, _ error) {
	var faults []error
	for _, s := range cfg.Streams {
		d, err := dryrun.Describe(s)
		if err == nil {
			err = d.Divide(cfg, s)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("stream %s: %w", Title(s), err))
			continue
		}
		if large := Oversize(d); !anySize && large != "" {
			faults = append(faults, fmt.Errorf("stream %s: %s, or check --connect against a topic with a larger "+
				"max.message.bytes", Title(s), large))
		}
		all = append(all, d)
	}
	if len(faults) > 0 {
		return nil, exit.Config{Err: errors.Join(faults...)}
	}
	return all, nil
}

// defaultMessageBytes is the maximum size of a batch that brokers accept by default.
const defaultMessageBytes = 1048588

// Oversize returns a warning if a topic may refuse the stream's releases, or "" if not.
func Oversize(d *core.Description) string {
	if d.MessageBytes <= defaultMessageBytes {
		return ""
	}
	return fmt.Sprintf(
		"a release takes up to %s, more than a topic accepts by default (%s): choose fewer output.values",
		words.Size(d.MessageBytes), words.Size(defaultMessageBytes))
}

// schemas compares the columns with the schemas of the records. If ask is true, it also compares them with the schemas
// in the registry.
func schemas(ctx context.Context, cfg *config.Config, ask bool) (warnings []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return connect.CheckSchemas(ctx, cfg, ask)
}

// dangers returns warnings about settings that are allowed but dangerous.
func dangers(cfg *config.Config) []string {
	var warnings []string
	if cfg.Kafka.ControlTopic == "" && cfg.Cluster == nil {
		warnings = append(warnings, "no control topic (kafka.control_topic): a state directory restored without its "+
			"newest ledger lines can spend again what the epochs in those lines charged, and a second running copy "+
			"is only detected after one release was published")
	}
	if s := cfg.Kafka.SASL; s != nil && s.Mechanism == "plain" && cfg.Kafka.TLS == nil {
		warnings = append(warnings, "kafka.sasl sends the password in the clear: add [kafka.tls], or use scram-sha-512")
	}
	if s := cfg.Kafka.SASL; s != nil && s.Token() && cfg.Kafka.TLS == nil {
		warnings = append(warnings, "kafka.sasl sends the token in the clear, and anybody who reads it can use it "+
			"until it expires: add [kafka.tls]")
	}
	if s := cfg.Kafka.SASL; s != nil && s.AWS() && cfg.Kafka.TLS == nil {
		warnings = append(warnings, "kafka.sasl sends a signature in the clear, and anybody who reads it can log in "+
			"for 15 minutes: add [kafka.tls]")
	}
	if r := cfg.Registry; r != nil && r.InClear() {
		warnings = append(warnings, "the registry (registry.urls) gets the password or the token in the clear: use "+
			"https")
	}
	if h := &cfg.HTTP; h.BasicAuth != nil && h.TLS == nil && !config.Loopback(h.Listen) {
		warnings = append(warnings, "clients send the password of http.basic_auth in the clear: add [http.tls]")
	}
	return warnings
}
