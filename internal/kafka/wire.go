package kafka

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// A fetch as the reader sees it: everything that depends on how responses are
// decoded is in this file.

// answer is one partition of a fetch response.
type answer struct {
	throttle   time.Duration // how long the broker does not want to hear of this client
	present    bool          // false: the broker sent no word about the partition
	code       int16
	logStart   int64
	lastStable int64
	end        int64
	aborted    []abortedTxn
	batches    []batch
}

// abortedTxn is a transaction whose records, from first on, do not count.
type abortedTxn struct{ producer, first int64 }

// batch is one record batch, in log order.
type batch struct {
	base          int64 // first offset; −1 in formats that do not say
	epoch         int32
	producer      int64
	transactional bool
	control       bool
	records       protocol.RecordReader
}

// fetch sends one request and fills a, whose slices it uses again.
func (c *Client) fetch(ctx context.Context, o *ReaderOptions, from int64, limit int, epoch int32, timeout time.Duration, a *answer) error {
	isolation := int8(1)
	if o.Uncommitted {
		isolation = 0
	}
	m, err := c.roundTrip(ctx, timeout, &fetch.Request{
		ReplicaID:      -1,
		MaxWaitTime:    int32(o.MaxWait / time.Millisecond),
		MinBytes:       1,
		MaxBytes:       int32(o.MaxBytes),
		IsolationLevel: isolation,
		SessionID:      -1, // no fetch session: one partition has nothing to gain
		SessionEpoch:   -1,
		Topics: []fetch.RequestTopic{{
			Topic: o.Topic,
			Partitions: []fetch.RequestPartition{{
				Partition:          o.Partition,
				CurrentLeaderEpoch: epoch,
				FetchOffset:        from,
				LogStartOffset:     -1,
				PartitionMaxBytes:  int32(limit),
			}},
		}},
	})
	if err != nil {
		return callError(ctx, "fetch", o.Topic, o.Partition, err)
	}
	*a = answer{aborted: a.aborted[:0], batches: a.batches[:0]}
	res, ok := m.(*fetch.Response)
	if !ok {
		return localError("fetch", o.Topic, o.Partition, kindProtocol, "malformed response")
	}
	a.throttle = time.Duration(res.ThrottleTimeMs) * time.Millisecond
	if res.ErrorCode != 0 {
		return brokerError("fetch", o.Topic, o.Partition, res.ErrorCode)
	}
	for i := range res.Topics {
		if res.Topics[i].Topic != o.Topic {
			continue
		}
		for j := range res.Topics[i].Partitions {
			if p := &res.Topics[i].Partitions[j]; p.Partition == o.Partition {
				a.take(p)
				return nil
			}
		}
	}
	return nil // a throttled broker answers without partitions
}

func (a *answer) take(p *fetch.ResponsePartition) {
	a.present = true
	a.code = p.ErrorCode
	a.logStart, a.lastStable, a.end = p.LogStartOffset, p.LastStableOffset, p.HighWatermark
	for _, t := range p.AbortedTransactions {
		a.aborted = append(a.aborted, abortedTxn{t.ProducerID, t.FirstOffset})
	}
	stream, ok := p.RecordSet.Records.(*protocol.RecordStream)
	if !ok {
		return // no records
	}
	for _, r := range stream.Records {
		switch b := r.(type) {
		case *protocol.ControlBatch:
			a.batches = append(a.batches, batch{
				base: b.BaseOffset, epoch: b.PartitionLeaderEpoch, producer: b.ProducerID,
				control: true, records: b.Records,
			})
		case *protocol.RecordBatch:
			a.batches = append(a.batches, batch{
				base: b.BaseOffset, epoch: b.PartitionLeaderEpoch, producer: b.ProducerID,
				transactional: b.Attributes.Transactional(), records: b.Records,
			})
		default: // the formats before transactions
			a.batches = append(a.batches, batch{base: -1, epoch: -1, producer: -1, records: b})
		}
	}
}
