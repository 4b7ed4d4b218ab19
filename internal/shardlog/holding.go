package shardlog

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/keys"
)

// Options select a shard and identify the instance.
type Options struct {
	// Genesis has the required fields of the ledger's genesis; empty fields accept any value. The nonce is not checked.
	Genesis Genesis
	// Master is the master key. It must not change until the holding is closed. Read does not need it.
	Master *[32]byte
	// Instance is the owner's name, for other instances.
	Instance string
	// Witness is this instance's witness of the ledger; nil: it has none.
	Witness *Witness
	// Timeout is the maximum time for which a transaction may stay open. Default 10 s. If a transaction took longer,
	// double the Timeout for the next Acquire.
	Timeout time.Duration

	// patience is the time for which reading is retried if a broker returns an old copy of a log; default 1 minute.
	patience  time.Duration
	keepAlive time.Duration // interval at which the owner's record is written; default 1 hour
}

func (o *Options) check() error {
	if o.Master == nil {
		return errors.New("cluster: no master key")
	}
	if len(o.Instance) > maxKey {
		return errors.New("cluster: the instance's name is too long")
	}
	o.defaults()
	return nil
}

func (o *Options) defaults() {
	for _, d := range []struct {
		is *time.Duration
		or time.Duration
	}{{&o.Timeout, 10 * time.Second}, {&o.patience, time.Minute}, {&o.keepAlive, time.Hour}} {
		if *d.is == 0 {
			*d.is = d.or
		}
	}
}

// maxLedger is the maximum total size of the lines that a reader accepts, in bytes.
const maxLedger = 1 << 30

// Holding is a shard that this instance has acquired and, as far as it knows, still owns. It is safe for concurrent
// use.
type Holding struct {
	log      Log
	o        Options
	seals    *sealer
	lostCh   chan struct{}
	stop     context.CancelFunc
	finished chan struct{} // closed when keep has returned

	mu      sync.Mutex
	gone    error // reason why the holding cannot be used any more
	closed  bool
	genesis Genesis
	values  map[string]Value
	lines   [][]byte
	known   map[string]held
	bytes   int // size of all values in the logs
	seq     uint64
	head    head
	begun   bool // whether the state has a record of the ledger's head
	last    time.Time
}

func newHolding(log Log, o Options) *Holding {
	return &Holding{log: log, o: o, seals: newSealer(o.Master), lostCh: make(chan struct{}), stop: func() {}}
}

// Acquire takes over a shard. It asks the group whether this instance owns the shard, fences the former owner, and
// writes an owner's record with a new random number. Then it reads the state past that record and the ledger at least
// up to the line that the state names, and checks both. If a broker returns an old copy of a log, Acquire retries for a
// minute. If it finds a fault after that, it writes another owner's record and reads again before it returns a halt,
// because only the current owner may report a halt.
//
// Errors: [ErrMoved] if the group has given the shard to another instance; a [HaltError] if acquiring again does not
// help; after any other error, acquire again after a pause. After an error nothing may be published. Acquire closes the
// log if it fails; otherwise the holding closes it.
func Acquire(ctx context.Context, log Log, o Options) (*Holding, error) {
	if err := o.check(); err != nil {
		log.Close()
		return nil, err
	}
	h := newHolding(log, o)
	t, err := h.take(ctx, func(t *logs) error {
		if t.genesis == nil {
			return errAgain{
				&HaltError{HaltGenesis,
					errors.New("the ledger does not begin with a genesis line: create it with streamdp cluster init")}}
		}
		return nil
	})
	if err != nil {
		log.Close()
		h.wipe()
		return nil, err
	}
	h.genesis, h.values, h.lines, h.known = *t.genesis, t.values, t.lines, t.known
	h.seq, h.head, h.begun = leap(t.state.seq), head{}.after(t.lines), t.state.head != nil
	for _, k := range h.known {
		h.bytes += k.bytes
	}
	keeping, stop := context.WithCancel(context.Background())
	h.stop, h.finished = stop, make(chan struct{})
	go h.keep(keeping)
	return h, nil
}

// leap returns the number from which this holding numbers its updates: it exceeds seq by a random number of at most
// 2³². The former owner may have written updates that were aborted but are still in the log. With the leap, none of
// them has the same number as an update of this holding, so chunks of both are never combined into one value.
func leap(seq uint64) uint64 {
	nonce := keys.NewNonce()
	return seq + uint64(binary.BigEndian.Uint32(nonce[:]))
}

