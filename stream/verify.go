package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// Verification is the result of verifying the published releases of an epoch.
type Verification struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	Epoch     uint64 `json:"epoch"`
	// Releases is the number of releases that were computed again, up to Step, from the
	// log's offsets [First, End).
	Releases int    `json:"releases"`
	Step     uint64 `json:"step"`
	First    int64  `json:"first"`
	End      int64  `json:"end"`
	// Missing counts the steps whose release is not in the output.
	Missing int `json:"missing"`
	// Difference describes the first release that differs, and how; empty: none differs.
	Difference string `json:"difference,omitempty"`
	// Unverifiable says why the epoch's releases cannot be computed again; empty: they were.
	Unverifiable string `json:"unverifiable,omitempty"`
}

// Audit has the inputs of Verify.
type Audit struct {
	Config *config.Config
	Key    *[32]byte // the master key
	Log    *slog.Logger
	// From is an exported epoch; nil: use the state directory.
	From *Export
	// Epoch is the only epoch to verify, 0: all.
	Epoch uint64

	chunk   int // as Options.chunk
	schemas *Schemas
}

// Verify computes every published release of a task again, from the log, the master key,
// the manifest and the epoch's secret, and compares the bytes. It writes nothing, neither
// to disk nor to Kafka, and may run beside the daemon. It finds out from each release
// which output.values, output.encoding and output.privacy_every it was made with. The rest of
// the configuration must be that of the epoch.
//
// The first release that differs ends an epoch's verification; see
// Verification.Difference. Nobody can verify an epoch whose secret is destroyed. Memory:
// about 200 bytes a release.
//
// Errors: those of the ledger, the manifest and the cluster.
func Verify(ctx context.Context, a Audit, t core.Task) ([]Verification, error) {
	s := a.Config.Stream(t.Stream)
	if s == nil {
		return nil, fmt.Errorf("the configuration has no task %s", t)
	}
	epochs, err := a.epochs(t)
	if err != nil {
		return nil, err
	}
	o, err := Cluster(a.Config)
	if err != nil {
		return nil, err
	}
	client, err := kafka.NewClient(o)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if a.schemas, err = OpenSchemas(a.Config); err != nil {
		return nil, err
	}
	defer a.schemas.Close()
	if err := a.schemas.Look(ctx, s, 0); err != nil {
		return nil, err
	}
	r := newRepeater(a.Log, nil, func() {})
	published, err := collect(ctx, r, client, s.Output, t, s.Step.Clock() > 0)
	if err != nil {
		return nil, err
	}
	var all []Verification
	for _, e := range epochs {
		v := Verification{Stream: t.Stream, Partition: t.Partition, Epoch: e.opened.Epoch, First: e.opened.First, End: e.opened.First}
		err := a.verify(ctx, &v, s, e, client, r, published[e.opened.Epoch])
		var h *halt
		switch {
		case errors.As(err, &h):
			v.Unverifiable = err.Error()
		case err != nil:
			return all, err
		}
		all = append(all, v)
		delete(published, e.opened.Epoch)
	}
	if a.Epoch == 0 && a.From == nil {
		for epoch := range published {
			all = append(all, Verification{Stream: t.Stream, Partition: t.Partition, Epoch: epoch,
				Difference: fmt.Sprintf("the output holds releases of epoch %d, which the ledger does not know", epoch)})
		}
	}
	slices.SortFunc(all, func(x, y Verification) int { return cmp.Compare(x.Epoch, y.Epoch) })
	return all, nil
}

// epochOnFile holds the files of an epoch.
type epochOnFile struct {
	opened           *Entry
	manifest, secret []byte
	initial          []byte
}

// epochs reads the files of the epochs to verify.
func (a *Audit) epochs(t core.Task) (all []*epochOnFile, err error) {
	s := taskStore(a.Config.State.Dir, t, a.Key)
	read := func(name string) ([]byte, error) {
		data, err := s.disk.ReadFile(s.path(name))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return data, err
	}
	secret := func(epoch uint64) ([]byte, error) {
		data, err := s.secret(epoch)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return data, err
	}
	if x := a.From; x != nil {
		opened, err := x.opening(newLedgerKey(a.Key))
		if err != nil {
			return nil, err
		}
		if opened.Task() != t {
			return nil, fmt.Errorf("the file is of %s, not of %s", opened.Task(), t)
		}
		e := &epochOnFile{opened: opened, manifest: []byte(x.Manifest), initial: x.Initial, secret: x.Secret}
		if len(e.secret) == 0 {
			if e.secret, err = secret(opened.Epoch); err != nil {
				return nil, err
			}
		}
		return []*epochOnFile{e}, nil
	}
	l, err := readLedger(a.Config.State.Dir)
	if err != nil {
		return nil, err
	}
	for i := range l.entries {
		opened := &l.entries[i]
		if opened.Kind != kindOpen || opened.Task() != t || a.Epoch != 0 && opened.Epoch != a.Epoch {
			continue
		}
		if end := l.end(i); end != nil && end.Kind == kindVoid {
			continue
		}
		e := &epochOnFile{opened: opened}
		if e.manifest, err = read(manifestName(opened.Epoch)); err != nil {
			return nil, err
		}
		if e.secret, err = secret(opened.Epoch); err != nil {
			return nil, err
		}
		if e.initial, err = read(initialName(opened.Epoch)); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the ledger of %s knows no such epoch of %s", a.Config.State.Dir, t)
	}
	return all, nil
}

