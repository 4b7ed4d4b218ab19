package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
)

// StateTopic returns the topic of a group's states, with a partition for each shard.
func StateTopic(group string) string { return group + ".state" }

// LedgerTopic returns the topic of a group's ledgers, with a partition for each shard.
func LedgerTopic(group string) string { return group + ".ledger" }

// ControlTopic returns the topic of requests to a group and of their answers, with a partition for each shard.
func ControlTopic(group string) string { return group + ".control" }

// PartialsTopic returns the topic of partial sums of merged streams, with a partition for each shard.
func PartialsTopic(group string) string { return group + ".partials" }

// topicError says that a topic does not have the properties that a group needs. Asking again does not help.
type topicError struct{ text string }

func (e *topicError) Error() string { return e.text }

// stateTopic returns the metadata of a group's topic of states, which must have a partition for each shard.
func stateTopic(ctx context.Context, client *kgo.Client, topic string, shards int) (t kmsg.MetadataResponseTopic,
	err error) {
	all, err := describe(ctx, client, topic)
	if err != nil {
		return t, err
	}
	t = all.Topics[0]
	switch err := kerr.ErrorForCode(t.ErrorCode); {
	case err == kerr.UnknownTopicOrPartition:
		return t, &topicError{fmt.Sprintf("topic %s does not exist: create it with streamdp cluster init", topic)}
	case err != nil:
		return t, fmt.Errorf("topic %s: %w", topic, err)
	case len(t.Partitions) != shards:
		return t,
			&topicError{
				fmt.Sprintf("topic %s has %d partitions, but the configuration has %d shards", topic,
					len(t.Partitions), shards)}
	}
	return t, nil
}

// describe asks for the metadata of topics. The answer has one entry for each topic, in the same order.
func describe(ctx context.Context, client *kgo.Client, topics ...string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	res, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	byName := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range res.Topics {
		if t.Topic != nil {
			byName[*t.Topic] = t
		}
	}
	res.Topics = nil
	for _, name := range topics {
		t, ok := byName[name]
		if !ok {
			return nil, errAnswer
		}
		res.Topics = append(res.Topics, t)
	}
	return res, nil
}

// TopicOptions describe the topics that a group must have.
type TopicOptions struct {
	// Kafka says how to reach the cluster. Its Topics are not used.
	Kafka kafka.Options
	// Group is the group's name and the prefix of its topics.
	Group string
	// Shards is the number of partitions of each topic.
	Shards int
	// AllowUnreplicated accepts topics with fewer than three replicas, or with fewer than two in-sync replicas that
	// must have a record before it is acknowledged. Records may then depend on a single broker's disk.
	AllowUnreplicated bool
}

// Findings are the faults of a group's topics or of their cluster, one sentence each.
type Findings []string

// Error returns all sentences, one a line.
func (f Findings) Error() string { return strings.Join(f, "\n") }

// replicas is the number of replicas of each partition. Two of them must have a record before it is acknowledged, so if
// one broker fails, no acknowledged record is lost.
const replicas = 3

// relation says how a setting's current value must relate to the value with which Init creates it.
type relation int

const (
	exactly relation = iota
	atLeast          // −1 means no limit
	atMost
)

// setting is a setting of a topic.
type setting struct {
	name  string
	value string // the value with which Init creates the topic
	is    relation
	least string // smallest or largest accepted value, if it differs from value
}

// holds reports whether a topic's current value of the setting is acceptable.
func (s setting) holds(value string) bool {
	want := s.value
	if s.least != "" {
		want = s.least
	}
	if s.is == exactly {
		return value == want
	}
	got, err := strconv.ParseInt(value, 10, 64)
	limit, lerr := strconv.ParseInt(want, 10, 64)
	if err != nil || lerr != nil {
		return false
	}
	if s.is == atMost {
		return got >= 0 && got <= limit
	}
	return got == -1 || got >= limit
}

