package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// readHundred creates a topic and a reader that has read its hundred records.
func readHundred(t *testing.T, c *Client, addrs []string, o ReaderOptions) (*Reader, ReaderOptions) {
	t.Helper()
	o.Topic = kafkatest.Topic(t, addrs, nil)
	kafkatest.NewProducer(t, addrs, o.Topic, 0, "").Send(numbered("old", 100)...)
	r := newReader(t, c, o, start)
	drain(t, r, 100, nil)
	return r, o
}

// again deletes a topic and creates it again, with other records.
func again(t *testing.T, addrs []string, topic, tag string, n int) {
	t.Helper()
	kafkatest.DeleteTopic(t, addrs, topic)
	kafkatest.CreateTopic(t, addrs, topic, nil)
	if n > 0 {
		kafkatest.NewProducer(t, addrs, topic, 0, "").Send(numbered(tag, n)...)
	}
}

func TestReplacedLog(t *testing.T) { replacedLog(t, startBroker(t, embedded.Options{}).Addrs()) }

func replacedLog(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	var (
		chunk     Chunk
		replaced  *ReplacedError
		truncated *TruncatedError
	)
	for _, n := range []int{100, 101, 300} {
		r, o := readHundred(t, c, addrs, ReaderOptions{})
		again(t, addrs, o.Topic, "new", n)
		if err := fetchOnce(t.Context(), r, &chunk); !errors.As(err, &replaced) || replaced.Evidence != AnchorDiffers {
			t.Errorf("%d other records: %v", n, err)
		}
		if len(chunk.Records) != 0 || chunk.Next != 100 || r.Position().Next != 100 {
			t.Errorf("%d other records: %d were delivered", n, len(chunk.Records))
		}
		// The result is the same after a restart.
		if err := fetchOnce(t.Context(), newReader(t, c, o, r.Position()), &chunk); !errors.As(err, &replaced) {
			t.Errorf("%d other records, restarted: %v", n, err)
		}
	}
	// The new log ends before, at or after the anchor's offset.
	for _, n := range []int{0, 50, 98, 99} {
		r, o := readHundred(t, c, addrs, ReaderOptions{})
		again(t, addrs, o.Topic, "old", n)
		err := fetchOnce(t.Context(), r, &chunk)
		if !errors.As(err, &truncated) || truncated.LogEnd != int64(n) || truncated.Next != 100 {
			t.Errorf("%d records left: %v", n, err)
		}
	}
	r, o := readHundred(t, c, addrs, ReaderOptions{})
	o.ClusterID = "another"
	if err := fetchOnce(t.Context(), newReader(t, c, o, r.Position()), &chunk); !errors.As(err, &replaced) ||
		replaced.Evidence != ClusterChanged {
		t.Errorf("other cluster: %v", err)
	}
}

// An older leader epoch is detected at once if records differ, and after a while if the new leader refuses to answer.
func TestOlderEpoch(t *testing.T) {
	b := startBroker(t, embedded.Options{})
	c := dialBroker(t, b.Addr())
	r, o := readHundred(t, c, b.Addrs(), ReaderOptions{epochGrace: 100 * time.Millisecond})
	for range 3 {
		if err := b.Cluster().MoveTopicPartition(o.Topic, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	kafkatest.NewProducer(t, b.Addrs(), o.Topic, 0, "").Send(numbered("old", 1)...)
	drain(t, r, 101, nil)
	if e := r.Position().LeaderEpoch; e != 3 {
		t.Fatalf("leader epoch %d", e)
	}
	again(t, b.Addrs(), o.Topic, "old", 300)
	var replaced *ReplacedError
	var chunk Chunk
	if err := fetchOnce(t.Context(), newReader(t, c, o, r.Position()), &chunk); !errors.As(err, &replaced) ||
		replaced.Evidence != EpochWentBack {
		t.Errorf("older epoch: %v", err)
	}
}

func TestRetention(t *testing.T) { retention(t, startBroker(t, embedded.Options{}).Addrs()) }

func retention(t *testing.T, addrs []string) {
	c := dialBroker(t, addrs...)
	topic := kafkatest.Topic(t, addrs, nil)
	p := kafkatest.NewProducer(t, addrs, topic, 0, "")
	for range 10 {
		p.Send(numbered("a", 10)...)
	}
	o := ReaderOptions{Topic: topic, PartitionMaxBytes: 1}
	r := newReader(t, c, o, start)
	drain(t, r, 40, nil)
	var chunk Chunk

	// Records up to the position were deleted: only the anchor is gone.
	kafkatest.DeleteRecords(t, addrs, topic, 0, 40)
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || !chunk.AnchorDropped || chunk.Next != 40 {
		t.Fatalf("%v, %+v", err, chunk)
	}
	if chunk.Position(40).Anchor != nil {
		t.Error("a position with an anchor that is gone")
	}
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || chunk.AnchorDropped || chunk.Next != 50 ||
		chunk.LogStart != 40 {
		t.Fatalf("%v, %+v", err, chunk)
	}

	kafkatest.DeleteRecords(t, addrs, topic, 0, 57)
	var gap *GapError
	for range 2 {
		if err := fetchOnce(t.Context(), r, &chunk); !errors.As(err, &gap) || gap.LogStart != 57 || gap.Next != 50 {
			t.Fatal(err)
		}
	}
	o.SkipGaps = true
	r = newReader(t, c, o, r.Position())
	if err := fetchOnce(t.Context(), r, &chunk); err != nil || chunk.Lost != 7 || chunk.First != 50 ||
		chunk.Next != 57 || len(chunk.Records) != 0 {
		t.Fatalf("%v, %+v", err, chunk)
	}
	if r.Position().Anchor != nil {
		t.Error("the anchor of a record that is gone")
	}
	if p := chunk.Position(53); p.Next != 53 || p.Anchor != nil {
		t.Errorf("position inside the gap: %+v", p)
	}
	if got := drain(t, r, 100, nil); len(got) != 43 || got[0].Offset != 57 {
		t.Errorf("%d records from %d", len(got), got[0].Offset)
	}
}
