package cluster

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/signedlog"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/task"
)

// Instances that share tasks receive requests through Kafka: a command writes a request into the partition of the
// group's control topic that belongs to the task's shard, and the shard's owner writes the answer to the same
// partition. Each record has a MAC under a key derived from the master key, so only holders of that key can ask or
// answer.
//
// A request is carried out at most once. The owner first writes a record that it takes the request, and then reads the
// partition up to this record: if several owners take a request, only the first of them carries it out. If a former
// owner took a request but did not answer it, the shard's new owner answers: it tells the sender to check whether the
// request was carried out.

const (
	// requestLife is how long a request waits for an instance to take it.
	requestLife = 30 * time.Second
	// requestPatience is how long a command waits for the answer to a request that an instance took.
	requestPatience = 2 * time.Minute
	// maxRequestBytes is larger than any request, except those that contain files of another epoch.
	maxRequestBytes = 1 << 20
	// requestHeader is the name of the header with the MAC.
	requestHeader = "streamdp.mac"
	// requestPrefix is the prefix of the keys of records that belong to requests.
	requestPrefix = "request/"
)

// These are the parts of a request. A record's key has the part after the prefix and the id.
const (
	partAsked    = "asked"
	partTaken    = "taken"
	partAnswered = "answered"
)

// askedRecord is the request that a command writes.
type askedRecord struct {
	Kind    string       `json:"kind"`
	Request task.Request `json:"request"`
	Expires time.Time    `json:"expires"` // time after which no instance takes the request
}

// takenRecord is what an owner writes before it carries out a request.
type takenRecord struct {
	By       string `json:"by"`       // the owner's random name
	Instance string `json:"instance"` // the owner's name for display
}

// requestTopic is one partition of a group's control topic.
type requestTopic struct {
	log   signedlog.Log
	group string
	shard int
}

func newRequestTopic(client *kafka.Client, c *config.Cluster, master *[32]byte, shard int) *requestTopic {
	key := keys.Derive(master, keys.ForRequests, nil)
	log := signedlog.Log{Client: client, Topic: c.ControlTopic(), Partition: int32(shard),
		Header: requestHeader, Key: key}
	return &requestTopic{log: log, group: c.Group, shard: shard}
}

// signed returns the data over which a record's MAC is computed: group, shard, key and value. Each but the last is
// preceded by its length.
func (t *requestTopic) signed(key, value []byte) [][]byte {
	shard := binary.BigEndian.AppendUint32(nil, uint32(t.shard))
	return [][]byte{signedlog.Sized([]byte(t.group)), signedlog.Sized(shard), signedlog.Sized(key), value}
}

