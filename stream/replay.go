package stream

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"streamdp/config"
	"streamdp/dp"
	"streamdp/internal/kafka"
)

// Replay runs a stream's estimator over records from anywhere: the decoder, the
// estimator and the release format of the daemon, on a log that holds these
// records and nothing else, from offset 0. There is no Kafka, no state and no
// ledger.
//
// Privacy: all keys are drawn for this run and forgotten with it, so its noise is
// that of no other run and no release of the daemon. It is a mechanism of its own:
// whoever publishes its releases has spent (ε, δ) on these records once more, and
// nothing but the releases' statements says so.
type Replay struct {
	s       *config.Stream
	core    *core
	codec   Codec
	row     []float64
	next    int64 // offset of the next record
	publish func(release []byte) error
	done    bool

	rejected [reasons]int64
}

// NewReplay returns a replay of stream s that hands its releases to publish. seed,
// if not nil, fixes all keys: then nothing is protected, and every release says so.
func NewReplay(s *config.Stream, version string, seed *uint64, publish func(release []byte) error) (*Replay, error) {
	if s.Gradients() {
		return nil, errors.New("takes gradients, each with the step of its parameters in a header: a file has none")
	}
	initial, err := initialFile(s)
	if err != nil {
		return nil, err
	}
	mech, err := newMechanism(s, nil, initial)
	if err != nil {
		return nil, err
	}
	mech.chunked = false // a release is a line
	codec, err := codecOf(s)
	if err != nil {
		return nil, err
	}
	partition := s.Input.Partitions[0]
	master, secret, nonce := dp.NewSecret(), dp.NewSecret(), dp.NewNonce()
	if seed != nil {
		master = *InsecureKey(*seed)
		label := binary.BigEndian.AppendUint64([]byte("streamdp insecure replay "), *seed)
		secret = sha256.Sum256(append(label, 's'))
		n := sha256.Sum256(append(label, 'n'))
		nonce = [16]byte(n[:])
	}
	digest := s.Digest(partition, versions(s))
	keys, err := dp.NewEpoch(&master, &secret, "offline/"+s.Name, 1, nonce, digest)
	clear(master[:])
	clear(secret[:])
	if err != nil {
		return nil, err
	}
	check := keys.Check()
	m := &manifest{
		Format: manifestFormat, Stream: s.Name, Epoch: 1, Source: Source{Topic: s.Input.Topic, Partition: partition},
		Nonce: nonce[:], EpochID: check[:], Config: s.Canonical(partition), Versions: versions(s), Digest: digest[:],
		Mechanism: mech.name, Plan: mech.plan, Cost: mech.Cost(),
		LimitEpsilon: s.Privacy.LimitEpsilon, LimitDelta: s.Privacy.LimitDelta, ChargedEpsilonAtOpen: s.Privacy.Epsilon,
		Persons:  persons(mech.Cost(), s.Privacy.Delta, 2, 10),
		Insecure: seed != nil, Version: version, offline: true,
	}
	file, err := m.encode()
	if err != nil {
		return nil, err
	}
	r := &Replay{s: s, codec: codec, row: make([]float64, mech.Columns()), publish: publish}
	r.core, err = newCore(s, m, file, mech, keys)
	return r, err
}

// Add takes the value of the next record; nil is a tombstone. After the horizon it
// returns dp.ErrExhausted and takes nothing.
func (r *Replay) Add(value []byte) error {
	if r.done {
		return dp.ErrExhausted
	}
	row := r.row
	if why := r.codec.Decode(&kafka.Record{Offset: r.next, Value: value}, row); why != Decoded {
		r.rejected[why]++
		row = nil
	}
	r.core.add(r.next, row)
	if r.next++; r.next < r.core.end {
		return nil
	}
	messages, err := r.core.close()
	if errors.Is(err, dp.ErrExhausted) {
		r.done = true
		return err
	}
	if err != nil {
		return err
	}
	if h := r.s.LastStep(); h > 0 && r.core.step >= h {
		r.done = true
	}
	for _, m := range messages {
		if err := r.publish(m.value); err != nil {
			return err
		}
	}
	return nil
}

// Records returns how many records were taken, and how many of them are in a step
// that is not complete and so in no release.
func (r *Replay) Records() (all, open int64) { return r.next, r.next - r.core.first }

// Rejected returns how many of them gave no row, by reason. Not private: one record
// changes it.
func (r *Replay) Rejected() map[string]int64 {
	found := map[string]int64{}
	for why, n := range r.rejected {
		if n > 0 {
			found[Reason(why).String()] = n
		}
	}
	if r.core.mech.refused != nil {
		if why, n := r.core.mech.refused(); n > 0 {
			found[why.String()] += int64(n)
		}
	}
	return found
}

// Close forgets the keys.
func (r *Replay) Close() { r.core.keys.Destroy() }
