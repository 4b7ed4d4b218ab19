package shardlog

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// This file explores a model of instances that share a shard. Within small bounds, it tries every order of their
// requests, of the broker's actions and of failures. It searches for a state that violates privacy or loses data.
// docs/theory/cluster.md describes the protocol in words.
//
// A model has no time and no numbers: an epoch's secret is a small integer, and a release is an epoch, a step and the
// secret from which its noise was drawn. It assumes this about the broker:
//    - One transactional id has one valid producer epoch. InitProducerID takes the next one and
//      aborts what the former holder left open.
//    - The records of a transaction become readable together, in all partitions.
//    - The end of a transaction takes the next producer epoch (Kafka 4.0), so a late copy of a
//      request has no effect.
//    - A read of committed records returns a prefix of the log, possibly an old one.

const (
	instances = 2
	maxEpochs = 2
	maxSteps  = 2
	maxFlight = 7 // requests in flight at a time
)

// bounds is the maximum number of events of each kind.
type bounds struct {
	epochs, steps uint8
	generations   uint8 // assignments of the shard by the group
	crashes       uint8
	faults        uint8 // requests and answers that are lost, late, refused or duplicated, and old reads
}

// without disables parts of the protocol. The zero value is the complete protocol.
type without struct {
	transaction bool // an opening's records are written without a transaction
	waiting     bool // noise is drawn before the opening is known to be committed
	commitFirst bool // a release leaves before its step is committed
	doubt       bool // a write with an unknown outcome is treated as failed
	ownRecord   bool // a new owner does not wait for its own record
	fence       bool // the former owner is not fenced
	fenceFirst  bool // the former owner is fenced after its state was read
	head        bool // the length of the ledger is not compared with the state
	epochs      bool // the end of a transaction keeps the producer epoch (before Kafka 4.0)
	abort       bool // a transaction is committed although one of its records failed
	outbox      bool // the next owner does not publish the last committed releases again
}

// place is the point of the protocol at which an instance is; each says what the instance waits for.
type place uint8

const (
	idle     place = iota
	asking         // OffsetCommit in the generation that gave it the shard
	fencing        // InitProducerID
	owning         // the owner's record
	owned          // the commit of the owner's record
	reading        // nothing: state and ledger can be read
	ready          // nothing: the shard is owned
	charging       // an opening: its ledger line
	sealing        // an opening: secret, manifest and first checkpoint
	opening        // an opening: its commit
	saving         // a step: its checkpoint
	closing        // a step: its commit
	sending        // a release
)

// record is the content of a request to write; unused fields are 0.
type record struct {
	owner         uint8 // number of the acquisition
	line          uint8 // ledger: number of the line in the chain
	epoch, secret uint8 // state: the epoch that is open; its secret
	step          uint8 // state: its last step, counted from 1
}

// topics is the content of the committed records.
type topics struct {
	owner               uint8
	epoch, secret, step uint8
	head                uint8 // number of ledger lines according to the state
	lines               uint8 // number of ledger lines
}

// verb is the kind of a request.
type verb uint8

const (
	nothing verb = iota
	askGroup
	askFence
	write
	plainWrite
	end
	send
)

// request is a request in flight.
type request struct {
	verb   verb
	from   uint8
	waited bool  // whether an instance waits for the answer
	number uint8 // generation of the group, or producer epoch
	place  uint8 // number of a write in its transaction, so that a copy of it has no effect
	rec    record
}

// instance is a process. After a kill, it is a new process.
type instance struct {
	at       place
	gen      uint8 // generation of the group
	producer uint8 // producer epoch
	nonce    uint8 // number of its acquisition
	knows    topics
	secret   uint8 // secret of the opening in progress
}

// state is the state of the whole model. States are compared, so irrelevant fields are zero.
type state struct {
	in     [instances]instance
	flight [maxFlight]request

	gen, owner uint8 // the group's generation; the owner of the shard in it

	producer uint8  // valid producer epoch
	writes   uint8  // number of writes in the open transaction
	pending  record // records in the open transaction
	now      topics
	past     topics // old content that a replaced leader of the partitions still returns
	replaced bool   // whether there is a replaced leader

	charged   [maxEpochs + 1]uint8               // by epoch: secret of the committed opening
	saved     [maxEpochs + 1][maxSteps + 1]uint8 // by epoch and step: secret of the committed step
	published [maxEpochs + 1][maxSteps + 1]uint8

	nonces, secrets uint8 // numbers used so far
	crashes, faults uint8
}