// write appends one part of a request.
func (t *requestTopic) write(ctx context.Context, id, part string, v any) error {
	value, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(value) > maxRequestBytes {
		return errors.New("the request is larger than 1 MiB")
	}
	key := []byte(requestPrefix + id + "/" + part)
	headers := t.log.Headers(t.log.Sign(nil, t.signed(key, value)...))
	message := kafka.Message{Key: key, Value: value, Time: time.Now().Truncate(time.Millisecond), Headers: headers}
	var pause kafka.Backoff
	for {
		err := t.log.Append(ctx, []kafka.Message{message})
		if !kafka.Retriable(err) {
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// parse returns id and part of a record. ok is false if the record is not signed or not about a request.
func (t *requestTopic) parse(rec *kafka.Record) (id, part string, ok bool) {
	rest, ours := strings.CutPrefix(string(rec.Key), requestPrefix)
	if !ours || !t.log.Signed(rec, nil, t.signed(rec.Key, rec.Value)...) {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

// Ask sends a request to the owner of a task's shard, to change the task's epoch or to publish again. It waits for the
// answer, and writes to log what it is waiting for.
//
// Errors: the owner's answer, as returned by [task.Answer.Err]; no instance took the request within half a minute; no
// answer arrived within two minutes, so it is unknown whether the request was carried out.
func Ask(ctx context.Context, c *config.Config, master *[32]byte, q task.Request) error {
	switch q.Kind {
	case task.RequestOpen, task.RequestClose, task.RequestRepublish:
	default:
		return fmt.Errorf("%s is not possible with [cluster] in this version", q.Kind)
	}
	cluster, err := connect.Cluster(c)
	if err != nil {
		return err
	}
	client, err := kafka.NewClient(cluster)
	if err != nil {
		return err
	}
	defer client.Close()
	shard, err := shardOf(c, q.Task())
	if err != nil {
		return err
	}
	a := newRequestTopic(client, c.Cluster, master, shard)
	from, err := a.log.End(ctx)
	if err != nil {
		return fmt.Errorf("control topic %s: %w", a.log.Topic, err)
	}
	random := keys.NewNonce()
	id := hex.EncodeToString(random[:])
	expires := time.Now().Add(requestLife).UTC()
	if err := a.write(ctx, id, partAsked, askedRecord{q.Kind, q, expires}); err != nil {
		return fmt.Errorf("control topic %s: %w", a.log.Topic, err)
	}
	return a.await(ctx, id, from, requestLife, requestPatience)
}

// errAnswered ends the reading of answers.
var errAnswered = errors.New("answered")

// await waits until an instance takes a request, but at most for life. Then it waits for the answer, but at most for
// patience.
func (t *requestTopic) await(ctx context.Context, id string, from int64, life, patience time.Duration) error {
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(life, func() {
		cancel(
			fmt.Errorf("no instance accepted the request within %v: check with streamdp cluster status that an "+
				"instance owns shard %d",
				life, t.shard))
	})
	defer late.Stop()
	var answer *task.Answer
	err := t.log.Follow(waiting, from, func(rec *kafka.Record) error {
		of, part, ok := t.parse(rec)
		switch {
		case !ok || of != id:
		case part == partTaken && late.Stop():
			late = time.AfterFunc(patience, func() {
				cancel(
					fmt.Errorf(
						"an instance accepted the request but has not answered within %v: streamdp epoch list shows "+
							"whether the request was carried out", patience))
			})
		case part == partAnswered:
			if json.Unmarshal(rec.Value, &answer) != nil {
				answer = &task.Answer{Error: "the answer cannot be read"}
			}
			return errAnswered
		}
		return nil
	}, func() error { return nil })
	if answer != nil {
		return answer.Err()
	}
	if cause := context.Cause(waiting); cause != nil {
		return cause
	}
	return err
}

// requestServer takes and answers the requests for a shard that this instance owns.
type requestServer struct {
	*requestTopic
	log      *slog.Logger
	instance string
	name     string // random name of this owner
	now      func() time.Time
	// meet carries out a request. It may wait for a task.
	meet func(ctx context.Context, q task.Request) error

	open map[string]*askedRecord // requests not taken yet
	// taken has the requests that were taken but not answered, by id. The value is the first owner that took the
	// request.
	taken map[string]string
	done  map[string]bool // requests that were answered
	live  bool            // all records that were in the partition at the start have been read
}

func newRequestServer(a *requestTopic, log *slog.Logger, instance string, now func() time.Time,
	meet func(context.Context, task.Request) error) *requestServer {
	random := keys.NewNonce()
	return &requestServer{requestTopic: a, log: log, instance: instance, name: hex.EncodeToString(random[:]),
		now: now, meet: meet,
		open: map[string]*askedRecord{}, taken: map[string]string{}, done: map[string]bool{}}
}

// Run serves requests until the context ends. It returns an error only if the topic cannot be read.
func (s *requestServer) Run(ctx context.Context) error {
	var met sync.WaitGroup
	defer met.Wait()
	err := s.requestTopic.log.Follow(ctx, 0, func(rec *kafka.Record) error {
		id, part, ok := s.parse(rec)
		if !ok {
			return nil
		}
		return s.read(ctx, &met, id, part, rec.Value)
	}, func() error { return s.caughtUp(ctx) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// read processes a record.
func (s *requestServer) read(ctx context.Context, met *sync.WaitGroup, id, part string, value []byte) error {
	switch part {
	case partAsked:
		var q askedRecord
		if _, known := s.open[id]; known || s.taken[id] != "" || s.done[id] || json.Unmarshal(value, &q) != nil {
			return nil
		}
		s.open[id] = &q
		if s.live {
			return s.take(ctx, id)
		}
	case partTaken:
		var by takenRecord
		if s.taken[id] != "" || s.done[id] || json.Unmarshal(value, &by) != nil || by.By == "" {
			return nil
		}
		q := s.open[id]
		delete(s.open, id)
		s.taken[id] = by.By
		if by.By == s.name && q != nil {
			q.Request.Kind = q.Kind
			met.Go(func() { s.answer(ctx, id, s.meet(ctx, q.Request)) })
		}
	case partAnswered:
		delete(s.open, id)
		delete(s.taken, id)
		s.done[id] = true
	}
	return nil
}

// caughtUp answers the requests that a former owner took but did not answer, and takes those that nobody took.
func (s *requestServer) caughtUp(ctx context.Context) error {
	s.live = true
	for id := range s.taken {
		s.answer(ctx, id,
			errors.New("the instance that accepted the request stopped, or lost the shard: streamdp epoch list shows "+
				"whether the request was carried out"))
	}
	for id := range s.open {
		if err := s.take(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// take writes that this server takes a request, unless the request has expired.
func (s *requestServer) take(ctx context.Context, id string) error {
	if q := s.open[id]; !s.now().Before(q.Expires) {
		delete(s.open, id)
		s.done[id] = true
		return nil
	}
	return s.write(ctx, id, partTaken, takenRecord{s.name, s.instance})
}

// answer writes the answer to a request.
func (s *requestServer) answer(ctx context.Context, id string, err error) {
	if err := s.write(ctx, id, partAnswered, task.NewAnswer(err)); err != nil && ctx.Err() == nil {
		s.log.Error("cannot write the answer to a request", "shard", s.shard, "error", err.Error())
	}
}

// shardOf returns the shard of a task.
func shardOf(c *config.Config, t core.Task) (int, error) {
	s := c.Stream(t.Stream)
	if s == nil {
		return 0, fmt.Errorf("the configuration has no stream %s", t.Stream)
	}
	return c.Cluster.Shard(s.Input.Topic, t.Partition), nil
}
