package shardlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// begun returns a broker with a shard that has its genesis.
func begun(t testing.TB) *broker {
	t.Helper()
	b := &broker{gen: 1, epoch: 1}
	if _, err := Create(t.Context(), b.direct(func(what string) { t.Error(what) }), testOptions()); err != nil {
		t.Fatal(err)
	}
	return b
}

func acquire(t testing.TB, b *broker, o Options) (*Holding, error) {
	t.Helper()
	log := b.direct(func(what string) { t.Error(what) })
	h, err := Acquire(t.Context(), log, o)
	if err != nil && log.closed != 1 {
		t.Errorf("the log was closed %d times", log.closed)
	}
	if err == nil {
		t.Cleanup(h.Close)
	}
	return h, err
}

func mustAcquire(t testing.TB, b *broker) *Holding {
	t.Helper()
	h, err := acquire(t, b, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustUpdate(t testing.TB, h *Holding, put map[string]Value, remove []string, lines ...string) {
	t.Helper()
	var all [][]byte
	for _, l := range lines {
		all = append(all, []byte(l))
	}
	if err := h.Update(t.Context(), put, remove, all); err != nil {
		t.Fatal(err)
	}
}

func wantHalt(t testing.TB, err error, want Halt) {
	t.Helper()
	halt := (*HaltError)(nil)
	if !errors.As(err, &halt) || halt.Halt != want {
		t.Errorf("got %v, want a halt for %s", err, want)
	}
}

// bytesOf returns n bytes in which no chunk repeats.
func bytesOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>16) ^ byte(i>>8) ^ byte(i)
	}
	return b
}

// TestValues: the next owner reads the values that the previous owner put, whatever length a value had before.
func TestValues(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	want := map[string]Value{}
	if v := h.Values(); v == nil || len(v) > 0 {
		t.Fatalf("a new shard has %v", v)
	}
	for round, n := range []int{0, chunkBytes, chunkBytes + 1, 2*chunkBytes + 7, chunkBytes + 1, 5, 0, 3 * chunkBytes} {
		put := map[string]Value{"task/0/x": {Data: bytesOf(n)}, fmt.Sprintf("y:%d", round): {Data: []byte{byte(round)}}}
		mustUpdate(t, h, put, nil)
		maps.Copy(want, put)
		for _, r := range b.logs[stateLog] {
			if len(r.Value) > chunkBytes+200 {
				t.Fatalf("a record of %d bytes", len(r.Value))
			}
		}
		h = mustAcquire(t, b)
		got := h.Values()
		if !maps.EqualFunc(got, want,
			func(a, b Value) bool { return bytes.Equal(a.Data, b.Data) && a.Under == b.Under }) {
			t.Fatalf("round %d: %v", round, sortedKeys(got))
		}
		if h.Values() != nil {
			t.Error("values were given away twice")
		}
	}
	mustUpdate(t, h, nil, []string{"task/0/x", "nothing", "y:0", "y:0"})
	delete(want, "task/0/x")
	delete(want, "y:0")
	if got := sortedKeys(mustAcquire(t, b).Values()); !slices.Equal(got, sortedKeys(want)) {
		t.Errorf("after a removal: %v", got)
	}
}

// compacted keeps the last record of each key, like the broker's cleaner, and drops removals.
func compacted(records []Record) []Record {
	last := map[string]int{}
	for i, r := range records {
		last[string(r.Key)] = i
	}
	var kept []Record
	for i, r := range records {
		if last[string(r.Key)] == i && r.Value != nil {
			kept = append(kept, r)
		}
	}
	return kept
}

// TestCompaction: a compacted state has the same content.
func TestCompaction(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	mustUpdate(t, h, map[string]Value{"a": {Data: bytesOf(2*chunkBytes + 1)}, "b": {Data: []byte("1")}}, nil, "first")
	mustUpdate(t, h, map[string]Value{"a": {Data: []byte("short")}, "c": {Data: []byte("2")}}, []string{"b"},
		"second", "third")
	b.logs[stateLog] = compacted(b.logs[stateLog])
	if got := len(b.logs[stateLog]); got != 4 { // owner, head, a, c
		t.Errorf("%d records are left", got)
	}
	h = mustAcquire(t, b)
	if v := h.Values(); len(v) != 2 || string(v["a"].Data) != "short" || string(v["c"].Data) != "2" {
		t.Errorf("got %v", sortedKeys(v))
	}
	if l := h.Lines(); len(l) != 3 || string(l[2]) != "third" {
		t.Errorf("got lines %q", l)
	}
}

