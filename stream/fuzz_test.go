package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
)

// Whatever parses says the same when it is written and read again. Where a
// hash would stop the fuzzer at the door, it is made right first.

func FuzzLedger(f *testing.F) {
	if file, err := os.ReadFile(goldenPath("ledger.jsonl")); err == nil {
		f.Add(file)
	}
	f.Add([]byte("{\"kind\":\"open\",\"cost\":{\"adjacency\":\"replace\",\"mu\":1},\"epoch\":1}\n{\"kind\":\"void\",\"epoch\":1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n := whole(data); n > len(data) || n > 0 && data[n-1] != '\n' || n > 0 && whole(data[:n]) != n && bytes.IndexByte(data, 0) < 0 {
			t.Fatalf("%d of %d bytes are whole", n, len(data))
		}
		try := func(data []byte) {
			l, err := parseLedger(data, nil)
			if err != nil {
				return
			}
			entries := l.entries
			if len(l.heads) < len(entries) && !bytes.Contains(data, []byte(`"repair"`)) {
				t.Fatalf("%d hashes of %d lines", len(l.heads), len(entries))
			}
			if l.keyID != "" {
				return // of what is sealed nothing can be written again
			}
			again := rechain(t, entries)
			second, err := parseLedger(again, nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, again)
			}
			if third := rechain(t, second.entries); !bytes.Equal(again, third) {
				t.Fatalf("\n%s\n%s", again, third)
			}
			// What is asked of it must not panic.
			for _, e := range entries {
				l.newest(e.Task())
				l.undestroyed(e.Task())
				if l.nextEpoch(e.Task()) <= e.Epoch && e.Epoch != 1<<64-1 {
					t.Fatal("a number would be used twice")
				}
				if e.Kind == kindOpen {
					l.charged(e.account(), e.Cost.Adjacency, e.LimitDelta, nil)
				}
			}
		}
		try(data)
		// The same with a right chain.
		var list []Entry
		for line := range strings.Lines(string(data)) {
			var e Entry
			if json.Unmarshal([]byte(line), &e) != nil {
				return
			}
			list = append(list, e)
		}
		for _, e := range list {
			if _, err := json.Marshal(e); err != nil {
				return
			}
		}
		try(rechain(t, list))
	})
}

// FuzzSealedLedger: who has no key writes no line. A file that is accepted with the key
// and has a MAC in it begins with the lines that were written, byte for byte.
func FuzzSealedLedger(f *testing.F) {
	key := newLedgerKey(InsecureKey(1))
	file, err := os.ReadFile(goldenPath("ledger-sealed.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add(file[:bytes.IndexByte(file, '\n')+1])
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLedger(data, key)
		if err == nil && l.keyID == key.id && !bytes.HasPrefix(file, data) {
			t.Fatalf("accepted:\n%s", data)
		}
		// Where the fuzzer's entries are sealed with the key, they are read as they are
		// without one, as far as they tell a possible story.
		var sealedLines []byte
		var head [32]byte
		n := 0
		for line := range strings.Lines(string(data)) {
			var e Entry
			if json.Unmarshal([]byte(line), &e) != nil {
				return
			}
			n++
			e.Seq, e.Prev, e.Key, e.MAC, e.Sum = uint64(n), hex.EncodeToString(head[:]), "", "", ""
			if n == 1 {
				e.Key = key.id
			}
			text, err := json.Marshal(e)
			if err != nil {
				return
			}
			text = key.seal(text)
			head = sha256.Sum256(text)
			sealedLines = append(append(sealedLines, text...), '\n')
		}
		with, err1 := parseLedger(sealedLines, key)
		without, err2 := parseLedger(sealedLines, nil)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("with the key: %v, without: %v\n%s", err1, err2, sealedLines)
		}
		if err1 == nil && (with.head != without.head || len(with.entries) != n) {
			t.Fatalf("%d of %d lines", len(with.entries), n)
		}
	})
}

// rechain writes entries as a ledger does.
func rechain(t testing.TB, list []Entry) (data []byte) {
	t.Helper()
	var head [32]byte
	for i, e := range list {
		e.Seq, e.Prev = uint64(i+1), hex.EncodeToString(head[:])
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		head = sha256.Sum256(line)
		data = append(append(data, line...), '\n')
	}
	return data
}

// FuzzControl: a record of the control topic without the MAC of our key changes nothing.
// One with it, whatever it says, is taken for one line at most.
func FuzzControl(f *testing.F) {
	key := newLedgerKey(InsecureKey(1))
	file, err := os.ReadFile(goldenPath("ledger-sealed.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.Lines(file) {
		f.Add(bytes.TrimSuffix(line, []byte("\n")), make([]byte, 64))
	}
	f.Add([]byte(`{"seq":9,"kind":"open","stream":"orders","epoch":18446744073709551615}`), []byte("short"))
	f.Fuzz(func(t *testing.T, value, header []byte) {
		l, err := parseLedger(file, key)
		must(t, err)
		m := &mirror{key: make([]byte, 32), ledger: l, claims: map[claimed]claim{}, newest: map[string][]newestOf{}}
		rec := &kafka.Record{Value: value, Headers: []kafka.Header{{Key: mirrorHeader, Value: header}}}
		m.line(rec)
		if len(m.claims)+len(m.newest)+len(m.lacks)+m.sent != 0 || m.forked != 0 {
			t.Fatalf("a record without our MAC counts: %+v", m)
		}
		own, ok := l.identity()
		if !ok {
			t.Fatal("the ledger has no identity")
		}
		for _, id := range [][32]byte{own, {1}} {
			rec.Headers[0].Value = m.header(id, value)
			m.line(rec)
			m.line(rec)
		}
		if len(m.claims) > 1 || len(m.lacks) > 1 || m.sent > len(l.entries) {
			t.Fatalf("one record is taken for several lines: %+v", m)
		}
	})
}
