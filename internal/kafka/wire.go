package kafka

import "time"

// answer is one partition of a fetch response.
type answer struct {
	throttle   time.Duration // pause for which the broker asks this client
	present    bool          // false: the response does not have the partition
	code       int16
	logStart   int64
	lastStable int64
	end        int64
	aborted    []abortedTxn
	records    *buffer // nil: no records
}

// abortedTxn is an aborted transaction: the producer's records from offset `first` on are not delivered.
type abortedTxn struct{ producer, first int64 }

// release gives the buffer of the records back.
func (a *answer) release() {
	if a.records != nil {
		a.records.release()
		a.records = nil
	}
}

// take fills the answer from the partition's part of a response.
func (a *answer) take(p *fetchPartition) {
	a.present = true
	a.code = p.ErrorCode
	a.logStart, a.lastStable, a.end = p.LogStartOffset, p.LastStableOffset, p.HighWatermark
	for _, t := range p.AbortedTransactions {
		a.aborted = append(a.aborted, abortedTxn{t.ProducerID, t.FirstOffset})
	}
	a.records = p.RecordSet.buf
}
