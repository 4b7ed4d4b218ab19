package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/stream/codec"
)

// releaseSchema is the version of the release format.
const releaseSchema = "streamdp.release.v1"

// encoder encodes an epoch's releases. The bytes are a function of the manifest and the release alone. They contain no
// time. The program version in them is the one that opened the epoch, not the running one.
type encoder struct {
	m        *Manifest
	values   []string // names of the values to publish; empty: all
	base64   bool
	chunk    int    // size above which a release is published in pieces of this size; 0: never
	head     []byte // the fields that are equal in all releases of the epoch
	brief    []byte // like head, with the hash of the privacy block instead of the block
	every    uint64 // one release in this many has head, the others brief; 0: all have brief
	tail     []byte
	identity string // STREAM/PARTITION/EPOCH/

	statements []string // about the guarantee
}

// releaseHead holds the fields that are equal in all releases of the epoch, in the order of the format. In a release,
// step, rows and offsets come before columns, and the values come after privacy.
type releaseHead struct {
	Columns   []string        `json:"columns"`
	Centre    []any           `json:"centre"` // numbers, or "auto"
	Scale     []any           `json:"scale"`
	Mechanism json.RawMessage `json:"mechanism"`
	Privacy   releasePrivacy  `json:"privacy"`
}

// releasePrivacy is a release's description of its guarantee.
type releasePrivacy struct {
	Epsilon              float64      `json:"epsilon"`
	Delta                float64      `json:"delta"`
	Mu                   float64      `json:"mu"`
	Adjacency            dp.Adjacency `json:"adjacency"`
	Unit                 string       `json:"unit"`
	Accounting           string       `json:"accounting"`
	Clip                 float64      `json:"clip"`
	Sensitivity          float64      `json:"sensitivity"`
	NoiseMultiplier      float64      `json:"noise_multiplier"`
	Lattice              []float64    `json:"lattice"`
	LimitEpsilon         float64      `json:"limit_epsilon"`
	LimitDelta           float64      `json:"limit_delta"`
	ChargedEpsilonAtOpen float64      `json:"charged_epsilon_at_open"`
	FinitePrecision      string       `json:"finite_precision"`
	Insecure             bool         `json:"insecure,omitempty"`
	// Person and Persons are set if the unit is a person.
	Person     *Protected     `json:"person,omitempty"`
	Persons    []releaseGroup `json:"persons,omitempty"`
	Statements []string       `json:"statements"`
}

func newEncoder(s *config.Stream, m *Manifest, mech *Mechanism) (*encoder, error) {
	cost := mech.Cost()
	e := &encoder{
		m: m, values: s.Output.Values, base64: s.Output.Encoding == "base64", chunk: mech.Chunk,
		every:      max(1, s.Output.PrivacyEvery),
		identity:   fmt.Sprintf("%s/%s/%d/", m.Stream, PartitionName(m.Partition), m.Epoch),
		statements: statements(s, m, mech.sketched),
	}
	accounting, precision := "exact", "exact"
	if mech.accounting != "" {
		accounting = mech.accounting
	}
	if mech.sketched {
		precision = "not proven"
	}
	about := releaseHead{
		Columns: listed(s.Input.Row()), Centre: constants(s.Centre), Scale: constants(s.Scale),
		Mechanism: mech.description,
		Privacy: releasePrivacy{
			Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Mu: cost.Mu, Adjacency: cost.Adjacency,
			Unit: Unit(s), Accounting: accounting, Clip: mech.clip, Sensitivity: mech.sensitivity,
			NoiseMultiplier: 1 / cost.Mu, Lattice: mech.Lattice,
			LimitEpsilon: m.LimitEpsilon, LimitDelta: m.LimitDelta, ChargedEpsilonAtOpen: m.ChargedEpsilonAtOpen,
			FinitePrecision: precision, Insecure: m.Insecure, Person: ProtectedOf(s, mech), Persons: groupsOf(s, m),
			Statements: e.statements,
		},
	}
	head, err := json.Marshal(about)
	if err != nil {
		return nil, err
	}
	privacy, err := json.Marshal(about.Privacy)
	if err != nil {
		return nil, err
	}
	version, err := json.Marshal(m.Version)
	if err != nil {
		return nil, err
	}
	e.head = head[1 : len(head)-1]
	// The privacy block is the last of these fields.
	e.brief = fmt.Appendf(bytes.Clone(bytes.TrimSuffix(e.head, append([]byte(`"privacy":`), privacy...))),
		`"privacy_sha256":"%x"`, sha256.Sum256(privacy))
	e.tail = append([]byte(`,"version":`), append(version, '}')...)
	return e, nil
}