// explorer visits all reachable states.
type explorer struct {
	most   bounds
	left   without
	seen   map[state]struct{}
	queue  []state
	broken string
}

// fail records the first violation.
func (x *explorer) fail(format string, args ...any) {
	if x.broken == "" {
		x.broken = fmt.Sprintf(format, args...)
	}
}

// visit keeps a state for later, unless it was already seen.
func (x *explorer) visit(s state) {
	x.tidy(&s)
	if _, ok := x.seen[s]; !ok {
		x.seen[s] = struct{}{}
		x.queue = append(x.queue, s)
	}
}

// tidy makes states equal if they differ only in irrelevant details: it removes requests and values that can have no
// more effect, and renumbers values that are only compared.
func (x *explorer) tidy(s *state) {
	// Old producer epochs never become valid again, so 1 stands for the valid one and 0 for any other.
	valid := s.producer
	s.producer = 1
	for i := range s.in {
		s.in[i].producer = is(s.in[i].producer == valid)
	}
	kept := s.flight[:0:0]
	for _, r := range s.flight {
		if r.verb == write || r.verb == end {
			r.number = is(r.number == valid)
		}
		idle := r.verb == askGroup || (r.verb == write || r.verb == end) && r.number == 0
		if r.verb != nothing && (r.waited || !idle) {
			kept = append(kept, r)
		}
	}
	slices.SortFunc(kept, func(a, b request) int { return cmp.Compare(a.order(), b.order()) })
	s.flight = [maxFlight]request{}
	copy(s.flight[:], kept)

	owners, secrets := numbers{}, numbers{}
	owners.see(&s.now.owner)
	owners.see(&s.past.owner)
	owners.see(&s.pending.owner)
	secrets.see(&s.now.secret)
	secrets.see(&s.past.secret)
	secrets.see(&s.pending.secret)
	for e := range s.charged {
		secrets.see(&s.charged[e])
		for t := range s.saved[e] {
			secrets.see(&s.saved[e][t])
			secrets.see(&s.published[e][t])
		}
	}
	for i := range s.in {
		owners.see(&s.in[i].nonce)
		secrets.see(&s.in[i].secret)
		secrets.see(&s.in[i].knows.secret)
	}
	for k := range s.flight {
		owners.see(&s.flight[k].rec.owner)
		secrets.see(&s.flight[k].rec.secret)
	}
	s.nonces, s.secrets = owners.n, secrets.n
}

