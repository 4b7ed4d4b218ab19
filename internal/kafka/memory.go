package kafka

import (
	"context"
	"sync"
)

// Memory bounds what the readers that share it hold: answers of brokers, and chunks of
// records. Each reader has a share. Half of the memory is divided among the shares; the other
// half is lent to whoever wants it, a quarter of what is left at a time. A reader that can
// borrow nothing works in its share alone, and waits for its own chunks only. So no reader
// waits for another one: one whose chunks nobody takes keeps its share and what it has
// borrowed, and the others go on.
//
// A batch that no limit can split, and a record that is larger than a share, come all the
// same. The reader then holds more than its share, which it borrows as far as there is some.
//
// Readers that were expected have their shares from the beginning. When another one is added
// the shares of the others become smaller, and what they hold beyond that counts as borrowed when
// they next take or give back something. While all together hold the bound, a reader gets a part
// of its share when it holds nothing, and nothing else. So the bound is exceeded by one such part
// for each reader that was added while the others held everything, until these give back.
type Memory struct{ answers, chunks pool }

// The parts of a share that one answer and one chunk may take of it, so that the next is read
// while one is decoded, and the least that a share is divided from.
const (
	answersOfShare = 2
	chunksOfShare  = 4
	leastAnswer    = 8 << 10
	leastChunk     = 16 << 10
)

// MinShare is what a reader has in any case, if its share of the Memory were less.
const MinShare = answersOfShare*leastAnswer + chunksOfShare*leastChunk

// NewMemory returns memory of so many bytes: a quarter for answers, the rest for chunks.
func NewMemory(bytes int) *Memory {
	return &Memory{
		answers: pool{half: bytes / 8, least: answersOfShare * leastAnswer, parts: answersOfShare},
		chunks:  pool{half: bytes / 8 * 3, least: chunksOfShare * leastChunk, parts: chunksOfShare},
	}
}

// Expect sets aside the shares of n more readers that will be added. If n is negative so many
// are expected no longer, and the others have their shares.
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

// Held returns how much all readers hold.
func (m *Memory) Held() int { return m.answers.sum() + m.chunks.sum() }

func (m *Memory) share() (answers, chunks *share) {
	if m == nil {
		return nil, nil
	}
	return m.answers.share(), m.chunks.share()
}

// pool is memory for things of one kind.
type pool struct {
	half, least, parts int

	mu       sync.Mutex
	expected int // shares that there will be
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

// divided is the number of shares that half of the pool is divided into.
func (p *pool) divided() int { return max(p.shares, p.expected, 1) }

// own is the size of a share.
func (p *pool) own() int { return max(p.half/p.divided(), p.least) }

// bound is what all together may hold.
func (p *pool) bound() int { return p.divided()*p.own() + p.half }

func (p *pool) sum() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// share is what one reader has of a pool. nil: there is no bound.
type share struct {
	p      *pool
	held   int
	lent   int // of that
	closed bool
	freed  chan struct{} // something was given back
}

// part is what a reader can be sure to get when it holds nothing.
func (s *share) part() int {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	return s.p.own() / s.p.parts
}

// take takes as much as it gets: at most want, and at least the lesser of want and a part.
// 0: there is not so much.
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

// wait is take that waits until the reader has given enough back.
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

// add takes n bytes, which may be negative, whether there are so many or not.
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

// close gives everything back. What is given back later does not count.
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