func (s setting) want() string {
	switch s.is {
	case atLeast:
		if s.least != "" {
			return "at least " + s.least
		}
		return "at least " + s.value
	case atMost:
		if s.least != "" {
			return "at most " + s.least
		}
		return "at most " + s.value
	}
	return s.value
}

// common has the settings of all topics. Unclean leader election is off, because it brings back overwritten values or
// loses acknowledged records. Records have at most slightly more than 900 kB.
var common = []setting{
	{name: "unclean.leader.election.enable", value: "false"},
	{name: "max.message.bytes", value: "1048588", is: atLeast},
}

// topics returns the topics of a group, with the settings that matter. A replaced or removed value of a state, such as
// an epoch's secret, disappears from the log after the compaction lag plus the age of its segment. Tombstones stay long
// enough that no reader misses one. Segments are small because only full segments are compacted, and the next owner of
// a shard reads everything that is not compacted yet. Ledgers are kept permanently. Requests are kept for a week so
// that people can look at them; partial sums are needed only for seconds.
func (o TopicOptions) topics() []topic {
	const hour, day, week = "3600000", "86400000", "604800000"
	return []topic{
		{StateTopic(o.Group), []setting{
			{name: "cleanup.policy", value: "compact"},
			{name: "max.compaction.lag.ms", value: hour, is: atMost},
			{name: "segment.ms", value: hour, is: atMost},
			{name: "segment.bytes", value: "16777216", is: atMost, least: "1073741824"},
			{name: "delete.retention.ms", value: day, is: atLeast},
		}},
		{LedgerTopic(o.Group), []setting{
			{name: "cleanup.policy", value: "delete"},
			{name: "retention.ms", value: "-1"},
			{name: "retention.bytes", value: "-1"},
		}},
		{ControlTopic(o.Group), []setting{
			{name: "cleanup.policy", value: "delete"},
			{name: "retention.ms", value: week, is: atLeast, least: day},
		}},
		{PartialsTopic(o.Group), []setting{
			{name: "cleanup.policy", value: "delete"},
			{name: "retention.ms", value: day, is: atLeast, least: hour},
			{name: "segment.ms", value: hour, is: atMost},
		}},
	}
}

type topic struct {
	name     string
	settings []setting
}

// Init creates the missing topics of a group. It does not change existing topics, which must be as Check requires; so
// an Init that failed can be repeated. If the topics of requests or sums have records although no ledger has begun,
// they belong to another group, and Init returns an error. It does not check the content of the topics of states and
// ledgers; the code that begins the ledgers does. The error has type [Findings] if the cluster answered but does not
// meet the requirements.
func Init(ctx context.Context, o TopicOptions) error {
	client, err := o.client()
	if err != nil {
		return fmt.Errorf("topics of group %s: %w", o.Group, err)
	}
	defer client.Close()
	a := &admin{o, client}
	if err := a.init(ctx); err != nil {
		return fmt.Errorf("topics of group %s: %w", o.Group, err)
	}
	return nil
}

// CheckTopics checks a group's topics, their settings, and the cluster's transaction version. It writes nothing. The
// error has type [Findings] if the cluster answered but does not meet the requirements; any other error may be
// temporary.
func CheckTopics(ctx context.Context, o TopicOptions) error {
	return o.check(ctx, func(*admin) (Findings, error) { return nil, nil })
}

// Check does the same as CheckTopics, and also checks the rights of this user. To test them, it commits an offset of
// GROUP.state/0 without being a member, which a group with members refuses. It also asks for a producer id for the
// transactional id GROUP-check, which no shard has.
func Check(ctx context.Context, o TopicOptions) error {
	return o.check(ctx, func(a *admin) (Findings, error) { return a.rights(ctx) })
}

