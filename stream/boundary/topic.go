package boundary

import (
	"context"
	"fmt"
	"strings"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// Topic is the boundary topic, as tasks use it.
type Topic struct {
	*failure.Retrier
	Client *kafka.Client
	Topic  string
}

// Opened returns where the boundaries of a new epoch will be. It creates the topic if it is missing.
func (r *Topic) Opened(ctx context.Context) (*ledger.EntryBoundaries, error) {
	id, err := r.fit(ctx, true)
	if err != nil {
		return nil, err
	}
	to := &ledger.EntryBoundaries{Topic: r.Topic, TopicID: id}
	err = r.Do(ctx, "boundary topic", func() (err error) {
		to.First, err = r.Client.End(ctx, to.Topic, 0)
		return err
	})
	return to, err
}

// Same halts if the boundary topic could lose boundaries, or is not the one at the epoch's opening. Ledger lines of
// older builds do not name the topic.
func (r *Topic) Same(ctx context.Context, opened *ledger.Entry) error {
	id, err := r.fit(ctx, false)
	was := opened.Boundaries
	if err != nil || was == nil || was.TopicID == "" || was.TopicID == id {
		return err
	}
	return failure.Haltf(failure.BoundaryTopic,
		"boundary topic %s was deleted and created again since epoch %d was opened: its id is %q, not %q, and "+
			"boundaries cannot be decided twice; open a new epoch: streamdp epoch open %s",
		was.Topic, opened.Epoch, id, was.TopicID, failure.EpochArgs(opened.Task()))
}

// fit returns the id of the boundary topic, or "" if the brokers have no ids. If the topic is missing, fit creates it
// or waits for it. fit halts if the topic could lose boundaries, or their order.
func (r *Topic) fit(ctx context.Context, create bool) (id string, err error) {
	topic := r.Topic
	err = r.Do(ctx, "boundary topic", func() error {
		look := r.Client.Find
		if create {
			look = r.Client.Ensure
		}
		found, err := look(ctx, topic, &TopicSpec)
		if found.Made {
			found, err = r.Client.Find(ctx, topic, &TopicSpec)
		}
		switch {
		case err != nil:
			return err
		case !found.Exists:
			return &failure.Later{Err: fmt.Errorf("boundary topic %s does not exist", topic)}
		case found.Unfit != "":
			return failure.Haltf(failure.BoundaryTopic, "boundary topic %s %s", topic, found.Unfit)
		}
		if BrokersStamp(found.Settings) {
			r.Log.Warn(
				"brokers set the timestamps of the boundary topic's records, which reveal when the partitions "+
					"answered",
				"topic", topic, "message.timestamp.type", "LogAppendTime", "remedy",
				"message.timestamp.type = CreateTime")
		}
		of, err := r.Client.TopicID(ctx, topic)
		id = of.String()
		return err
	})
	return id, err
}

// TopicSpec describes the boundary topic: the settings with which it is created, and the check of an existing one.
var TopicSpec = kafka.TopicSpec{Partitions: 1, Settings: topicSettings, Looked: SettingNames, Unfit: Unfit}

var topicSettings = map[string]string{"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1",
	"message.timestamp.type": "CreateTime"}

// SettingNames are the settings of a boundary topic that Unfit and BrokersStamp check.
var SettingNames = []string{"cleanup.policy", "message.timestamp.type"}

// BrokersStamp reports whether these settings of the boundary topic make brokers set the timestamps of records. Then a
// timestamp is the time of appending, to the millisecond; otherwise it is a multiple of the period.
func BrokersStamp(settings map[string]string) bool {
	return settings["message.timestamp.type"] == "LogAppendTime"
}

// Unfit returns why a topic with these partitions and settings cannot be the boundary topic, or "" if it can.
func Unfit(partitions int, settings map[string]string) string {
	if partitions != 1 {
		return fmt.Sprintf("has %d partitions but must have one, to keep boundaries in order", partitions)
	}
	if is := settings["cleanup.policy"]; strings.Contains(is, "compact") {
		return fmt.Sprintf(
			"has cleanup.policy = %s but must have delete: compaction removes the first boundary of a step, which is "+
				"the one that counts", is)
	}
	return ""
}
