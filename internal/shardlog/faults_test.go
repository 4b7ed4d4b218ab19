package shardlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// model_test.go explores a model of the protocol; this file explores the functions Acquire and Update themselves. With
// two instances and within small bounds, it tries every order of their requests and a fault at every request.

// reach bounds the events in one run.
type reach struct {
	faults   int    // requests and answers that are lost, late, refused or duplicated, and old logs
	switches int    // switches to the other instance although the current one could continue
	moves    int    // number of times that the group gives the shard to the other instance
	updates  int    // number of updates by an instance in one holding
	tries    int    // number of acquisitions by an instance
	only     string // the kind of requests that have faults; empty: all
}

// run is one run of two instances. It is determined by its choices.
type run struct {
	t       *testing.T
	most    reach
	choices []int // the way taken at each decision; after the end, the first way
	options []int // the number of ways at each decision
	broken  string

	b       *broker
	late    []ask
	past    [2][]Record // old content that a replaced leader still returns
	waiting [2]chan ask // waiting requests of each instance
	answers [2]chan reply
	acked   []string // tokens, in the order of their acknowledgement
	lined   map[string]bool
	tokens  int
	met     map[string]bool // faults that occurred in any run
}

// choose returns the choice, from 0 to n−1, for the next decision of the run.
func (r *run) choose(n int) int {
	i := len(r.options)
	r.options = append(r.options, n)
	if i < len(r.choices) {
		return r.choices[i]
	}
	return 0
}

func (r *run) fail(format string, args ...any) {
	if r.broken == "" {
		r.broken = fmt.Sprintf(format, args...)
	}
}

// next returns the choices of the next run in the order of all runs, or nil after the last.
func (r *run) next() []int {
	c := append(slices.Clone(r.choices), make([]int, max(0, len(r.options)-len(r.choices)))...)
	for i := len(r.options) - 1; i >= 0; i-- {
		if c[i]+1 < r.options[i] {
			c[i]++
			return c[:i+1]
		}
	}
	return nil
}

var testMaster = [32]byte{1, 2, 3}

func testOptions() Options {
	return Options{Genesis: Genesis{Group: "g", Shards: 4, Shard: 3, Assign: "partition", Cluster: "c", Key: "k"},
		Master: &testMaster, Instance: "i"}
}

// line returns a ledger line for tests: its number, the hash of the line before, a token.
func line(before [][]byte, token string) []byte {
	var prev [32]byte
	if n := len(before); n > 0 {
		prev = sha256.Sum256(before[n-1])
	}
	return fmt.Appendf(nil, "%d %x %s", len(before)+1, prev, token)
}

// history checks the values and lines that a reader has read, and returns the tokens of all updates, in order. Each
// update appends its token to two values and, in some updates, to the ledger.
func (r *run) history(values map[string]Value, lines [][]byte) (string, string) {
	a, b := string(values["task/a"].Data), string(values["task/b"].Data)
	if a != b {
		r.fail("half of an update: %q and %q", a, b)
	}
	var inLedger []string
	for i, l := range lines {
		token := string(l[strings.LastIndexByte(string(l), ' ')+1:])
		if string(l) != string(line(lines[:i], token)) {
			r.fail("line %d does not follow the one before", i+1)
		}
		inLedger = append(inLedger, token)
	}
	var want []string
	for _, token := range strings.Fields(a) {
		if r.lined[token] {
			want = append(want, token)
		}
	}
	return a, strings.Join(inLedger, " ") + "|" + strings.Join(want, " ")
}

