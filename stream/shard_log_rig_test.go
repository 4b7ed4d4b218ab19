package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/streamdp/streamdp/internal/shardlog"
)

// heldShard is a shard's logs in memory, and what the protocol makes of them. It checks what no
// update may do: charge an epoch without making it, or what follows from that; break the ledger's
// chain; seal what ends with an epoch under nothing.
type heldShard struct {
	mu      sync.Mutex
	values  map[string]shardlog.Value // committed
	lines   [][]byte
	updates []string // what was committed, in words
	wrong   []string // what must not have happened

	calls int
	fault int  // the call that fails, from 0; −1: none
	late  bool // it is committed all the same
	hold  chan struct{}

	lost     chan struct{}
	broken   bool
	taken    bool // by another owner, which Affirm finds
	affirmed int  // calls of Affirm
}

func newHeldShard() *heldShard {
	return &heldShard{values: map[string]shardlog.Value{}, fault: -1, lost: make(chan struct{})}
}

// again returns the shard as another acquisition finds it.
func (h *heldShard) again() *heldShard {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := newHeldShard()
	n.lines, n.updates, n.wrong, n.calls = slices.Clone(h.lines), slices.Clone(h.updates), h.wrong, h.calls
	for key, v := range h.values {
		if _, there := h.values[v.Under]; v.Under == "" || there {
			n.values[key] = v
		}
	}
	return n
}

func (h *heldShard) Values() map[string]shardlog.Value {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.values)
}

func (h *heldShard) Lines() [][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Split(bytes.Join(h.lines, []byte("\n")), []byte("\n"))[:len(h.lines)]
}

func (h *heldShard) Lost() <-chan struct{} { return h.lost }

func (h *heldShard) Affirm(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.affirmed++
	if h.taken && !h.broken {
		h.broken = true
		close(h.lost)
	}
	if h.broken {
		return fmt.Errorf("%w: fenced", shardlog.ErrLost)
	}
	return nil
}

func (h *heldShard) Update(_ context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	if h.hold != nil {
		<-h.hold
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.broken {
		h.wrong = append(h.wrong, "an update after the shard was lost")
		return shardlog.ErrLost
	}
	n := h.calls
	h.calls++
	if n == h.fault {
		h.broken = true
		defer close(h.lost)
		if !h.late {
			return fmt.Errorf("%w: refused", shardlog.ErrLost)
		}
	}
	for _, key := range remove {
		if _, both := put[key]; both {
			h.wrong = append(h.wrong, "puts and removes "+key)
		}
		delete(h.values, key)
	}
	maps.Copy(h.values, put)
	for key, v := range h.values {
		_, file, _ := strings.Cut(key, "/")
		ends := strings.HasPrefix(file, "checkpoint") || strings.HasPrefix(file, "initial-") || strings.HasPrefix(file, "users-")
		under, there := h.values[v.Under]
		if ends != (v.Under != "") || v.Under != "" && !there || under.Under != "" || strings.HasSuffix(key, temporarySuffix) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s is under %q", key, v.Under))
		}
	}
	words := []string{}
	for _, line := range lines {
		var e Entry
		head := [32]byte{}
		if k := len(h.lines); k > 0 {
			head = sha256.Sum256(h.lines[k-1])
		}
		if json.Unmarshal(line, &e) != nil || e.Prev != hex.EncodeToString(head[:]) || e.Seq != uint64(len(h.lines)+1) {
			h.wrong = append(h.wrong, fmt.Sprintf("line %d continues another ledger: %s", len(h.lines)+1, line))
		}
		h.lines = append(h.lines, line)
		words = append(words, e.Kind)
		dir := e.Task().String() + "/"
		switch e.Kind {
		case kindOpen:
			cp, has := put[dir+checkpointName]
			epoch, _ := checkpointEpoch(cp.Data)
			if _, secret := put[dir+secretName(e.Epoch)]; !has || epoch != e.Epoch || !secret || put[dir+manifestName(e.Epoch)].Data == nil {
				h.wrong = append(h.wrong, fmt.Sprintf("epoch %d was charged and not made", e.Epoch))
			}
		case kindDestroyed:
			if _, there := h.values[dir+secretName(e.Epoch)]; there {
				h.wrong = append(h.wrong, fmt.Sprintf("the secret of epoch %d is there still", e.Epoch))
			}
		}
	}
	for key, v := range h.values {
		task, name, _ := strings.Cut(key, "/")
		if epoch, ok := secretEpoch(name); ok && len(h.lines) > 0 && !h.charged(task, epoch) {
			h.wrong = append(h.wrong, fmt.Sprintf("%s, and the ledger does not charge it", key))
		}
		if name == checkpointName {
			if cp, err := parseCheckpoint(v.Data); err != nil || cp.ledger != [32]byte{} && !h.knows(cp.ledger) {
				h.wrong = append(h.wrong, fmt.Sprintf("%s names a line that is not committed, or is damaged: %v", key, err))
			}
		}
	}
	h.updates = append(h.updates, strings.Join(words, " "))
	if n == h.fault {
		return fmt.Errorf("%w: no answer", shardlog.ErrLost)
	}
	return nil
}

// knows reports whether a line is committed.
func (h *heldShard) knows(hash [32]byte) bool {
	for _, line := range h.lines {
		if sha256.Sum256(line) == hash {
			return true
		}
	}
	return false
}

// charged reports whether an epoch's opening is committed.
func (h *heldShard) charged(task string, epoch uint64) bool {
	for _, line := range h.lines {
		var e Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == kindOpen && e.Task().String() == task && e.Epoch == epoch {
			return true
		}
	}
	return false
}

// committed returns the last step of an epoch of the task orders-0 that may be published: the
// checkpoint's, or any once the epoch is closed.
func (h *heldShard) committed(epoch uint64) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, line := range h.lines {
		var e Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == kindClose && e.Epoch == epoch {
			return 1 << 62
		}
	}
	if cp, err := parseCheckpoint(h.values["orders-0/"+checkpointName].Data); err == nil && cp.epoch == epoch {
		return cp.step
	}
	return 0
}
