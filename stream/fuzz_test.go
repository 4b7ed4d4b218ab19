package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"streamdp/config"
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

func FuzzManifest(f *testing.F) {
	file, err := goldenManifest(f).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add([]byte(`{"format":1,"epoch":1,"nonce":"00","config":{},"versions":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		try := func(data []byte) {
			m, err := parseManifest(data)
			if err != nil {
				return
			}
			file, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			again, err := parseManifest(file)
			if err != nil {
				t.Fatalf("%v\n%s", err, file)
			}
			file2, err := again.encode()
			if err != nil || !bytes.Equal(file, file2) {
				t.Fatalf("%v\n%s\n%s", err, file, file2)
			}
		}
		try(data)
		// The same with the right digest.
		var m map[string]json.RawMessage
		if json.Unmarshal(data, &m) != nil {
			return
		}
		var versions map[string]string
		var compact bytes.Buffer
		if json.Unmarshal(m["versions"], &versions) != nil || json.Compact(&compact, m["config"]) != nil {
			return
		}
		digest := config.DigestOf(compact.Bytes(), versions)
		m["digest"], _ = json.Marshal(hex.EncodeToString(digest[:]))
		if fixed, err := json.Marshal(m); err == nil {
			try(fixed)
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
			entries, heads, err := parseLedger(data)
			if err != nil {
				return
			}
			if len(heads) != len(entries) {
				t.Fatalf("%d hashes of %d lines", len(heads), len(entries))
			}
			again := rechain(t, entries)
			second, _, err := parseLedger(again)
			if err != nil {
				t.Fatalf("%v\n%s", err, again)
			}
			if third := rechain(t, second); !bytes.Equal(again, third) {
				t.Fatalf("\n%s\n%s", again, third)
			}
			// What is asked of it must not panic.
			l := &ledger{entries: entries, heads: heads}
			for _, e := range entries {
				l.newest(e.Task())
				l.undestroyed(e.Task())
				if l.nextEpoch(e.Task()) <= e.Epoch && e.Epoch != 1<<64-1 {
					t.Fatal("a number would be used twice")
				}
				if e.Kind == kindOpen {
					l.charged(e.Source, e.Cost.Adjacency, e.LimitDelta, nil)
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

func FuzzIdentity(f *testing.F) {
	for _, key := range []string{"orders/0/1/1", "a-1/12/3/18446744073709551615", "/0/0/0", "orders/0/01/1", "orders/+0/1/1", "orders/0/1", "orders/0/1/1/1", "a/2147483648/1/1", "orders/0/1/1/12", "orders/0/1/1/0", "orders/0/1/1/01", "orders/0/1/1/1/1"} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		task, epoch, step, ok := parseIdentity(key)
		// A piece has its number behind the release's key.
		whole, piece, isPiece := strings.Cut(strings.TrimPrefix(string(key), identity(task, epoch, step)), "/")
		if n, err := strconv.ParseUint(piece, 10, 31); ok && (whole != "" || isPiece && (err != nil || n == 0 || strconv.FormatUint(n, 10) != piece)) {
			t.Fatalf("%q is read as %v %d %d", key, task, epoch, step)
		}
		if !ok && (epoch != 0 || step != 0) {
			t.Fatalf("%q is refused and gives %d %d", key, epoch, step)
		}
	})
}
