package shardlog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// broker models what the protocol assumes about Kafka, for one shard.
type broker struct {
	mu           sync.Mutex // serializes requests; a test may read the other fields while no goroutine sends requests
	gen, owner   int        // generation of the group, and the owner of the shard in it
	epoch        int        // the valid producer epoch
	writes       int        // number of writes in the open transaction
	open         [2][]Record
	logs         [2][]Record // committed records
	transactions int
}

const (
	stateLog = iota
	ledgerLog
)

// ask is a request to the broker.
type ask struct {
	kind    string // confirm, fence, write, end, abort, read
	from    int
	number  int // generation or producer epoch
	turn    int // number of a write in its transaction, so that a copy of it has no effect
	log     int
	records []Record
}

// reply is the answer to a request.
type reply struct {
	err     error
	number  int
	records []Record
}

var (
	errFenced  = errors.New("fake: fenced")
	errNothing = errors.New("fake: no answer")
	errRefused = errors.New("fake: refused")
)

// do carries out a request.
func (b *broker) do(a ask) reply {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch a.kind {
	case "confirm":
		if a.number != b.gen || a.from != b.owner {
			return reply{err: ErrMoved}
		}
		return reply{}
	case "fence":
		b.epoch++
		b.abort()
		return reply{number: b.epoch}
	case "read":
		return reply{records: slices.Clone(b.logs[a.log])}
	}
	if a.number != b.epoch {
		return reply{err: errFenced}
	}
	switch a.kind {
	case "write":
		if a.turn > b.writes {
			b.writes++
			b.open[a.log] = append(b.open[a.log], a.records...)
		}
		return reply{}
	case "end":
		for i := range b.logs {
			b.logs[i] = append(b.logs[i], b.open[i]...)
		}
		b.transactions++
	}
	b.abort()
	b.epoch++
	return reply{number: b.epoch}
}

func (b *broker) abort() { b.open, b.writes = [2][]Record{}, 0 }

// fakeLog is a Log at a broker. Its requests pass through send.
type fakeLog struct {
	who    int
	gen    int
	send   func(ask) reply
	epoch  int
	failed bool // after an error: the log must not be used again
	misuse func(string)
	closed int
}

func (l *fakeLog) ask(a ask) reply {
	if l.failed || l.closed > 0 {
		l.misuse(a.kind + " after an error, or after Close")
	}
	a.from = l.who
	r := l.send(a)
	l.failed = r.err != nil && a.kind != "read"
	return r
}

func (l *fakeLog) Confirm(context.Context) error {
	return l.ask(ask{kind: "confirm", number: l.gen}).err
}

func (l *fakeLog) Fence(context.Context, time.Duration) error {
	r := l.ask(ask{kind: "fence"})
	l.epoch = r.number
	return r.err
}

func (l *fakeLog) Commit(_ context.Context, state, ledger []Record) error {
	turn := 0
	for i, records := range [][]Record{stateLog: state, ledgerLog: ledger} {
		if len(records) == 0 {
			continue
		}
		turn++
		if r := l.ask(ask{kind: "write", number: l.epoch, turn: turn, log: i, records: records}); r.err != nil {
			return r.err
		}
	}
	r := l.ask(ask{kind: "end", number: l.epoch})
	l.epoch = r.number
	return r.err
}

func (l *fakeLog) read(log int, each func(Record) error) error {
	r := l.ask(ask{kind: "read", log: log})
	for _, record := range r.records {
		if err := each(record); err != nil {
			return err
		}
	}
	return r.err
}

func (l *fakeLog) ReadState(_ context.Context, each func(Record) error) error {
	return l.read(stateLog, each)
}

func (l *fakeLog) ReadLedger(_ context.Context, each func(Record) error) error {
	return l.read(ledgerLog, each)
}

func (l *fakeLog) Close() { l.closed++ }

// direct returns a log without faults.
func (b *broker) direct(misuse func(string)) *fakeLog {
	return &fakeLog{gen: b.gen, who: b.owner, send: b.do, misuse: misuse}
}
