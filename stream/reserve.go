package stream

import (
	"fmt"
	"strings"

	"streamdp/config"
	"streamdp/dp"
)

// Reserved is how the limit of an input partition is divided between sketches and
// everything else, before the first release. It is a function of the configuration
// alone, and the ledger keeps it with the first epoch that is opened.
type Reserved struct {
	// Sketches is what is set aside for sketches; empty: nothing, for no stream of the
	// topic has any.
	Sketches dp.Cost `json:"sketches"`
	// Mu is what is left for all Gaussian releases.
	Mu float64 `json:"mu"`
}

// Reserve returns how the limit of a stream's input is divided. With sketches among
// the streams of its topic, as much is set aside for them as all streams together
// would be charged as many times over as the limit allows.
//
// Errors: a limit that does not cover the streams of the topic together.
func Reserve(c *config.Config, s *config.Stream) (*Reserved, error) {
	p := s.Privacy
	var costs []dp.Cost
	var names []string
	sketched := false
	for _, other := range c.Streams {
		if other.Input.Topic != s.Input.Topic {
			continue
		}
		sketched = sketched || other.Refit != nil && other.Refit.Sketches()
		names = append(names, other.Name)
	}
	r := &Reserved{Sketches: dp.Cost{Adjacency: p.Adjacency}}
	if sketched {
		for _, other := range c.Streams {
			if other.Input.Topic != s.Input.Topic {
				continue
			}
			m, err := newMechanism(other, nil, nil)
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
			return nil, fmt.Errorf("limit_epsilon %g at delta %g does not cover all streams of topic %s together (%s), as it must with a solver that has sketches: %w",
				p.LimitEpsilon, p.LimitDelta, s.Input.Topic, strings.Join(names, ", "), err)
		}
	}
	var err error
	r.Mu, err = dp.ReservedMu(r.Sketches, p.LimitEpsilon, p.LimitDelta)
	return r, err
}

// Divide adds to a stream's description how the limit of its input is divided, if it
// is.
//
// Errors: as [Reserve].
func (d *Description) Divide(c *config.Config, s *config.Stream) error {
	r, err := Reserve(c, s)
	if err == nil && !r.Sketches.Empty() {
		d.Reserved = r
	}
	return err
}

// String says what is set aside, for people.
func (r *Reserved) String() string {
	if r.Sketches.Empty() {
		return ""
	}
	return fmt.Sprintf("%s; mu at most %.6g for all Gaussian releases", sketches(r.Sketches), r.Mu)
}

// sketches writes a cost without Gaussians in words.
func sketches(c dp.Cost) string {
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
