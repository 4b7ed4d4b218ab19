package cluster

import (
	"fmt"
	"strings"

	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
)

// Status describes the group with which an instance shares tasks, as this instance sees it.
type Status struct {
	Group    string `json:"group"`
	Instance string `json:"instance"`
	// Generation is the number of rebalances of the group; 0: none yet.
	Generation int32 `json:"generation"`
	// Standby is the reason why this instance has no shards: "key", "configuration", "format" or "unreadable"; empty:
	// it is active.
	Standby string `json:"standby,omitempty"`
	// Trouble is the reason why the group currently cannot be reached.
	Trouble string         `json:"trouble,omitempty"`
	Shards  []ShardStatus  `json:"shards"`
	Members []MemberStatus `json:"members"`
	// Unowned are the shards that no instance has.
	Unowned []int `json:"unowned,omitempty"`
}

// ShardStatus is a shard that the group gave to the instance.
type ShardStatus struct {
	Shard int    `json:"shard"`
	State string `json:"state"` // "acquiring", "running", "halted" or "leaving"
	Why   string `json:"why,omitempty"`
}

// Halted reports whether an operator must act before the shard's tasks can run.
func (s *ShardStatus) Halted() bool { return s.State == postHalted }

// MemberStatus is an instance of the group, as of the newest generation.
type MemberStatus struct {
	Instance string `json:"instance"`
	Self     bool   `json:"self,omitempty"`
	// URL is the address of its status page; empty: unknown.
	URL     string `json:"url,omitempty"`
	Version string `json:"version"`
	Shards  []int  `json:"shards"`
	Standby string `json:"standby,omitempty"`
}

// Status returns the instance's view of its group, or nil if it shares no tasks.
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

// memberStatus returns the status of a member, with a link that has the given scheme.
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

// standbys maps each reason of Status.Standby to its explanation.
var standbys = map[string]string{
	kgroup.StandbyKey:           "most instances have another master key",
	kgroup.StandbyConfiguration: "most instances have another configuration",
	kgroup.StandbyFormat:        "most instances write a format that this version does not read",
	kgroup.StandbyUnreadable:    "the other instances could not read this instance's profile",
}

// Missing lists the reasons why the instance does not run everything that the group assigns to it.
func (g *Status) Missing() (lines []string) {
	switch {
	case g.Trouble != "":
		lines = append(lines, "the group cannot be reached: "+oneLine(g.Trouble))
	case g.Generation == 0:
		lines = append(lines, "the group has not assigned shards yet")
	case g.Standby != "":
		lines = append(lines, fmt.Sprintf("this instance is on standby (%s): %s", g.Standby, standbys[g.Standby]))
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

// setTrouble records why this instance cannot reach the group. Its shards keep running.
func (s *Member) setTrouble(err error) {
	s.mu.Lock()
	known := s.trouble != ""
	s.trouble = err.Error()
	s.mu.Unlock()
	s.process.Metrics.KafkaError(err)
	if !known {
		s.process.Log.Warn("cannot reach the group of instances: the shards of this instance keep "+
			"running", "error", err.Error())
	}
	s.process.StateChanged()
}
