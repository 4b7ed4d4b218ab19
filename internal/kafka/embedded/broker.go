// Package embedded runs a broker that speaks Kafka's protocol inside the process, on the loopback address only. It is
// for the demonstration and for tests, and does not replace a Kafka cluster: it has one copy of the data and one event
// loop.
package embedded

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Options are the settings of a Broker.
type Options struct {
	// Port is the TCP port of the only broker; 0: any free port.
	Port int
	// Brokers is the number of brokers, for tests that move leaders; default 1. If it is larger, Port must be 0.
	Brokers int
	// DataDir stores topics across restarts. Empty: memory only.
	DataDir string
	// SyncWrites makes every produce durable before it is acknowledged.
	SyncWrites bool
	// ClusterID is the id that clients see. Default "streamdp-embedded".
	ClusterID string
	// Topics are created at the first start, with one partition each.
	Topics []string
	// MinSession is the shortest session timeout that a group member may request. Default 6 s, as in Kafka.
	MinSession time.Duration
	// Log receives the broker's own warnings. Nil: none.
	Log io.Writer
	// Extra are more options of the underlying broker, for tests: versions, credentials, certificates.
	Extra []kfake.Opt
}

// Broker is a running broker.
type Broker struct {
	cluster *kfake.Cluster
	addrs   []string
}

// Start starts a broker, which is listening when Start returns.
func Start(o Options) (*Broker, error) {
	id := o.ClusterID
	if id == "" {
		id = "streamdp-embedded"
	}
	n := max(o.Brokers, 1)
	opts := []kfake.Opt{kfake.NumBrokers(n), kfake.ClusterID(id), kfake.DefaultNumPartitions(1)}
	if o.Port != 0 {
		if n > 1 {
			return nil, fmt.Errorf("embedded broker: port %d cannot serve %d brokers", o.Port, n)
		}
		opts = append(opts, kfake.Ports(o.Port))
	}
	if o.DataDir != "" {
		opts = append(opts, kfake.DataDir(o.DataDir))
	}
	if o.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	if o.MinSession > 0 {
		opts = append(opts, kfake.GroupMinSessionTimeout(o.MinSession))
	}
	if len(o.Topics) > 0 {
		opts = append(opts, kfake.SeedTopics(1, o.Topics...))
	}
	if o.Log != nil {
		opts = append(opts, kfake.WithLogger(kfake.BasicLogger(o.Log, kfake.LogLevelWarn)))
	}
	c, err := kfake.NewCluster(append(opts, o.Extra...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	return &Broker{cluster: c, addrs: c.ListenAddrs()}, nil
}

// Addr returns the address of the first broker.
func (b *Broker) Addr() string { return b.addrs[0] }

// Addrs returns the addresses of all brokers.
func (b *Broker) Addrs() []string { return b.addrs }

// CreateTopic creates a topic.
func (b *Broker) CreateTopic(ctx context.Context, name string, partitions int, config map[string]string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.addrs...))
	if err != nil {
		return fmt.Errorf("embedded broker: %w", err)
	}
	defer client.Close()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(partitions), -1
	for k, v := range config {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, &v
		t.Configs = append(t.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, t)
	res, err := req.RequestWith(ctx, client)
	if err == nil && len(res.Topics) == 1 {
		err = kerr.ErrorForCode(res.Topics[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("embedded broker: create topic %s: %w", name, err)
	}
	return nil
}

// Cluster gives tests access to faults, request hooks and leader moves.
func (b *Broker) Cluster() *kfake.Cluster { return b.cluster }

// Close stops the broker and, if DataDir is set, saves its state.
func (b *Broker) Close() { b.cluster.Close() }