// TestUnder: a value whose secret is gone is absent, and can be removed or replaced.
func TestUnder(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	secret := Value{Data: []byte("a secret of an epoch")}
	mustUpdate(t, h,
		map[string]Value{"secret-1": secret, "checkpoint": {Data: bytesOf(chunkBytes + 5), Under: "secret-1"}}, nil)
	h = mustAcquire(t, b)
	if v := h.Values()["checkpoint"]; v.Under != "secret-1" || !bytes.Equal(v.Data, bytesOf(chunkBytes+5)) {
		t.Fatalf("read back %d bytes under %q", len(v.Data), v.Under)
	}
	for _, test := range []struct {
		what   string
		put    map[string]Value
		remove []string
	}{
		{"a value under nothing", map[string]Value{"x": {Under: "none"}}, nil},
		{"a value under itself", map[string]Value{"x": {Data: []byte("x"), Under: "x"}}, nil},
		{"a value under one that has a secret itself",
			map[string]Value{"x": {Data: []byte("x"), Under: "checkpoint"}}, nil},
		{"a value under an empty one", map[string]Value{"empty": {}, "x": {Under: "empty"}}, nil},
		{"a value whose secret is removed with it", map[string]Value{"x": {Under: "secret-1"}}, []string{"secret-1"}},
		{"another secret, with a value under it", map[string]Value{"secret-1": {Data: []byte("another")}}, nil},
		{"no secret any more", map[string]Value{"secret-1": {}}, nil},
		{"a key of the protocol", map[string]Value{"head": {}}, nil},
		{"a key of the protocol", map[string]Value{"owner": {}}, nil},
		{"no key", map[string]Value{"": {}}, nil},
		{"a long key", map[string]Value{strings.Repeat("x", maxKey+1): {}}, nil},
		{"a removed head", nil, []string{"head"}},
		{"put and removed", map[string]Value{"x": {}}, []string{"x"}},
	} {
		before := b.transactions
		if err := h.Update(t.Context(), test.put, test.remove, nil); err == nil || errors.Is(err, ErrLost) ||
			b.transactions != before {
			t.Errorf("%s: %v, %d transactions", test.what, err, b.transactions-before)
		}
	}
	mustUpdate(t, h, map[string]Value{"secret-1": secret}, nil) // the same secret
	mustUpdate(t, h,
		map[string]Value{"checkpoint": {Data: []byte("new"), Under: "secret-1"}, "secret-1": {Data: []byte("another")}},
		nil)
	h = mustAcquire(t, b)
	if v := h.Values()["checkpoint"]; string(v.Data) != "new" {
		t.Errorf("under another secret: %q", v.Data)
	}
	mustUpdate(t, h, nil, []string{"secret-1"})
	h = mustAcquire(t, b)
	if v := h.Values(); len(v) > 0 {
		t.Errorf("without its secret: %v", sortedKeys(v))
	}
	mustUpdate(t, h, nil, []string{"checkpoint"})
	if last := b.logs[stateLog][len(b.logs[stateLog])-1]; string(last.Key) != "checkpoint:0" || last.Value != nil {
		t.Errorf("a value without its secret was not removed: %q", last.Key)
	}
}

