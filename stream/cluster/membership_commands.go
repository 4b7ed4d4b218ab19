package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
)

// readers is the maximum number of shards that a command reads at a time.
const readers = 8

// shardsOf calls f for each shard of a configuration, several at a time, and returns the error of the shard with the
// lowest number.
func shardsOf(c *config.Config, f func(shard int) error) error {
	errs := make([]error, c.Cluster.Shards)
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(readers, len(errs)) {
		wg.Go(func() {
			for shard := range next {
				errs[shard] = f(shard)
			}
		})
	}
	for shard := range errs {
		next <- shard
	}
	close(next)
	wg.Wait()
	for shard, err := range errs {
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	return nil
}

// groupTools has what the commands of a group need.
type groupTools struct {
	C       *config.Config
	kafka   kafka.Options
	Genesis shardlog.Genesis // the genesis of each shard, without the shard's number
	Master  *[32]byte
	unfit   error // why the topics of states and ledgers contradict the configuration; nil: no contradiction found
}

// newGroupTools asks the cluster for its id and for the group's topics.
func newGroupTools(ctx context.Context, c *config.Config, master *[32]byte) (*groupTools, error) {
	o, err := connect.Cluster(c)
	if err != nil {
		return nil, err
	}
	client, err := kafka.NewClient(o)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	id, err := client.ClusterID(ctx)
	if err != nil {
		return nil, err
	}
	g := &groupTools{c, o, genesisOf(c, master, id), master, nil}
	for _, name := range []string{kgroup.StateTopic(c.Cluster.Group), kgroup.LedgerTopic(c.Cluster.Group)} {
		t, err := client.Topic(ctx, name)
		if err != nil {
			return nil, err
		}
		switch {
		case g.unfit != nil:
		case !t.Exists:
			g.unfit = fmt.Errorf("topic %s does not exist: create it with streamdp cluster init", name)
		case len(t.Partitions) != c.Cluster.Shards:
			g.unfit = fmt.Errorf("topic %s has %d partitions, but the configuration has %d "+
				"shards", name, len(t.Partitions),
				c.Cluster.Shards)
		}
	}
	return g, nil
}

func (g *groupTools) options(shard int) shardlog.Options {
	genesis := g.Genesis
	genesis.Shard = shard
	return shardlog.Options{Genesis: genesis, Master: g.Master, Instance: connect.InstanceName(g.C)}
}

// logs returns the options that select a shard's logs.
func (g *groupTools) logs(shard int) kgroup.LogOptions {
	return kgroup.LogOptions{Kafka: g.kafka, Group: g.C.Cluster.Group, Shard: shard}
}

// read reads a shard without owning it.
func (g *groupTools) read(ctx context.Context, shard int) (*shardlog.View, error) {
	if g.unfit != nil {
		return nil, g.unfit
	}
	return shardlog.Read(ctx, kgroup.NewReader(g.logs(shard)), g.options(shard))
}

// Init creates the topics of a configuration's group, and begins each shard's ledger. It leaves existing topics and
// ledgers unchanged, so an Init that failed can be repeated. If a topic has any other content, it returns an error. It
// calls begun for each shard whose ledger it began.
func Init(ctx context.Context, c *config.Config, master *[32]byte, begun func(shard int)) error {
	g, err := newGroupTools(ctx, c, master)
	if err != nil {
		return err
	}
	if err := kgroup.Init(ctx, g.topics()); err != nil {
		return err
	}
	g.unfit = nil
	var mu sync.Mutex
	return shardsOf(c, func(shard int) error {
		_, err := g.read(ctx, shard)
		var halt *shardlog.HaltError
		if err == nil || !errors.As(err, &halt) || halt.Halt != shardlog.HaltGenesis {
			return err
		}
		// No instance can own the shard yet.
		if _, err := shardlog.Create(ctx, kgroup.NewLog(g.logs(shard)), g.options(shard)); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		begun(shard)
		return nil
	})
}

// topics returns the required partitions and settings of the group's topics.
func (g *groupTools) topics() kgroup.TopicOptions { return topicsOf(g.C.Cluster, g.kafka) }

func topicsOf(c *config.Cluster, o kafka.Options) kgroup.TopicOptions {
	return kgroup.TopicOptions{Kafka: o, Group: c.Group, Shards: c.Shards, AllowUnreplicated: c.AllowUnreplicated}
}

// ReadBooks reads the ledgers of all shards of a group, and checks the chain and the MACs of each. Instances may be
// running.
func ReadBooks(ctx context.Context, c *config.Config, master *[32]byte) (*ledger.Books, error) {
	g, err := newGroupTools(ctx, c, master)
	if err != nil {
		return nil, err
	}
	b := &ledger.Books{Ledgers: make([]*ledger.Ledger, c.Cluster.Shards)}
	err = shardsOf(c, func(shard int) (err error) {
		v, err := g.read(ctx, shard)
		if err != nil {
			return err
		}
		b.Ledgers[shard], err = ledgerOf(v.Lines, master)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	return b, nil
}

// ledgerOf parses the lines of a shard's ledger.
func ledgerOf(lines [][]byte, master *[32]byte) (*ledger.Ledger, error) {
	var text bytes.Buffer
	for _, line := range lines {
		text.Write(line)
		text.WriteByte('\n')
	}
	return ledger.Parse(text.Bytes(), ledger.NewKey(master))
}

// Checked is the result of Check.
type Checked struct {
	Topics []string     `json:"topics"` // faults of the topics and of the brokers' settings
	Shards []ShardCheck `json:"shards"` // empty if the topics contradict the configuration
}

// ShardCheck is the result for one shard.
type ShardCheck struct {
	Shard int    `json:"shard"`
	Owner string `json:"owner"` // the instance that acquired it last
	Lines int    `json:"ledger_lines"`
	Bytes int64  `json:"state_bytes"`
	Fault string `json:"fault,omitempty"` // empty: no fault
}

// Check checks the settings of the topics. In each shard it checks the genesis, the chain of hashes, the MACs and the
// seals, and that the ledger has the length that the state records.
func Check(ctx context.Context, c *config.Config, master *[32]byte) (*Checked, error) {
	g, err := newGroupTools(ctx, c, master)
	if err != nil {
		return nil, err
	}
	out := &Checked{Topics: []string{}, Shards: make([]ShardCheck, c.Cluster.Shards)}
	if err := kgroup.Check(ctx, g.topics()); err != nil {
		out.Topics = append(out.Topics, strings.Split(err.Error(), "\n")...)
	}
	if g.unfit != nil { // nothing can be read
		if len(out.Topics) == 0 {
			out.Topics = append(out.Topics, g.unfit.Error())
		}
		out.Shards = nil
		return out, nil
	}
	shardsOf(c, func(shard int) error {
		s := ShardCheck{Shard: shard}
		v, err := g.read(ctx, shard)
		if err == nil {
			s.Owner, s.Lines = v.Owner.Instance, len(v.Lines)
			for _, value := range v.Values {
				s.Bytes += int64(len(value.Data))
			}
			_, err = ledgerOf(v.Lines, master)
		}
		if err != nil {
			s.Fault = err.Error()
		}
		out.Shards[shard] = s
		return nil
	})
	return out, ctx.Err()
}

// Look asks the group's coordinator for its members and their shards.
func Look(ctx context.Context, c *config.Config) (*Status, error) {
	o, err := connect.Cluster(c)
	if err != nil {
		return nil, err
	}
	g, err := kgroup.Look(ctx, o, c.Cluster.Group)
	if err != nil {
		return nil, err
	}
	out := &Status{Group: c.Cluster.Group, Instance: connect.InstanceName(c), Shards: []ShardStatus{},
		Members: []MemberStatus{}}
	out.Generation, out.Unowned = g.Number, g.Unowned
	scheme := "http"
	if c.HTTP.TLS != nil {
		scheme = "https"
	}
	for _, m := range g.Members {
		out.Members = append(out.Members, memberStatus(m, scheme))
	}
	return out, nil
}
