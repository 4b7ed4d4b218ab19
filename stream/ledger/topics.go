package ledger

import (
	"slices"
	"strings"

	"github.com/streamdp/streamdp/config"
)

// TakenTopics returns the topics of the streams that were created from patterns, in the order of the ledger. If all is
// false, it omits streams without an open epoch.
func (l *Ledger) TakenTopics(all bool) (list []config.Taken) {
	for _, t := range l.Tasks() {
		if !strings.Contains(t.Stream, ".") {
			continue
		}
		last := l.Newest(t)
		if last == nil || !all && last.Kind != KindOpen {
			continue
		}
		if x := (config.Taken{Stream: t.Stream, Topic: last.Topic}); !slices.Contains(list, x) {
			list = append(list, x)
		}
	}
	return list
}

// WrittenTopics returns the topics to which epochs published.
func (l *Ledger) WrittenTopics() (list []string) {
	seen := map[string]bool{}
	for _, e := range l.All() {
		if e.Output != nil && !seen[e.Output.Topic] {
			seen[e.Output.Topic] = true
			list = append(list, e.Output.Topic)
		}
	}
	return list
}

// Expand returns a configuration that includes the streams created from its patterns, as far as the ledgers record
// them. It is for commands that do not ask the brokers.
func (b *Books) Expand(c *config.Config) *config.Config {
	x, _ := c.Expand(b.Topics())
	return x
}

// Topics returns what the ledgers record about topics that patterns match. It does not set Found.
func (b *Books) Topics() (t config.Topics) {
	for _, l := range b.Ledgers {
		t.Kept = append(t.Kept, l.TakenTopics(true)...)
		t.Written = append(t.Written, l.WrittenTopics()...)
	}
	return t
}
