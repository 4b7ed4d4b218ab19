package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/exit"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/words"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/ledger"
)

// inquiry asks the brokers about the topics of a configuration. Its methods collect faults and warnings. They return an
// error only if the brokers do not answer.
type inquiry struct {
	client   *kafka.Client
	cfg      *config.Config
	warnings []string
	faults   []error
}

func (q *inquiry) warn(format string, args ...any) {
	q.warnings = append(q.warnings, fmt.Sprintf(format, args...))
}

func (q *inquiry) fault(format string, args ...any) {
	q.faults = append(q.faults, fmt.Errorf(format, args...))
}

// ask checks the brokers, this user's rights, and the topics. It sets r.Config to the configuration with the topics
// that its patterns would take, and r.Rights.
func (r *Report) ask(ctx context.Context, cluster kafka.Options) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := kafka.NewClient(cluster)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.Probe(ctx); kafka.Unauthorized(err) {
		return fmt.Errorf("the brokers refuse the credentials in [kafka.sasl]: %w", err)
	} else if err != nil {
		return err
	}
	q := &inquiry{client: client, cfg: r.Config}
	if err := q.match(ctx); err != nil {
		return err
	}
	if r.Rights, err = q.rights(ctx, cluster); err != nil {
		return err
	}
	if err := q.control(ctx); err != nil {
		return err
	}
	if err := q.boundaries(ctx); err != nil {
		return err
	}
	described := map[string]*core.Description{}
	for _, d := range r.Streams {
		described[d.Stream] = d
	}
	for _, s := range q.cfg.Streams {
		if err := q.input(ctx, s); err != nil {
			return err
		}
		if err := q.output(ctx, s, described[Title(s)].MessageBytes); err != nil {
			return err
		}
	}
	if len(q.faults) > 0 {
		return exit.Config{Err: errors.Join(q.faults...)}
	}
	r.Config, r.Warnings = q.cfg, append(r.Warnings, q.warnings...)
	return nil
}

// match finds the topics that the patterns match. It adds to the configuration a stream for each topic that a daemon
// would take, and warns about the others.
func (q *inquiry) match(ctx context.Context) error {
	if len(q.cfg.Patterns) == 0 {
		return nil
	}
	books, err := ledger.ReadBooks(q.cfg.State.Dir)
	if err != nil {
		return err
	}
	t := books.Topics()
	if t.Found, err = q.client.Topics(ctx); err != nil {
		return err
	}
	var refused []config.Refusal
	q.cfg, refused = q.cfg.Expand(t)
	beyond := map[string]int{}
	for _, r := range refused {
		if r.Beyond {
			beyond[r.Pattern]++
		} else {
			q.warn("stream %s: topic %s matches the pattern, but would get no stream: %s", r.Pattern, r.Topic, r.Reason)
		}
	}
	for _, p := range q.cfg.Patterns {
		taken := 0
		for _, s := range q.cfg.Streams {
			if s.Pattern() == p.Name {
				taken++
			}
		}
		if n := beyond[p.Name]; n > 0 {
			q.warn("stream %s: %d topics match the pattern, but would get no stream, because input.max_topics is %d",
				p.Name, n,
				p.Input.MaxTopics)
		}
		if taken == 0 {
			q.warn("stream %s: no topic matches %q yet; the daemon would wait for one", p.Name, p.Input.Topics)
		}
	}
	return nil
}