// TestDamage: if somebody without the key changed the logs, Acquire returns a halt.
func TestDamage(t *testing.T) {
	t.Parallel()
	value := func(r []Record, key string) *Record {
		for i := range slices.Backward(r) {
			if string(r[i].Key) == key {
				return &r[i]
			}
		}
		t.Fatal(key)
		return nil
	}
	other := begun(t)
	mustUpdate(t, mustAcquire(t, other), map[string]Value{"a": {Data: []byte("other")}}, nil)
	for _, test := range []struct {
		what   string
		damage func(state, ledger *[]Record)
		want   Halt
	}{
		{"a changed byte", func(s, _ *[]Record) { r := value(*s, "a:0"); r.Value[len(r.Value)-1] ^= 1 }, HaltState},
		{"a changed number", func(s, _ *[]Record) { r := value(*s, "a:0"); r.Value[1] ^= 1 }, HaltState},
		{"a changed salt", func(s, _ *[]Record) { r := value(*s, "a:0"); r.Value[16] ^= 1 }, HaltState},
		{"another format", func(s, _ *[]Record) { r := value(*s, "a:0"); r.Value[0]++ }, HaltFormat},
		{"a short value", func(s, _ *[]Record) { r := value(*s, "a:0"); r.Value = r.Value[:20] }, HaltState},
		{"an empty value", func(s, _ *[]Record) { r := value(*s, "a:0"); r.Value = []byte{} }, HaltState},
		{"a value of another key", func(s, _ *[]Record) { value(*s, "a:0").Value = value(*s, "b:0").Value }, HaltState},
		{"a value of another shard",
			func(s, _ *[]Record) { value(*s, "a:0").Value = value(other.logs[stateLog], "a:0").Value }, HaltState},
		{"an older value",
			func(s, _ *[]Record) { *s = append(*s, Record{[]byte("a:0"), value((*s)[:4], "a:0").Value}) }, HaltState},
		{"a chunk is missing", func(s, _ *[]Record) { *s = append(*s, Record{Key: []byte("b:1")}) }, HaltState},
		{"the first chunk is missing", func(s, _ *[]Record) { *s = append(*s, Record{Key: []byte("b:0")}) }, HaltState},
		{"a chunk of another update", func(s, _ *[]Record) {
			*s = slices.Delete(*s, len(*s)-2, len(*s)-1)
		}, HaltState},
		{"chunks in another order", func(s, _ *[]Record) {
			x, y := value(*s, "b:0"), value(*s, "b:1")
			x.Value, y.Value = y.Value, x.Value
		}, HaltState},
		{"an extra chunk",
			func(s, _ *[]Record) { *s = append(*s, Record{[]byte("a:1"), value(*s, "a:0").Value}) }, HaltState},
		{"a foreign key", func(s, _ *[]Record) { *s = append(*s, Record{[]byte("x"), []byte("y")}) }, HaltState},
		{"a removed owner", func(s, _ *[]Record) { *s = append(*s, Record{Key: []byte("owner")}) }, HaltState},
		{"a foreign owner", func(s, _ *[]Record) { *s = append(*s, Record{[]byte("owner"), []byte("{}")}) }, HaltState},
		{"a lost line", func(_, l *[]Record) { *l = (*l)[:2] }, HaltLedger},
		{"no line", func(_, l *[]Record) { *l = nil }, HaltLedger},
		{"another line", func(_, l *[]Record) { (*l)[2].Value = []byte("another") }, HaltLedger},
		{"no genesis", func(_, l *[]Record) { *l = (*l)[1:] }, HaltGenesis},
		{"another genesis", func(_, l *[]Record) { (*l)[0] = other.logs[ledgerLog][0] }, HaltState},
		{"a line with a key", func(_, l *[]Record) { (*l)[1].Key = []byte("k") }, HaltLedger},
		{"a line without a value", func(_, l *[]Record) { (*l)[1].Value = nil }, HaltLedger},
	} {
		synctest.Test(t, func(t *testing.T) { // it takes two minutes until old logs are accepted as final
			b := begun(t)
			h := mustAcquire(t, b)
			mustUpdate(t, h, map[string]Value{"a": {Data: []byte("old")}, "b": {Data: bytesOf(chunkBytes + 2)}}, nil)
			mustUpdate(t, h, map[string]Value{"a": {Data: []byte("new")}, "b": {Data: bytesOf(chunkBytes + 1)}}, nil,
				"first", "second")
			for i := range b.logs { // copy the bytes
				for j, r := range b.logs[i] {
					b.logs[i][j].Value = bytes.Clone(r.Value)
				}
			}
			test.damage(&b.logs[stateLog], &b.logs[ledgerLog])
			_, err := Read(t.Context(), b.direct(nil), testOptions())
			wantHalt(t, err, test.want)
			before := b.transactions
			if _, err = acquire(t, b, testOptions()); err == nil {
				t.Errorf("%s was not noticed", test.what)
			}
			if test.what == "a removed owner" || test.what == "a foreign owner" {
				return // the record of the new owner comes after it
			}
			wantHalt(t, err, test.want)
			if b.transactions-before != 2 {
				t.Errorf("%s: a halt after %d looks, want 2", test.what, b.transactions-before)
			}
		})
		if t.Failed() {
			t.Fatalf("in: %s", test.what)
		}
	}
}

