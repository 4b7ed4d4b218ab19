package shardlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
)

// logs is the content of both logs of a shard.
type logs struct {
	state   fold
	genesis *Genesis // nil: the ledger is empty
	hash    [32]byte // hash of the genesis line
	lines   [][]byte // ledger lines, not including the genesis

	values map[string]Value
	known  map[string]held
}

// errAgain says that a broker returned an old copy of a log, so reading again may help.
type errAgain struct{ err error }

func (e errAgain) Error() string { return e.err.Error() }

// load reads both logs, the state first. It checks that the ledger has the lines that the state and the witness
// mention, and that the state has the owner's record with this token. token is "" for a reader that is not the owner.
// If seals is nil, no value is opened.
func load(ctx context.Context, r Reader, o Options, seals *sealer, token string) (*logs, error) {
	t := &logs{state: fold{token: token, records: map[string]stored{}}}
	if err := r.ReadState(ctx, t.state.add); err != nil {
		return nil, fmt.Errorf("read the state: %w", err)
	}
	if s := &t.state; token != "" && s.owner.Token != token {
		if s.own {
			return nil, fmt.Errorf("instance %q has acquired the shard: %w", s.owner.Instance, ErrLost)
		}
		return nil, errAgain{errors.New("the state lacks the record of this acquisition")}
	}
	size := 0
	err := r.ReadLedger(ctx, func(r Record) error {
		if r.Key != nil || r.Value == nil || len(r.Value) > MaxLine {
			return &HaltError{HaltLedger, errors.New("the ledger's topic has a record that is not a ledger line")}
		}
		if t.genesis == nil {
			g, err := ParseGenesis(r.Value)
			t.genesis, t.hash = &g, sha256.Sum256(r.Value)
			return err
		}
		if size += len(r.Value); size > maxLedger {
			return &HaltError{HaltLedger, fmt.Errorf("the ledger is larger than %d MiB", maxLedger>>20)}
		}
		t.lines = append(t.lines, r.Value)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	if t.genesis == nil {
		if len(t.state.records) > 0 || o.Witness != nil {
			return nil, errAgain{&HaltError{HaltLedger, errors.New("the ledger is empty, although the state or the " +
				"witness refers to a line of it")}}
		}
		return t, nil
	}
	if err := t.genesis.expect(o.Genesis); err != nil {
		return nil, err
	}
	if seals != nil {
		seals.begin(t.hash)
		if t.values, t.known, err = t.state.open(seals); err != nil {
			return nil, err
		}
		if h := t.state.head; h != nil {
			if err := t.has(*h, HaltLedger, "the state"); err != nil {
				return nil, err
			}
		}
	}
	if w := o.Witness; w != nil {
		if w.Genesis != t.hash {
			return nil, &HaltError{HaltWitness,
				errors.New(
					"the witness in the state directory belongs to another ledger: of another group, or of topics " +
						"that were recreated since; if you changed the group or recreated its topics, remove the " +
						"directory witness; if not, somebody replaced the ledger")}
		}
		if err := t.has(head{w.Lines, w.Hash}, HaltWitness, "the witness in the state directory"); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// has checks that the ledger begins with the lines that head h describes. who names the source of h in the error.
func (t *logs) has(h head, halt Halt, who string) error {
	if n := uint64(len(t.lines)); h.lines > n {
		return errAgain{&HaltError{halt, fmt.Errorf("the ledger has %d lines, but %s refers to line "+
			"%d", n, who, h.lines)}}
	}
	if (head{}).after(t.lines[:h.lines]) != h {
		return &HaltError{halt, fmt.Errorf("line %d of the ledger differs from the line to which %s "+
			"refers", h.lines, who)}
	}
	return nil
}