// constants returns numbers for JSON, with "auto" for numbers that a warm-up finds.
func constants(x []float64) []any {
	all := make([]any, len(x))
	for i, v := range x {
		if all[i] = v; math.IsNaN(v) {
			all[i] = "auto"
		}
	}
	return all
}

// listed returns x, or an empty list for nil, which JSON would encode as null.
func listed[T any](x []T) []T {
	if x == nil {
		return []T{}
	}
	return x
}

// statements returns sentences about what is promised and what is not.
func statements(s *config.Stream, m *Manifest, sketched bool) []string {
	what := "replacing one record by another"
	if s.Privacy.Adjacency == dp.ZeroOut {
		what = "replacing one record by " + mechanismOf(s).absent + ", or the reverse"
	}
	group := inWords(m.Persons, s.Privacy.Delta)
	if s.User != nil {
		what, group = "replacing "+allRecords(s)+" by "+instead(s), personsInWords(s, m.Persons)
	}
	if m.Offline {
		return offlineStatements(s, m, what, group, sketched)
	}
	all := []string{
		fmt.Sprintf(
			"This release and all other releases of epoch %d together are (%g, %g)-differentially private with "+
				"respect to %s "+
				"(unit: %s), for the records of %s.",
			m.Epoch, s.Privacy.Epsilon, s.Privacy.Delta, what, Unit(s), records(m)),
		group,
		fmt.Sprintf("Over all epochs and streams of this ledger "+whose(s)+
			" the limit enforced when this epoch opened was (%g, %g), with %s charged. "+
			"Only the ledger tells whether it was raised since.",
			m.LimitEpsilon, m.LimitDelta, AtMost(m.ChargedEpsilonAtOpen)),
	}
	all = append(all, caveats(s, sketched)...)
	if m.Insecure {
		all = append(all, "INSECURE: the noise follows from a published number. Nothing is protected.")
	}
	return all
}

// caveats returns sentences about what is not promised, independent of an epoch's charge.
func caveats(s *config.Stream, sketched bool) []string {
	all := []string{
		"The number, position, arrival time and transaction status of records, and the configuration, are " +
			"not protected.",
		"The guarantee is computational (AES-256, HKDF-SHA256) and holds against anyone without the noise key; the " +
			"operator is trusted.",
		finitePrecision(sketched),
	}
	all = append(all, ownStatements(s)...)
	if s.Step.Clock() > 0 {
		all = append(all, "Steps end by a clock, so offsets also tell how many records came when.")
	}
	if s.Input.AllowCompacted {
		all = append(all,
			"The input topic is compacted: that a record's key made the cleaner remove another record is "+
				"not protected.")
	}
	return all
}

// records returns a phrase that says which records an epoch reads.
func records(m *Manifest) string {
	if m.Partition != Merged {
		return fmt.Sprintf("%s/%d from offset %d on", m.Topic, m.Partition, m.Base)
	}
	var from []string
	for _, p := range m.Parts {
		from = append(from, fmt.Sprintf("%d from offset %d on", p.Partition, p.Base))
	}
	return fmt.Sprintf("%s, partition %s, each in one step of one partition", m.Topic, strings.Join(from, ", "))
}

// offlineStatements returns the statements for the releases of a replay.
func offlineStatements(s *config.Stream, m *Manifest, what, group string, sketched bool) []string {
	all := []string{
		fmt.Sprintf(
			"This release and all other releases of this run together are (%g, %g)-differentially private with "+
				"respect to %s (unit: %s).",
			s.Privacy.Epsilon, s.Privacy.Delta, what, Unit(s)),
		group,
		"The run is a mechanism of its own, beside every other run and every stream over these records: it costs its " +
			"(epsilon, delta) again, and no ledger has counted it.",
		"The number and position of records, and the configuration, are not protected.",
		"The guarantee is computational (AES-256, HKDF-SHA256); the noise key was drawn for this run and is forgotten.",
		finitePrecision(sketched),
	}
	all = append(all, ownStatements(s)...)
	if m.Insecure {
		all = append(all, "INSECURE: the noise follows from a published number. Nothing is protected.")
	}
	return all
}

// ownStatements returns the statements that only the stream's mechanism makes.
func ownStatements(s *config.Stream) []string {
	if d := mechanismOf(s); d != nil && d.statements != nil {
		return d.statements(s)
	}
	return nil
}

// finitePrecision returns a statement on whether the guarantee holds for the floating-point numbers that are computed.
func finitePrecision(sketched bool) string {
	if sketched {
		return "Finite precision: not proven (sketch). The noise of sketches multiplies records in floating point, " +
			"for which there is no proof; other noise is exact (lattice)."
	}
	return "Finite precision: exact (lattice)."
}

