// Package dryrun tries out a stream without Kafka, master key or state: it describes the stream's guarantee, decodes a
// sample of records, and replays the stream's estimator over the records of a file.
package dryrun

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
)

// Replay runs a stream's estimator on records from any source, with the decoder, estimator and release format of the
// daemon. The records form a log that begins at offset 0 and has no gaps. It uses no Kafka, state or ledger.
//
// Privacy: all keys are drawn for this run and destroyed with it, so no other run and no release of the daemon has its
// noise. The run is a separate mechanism: publishing its releases costs these records (ε, δ) once more. No ledger
// records this cost; only the statements in the releases mention it.
type Replay struct {
	s       *config.Stream
	core    *core.Core
	codec   codec.Codec
	row     []float64
	limit   int   // the largest number of bytes of a value
	next    int64 // offset of the next record
	publish func(release []byte) error
	watch   func(row []float64)
	done    bool

	rejected [codec.Reasons]int64
}

// NewReplay returns a replay of stream s that passes its releases to publish. x finds the schemas of the records; nil
// if they have none. If seed is not nil, it fixes all keys; then nothing is protected, and every release says so.
//
// Errors: the stream needs data that a file lacks, or its mechanism or codec cannot be made.
func NewReplay(
	x *connect.Schemas, s *config.Stream, version string, seed *uint64, publish func(release []byte) error,
) (*Replay, error) {
	if err := readsFiles(s); err != nil {
		return nil, err
	}
	if x == nil {
		x = new(connect.Schemas)
	}
	s = s.Over([]int{s.Input.First()}) // the file is one partition
	mech, err := mechanism(s)
	if err != nil {
		return nil, err
	}
	format, err := x.Format(s)
	if err != nil {
		return nil, err
	}
	decoder, err := format.Codec()
	if err != nil {
		return nil, err
	}
	keys, nonce, err := drawKeys(s, seed)
	if err != nil {
		return nil, err
	}
	m := manifest(s, mech, keys, nonce)
	m.Insecure, m.Version = seed != nil, version
	file, err := m.Encode()
	if err != nil {
		return nil, err
	}
	r := &Replay{
		s: s, codec: decoder, row: make([]float64, mech.Columns()), limit: core.MaxRecordBytes(s), publish: publish,
	}
	r.core, err = core.New(s, m, file, mech, keys)
	return r, err
}

// readsFiles returns an error if the stream needs data that a file does not hold.
func readsFiles(s *config.Stream) error {
	if core.FormatOf(s).Gradient > 0 {
		return errors.New("gradients need a header with the step of their parameters, but records of a file have no " +
			"headers")
	}
	if s.User != nil {
		return errors.New("persons need a user key in each record, but records of a file have no keys")
	}
	return nil
}

// mechanism returns the stream's mechanism. It begins with the parameters of initial_file, if the stream has one.
func mechanism(s *config.Stream) (*core.Mechanism, error) {
	initial, err := connect.InitialFile(s)
	if err != nil {
		return nil, err
	}
	mech, err := core.NewMechanism(s, nil, initial)
	if err != nil {
		return nil, err
	}
	mech.Chunk = 0 // each release is one line
	return mech, nil
}

// drawKeys returns the keys of this run's epoch, and their nonce. They are random, or determined by the seed if it is
// not nil.
func drawKeys(s *config.Stream, seed *uint64) (*dp.Epoch, [16]byte, error) {
	master, secret, nonce := dp.NewSecret(), dp.NewSecret(), keys.NewNonce()
	if seed != nil {
		master = *connect.InsecureKey(*seed)
		label := binary.BigEndian.AppendUint64([]byte("streamdp insecure replay "), *seed)
		secret = sha256.Sum256(append(label, 's'))
		n := sha256.Sum256(append(label, 'n'))
		nonce = [16]byte(n[:])
	}
	defer clear(master[:])
	defer clear(secret[:])
	keys, err := dp.NewEpoch(&master, &secret, "offline/"+s.Name, 1, nonce, digest(s))
	return keys, nonce, err
}

// digest returns the digest of the configuration and versions, which determine the releases.
func digest(s *config.Stream) [32]byte { return s.Digest(s.Input.First(), core.Versions(s)) }

