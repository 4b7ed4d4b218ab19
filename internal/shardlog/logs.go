package shardlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
)

// logs is what both logs of a shard say.
type logs struct {
	state   fold
	genesis *Genesis // nil: the ledger is empty
	hash    [32]byte // of the genesis line
	lines   [][]byte // without the genesis

	values map[string]Value
	known  map[string]held
}

// errAgain says that a broker has served an old log: reading again helps.
type errAgain struct{ err error }

func (e errAgain) Error() string { return e.err.Error() }

// load reads both logs, the state first, and checks that the ledger has what the state and the
// witness say. token is the owner's whose record the state must have, "" for a mere reader.
// Without a master key nothing is opened.
func load(ctx context.Context, r Reader, o Options, seals *sealer, token string) (*logs, error) {
	t := &logs{state: fold{token: token, records: map[string]stored{}}}
	if err := r.ReadState(ctx, t.state.add); err != nil {
		return nil, fmt.Errorf("reading the state: %w", err)
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
			return &HaltError{HaltLedger, errors.New("the ledger has a record that is no line")}
		}
		if t.genesis == nil {
			g, err := ParseGenesis(r.Value)
			t.genesis, t.hash = &g, sha256.Sum256(r.Value)
			return err
		}
		if size += len(r.Value); size > maxLedger {
			return &HaltError{HaltLedger, fmt.Errorf("the ledger is above %d MiB", maxLedger>>20)}
		}
		t.lines = append(t.lines, r.Value)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	if t.genesis == nil {
		if len(t.state.records) > 0 || o.Witness != nil {
			return nil, errAgain{&HaltError{HaltLedger, errors.New("the ledger is empty, and something knows of it")}}
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
					"what the state directory knows of the ledger, below witness, is of another ledger: of another " +
						"group, or of topics that were made anew since; if that was on purpose, remove that " +
						"directory; if not, the ledger was replaced")}
		}
		if err := t.has(head{w.Lines, w.Hash}, HaltWitness, "the witness in the state directory"); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// has checks that the ledger begins with the lines that somebody knows.
func (t *logs) has(h head, halt Halt, who string) error {
	if n := uint64(len(t.lines)); h.lines > n {
		return errAgain{&HaltError{halt, fmt.Errorf("the ledger has %d lines, %s knows of %d", n, who, h.lines)}}
	}
	if (head{}).after(t.lines[:h.lines]) != h {
		return &HaltError{halt, fmt.Errorf("line %d of the ledger is another one than %s knows", h.lines, who)}
	}
	return nil
}
