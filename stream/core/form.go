package core

import (
	"encoding/json"
	"maps"
	"slices"
)

// Form describes the look of releases: which values they hold, how numbers are written, and whether the privacy block
// is included. An operator may change it while the epoch is open. It changes no number.
type Form struct {
	Values []string // empty: all
	Base64 bool
	Brief  bool // the privacy block is replaced by its hash
}

// Equal reports whether releases of both forms have the same bytes.
func (f Form) Equal(g Form) bool {
	return f.Base64 == g.Base64 && f.Brief == g.Brief && slices.Equal(f.Values, g.Values)
}

// FormOf returns the form of a published release. ok is false if value is not a whole release.
func FormOf(value []byte) (f Form, ok bool) {
	var r struct {
		Schema string `json:"schema"`
		Values map[string]struct {
			Data json.RawMessage `json:"data"`
		} `json:"values"`
		Hash string `json:"privacy_sha256"`
	}
	if json.Unmarshal(value, &r) != nil || r.Schema != releaseSchema {
		return Form{}, false
	}
	f.Brief = r.Hash != ""
	f.Values = slices.Sorted(maps.Keys(r.Values))
	for _, v := range r.Values {
		f.Base64 = f.Base64 || len(v.Data) > 0 && v.Data[0] == '"'
	}
	return f, true
}

// SetForm sets the form of the releases of all following steps.
func (c *Core) SetForm(f Form) {
	c.encoder.values, c.encoder.base64, c.encoder.every = f.Values, f.Base64, 1
	if f.Brief {
		c.encoder.every = 0
	}
}
