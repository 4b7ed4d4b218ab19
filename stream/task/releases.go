package task

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// The limits on the published releases that a task keeps for the API: number and bytes. If the process has many tasks,
// each keeps fewer bytes.
const (
	RecentReleases = 100
	recentBytes    = 1 << 20
)

// remember keeps published releases for the API. The publisher calls it.
func (r *Runner) remember(sent []state.Message) {
	if len(sent) == 0 {
		return
	}
	now := r.D.Now()
	r.change(func(s *monitor.TaskStatus) { s.LastRelease = &now })
	r.count(sent)
	for i := range sent {
		// A key with more parts belongs to a piece of a release.
		if _, epoch, step, ok := core.ParseIdentity(sent[i].Key); ok && bytes.Count(sent[i].Key, []byte("/")) == 3 {
			r.series.Add(epoch, step, sent[i].Value)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := max(0, len(sent)-RecentReleases); i < len(sent); i++ {
		// A release in pieces is too large for the API.
		if i > 0 && sent[i].Step == sent[i-1].Step || i+1 < len(sent) && sent[i].Step == sent[i+1].Step {
			continue
		}
		r.recent = append(r.recent, json.RawMessage(sent[i].Value))
	}
	most := r.D.Kept(recentBytes)
	size, keep := 0, 0
	for keep < min(len(r.recent), RecentReleases) {
		if size += len(r.recent[len(r.recent)-1-keep]); size > most && keep > 0 {
			break
		}
		keep++
	}
	r.recent = slices.Delete(r.recent, 0, len(r.recent)-keep)
}

// count passes the shares in published releases to the check of validity, and logs when the check's result changes.
func (r *Runner) count(sent []state.Message) {
	was := r.shown.Load().FewValid
	few := was
	for i := range sent {
		s := sent[i].Shares
		if s == nil { // built by an earlier process
			if read, ok := core.SharesOf(sent[i].Value); ok {
				s = &read
			}
		}
		if s != nil {
			few = r.validity.Take(sent[i].Step, *s)
		}
	}
	if few == was {
		return
	}
	r.change(func(s *monitor.TaskStatus) { s.FewValid = few })
	switch {
	case few && r.S.User != nil:
		r.Log.Warn(
			"by the published counts, possibly no record is valid: check columns, codec, and the key of [user]")
	case few:
		r.Log.Warn(
			"by the published counts, at most a tenth of the last records count in full: check columns, codec, " +
				"centre, scale and clip")
	case r.S.User != nil:
		r.Log.Info("the published counts are back to normal: records count again")
	default:
		r.Log.Info("the published counts are back to normal: more than a tenth of the records count in full")
	}
}

// Releases returns the newest published releases, at most limit, newest first.
func (r *Runner) Releases(limit int) []json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(limit, len(r.recent))
	out := slices.Clone(r.recent[len(r.recent)-n:])
	slices.Reverse(out)
	return out
}

// After returns the points of the releases after the n-th one of this process. n = 0 returns all points.
func (r *Runner) After(ctx context.Context, n uint64) []monitor.Point {
	r.recall(ctx)
	return r.series.After(n)
}

// recall fills the series, at the first request for them, with releases that the output holds from earlier processes.
// If the cluster does not answer, the next request tries again.
func (r *Runner) recall(ctx context.Context) {
	r.recalling.Lock()
	defer r.recalling.Unlock()
	if r.recalled {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, monitor.RecallTime)
	defer cancel()
	topic, partition := r.S.Output.Topic, int32(r.S.Output.Partition)
	start, end, err := r.D.Client.Bounds(ctx, topic, partition)
	if err != nil {
		r.recalled = kafka.UnknownTopic(err) // an output topic that does not exist holds no releases
		return
	}
	seen := map[string]bool{}
	var earlier []*core.Released
	size := 0
	err = r.D.Client.ReadBack(ctx, topic, partition, max(start, end-monitor.RecallRecords),
		func(rec *kafka.Record) error {
			t, epoch, _, ok := core.ParseIdentity(rec.Key)
			if !ok || t != r.Task || seen[string(rec.Key)] || r.D.Ledger.Opening(t, epoch) == nil {
				return nil
			}
			if size += len(rec.Value); size > monitor.RecallBytes {
				return failure.ErrStop
			}
			seen[string(rec.Key)] = true
			if x := r.released(rec.Value); x != nil {
				earlier = append(earlier, x)
			}
			return nil
		})
	if err != nil && !errors.Is(err, failure.ErrStop) {
		return
	}
	slices.SortStableFunc(earlier, func(a, b *core.Released) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Step, b.Step))
	})
	r.series.Recall(earlier)
	r.recalled = true
}

// released parses a release, and adds the true values in a demonstration. It returns nil for a piece of a release.
func (r *Runner) released(value []byte) *core.Released {
	x, err := core.ParseReleased(value)
	if err != nil {
		return nil
	}
	if r.D.Truth != nil {
		for i := range x.Values {
			x.Values[i].Truth = r.D.Truth(x, x.Values[i].Name)
		}
	}
	return x
}
