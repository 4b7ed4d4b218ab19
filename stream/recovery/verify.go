package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/boundary"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// Verification is the result of verifying the published releases of an epoch.
type Verification struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	Epoch     uint64 `json:"epoch"`
	// Releases is the number of recomputed releases. Step is the step of the last one. Together they cover the log's
	// offsets [First, End).
	Releases int    `json:"releases"`
	Step     uint64 `json:"step"`
	First    int64  `json:"first"`
	End      int64  `json:"end"`
	// Missing is the number of steps whose release is not in the output.
	Missing int `json:"missing"`
	// Difference describes the first release that differs, and how; empty: none differs.
	Difference string `json:"difference,omitempty"`
	// Unverifiable is the reason why the epoch's releases cannot be recomputed; empty: they were.
	Unverifiable string `json:"unverifiable,omitempty"`
}

// Audit has the inputs of Verify.
type Audit struct {
	Config *config.Config
	Key    *[32]byte // the master key
	Log    *slog.Logger
	// From is an exported epoch; nil: use the state directory.
	From *Export
	// Epoch is the only epoch to verify; 0: all.
	Epoch uint64

	Chunk   int // as Options.chunk
	schemas *connect.Schemas
}

// Verify recomputes every published release of a task from the log, the master key, the manifest and the epoch's
// secret, and compares the bytes. It writes nothing, neither to disk nor to Kafka, and may run while the daemon runs.
// Each release shows the output.values, output.encoding and output.privacy_every that were configured for it. In all
// other settings, the configuration must equal that of the epoch.
//
// The verification of an epoch stops at the first release that differs; see Verification.Difference. An epoch whose
// secret is destroyed cannot be verified. Verify needs about 200 bytes of memory per release.
//
// Errors: damaged ledger or manifest; errors of the cluster.
func Verify(ctx context.Context, a Audit, t core.Task) ([]Verification, error) {
	s := a.Config.Stream(t.Stream)
	if s == nil {
		return nil, fmt.Errorf("the configuration has no task %s", t)
	}
	epochs, err := a.epochs(t)
	if err != nil {
		return nil, err
	}
	o, err := connect.Cluster(a.Config)
	if err != nil {
		return nil, err
	}
	client, err := kafka.NewClient(o)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if a.schemas, err = connect.OpenSchemas(a.Config); err != nil {
		return nil, err
	}
	defer a.schemas.Close()
	if err := a.schemas.Look(ctx, s, 0); err != nil {
		return nil, err
	}
	r := failure.NewRetrier(a.Log, nil, func() {})
	published, err := collect(ctx, r, client, s.Output, t, s.Step.Clock() > 0)
	if err != nil {
		return nil, err
	}
	var all []Verification
	for _, e := range epochs {
		v := Verification{Stream: t.Stream, Partition: t.Partition, Epoch: e.Opened.Epoch, First: e.Opened.First,
			End: e.Opened.First}
		err := a.verify(ctx, &v, s, e, client, r, published[e.Opened.Epoch])
		var h *failure.Halt
		switch {
		case errors.As(err, &h):
			v.Unverifiable = err.Error()
		case err != nil:
			return all, err
		}
		all = append(all, v)
		delete(published, e.Opened.Epoch)
	}
	if a.Epoch == 0 && a.From == nil {
		for epoch := range published {
			all = append(all, Verification{Stream: t.Stream, Partition: t.Partition, Epoch: epoch,
				Difference: fmt.Sprintf("the output has releases of epoch %d, which the ledger does not know",
					epoch)})
		}
	}
	slices.SortFunc(all, func(x, y Verification) int { return cmp.Compare(x.Epoch, y.Epoch) })
	return all, nil
}

// epochOnFile has the files of an epoch.
type epochOnFile struct {
	Opened           *ledger.Entry
	Manifest, Secret []byte
	initial          []byte
}

