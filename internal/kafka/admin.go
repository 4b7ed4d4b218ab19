package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/offsetcommit"
)

// metadata returns the transport's metadata of the cluster and one topic. It is at most metadataTTL old while a broker
// is reachable. The call itself asks no broker.
func (c *Client) metadata(ctx context.Context, topic string) (*metadata.Response, error) {
	names := []string{topic}
	if topic == "" {
		names = names[:0]
	}
	return c.topicsOf(ctx, topic, names)
}

// topicsOf returns the metadata of several topics, or of all if names is nil. topic is the topic that errors name.
func (c *Client) topicsOf(ctx context.Context, topic string, names []string) (*metadata.Response, error) {
	m, err := c.roundTrip(ctx, requestTimeout, &metadata.Request{TopicNames: names})
	if err != nil {
		err = callError(ctx, "metadata", topic, -1, err)
		if Retriable(err) && c.mechanism != nil {
			// No broker was ever reached. If credentials are refused or cannot be obtained, the pool only reports a
			// closed connection; Probe's own connection finds the reason.
			if refused := c.Probe(ctx); Unauthorized(refused) || uncredited(refused) {
				return nil, refused
			}
		}
		return nil, err
	}
	res, ok := m.(*metadata.Response)
	if !ok {
		return nil, localError("metadata", topic, -1, kindProtocol, "malformed response")
	}
	return res, nil
}

// ClusterID returns the id of the cluster, or "" if the brokers have none.
func (c *Client) ClusterID(ctx context.Context) (string, error) {
	m, err := c.metadata(ctx, "")
	if err != nil {
		return "", err
	}
	return m.ClusterID, nil
}

// Topic describes a topic of the cluster.
type Topic struct {
	Name       string
	Exists     bool
	Partitions []Partition // in order of their numbers; empty if the topic does not exist
}

// Partition is one partition of a topic.
type Partition struct {
	ID          int32
	Leader      int32 // node id, −1 if there is currently none
	LeaderEpoch int32
}

// Topic looks up a topic. It is not an error if the topic does not exist.
func (c *Client) Topic(ctx context.Context, name string) (Topic, error) {
	t := Topic{Name: name}
	m, err := c.metadata(ctx, name)
	if err != nil {
		return t, err
	}
	if len(m.Topics) != 1 {
		return t, localError("metadata", name, -1, kindProtocol, "malformed response")
	}
	switch code := m.Topics[0].ErrorCode; kafkago.Error(code) {
	case 0:
	case kafkago.UnknownTopicOrPartition:
		if err := c.hidden(ctx, name); err != nil {
			return t, err
		}
		return t, nil
	default:
		return t, brokerError("metadata", name, -1, code)
	}
	t.Exists = true
	for _, p := range m.Topics[0].Partitions {
		t.Partitions = append(t.Partitions, Partition{p.PartitionIndex, p.LeaderID, p.LeaderEpoch})
	}
	return t, nil
}