// TestAborted: the log still has the records that the former owner wrote in an aborted transaction. If a broker returns
// one of these chunks as part of the new owner's value, the value is not accepted.
func TestAborted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := begun(t)
		value := map[string]Value{"a": {Data: bytesOf(chunkBytes + 1)}}
		former := mustAcquire(t, b)
		aborted, err := former.plan(value, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		mustUpdate(t, mustAcquire(t, b), value, nil)
		state := b.logs[stateLog]
		for i, r := range state {
			if string(r.Key) == "a:1" {
				state[i] = aborted.state[len(aborted.state)-1]
			}
		}
		_, err = acquire(t, b, testOptions())
		wantHalt(t, err, HaltState)
		for i, r := range state { // both chunks of the aborted value make a valid value
			if string(r.Key) == "a:0" {
				state[i] = aborted.state[len(aborted.state)-2]
			}
		}
		mustAcquire(t, b)
	})
}

// TestOvertaken: if an instance reads in the logs that another instance has acquired the shard since, it stops at once
// and does not retry.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := begun(t)
		log := b.direct(func(what string) { t.Error(what) })
		log.send = func(a ask) reply {
			if a.kind == "read" && a.log == stateLog {
				mustAcquire(t, b)
			}
			return b.do(a)
		}
		began := time.Now()
		if _, err := Acquire(t.Context(), log, testOptions()); !errors.Is(err, ErrLost) ||
			time.Since(began) > time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestOptions: Acquire returns a halt if the configuration or the key differs, or if the ledger does not have the lines
// in the instance's witness.
func TestOptions(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	mustUpdate(t, h, map[string]Value{"a": {}}, nil, "first", "second")
	witness := h.Witness()
	if witness.Lines != 2 || witness.Hash != sha256.Sum256([]byte("second")) {
		t.Errorf("witness %v", witness)
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Genesis.Group = "x" },
		func(o *Options) { o.Genesis.Shards = 5 },
		func(o *Options) { o.Genesis.Shard = 1 },
		func(o *Options) { o.Genesis.Assign = "topic" },
		func(o *Options) { o.Genesis.Cluster = "x" },
	} {
		o := testOptions()
		change(&o)
		_, err := acquire(t, b, o)
		wantHalt(t, err, HaltGenesis)
		_, err = Create(t.Context(), b.direct(nil), o)
		wantHalt(t, err, HaltGenesis)
	}
	o := testOptions()
	o.Genesis.Key = "x"
	_, err := acquire(t, b, o)
	wantHalt(t, err, HaltKey)
	o = testOptions()
	o.Master = &[32]byte{9}
	_, err = acquire(t, b, o)
	wantHalt(t, err, HaltState)

	try := func(w Witness) error {
		o := testOptions()
		o.Witness = &w
		_, err := acquire(t, b, o)
		return err
	}
	for _, w := range []Witness{
		witness, {Genesis: witness.Genesis}, {witness.Genesis, 1, sha256.Sum256([]byte("first"))},
	} {
		if err := try(w); err != nil {
			t.Errorf("%v: %v", w, err)
		}
	}
	wantHalt(t, try(Witness{Lines: 2, Hash: witness.Hash}), HaltWitness)
	wantHalt(t, try(Witness{witness.Genesis, 1, witness.Hash}), HaltWitness)
	wantHalt(t, try(Witness{witness.Genesis, 0, witness.Hash}), HaltWitness)
	// The state and the ledger's end are lost together.
	synctest.Test(t, func(t *testing.T) {
		b := begun(t)
		h := mustAcquire(t, b)
		mustUpdate(t, h, nil, nil, "first", "second")
		o := testOptions()
		w := h.Witness()
		b.logs[stateLog], b.logs[ledgerLog] = nil, b.logs[ledgerLog][:2]
		if _, err := acquire(t, b, o); err != nil {
			t.Errorf("a lost state: %v", err)
		}
		o.Witness = &w
		_, err := acquire(t, b, o)
		wantHalt(t, err, HaltWitness)
	})
}