// inWords returns a sentence with the guarantee for a person with more than one record.
func inWords(persons []Person, delta float64) string {
	var all []string
	for _, p := range persons {
		if p.Epsilon != nil {
			all = append(all, fmt.Sprintf("(%g, %g) for k = %d", *p.Epsilon, delta, p.Records))
		}
	}
	if all == nil {
		return "A person with more than one of these records has no guarantee."
	}
	return "A person with up to k of these records is protected less: " + strings.Join(all, ", ") + "."
}

// Message is a release, or a piece of one, with the exact bytes to publish.
type Message struct {
	Step    uint64
	Key     []byte
	Value   []byte
	Headers []codec.Header
	// Shares is the result of SharesOf for Value. It is nil for a piece, and in a Message that was read from storage.
	Shares *Shares
}

// encode returns the release of offsets [first, end): one message, or its pieces. For a merged epoch, first and end are
// sums over its partitions, and parts holds the offsets of each.
func (e *encoder) encode(r *dp.Release, first, end int64, parts []span) ([]Message, error) {
	name, err := json.Marshal(e.m.Stream)
	if err != nil {
		return nil, err
	}
	b := fmt.Appendf(make([]byte, 0, e.room(r)),
		`{"schema":%q,"stream":%s,"partition":%d,"epoch":%d,"step":%d,"rows":%d,"offsets":[%d,%d],"covers":[%d,%d],`,
		releaseSchema, name, e.m.Partition, e.m.Epoch, r.Step, r.Rows, first, end, e.m.Base, end)
	for i, p := range parts {
		separator := `,`
		if i == 0 {
			separator = `"parts":[`
		}
		b = fmt.Appendf(b, `%s{"partition":%d,"offsets":[%d,%d],"covers":[%d,%d]}`, separator, e.m.Parts[i].Partition,
			p.first, p.end, e.m.Parts[i].Base, p.end)
	}
	if len(parts) > 0 {
		b = append(b, `],`...)
	}
	if e.every > 0 && (r.Step-1)%e.every == 0 {
		b = append(b, e.head...)
	} else {
		b = append(b, e.brief...)
	}
	if r.Failed != "" {
		failed, err := json.Marshal(r.Failed)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `,"failed":`...), failed...)
	}
	b = append(b, `,"values":{`...)
	separator := ""
	for _, v := range r.Values {
		if !e.publishes(v.Name) {
			continue
		}
		b = append(b, separator...)
		separator = ","
		if b, err = e.value(b, v); err != nil {
			return nil, err
		}
	}
	b = append(b, '}')
	for _, n := range r.Notes {
		note, err := json.Marshal(n.Value)
		if err != nil {
			return nil, err
		}
		b = fmt.Appendf(b, ",%q:%s", n.Name, note)
	}
	b = append(b, e.tail...)
	id := fmt.Sprintf("%s%d", e.identity, r.Step)
	if e.chunk == 0 || len(b) <= e.chunk {
		return []Message{
				{Step: r.Step, Key: []byte(id), Value: b, Headers: e.headers(id, "application/json"),
					Shares: e.shares(r)}},
			nil
	}
	return e.pieces(r.Step, id, b), nil
}

// publishes reports whether releases contain the value.
func (e *encoder) publishes(name string) bool {
	return len(e.values) == 0 || slices.Contains(e.values, name)
}

// room returns the approximate size of a release in bytes.
func (e *encoder) room(r *dp.Release) int {
	n, perNumber := 512+len(e.head)+len(e.tail), 24
	if e.base64 {
		perNumber = 11
	}
	for _, v := range r.Values {
		if e.publishes(v.Name) {
			n += 128 + perNumber*(len(v.Data)+len(v.SE)+len(v.SEWithClipping))
		}
	}
	return n
}

// headers returns the headers of the CloudEvents binding.
func (e *encoder) headers(id, content string) []codec.Header {
	return []codec.Header{
		{Key: "content-type", Value: []byte(content)},
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_id", Value: []byte(id)},
		{Key: "ce_source", Value: []byte("streamdp/" + e.m.Stream)},
		{Key: "ce_type", Value: []byte(releaseSchema)},
	}
}

// chunkBytes is the size of a piece of a release. Even with key and headers, a piece is below the default size limit
// for messages of a topic.
const chunkBytes = 900_000

