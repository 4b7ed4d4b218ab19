package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/shardlog"
)

// Options describe a member of a group.
type Options struct {
	// Kafka says how to reach the cluster. Its Topics are not used.
	Kafka kafka.Options
	// Group is the group's name and the prefix of its topics.
	Group string
	// Shards is the number of the group's shards, which is also the number of partitions of GROUP.state.
	Shards int
	// Session is the time without a heartbeat after which the other members consider this one dead. Brokers accept 6 s
	// to 30 min by default.
	Session time.Duration
	// Instance is the member's name, for display. Members are ordered by it, so a member that restarts with the same
	// name has the same rank. Address is the address of the member's status page, and Build is the name of its version.
	Instance, Address, Build string
	// Key is the id of the master key. Digest is a hash of everything that members must agree on before they share
	// shards: streams, limits, versions. Both have at most 255 bytes.
	Key, Digest string
	// Reads and Writes are the formats of states that this build reads and writes.
	Reads, Writes []int
	// Trouble is called with the reason why the member is currently out of the group, for logs. It runs on the member's
	// own goroutine and must return soon. nil: reasons are dropped.
	Trouble func(error)
}

// Generation is the result of one rebalance of the group.
type Generation struct {
	// Number counts rebalances.
	Number int32
	// Shards are the shards of this instance, in ascending order.
	Shards []int
	// Self is the index of this instance in Members.
	Self int
	// Members are all instances of the group: first the active ones, then those on standby, each part ordered by
	// instance name. All members see the same list.
	Members []MemberInfo
	// Unowned are the shards that no instance has, because none is active.
	Unowned []int
	// Format is the format in which states are written: the newest that all members read.
	Format int
	// Standby is the reason why this instance has no shards: one of the constants Standby…, or "" if it is active.
	Standby string

	active int
}

// Active returns the number of active members. They come first in Members. The index of an active member is its rank,
// which is the same for all members in this generation.
func (g Generation) Active() int { return g.active }

// MemberInfo describes one member of a group to the other members.
type MemberInfo struct {
	Instance, Address, Build string
	Shards                   []int  // ascending
	Standby                  string // reason why it has no shards; "": it is active
}

// Member is an instance's membership of a group. It keeps its shards until a generation gives them to other members. It
// keeps them even if the group's coordinator does not answer or returns errors.
type Member struct {
	o      Options
	topic  kmsg.MetadataResponseTopic // metadata of the topic of states
	client *kgo.Client
	cancel context.CancelFunc // ends the client at once, without leaving the group
	polled chan struct{}      // closed when poll has ended

	mu      sync.Mutex
	told    Generation // the leader's assignment; it becomes current when kgo reports that the generation began
	now     *membership
	offer   chan Generation
	closing bool
}

// membership is this member's part in one generation. It does not change.
type membership struct {
	Generation
	member string        // the member id that the broker assigned
	over   chan struct{} // closed when there is a newer membership, or the member closes
}

// Join makes this process a member of a group. It retries until the brokers answer or the context ends, and then
// returns; the first generation comes later. If the topic GROUP.state does not exist or does not have Shards
// partitions, it returns an error at once.
func Join(ctx context.Context, o Options) (*Member, error) {
	fail := func(err error) (*Member, error) { return nil, fmt.Errorf("join group %s: %w", o.Group, err) }
	if o.Trouble == nil {
		o.Trouble = func(error) {}
	}
	m := &Member{o: o, offer: make(chan Generation, 1), polled: make(chan struct{})}
	if err := m.says().valid(); err != nil {
		return fail(err)
	}
	if o.Group == "" || o.Shards < 1 || o.Shards > MaxShards {
		return fail(fmt.Errorf("a group needs a name and 1 to %d shards", MaxShards))
	}
	opts, err := clientOptions(o.Kafka)
	if err != nil {
		return fail(err)
	}
	// The client outlives the call that creates it.
	alive, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.cancel = cancel
	topic := StateTopic(o.Group)
	b := &balancer{topic: topic, says: m.says, told: func(g Generation) {
		m.mu.Lock()
		m.told = g
		m.mu.Unlock()
	}}
	m.client, err = kgo.NewClient(append(append(opts, timing(o.Session)...),
		kgo.WithContext(alive),
		kgo.ConsumerGroup(o.Group),
		kgo.Balancers(b),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { m.begin() }),
		// Neither a rebalance nor a lost session revokes shards.
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) {}),
		kgo.OnPartitionsLost(func(context.Context, *kgo.Client, map[string][]int32) {}),
	)...)
	if err != nil {
		cancel()
		return fail(err)
	}
	for pause := (kafka.Backoff{Max: 2 * time.Second}); ; {
		if m.topic, err = stateTopic(ctx, m.client, topic, o.Shards); err == nil {
			break
		}
		if ctx.Err() != nil || !transient(err) {
			cancel()
			m.client.Close()
			return fail(err)
		}
		o.Trouble(err)
		pause.Wait(ctx)
	}
	go m.poll(alive)
	m.client.AddConsumeTopics(topic)
	return m, nil
}

// timing returns client options for which all times follow from the session timeout. The coordinator removes a member
// if no heartbeat reaches it for one session timeout. The client sends a heartbeat every twelfth of this time. If there
// is no answer for a third of this time, the client sends the heartbeat again over another connection. So the member
// survives a broken connection or a change of the coordinator. Members learn of a rebalance from the answer to a
// heartbeat, so one session timeout is enough for all live members to join it.
func timing(session time.Duration) []kgo.Opt {
	return []kgo.Opt{
		kgo.SessionTimeout(session),
		kgo.RebalanceTimeout(session),
		kgo.HeartbeatInterval(session / 12),
		kgo.RequestTimeoutOverhead(max(session/3, 100*time.Millisecond)),
		kgo.DialTimeout(session / 3),
	}
}

