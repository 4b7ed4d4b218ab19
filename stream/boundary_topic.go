package stream

import (
	"context"
	"fmt"
	"strings"

	"github.com/streamdp/streamdp/internal/kafka"
)

// boundaryTopic is the topic of boundaries, as tasks ask for it.
type boundaryTopic struct {
	*repeater
	client *kafka.Client
	topic  string
}

// opened returns where the boundaries of a new epoch will be. It makes the topic where
// that is missing.
func (r *boundaryTopic) opened(ctx context.Context) (*EntryBoundaries, error) {
	id, err := r.fit(ctx, true)
	if err != nil {
		return nil, err
	}
	to := &EntryBoundaries{Topic: r.topic, TopicID: id}
	err = r.retry(ctx, "boundary topic", func() (err error) {
		to.First, err = r.client.End(ctx, to.Topic, 0)
		return err
	})
	return to, err
}

// same halts where the boundary topic could lose boundaries, or is not the one
// of an epoch's opening. Lines of older builds do not say which that was.
func (r *boundaryTopic) same(ctx context.Context, opened *Entry) error {
	id, err := r.fit(ctx, false)
	was := opened.Boundaries
	if err != nil || was == nil || was.TopicID == "" || was.TopicID == id {
		return err
	}
	return halted(haltBoundary, "boundary topic %s was deleted and made again since epoch %d was opened: its id is %q, not %q, and nobody may decide again what stood in the other; start anew with: streamdp epoch open %s",
		was.Topic, opened.Epoch, id, was.TopicID, epochArgs(opened.Task()))
}

// fit returns the id of the boundary topic, "" where the brokers have none. Where
// the topic is missing it makes it, or waits for it. It halts where the topic could lose
// boundaries, or their order.
func (r *boundaryTopic) fit(ctx context.Context, create bool) (id string, err error) {
	topic := r.topic
	err = r.retry(ctx, "boundary topic", func() error {
		t, err := r.client.Topic(ctx, topic)
		if err == nil && !t.Exists && create {
			if err = r.client.CreateTopic(ctx, topic, 1, boundarySettings); err == nil {
				t, err = r.client.Topic(ctx, topic)
			}
		}
		switch {
		case err != nil:
			return err
		case !t.Exists:
			return &notYet{fmt.Errorf("topic %s does not exist", topic)}
		}
		settings, err := r.client.TopicConfig(ctx, topic, BoundarySettings...)
		if err != nil {
			return err
		}
		if why := UnfitBoundary(len(t.Partitions), settings); why != "" {
			return halted(haltBoundary, "boundary topic %s %s", topic, why)
		}
		if BrokersStampBoundaries(settings) {
			r.log.Warn("the boundary topic's records bear the time at which brokers appended them, which tells when the partitions answered",
				"topic", topic, "message.timestamp.type", "LogAppendTime", "remedy", "message.timestamp.type = CreateTime")
		}
		of, err := r.client.TopicID(ctx, topic)
		id = of.String()
		return err
	})
	return id, err
}

// boundarySettings are those of a boundary topic that is made.
var boundarySettings = map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "CreateTime"}

// BoundarySettings are the settings of a boundary topic that UnfitBoundary and BrokersStampBoundaries look at.
var BoundarySettings = []string{"cleanup.policy", "message.timestamp.type"}

// BrokersStampBoundaries reports whether, with these settings of the boundary topic, its records bear the time
// of their appending, to the millisecond. Else they bear a multiple of the period.
func BrokersStampBoundaries(settings map[string]string) bool {
	return settings["message.timestamp.type"] == "LogAppendTime"
}

// UnfitBoundary says why a topic with so many partitions and these settings can't be the boundary topic,
// empty where it can.
func UnfitBoundary(partitions int, settings map[string]string) string {
	if partitions != 1 {
		return fmt.Sprintf("has %d partitions, and must have one: boundaries in several have no order", partitions)
	}
	if is := settings["cleanup.policy"]; strings.Contains(is, "compact") {
		return fmt.Sprintf("has cleanup.policy = %s, and must have delete: of several boundaries of one step the first counts, which compaction removes", is)
	}
	return ""
}