// pieces splits the JSON of a release into pieces. Piece i of n, counted from 1, has the release's key followed by /i,
// and two more headers: streamdp_chunk is "i/n", and streamdp_sha256 is the hash of the whole release in hexadecimal. A
// reader joins the values in order, and compares the hash.
func (e *encoder) pieces(step uint64, id string, value []byte) []Message {
	hash := sha256.Sum256(value)
	whole := []byte(hex.EncodeToString(hash[:]))
	n := (len(value) + e.chunk - 1) / e.chunk
	all := make([]Message, 0, n)
	for piece := range slices.Chunk(value, e.chunk) {
		i := len(all) + 1
		own := fmt.Sprintf("%s/%d", id, i)
		all = append(all,
			Message{Step: step, Key: []byte(own), Value: piece,
				Headers: append(e.headers(own, "application/octet-stream"),
					codec.Header{Key: "streamdp_chunk", Value: fmt.Appendf(nil, "%d/%d", i, n)},
					codec.Header{Key: "streamdp_sha256", Value: whole},
				)})
	}
	return all
}

// value appends a value and its name.
func (e *encoder) value(b []byte, v dp.Value) ([]byte, error) {
	head, err := json.Marshal(struct {
		Shape  []int  `json:"shape"`
		Layout string `json:"layout,omitempty"`
	}{v.Shape, v.Layout})
	if err != nil {
		return nil, err
	}
	name, err := json.Marshal(v.Name)
	if err != nil {
		return nil, err
	}
	b = append(append(append(b, name...), ':'), head[:len(head)-1]...)
	all := true
	list := func(field string, x []float64, unknown bool) {
		var ok bool
		b, ok = e.numbers(append(b, field...), x, unknown)
		all = all && ok
	}
	list(`,"data":`, v.Data, false)
	switch len(v.SE) {
	case 0:
		b = append(b, `,"se":null`...)
	case 1:
		var ok bool
		b, ok = appendNumber(append(b, `,"se":`...), v.SE[0])
		all = all && ok
	default:
		list(`,"se":`, v.SE, true)
	}
	if v.SEWithClipping != nil {
		list(`,"se_with_clipping":`, v.SEWithClipping, true)
	}
	if !all {
		return nil, fmt.Errorf("value %s holds a number that is not finite, which JSON cannot represent", v.Name)
	}
	return append(b, '}'), nil
}

// numbers appends x as JSON numbers, or as base64 of little-endian float64s. If unknown is true, NaN is written as null
// in a JSON list. ok is false if JSON cannot represent a number.
func (e *encoder) numbers(b []byte, x []float64, unknown bool) (_ []byte, ok bool) {
	switch {
	case e.base64:
		b = append(b, '"')
		var raw [3 * 512]byte // base64 takes three bytes at a time
		for len(x) > 0 {
			n := min(len(x), len(raw)/8)
			for i, v := range x[:n] {
				binary.LittleEndian.PutUint64(raw[8*i:], math.Float64bits(v))
			}
			b = base64.StdEncoding.AppendEncode(b, raw[:8*n])
			x = x[n:]
		}
		return append(b, '"'), true
	case x == nil:
		return append(b, "null"...), true
	}
	separator := byte('[')
	for _, v := range x {
		b = append(b, separator)
		separator = ','
		if unknown && math.IsNaN(v) {
			b = append(b, "null"...)
		} else if b, ok = appendNumber(b, v); !ok {
			return b, false
		}
	}
	if len(x) == 0 {
		b = append(b, '[')
	}
	return append(b, ']'), true
}

// appendNumber appends x as encoding/json does: with the fewest digits that parse to x. Numbers below 10⁻⁶ or from 10²¹
// on have an exponent. ok is false if x is not finite.
func appendNumber(b []byte, x float64) (_ []byte, ok bool) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return b, false
	}
	if size := math.Abs(x); size == 0 || size >= 1e-6 && size < 1e21 {
		return strconv.AppendFloat(b, x, 'f', -1, 64), true
	}
	b = strconv.AppendFloat(b, x, 'e', -1, 64)
	if n := len(b); b[n-4] == 'e' && b[n-2] == '0' { // e-07 becomes e-7
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b, true
}

// Numbers parses a list of numbers of a release, in either encoding.
func Numbers(data json.RawMessage) (x []float64, err error) {
	var raw []byte
	if len(data) == 0 || data[0] != '"' {
		return x, json.Unmarshal(data, &x)
	}
	if err := json.Unmarshal(data, &raw); err != nil { // base64
		return nil, err
	}
	if len(raw)%8 != 0 {
		return nil, fmt.Errorf("%d bytes are not a whole number of float64s", len(raw))
	}
	for ; len(raw) > 0; raw = raw[8:] {
		x = append(x, math.Float64frombits(binary.LittleEndian.Uint64(raw)))
	}
	return x, nil
}
