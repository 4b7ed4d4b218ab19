package group

import (
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// protocolName tells the coordinator how this group divides shards. All members must use the same name. A new name is
// needed if a profile or an assignment changes so that builds with the old name cannot read it.
const protocolName = "streamdp-1"

// balancer encodes this member's profile for each rebalance and, if this member is the leader, divides the shards. It
// never reports assigned partitions to kgo, because kgo would then read them.
type balancer struct {
	topic string
	// says returns this member's profile.
	says func() profile
	// told receives the assignment of a new generation.
	told func(Generation)
}

var _ kgo.GroupBalancer = (*balancer)(nil)

// ProtocolName implements [kgo.GroupBalancer].
func (b *balancer) ProtocolName() string { return protocolName }

// IsCooperative implements [kgo.GroupBalancer]. One rebalance divides all shards. The next owner of a shard fences the
// former one, so nobody waits for it to stop.
func (b *balancer) IsCooperative() bool { return false }

// JoinGroupMetadata implements [kgo.GroupBalancer].
func (b *balancer) JoinGroupMetadata([]string, map[string][]int32, int32) []byte {
	return encodeProfile(b.topic, b.says())
}

// encodeProfile encodes a profile as the user data of a consumer subscription. Brokers parse the subscription: with
// other member metadata, a rebalance never completes.
func encodeProfile(topic string, p profile) []byte {
	m := kmsg.NewConsumerMemberMetadata()
	m.Topics, m.UserData = []string{topic}, p.append(nil)
	return m.AppendTo(nil)
}

// decodeProfile is the inverse of encodeProfile.
func decodeProfile(b []byte) (profile, error) {
	var m kmsg.ConsumerMemberMetadata
	if err := m.ReadFrom(b); err != nil {
		return profile{}, errUnreadable
	}
	return parseProfile(m.UserData)
}

// ParseSyncAssignment implements [kgo.GroupBalancer].
func (b *balancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	g, err := decodeAssignment(assignment)
	if err == nil {
		b.told(g)
	}
	return nil, err
}

// encodeAssignment encodes the plan for one member as a consumer assignment: partitions with user data. So Kafka's own
// tools show which member has which shard.
func (p plan) encodeAssignment(topic string, generation int32, self int) []byte {
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

// decodeAssignment is the inverse of encodeAssignment.
func decodeAssignment(b []byte) (Generation, error) {
	var a kmsg.ConsumerMemberAssignment
	if err := a.ReadFrom(b); err != nil {
		return Generation{}, errUnreadable
	}
	return parseAssignment(a.UserData)
}

// MemberBalancer implements [kgo.GroupBalancer]. The number of shards is the topic's number of partitions, so it is the
// same for every leader.
func (b *balancer) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer,
	map[string]struct{}, error) {
	d := &division{topic: b.topic}
	for _, m := range members {
		p, err := decodeProfile(m.ProtocolMetadata)
		d.members = append(d.members, candidate{m.MemberID, p, err != nil})
	}
	return d, map[string]struct{}{b.topic: {}}, nil
}

// division is one rebalance in which this member is the leader.
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
		s.MemberID, s.MemberAssignment = m.id, a.encodeAssignment(a.topic, a.generation, self)
		all = append(all, s)
	}
	return all
}