func (o TopicOptions) check(ctx context.Context, more func(*admin) (Findings, error)) error {
	fail := func(err error) error { return fmt.Errorf("topics of group %s: %w", o.Group, err) }
	client, err := o.client()
	if err != nil {
		return fail(err)
	}
	defer client.Close()
	a := &admin{o, client}
	found, _, err := a.check(ctx)
	if err != nil {
		return fail(err)
	}
	other, err := more(a)
	if err != nil {
		return fail(err)
	}
	switch found = append(found, other...); {
	case len(found) == 0:
		return nil
	case !slices.ContainsFunc(found, func(f string) bool { return !strings.HasSuffix(f, noLeader) }):
		return fail(errors.New(found.Error())) // brokers do not answer
	}
	return fail(found)
}

func (o TopicOptions) client() (*kgo.Client, error) {
	opts, err := clientOptions(o.Kafka)
	if err != nil {
		return nil, err
	}
	if o.Group == "" || o.Shards < 1 || o.Shards > MaxShards {
		return nil, fmt.Errorf("a group needs a name and 1 to %d shards", MaxShards)
	}
	return kgo.NewClient(opts...)
}

// admin is a running Init or Check.
type admin struct {
	TopicOptions
	client *kgo.Client
}

func (a *admin) init(ctx context.Context) error {
	found, missing, err := a.check(ctx)
	if err != nil {
		return err
	}
	// Missing topics are no findings here, because they will be created.
	found = slices.DeleteFunc(found, func(f string) bool { return strings.HasSuffix(f, notThere) })
	if len(found) == 0 {
		found, err = a.foreign(ctx, missing)
	}
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return found
	}
	if err := a.create(ctx, missing); err != nil {
		return err
	}
	// The controller knows the new topics, but the other brokers need time to learn of them and to elect leaders.
	for pause := (kafka.Backoff{Max: time.Second}); ; {
		found, _, err = a.check(ctx)
		settling := slices.ContainsFunc(found, func(f string) bool {
			return strings.HasSuffix(f, notThere) || strings.HasSuffix(f, noLeader)
		})
		if err != nil || !settling || pause.Wait(ctx) != nil {
			break
		}
	}
	if err == nil && len(found) > 0 {
		err = found
	}
	return err
}

// A finding that ends with one of these texts may disappear by itself after some time.
const (
	notThere = "does not exist: create it with streamdp cluster init"
	noLeader = "have no leader"
)

// check checks everything except rights, and returns the missing topics.
func (a *admin) check(ctx context.Context) (found Findings, missing []topic, err error) {
	version, err := transactionVersion(ctx, a.client)
	if err != nil {
		return nil, nil, err
	}
	if version < 2 {
		found = append(found,
			fmt.Sprintf(
				"the cluster's transactions have version %d, but a group needs version 2, which Apache Kafka has "+
					"since 4.0 (after an upgrade: kafka-features.sh upgrade --feature transaction.version=2)", version))
	}
	topics := a.topics()
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.name
	}
	meta, err := describe(ctx, a.client, append(names, internalTopics...)...)
	if err != nil {
		return nil, nil, err
	}
	var there []topic
	for i, t := range topics {
		m := meta.Topics[i]
		switch err := kerr.ErrorForCode(m.ErrorCode); {
		case err == kerr.UnknownTopicOrPartition:
			missing = append(missing, t)
			found = append(found, fmt.Sprintf("topic %s %s", t.name, notThere))
			continue
		case err == kerr.TopicAuthorizationFailed:
			found = append(found, fmt.Sprintf("this user may not Describe topic %s", t.name))
			continue
		case err != nil && !kerr.IsRetriable(err):
			return nil, nil, fmt.Errorf("topic %s: %w", t.name, err)
		}
		there = append(there, t)
		found = append(found, a.shape(t.name, m)...)
	}
	for i, name := range internalTopics {
		// The brokers do not describe these topics to a user who may not see them, or before their first use.
		if m := meta.Topics[len(topics)+i]; m.ErrorCode == 0 && !a.AllowUnreplicated {
			found = append(found, replication(name, m)...)
		}
	}
	settings, err := a.settings(ctx, there)
	return append(found, settings...), missing, err
}