// epochs reads the files of the epochs to verify.
func (a *Audit) epochs(t core.Task) (all []*epochOnFile, err error) {
	s := state.TaskStore(a.Config.State.Dir, t, a.Key)
	// ifAny returns the result of reading a file unchanged. If the file does not exist, however, it returns nil without
	// an error.
	ifAny := func(data []byte, err error) ([]byte, error) {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return data, err
	}
	if x := a.From; x != nil {
		opened, err := x.opening(ledger.NewKey(a.Key))
		if err != nil {
			return nil, err
		}
		if opened.Task() != t {
			return nil, fmt.Errorf("the exported epoch is of %s, not of %s", opened.Task(), t)
		}
		e := &epochOnFile{Opened: opened, Manifest: []byte(x.Manifest), initial: x.Initial, Secret: x.Secret}
		if len(e.Secret) == 0 {
			if e.Secret, err = ifAny(s.Secret(opened.Epoch)); err != nil {
				return nil, err
			}
		}
		return []*epochOnFile{e}, nil
	}
	l, err := ledger.Read(a.Config.State.Dir)
	if err != nil {
		return nil, err
	}
	for i := range l.Entries {
		opened := &l.Entries[i]
		if opened.Kind != ledger.KindOpen || opened.Task() != t || a.Epoch != 0 && opened.Epoch != a.Epoch {
			continue
		}
		if end := l.End(i); end != nil && end.Kind == ledger.KindVoid {
			continue
		}
		e := &epochOnFile{Opened: opened}
		if e.Manifest, err = ifAny(s.Manifest(opened.Epoch)); err != nil {
			return nil, err
		}
		if e.Secret, err = ifAny(s.Secret(opened.Epoch)); err != nil {
			return nil, err
		}
		if e.initial, err = ifAny(s.Initial(opened.Epoch)); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the ledger of %s has no epoch of task %s, or none with the given number",
			a.Config.State.Dir, t)
	}
	return all, nil
}

// copyOf is the part of a published message that Verify keeps in memory.
type copyOf struct {
	step   uint64
	hash   [32]byte
	form   int  // index in forms; −1: none
	forked bool // two messages with this key differ
}

// releases has the published messages of an epoch, by key, and their largest step.
type releases struct {
	byKey map[string]copyOf
	ends  map[uint64][]int64 // by step: the offset in each partition at which the step's records end
	forms []core.Form
	last  uint64
}

// collect reads the releases of a task, by epoch. clock says whether its steps are by the clock.
func collect(ctx context.Context, r *failure.Retrier, client *kafka.Client, at config.Output, t core.Task,
	clock bool) (map[uint64]*releases, error) {
	all := map[uint64]*releases{}
	o := &output.Output{Retrier: r, Client: client, Task: t, At: at}
	err := o.Read(ctx, at.Topic, at.Partition, state.UnknownOutput, func(rec *kafka.Record) error {
		of, epoch, step, ok := core.ParseIdentity(rec.Key)
		if !ok || of != t {
			return nil
		}
		e := all[epoch]
		if e == nil {
			e = &releases{byKey: map[string]copyOf{}, ends: map[uint64][]int64{}}
			all[epoch] = e
		}
		c := copyOf{step: step, hash: core.ReleaseHash(rec.Key, rec.Value, rec.Headers), form: -1}
		if clock {
			if ends := core.ReleaseEnds(rec.Value); ends != nil {
				e.ends[step] = ends
			}
		}
		if f, ok := core.FormOf(rec.Value); ok {
			if c.form = slices.IndexFunc(e.forms, f.Equal); c.form < 0 {
				c.form = len(e.forms)
				e.forms = append(e.forms, f)
			}
		}
		if was, known := e.byKey[string(rec.Key)]; known {
			c.forked = was.forked || was.hash != c.hash
		}
		e.byKey[string(rec.Key)] = c
		e.last = max(e.last, step)
		return nil
	})
	return all, err
}