// Topics returns the sorted names of the topics that this client may see, at most metadataTTL old while a broker is
// reachable. It leaves out the brokers' internal topics and topics that are being deleted. The call itself asks no
// broker, however many topics there are. A client with Options.Topics sees only those.
func (c *Client) Topics(ctx context.Context) ([]string, error) {
	m, err := c.topicsOf(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range m.Topics {
		if code := kafkago.Error(t.ErrorCode); !t.IsInternal && (code == 0 || code == kafkago.LeaderNotAvailable) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// hidden returns an error if the topic is missing from the metadata because this client may not see it. A list of all
// topics leaves out such topics, as if they did not exist; a request for the topic itself returns the reason.
func (c *Client) hidden(ctx context.Context, topic string) error {
	if _, err := c.listOffset(ctx, topic, 0, kafkago.FirstOffset, false); Unauthorized(err) {
		return err
	}
	return nil
}

// Offsets are the limits of a partition's log: its start; the last stable offset, below which every transaction is
// complete; and its end (the high watermark).
type Offsets struct{ Start, Stable, End int64 }

// Offsets returns the start, the last stable offset and the end of the partition's log, by three requests in this
// order.
func (c *Client) Offsets(ctx context.Context, topic string, partition int32) (o Offsets, err error) {
	if o.Start, err = c.Start(ctx, topic, partition); err != nil {
		return Offsets{}, err
	}
	if o.Stable, err = c.LastStable(ctx, topic, partition); err != nil {
		return Offsets{}, err
	}
	if o.End, err = c.End(ctx, topic, partition); err != nil {
		return Offsets{}, err
	}
	return o, nil
}

// Bounds returns the start and the end of the partition's log, by two requests in this order.
func (c *Client) Bounds(ctx context.Context, topic string, partition int32) (start, end int64, err error) {
	if start, err = c.Start(ctx, topic, partition); err == nil {
		end, err = c.End(ctx, topic, partition)
	}
	return start, end, err
}

// Start returns the start of the partition's log, by one request.
func (c *Client) Start(ctx context.Context, topic string, partition int32) (int64, error) {
	return c.listOffset(ctx, topic, partition, kafkago.FirstOffset, false)
}

// End returns the end of the partition's log (the high watermark), by one request.
func (c *Client) End(ctx context.Context, topic string, partition int32) (int64, error) {
	return c.listOffset(ctx, topic, partition, kafkago.LastOffset, false)
}

// LastStable returns the end for readers of committed records, by one request.
func (c *Client) LastStable(ctx context.Context, topic string, partition int32) (int64, error) {
	return c.listOffset(ctx, topic, partition, kafkago.LastOffset, true)
}

// listOffset asks the leader for the offset at FirstOffset or LastOffset. If committed is true, LastOffset means the
// last stable offset.
func (c *Client) listOffset(ctx context.Context, topic string, partition int32, at int64,
	committed bool) (int64, error) {
	const api = "list_offsets"
	isolation := int8(0)
	if committed {
		isolation = 1
	}
	leave, err := c.pass(ctx, topic, partition)
	if err != nil {
		return 0, err
	}
	defer leave()
	m, err := c.roundTrip(ctx, requestTimeout, &listoffsets.Request{
		ReplicaID:      -1,
		IsolationLevel: isolation,
		Topics: []listoffsets.RequestTopic{{
			Topic: topic,
			Partitions: []listoffsets.RequestPartition{{
				Partition: partition, CurrentLeaderEpoch: -1, Timestamp: at,
			}},
		}},
	})
	if err != nil {
		return 0, callError(ctx, api, topic, partition, err)
	}
	if res, ok := m.(*listoffsets.Response); ok && len(res.Topics) == 1 && len(res.Topics[0].Partitions) == 1 {
		p := &res.Topics[0].Partitions[0]
		switch {
		case p.ErrorCode != 0:
			return 0, brokerError(api, topic, partition, p.ErrorCode)
		case p.Offset >= 0:
			return p.Offset, nil
		}
	}
	return 0, localError(api, topic, partition, kindProtocol, "malformed response")
}

// TopicConfig returns the values in force of the given settings of a topic, for example cleanup.policy. It leaves out
// settings that the broker does not know.
func (c *Client) TopicConfig(ctx context.Context, topic string, keys ...string) (map[string]string, error) {
	const api = "describe_configs"
	if c.isClosed() {
		return nil, callError(ctx, api, topic, -1, errClosed)
	}
	leave, err := c.pass(ctx, "", -1)
	if err != nil {
		return nil, err
	}
	defer leave()
	res, err := c.api.DescribeConfigs(ctx, &kafkago.DescribeConfigsRequest{
		Resources: []kafkago.DescribeConfigRequestResource{{
			ResourceType: kafkago.ResourceTypeTopic, ResourceName: topic, ConfigNames: keys,
		}},
	})
	if err != nil {
		return nil, callError(ctx, api, topic, -1, err)
	}
	if len(res.Resources) != 1 {
		return nil, localError(api, topic, -1, kindProtocol, "malformed response")
	}
	if err := res.Resources[0].Error; err != nil {
		return nil, callError(ctx, api, topic, -1, err)
	}
	config := make(map[string]string, len(keys))
	for _, e := range res.Resources[0].ConfigEntries {
		if slices.Contains(keys, e.ConfigName) {
			config[e.ConfigName] = e.ConfigValue
		}
	}
	return config, nil
}

// CreateTopic creates a topic with the broker's default replication, or with one replica if that default is refused,
// and waits until the brokers know it. A topic that already exists is left unchanged, without an error.
func (c *Client) CreateTopic(ctx context.Context, name string, partitions int, config map[string]string) error {
	if len(c.topics) > 0 && !slices.Contains(c.topics, name) {
		return localError("create_topics", name, -1, kindUsage, "this client does not follow the topic")
	}
	err := c.createTopic(ctx, name, partitions, -1, config)
	var e *Error
	if errors.As(err, &e) {
		switch kafkago.Error(e.Code) {
		case kafkago.InvalidReplicationFactor, kafkago.UnsupportedVersion:
			// Brokers before 2.4 have no default replication in the protocol; newer ones may have a default that is
			// larger than the number of brokers.
			err = c.createTopic(ctx, name, partitions, 1, config)
		}
	}
	if errors.As(err, &e) && kafkago.Error(e.Code) == kafkago.TopicAlreadyExists {
		err = nil
	}
	if err != nil {
		return err
	}
	late := time.After(requestTimeout)
	for {
		t, err := c.Topic(ctx, name)
		if err == nil && len(t.Partitions) > 0 || err != nil && !Retriable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return localError("create_topics", name, -1, kindTimeout, "the topic was created, but the brokers do "+
				"not know it yet")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Client) createTopic(ctx context.Context, name string, partitions, replicas int,
	config map[string]string) error {
	const api = "create_topics"
	if c.isClosed() {
		return callError(ctx, api, name, -1, errClosed)
	}
	t := kafkago.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: replicas}
	for k, v := range config {
		t.ConfigEntries = append(t.ConfigEntries, kafkago.ConfigEntry{ConfigName: k, ConfigValue: v})
	}
	res, err := c.api.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{t}})
	if err != nil {
		return callError(ctx, api, name, -1, err)
	}
	refused, ok := res.Errors[name]
	if !ok {
		return localError(api, name, -1, kindProtocol, "malformed response")
	}
	if refused == nil {
		return nil
	}
	err = callError(ctx, api, name, -1, refused)
	var e *Error
	if errors.As(err, &e) && e.Code != 0 {
		// The broker says which setting it refuses. Its text concerns only this request.
		if why, ok := strings.CutPrefix(refused.Error(), kafkago.Error(e.Code).Error()+": "); ok {
			e.err = errors.New(why)
		}
	}
	return err
}

// GroupOffset is the next offset that a consumer group will read in a partition.
type GroupOffset struct {
	Topic     string
	Partition int32
	Next      int64
}

// CommitOffsets writes offsets of a consumer group without members, for tools that show lag. This program never reads
// them. An error concerns at least one of the offsets; the others may have been written. list must be sorted by topic.
func (c *Client) CommitOffsets(ctx context.Context, group string, list []GroupOffset) error {
	const api = "offset_commit"
	// generation −1: the client is no member of the group
	req := &offsetcommit.Request{GroupID: group, GenerationID: -1}
	for _, o := range list {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Name != o.Topic {
			req.Topics = append(req.Topics, offsetcommit.RequestTopic{Name: o.Topic})
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions,
			offsetcommit.RequestPartition{PartitionIndex: o.Partition, CommittedOffset: o.Next,
				CommittedLeaderEpoch: -1})
	}
	m, err := c.roundTrip(ctx, requestTimeout, req)
	if err != nil {
		return callError(ctx, api, "", -1, err)
	}
	answered := 0
	if res, ok := m.(*offsetcommit.Response); ok {
		for _, t := range res.Topics {
			for _, p := range t.Partitions {
				if answered++; p.ErrorCode != 0 {
					return brokerError(api, t.Name, p.PartitionIndex, p.ErrorCode)
				}
			}
		}
	}
	if answered != len(list) {
		return localError(api, "", -1, kindProtocol, "malformed response")
	}
	return nil
}
