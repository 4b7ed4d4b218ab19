package stream

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
	"strings"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/kafka"
)

// releaseSchema is the version of the release format.
const releaseSchema = "streamdp.release.v1"

// encoder makes the bytes of an epoch's releases. What it writes is a function
// of the manifest and the release alone: no clock, no version but the
// manifest's.
type encoder struct {
	m        *manifest
	values   []string // to publish, empty: all
	base64   bool
	chunked  bool   // large releases are published in pieces
	head     []byte // the fields that are equal in all releases of the epoch
	tail     []byte
	identity string // STREAM/PARTITION/EPOCH/
}

// releaseHead and releaseTail are the constant fields, in the order of the
// format; step, rows and offsets stand between stream and columns, the values
// between privacy and version.
type releaseHead struct {
	Columns   []string        `json:"columns"`
	Centre    []float64       `json:"centre"`
	Scale     []float64       `json:"scale"`
	Mechanism json.RawMessage `json:"mechanism"`
	Privacy   releasePrivacy  `json:"privacy"`
}

// releasePrivacy is what a release says of its guarantee.
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
	Statements           []string     `json:"statements"`
}

func newEncoder(s *config.Stream, m *manifest, mech *mechanism) (*encoder, error) {
	cost := mech.Cost()
	e := &encoder{
		m: m, values: s.Output.Values, base64: s.Output.Encoding == "base64", chunked: mech.chunked,
		identity: fmt.Sprintf("%s/%d/%d/", m.Stream, m.Partition, m.Epoch),
	}
	accounting, precision := "exact", "exact"
	if mech.accounting != "" {
		accounting = mech.accounting
	}
	if mech.sketched {
		precision = "not proven"
	}
	head, err := json.Marshal(releaseHead{
		Columns: listed(s.Input.Columns), Centre: listed(s.Centre), Scale: listed(s.Scale), Mechanism: mech.describe,
		Privacy: releasePrivacy{
			Epsilon: s.Privacy.Epsilon, Delta: s.Privacy.Delta, Mu: cost.Mu, Adjacency: cost.Adjacency,
			Unit: "record", Accounting: accounting, Clip: mech.clip, Sensitivity: mech.sens,
			NoiseMultiplier: 1 / cost.Mu, Lattice: mech.lattice,
			LimitEpsilon: m.LimitEpsilon, LimitDelta: m.LimitDelta, ChargedEpsilonAtOpen: m.ChargedEpsilonAtOpen,
			FinitePrecision: precision, Insecure: m.Insecure, Statements: statements(s, m, mech.sketched),
		},
	})
	if err != nil {
		return nil, err
	}
	version, err := json.Marshal(m.Version)
	if err != nil {
		return nil, err
	}
	e.head = head[1 : len(head)-1]
	e.tail = append([]byte(`,"version":`), append(version, '}')...)
	return e, nil
}

// listed returns a list that JSON has as one, where there is none.
func listed[T any](x []T) []T {
	if x == nil {
		return []T{}
	}
	return x
}

// statements says in words what is promised and what is not.
func statements(s *config.Stream, m *manifest, sketched bool) []string {
	what := "replacing one record by another"
	if s.Privacy.Adjacency == dp.ZeroOut {
		what = "replacing one record by " + absent(s) + ", or the reverse"
	}
	if m.offline {
		return offlineStatements(s, m, what, sketched)
	}
	all := []string{
		fmt.Sprintf("This release and all other releases of epoch %d together are (%g, %g)-differentially private with respect to %s "+
			"(unit: record), for the records of %s/%d from offset %d on.",
			m.Epoch, s.Privacy.Epsilon, s.Privacy.Delta, what, m.Topic, m.Partition, m.Base),
		inWords(m.Persons, s.Privacy.Delta),
		fmt.Sprintf("Over all epochs and streams of this ledger that read these records the limit enforced when this epoch opened was (%g, %g), with %s charged. "+
			"Only the ledger tells whether it was raised since.",
			m.LimitEpsilon, m.LimitDelta, AtMost(m.ChargedEpsilonAtOpen)),
		"The number, position, arrival time and transaction status of records, and the configuration, are not protected.",
		"The guarantee is computational (AES-256, HKDF-SHA256) and holds against anyone without the noise key; the operator is trusted.",
		finitePrecision(sketched),
	}
	if s.SGD != nil && *s.SGD.Intervals {
		all = append(all, approximateIntervals)
	}
	if s.Input.AllowCompacted {
		all = append(all, "The input topic is compacted: that a record's key made the cleaner remove another record is not protected.")
	}
	if m.Insecure {
		all = append(all, "INSECURE: the noise follows from a published number. Nothing is protected.")
	}
	return all
}

