package kafka

import (
	"context"
	"sync"
)

// Memory limits the memory of the readers that share it: answers of brokers, and chunks of records. Half of the memory
// is divided into equal shares, one for each reader. The other half is lent to readers that need more, at most a
// quarter of the remainder at a time. A reader that can borrow nothing works within its share, and waits only for its
// own chunks to be released. So no reader waits for another: if nobody consumes a reader's chunks, it keeps its share
// and the memory that it borrowed, and the others continue.
//
// A batch that no limit can split, and a record larger than a share, are accepted nevertheless. The reader then holds
// more than its share. The excess counts as borrowed, as far as there is memory to lend.
//
// Readers that were expected (see Expect) have their shares from the beginning. When another reader is added, the
// shares of the others become smaller. Memory that a reader then holds beyond its smaller share counts as borrowed from
// the next time it takes or gives back memory. While all readers together hold the whole Memory, a reader that holds
// nothing still gets one part of its share, but no more. So the limit can be exceeded by one such part for each reader
// that was added while the others held everything, until they give memory back.
type Memory struct{ answers, chunks pool }

// A task's share of memory is divided into answersOfShare parts for answers and chunksOfShare parts for chunks, so that
// the next answer can be read while one is decoded. leastAnswer and leastChunk are the minimum sizes of a part.
const (
	answersOfShare = 2
	chunksOfShare  = 4
	leastAnswer    = 8 << 10
	leastChunk     = 16 << 10
)

// MinShare is the size of a share if a reader's part of the Memory would be smaller.
const MinShare = answersOfShare*leastAnswer + chunksOfShare*leastChunk

// NewMemory returns memory of this number of bytes: a quarter for answers, the rest for chunks.
func NewMemory(bytes int) *Memory {
	return &Memory{
		answers: pool{half: bytes / 8, least: answersOfShare * leastAnswer, parts: answersOfShare},
		chunks:  pool{half: bytes / 8 * 3, least: chunksOfShare * leastChunk, parts: chunksOfShare},
	}
}

// Expect reserves the shares of n more readers that will be added. If n is negative, −n fewer readers are expected, and
// the other shares grow.
func (m *Memory) Expect(n int) {
	if m == nil {
		return
	}
	for _, p := range []*pool{&m.answers, &m.chunks} {
		p.mu.Lock()
		p.expected += n
		p.mu.Unlock()
	}
}

// Held returns the number of bytes that all readers hold.
func (m *Memory) Held() int { return m.answers.sum() + m.chunks.sum() }

func (m *Memory) share() (answers, chunks *share) {
	if m == nil {
		return nil, nil
	}
	return m.answers.share(), m.chunks.share()
}

// pool is the memory for answers or for chunks.
type pool struct {
	half, least, parts int

	mu       sync.Mutex
	expected int // number of shares, including those of expected readers
	shares   int
	lent     int
	held     int
}

func (p *pool) share() *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares++
	return &share{p: p, freed: make(chan struct{}, 1)}
}

// divided returns the number of shares into which half of the pool is divided.
func (p *pool) divided() int { return max(p.shares, p.expected, 1) }

// own returns the size of a share.
func (p *pool) own() int { return max(p.half/p.divided(), p.least) }

// bound returns the most that all shares together may hold.
func (p *pool) bound() int { return p.divided()*p.own() + p.half }

func (p *pool) sum() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// share is the part of a pool that one reader may use. nil: unbounded.
type share struct {
	p      *pool
	held   int
	lent   int // the part of held that is borrowed
	closed bool
	freed  chan struct{} // signals that something was given back
}

// part returns the amount that a reader surely gets if it holds nothing.
func (s *share) part() int {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.own() / s.p.parts
}

// take takes memory and returns the amount. The amount is at most want, and at least one part or, if want is smaller,
// want. If there is less memory than that, take takes nothing and returns 0.
func (s *share) take(want int) int {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.closed {
		return want
	}
	own := s.p.own()
	part := min(want, own/s.p.parts)
	got := min(part, max(own-s.held, 0))
	got += min(want-got, max((s.p.half-s.p.lent)/4, 0))
	left := s.p.bound() - s.p.held
	if s.held == 0 {
		left = max(left, part)
	}
	if got = min(got, left); got < part {
		return 0
	}
	s.change(got)
	return got
}

// wait calls take until it succeeds, waiting for the reader to give memory back.
func (s *share) wait(ctx context.Context, want int) (int, error) {
	for {
		if got := s.take(want); got > 0 || want == 0 {
			return got, nil
		}
		select {
		case <-s.freed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// add adds n bytes, which may be negative, to the memory that the reader holds, even if this exceeds its limits.
func (s *share) add(n int) {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.closed {
		return
	}
	s.change(n)
	if n < 0 {
		select {
		case s.freed <- struct{}{}:
		default:
		}
	}
}

func (s *share) change(n int) {
	s.held += n
	s.p.held += n
	lent := max(s.held-s.p.own(), 0)
	s.p.lent += lent - s.lent
	s.lent = lent
}

// close gives everything back. Later calls have no effect.
func (s *share) close() {
	if s == nil {
		return
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if !s.closed {
		s.p.held -= s.held
		s.p.lent -= s.lent
		s.p.shares--
		s.closed = true
	}
}
