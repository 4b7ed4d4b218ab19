package shardlog

import (
	"context"
	"errors"
)

// View is the content of a shard at the time of reading.
type View struct {
	Genesis Genesis
	Owner   Owner            // the last owner; empty if there was none
	Values  map[string]Value // nil without a master key
	Lines   [][]byte         // ledger lines without the genesis
	Witness Witness          // witness of the ledger as it was read
}

// Read reads a shard without owning it, and fences nobody. The state may be slightly older than the ledger. Without
// o.Master, values are not opened, and the ledger's length is not compared with the state. Read notices an old copy of
// a log only if the copy contradicts the state or the witness; it then retries for a minute. The error is a [HaltError]
// if the logs differ from the data that instances wrote.
func Read(ctx context.Context, r Reader, o Options) (*View, error) {
	o.defaults()
	var seals *sealer
	if o.Master != nil {
		seals = newSealer(o.Master)
		defer seals.wipe()
	}
	t, err := settle(ctx, o.patience, func() (*logs, error) {
		t, err := load(ctx, r, o, seals, "")
		if err == nil && t.genesis == nil {
			err = &HaltError{HaltGenesis,
				errors.New("the ledger does not begin with a genesis line: create it with streamdp cluster init")}
		}
		return t, err
	})
	if err != nil {
		return nil, err
	}
	h := head{}.after(t.lines)
	return &View{*t.genesis, t.state.owner, t.values, t.lines, Witness{t.hash, h.lines, h.hash}}, nil
}