// take makes this instance the owner, and then reads the shard.
func (h *Holding) take(ctx context.Context, fit func(*logs) error) (*logs, error) {
	if err := h.log.Confirm(ctx); err != nil {
		return nil, fmt.Errorf("ask the group for the shard's owner: %w", err)
	}
	if err := h.log.Fence(ctx, h.o.Timeout); err != nil {
		return nil, fmt.Errorf("fence the former owner: %w", err)
	}
	var wrong error
	for range 2 {
		token, err := h.own(ctx)
		if err != nil {
			return nil, err
		}
		var t *logs
		if t, wrong = h.settle(ctx, token, fit); wrong == nil {
			return t, nil
		}
		if halt := (*HaltError)(nil); !errors.As(wrong, &halt) {
			return nil, wrong
		}
	}
	return nil, wrong
}

// own writes the owner's record of this acquisition, and returns its token.
func (h *Holding) own(ctx context.Context) (string, error) {
	nonce := keys.NewNonce()
	owner := Owner{hex.EncodeToString(nonce[:]), h.o.Instance}
	if err := h.log.Commit(ctx, []Record{owner.record()}, nil); err != nil {
		return "", lost(err)
	}
	h.last = time.Now()
	return owner.Token, nil
}

// settle reads both logs, and repeats this while a broker returns an old log.
func (h *Holding) settle(ctx context.Context, token string, fit func(*logs) error) (*logs, error) {
	return settle(ctx, h.o.patience, func() (*logs, error) {
		t, err := load(ctx, h.log, h.o, h.seals, token)
		if err == nil {
			err = fit(t)
		}
		return t, err
	})
}

