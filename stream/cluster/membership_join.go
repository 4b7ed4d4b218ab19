package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// WitnessDir is the directory of the ledgers' witnesses within the state directory.
const WitnessDir = "witness"

// Share joins the group and runs the shards that the group gives to this instance, until the context ends. It returns
// an error if retrying cannot help: the topics are missing or do not fit this configuration.
func (s *Member) Share(ctx context.Context) error {
	d := s.process
	d.Metrics.Shares(d.Cfg.Cluster.Shards)
	r := failure.NewRetrier(d.Log, d.Metrics.KafkaError, d.StateChanged)
	var clusterID string
	if err := r.Do(ctx, "cluster", func() (err error) {
		clusterID, err = d.Client.ClusterID(ctx)
		return err
	}); err != nil {
		return ended(ctx, err)
	}
	s.genesis = genesisOf(d.Cfg, d.Key, clusterID)
	if err := r.Do(ctx, "topics of the group", func() error {
		var found kgroup.Findings
		err := kgroup.CheckTopics(ctx, topicsOf(d.Cfg.Cluster, s.reach))
		if err == nil || errors.As(err, &found) {
			return err
		}
		return &failure.Later{Err: err}
	}); err != nil {
		return ended(ctx, err)
	}
	g, err := s.joinGroup(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	s.group = g
	var summing sync.WaitGroup
	defer summing.Wait()
	if d.Partials != nil {
		// This context ends after the tasks, because a task that stops may still wait for a sum.
		after, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		summing.Go(func() { d.Partials.Run(after, nil) })
	}
	s.run(ctx)
	return nil
}

// ended returns nil if the context has ended, because this explains any error. Otherwise it returns err.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// genesisOf returns the genesis that the ledger of shard 0 of a configuration must have. For other shards only the
// shard's number differs.
func genesisOf(c *config.Config, master *[32]byte, clusterID string) shardlog.Genesis {
	return shardlog.Genesis{
		Group: c.Cluster.Group, Shards: c.Cluster.Shards, Assign: c.Cluster.Assign,
		Cluster: clusterID, Key: ledger.NewKey(master).ID,
	}
}

// groupDigest returns the digest of everything on which instances of a group must agree before they share tasks: what
// each stream reads, computes and guarantees, its limits, where it publishes, and the versions that are in the digests
// of epochs.
func groupDigest(c *config.Config) string {
	type output struct {
		Topic     string
		Partition int
	}
	type stream struct {
		Name       string
		Canonical  json.RawMessage
		Partitions []int
		Versions   map[string]string
		Limits     [2]float64
		Output     output
		OnHorizon  string
		OnGap      string
	}
	var all []stream
	for _, s := range c.Streams {
		all = append(all, stream{s.Name, s.Canonical(s.Input.First()), s.Input.Partitions, core.Versions(s),
			[2]float64{s.Privacy.LimitEpsilon, s.Privacy.LimitDelta}, output{s.Output.Topic, s.Output.Partition},
			s.OnHorizon, s.OnGap})
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic("stream: " + err.Error()) // unreachable: all numbers in a configuration are finite
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// realGroup is the group on a Kafka cluster.
type realGroup struct {
	*kgroup.Member
	kafka kafka.Options
	name  string
}

// Log implements group.
func (g *realGroup) Log(shard int) shardlog.Log {
	return kgroup.NewLog(
		kgroup.LogOptions{Kafka: g.kafka, Group: g.name, Shard: shard, Confirm: func(ctx context.Context) error {
			return g.Confirm(ctx, shard)
		}})
}

// Close implements group.
func (g *realGroup) Close(ctx context.Context) { g.Member.Close(ctx) }

// joinGroup joins the group.
func (s *Member) joinGroup(ctx context.Context) (group, error) {
	d := s.process
	key := ledger.NewKey(d.Key).ID
	m, err := kgroup.Join(ctx, kgroup.Options{
		Kafka: s.reach, Group: d.Cfg.Cluster.Group, Shards: d.Cfg.Cluster.Shards, Session: d.Cfg.Cluster.SessionTimeout,
		Instance: s.instance, Address: s.advertised(), Build: d.Version, Key: key, Digest: groupDigest(d.Config()),
		Reads: []int{shardlog.Format}, Writes: []int{shardlog.Format},
		Trouble: s.setTrouble,
	})
	if err != nil {
		return nil, err
	}
	return &realGroup{m, s.reach, d.Cfg.Cluster.Group}, nil
}

// advertised returns the address at which others can read this instance's status: the configured address or, without
// one, the address on which the instance listens. If it listens on all addresses of the machine, the host is the
// machine's name.
func (s *Member) advertised() string {
	if a := s.process.Cfg.Cluster.Advertise; a != "" {
		return a
	}
	host, port, err := net.SplitHostPort(s.advertise())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			return net.JoinHostPort(name, port)
		}
	}
	return s.advertise()
}
