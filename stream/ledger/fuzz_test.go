package ledger_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/ledger"
)

// A ledger that parses is unchanged when it is written and read again. Hashes are corrected first, because they would
// stop the fuzzer.

func FuzzLedger(f *testing.F) {
	if file, err := os.ReadFile("testdata/ledger.jsonl"); err == nil {
		f.Add(file)
	}
	f.Add(
		[]byte(
			"{\"kind\":\"open\",\"cost\":{\"adjacency\":\"replace\",\"mu\":1},\"epoch\":1}\n" +
				"{\"kind\":\"void\",\"epoch\":1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n := ledger.CompleteLines(data); n > len(data) || n > 0 && data[n-1] != '\n' ||
			n > 0 && ledger.CompleteLines(data[:n]) != n && bytes.IndexByte(data, 0) < 0 {
			t.Fatalf("%d of %d bytes are whole", n, len(data))
		}
		try := func(data []byte) {
			l, err := ledger.Parse(data, nil)
			if err != nil {
				return
			}
			entries := l.Entries
			if len((*l.Heads())) < len(entries) && !bytes.Contains(data, []byte(`"repair"`)) {
				t.Fatalf("%d hashes of %d lines", len((*l.Heads())), len(entries))
			}
			if l.KeyID != "" {
				return // sealed lines cannot be written again without the key
			}
			again := rechain(t, entries)
			second, err := ledger.Parse(again, nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, again)
			}
			if third := rechain(t, second.Entries); !bytes.Equal(again, third) {
				t.Fatalf("\n%s\n%s", again, third)
			}
			// Queries must not panic.
			for _, e := range entries {
				l.Newest(e.Task())
				l.Undestroyed(e.Task())
				if l.NextEpoch(e.Task()) <= e.Epoch && e.Epoch != 1<<64-1 {
					t.Fatal("a number would be used twice")
				}
				if e.Kind == ledger.KindOpen {
					l.Charged(e.Account(), e.Cost.Adjacency, e.LimitDelta, nil)
				}
			}
		}
		try(data)
		// Now with a correct chain.
		var list []ledger.Entry
		for line := range strings.Lines(string(data)) {
			var e ledger.Entry
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

// FuzzSealedLedger: somebody without the key cannot write a line. A file that is accepted with the key and has a MAC
// begins with the lines that were written, byte for byte.
func FuzzSealedLedger(f *testing.F) {
	key := ledger.NewKey(connect.InsecureKey(1))
	file, err := os.ReadFile("testdata/ledger-sealed.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add(file[:bytes.IndexByte(file, '\n')+1])
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ledger.Parse(data, key)
		if err == nil && l.KeyID == key.ID && !bytes.HasPrefix(file, data) {
			t.Fatalf("accepted:\n%s", data)
		}
		// The fuzzer's entries give the same ledger when they are sealed with the key as without a key, if their
		// sequence is possible.
		var sealedLines []byte
		var head [32]byte
		n := 0
		for line := range strings.Lines(string(data)) {
			var e ledger.Entry
			if json.Unmarshal([]byte(line), &e) != nil {
				return
			}
			n++
			e.Seq, e.Prev, e.Key, e.MAC, e.Sum = uint64(n), hex.EncodeToString(head[:]), "", "", ""
			if n == 1 {
				e.Key = key.ID
			}
			text, err := json.Marshal(e)
			if err != nil {
				return
			}
			text = key.Seal(text)
			head = sha256.Sum256(text)
			sealedLines = append(append(sealedLines, text...), '\n')
		}
		with, err1 := ledger.Parse(sealedLines, key)
		without, err2 := ledger.Parse(sealedLines, nil)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("with the key: %v, without: %v\n%s", err1, err2, sealedLines)
		}
		if err1 == nil && (with.Head != without.Head || len(with.Entries) != n) {
			t.Fatalf("%d of %d lines", len(with.Entries), n)
		}
	})
}

// rechain writes entries as a ledger would.
func rechain(t testing.TB, list []ledger.Entry) (data []byte) {
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

// FuzzControl: a record of the control topic without a MAC under our key changes nothing. One with such a MAC counts as
// at most one line, whatever its content.
func FuzzControl(f *testing.F) {
	key := ledger.NewKey(connect.InsecureKey(1))
	file, err := os.ReadFile("testdata/ledger-sealed.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.Lines(file) {
		f.Add(bytes.TrimSuffix(line, []byte("\n")), make([]byte, 64))
	}
	f.Add([]byte(`{"seq":9,"kind":"open","stream":"orders","epoch":18446744073709551615}`), []byte("short"))
	f.Fuzz(func(t *testing.T, value, header []byte) {
		l, err := ledger.Parse(file, key)
		fixtures.Must(t, err)
		m := ledger.ControlTopicOf(l)
		rec := &kafka.Record{Value: value, Headers: []kafka.Header{{Key: ledger.MirrorHeader, Value: header}}}
		m.Line(rec)
		if m.Claims()+m.Newest()+len((*m.Lacks()))+(*m.Sent()) != 0 || (*m.Forked()) != 0 {
			t.Fatalf("a record without our MAC counts: %+v", m)
		}
		own, ok := l.Identity()
		if !ok {
			t.Fatal("the ledger has no identity")
		}
		for _, id := range [][32]byte{own, {1}} {
			rec.Headers[0].Value = m.Header(id, value)
			m.Line(rec)
			m.Line(rec)
		}
		if m.Claims() > 1 || len((*m.Lacks())) > 1 || (*m.Sent()) > len(l.Entries) {
			t.Fatalf("one record is taken for several lines: %+v", m)
		}
	})
}