// instance is the behaviour of an instance: it acquires, and updates what it has read.
func (r *run) instance(who int) {
	defer close(r.waiting[who])
	for try := 0; try < r.most.tries; {
		log := &fakeLog{who: who, gen: r.b.gen, send: func(a ask) reply {
			r.waiting[who] <- a
			return <-r.answers[who]
		}, misuse: func(what string) { r.fail("%s", what) }}
		acked := len(r.acked)
		h, err := Acquire(context.Background(), log, testOptions())
		try++
		if err != nil {
			if halt := (*HaltError)(nil); errors.As(err, &halt) {
				r.fail("%v", err)
			}
			if log.closed != 1 {
				r.fail("the log was closed %d times", log.closed)
			}
			continue
		}
		lines := h.Lines()
		is, ledger := r.history(h.Values(), lines)
		for _, token := range r.acked[:acked] {
			if !strings.Contains(is+" ", token+" ") {
				r.fail("acquired without %s, which was acknowledged: %q", token, is)
			}
		}
		// The ledger is read after the state, so it may have a line of a later owner.
		if l, s, _ := strings.Cut(ledger, "|"); !strings.HasPrefix(l, s) {
			r.fail("acquired the ledger %s", ledger)
		}
		done := true
		for i := range r.most.updates {
			r.tokens++
			token := fmt.Sprintf("%c%d", 'A'+who, r.tokens)
			is += token + " "
			var more [][]byte
			if i == 0 {
				r.lined[token] = true
				more = append(more, line(lines, token))
				lines = append(lines, more...)
			}
			v := Value{Data: []byte(is)}
			if err := h.Update(context.Background(), map[string]Value{"task/a": v, "task/b": v}, nil,
				more); err != nil {
				if !errors.Is(err, ErrLost) {
					r.fail("%v", err)
				}
				// The loss is permanent: a later update returns the same error, and nothing is sent.
				if again := h.Update(context.Background(), map[string]Value{"task/a": v}, nil,
					nil); !errors.Is(again, ErrLost) {
					r.fail("after an error Update returned %v", again)
				}
				select {
				case <-h.Lost():
				default:
					r.fail("lost, and Lost is open")
				}
				done = false
				break
			}
			r.acked = append(r.acked, token)
		}
		h.Close()
		if log.closed != 1 {
			r.fail("the log was closed %d times", log.closed)
		}
		if done {
			return
		}
	}
}

// play performs one run, as determined by its choices.
func (r *run) play(begun [2][]Record) {
	r.b = &broker{gen: 1, owner: 0, epoch: 1, logs: [2][]Record{slices.Clone(begun[0]), slices.Clone(begun[1])}}
	r.past, r.lined = begun, map[string]bool{}
	var asks [2]*ask
	for i := range r.waiting {
		r.waiting[i], r.answers[i] = make(chan ask), make(chan reply)
	}
	receive := func(i int) {
		if a, ok := <-r.waiting[i]; ok {
			asks[i] = &a
		} else {
			asks[i] = nil
		}
	}
	started := false
	go r.instance(0)
	receive(0)
	left, at := r.most, 0
	for r.broken == "" {
		if asks[at] == nil {
			if at = 1 - at; asks[at] == nil {
				if started || left.moves == 0 {
					break
				}
				at = 0
			}
		}
		// These are the possible next events, in this order.
		var ways []func()
		give := func(i int, answer reply) {
			r.answers[i] <- answer
			receive(i)
		}
		if asks[at] != nil {
			i, a := at, *asks[at]
			ways = append(ways, func() { give(i, r.b.do(a)) })
			fault := func(what string, f func()) {
				if left.faults > 0 && (left.only == "" || left.only == a.kind) {
					ways = append(ways, func() { left.faults--; r.met[a.kind+" "+what] = true; f() })
				}
			}
			nothing := reply{err: errNothing}
			if a.kind == "read" {
				fault([]string{"an old state", "an old ledger"}[a.log],
					func() { give(i, reply{records: r.past[a.log]}) })
			} else {
				fault("lost", func() { give(i, nothing) })
				fault("not answered", func() { r.b.do(a); give(i, nothing) })
			}
			switch a.kind {
			case "write":
				fault("refused", func() { give(i, reply{err: errRefused}) })
				fallthrough
			case "fence", "end":
				fault("late", func() { r.late = append(r.late, a); give(i, nothing) })
				fault("twice", func() { r.late = append(r.late, a); give(i, r.b.do(a)) })
			}
			if asks[1-at] != nil && left.switches > 0 {
				ways = append(ways, func() { left.switches--; at = 1 - at })
			}
		}
		if left.moves > 0 {
			ways = append(ways, func() {
				left.moves--
				r.b.gen, r.b.owner = r.b.gen+1, 1-r.b.owner
				r.past = [2][]Record{slices.Clone(r.b.logs[0]), slices.Clone(r.b.logs[1])}
				if !started {
					started = true
					go r.instance(1)
					receive(1)
				}
				at = r.b.owner
			})
		}
		for k, a := range r.late {
			ways = append(ways, func() {
				r.late = slices.Delete(slices.Clone(r.late), k, k+1)
				r.b.do(a)
			})
		}
		ways[r.choose(len(ways))]()
	}
	for i := range asks { // let both instances end
		for asks[i] != nil {
			r.answers[i] <- reply{err: errNothing}
			receive(i)
		}
	}
	if r.broken != "" {
		return
	}
	r.b.abort()
	v, err := Read(context.Background(), r.b.direct(nil), testOptions())
	if err != nil {
		r.fail("at the end: %v", err)
		return
	}
	is, ledger := r.history(v.Values, v.Lines)
	if l, s, _ := strings.Cut(ledger, "|"); l != s {
		r.fail("half of an update: the ledger is %s", ledger)
	}
	tokens, at := strings.Fields(is), 0
	for _, token := range r.acked {
		i := slices.Index(tokens[at:], token)
		if i < 0 {
			r.fail("%s was acknowledged, and the end is %q", token, is)
			return
		}
		at += i + 1
	}
}

