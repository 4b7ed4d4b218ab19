package shardlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/streamdp/streamdp/internal/keys"
)

// Format is the newest format of values and of genesis lines that this version reads and writes.
const Format = 1

// Genesis is the first record of a shard's ledger. It identifies the shard and its group, and has a random number. Its
// hash, which every seal includes, therefore belongs to this ledger alone.
type Genesis struct {
	Format  int    `json:"genesis"`
	Group   string `json:"group"`
	Shards  int    `json:"shards"`
	Shard   int    `json:"shard"`
	Assign  string `json:"assign"`  // what determines the shard of a source: "partition" or "topic"
	Cluster string `json:"cluster"` // id of the Kafka cluster
	Key     string `json:"key"`     // id of the master key
	Nonce   string `json:"nonce"`   // 16 random bytes in hexadecimal; chosen by Create
}

// line is the record's value.
func (g Genesis) line() []byte {
	line, err := json.Marshal(g)
	if err != nil {
		panic(err) // unreachable: the struct has only strings and integers
	}
	return line
}

// ParseGenesis parses a genesis line. It accepts only the exact bytes that line would write.
func ParseGenesis(line []byte) (Genesis, error) {
	var g Genesis
	dec := json.NewDecoder(bytes.NewReader(line))
	if err := dec.Decode(&g); err != nil {
		return Genesis{}, &HaltError{HaltGenesis, errors.New("the ledger does not begin with a genesis line")}
	}
	if _, err := dec.Token(); err != io.EOF {
		return Genesis{}, &HaltError{HaltGenesis, errors.New("the ledger does not begin with a genesis line")}
	}
	if g.Format > Format {
		return Genesis{}, &HaltError{HaltFormat,
			fmt.Errorf("the ledger has format %d, but this version reads only %d", g.Format, Format)}
	}
	nonce, err := hex.DecodeString(g.Nonce)
	if g.Format < 1 || err != nil || len(nonce) != 16 || !bytes.Equal(g.line(), line) {
		return Genesis{}, &HaltError{HaltGenesis, errors.New("the ledger does not begin with a genesis line")}
	}
	return g, nil
}

// expect compares the genesis of a ledger with the required one, want. Empty fields of want accept any value.
func (g Genesis) expect(want Genesis) error {
	if want.Key != "" && g.Key != want.Key {
		return &HaltError{HaltKey,
			fmt.Errorf("the shard was created with key %q, but the key file has key %q", g.Key, want.Key)}
	}
	for _, f := range []struct {
		name      string
		is, wants any
		any       bool
	}{
		{"group", g.Group, want.Group, want.Group == ""},
		{"number of shards", g.Shards, want.Shards, want.Shards == 0},
		{"shard", g.Shard, want.Shard, want.Shards == 0},
		{"assignment", g.Assign, want.Assign, want.Assign == ""},
		{"cluster", g.Cluster, want.Cluster, want.Cluster == ""},
	} {
		if !f.any && f.is != f.wants {
			return &HaltError{HaltGenesis,
				fmt.Errorf("the ledger was created for %s %v, not for %v", f.name, f.is, f.wants)}
		}
	}
	return nil
}

// Create acquires a new shard, writes its genesis line, and returns the genesis. If the shard already has a genesis as
// in o.Genesis, Create leaves it unchanged, so a Create that failed can be repeated. For logs with any other content it
// returns a [HaltError]. Create closes the log.
func Create(ctx context.Context, log Log, o Options) (Genesis, error) {
	defer log.Close()
	if err := o.check(); err != nil {
		return Genesis{}, err
	}
	h := newHolding(log, o)
	defer h.wipe()
	t, err := h.take(ctx, func(*logs) error { return nil })
	if err != nil {
		return Genesis{}, err
	}
	if t.genesis != nil {
		return *t.genesis, nil
	}
	g, nonce := o.Genesis, keys.NewNonce()
	g.Format, g.Nonce = Format, hex.EncodeToString(nonce[:])
	line := g.line()
	h.seals.genesis, h.seq = sha256.Sum256(line), 1
	// The head tells readers that there is a ledger, in case a broker returns an old, empty copy of it.
	head, err := h.seals.seal(headKey, 1, Value{Data: head{}.bytes()}, nil)
	if err != nil {
		return Genesis{}, err
	}
	if err := log.Commit(ctx, head, []Record{{Value: line}}); err != nil {
		return Genesis{}, lost(err)
	}
	return g, nil
}