// says returns the profile that this member sends to the leader.
func (m *Member) says() profile {
	p := profile{
		generation: -1, key: m.o.Key, digest: m.o.Digest, instance: m.o.Instance, address: m.o.Address,
		build: m.o.Build,
		reads: m.o.Reads, writes: m.o.Writes,
	}
	if now, _ := m.current(); now != nil {
		p.generation, p.owned = now.Number, now.Shards
	}
	return p
}

func (m *Member) current() (now *membership, closing bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.closing
}

// begin makes the leader's assignment current: the generation has begun.
func (m *Member) begin() {
	member, number := m.client.GroupMetadata()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return
	}
	g := m.told
	g.Number = number
	if m.now != nil {
		close(m.now.over)
	}
	m.now = &membership{Generation: g, member: member, over: make(chan struct{})}
	// Drop an older generation that nobody has received yet.
	select {
	case <-m.offer:
	default:
	}
	m.offer <- g.clone()
}

// clone returns a copy that shares nothing with g.
func (g Generation) clone() Generation {
	g.Shards, g.Unowned, g.Members = slices.Clone(g.Shards), slices.Clone(g.Unowned), slices.Clone(g.Members)
	for i := range g.Members {
		g.Members[i].Shards = slices.Clone(g.Members[i].Shards)
	}
	return g
}

// poll receives the group's errors, which the client delivers like records. There are no records.
func (m *Member) poll(ctx context.Context) {
	defer close(m.polled)
	for {
		fetches := m.client.PollFetches(ctx)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
		fetches.EachError(func(_ string, _ int32, err error) {
			now, closing := m.current()
			var group *kgo.ErrGroupSession
			switch inGroup := errors.As(err, &group); {
			case inGroup:
				err = group.Err
			case now != nil:
				// The error concerns the topic, which this client does not read. The owner of the shard meets the error
				// by itself.
				return
			}
			if closing {
				return
			}
			m.o.Trouble(fmt.Errorf("group %s: %w", m.o.Group, err))
		})
	}
}

// Generations delivers each new generation, or only the newest if several were not received yet. Close closes the
// channel.
func (m *Member) Generations() <-chan Generation { return m.offer }

// Confirm asks the coordinator whether the newest generation gives the shard to this member. The coordinator says so by
// accepting an OffsetCommit; Confirm then returns nil. It waits through rebalances, and retries transient errors until
// the context ends. If the newest generation gives the shard to another member or to nobody, it returns [ErrMoved];
// call it again when a later generation gives the shard to this member.
func (m *Member) Confirm(ctx context.Context, shard int) error {
	for pause := (kafka.Backoff{Max: 2 * time.Second}); ; {
		now, closing := m.current()
		if closing || now == nil || !slices.Contains(now.Shards, shard) {
			return ErrMoved
		}
		err := m.commit(ctx, now, shard)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("confirm shard %d: %w", shard, ctx.Err())
		case errors.Is(err, kerr.IllegalGeneration), errors.Is(err, kerr.UnknownMemberID),
			errors.Is(err, kerr.RebalanceInProgress):
			// The coordinator has a later generation than this member.
			select {
			case <-now.over:
			case <-ctx.Done():
			}
		case transient(err):
			pause.Wait(ctx)
		default:
			return fmt.Errorf("confirm shard %d: %w", shard, err)
		}
	}
}

// commit commits an offset for a shard's state, as a member of the given generation.
func (m *Member) commit(ctx context.Context, now *membership, shard int) error {
	return commitOffset(ctx, m.client, m.o.Group, m.topic, now.member, now.Number, shard)
}

// commitOffset commits an offset of a topic's partition as a member of the group. The offset has no meaning: the call
// only tests whether the coordinator accepts it.
func commitOffset(ctx context.Context, client *kgo.Client, group string, topic kmsg.MetadataResponseTopic,
	member string, generation int32, partition int) error {
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition = int32(partition)
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID, t.Partitions = *topic.Topic, topic.TopicID, append(t.Partitions, p)
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.MemberID, req.Topics = group, generation, member, append(req.Topics, t)
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1 {
		return errAnswer
	}
	return kerr.ErrorForCode(res.Topics[0].Partitions[0].ErrorCode)
}

// Close leaves the group, so that other members take over its shards at once. Call it when no task of the shards runs
// any more. If the context ends first, Close only closes the connections, and the others take over when the session
// times out.
func (m *Member) Close(ctx context.Context) error {
	m.mu.Lock()
	if m.closing {
		m.mu.Unlock()
		return nil
	}
	m.closing = true
	if m.now != nil {
		close(m.now.over)
	}
	close(m.offer)
	m.mu.Unlock()
	err := m.client.LeaveGroupContext(ctx)
	m.cancel()
	m.client.Close()
	<-m.polled
	if err != nil {
		return fmt.Errorf("leave group %s: %w", m.o.Group, err)
	}
	return nil
}

// ErrMoved is the error that the newest generation does not give the shard to this instance.
var ErrMoved = shardlog.ErrMoved

// errAnswer is the error of an answer that does not have the requested data.
var errAnswer = errors.New("the broker's answer does not fit the request")

// transient reports whether the same request may succeed later. Errors without a broker's code are connection errors,
// which are transient. An unknown topic id is not transient, because a topic's id changes only when the topic is
// deleted.
func transient(err error) bool {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Retriable && !errors.Is(err, kerr.UnknownTopicID) && !errors.Is(err, kerr.UnknownTopicOrPartition)
	}
	var topic *topicError
	return !errors.As(err, &topic) && !errors.Is(err, errAnswer)
}
