package main

import (
	"fmt"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/preflight"
)

// known returns the configuration, with the streams that its patterns have made according to the ledger. If the ledger
// cannot be read, known adds no streams: a command that needs the ledger then reports the reason itself.
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

// names reports whether name stands for s, a stream of [config.Config.Representative]. The name may be that of s, of
// its pattern, or of any stream of that pattern.
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

// decodedAs returns a stream whose records have the same form as those of the named stream. An empty name stands for
// the only stream. The name of a pattern is accepted too, because its streams differ only in their topics; it is
// refused if the topic determines the subject of the schemas. decodedAs returns nil if there is no such stream.
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

// canonical returns the part of a stream's configuration that its epochs depend on. For a pattern it leaves the topic
// open.
func canonical(s *config.Stream) string {
	if s.Pattern() != "" {
		x := *s
		x.Input.Topic = "*"
		s = &x
	}
	return string(s.Canonical(s.Input.First()))
}

// printTaken prints the topics that patterns read.
func (g *globals) printTaken(cfg *config.Config) {
	for _, p := range cfg.Patterns {
		var topics []string
		for _, s := range cfg.Streams {
			if s.Pattern() == p.Name {
				topics = append(topics, s.Input.Topic)
			}
		}
		if len(topics) > 0 {
			fmt.Fprintf(g.stdout, "\nstream %s reads %d topics (at most %d): %s\n",
				preflight.Title(cfg.Stream(p.StreamName(topics[0]))), len(topics), p.Input.MaxTopics,
				strings.Join(topics, ", "))
		}
	}
}

// printPatterns prints the topics that patterns of a daemon match but that no stream reads.
func printPatterns(g *globals, all []httpapi.PatternStatus) {
	for _, p := range all {
		fmt.Fprintf(g.stdout, "\n%s.*: reads %d topics (at most %d) that match %s\n", p.Pattern, p.Taken,
			p.Most, p.Topics)
		for _, r := range p.Missing {
			fmt.Fprintf(g.stdout, "%s.*: does not read topic %s: %s\n", p.Pattern, r.Topic, r.Reason)
		}
		if n := p.Beyond + p.Refused - len(p.Missing); n > 0 {
			fmt.Fprintf(g.stdout, "%s.*: does not read %d more topics\n", p.Pattern, n)
		}
	}
}
