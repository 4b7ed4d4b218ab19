package cluster

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// StateTopic is the topic of a group's states, a partition for each shard.
func StateTopic(group string) string { return group + ".state" }

// LedgerTopic is the topic of a group's ledgers, a partition for each shard.
func LedgerTopic(group string) string { return group + ".ledger" }

// ControlTopic is the topic of requests to a group and of their answers, a partition for
// each shard.
func ControlTopic(group string) string { return group + ".control" }

// PartialsTopic is the topic of partial sums of merged streams, a partition for each shard.
func PartialsTopic(group string) string { return group + ".partials" }

// topicError says that a topic is not what a group needs. To ask again does not help.
type topicError struct{ text string }

func (e *topicError) Error() string { return e.text }

// stateID returns the id of a group's topic of states, which must have a partition for each
// shard.
func stateID(ctx context.Context, client *kgo.Client, topic string, shards int) (id [16]byte, err error) {
	all, err := describe(ctx, client, topic)
	if err != nil {
		return id, err
	}
	t := all.Topics[0]
	switch err := kerr.ErrorForCode(t.ErrorCode); {
	case err == kerr.UnknownTopicOrPartition:
		return id, &topicError{fmt.Sprintf("topic %s does not exist: streamdp cluster init makes it", topic)}
	case err != nil:
		return id, fmt.Errorf("topic %s: %w", topic, err)
	case len(t.Partitions) != shards:
		return id, &topicError{fmt.Sprintf("topic %s has %d partitions, the configuration %d shards", topic, len(t.Partitions), shards)}
	}
	return t.TopicID, nil
}

// describe asks for the metadata of topics. The answer has one entry for each, in their order.
func describe(ctx context.Context, client *kgo.Client, topics ...string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	byName := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range res.Topics {
		if t.Topic != nil {
			byName[*t.Topic] = t
		}
	}
	res.Topics = nil
	for _, name := range topics {
		t, ok := byName[name]
		if !ok {
			return nil, errAnswer
		}
		res.Topics = append(res.Topics, t)
	}
	return res, nil
}