func is(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// numbers renumbers values in the order of their first use; 0 stays 0.
type numbers struct {
	of [32]uint8
	n  uint8
}

func (n *numbers) see(v *uint8) {
	if *v == 0 {
		return
	}
	if n.of[*v] == 0 {
		n.n++
		n.of[*v] = n.n
	}
	*v = n.of[*v]
}

// order is any total order of requests.
func (r request) order() uint64 {
	var o uint64
	for _, v := range []uint8{
		uint8(r.verb), r.from, is(r.waited), r.number, r.place, r.rec.owner, r.rec.line, r.rec.epoch, r.rec.secret,
		r.rec.step,
	} {
		o = o<<6 | uint64(v)
	}
	return o
}

// explore returns the violation in the first state found that harms somebody, "" if there is none, and the number of
// states.
func explore(b bounds, w without) (string, int) {
	x := &explorer{most: b, left: w, seen: map[state]struct{}{}}
	x.visit(state{gen: 1, owner: 0})
	for len(x.queue) > 0 && x.broken == "" {
		s := x.queue[len(x.queue)-1]
		x.queue = x.queue[:len(x.queue)-1]
		if !x.proceed(s) && !x.complete(s) {
			x.fail("nothing can happen, and steps are missing: %+v", s)
		}
		x.disturb(s)
	}
	return x.broken, len(x.seen)
}

// complete reports whether all releases are published.
func (x *explorer) complete(s state) bool {
	for e := uint8(1); e <= x.most.epochs; e++ {
		for t := uint8(1); t <= x.most.steps; t++ {
			if s.published[e][t] == 0 {
				return false
			}
		}
	}
	return true
}

// ask sends a request for which instance i waits at place p. There is always room: an instance waits for one request,
// and each request left behind needs a fault or a crash.
func (s *state) ask(i int, p place, r request) {
	s.in[i].at, r.from, r.waited = p, uint8(i), true
	for k := range s.flight {
		if s.flight[k].verb == nothing {
			s.flight[k] = r
			return
		}
	}
	panic("no room for a request")
}

// give ends the holding of instance i, which may acquire again.
func (s *state) give(i int) { s.in[i] = instance{} }

// proceed visits the states after each event that is not a failure, and reports whether there is any.
func (x *explorer) proceed(s state) bool {
	any := false
	then := func(s state) { any = true; x.visit(s) }
	for i := range s.in {
		next := s
		if x.act(&next, i) {
			then(next)
		}
		if in := s.in[i]; in.at == ready && in.gen != s.gen { // revoked, and the instance knows it
			next := s
			next.give(i)
			then(next)
		}
	}
	for k, r := range s.flight {
		if r.verb == nothing {
			continue
		}
		next := s
		next.flight[k] = request{}
		ok, value := x.broker(&next, r)
		if r.waited {
			x.answer(&next, int(r.from), ok, value)
		}
		then(next)
	}
	return any
}

// disturb visits the states after each failure.
func (x *explorer) disturb(s state) {
	if s.gen < x.most.generations {
		for o := range uint8(instances) {
			next := s
			next.gen, next.owner = s.gen+1, o
			x.visit(next)
		}
	}
	if s.crashes < x.most.crashes {
		for i := range s.in {
			if s.in[i].at == idle {
				continue
			}
			next := s
			next.crashes++
			next.forsake(i)
			next.give(i)
			x.visit(next)
		}
	}
	for k, r := range s.flight {
		if r.verb != nothing && !r.waited { // the answer is lost, but nobody waits for it
			next := s
			next.flight[k] = request{}
			x.visit(next)
		}
	}
	for i := range s.in {
		if s.in[i].at == reading && s.replaced {
			old := s
			x.read(&old, i, s.past, s.now.lines)
			x.visit(old)
			old = s
			x.read(&old, i, s.now, s.past.lines)
			x.visit(old)
		}
	}
	if s.faults == x.most.faults {
		return
	}
	if !s.replaced {
		next := s
		next.faults++
		next.replaced, next.past = true, s.now
		x.visit(next)
	}
	for k, r := range s.flight {
		if r.verb == nothing || !r.waited {
			continue
		}
		i := int(r.from)
		lost := s
		lost.faults++
		lost.flight[k] = request{}
		x.unknown(&lost, i)
		x.visit(lost)

		late := s
		late.faults++
		late.flight[k].waited = false
		x.unknown(&late, i)
		x.visit(late)

		silent := s
		silent.faults++
		silent.flight[k] = request{}
		x.broker(&silent, r)
		x.unknown(&silent, i)
		x.visit(silent)

		twice := s
		twice.faults++
		twice.flight[k].waited = false
		ok, value := x.broker(&twice, r)
		x.answer(&twice, i, ok, value)
		x.visit(twice)

		if r.verb == write { // the write is refused: it is too large, a quota is exceeded, or the broker has no space
			refused := s
			refused.faults++
			refused.flight[k] = request{}
			if x.left.abort {
				x.answer(&refused, i, true, 0)
			} else {
				x.unknown(&refused, i)
			}
			x.visit(refused)
		}
	}
}

// forsake marks the requests of instance i as requests for whose answers nobody waits.
func (s *state) forsake(i int) {
	for k := range s.flight {
		if int(s.flight[k].from) == i {
			s.flight[k].waited = false
		}
	}
}

// broker carries out a request.
func (x *explorer) broker(s *state, r request) (ok bool, value uint8) {
	switch r.verb {
	case askGroup:
		return r.number == s.gen && r.from == s.owner, 0
	case askFence:
		if !x.left.fence {
			s.producer++
			s.pending, s.writes = record{}, 0
		}
		return true, s.producer
	case plainWrite:
		s.pending = record{}
		x.commit(s, r.rec)
		return true, 0
	case write:
		if r.number != s.producer {
			return false, 0
		}
		if r.place <= s.writes {
			return true, 0
		}
		s.writes++
		p := &s.pending
		if r.rec.line != 0 && p.line != 0 {
			x.fail("a transaction with two openings")
		}
		p.owner, p.line = max(p.owner, r.rec.owner), max(p.line, r.rec.line)
		if r.rec.epoch != 0 {
			p.epoch, p.secret, p.step = r.rec.epoch, r.rec.secret, r.rec.step
		}
		return true, 0
	case end:
		if r.number != s.producer {
			return false, 0
		}
		rec := s.pending
		s.pending, s.writes = record{}, 0
		x.commit(s, rec)
		if !x.left.epochs {
			s.producer++
		}
		return true, s.producer
	case send:
		e, t := r.rec.epoch, r.rec.step
		if s.saved[e][t] != r.rec.secret {
			x.fail("epoch %d, step %d was published before it was committed", e, t)
		}
		if was := s.published[e][t]; was != 0 && was != r.rec.secret {
			x.fail("epoch %d, step %d was published with two noises", e, t)
		}
		s.published[e][t] = r.rec.secret
		return true, 0
	}
	panic("no such request")
}

// commit makes records readable.
func (x *explorer) commit(s *state, r record) {
	opens := r.epoch != 0 && r.step == 0
	if opens != (r.line != 0) && !x.left.transaction {
		x.fail("half of an opening was committed")
	}
	if r.owner != 0 {
		s.now.owner = r.owner
	}
	if r.line != 0 {
		if r.line != s.now.lines+1 {
			x.fail("the ledger's chain has two lines at place %d", r.line)
		}
		s.now.lines = r.line
	}
	switch {
	case opens:
		s.now.head = r.epoch
		s.charged[r.epoch] = r.secret
	case r.epoch != 0:
		if s.now.epoch != r.epoch || s.now.secret != r.secret || s.now.step+1 != r.step {
			x.fail("epoch %d, step %d was committed twice, or follows another one", r.epoch, r.step)
		}
		s.saved[r.epoch][r.step] = r.secret
	default:
		return
	}
	s.now.epoch, s.now.secret, s.now.step = r.epoch, r.secret, r.step
}

// draw draws the noise of a release.
func (x *explorer) draw(s *state, epoch, secret uint8) {
	if s.charged[epoch] != secret {
		x.fail("the noise of epoch %d was drawn before its charge", epoch)
	}
}

// act carries out the next step of instance i that needs no answer. It returns false if there is no such step.
func (x *explorer) act(s *state, i int) bool {
	in := &s.in[i]
	switch in.at {
	case idle:
		if s.owner != uint8(i) || x.complete(*s) {
			return false
		}
		in.gen = s.gen
		s.ask(i, asking, request{verb: askGroup, number: in.gen})
	case reading:
		x.read(s, i, s.now, s.now.lines)
	case ready:
		k := in.knows
		switch {
		case k.epoch != 0 && k.step < x.most.steps:
			x.draw(s, k.epoch, k.secret)
			rec := record{epoch: k.epoch, secret: k.secret, step: k.step + 1}
			if x.left.commitFirst {
				s.ask(i, saving, request{verb: send, rec: rec})
				s.forsake(i)
			}
			s.ask(i, saving, request{verb: write, number: in.producer, place: 1, rec: rec})
		case k.epoch < x.most.epochs:
			s.secrets++
			in.secret = s.secrets
			s.ask(i, charging, request{verb: x.writes(), number: in.producer, place: 1, rec: record{line: k.lines + 1}})
		default:
			return false
		}
	default:
		return false
	}
	return true
}

func (x *explorer) writes() verb {
	if x.left.transaction {
		return plainWrite
	}
	return write
}

// read continues instance i after it has read the state and the ledger.
func (x *explorer) read(s *state, i int, seen topics, lines uint8) {
	in := &s.in[i]
	seen.lines = lines
	if seen.owner != in.nonce && !x.left.ownRecord && !x.left.fenceFirst {
		if s.now.owner != in.nonce {
			s.give(i) // there is a new owner
		}
		return // read again
	}
	if seen.lines < seen.head && !x.left.head {
		return // read again
	}
	in.knows = seen
	in.knows.owner = 0
	if x.left.fenceFirst {
		s.ask(i, fencing, request{verb: askFence})
		return
	}
	x.begin(s, i)
}

// begin publishes the releases that the former owner may not have published.
func (x *explorer) begin(s *state, i int) {
	if k := s.in[i].knows; k.step > 0 && !x.left.outbox {
		s.ask(i, sending, request{verb: send, rec: record{epoch: k.epoch, secret: k.secret, step: k.step}})
		return
	}
	s.in[i].at = ready
}

// unknown continues instance i when the outcome of its request is unknown.
func (x *explorer) unknown(s *state, i int) {
	if at := s.in[i].at; x.left.doubt && at >= charging && at <= opening {
		s.in[i].at, s.in[i].secret = ready, 0
		return
	}
	s.give(i)
}

// answer continues instance i with the answer to a request. If ok is false, another instance has the shard, or had it
// meanwhile.
func (x *explorer) answer(s *state, i int, ok bool, value uint8) {
	if !ok {
		s.give(i)
		return
	}
	in := &s.in[i]
	switch in.at {
	case asking:
		if x.left.fenceFirst {
			in.at = reading
			return
		}
		s.ask(i, fencing, request{verb: askFence})
	case fencing:
		in.producer = value
		s.nonces++
		in.nonce = s.nonces
		s.ask(i, owning, request{verb: write, number: in.producer, place: 1, rec: record{owner: in.nonce}})
	case owning:
		s.ask(i, owned, request{verb: end, number: in.producer})
	case owned:
		in.producer = value
		if x.left.fenceFirst {
			x.begin(s, i)
			return
		}
		in.at = reading
	case charging:
		if x.left.waiting {
			x.draw(s, in.knows.epoch+1, in.secret)
		}
		s.ask(i, sealing,
			request{verb: x.writes(), number: in.producer, place: 2,
				rec: record{epoch: in.knows.epoch + 1, secret: in.secret}})
	case sealing:
		if x.left.transaction {
			in.at = opening
			x.answer(s, i, true, in.producer)
			return
		}
		s.ask(i, opening, request{verb: end, number: in.producer})
	case opening:
		in.producer = value
		in.knows = topics{epoch: in.knows.epoch + 1, secret: in.secret, head: in.knows.lines + 1,
			lines: in.knows.lines + 1}
		in.secret, in.at = 0, ready
	case saving:
		s.ask(i, closing, request{verb: end, number: in.producer})
	case closing:
		in.producer = value
		in.knows.step++
		x.begin(s, i)
	case sending:
		in.at = ready
	}
}

// TestModel: in every order of events, no release is published with two different noises, no noise is drawn and nothing
// is published before its prerequisites are committed, the ledger is one chain, and every release is published in the
// end.
func TestModel(t *testing.T) {
	t.Parallel()
	all := []bounds{{2, 1, 2, 1, 1}, {1, 2, 2, 1, 1}}
	if os.Getenv("STREAMDP_SLOW") != "" {
		all = []bounds{{2, 2, 3, 1, 1}, {2, 1, 3, 1, 2}, {1, 2, 2, 2, 2}}
	}
	for _, b := range all {
		broken, states := explore(b, without{})
		if broken != "" {
			t.Errorf("%+v: %s", b, broken)
		}
		t.Logf("%+v: %d states", b, states)
	}
}

// TestModelMutants: each part of the protocol is necessary.
func TestModelMutants(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		left without
		want string
	}{
		{without{transaction: true}, "two lines"},
		{without{waiting: true}, "before its charge"},
		{without{commitFirst: true}, "before it was committed"},
		{without{doubt: true}, "before its charge"},
		{without{ownRecord: true}, "two noises"},
		{without{fence: true}, "half of an opening"},
		{without{fenceFirst: true}, "two noises"},
		{without{head: true}, "two lines"},
		{without{epochs: true}, "half of an opening"},
		{without{abort: true}, "half of an opening"},
		{without{outbox: true}, "steps are missing"},
	} {
		if broken, _ := explore(bounds{2, 1, 2, 1, 1}, test.left); !strings.Contains(broken, test.want) {
			t.Errorf("%+v: %q, want %q", test.left, broken, test.want)
		}
	}
}
