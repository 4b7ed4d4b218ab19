package core

import (
	"fmt"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// Reserved is the division of the budget limit of an input partition: one part for sketches, the rest for Gaussian
// releases. It depends only on the configuration, so it is known before the first release. The ledger records it when
// the first epoch opens.
type Reserved struct {
	// Sketches is the part for sketches. It is empty if no stream of the topic uses them.
	Sketches dp.Cost `json:"sketches"`
	// Mu is the rest of the limit, for all Gaussian releases together.
	Mu float64 `json:"mu"`
}

// Reserve returns how the limit of a stream's input is divided. If a stream of the topic uses sketches, Reserve adds
// the costs of one epoch of each stream of the topic. It then finds how many times the limit covers that sum, and
// reserves the sketches' share.
//
// Errors: the limit does not cover one epoch of all streams of the topic together.
func Reserve(c *config.Config, s *config.Stream) (*Reserved, error) {
	p := s.Privacy
	var costs []dp.Cost
	var names []string
	sketched := false
	for _, other := range c.Streams {
		if other.Input.Topic != s.Input.Topic {
			continue
		}
		d := mechanismOf(other)
		sketched = sketched || d != nil && d.sketches != nil && d.sketches(other)
		names = append(names, other.Name)
	}
	r := &Reserved{Sketches: dp.Cost{Adjacency: p.Adjacency}}
	if sketched {
		for _, other := range c.Streams {
			if other.Input.Topic != s.Input.Topic {
				continue
			}
			m, err := NewMechanism(other, nil, nil)
			if err != nil {
				return nil, err
			}
			cost, err := m.Cost().In(p.Adjacency)
			if err != nil {
				return nil, fmt.Errorf("stream %s: %w", other.Name, err)
			}
			costs = append(costs, cost)
		}
		var err error
		if r.Sketches, err = dp.Reserve(dp.Compose(costs...), p.LimitEpsilon, p.LimitDelta); err != nil {
			return nil,
				fmt.Errorf(
					"limit_epsilon %g at delta %g does not cover one epoch of each stream of topic %s (%s), as a "+
						"solver with sketches requires: %w",
					p.LimitEpsilon, p.LimitDelta, s.Input.Topic, strings.Join(names, ", "), err)
		}
	}
	var err error
	r.Mu, err = dp.ReservedMu(r.Sketches, p.LimitEpsilon, p.LimitDelta)
	return r, err
}

// Divide sets Reserved if one of the topic's streams uses sketches. It fails as [Reserve] does.
func (d *Description) Divide(c *config.Config, s *config.Stream) error {
	r, err := Reserve(c, s)
	if err == nil && !r.Sketches.Empty() {
		d.Reserved = r
	}
	return err
}

// String describes the reserved parts in words.
func (r *Reserved) String() string {
	if r.Sketches.Empty() {
		return ""
	}
	return fmt.Sprintf("%s; mu at most %.6g for all Gaussian releases", SketchesInWords(r.Sketches), r.Mu)
}

// SketchesInWords describes the cost of sketches in words.
func SketchesInWords(c dp.Cost) string {
	var words []string
	if c.Rows > 0 {
		words = append(words, fmt.Sprintf("%d rows at gamma %.6g or more", c.Rows, c.Gamma))
	}
	for _, t := range c.Terms {
		switch t.Kind {
		case dp.KindFastMixRow:
			words = append(words, fmt.Sprintf("%d fast rows at gamma %.6g", t.Count, t.Gamma))
		case dp.KindLaplace:
			words = append(words, fmt.Sprintf("%d Laplace releases of scale %.6g", t.Count, t.Scale))
		default:
			words = append(words, fmt.Sprintf("%d releases (%s)", t.Count, t.Kind))
		}
	}
	if c.BadDelta > 0 {
		words = append(words, fmt.Sprintf("bounds that fail with probability %.3g", c.BadDelta))
	}
	return strings.Join(words, ", ")
}
