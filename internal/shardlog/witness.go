package shardlog

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Witness records which ledger a shard has, and how many of its lines an instance knows to be committed. Acquire
// returns a halt if these lines are missing in the ledger. So an instance that stores its witness elsewhere notices if
// a ledger lost its last lines together with the state. A witness is public, and may be old or missing.
type Witness struct {
	Genesis [32]byte // hash of the genesis line
	Lines   uint64   // number of lines, not counting the genesis
	Hash    [32]byte // hash of line number Lines; zero if there is none
}

// String returns the text of a witness's file: one line of three fields.
func (w Witness) String() string {
	return fmt.Sprintf("streamdp-witness-1 %x %d %x\n", w.Genesis, w.Lines, w.Hash)
}

// ParseWitness parses the result of String. It accepts no other text.
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
		return Witness{}, errors.New("the file is not a witness of a ledger")
	}
	return w, nil
}
