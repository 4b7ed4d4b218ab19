package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/streamdp/streamdp/internal/shardlog"
)

// bufferedHolding is a holding that collects its updates, so that they can be written later as one.
type bufferedHolding struct {
	values map[string]shardlog.Value
	lines  [][]byte
	put    map[string]shardlog.Value
	added  [][]byte
}

func newBufferedHolding(values map[string]shardlog.Value, lines [][]byte) *bufferedHolding {
	return &bufferedHolding{values: values, lines: lines, put: map[string]shardlog.Value{}}
}

// Values implements holding.
func (g *bufferedHolding) Values() map[string]shardlog.Value { return g.values }

// Lines implements holding.
func (g *bufferedHolding) Lines() [][]byte { return g.lines }

// Lost implements [Holding]. This holding is never lost.
func (g *bufferedHolding) Lost() <-chan struct{} { return nil }

// Affirm implements holding.
func (g *bufferedHolding) Affirm(context.Context) error { return nil }

// Update implements holding.
func (g *bufferedHolding) Update(_ context.Context, put map[string]shardlog.Value, remove []string,
	lines [][]byte) error {
	for _, key := range remove {
		if _, there := g.put[key]; !there {
			return fmt.Errorf("internal: cannot remove %s from a buffered holding", key)
		}
		delete(g.put, key)
	}
	for key, v := range put {
		v.Data = slices.Clone(v.Data)
		g.put[key] = v
	}
	g.added = append(g.added, lines...)
	return nil
}

// all returns a holding with the content that the shard would have after one update with the collected changes.
func (g *bufferedHolding) all() *bufferedHolding {
	values := maps.Clone(g.values)
	if values == nil {
		values = map[string]shardlog.Value{}
	}
	maps.Copy(values, g.put)
	return newBufferedHolding(values, slices.Concat(g.lines, g.added))
}

// Bytes returns the total size of the values.
func (g *bufferedHolding) Bytes() (n int) {
	for _, v := range g.all().values {
		n += len(v.Data)
	}
	return n
}

// lineBytes returns the total size of the appended lines.
func (g *bufferedHolding) lineBytes() (n int) {
	for _, line := range g.added {
		n += len(line)
	}
	return n
}
