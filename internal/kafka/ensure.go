package kafka

import "context"

// TopicSpec says how a topic of our own is made, and what it must be like.
type TopicSpec struct {
	Partitions int               // of a topic that is made
	Settings   map[string]string // of a topic that is made
	Looked     []string          // names of the settings that are looked at
	// Unfit says why a topic with this number of partitions and these settings cannot be used; "": it can. Nil:
	// every topic can.
	Unfit func(partitions int, settings map[string]string) string
}

// TopicFound is what there is of a topic that a TopicSpec describes.
type TopicFound struct {
	Exists     bool
	Partitions int
	Settings   map[string]string // those of Looked that the brokers know
	Unfit      string            // why it cannot be used; "": it can, does not exist, or was made just now
	Made       bool              // Ensure made it, and did not look at it again
}

// Find looks a topic up and compares it with spec. A topic that does not exist is no error.
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

// Ensure is Find for a topic that exists. Another one it makes, as spec says; the brokers may need a moment until
// Find finds it.
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
