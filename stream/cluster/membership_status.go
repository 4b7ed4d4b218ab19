package cluster

import (
	"fmt"
	"strings"

	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
)

// Status is what an instance knows of the group with which it shares tasks.
type Status struct {
	Group    string `json:"group"`
	Instance string `json:"instance"`
	// Generation counts how often the group has divided the shards; 0: not yet.
	Generation int32 `json:"generation"`
	// Standby is why this instance is given no shards: "key", "configuration", "format" or
	// "unreadable"; empty: it takes part.
	Standby string `json:"standby,omitempty"`
	// Trouble is why the group has no word for this instance at the moment.
	Trouble string         `json:"trouble,omitempty"`
	Shards  []ShardStatus  `json:"shards"`
	Members []MemberStatus `json:"members"`
	// Unowned are the shards that nobody is given.
	Unowned []int `json:"unowned,omitempty"`
}

// ShardStatus is a shard that the group gave to the instance.
type ShardStatus struct {
	Shard int    `json:"shard"`
	State string `json:"state"` // Acquiring, running, halted, leaving
	Why   string `json:"why,omitempty"`
}

// Halted reports whether an operator must see to the shard before its tasks run.
func (s *ShardStatus) Halted() bool { return s.State == postHalted }

// MemberStatus is an instance of the group, as of the newest generation.
type MemberStatus struct {
	Instance string `json:"instance"`
	Self     bool   `json:"self,omitempty"`
	// URL is where its status page is; empty: nobody knows.
	URL     string `json:"url,omitempty"`
	Version string `json:"version"`
	Shards  []int  `json:"shards"`
	Standby string `json:"standby,omitempty"`
}

// Status returns what the instance knows of its group, nil where it shares no tasks.
func (s *Member) Status() *Status {
	if s == nil {
		return nil
	}
	out := &Status{Group: s.process.Cfg.Cluster.Group, Instance: s.instance, Shards: []ShardStatus{},
		Members: []MemberStatus{}}
	for _, p := range s.all() {
		state, why := p.now()
		out.Shards = append(out.Shards, ShardStatus{p.shard, state, why})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Trouble = s.trouble
	if g := s.generation; g != nil {
		out.Generation, out.Standby, out.Unowned = g.Number, g.Standby, g.Unowned
		scheme := "http"
		if s.process.Cfg.HTTP.TLS != nil {
			scheme = "https"
		}
		for i, m := range g.Members {
			out.Members = append(out.Members, memberStatus(m, scheme))
			out.Members[i].Self = i == g.Self
		}
	}
	return out
}

// memberStatus says what a member is, with a link by a scheme.
func memberStatus(m kgroup.MemberInfo, scheme string) MemberStatus {
	s := MemberStatus{Instance: m.Instance, Version: m.Build, Shards: m.Shards, Standby: m.Standby}
	if m.Address != "" {
		s.URL = scheme + "://" + m.Address + "/"
	}
	if s.Shards == nil {
		s.Shards = []int{}
	}
	return s
}

// standbys say in words why an instance is given no shards.
var standbys = map[string]string{
	kgroup.StandbyKey:           "most instances have another key",
	kgroup.StandbyConfiguration: "most instances have another configuration",
	kgroup.StandbyFormat:        "most instances write a format that this version does not read",
	kgroup.StandbyUnreadable:    "the others could not read what this instance says of itself",
}

// Missing says what an instance lacks to do all that the group asks of it.
func (g *Status) Missing() (lines []string) {
	switch {
	case g.Trouble != "":
		lines = append(lines, "the group has no word for this instance: "+oneLine(g.Trouble))
	case g.Generation == 0:
		lines = append(lines, "the group has not divided the shards yet")
	case g.Standby != "":
		lines = append(lines, fmt.Sprintf("this instance stands by (%s): %s", g.Standby, standbys[g.Standby]))
	}
	for _, s := range g.Shards {
		if s.State != postRunning {
			line := fmt.Sprintf("shard %d is %s", s.Shard, s.State)
			if s.Why != "" {
				line += ": " + oneLine(s.Why)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", " ") }

// troubled shows why this instance hears nothing of the group. What it has goes on.
func (s *Member) troubled(err error) {
	s.mu.Lock()
	known := s.trouble != ""
	s.trouble = err.Error()
	s.mu.Unlock()
	s.process.Metrics.KafkaError(err)
	if !known {
		s.process.Log.Warn("the group of instances cannot be reached: what this one has goes on", "error", err.Error())
	}
	s.process.StateChanged()
}
