package group

import (
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// protocolName is what the coordinator calls the way in which this group divides shards. All
// members must have it. It changes when a profile or an assignment is no longer read by
// builds that know the old one.
const protocolName = "streamdp-1"

// balancer is what a member says in each rebalance and, where it is the leader, how it
// divides. kgo is told of no partition ever: else it would read them.
type balancer struct {
	topic string
	// says returns what the member says of itself.
	says func() profile
	// told takes the assignment of a new generation.
	told func(Generation)
}

var _ kgo.GroupBalancer = (*balancer)(nil)

// ProtocolName implements [kgo.GroupBalancer].
func (b *balancer) ProtocolName() string { return protocolName }

// IsCooperative implements [kgo.GroupBalancer]. One rebalance divides everything: whoever
// gives a shard away is fenced by its next owner, so nobody waits for it to stop.
func (b *balancer) IsCooperative() bool { return false }

// JoinGroupMetadata implements [kgo.GroupBalancer].
func (b *balancer) JoinGroupMetadata([]string, map[string][]int32, int32) []byte {
	return said(b.topic, b.says())
}

// said wraps a profile into what every consumer says: a subscription with user data. Brokers
// read the subscription, and a group whose members say something else comes to no end of its
// rebalance.
func said(topic string, p profile) []byte {
	m := kmsg.NewConsumerMemberMetadata()
	m.Topics, m.UserData = []string{topic}, p.append(nil)
	return m.AppendTo(nil)
}

// hear reads what said wrote.
func hear(b []byte) (profile, error) {
	var m kmsg.ConsumerMemberMetadata
	if err := m.ReadFrom(b); err != nil {
		return profile{}, errUnreadable
	}
	return parseProfile(m.UserData)
}

// ParseSyncAssignment implements [kgo.GroupBalancer].
func (b *balancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	g, err := told(assignment)
	if err == nil {
		b.told(g)
	}
	return nil, err
}

// tell wraps a plan's word to a member into what every leader says: partitions with user data.
// So the tools of Kafka show who has which shard.
func (p plan) tell(topic string, generation int32, self int) []byte {
	t := kmsg.NewConsumerMemberAssignmentTopic()
	t.Topic = topic
	for s, owner := range p.owner {
		if owner == self {
			t.Partitions = append(t.Partitions, int32(s))
		}
	}
	a := kmsg.NewConsumerMemberAssignment()
	a.Topics, a.UserData = append(a.Topics, t), p.appendAssignment(nil, generation, self)
	return a.AppendTo(nil)
}

// told reads what tell wrote.
func told(b []byte) (Generation, error) {
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(b); err != nil {
		return Generation{}, errUnreadable
	}
	return parseAssignment(a.UserData)
}

// MemberBalancer implements [kgo.GroupBalancer]. The number of shards is that of the topic's
// partitions, which is the same for every leader.
func (b *balancer) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer,
	map[string]struct{}, error) {
	d := &division{topic: b.topic}
	for _, m := range members {
		p, err := hear(m.ProtocolMetadata)
		d.members = append(d.members, candidate{m.MemberID, p, err != nil})
	}
	return d, map[string]struct{}{b.topic: {}}, nil
}

// division is one rebalance of which this member is the leader.
type division struct {
	topic      string
	members    []candidate
	generation int32
}

var _ kgo.GroupMemberBalancerInfo = (*division)(nil)

// SetBalanceInfo implements [kgo.GroupMemberBalancerInfo].
func (d *division) SetBalanceInfo(i kgo.BalanceInfo) { d.generation = i.Generation }

// Balance implements [kgo.GroupMemberBalancer].
func (d *division) Balance(partitions map[string]int32) kgo.IntoSyncAssignment {
	return assignments{balance(d.members, int(min(partitions[d.topic], MaxShards))), d.topic, d.generation}
}

type assignments struct {
	plan
	topic      string
	generation int32
}

// IntoSyncAssignment implements [kgo.IntoSyncAssignment].
func (a assignments) IntoSyncAssignment() []kmsg.SyncGroupRequestGroupAssignment {
	all := make([]kmsg.SyncGroupRequestGroupAssignment, 0, len(a.members))
	for self, m := range a.members {
		s := kmsg.NewSyncGroupRequestGroupAssignment()
		s.MemberID, s.MemberAssignment = m.id, a.tell(a.topic, a.generation, self)
		all = append(all, s)
	}
	return all
}