// rights asks the brokers whether this user may do what the daemon will do. It returns the rights that the daemon needs
// and the user has, or nothing, with a warning, if the brokers do not report rights. A missing right is a fault, with
// the command that grants it.
func (q *inquiry) rights(ctx context.Context, cluster kafka.Options) ([]connect.Right, error) {
	needs := connect.Rights(q.cfg)
	missing, err := connect.MissingRights(ctx, cluster, needs)
	switch {
	case errors.Is(err, connect.ErrSilent):
		q.warn("cannot check whether this user has the rights that the daemon needs: %s", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("permissions: %w", err)
	}
	principal := "User:NAME"
	if s := q.cfg.Kafka.SASL; s != nil && s.Username != "" {
		principal = "User:" + s.Username
	}
	var faults []error
	for _, r := range missing {
		how := r.Grant(q.cfg.Kafka.Brokers[0], principal)
		if s := q.cfg.Kafka.SASL; s != nil && s.AWS() {
			how = "allow it in the IAM policy"
		}
		faults = append(faults, fmt.Errorf("this user may not %s: %s", r, how))
	}
	if len(faults) > 0 {
		return nil, exit.Config{Err: errors.Join(faults...)}
	}
	return needs, nil
}

// setting checks a topic of one partition, which the daemon creates if it is missing. It returns the topic's settings,
// or nil if the topic is missing. unfit returns why a topic cannot be used.
func (q *inquiry) setting(ctx context.Context, key, topic string, names []string,
	unfit func(partitions int, settings map[string]string) string) (map[string]string, error) {
	t, err := q.client.Topic(ctx, topic)
	if err != nil || !t.Exists {
		return nil, err
	}
	settings, err := q.client.TopicConfig(ctx, topic, names...)
	if err != nil {
		return nil, err
	}
	if why := unfit(len(t.Partitions), settings); why != "" {
		q.fault("%s: topic %s %s", key, topic, why)
	}
	return settings, nil
}

// control checks the control topic, if the configuration has one.
func (q *inquiry) control(ctx context.Context) error {
	name := q.cfg.Kafka.ControlTopic
	if name == "" {
		return nil
	}
	_, err := q.setting(ctx, "kafka.control_topic", name, ledger.SettingNames, ledger.UnfitControl)
	return err
}

// boundaries checks the boundary topic, if the configuration has one.
func (q *inquiry) boundaries(ctx context.Context) error {
	name := q.cfg.Kafka.BoundaryTopic
	if name == "" {
		return nil
	}
	settings, err := q.setting(ctx, "kafka.boundary_topic", name, boundary.SettingNames, boundary.Unfit)
	if err == nil && boundary.BrokersStamp(settings) {
		q.warn("kafka.boundary_topic: records of topic %s have the time at which brokers appended them, which "+
			"reveals when the partitions answered: set message.timestamp.type = CreateTime", name)
	}
	return err
}

// input checks the input topic of a stream.
func (q *inquiry) input(ctx context.Context, s *config.Stream) error {
	in, err := q.client.Topic(ctx, s.Input.Topic)
	if err != nil {
		return err
	}
	last := max(0, slices.Max(s.Input.Partitions)) // 0 if all partitions are read
	switch {
	case !in.Exists:
		q.warn("stream %s: input topic %s does not exist yet; the daemon would wait for it", s.Name, s.Input.Topic)
	case last >= len(in.Partitions):
		q.warn("stream %s: input topic %s has %d partitions, but partition %d is configured; the daemon would wait "+
			"for it", s.Name,
			s.Input.Topic, len(in.Partitions), last)
	default:
		settings, err := q.client.TopicConfig(ctx, s.Input.Topic, input.RetentionSettings...)
		if err != nil {
			return err
		}
		if strings.Contains(settings["cleanup.policy"], "compact") && !s.Input.AllowCompacted {
			q.fault("stream %s: input topic %s is compacted: set its cleanup.policy to delete, or accept it with "+
				"input.allow_compacted = true", s.Name, s.Input.Topic)
		}
		if input.ProducersDecideRetention(settings) {
			q.warn(
				"stream %s: producers' timestamps decide when records of topic %s are deleted, which the guarantee "+
					"does not cover: set message.timestamp.type = LogAppendTime", s.Name, s.Input.Topic)
		}
	}
	if unread := connect.Unread(q.cfg, in); len(unread) > 0 {
		q.warn("stream %s: partitions %v of input topic %s are not read by any stream of this "+
			"configuration", s.Name, unread,
			s.Input.Topic)
	}
	if !s.Input.All() || q.cfg.Cluster != nil {
		return nil
	}
	books, err := ledger.ReadBooks(q.cfg.State.Dir)
	if err != nil {
		return err
	}
	if s.Merge {
		if waiting := notMerged(books, s, len(in.Partitions)); len(waiting) > 0 {
			q.warn(
				"stream %s: partitions %v of input topic %s were added since the open epoch began; to read them, "+
					"open another epoch with: streamdp epoch open %s", s.Name, waiting, s.Input.Topic, s.Name)
		}
	} else if fresh := withoutEpoch(books, s, len(in.Partitions)); len(fresh) > 0 {
		q.warn("stream %s: partitions %v of input topic %s have no epoch yet; the daemon will open one for "+
			"each", s.Name, fresh,
			s.Input.Topic)
	}
	return nil
}

// output checks the topic of a stream's releases, which have up to size bytes, and the topic of its dead letters.
func (q *inquiry) output(ctx context.Context, s *config.Stream, size int64) error {
	out, err := q.client.Topic(ctx, s.Output.Topic)
	if err != nil {
		return err
	}
	if s.DeadLetter.Mode != "off" {
		if dead, err := q.client.Topic(ctx, s.DeadLetter.Topic); err != nil {
			return err
		} else if !dead.Exists {
			q.warn("stream %s: dead_letter.topic %s does not exist; dead letters would wait for it", s.Name,
				s.DeadLetter.Topic)
		}
	}
	limit := int64(defaultMessageBytes)
	switch {
	case !out.Exists && !s.Output.Create:
		q.warn("stream %s: output topic %s does not exist, and output.create is false; the daemon would wait for "+
			"it", s.Name,
			s.Output.Topic)
	case out.Exists:
		settings, err := q.client.TopicConfig(ctx, s.Output.Topic, "cleanup.policy", "max.message.bytes")
		if kafka.Unauthorized(err) {
			q.warn(
				"stream %s: this user may not see the settings of output topic %s: cannot check whether it keeps "+
					"releases and accepts large ones", s.Name, s.Output.Topic)
		} else if err != nil {
			return err
		}
		if strings.Contains(settings["cleanup.policy"], "delete") {
			q.warn(
				"stream %s: output topic %s deletes old releases; after that, a restart halts, because a restored "+
					"backup can no longer be told from the current state", s.Name, s.Output.Topic)
		}
		if n, err := strconv.ParseInt(settings["max.message.bytes"], 10, 64); err == nil {
			limit = n
		}
	}
	if size > limit {
		q.fault("stream %s: a release takes up to %s, but output topic %s accepts messages of at most %s: choose "+
			"fewer output.values or raise max.message.bytes",
			s.Name, words.Size(size), s.Output.Topic, words.Size(limit))
	}
	return nil
}

// withoutEpoch returns the partitions, out of n, in which a stream of all partitions never opened an epoch. Without a
// ledger, these are all partitions.
func withoutEpoch(books *ledger.Books, s *config.Stream, n int) (fresh []int) {
	epochs := books.Epochs()
	for p := range n {
		if !slices.ContainsFunc(epochs,
			func(e ledger.EpochInfo) bool { return e.Stream == s.Name && e.Partition == p }) {
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// notMerged returns the partitions, out of n, that the open epoch of a merged stream does not read. It returns none if
// no epoch is open.
func notMerged(books *ledger.Books, s *config.Stream, n int) (waiting []int) {
	for _, e := range books.Epochs() {
		if e.Stream != s.Name || e.Partition != core.Merged || e.State != "open" {
			continue
		}
		for p := range n {
			if !slices.ContainsFunc(e.Parts, func(x ledger.EntryPart) bool { return x.Partition == p }) {
				waiting = append(waiting, p)
			}
		}
	}
	return waiting
}
