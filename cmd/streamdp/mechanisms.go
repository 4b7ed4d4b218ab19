package main

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit"
	"github.com/streamdp/streamdp/stream/core"
)

// mechanism is what the commands know of a mechanism, besides what package core knows.
type mechanism struct {
	// plan fills in what the command plan shows of a stream after its guarantee, and how to
	// print it.
	plan func(p *plan, s *config.Stream, ask planQuestion) error
	// audits returns the audits of a stream's mechanism; nil: there are none.
	audits func(s *config.Stream) (*audit.Suite, error)
	// conditioned says that the plan depends on --condition.
	conditioned bool
}

// planQuestion is what plan was asked.
type planQuestion struct {
	all       bool    // the other factorizations too
	plot      bool    // a figure is to be drawn
	condition float64 // guess of the condition number of the features' second moment
	records   uint64  // that a step by the clock is taken to hold
}

// mechanisms has a row for each of [core.MechanismNames].
var mechanisms = map[string]mechanism{
	"moments":    {plan: (*plan).ofMoments, audits: momentsSuite},
	"sgd/newton": {plan: (*plan).ofNewton, audits: newtonSuite},
	"sgd/amb":    {plan: (*plan).ofDescent, audits: descentSuite, conditioned: true},
	"refit":      {plan: (*plan).ofRefit, audits: refitSuite},
	"adam":       {plan: (*plan).ofAdam, audits: adamSuite},
}

// mechanismOf returns the row of a stream's mechanism, an empty row if there is none.
func mechanismOf(s *config.Stream) mechanism { return mechanisms[core.MechanismName(s)] }
