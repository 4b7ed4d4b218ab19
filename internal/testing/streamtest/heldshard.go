package streamtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// shared makes a daemon keep its state in the shard's logs.
func shared(o *stream.Options, h cluster.Holding) error {
	if err := os.MkdirAll(filepath.Join(o.Config.State.Dir, "tasks"), 0o700); err != nil { // for the sockets
		return err
	}
	s, err := cluster.NewShard(h)
	if err == nil {
		o.Hooks.Shard = s
	}
	return err
}

// HeldShard is a shard's logs in memory, with the state that the protocol derives from them. It checks three things in
// every update. A charge comes with the epoch that it pays for, and later states keep that epoch. The ledger's chain
// stays intact. Values of an epoch are encrypted under the epoch's secret.
type HeldShard struct {
	Mu      sync.Mutex
	Stored  map[string]shardlog.Value // the committed values
	Ledger  [][]byte
	Updates []string // descriptions of the committed updates
	Wrong   []string // violations that were found

	Calls int
	Fault int  // the number of the call that fails, from 0; −1: none
	Late  bool // the failing call is committed all the same
	Hold  chan struct{}

	Done     chan struct{}
	Broken   bool
	Taken    bool // another owner has the shard; Affirm detects it
	Affirmed int  // number of calls of Affirm
}

func NewHeldShard() *HeldShard {
	return &HeldShard{Stored: map[string]shardlog.Value{}, Fault: -1, Done: make(chan struct{})}
}

// Again returns the shard in the state in which the next owner finds it.
func (h *HeldShard) Again() *HeldShard {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	n := NewHeldShard()
	n.Ledger, n.Updates, n.Wrong, n.Calls = slices.Clone(h.Ledger), slices.Clone(h.Updates), h.Wrong, h.Calls
	for key, v := range h.Stored {
		if _, there := h.Stored[v.Under]; v.Under == "" || there {
			n.Stored[key] = v
		}
	}
	return n
}

func (h *HeldShard) Values() map[string]shardlog.Value {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return maps.Clone(h.Stored)
}

func (h *HeldShard) Lines() [][]byte {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return bytes.Split(bytes.Join(h.Ledger, []byte("\n")), []byte("\n"))[:len(h.Ledger)]
}

func (h *HeldShard) Lost() <-chan struct{} { return h.Done }

func (h *HeldShard) Affirm(context.Context) error {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Affirmed++
	if h.Taken && !h.Broken {
		h.Broken = true
		close(h.Done)
	}
	if h.Broken {
		return fmt.Errorf("%w: fenced", shardlog.ErrLost)
	}
	return nil
}

func (h *HeldShard) Update(_ context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	if h.Hold != nil {
		<-h.Hold
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Broken {
		h.Wrong = append(h.Wrong, "an update after the shard was lost")
		return shardlog.ErrLost
	}
	n := h.Calls
	h.Calls++
	if n == h.Fault {
		h.Broken = true
		defer close(h.Done)
		if !h.Late {
			return fmt.Errorf("%w: refused", shardlog.ErrLost)
		}
	}
	for _, key := range remove {
		if _, both := put[key]; both {
			h.Wrong = append(h.Wrong, "puts and removes "+key)
		}
		delete(h.Stored, key)
	}
	maps.Copy(h.Stored, put)
	for key, v := range h.Stored {
		_, file, _ := strings.Cut(key, "/")
		ends := strings.HasPrefix(file, "checkpoint") || strings.HasPrefix(file, "initial-") ||
			strings.HasPrefix(file, "users-")
		under, there := h.Stored[v.Under]
		if ends != (v.Under != "") || v.Under != "" && !there || under.Under != "" ||
			strings.HasSuffix(key, state.TemporarySuffix) {
			h.Wrong = append(h.Wrong, fmt.Sprintf("%s is under %q", key, v.Under))
		}
	}
	words := []string{}
	for _, line := range lines {
		var e ledger.Entry
		head := [32]byte{}
		if k := len(h.Ledger); k > 0 {
			head = sha256.Sum256(h.Ledger[k-1])
		}
		if json.Unmarshal(line, &e) != nil || e.Prev != hex.EncodeToString(head[:]) ||
			e.Seq != uint64(len(h.Ledger)+1) {
			h.Wrong = append(h.Wrong, fmt.Sprintf("line %d continues another ledger: %s", len(h.Ledger)+1, line))
		}
		h.Ledger = append(h.Ledger, line)
		words = append(words, e.Kind)
		dir := e.Task().String() + "/"
		switch e.Kind {
		case ledger.KindOpen:
			cp, has := put[dir+state.CheckpointName]
			epoch, _ := state.CheckpointEpoch(cp.Data)
			if _, secret := put[dir+state.SecretName(e.Epoch)]; !has || epoch != e.Epoch || !secret ||
				put[dir+state.ManifestName(e.Epoch)].Data == nil {
				h.Wrong = append(h.Wrong, fmt.Sprintf("epoch %d was charged and not made", e.Epoch))
			}
		case ledger.KindDestroyed:
			if _, there := h.Stored[dir+state.SecretName(e.Epoch)]; there {
				h.Wrong = append(h.Wrong, fmt.Sprintf("the secret of epoch %d is there still", e.Epoch))
			}
		}
	}
	for key, v := range h.Stored {
		task, name, _ := strings.Cut(key, "/")
		if epoch, ok := state.SecretEpoch(name); ok && len(h.Ledger) > 0 && !h.Charged(task, epoch) {
			h.Wrong = append(h.Wrong, fmt.Sprintf("%s, and the ledger does not charge it", key))
		}
		if name == state.CheckpointName {
			if cp, err := state.ParseCheckpoint(v.Data); err != nil || cp.Ledger != [32]byte{} && !h.knows(cp.Ledger) {
				h.Wrong = append(h.Wrong,
					fmt.Sprintf("%s names a line that is not committed, or is damaged: %v", key, err))
			}
		}
	}
	h.Updates = append(h.Updates, strings.Join(words, " "))
	if n == h.Fault {
		return fmt.Errorf("%w: no answer", shardlog.ErrLost)
	}
	return nil
}

// knows reports whether a line is committed.
func (h *HeldShard) knows(hash [32]byte) bool {
	for _, line := range h.Ledger {
		if sha256.Sum256(line) == hash {
			return true
		}
	}
	return false
}

// Charged reports whether the opening of an epoch is committed.
func (h *HeldShard) Charged(task string, epoch uint64) bool {
	for _, line := range h.Ledger {
		var e ledger.Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == ledger.KindOpen && e.Task().String() == task &&
			e.Epoch == epoch {
			return true
		}
	}
	return false
}

// Committed returns the last step that may be published, of an epoch of the task orders-0. That is the step of the
// checkpoint, or any step once the epoch is closed.
func (h *HeldShard) Committed(epoch uint64) uint64 {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, line := range h.Ledger {
		var e ledger.Entry
		if json.Unmarshal(line, &e) == nil && e.Kind == ledger.KindClose && e.Epoch == epoch {
			return 1 << 62
		}
	}
	if cp, err := state.ParseCheckpoint(h.Stored["orders-0/"+state.CheckpointName].Data); err == nil &&
		cp.Epoch == epoch {
		return cp.Step
	}
	return 0
}