// verify verifies one epoch. If that is impossible, it returns a halt with the reason.
func (a *Audit) verify(ctx context.Context, v *Verification, s *config.Stream, e *epochOnFile, client *kafka.Client,
	r *failure.Retrier, published *releases) error {
	t := e.Opened.Task()
	if e.Manifest == nil {
		return failure.Haltf(failure.State, "the manifest of epoch %d is missing", e.Opened.Epoch)
	}
	m, err := epoch.ManifestOf(t, e.Opened, e.Manifest)
	if err != nil {
		return err
	}
	if changes := core.Changes(s, m); changes != nil {
		return failure.Haltf(failure.Configuration,
			"the configuration differs from that of epoch %d; pass the one used then: %q", m.Epoch, changes)
	}
	if e.Secret == nil && credentials.KeyID(a.Key) == m.KeyID {
		return &failure.Halt{Reason: failure.Key, Err: noSecret(t, m.Epoch)}
	}
	keys, err := epoch.KeysOf(a.Key, m, e.Secret)
	if err != nil {
		return err
	}
	c, err := a.coreOf(s, m, e, keys)
	if err != nil {
		keys.Destroy()
		return err
	}
	defer c.Destroy()
	if published == nil {
		return nil // nothing to compare
	}
	begun := state.Beginning(m)
	var bounds func(context.Context, uint64) (boundary.Boundary, error)
	if s.Step.Clock() > 0 {
		bounds = published.boundary
	}
	again, err := newRecomputation(r, client, a.schemas, s, m, c, begun, bounds, 1<<20)
	if err != nil {
		return err
	}
	said := time.Now()
	for c.Step() < published.last && v.Difference == "" {
		step := c.Step() + 1
		if form, ok := published.formOf(core.Identity(t, m.Epoch, step)); ok {
			c.SetForm(form)
		}
		messages, err := again.close(ctx)
		if ended := (*logEnded)(nil); errors.As(err, &ended) || errors.Is(err, dp.ErrExhausted) {
			v.Difference = fmt.Sprintf("the output has releases up to step %d, which cannot be recomputed from this "+
				"log: %s",
				published.last, err)
			break
		}
		if err != nil {
			return unreadable(err)
		}
		v.Step, v.End = c.Step(), c.First()
		whole := true
		for _, rel := range messages {
			was, ok := published.byKey[string(rel.Key)]
			switch {
			case !ok:
				whole = false
			case was.forked:
				v.Difference = fmt.Sprintf("step %d: the output has two different releases %s", step, rel.Key)
			case was.hash != core.ReleaseHash(rel.Key, rel.Value, rel.Headers):
				v.Difference = fmt.Sprintf("step %d: release %s differs from the one recomputed from log, key and "+
					"manifest", step, rel.Key)
			}
			delete(published.byKey, string(rel.Key))
		}
		switch {
		case v.Difference != "" || len(messages) == 0:
		case whole:
			v.Releases++
		default:
			v.Missing++
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			a.Log.Info("verifying", "epoch", m.Epoch, "step", step, "of", published.last)
		}
	}
	if v.Difference == "" && len(published.byKey) > 0 {
		key, c := published.least()
		v.Difference = fmt.Sprintf("step %d: the output has release %s, which the epoch does not make at this step",
			c.step, key)
	}
	return nil
}

// unreadable turns a final error of the log, which retrying cannot fix, into a halt.
func unreadable(err error) error {
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	var replaced *kafka.ReplacedError
	if errors.As(err, &gap) || errors.As(err, &truncated) || errors.As(err, &replaced) {
		return failure.Haltf(failure.Gap, "cannot read the log from the epoch's first offset on: %w", err)
	}
	return err
}

// coreOf returns the core of an epoch in its state before the first step. The core owns the keys.
func (a *Audit) coreOf(s *config.Stream, m *core.Manifest, e *epochOnFile, keys *dp.Epoch) (*core.Core, error) {
	var initial []float64
	if len(e.initial) > 0 {
		var err error
		if initial, err = core.ParseParameters(e.initial); err != nil {
			return nil, failure.Haltf(failure.State, "initial parameters of epoch %d: %w", m.Epoch, err)
		}
	}
	s = s.Over(m.Numbers())
	mech, err := epoch.MechanismOf(new(epoch.MechanismCache), s, m, e.Opened, initial)
	if err != nil {
		return nil, err
	}
	if a.Chunk > 0 && mech.Chunk > 0 {
		mech.Chunk = a.Chunk
	}
	return core.New(s, m, e.Manifest, mech, keys)
}

// boundary returns the end of a step by the clock, as stated in its release.
func (p *releases) boundary(_ context.Context, step uint64) (boundary.Boundary, error) {
	ends, ok := p.ends[step]
	if !ok {
		return boundary.Boundary{}, failure.Haltf(failure.OutputTruncated,
			"the output lacks the release of step %d, so it is unknown at which offsets the step ends", step)
	}
	return boundary.Boundary{Step: step, Ends: ends}, nil
}

// formOf returns the form of a published release.
func (p *releases) formOf(key string) (core.Form, bool) {
	c, ok := p.byKey[key]
	if !ok || c.form < 0 {
		return core.Form{}, false
	}
	return p.forms[c.form], true
}

// least returns the message of the smallest step, and its key.
func (p *releases) least() (key string, least copyOf) {
	for k, c := range p.byKey {
		if key == "" || c.step < least.step || c.step == least.step && k < key {
			key, least = k, c
		}
	}
	return key, least
}
