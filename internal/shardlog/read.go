package shardlog

import (
	"context"
	"errors"
)

// View is a shard as a reader saw it.
type View struct {
	Genesis Genesis
	Owner   Owner            // who acquired it last; empty where nobody did
	Values  map[string]Value // nil without a master key
	Lines   [][]byte         // of the ledger, without the genesis
	Witness Witness          // of the ledger as it was read
}

// Read reads a shard without owning it, and fences nobody. The state may be of a moment before the
// ledger's. Without o.Master values are not opened and the ledger's length is not compared with
// what the state says. A broker that serves an old log may be believed, unless it contradicts the
// state or the witness; then Read asks again for a minute. Errors: a [HaltError], where the logs
// are not what was written.
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
