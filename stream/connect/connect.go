// Package connect makes the connections that a configuration describes: to brokers, schema registry and trace
// collector, with credentials and rotating certificates. It also lists the permissions that the configured user lacks.
package connect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/trace"
	"github.com/streamdp/streamdp/stream/core"
)

// InsecureKey returns the master key that belongs to the seed of an insecure demonstration.
func InsecureKey(seed uint64) *[32]byte {
	key := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("streamdp insecure key "), seed))
	return &key
}

// InstanceName returns the name of this instance.
func InstanceName(c *config.Config) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed"
	}
	return cmp.Or(c.Cluster.Instance, host)
}

// InitialFile reads the parameters that a stream's first epoch begins with. It returns nil if the mechanism uses its
// default.
func InitialFile(s *config.Stream) ([]float64, error) {
	learning := core.LearningOf(s)
	if learning == nil || learning.File == "" {
		return nil, nil
	}
	data, err := os.ReadFile(learning.File)
	if err != nil {
		return nil, fmt.Errorf("initial_file: %w", err)
	}
	x, err := core.ParseParameters(data)
	if err != nil {
		return nil, fmt.Errorf("initial_file: %w", err)
	}
	return x, nil
}

// Unread returns the partitions of a topic that no stream of a configuration reads.
func Unread(c *config.Config, t kafka.Topic) (unread []int) {
	read := make([]bool, len(t.Partitions))
	for _, s := range c.Streams {
		if s.Input.Topic != t.Name {
			continue
		}
		if s.Input.All() {
			return nil
		}
		for _, p := range s.Input.Partitions {
			if p < len(read) {
				read[p] = true
			}
		}
	}
	for p := range read {
		if !read[p] {
			unread = append(unread, p)
		}
	}
	return unread
}

// NewTracer returns the sender of traces and its TLS files, or nil if the configuration has no [trace]. sent is called
// with the results of sending spans.
//
// Errors: ErrCredentials.
func NewTracer(c *config.Config, version string, sent func(sent, dropped int, err error)) (*trace.Tracer,
	*credentials.Rotation, error) {
	t := c.Trace
	if t == nil {
		return nil, nil, nil
	}
	o := trace.Options{Endpoint: t.URL(), Sample: t.Sample, Service: t.Service, Version: version, Sent: sent}
	if c.Cluster != nil {
		o.Instance = InstanceName(c)
	}
	var err error
	if t.HeadersFile != "" {
		if o.Header, err = credentials.LoadHeaders(t.HeadersFile, c.State.KeyGroupReadable); err != nil {
			return nil, nil, fmt.Errorf("%w: trace: %w", ErrCredentials, err)
		}
	}
	var files *credentials.Rotation
	if t.TLS != nil {
		if files, err = credentials.OpenTLS(credentials.TLSFiles(*t.TLS), c.State.KeyGroupReadable); err != nil {
			return nil, nil, fmt.Errorf("%w: trace.tls: %w", ErrCredentials, err)
		}
		o.TLS = files.Config
	}
	return trace.New(o), files, nil
}

// CheckTrace reads the files of [trace], as a daemon does at start. If connect is true, it also sends a request without
// spans. If the collector does not accept that, refused says why.
//
// Errors: ErrCredentials.
func CheckTrace(ctx context.Context, c *config.Config, connect bool) (refused, err error) {
	t, _, err := NewTracer(c, "", nil)
	if err != nil || t == nil || !connect {
		return nil, err
	}
	return t.Probe(ctx), nil
}

// RotationEvery is the interval at which the daemon checks whether its certificate files were replaced.
const RotationEvery = 10 * time.Second

// Certificates are the TLS files that a daemon uses, by configuration table.
type Certificates struct {
	Every time.Duration
	files map[string]*credentials.Rotation
}

// Add adds the files of a table. nil files are ignored.
func (c *Certificates) Add(table string, files *credentials.Rotation) {
	if files == nil {
		return
	}
	if c.files == nil {
		c.files = map[string]*credentials.Rotation{}
	}
	c.files[table] = files
}

// Show reports the expiry of all certificates to the metrics.
func (c *Certificates) Show(expiry func(table string, until time.Time)) {
	for table, files := range c.files {
		expiry(table, files.Until())
	}
}

// Watch loads replaced certificates until the context ends. Existing connections keep their certificates.
func (c *Certificates) Watch(ctx context.Context, log *slog.Logger, expiry func(table string, until time.Time)) {
	if len(c.files) == 0 {
		return
	}
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for table, files := range c.files {
			changed, err := files.Look()
			switch {
			case err != nil:
				log.Warn("cannot use the new certificate files: keeping the former ones", "table", table, "error",
					err.Error())
			case changed:
				log.Info("certificates replaced", "table", table)
			}
		}
		c.Show(expiry)
	}
}
