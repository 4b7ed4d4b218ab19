package cluster

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
	return b.says().append(nil)
}

// ParseSyncAssignment implements [kgo.GroupBalancer].
func (b *balancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	g, err := parseAssignment(assignment)
	if err == nil {
		b.told(g)
	}
	return nil, err
}

// MemberBalancer implements [kgo.GroupBalancer]. The number of shards is that of the topic's
// partitions, which is the same for every leader.
func (b *balancer) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	d := &division{topic: b.topic}
	for _, m := range members {
		p, err := parseProfile(m.ProtocolMetadata)
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
	return assignments{balance(d.members, int(min(partitions[d.topic], MaxShards))), d.generation}
}

type assignments struct {
	plan
	generation int32
}

// IntoSyncAssignment implements [kgo.IntoSyncAssignment].
func (a assignments) IntoSyncAssignment() []kmsg.SyncGroupRequestGroupAssignment {
	all := make([]kmsg.SyncGroupRequestGroupAssignment, 0, len(a.members))
	for self, m := range a.members {
		s := kmsg.NewSyncGroupRequestGroupAssignment()
		s.MemberID, s.MemberAssignment = m.id, a.appendAssignment(nil, a.generation, self)
		all = append(all, s)
	}
	return all
}
