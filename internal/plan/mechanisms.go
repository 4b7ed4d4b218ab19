package plan

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/audit/suites"
	"github.com/streamdp/streamdp/stream/core"
)

// mechanism holds what the commands need to know about a mechanism and package core does not tell.
type mechanism struct {
	// plan fills in what the command plan shows after the guarantee of a stream, and sets the function that prints it.
	plan func(p *Plan, s *config.Stream, ask Options) error
	// audits builds the audits of a stream's mechanism; nil: it has none.
	audits suites.Builder
	// conditioned is true if the plan depends on Options.Condition.
	conditioned bool
}

// mechanisms has a row for each of [core.MechanismNames].
var mechanisms = map[string]mechanism{
	"moments":    {plan: (*Plan).ofMoments, audits: suites.Moments},
	"sgd/newton": {plan: (*Plan).ofNewton, audits: suites.Newton},
	"sgd/amb":    {plan: (*Plan).ofDescent, audits: suites.Descent, conditioned: true},
	"refit":      {plan: (*Plan).ofRefit, audits: suites.Refit},
	"adam":       {plan: (*Plan).ofAdam, audits: suites.Adam},
}

// mechanismOf returns the row of a stream's mechanism, or an empty row if it has none.
func mechanismOf(s *config.Stream) mechanism { return mechanisms[core.MechanismName(s)] }

// Conditioned reports whether the plan of a stream depends on [Options.Condition].
func Conditioned(s *config.Stream) bool { return mechanismOf(s).conditioned }

// Audits returns the builder of audits for a stream's mechanism, for [suites.Of]; nil if the mechanism has no audits.
func Audits(s *config.Stream) suites.Builder { return mechanismOf(s).audits }
