package shardlog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Witness is what an instance knows to be committed in a shard's ledger: which ledger it is, and
// its first lines up to one. A ledger without it is a halt, so an instance that keeps it in a
// place of its own notices a ledger that lost its end with the state. It is public, it may be
// old, and it may be absent.
type Witness struct {
	Genesis [32]byte // hash of the genesis line
	Lines   uint64   // without the genesis
	Hash    [32]byte // of line number Lines; zero for none
}

// String returns the text of a witness's file: one line of three fields.
func (w Witness) String() string {
	return fmt.Sprintf("streamdp-witness-1 %x %d %x\n", w.Genesis, w.Lines, w.Hash)
}

// ParseWitness reads what String returns, and nothing else.
func ParseWitness(text []byte) (w Witness, err error) {
	fields := strings.Fields(string(text))
	if len(fields) == 4 {
		genesis, e1 := hex.DecodeString(fields[1])
		lines, e2 := strconv.ParseUint(fields[2], 10, 64)
		hash, e3 := hex.DecodeString(fields[3])
		if errors.Join(e1, e2, e3) == nil && len(genesis) == 32 && len(hash) == 32 {
			w = Witness{[32]byte(genesis), lines, [32]byte(hash)}
		}
	}
	if w.String() != string(text) {
		return Witness{}, errors.New("the file is no witness of a ledger")
	}
	return w, nil
}
