package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/kafka"
)

// Whatever parses says the same when it is written and read again. Where a
// hash would stop the fuzzer at the door, it is made right first.

func FuzzCheckpoint(f *testing.F) {
	payload := func(file []byte) []byte { return file[len(checkpointMagic)+8 : len(file)-sha256.Size] }
	f.Add(payload(goldenCheckpoint().encode(nil)))
	f.Add(payload((&checkpoint{epoch: 1, output: unknownOutput}).encode(nil)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := parseCheckpoint(data); err == nil {
			t.Fatal("a checkpoint without its hash was believed")
		}
		file := append([]byte(nil), checkpointMagic...)
		file = binary.LittleEndian.AppendUint64(file, uint64(len(data)))
		file = append(file, data...)
		sum := sha256.Sum256(file)
		file = append(file, sum[:]...)
		c, err := parseCheckpoint(file)
		if err != nil {
			return
		}
		again, err := parseCheckpoint(c.encode(nil))
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%v\n%+v\n%+v", err, again, c)
		}
		if again, err = parseCheckpoint(slotContent(append(c.encode(nil), data...))); err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("in a slot: %v", err)
		}
	})
}

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

// FuzzArchive: what is read of an archive is what is read when it is written again, and
// a file that was cut gives the messages before the cut.
func FuzzArchive(f *testing.F) {
	var list []pending
	for step := range uint64(3) {
		p := pending{time: time.UnixMilli(5)}
		p.Step, p.Key, p.Value = step+1, []byte("orders/0/1/1"), []byte("{}")
		list = append(list, p)
	}
	f.Add(archived(list)[len(archiveMagic):], uint(7))
	f.Add([]byte{}, uint(0))
	f.Fuzz(func(t *testing.T, data []byte, cut uint) {
		got, err := parseArchive(append(bytes.Clone(archiveMagic), data...))
		if err != nil {
			return
		}
		file := archived(got)
		again, err := parseArchive(file)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("%v\n%+v\n%+v", err, again, got)
		}
		part, err := parseArchive(file[:cut%uint(len(file)+1)])
		if err != nil || len(part) > len(got) || len(part) > 0 && !reflect.DeepEqual(part, got[:len(part)]) {
			t.Fatalf("cut after %d bytes: %v, %d of %d messages", cut%uint(len(file)+1), err, len(part), len(got))
		}
	})
}

// archived is the file of an archive with messages.
func archived(list []pending) []byte {
	w := &bin.Writer{}
	w.Raw(archiveMagic)
	for i := range list {
		at := len(w.B)
		w.Uint(0)
		list[i].encode(w)
		binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
		sum := sha256.Sum256(w.B[at+8:])
		w.Raw(sum[:])
	}
	return w.B
}

// FuzzExport: an exported epoch that is read says the same when it is written and read
// again, and what is asked of it, and of any file by inspect, does not panic.
func FuzzExport(f *testing.F) {
	manifest, err := os.ReadFile("core/testdata/manifest.json")
	if err != nil {
		f.Fatal(err)
	}
	ledger, err := os.ReadFile(goldenPath("ledger-sealed.jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	x := Export{Format: exportFormat, Manifest: string(manifest), Ledger: strings.Split(strings.TrimSpace(string(ledger)), "\n"), Secret: make([]byte, 32), Initial: []byte{1}}
	file, err := x.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(`{"format":"streamdp.epoch.v1"}`))
	f.Add(goldenCheckpoint().encode(nil))
	f.Add(ledger)
	f.Fuzz(func(t *testing.T, data []byte) {
		if fields, err := Inspect(data); err == nil && len(fields) == 0 {
			t.Fatal("nothing is said of a file that is known")
		}
		x, err := ParseExport(data)
		if err != nil {
			return
		}
		text, err := x.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseExport(text)
		if err != nil || !reflect.DeepEqual(again, x) {
			t.Fatalf("%v\n%+v\n%+v", err, again, x)
		}
		for _, key := range []*ledgerKey{nil, newLedgerKey(InsecureKey(1))} {
			if e, err := x.opening(key); err == nil && e.Kind != kindOpen {
				t.Fatalf("%+v is taken for an opening", e)
			}
		}
	})
}

// FuzzParameters: a file of parameters is numbers and nothing else.
func FuzzParameters(f *testing.F) {
	f.Add(packParameters([]float64{1, -2.5}))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := parseParameters(data)
		if err != nil {
			return
		}
		if !bytes.Equal(packParameters(x), data) {
			t.Fatalf("%x is read as %g", data, x)
		}
		for _, v := range x {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("%g is taken", x)
			}
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

// FuzzSealed: an encrypted file that was not written with the key is refused, and a
// content, whatever it is, is read back.
func FuzzSealed(f *testing.F) {
	s := &sealer{master: InsecureKey(1), task: "orders-0", on: true}
	file, err := s.seal(nil, kindSecret, 7, []byte("content"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add(append(bytes.Clone(sealMagic), make([]byte, 64)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		content, n, err := s.open(kindSecret, data)
		switch {
		case !isSealed(data):
			if err != nil || !bytes.Equal(content, data) {
				t.Fatalf("a plain file is read as %x: %v", content, err)
			}
		case err == nil && !(n == 7 && string(content) == "content"):
			t.Fatalf("accepted: %x", data)
		}
		if len(sealedContent(data)) > len(data) {
			t.Fatal("more than there is")
		}
		sealed, err := s.seal(nil, kindCheckpoint, 3, data)
		must(t, err)
		if content, n, err := s.open(kindCheckpoint, sealed); err != nil || n != 3 || !bytes.Equal(content, data) {
			t.Fatalf("%x is read back as %x, %d, %v", data, content, n, err)
		}
		if !bytes.Equal(sealedContent(append(bytes.Clone(sealed), data...)), sealed) {
			t.Fatal("what a longer file left behind it is not cut off")
		}
	})
}