// manifest returns the manifest of the run's epoch.
func manifest(s *config.Stream, mech *core.Mechanism, keys *dp.Epoch, nonce [16]byte) *core.Manifest {
	partition := s.Input.First()
	check, digest := keys.Check(), digest(s)
	return &core.Manifest{
		Format: core.ManifestFormat, Stream: s.Name, Epoch: 1,
		Source: core.Source{Topic: s.Input.Topic, Partition: partition},
		Nonce:  nonce[:], EpochID: check[:], Config: s.Canonical(partition), Versions: core.Versions(s),
		Digest:    digest[:],
		Mechanism: mech.Name, Plan: mech.Plan, Cost: mech.Cost(),
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, ChargedEpsilonAtOpen: s.Privacy.Epsilon,
		Persons: core.Persons(mech.Cost(), s.Privacy.Delta, 2, 10),
		Offline: true,
	}
}

// Add takes the value of the next record; nil is a tombstone. If the record completes a step, Add closes it. Steps by
// the clock are closed by EndStep instead. After the horizon it returns dp.ErrExhausted and ignores the record.
func (r *Replay) Add(value []byte) error {
	if r.done {
		return dp.ErrExhausted
	}
	row := r.row
	why := codec.TooLarge
	if len(value) <= r.limit {
		why = r.codec.Decode(&kafka.Record{Offset: r.next, Value: value}, row)
	}
	if why != codec.Decoded {
		r.rejected[why]++
		row = nil
	}
	if r.watch != nil {
		r.watch(row)
	}
	r.core.Add(r.next, row)
	r.next++
	if r.s.Step.Clock() > 0 || r.next < r.core.End() {
		return nil
	}
	return r.close()
}

// EndStep ends a step by the clock. The step holds the records since the step before. After the horizon it returns
// dp.ErrExhausted.
func (r *Replay) EndStep() error {
	if r.done {
		return dp.ErrExhausted
	}
	if err := r.core.Until(r.next); err != nil {
		return err
	}
	return r.close()
}

// close ends the open step and publishes its release.
func (r *Replay) close() error {
	messages, err := r.core.Close()
	if errors.Is(err, dp.ErrExhausted) {
		r.done = true
		return err
	}
	if err != nil {
		return err
	}
	if h := r.s.LastStep(); h > 0 && r.core.Step() >= h {
		r.done = true
	}
	r.done = r.done || r.Failed()
	for _, m := range messages {
		if err := r.publish(m.Value); err != nil {
			return err
		}
	}
	return nil
}

// Warmup returns how many records are in the warm-up; 0: none.
func (r *Replay) Warmup() int64 { return r.core.Mechanism().Warmup }

// Failed reports whether the warm-up found no bounds. Then no release follows.
func (r *Replay) Failed() bool {
	_, ended := r.core.Ended()
	return ended
}

// Records returns how many records were taken. open is how many of them are in an incomplete step, and so in no
// release.
func (r *Replay) Records() (all, open int64) { return r.next, r.next - r.core.First() }

// Rejected returns how many records gave no row, by reason. These numbers are not private: one record changes them.
func (r *Replay) Rejected() map[string]int64 {
	found := map[string]int64{}
	for why, n := range r.rejected {
		if n > 0 {
			found[codec.Reason(why).String()] = n
		}
	}
	if r.core.Mechanism().Refused != nil {
		if why, n := r.core.Mechanism().Refused(); n > 0 {
			found[why.String()] += int64(n)
		}
	}
	return found
}

// Clipped returns how many rows were shortened to the clip norm; ok is false for mechanisms that do not count them. The
// number is not private.
func (r *Replay) Clipped() (n uint64, ok bool) {
	clipped := r.core.Mechanism().Clipped
	if clipped == nil {
		return 0, false
	}
	return clipped(), true
}

// Watch sets a function that is called with the row of every later record, in original units, before the estimator
// takes it. The row is nil if the record gives none. What see computes from rows is not private.
func (r *Replay) Watch(see func(row []float64)) { r.watch = see }

// Close destroys the keys.
func (r *Replay) Close() { r.core.Destroy() }