// copyOf is what Verify keeps of a published message.
type copyOf struct {
	step   uint64
	hash   [32]byte
	form   int  // of forms; −1: of none
	forked bool // two of one key differ
}

// releases are the published messages of an epoch, by key, and the largest of their steps.
type releases struct {
	byKey map[string]copyOf
	ends  map[uint64][]int64 // by step, where its records end in each partition
	forms []core.Form
	last  uint64
}

// collect reads the releases of a task, by epoch. clock says that its steps are by the clock.
func collect(ctx context.Context, r *repeater, client *kafka.Client, at config.Output, t core.Task, clock bool) (map[uint64]*releases, error) {
	all := map[uint64]*releases{}
	o := &output{repeater: r, client: client, task: t, at: at}
	err := o.read(ctx, at.Topic, at.Partition, unknownOutput, func(rec *kafka.Record) error {
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

// verify verifies one epoch. If that is not possible, it returns a halt that says why.
func (a *Audit) verify(ctx context.Context, v *Verification, s *config.Stream, e *epochOnFile, client *kafka.Client, r *repeater, published *releases) error {
	t := e.opened.Task()
	if e.manifest == nil {
		return halted(haltState, "the manifest of epoch %d is missing", e.opened.Epoch)
	}
	m, err := manifestOf(t, e.opened, e.manifest)
	if err != nil {
		return err
	}
	if changes := changed(s, m); changes != nil {
		return halted(haltConfiguration, "the configuration is not that of epoch %d; give the one of then: %q", m.Epoch, changes)
	}
	if e.secret == nil && credentials.KeyID(a.Key) == m.KeyID {
		return &halt{haltKey, noSecret(t, m.Epoch)}
	}
	keys, err := keysOf(a.Key, m, e.secret)
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
	begun := beginning(m)
	var bounds func(context.Context, uint64) (boundary, error)
	if s.Step.Clock() > 0 {
		bounds = published.boundary
	}
	again, err := newRepetition(r, client, a.schemas, s, m, c, begun, bounds, 1<<20)
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
			v.Difference = fmt.Sprintf("the output holds releases up to step %d, which this log does not lead to: %s", published.last, err)
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
				v.Difference = fmt.Sprintf("step %d: the output holds two different releases %s", step, rel.Key)
			case was.hash != core.ReleaseHash(rel.Key, rel.Value, rel.Headers):
				v.Difference = fmt.Sprintf("step %d: release %s is not what log, key and manifest give", step, rel.Key)
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
		v.Difference = fmt.Sprintf("step %d: the output holds %s, and the epoch has no such release", c.step, key)
	}
	return nil
}

// unreadable turns an error of the log that no repetition cures into a halt.
func unreadable(err error) error {
	var gap *kafka.GapError
	var truncated *kafka.TruncatedError
	var replaced *kafka.ReplacedError
	if errors.As(err, &gap) || errors.As(err, &truncated) || errors.As(err, &replaced) {
		return halted(haltGap, "the log can't be read from the epoch's first offset on: %w", err)
	}
	return err
}

// coreOf returns the core of an epoch before its first step. The core owns the keys.
func (a *Audit) coreOf(s *config.Stream, m *core.Manifest, e *epochOnFile, keys *dp.Epoch) (*core.Core, error) {
	var initial []float64
	if len(e.initial) > 0 {
		var err error
		if initial, err = parseParameters(e.initial); err != nil {
			return nil, halted(haltState, "initial parameters of epoch %d: %w", m.Epoch, err)
		}
	}
	s = s.Over(m.Numbers())
	mech, err := mechanismOf(new(plans), s, m, e.opened, initial)
	if err != nil {
		return nil, err
	}
	if a.chunk > 0 && mech.Chunk > 0 {
		mech.Chunk = a.chunk
	}
	return core.New(s, m, e.manifest, mech, keys)
}

// boundary returns where a step by the clock ended, as its release says.
func (p *releases) boundary(_ context.Context, step uint64) (boundary, error) {
	ends, ok := p.ends[step]
	if !ok {
		return boundary{}, halted(haltOutputGone, "the output lacks the release of step %d, which says where the step ended", step)
	}
	return boundary{step: step, ends: ends}, nil
}

// formOf returns the form of a published release.
func (p *releases) formOf(key string) (core.Form, bool) {
	c, ok := p.byKey[key]
	if !ok || c.form < 0 {
		return core.Form{}, false
	}
	return p.forms[c.form], true
}

// least returns the message of the first step.
func (p *releases) least() (key string, least copyOf) {
	for k, c := range p.byKey {
		if key == "" || c.step < least.step || c.step == least.step && k < key {
			key, least = k, c
		}
	}
	return key, least
}