// TestWitnessText: a witness is read back, and no other text is accepted.
func TestWitnessText(t *testing.T) {
	t.Parallel()
	w := Witness{sha256.Sum256([]byte("g")), 12, sha256.Sum256([]byte("l"))}
	if got, err := ParseWitness([]byte(w.String())); err != nil || got != w {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{
		"", w.String() + "\n", " " + w.String(), strings.ToUpper(w.String()),
		strings.Replace(w.String(), " 12 ", " 012 ", 1),
	} {
		if _, err := ParseWitness([]byte(text)); err == nil {
			t.Errorf("%q is a witness", text)
		}
	}
}

// TestLostState: if the state is lost but not the ledger, the values are gone, and the ledger is protected again from
// the first update on.
func TestLostState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := begun(t)
		mustUpdate(t, mustAcquire(t, b), map[string]Value{"a": {}}, nil, "first", "second")
		b.logs[stateLog] = nil
		h := mustAcquire(t, b)
		if len(h.Values()) > 0 || len(h.Lines()) != 2 {
			t.Error("the state is not lost")
		}
		mustUpdate(t, h, map[string]Value{"b": {}}, nil)
		b.logs[ledgerLog] = b.logs[ledgerLog][:2]
		_, err := acquire(t, b, testOptions())
		wantHalt(t, err, HaltLedger)
	})
}

// TestOldState: the state may be older than the ledger, because a broker lost the end of the state's log.
func TestOldState(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	mustUpdate(t, h, map[string]Value{"a": {Data: []byte("1")}}, nil, "first")
	before := len(b.logs[stateLog])
	mustUpdate(t, h, map[string]Value{"a": {Data: []byte("2")}}, nil, "second")
	b.logs[stateLog] = b.logs[stateLog][:before]
	h = mustAcquire(t, b)
	if string(h.Values()["a"].Data) != "1" || len(h.Lines()) != 2 {
		t.Error("the state is another one")
	}
	mustUpdate(t, h, nil, nil, "third")
	if l := mustAcquire(t, b).Lines(); len(l) != 3 {
		t.Errorf("lines %q", l)
	}
}

// TestLimits: an update that is too large is refused before it is sent, and the holding remains usable.
func TestLimits(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	large := make([]byte, maxState/2)
	mustUpdate(t, h, map[string]Value{"a": {Data: large}}, nil)
	mustUpdate(t, h, map[string]Value{"a": {Data: large}}, nil)
	mustUpdate(t, h, map[string]Value{"a": {Data: large}}, nil)
	before := b.transactions
	for what, err := range map[string]error{
		"the shard": h.Update(t.Context(),
			map[string]Value{"b": {Data: large[:maxState/4]}, "c": {Data: large[:maxState/4]}}, nil, nil),
		"a line": h.Update(t.Context(), nil, nil, [][]byte{large[:MaxLine+1]}),
	} {
		if !errors.Is(err, ErrTooLarge) || errors.Is(err, ErrLost) || b.transactions != before {
			t.Errorf("%s: %v", what, err)
		}
	}
	mustUpdate(t, h, map[string]Value{"b": {Data: large}}, []string{"a"})
}

// TestCreate: Create can be repeated, and refuses a state without its ledger.
func TestCreate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := begun(t)
		g, err := Create(t.Context(), b.direct(nil), testOptions())
		if err != nil || len(b.logs[ledgerLog]) != 1 || !bytes.Equal(g.line(), b.logs[ledgerLog][0].Value) {
			t.Errorf("again: %v, %d lines", err, len(b.logs[ledgerLog]))
		}
		o := testOptions()
		o.Genesis.Key = ""
		if _, err := Create(t.Context(), b.direct(nil), Options{}); err == nil {
			t.Error("created without a key")
		}
		b.logs[ledgerLog] = nil
		_, err = Create(t.Context(), b.direct(nil), testOptions())
		wantHalt(t, err, HaltLedger)
		_, err = acquire(t, &broker{gen: 1}, testOptions())
		wantHalt(t, err, HaltGenesis)
		// A Create that failed leaves nothing that prevents the next one.
		b = &broker{gen: 1}
		for _, kind := range []string{"confirm", "fence", "write", "end"} {
			log := b.direct(nil)
			log.send = func(a ask) reply {
				if a.kind == kind && (kind != "write" || a.log == ledgerLog) {
					return reply{err: errNothing}
				}
				return b.do(a)
			}
			if _, err := Create(t.Context(), log, testOptions()); err == nil || log.closed != 1 {
				t.Errorf("no answer to %s: %v, closed %d times", kind, err, log.closed)
			}
		}
		if _, err := Create(t.Context(), b.direct(nil), testOptions()); err != nil || len(b.logs[ledgerLog]) != 1 {
			t.Errorf("%v, %d lines", err, len(b.logs[ledgerLog]))
		}
	})
}

