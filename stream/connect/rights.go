package connect

import (
	"context"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
)

// Right is a resource of the cluster and what a user needs to do with it.
type Right = kgroup.Resource

// ErrSilent says that the brokers do not tell what a user may do.
var ErrSilent = kgroup.ErrSilent

// Rights returns what a daemon of a configuration needs to be allowed, with each resource once.
// docs/operations.md has the table.
func Rights(c *config.Config) (needs []Right) {
	need := func(kind, name string, operations ...string) {
		if name == "" {
			return
		}
		i := slices.IndexFunc(needs, func(r Right) bool { return r.Kind == kind && r.Name == name })
		if i < 0 {
			needs = append(needs, Right{Kind: kind, Name: name})
			i = len(needs) - 1
		}
		for _, op := range operations {
			if !slices.Contains(needs[i].Operations, op) {
				needs[i].Operations = append(needs[i].Operations, op)
			}
		}
	}
	for _, s := range c.Streams {
		need("topic", s.Input.Topic, "Read", "DescribeConfigs")
		need("topic", s.Output.Topic, "Read", "Write")
		if s.Output.Create {
			need("topic", s.Output.Topic, "Create")
		}
		if s.DeadLetter.Mode != "off" {
			need("topic", s.DeadLetter.Topic, "Write")
		}
	}
	need("topic", c.Kafka.BoundaryTopic, "Read", "Write", "DescribeConfigs", "Create")
	need("topic", c.Kafka.ControlTopic, "Read", "Write", "DescribeConfigs", "Create")
	need("group", c.Kafka.Group, "Read")
	if g := c.Cluster; g != nil {
		for _, topic := range []string{g.StateTopic(), g.LedgerTopic(), g.ControlTopic(), g.PartialsTopic()} {
			need("topic", topic, "Read", "Write", "Describe", "DescribeConfigs")
		}
		need("group", g.Group, "Read", "Describe")
		need("transactional-id", g.Group+"-", "Write", "Describe")
	}
	return needs
}

// MissingRights returns those of needs that this user lacks, without any effect on the cluster.
//
// Errors: ErrSilent; that the cluster cannot be reached.
func MissingRights(ctx context.Context, o kafka.Options, needs []Right) ([]Right, error) {
	return kgroup.Missing(ctx, o, needs)
}