// TestFaults: after any fault of a request, no acknowledged update is lost, no update is visible in part, and the
// ledger is one chain. A replaced owner is never told that its update is committed if the next owner has not read it.
func TestFaults(t *testing.T) {
	all := []reach{{faults: 1, updates: 2, tries: 2},
		{faults: 1, switches: 1, moves: 1, updates: 1, tries: 1, only: "end"},
		{faults: 1, moves: 1, updates: 1, tries: 2}, {switches: 2, moves: 1, updates: 2, tries: 2}}
	if os.Getenv("STREAMDP_SLOW") != "" {
		all = []reach{{faults: 1, switches: 1, moves: 1, updates: 1, tries: 2}, {faults: 2, updates: 2, tries: 2},
			{switches: 3, moves: 2, updates: 2, tries: 2}}
	}
	if os.Getenv("STREAMDP_NIGHT") != "" { // millions of runs
		all = []reach{{faults: 2, switches: 1, moves: 1, updates: 1, tries: 2},
			{faults: 1, switches: 2, moves: 2, updates: 1, tries: 2}}
	}
	met := map[string]bool{}
	for _, most := range all {
		synctest.Test(t, func(t *testing.T) {
			b := &broker{gen: 1, epoch: 1}
			if _, err := Create(t.Context(), b.direct(func(what string) { t.Error(what) }), testOptions()); err != nil {
				t.Fatal(err)
			}
			runs := 0
			for choices := []int{}; choices != nil; runs++ {
				r := &run{t: t, most: most, choices: choices, met: met}
				r.play(b.logs)
				if r.broken != "" {
					t.Fatalf("%+v, %v: %s", most, choices, r.broken)
				}
				choices = r.next()
			}
			t.Logf("%+v: %d runs", most, runs)
		})
	}
	const every = "confirm lost, confirm not answered, end late, end lost, end not answered, end twice, " +
		"fence late, fence lost, fence not answered, fence twice, read an old ledger, read an old state, " +
		"write late, write lost, write not answered, write refused, write twice"
	if got := strings.Join(sortedKeys(met), ", "); got != every {
		t.Errorf("faults that were met: %s", got)
	}
}
