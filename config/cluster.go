package config

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/toml"
)

// Cluster is the table [cluster]. With it, several instances share the tasks of one configuration and keep their state
// in Kafka. None of its keys enters a digest.
type Cluster struct {
	// Group is the consumer group of the instances. The names of their topics and transactional ids begin with it.
	// Required.
	Group string `toml:"group"`
	// Shards is the number of shards, 1 to 4096, into which the tasks are divided. Each shard has its own ledger and
	// one owner at a time. The number never changes. Default 64.
	Shards int `toml:"shards"`
	// Assign says how an input partition is assigned to a shard: "partition" (the default) uses its topic and number,
	// "topic" only its topic. It never changes.
	Assign string `toml:"assign"`
	// SessionTimeout is the silence after which an instance counts as dead. Default 6 s.
	SessionTimeout time.Duration `toml:"session_timeout"`
	// Instance names this instance to people. Empty: the host's name.
	Instance string `toml:"instance"`
	// Advertise is the host:port at which other machines reach this instance's status. Empty: the address that it
	// listens on.
	Advertise string `toml:"advertise"`
	// AllowUnreplicated accepts topics with a single replica. Default false.
	AllowUnreplicated bool `toml:"allow_unreplicated"`
}

// AssignTopic is the value of Cluster.Assign that puts all partitions of a topic into one shard.
const AssignTopic = "topic"

// maxGroup is the largest length of a group's name. With a longer one, Kafka would refuse the names of its topics.
const maxGroup = 200

// The methods below name the topics of a group.

// StateTopic is the topic of the tasks' state.
func (c *Cluster) StateTopic() string { return c.Group + ".state" }

// LedgerTopic is the topic of the ledgers.
func (c *Cluster) LedgerTopic() string { return c.Group + ".ledger" }

// ControlTopic is the topic of requests and their answers.
func (c *Cluster) ControlTopic() string { return c.Group + ".control" }

// PartialsTopic is the topic through which instances exchange the sums of merged partitions.
func (c *Cluster) PartialsTopic() string { return c.Group + ".partials" }

// topics returns the topics of the group.
func (c *Cluster) topics() []string {
	return []string{c.StateTopic(), c.LedgerTopic(), c.ControlTopic(), c.PartialsTopic()}
}

// Shard returns the shard of an input partition, from 0. All tasks that read the partition are in this shard, so one
// ledger holds the partition's budget. Its number is
//
//	u64be(SHA-256(u32be(len(topic)) ‖ topic ‖ u32be(partition))[:8]) mod Shards,
//
// without ‖ u32be(partition) if Assign is "topic".
func (c *Cluster) Shard(topic string, partition int) int {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(topic)))
	b = append(b, topic...)
	if c.Assign != AssignTopic {
		b = binary.BigEndian.AppendUint32(b, uint32(partition))
	}
	sum := sha256.Sum256(b)
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(c.Shards))
}

// checkCluster checks [cluster], and reports keys of other tables that cannot be used with it.
func (d *document) checkCluster(c *Config) {
	if c.Cluster == nil {
		return
	}
	d.checkShared(c)
	d.checkGroupTopic(c, toml.Key{"kafka", "boundary_topic"}, c.Kafka.BoundaryTopic)
	for _, s := range c.Streams {
		key := toml.Key{"stream", s.Name}
		d.checkGroupTopic(c, under(key, "input", "topic"), s.Input.Topic)
		d.checkGroupTopic(c, under(key, "output", "topic"), s.Output.Topic)
		d.checkGroupTopic(c, under(key, "dead_letter", "topic"), s.DeadLetter.Topic)
		d.checkSharedStream(c, s, key)
	}
}

// checkShared reports keys of the whole process that cannot be used with [cluster].
func (d *document) checkShared(c *Config) {
	if key := (toml.Key{"kafka", "control_topic"}); d.Sound(key) && c.Kafka.ControlTopic != "" {
		d.Add(key, -1, "must be absent with [cluster]: each shard's ledger is a topic itself, with one writer",
			c.Kafka.ControlTopic)
	}
	if key := (toml.Key{"state", "encrypt"}); d.Sound(key) && c.State.Encrypt {
		d.Add(key, -1,
			"must be false with [cluster]: state in Kafka is always encrypted, and instances keep nothing "+
				"in state.dir that needs encryption", c.State.Encrypt)
	}
	if key := (toml.Key{"state", "archive"}); d.Sound(key) && c.State.Archive {
		d.Add(key, -1,
			"must be false with [cluster]: a shard holds 64 MiB, and an archive grows without limit; let the output "+
				"topic keep the releases", c.State.Archive)
	}
	group := toml.Key{"cluster", "group"}
	if key := (toml.Key{"kafka", "group"}); d.Sound(key) && d.Sound(group) && c.Kafka.Group == c.Cluster.Group {
		d.Add(key, -1, "must not be cluster.group: that group has members, and accepts offsets only from them",
			c.Kafka.Group)
	}
}

// checkGroupTopic reports a fault if a topic is one of the group's own.
func (d *document) checkGroupTopic(c *Config, key toml.Key, topic string) {
	if d.Sound(toml.Key{"cluster", "group"}) && d.Sound(key) && slices.Contains(c.Cluster.topics(), topic) {
		d.Note(key, -1, "must not be one of the topics that belong to cluster.group", topic)
	}
}

// checkSharedStream checks a stream whose tasks are spread over several shards.
func (d *document) checkSharedStream(c *Config, s *Stream, key toml.Key) {
	assign := toml.Key{"cluster", "assign"}
	if merge := under(key, "merge"); s.Merge && d.Sound(merge) && d.Sound(assign) && c.Cluster.Assign != AssignTopic {
		d.Add(merge, -1,
			"needs cluster.assign = \"topic\": then one ledger holds the budgets of all merged partitions", nil)
	}
	if topics := under(key, "input", "topics"); s.Dynamic() && d.Sound(topics) {
		d.Add(topics, -1,
			"must be absent with [cluster]: no single instance knows how many topics are in use",
			s.Input.Topics)
	}
	if s.User != nil {
		d.Note(under(key, "user"), -1,
			"must be absent with [cluster]: the persons of a population share one budget, but each shard has a "+
				"ledger of its own", nil)
	}
}