// internalTopics are the brokers' own topics of transactional ids and of group members.
var internalTopics = []string{"__transaction_state", "__consumer_offsets"}

// shape checks partitions, replicas, leaders and rights of a topic.
func (a *admin) shape(name string, m kmsg.MetadataResponseTopic) (found Findings) {
	if n := len(m.Partitions); n != a.Shards {
		found = append(found, fmt.Sprintf("topic %s has %d partitions, but the configuration has %d "+
			"shards", name, n, a.Shards))
	}
	if !a.AllowUnreplicated {
		found = append(found, replication(name, m)...)
	}
	headless := 0
	for _, p := range m.Partitions {
		if p.Leader < 0 {
			headless++
		}
	}
	if headless > 0 {
		found = append(found, fmt.Sprintf("topic %s: %d partitions %s", name, headless, noLeader))
	}
	needs := []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribeConfigs}
	for _, op := range needs {
		// A broker that does not report the user's rights sends the smallest number.
		if m.AuthorizedOperations >= 0 && m.AuthorizedOperations>>op&1 == 0 {
			found = append(found, fmt.Sprintf("this user may not %s topic %s", operations[op], name))
		}
	}
	return found
}

var operations = map[kmsg.ACLOperation]string{
	kmsg.ACLOperationRead: "Read", kmsg.ACLOperationWrite: "Write", kmsg.ACLOperationDescribeConfigs: "DescribeConfigs",
}

func replication(name string, m kmsg.MetadataResponseTopic) Findings {
	few := 0
	for _, p := range m.Partitions {
		if len(p.Replicas) < replicas {
			few++
		}
	}
	if few == 0 {
		return nil
	}
	return Findings{
		fmt.Sprintf("topic %s: %d partitions have fewer than %d replicas (to accept that, set "+
			"cluster.allow_unreplicated)",
			name, few, replicas)}
}

// settings checks the current settings of topics.
func (a *admin) settings(ctx context.Context, topics []topic) (found Findings, err error) {
	if len(topics) == 0 {
		return nil, nil
	}
	req := kmsg.NewPtrDescribeConfigsRequest()
	for _, t := range topics {
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, t.name
		for _, s := range a.all(t) {
			r.ConfigNames = append(r.ConfigNames, s.name)
		}
		req.Resources = append(req.Resources, r)
	}
	res, err := req.RequestWith(ctx, a.client)
	if err != nil {
		return nil, err
	}
	answers := map[string]kmsg.DescribeConfigsResponseResource{}
	for _, r := range res.Resources {
		answers[r.ResourceName] = r
	}
	for _, t := range topics {
		r, ok := answers[t.name]
		if !ok {
			return nil, errAnswer
		}
		switch err := kerr.ErrorForCode(r.ErrorCode); {
		case err == kerr.TopicAuthorizationFailed || err == kerr.UnknownTopicOrPartition:
			continue // reported already, or not known to all brokers yet
		case err != nil:
			return nil, fmt.Errorf("settings of topic %s: %w", t.name, err)
		}
		values := map[string]string{}
		for _, c := range r.Configs {
			if c.Value != nil {
				values[c.Name] = *c.Value
			}
		}
		for _, s := range a.all(t) {
			if v, ok := values[s.name]; !ok {
				found = append(found, fmt.Sprintf("topic %s: the broker knows no setting %s", t.name, s.name))
			} else if !s.holds(v) {
				found = append(found, fmt.Sprintf("topic %s has %s = %s, not %s", t.name, s.name, v, s.want()))
			}
		}
	}
	return found, nil
}

// all returns the settings of a topic that must be checked.
func (a *admin) all(t topic) []setting {
	all := append(slices.Clone(t.settings), common...)
	if !a.AllowUnreplicated {
		all = append(all, setting{name: "min.insync.replicas", value: strconv.Itoa(replicas - 1), is: atLeast})
	}
	return all
}

