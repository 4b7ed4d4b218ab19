package streamtest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/ledger"
)

// OfRecords returns the account of a source's records.
func OfRecords(s core.Source) ledger.Account { return ledger.Account{Source: s} }

// Charging returns an entry that opens an epoch of TestSource for the stream orders.
func Charging(epoch uint64, first, end int64, a dp.Adjacency, mu float64) ledger.Entry {
	return ledger.Entry{
		Kind: ledger.KindOpen, Stream: "orders", Source: fixtures.TestSource, Epoch: epoch, Incarnation: 1,
		First: first, End: end, Mechanism: "moments",
		Cost: dp.Cost{Adjacency: a, Mu: mu}, Epsilon: 1, Delta: 1e-8, LimitEpsilon: 1.5, LimitDelta: 1e-8,
	}
}

// ForgedLine returns a ledger line forged without the key: its sequence number, chain and checksum are right.
func ForgedLine(t testing.TB, l *ledger.Ledger, e ledger.Entry) []byte {
	t.Helper()
	e.Seq, e.Prev, e.Key = uint64(len(l.Entries)+1), hex.EncodeToString(l.Head[:]), "deadbeefdeadbeef"
	line, err := json.Marshal(e)
	fixtures.Must(t, err)
	return append(ledger.NewKey(connect.InsecureKey(99)).Seal(line), '\n')
}

// Mirrored returns a rig with a control topic, whose daemons use random secrets.
func Mirrored(t testing.TB, toml string) *Rig {
	t.Helper()
	r := NewRig(t, toml)
	r.Real, r.Topic = true, "control"
	return r
}

// Control reads the control topic.
func (r *Rig) Control() (list []kafka.Message) {
	r.T.Helper()
	err := fixtures.Dial(r.T, r.Addr).ReadBack(r.T.Context(), r.Topic, 0, 0, func(rec *kafka.Record) error {
		m := kafka.Message{Value: bytes.Clone(rec.Value), Time: time.UnixMilli(1)}
		for _, h := range rec.Headers {
			m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: bytes.Clone(h.Value)})
		}
		list = append(list, m)
		return nil
	})
	if err != nil {
		r.T.Fatal(err)
	}
	return list
}

// Closed returns the end offset in the last close entry of the ledger.
func (r *Rig) Closed(entries []ledger.Entry) (end int64) {
	r.T.Helper()
	end = -2
	for _, e := range entries {
		if e.Kind == ledger.KindClose {
			end = e.End
		}
	}
	return end
}

func ReadEpochs(dir string) ([]ledger.EpochInfo, error) {
	b, err := ledger.ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Epochs(), nil
}

func ReadSpent(dir, stream string, records []int) ([]ledger.Spent, error) {
	b, err := ledger.ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Spent(stream, records)
}