func settle(ctx context.Context, patience time.Duration, read func() (*logs, error)) (*logs, error) {
	const first, most = 50 * time.Millisecond, 2 * time.Second
	for pause, until := first, time.Now().Add(patience); ; pause = min(2*pause, most) {
		t, err := read()
		again := errAgain{}
		if err == nil || !errors.As(err, &again) {
			return t, err
		}
		if time.Now().After(until) {
			if halt := (*HaltError)(nil); errors.As(again.err, &halt) {
				return nil, halt
			}
			return nil, &HaltError{HaltOld, again.err}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// lost returns the error of a Commit with an unknown outcome.
func lost(err error) error { return fmt.Errorf("%w: %w", ErrLost, err) }

// Genesis returns the genesis of the ledger.
func (h *Holding) Genesis() Genesis { return h.genesis }

// Values returns the values as they were at the acquisition, without those whose secret is destroyed. It hands the
// values over: a second call returns nil.
func (h *Holding) Values() map[string]Value {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.values
	h.values = nil
	return v
}

// Lines returns the ledger's lines as they were at the acquisition, without newlines and without the genesis. It hands
// the lines over: a second call returns nil.
func (h *Holding) Lines() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.lines
	h.lines = nil
	return l
}

// Witness returns the witness of all lines that are known to be committed in the ledger.
func (h *Holding) Witness() Witness {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Witness{h.seals.genesis, h.head.lines, h.head.hash}
}

// Lost returns a channel that is closed when the holding is lost: after an error of Update or Affirm, or if the owner's
// hourly record could not be committed.
func (h *Holding) Lost() <-chan struct{} { return h.lostCh }

// Err returns why the holding is lost, or nil if it is not.
func (h *Holding) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}

// Update makes the values in put durable, removes the values in remove, and appends lines to the ledger. The caller has
// chained these lines to the earlier ones. Update does all of this or nothing, in one transaction, and returns when the
// transaction is committed. Updates run one at a time.
//
// Errors: if the outcome is unknown, Update returns [ErrLost] with its cause, and so does every later call; it also
// does so after Close. Any other error means that the update was refused before anything was sent; the holding is then
// unchanged. A cancelled ctx causes an error of either kind.
//
// Cost: a transaction, about 20 ms, and AES-GCM of the values.
func (h *Holding) Update(ctx context.Context, put map[string]Value, remove []string, lines [][]byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone != nil {
		return h.gone
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := h.plan(put, remove, lines)
	if err != nil {
		return err
	}
	if len(p.state) == 0 && len(lines) == 0 {
		return nil
	}
	if err := h.log.Commit(ctx, p.state, p.ledger); err != nil {
		return h.lose(err)
	}
	for key, w := range p.wraps {
		h.seals.keep(key, w)
	}
	for key, k := range p.known {
		if k.chunks == 0 {
			delete(h.known, key)
		} else {
			h.known[key] = k
		}
	}
	h.bytes, h.seq, h.head, h.begun, h.last = p.bytes, p.seq, p.head, true, time.Now()
	return nil
}

// Affirm checks that this instance still owns the shard: it writes another owner's record, which the broker accepts
// only from the current owner. Call it before you treat something unexpected outside of the shard as a fault, because
// the shard's next owner may have caused it.
//
// Errors: as for Update.
//
// Cost: a transaction.
func (h *Holding) Affirm(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone != nil {
		return h.gone
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := h.own(ctx); err != nil {
		return h.lose(err)
	}
	return nil
}

// plan is an update that was not sent yet.
type plan struct {
	state, ledger []Record
	known         map[string]held // changed values; a value without chunks is removed
	wraps         map[string]*wrap
	bytes         int
	seq           uint64
	head          head
}

// plan returns the records that an update writes.
func (h *Holding) plan(put map[string]Value, remove []string, lines [][]byte) (*plan, error) {
	p := &plan{known: map[string]held{}, wraps: map[string]*wrap{}, bytes: h.bytes, seq: h.seq + 1,
		head: h.head.after(lines)}
	sent := 0
	for _, line := range lines {
		if sent += len(line); len(line) > MaxLine {
			return nil, fmt.Errorf("a ledger line of %d bytes: %w", len(line), ErrTooLarge)
		}
		p.ledger = append(p.ledger, Record{Value: line})
	}
	for _, key := range remove {
		if _, both := put[key]; both || key == headKey {
			return nil, fmt.Errorf("internal: an update must not remove %q", key)
		}
		old, ok := h.known[key]
		if _, twice := p.known[key]; !ok || twice {
			continue
		}
		p.known[key], p.wraps[key] = held{}, nil
		p.bytes -= old.bytes
		for i := range old.chunks {
			p.state = append(p.state, Record{Key: recordKey(key, i)})
		}
	}
	for _, key := range sortedKeys(put) {
		v := put[key]
		if key == "" || len(key) > maxKey || key == headKey || key == ownerKey {
			return nil, fmt.Errorf("internal: %q is not a valid key for a value", key)
		}
		p.wraps[key] = h.seals.wrapOf(v)
		k := held{chunksOf(len(v.Data)), len(v.Data), v.Under, false}
		p.known[key] = k
		p.bytes += k.bytes - h.known[key].bytes
		sent += k.bytes
	}
	if p.bytes > maxState || sent > maxState {
		return nil, fmt.Errorf("%d bytes in all: %w", max(p.bytes, sent), ErrTooLarge)
	}
	if err := h.keepsSecrets(p); err != nil {
		return nil, err
	}
	if len(lines) > 0 || !h.begun && len(p.known) > 0 {
		records, err := h.seals.seal(headKey, p.seq, Value{Data: p.head.bytes()}, nil)
		if err != nil {
			return nil, err
		}
		p.state = append(p.state, records...)
	}
	for _, key := range sortedKeys(put) {
		v := put[key]
		w, changed := p.wraps[v.Under]
		if !changed {
			w = h.seals.under[v.Under]
		}
		if v.Under != "" && w == nil {
			return nil, fmt.Errorf("internal: value %q is encrypted under %q, which is not a secret", key, v.Under)
		}
		records, err := h.seals.seal(key, p.seq, v, w)
		if err != nil {
			return nil, err
		}
		p.state = append(p.state, records...)
		for i := len(records); i < h.known[key].chunks; i++ {
			p.state = append(p.state, Record{Key: recordKey(key, i)})
		}
	}
	return p, nil
}

// keepsSecrets returns an error if an update changes a secret but leaves values sealed under it unchanged, because
// nobody could read these values any more.
func (h *Holding) keepsSecrets(p *plan) error {
	for key, w := range p.wraps {
		was := h.seals.under[key]
		if was == nil || p.known[key].chunks == 0 || w != nil && *w == *was {
			continue
		}
		for other, k := range h.known {
			if _, changed := p.known[other]; k.under == key && !changed {
				return fmt.Errorf("internal: secret %q changes, but %q is still encrypted under it", key, other)
			}
		}
	}
	return nil
}

// lose marks the holding as lost, unless it is already, and returns ErrLost with the cause. The caller holds h.mu.
func (h *Holding) lose(cause error) error {
	if h.gone == nil {
		h.gone = lost(cause)
		close(h.lostCh)
		h.stop()
		h.seals.wipe()
	}
	return h.gone
}

// keep writes the owner's record regularly, so that the broker does not forget the transactional id of a shard in which
// nothing happens.
func (h *Holding) keep(ctx context.Context) {
	defer close(h.finished)
	for wait := h.o.keepAlive; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		h.mu.Lock()
		wait = time.Until(h.last.Add(h.o.keepAlive))
		if wait <= 0 && h.gone == nil {
			if _, err := h.own(ctx); err != nil {
				h.lose(err)
			}
			wait = h.o.keepAlive
		}
		h.mu.Unlock()
	}
}

var errClosed = errors.New("the shard's logs are closed: this instance gave up the shard")

// Close ends the holding and its log, and overwrites its keys. It waits for an update in progress.
func (h *Holding) Close() {
	h.stop()
	h.mu.Lock()
	closed := h.closed
	h.closed = true
	if h.gone == nil {
		h.lose(errClosed)
	}
	h.mu.Unlock()
	<-h.finished
	if !closed {
		h.log.Close()
	}
}

// wipe overwrites the keys of a holding whose acquisition failed.
func (h *Holding) wipe() { h.seals.wipe() }
