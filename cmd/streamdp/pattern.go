package main

import (
	"fmt"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/preflight"
)

// known returns the configuration with the streams that its patterns have made, by the ledger. Where
// that can't be read it has none of them: what needs the ledger says why.
func known(cfg *config.Config) *config.Config {
	if len(cfg.Patterns) == 0 {
		return cfg
	}
	books, err := ledger.ReadBooks(cfg.State.Dir)
	if err != nil {
		return cfg
	}
	return books.Expand(cfg)
}

// names reports whether a name is that of a stream of [config.Config.Representative], or of what it
// stands for: the pattern, or a stream of it.
func names(cfg *config.Config, s *config.Stream, name string) bool {
	if s.Pattern() == "" {
		return s.Name == name
	}
	if name == s.Pattern() || name == preflight.Title(s) {
		return true
	}
	of := cfg.Named(name)
	return of != nil && of.Pattern() == s.Pattern()
}

// decodedAs returns a stream whose records are decoded as those of the named one, "" for the only one. The name
// of a pattern will do, because its streams differ in their topics alone, unless the topic names the
// subject of the schemas. nil: there is none.
func decodedAs(cfg *config.Config, name string) *config.Stream {
	of := cfg.Representative()
	if name == "" && len(of.Streams) == 1 {
		name = preflight.Title(of.Streams[0])
	}
	if s := cfg.Named(name); s != nil {
		return s
	}
	for _, s := range of.Streams {
		if p := s.Pattern(); p != "" && (name == p || name == preflight.Title(s)) &&
			(!s.Input.Looked() || len(s.Input.Subjects) > 0) {
			s.Name = preflight.Title(s)
			return s
		}
	}
	return nil
}

// canonical returns the part of a stream's configuration that its epochs depend on. Of a pattern the
// topic is left open.
func canonical(s *config.Stream) string {
	if s.Pattern() != "" {
		x := *s
		x.Input.Topic = "*"
		s = &x
	}
	return string(s.Canonical(s.Input.First()))
}

// printTaken prints which topics patterns take.
func (g *globals) printTaken(cfg *config.Config) {
	for _, p := range cfg.Patterns {
		var topics []string
		for _, s := range cfg.Streams {
			if s.Pattern() == p.Name {
				topics = append(topics, s.Input.Topic)
			}
		}
		if len(topics) > 0 {
			fmt.Fprintf(g.stdout, "\nstream %s takes %d of at most %d topics: %s\n",
				preflight.Title(cfg.Stream(p.StreamName(topics[0]))), len(topics), p.Input.MaxTopics,
				strings.Join(topics, ", "))
		}
	}
}

// printPatterns prints which topics a daemon's patterns match and do not take.
func printPatterns(g *globals, all []httpapi.PatternStatus) {
	for _, p := range all {
		fmt.Fprintf(g.stdout, "\n%s.*: %d of at most %d topics that match %s are taken\n", p.Pattern, p.Taken,
			p.Most, p.Topics)
		for _, r := range p.Missing {
			fmt.Fprintf(g.stdout, "%s.*: topic %s is not taken: %s\n", p.Pattern, r.Topic, r.Reason)
		}
		if n := p.Beyond + p.Refused - len(p.Missing); n > 0 {
			fmt.Fprintf(g.stdout, "%s.*: %d more topics are not taken\n", p.Pattern, n)
		}
	}
}