// offlineStatements are those of a Replay.
func offlineStatements(s *config.Stream, m *manifest, what string, sketched bool) []string {
	all := []string{
		fmt.Sprintf("This release and all other releases of this run together are (%g, %g)-differentially private with respect to %s (unit: record).",
			s.Privacy.Epsilon, s.Privacy.Delta, what),
		inWords(m.Persons, s.Privacy.Delta),
		"The run is a mechanism of its own, beside every other run and every stream over these records: it costs its (epsilon, delta) again, and no ledger has counted it.",
		"The number and position of records, and the configuration, are not protected.",
		"The guarantee is computational (AES-256, HKDF-SHA256); the noise key was drawn for this run and is forgotten.",
		finitePrecision(sketched),
	}
	if s.SGD != nil && *s.SGD.Intervals {
		all = append(all, approximateIntervals)
	}
	if m.Insecure {
		all = append(all, "INSECURE: the noise follows from a published number. Nothing is protected.")
	}
	return all
}

// finitePrecision says whether the guarantee holds for the numbers that are computed.
func finitePrecision(sketched bool) string {
	if sketched {
		return "Finite precision: not proven (sketch). The noise of sketches multiplies records in floating point, for which there is no proof; other noise is exact (lattice)."
	}
	return "Finite precision: exact (lattice)."
}

const approximateIntervals = "Intervals are approximate: they rest on the scatter of batches of iterates."

// inWords says what protects somebody with more than one record.
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

// encode returns the release of offsets [first, end): one message, or its pieces.
func (e *encoder) encode(r *dp.Release, first, end int64) ([]pending, error) {
	var b bytes.Buffer
	name, err := json.Marshal(e.m.Stream)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `{"schema":%q,"stream":%s,"partition":%d,"epoch":%d,"step":%d,"rows":%d,"offsets":[%d,%d],"covers":[%d,%d],`,
		releaseSchema, name, e.m.Partition, e.m.Epoch, r.Step, r.Rows, first, end, e.m.Base, end)
	b.Write(e.head)
	if r.Failed != "" {
		failed, err := json.Marshal(r.Failed)
		if err != nil {
			return nil, err
		}
		b.WriteString(`,"failed":`)
		b.Write(failed)
	}
	b.WriteString(`,"values":{`)
	separator := ""
	for _, v := range r.Values {
		if len(e.values) > 0 && !slices.Contains(e.values, v.Name) {
			continue
		}
		b.WriteString(separator)
		separator = ","
		if err := e.value(&b, v); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	b.Write(e.tail)
	id := fmt.Sprintf("%s%d", e.identity, r.Step)
	if !e.chunked || b.Len() <= chunkBytes {
		return []pending{{step: r.Step, key: []byte(id), value: b.Bytes(), headers: e.headers(id, "application/json")}}, nil
	}
	return e.pieces(r.Step, id, b.Bytes()), nil
}

// headers are those of the CloudEvents binding.
func (e *encoder) headers(id, content string) []kafka.Header {
	return []kafka.Header{
		{Key: "content-type", Value: []byte(content)},
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_id", Value: []byte(id)},
		{Key: "ce_source", Value: []byte("streamdp/" + e.m.Stream)},
		{Key: "ce_type", Value: []byte(releaseSchema)},
	}
}

// chunkBytes is the size above which a release is published in pieces, and that of
// a piece: with its key and headers less than what a topic takes by default.
var chunkBytes = 900_000 // tests lower it

// pieces cuts the JSON of a release. Piece i of n, from 1, has the release's key
// with /i behind it and two more headers: streamdp_chunk, "i/n", and
// streamdp_sha256, the hash of the whole in hexadecimal, which is equal in all
// pieces. Whoever puts the values together in order has the release, if the hash
// says so.
func (e *encoder) pieces(step uint64, id string, value []byte) []pending {
	hash := sha256.Sum256(value)
	whole := []byte(hex.EncodeToString(hash[:]))
	n := (len(value) + chunkBytes - 1) / chunkBytes
	all := make([]pending, 0, n)
	for piece := range slices.Chunk(value, chunkBytes) {
		i := len(all) + 1
		own := fmt.Sprintf("%s/%d", id, i)
		all = append(all, pending{step: step, key: []byte(own), value: piece, headers: append(e.headers(own, "application/octet-stream"),
			kafka.Header{Key: "streamdp_chunk", Value: fmt.Appendf(nil, "%d/%d", i, n)},
			kafka.Header{Key: "streamdp_sha256", Value: whole},
		)})
	}
	return all
}

func (e *encoder) value(b *bytes.Buffer, v dp.Value) error {
	var out struct {
		Shape  []int  `json:"shape"`
		Layout string `json:"layout,omitempty"`
		Data   any    `json:"data"`
		SE     any    `json:"se"`
	}
	out.Shape, out.Layout = v.Shape, v.Layout
	out.Data = e.numbers(v.Data)
	switch len(v.SE) {
	case 0:
	case 1:
		out.SE = v.SE[0]
	default:
		out.SE = e.numbers(v.SE)
	}
	name, err := json.Marshal(v.Name)
	if err != nil {
		return err
	}
	body, err := json.Marshal(out) // refuses NaN and infinities
	if err != nil {
		return err
	}
	b.Write(name)
	b.WriteByte(':')
	b.Write(body)
	return nil
}

// numbers returns x as JSON numbers, or as base64 of little-endian float64s.
func (e *encoder) numbers(x []float64) any {
	if !e.base64 {
		return x
	}
	raw := make([]byte, 0, 8*len(x))
	for _, v := range x {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(v))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