// create creates the topics.
func (a *admin) create(ctx context.Context, topics []topic) error {
	if len(topics) == 0 {
		return nil
	}
	n := replicas
	if a.AllowUnreplicated {
		meta, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, a.client)
		if err != nil {
			return err
		}
		n = max(1, min(n, len(meta.Brokers)))
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 30_000
	for _, t := range topics {
		r := kmsg.NewCreateTopicsRequestTopic()
		r.Topic, r.NumPartitions, r.ReplicationFactor = t.name, int32(a.Shards), int16(n)
		insync := setting{name: "min.insync.replicas", value: strconv.Itoa(max(1, n-1))}
		for _, s := range append(append(slices.Clone(t.settings), common...), insync) {
			c := kmsg.NewCreateTopicsRequestTopicConfig()
			c.Name, c.Value = s.name, kmsg.StringPtr(s.value)
			r.Configs = append(r.Configs, c)
		}
		req.Topics = append(req.Topics, r)
	}
	res, err := req.RequestWith(ctx, a.client)
	if err != nil {
		return err
	}
	for _, t := range res.Topics {
		err := kerr.ErrorForCode(t.ErrorCode)
		switch {
		case err == nil, err == kerr.TopicAlreadyExists: // created by another process at the same time; checked below
			continue
		case err == kerr.InvalidReplicationFactor:
			err = Findings{
				fmt.Sprintf(
					"the cluster has too few brokers for %d replicas of topic %s (to accept fewer, set "+
						"cluster.allow_unreplicated)", n, t.Topic)}
		case err == kerr.TopicAuthorizationFailed, err == kerr.ClusterAuthorizationFailed:
			err = Findings{fmt.Sprintf("this user may not Create topic %s", t.Topic)}
		case t.ErrorMessage != nil:
			err = fmt.Errorf("create topic %s: %w: %s", t.Topic, err, *t.ErrorMessage)
		default:
			err = fmt.Errorf("create topic %s: %w", t.Topic, err)
		}
		return err
	}
	return nil
}

// foreign finds topics with records that no instance of this group can have written.
func (a *admin) foreign(ctx context.Context, missing []topic) (found Findings, err error) {
	ends := map[string]int64{}
	is := func(name string) func(topic) bool { return func(t topic) bool { return t.name == name } }
	for _, t := range a.topics() {
		if !slices.ContainsFunc(missing, is(t.name)) {
			if ends[t.name], err = a.end(ctx, t.name); err != nil {
				return nil, err
			}
		}
	}
	state, ledger := StateTopic(a.Group), LedgerTopic(a.Group)
	if ends[state] > 0 && slices.ContainsFunc(missing, is(ledger)) {
		return Findings{
			fmt.Sprintf(
				"topic %s has records, but topic %s does not exist: a lost ledger must not be replaced by an empty one",
				state, ledger)}, nil
	}
	if ends[state] > 0 || ends[ledger] > 0 {
		return nil, nil
	}
	for _, name := range []string{ControlTopic(a.Group), PartialsTopic(a.Group)} {
		if ends[name] > 0 {
			found = append(found, fmt.Sprintf("topic %s has records, although the group's ledgers are empty: the "+
				"topic belongs to another group", name))
		}
	}
	return found, nil
}

// end returns the largest end offset of a topic's partitions, 0 if the topic never had a record.
func (a *admin) end(ctx context.Context, name string) (end int64, err error) {
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = name
	for p := range a.Shards {
		r := kmsg.NewListOffsetsRequestTopicPartition()
		r.Partition, r.Timestamp = int32(p), -1
		t.Partitions = append(t.Partitions, r)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.Topics = -1, append(req.Topics, t)
	res, err := req.RequestWith(ctx, a.client)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return 0, fmt.Errorf("topic %s, partition %d: %w", name, p.Partition, err)
			}
			end = max(end, p.Offset)
			n++
		}
	}
	if n != a.Shards {
		return 0, errAnswer
	}
	return end, nil
}

