package shardlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// FuzzRecords: with any records in the logs, a reader ends without a panic, returns no value that was not sealed for
// its key and ledger, and otherwise fails with a halt or an old log.
func FuzzRecords(f *testing.F) {
	b := begun(f)
	h := mustAcquire(f, b)
	mustUpdate(f, h, map[string]Value{"s": {Data: []byte("secret")}, "a": {Data: []byte("value"), Under: "s"}, "b": {}},
		nil, "first")
	pack := func(logs [2][]Record) (out []byte) {
		for i, log := range logs {
			for _, r := range log {
				out = append(out, byte(i))
				for _, part := range [][]byte{r.Key, r.Value} {
					out = append(binary.BigEndian.AppendUint16(out, uint16(len(part))), part...)
				}
			}
		}
		return out
	}
	f.Add(pack(b.logs))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		var logs [2][]Record
		for len(data) > 0 {
			i := data[0] & 1
			data = data[1:]
			var parts [2][]byte
			for k := range parts {
				if len(data) < 2 {
					break
				}
				n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
				if parts[k], data = data[2:2+n], data[2+n:]; n == 0 {
					parts[k] = nil
				}
			}
			logs[i] = append(logs[i], Record{parts[0], parts[1]})
		}
		o := testOptions()
		got, err := load(t.Context(), (&broker{logs: logs}).direct(nil), o, newSealer(o.Master), "")
		if err != nil {
			halt, again := (*HaltError)(nil), errAgain{}
			if !errors.As(err, &halt) && !errors.As(err, &again) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		want := map[string]string{"s": "secret", "a": "value", "b": ""}
		for key, v := range got.values {
			if data, ok := want[key]; !ok || data != string(v.Data) {
				t.Errorf("%q has %q", key, v.Data)
			}
		}
	})
}

// FuzzTexts: the parsers of single values accept only texts that are written back as the same bytes.
func FuzzTexts(f *testing.F) {
	b := begun(f)
	f.Add(b.logs[ledgerLog][0].Value)
	f.Add([]byte(Witness{Lines: 3}.String()))
	f.Add([]byte("key/name:12"))
	f.Add(b.logs[stateLog][0].Value)
	f.Add(b.logs[stateLog][1].Value)
	f.Fuzz(func(t *testing.T, data []byte) {
		if g, err := ParseGenesis(data); err == nil && !bytes.Equal(g.line(), data) {
			t.Errorf("genesis %q", data)
		}
		if w, err := ParseWitness(data); err == nil && w.String() != string(data) {
			t.Errorf("witness %q", data)
		}
		if key, chunk, ok := parseKey(data); ok && !bytes.Equal(recordKey(key, chunk), data) {
			t.Errorf("key %q", data)
		}
		if s, with, err := parseSealed(data); err == nil && !bytes.Equal(s.append(nil), data[:with-saltBytes]) {
			t.Errorf("sealed %q", data)
		}
		if h, err := parseHead(data); err == nil && !bytes.Equal(h.bytes(), data) {
			t.Errorf("head %q", data)
		}
		_, _ = parseOwner(data)
	})
}