// TestMoved: an instance to which the group does not give the shard any more fences nobody.
func TestMoved(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	log := b.direct(func(what string) { t.Error(what) })
	log.gen--
	if _, err := Acquire(t.Context(), log, testOptions()); !errors.Is(err, ErrMoved) || log.closed != 1 {
		t.Errorf("%v, closed %d times", err, log.closed)
	}
	mustUpdate(t, h, map[string]Value{"a": {}}, nil)
	next := mustAcquire(t, b)
	err := h.Update(t.Context(), map[string]Value{"a": {Data: []byte("zombie")}}, nil, nil)
	if !errors.Is(err, ErrLost) || !errors.Is(err, errFenced) || !errors.Is(h.Err(), ErrLost) {
		t.Errorf("a replaced owner got %v", err)
	}
	if next.Err() != nil {
		t.Error(next.Err())
	}
}

// TestKeepAlive: the owner of a shard in which nothing happens writes its record each hour, and learns from the result
// whether it is still the owner.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := begun(t)
		h := mustAcquire(t, b)
		count := func() int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.transactions
		}
		before := count()
		time.Sleep(30 * time.Minute)
		mustUpdate(t, h, map[string]Value{"a": {}}, nil)
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if n := count() - before; n != 1 {
			t.Errorf("%d transactions where one update was made", n)
		}
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		if n := count() - before; n != 6 {
			t.Errorf("%d transactions, want one an hour", n)
		}
		b.do(ask{kind: "fence"})
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case <-h.Lost():
		default:
			t.Error("the loss was not noticed")
		}
		h.Close()
		h.Close()
	})
}

// TestAffirm: only the current owner can affirm. A call that was cancelled before it was sent decides nothing.
func TestAffirm(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	mustUpdate(t, h, map[string]Value{"a": {Data: []byte("1")}}, nil)
	before := b.transactions
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Affirm(canceled); !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) ||
		b.transactions != before {
		t.Errorf("canceled: %v, %d transactions", err, b.transactions-before)
	}
	if err := h.Affirm(t.Context()); err != nil || b.transactions != before+1 {
		t.Errorf("the owner: %v, %d transactions", err, b.transactions-before)
	}
	mustUpdate(t, h, map[string]Value{"a": {Data: []byte("2")}}, nil) // it is still the owner

	next := mustAcquire(t, b)
	if got := string(next.Values()["a"].Data); got != "2" {
		t.Errorf("the next owner reads %q", got)
	}
	if err := h.Affirm(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("the former owner: %v", err)
	}
	select {
	case <-h.Lost():
	default:
		t.Error("the loss is not reported")
	}
	if err := next.Affirm(t.Context()); err != nil {
		t.Errorf("the next owner: %v", err)
	}
	next.Close()
	if err := next.Affirm(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("closed: %v", err)
	}
}

// TestCanceled: a cancelled update sends nothing; a closed holding is lost.
func TestCanceled(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Update(ctx, map[string]Value{"a": {}}, nil, nil); !errors.Is(err, context.Canceled) ||
		errors.Is(err, ErrLost) {
		t.Error(err)
	}
	mustUpdate(t, h, map[string]Value{"a": {}}, nil)
	h.Close()
	if err := h.Update(t.Context(), map[string]Value{"a": {}}, nil, nil); !errors.Is(err, ErrLost) {
		t.Error(err)
	}
	if h.seals.own != (wrap{}) || len(h.seals.under) > 0 {
		t.Error("keys are left")
	}
}

// TestKeyless: a reader without the key can read the ledger and the owner's name.
func TestKeyless(t *testing.T) {
	t.Parallel()
	b := begun(t)
	h := mustAcquire(t, b)
	mustUpdate(t, h, map[string]Value{"a": {}}, nil, "first")
	o := testOptions()
	o.Master = nil
	v, err := Read(t.Context(), b.direct(nil), o)
	if err != nil || v.Values != nil || len(v.Lines) != 1 || v.Owner.Instance != "i" || v.Genesis.Group != "g" ||
		v.Witness != h.Witness() {
		t.Errorf("%+v, %v", v, err)
	}
	for _, r := range b.logs[stateLog] {
		if bytes.Contains(r.Value, []byte("first")) {
			t.Error("the state has a line in the clear")
		}
	}
}
