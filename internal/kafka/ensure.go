package kafka

import "context"

// TopicSpec says how one of the program's own topics is created, and what is required of an existing one.
type TopicSpec struct {
	Partitions int               // of a topic to be created
	Settings   map[string]string // of a topic to be created
	Looked     []string          // names of the settings to look up and check
	// Unfit returns the reason why a topic with this number of partitions and these settings cannot be used, or "" if
	// it can. nil: every topic can be used.
	Unfit func(partitions int, settings map[string]string) string
}

// TopicFound describes the existing topic for a TopicSpec.
type TopicFound struct {
	Exists     bool
	Partitions int
	Settings   map[string]string // the settings in Looked that the brokers know
	// Unfit is the reason why the topic cannot be used; "": it can be used, does not exist, or was just created.
	Unfit string
	Made  bool // Ensure created the topic, and did not check it afterwards
}

// Find looks up a topic and compares it with spec. It is not an error if the topic does not exist.
func (c *Client) Find(ctx context.Context, name string, spec *TopicSpec) (found TopicFound, err error) {
	t, err := c.Topic(ctx, name)
	if err != nil || !t.Exists {
		return found, err
	}
	found.Exists, found.Partitions = true, len(t.Partitions)
	if len(spec.Looked) > 0 {
		if found.Settings, err = c.TopicConfig(ctx, name, spec.Looked...); err != nil {
			return found, err
		}
	}
	if spec.Unfit != nil {
		found.Unfit = spec.Unfit(found.Partitions, found.Settings)
	}
	return found, nil
}

// Ensure returns the result of Find if the topic exists. Otherwise it creates the topic as described by spec. It may
// take a moment until Find finds the new topic.
func (c *Client) Ensure(ctx context.Context, name string, spec *TopicSpec) (TopicFound, error) {
	found, err := c.Find(ctx, name, spec)
	if err != nil || found.Exists {
		return found, err
	}
	if err := c.CreateTopic(ctx, name, spec.Partitions, spec.Settings); err != nil {
		return found, err
	}
	return TopicFound{Exists: true, Partitions: spec.Partitions, Made: true}, nil
}
