package kafka

import "time"

// answer is one partition of a fetch response.
type answer struct {
	throttle   time.Duration // how long the broker does not want to hear of this client
	present    bool          // false: the broker sent no word about the partition
	code       int16
	logStart   int64
	lastStable int64
	end        int64
	aborted    []abortedTxn
	records    *buffer // nil: none
}

// abortedTxn is a transaction whose records, from first on, do not count.
type abortedTxn struct{ producer, first int64 }

// release gives the records back.
func (a *answer) release() {
	if a.records != nil {
		a.records.release()
		a.records = nil
	}
}

// take fills the answer with what a response says of its partition.
func (a *answer) take(p *fetchPartition) {
	a.present = true
	a.code = p.ErrorCode
	a.logStart, a.lastStable, a.end = p.LogStartOffset, p.LastStableOffset, p.HighWatermark
	for _, t := range p.AbortedTransactions {
		a.aborted = append(a.aborted, abortedTxn{t.ProducerID, t.FirstOffset})
	}
	a.records = p.RecordSet.buf
}
