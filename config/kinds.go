package config

import (
	"time"

	"github.com/streamdp/streamdp/internal/toml"
)

// startText says which values a [Start] may have.
const startText = `"earliest", "latest" or an offset`

// start tells the TOML package how to read a [Start].
var start = &toml.Kind{
	Wants: startText,
	Name:  "string or integer",
	Read: func(v any) (any, string) {
		switch v := v.(type) {
		case int64:
			if v >= 0 {
				return Start(v), ""
			}
		case string:
			var at Start
			if at.UnmarshalText([]byte(v)) == nil {
				return at, ""
			}
		}
		return nil, ""
	},
}

// minClock is the shortest period of steps by the clock.
const minClock = 100 * time.Millisecond

// length tells the TOML package how to read a [Step].
var length = &toml.Kind{
	Wants: `a number of offsets, or a duration such as "1m"`,
	Name:  "integer or duration",
	Read: func(v any) (any, string) {
		switch v := v.(type) {
		case int64:
			if v < 1 {
				return nil, "must be at least 1"
			}
			return Step(v), ""
		case string:
			t, ok := toml.Duration(v)
			switch {
			case !ok:
				return nil, ""
			case t < minClock:
				return nil, "must be at least \"" + minClock.String() + "\""
			}
			return Every(t), ""
		}
		return nil, ""
	},
	Plain: func(v any) any {
		if period := v.(Step).Clock(); period > 0 {
			return period.String()
		}
		return v
	},
}
