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
	// Shards is the number of the group's shards, and so of partitions of GROUP.state.
	Shards int
	// Session is the silence after which the others take this member for dead. Brokers accept
	// 6 s to 30 min unless they are configured otherwise.
	Session time.Duration
	// Instance names the member for people, and orders members: restarted under the same name
	// it has its old rank. Address is where its status page is. Build names its version.
	Instance, Address, Build string
	// Key is the id of the master key, Digest one of everything that members must agree on
	// before they share shards: streams, limits, versions. At most 255 bytes each.
	Key, Digest string
	// Reads and Writes are the formats of states that this build reads and writes.
	Reads, Writes []int
	// Trouble is told why the member is out of the group for the moment, for logs. It is called
	// from the member's own goroutine and must return soon. Nil: nobody is told.
	Trouble func(error)
}

// Generation is what one rebalance of the group decided.
type Generation struct {
	// Number counts rebalances.
	Number int32
	// Shards are this instance's, in ascending order.
	Shards []int
	// Self is this instance's place in Members.
	Self int
	// Members are all instances of the group. Those that take part come first; each part is in
	// the order of the instances' names. All members see the same list.
	Members []MemberInfo
	// Unowned are shards that nobody is given, because nobody takes part.
	Unowned []int
	// Format is the format of states to write: the newest that all members read.
	Format int
	// Standby is why this instance is given no shards, one of the constants of that name; "": it
	// takes part.
	Standby string

	active int
}

// Active returns the number of members that take part: the first so many of Members. Place i
// among them is a rank, the same for all who see this generation.
func (g Generation) Active() int { return g.active }

// MemberInfo is what the members of a group know of each other.
type MemberInfo struct {
	Instance, Address, Build string
	Shards                   []int  // ascending
	Standby                  string // why it is given none; "": it takes part
}

// Member is an instance's membership of a group. Its shards are its own until a generation
// gives them away: neither silence nor errors of the group's coordinator take them.
type Member struct {
	o      Options
	topic  kmsg.MetadataResponseTopic // of states
	client *kgo.Client
	cancel context.CancelFunc // ends the client at once, without a word to the coordinator
	polled chan struct{}      // closed when poll has ended

	mu      sync.Mutex
	told    Generation // by the leader, before kgo says that the generation has begun
	now     *membership
	offer   chan Generation
	closing bool
}

// membership is what a generation made of this member. It does not change.
type membership struct {
	Generation
	member string        // the broker's name for it
	over   chan struct{} // closed when there is a newer one, or the member closes
}

// Join makes this process a member of a group. It returns when the brokers have answered, and
// tries that again until the context ends; the first generation comes later. A topic
// GROUP.state that does not exist or has another number of partitions than Shards is an error
// at once.
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
	// The client lives longer than the call that makes it.
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
		// A rebalance and a lost session revoke nothing.
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

// timing derives all times from the session's. The coordinator counts silence from the last
// heartbeat that reached it. A heartbeat is due after a twelfth of a session, and given up and
// sent over another connection after a third, so a single broken connection, or one change of
// the coordinator, is over well within a session. Members hear of a rebalance by a heartbeat,
// so a whole session is enough time for all that live to come to it.
func timing(session time.Duration) []kgo.Opt {
	return []kgo.Opt{
		kgo.SessionTimeout(session),
		kgo.RebalanceTimeout(session),
		kgo.HeartbeatInterval(session / 12),
		kgo.RequestTimeoutOverhead(max(session/3, 100*time.Millisecond)),
		kgo.DialTimeout(session / 3),
	}
}

// says is what this member tells the leader.
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

// begin takes over what the leader told: the generation has begun.
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
	// The one before, if nobody took it yet, is of no use any more.
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

// poll takes the errors of the group from the client, which collects them for whoever polls.
// Records there are none.
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
				// Of the topic, of which nothing is read. Who has a shard meets that by itself.
				return
			}
			if closing {
				return
			}
			m.o.Trouble(fmt.Errorf("group %s: %w", m.o.Group, err))
		})
	}
}

// Generations delivers each new generation; of several that nobody took yet only the newest.
// It is closed by Close.
func (m *Member) Generations() <-chan Generation { return m.offer }

// Confirm returns nil when the coordinator says that the newest generation gives a shard to
// this member, by an OffsetCommit in it. It waits through rebalances, and repeats what may
// succeed later, until the context ends. It returns [ErrMoved] when the newest generation
// gives the shard to nobody or to another member; then the next one that gives it to this one
// is the time to ask again.
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
			// The coordinator knows a later generation than this member.
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

// commit commits an offset of a shard's state in a generation.
func (m *Member) commit(ctx context.Context, now *membership, shard int) error {
	return commitOffset(ctx, m.client, m.o.Group, m.topic, now.member, now.Number, shard)
}

// commitOffset commits an offset of a topic's partition as a group's member. The offset says
// nothing: only whether the coordinator takes it does.
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

// Close leaves the group, so that the others take over at once. It is to be called when
// nothing of the shards runs any more. When the context ends first, the connections are
// closed and the others wait for the session's end.
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

// ErrMoved says that the newest generation does not give the shard to this instance.
var ErrMoved = shardlog.ErrMoved

// errAnswer says that an answer was not of the form that the request asks for.
var errAnswer = errors.New("the broker's answer does not fit the request")

// transient reports whether the same request may succeed later. What is not a code of a broker
// is a connection's error. A topic's id changes only where the topic is deleted.
func transient(err error) bool {
	var code *kerr.Error
	if errors.As(err, &code) {
		return code.Retriable && !errors.Is(err, kerr.UnknownTopicID) && !errors.Is(err, kerr.UnknownTopicOrPartition)
	}
	var topic *topicError
	return !errors.As(err, &topic) && !errors.Is(err, errAnswer)
}