// transactionVersion returns the cluster's finalized transaction version. From version 2 on, each transaction has its
// own epoch, so a delayed copy of a request cannot end the next transaction.
func transactionVersion(ctx context.Context, client *kgo.Client) (int16, error) {
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "streamdp", "1"
	res, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
	}
	if err != nil {
		return 0, err
	}
	for _, f := range res.FinalizedFeatures {
		if f.Name == "transaction.version" {
			return f.MaxVersionLevel, nil
		}
	}
	return 0, nil
}

// rights tests the rights that metadata do not report: on the group and on transactional ids.
func (a *admin) rights(ctx context.Context) (found Findings, err error) {
	meta, err := describe(ctx, a.client, StateTopic(a.Group))
	if err != nil {
		return nil, err
	}
	var code *kerr.Error
	switch err := commitOffset(ctx, a.client, a.Group, meta.Topics[0], "", -1, 0); {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		found = append(found, fmt.Sprintf("this user may not Read group %s", a.Group))
	case err != nil && !errors.As(err, &code):
		return nil, err
	}
	id := a.Group + "-check"
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &id, 10_000
	res, err := req.RequestWith(ctx, a.client)
	if err == nil {
		err = kerr.ErrorForCode(res.ErrorCode)
	}
	switch {
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		found = append(found, fmt.Sprintf("this user may not Write transactional ids %s-…", a.Group))
	case err != nil && !errors.As(err, &code):
		return nil, err
	case err != nil:
		found = append(found, fmt.Sprintf("transactions are not possible: cannot get a producer id for %s: %v",
			id, err))
	}
	return found, nil
}

// lookTime is how long Look waits for a coordinator.
const lookTime = 15 * time.Second

// Look returns the current division of a group's shards, as the coordinator knows it. It does not join the group, so
// Self is −1. For a group without members it returns a Generation without members.
func Look(ctx context.Context, o kafka.Options, group string) (Generation, error) {
	fail := func(err error) (Generation, error) { return Generation{}, fmt.Errorf("group %s: %w", group, err) }
	opts, err := clientOptions(o)
	if err != nil {
		return fail(err)
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fail(err)
	}
	defer client.Close()
	until := time.Now().Add(lookTime)
	for pause := (kafka.Backoff{Max: time.Second}); ; {
		req := kmsg.NewPtrDescribeGroupsRequest()
		req.Groups = []string{group}
		res, err := req.RequestWith(ctx, client)
		var g kmsg.DescribeGroupsResponseGroup
		if err == nil {
			if len(res.Groups) != 1 {
				return fail(errAnswer)
			}
			g = res.Groups[0]
			err = kerr.ErrorForCode(g.ErrorCode)
		}
		if errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.CoordinatorLoadInProgress) ||
			errors.Is(err, kerr.NotCoordinator) {
			// On a cluster's first group, the coordinator waits until its internal topic has been created.
			if time.Now().After(until) || pause.Wait(ctx) != nil {
				return fail(err)
			}
			continue
		}
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return fail(err)
		}
		switch {
		case len(g.Members) == 0:
			return Generation{Self: -1}, nil
		case g.Protocol != "" && g.Protocol != protocolName:
			return fail(
				fmt.Errorf("its members use protocol %s, not %s: the group does not belong to streamdp",
					g.Protocol, protocolName))
		case g.State == "Stable":
			now, err := decodeAssignment(g.Members[0].MemberAssignment)
			if err != nil {
				return fail(fmt.Errorf("read its assignment of shards: %w", err))
			}
			now.Self, now.Shards, now.Standby = -1, nil, ""
			return now, nil
		}
		if pause.Wait(ctx) != nil {
			return fail(fmt.Errorf("a rebalance is under way (%s): %w", g.State, ctx.Err()))
		}
	}
}
