package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/streamdp/streamdp/internal/schema"
)

// Version is one version of a subject.
type Version struct {
	Subject string
	Number  int
	ID      int32 // negative where it is not known
	// Latest says that it is the subject's newest version that is not deleted.
	Latest bool
	// Schema is nil if the registry's text can't be used; Err says why.
	Schema *schema.Schema
	Err    error

	passing bool // Err may be gone when the version is read again
	bytes   int  // of the text of a schema and of its references, 0 where Schema is nil
}

// Subjects are the versions of some subjects of a registry, as far as they were read. It is the
// codec.Resolver of decoders: [Subjects.Known] tells the schema of an id, as of the looks by the
// clock, and [Subjects.Resolve] reads versions that were added since, for those who ask and nobody
// else. It is safe for concurrent use.
type Subjects struct {
	client *Client
	names  []string

	known atomic.Pointer[byID] // as of the looks

	looks, questions turn // never wait for each other

	mu       sync.Mutex
	versions map[place]*Version // as of the looks; replaced as a whole
	shown    []Version          // as of the last look that succeeded
	down     time.Time          // since when every look has failed; zero: the last one did not
}

// byID are schemas by their ids, nil where the schema can't be used.
type byID map[int32]*schema.Schema

// turn has those who read the versions for one purpose wait for each other, and share what they find.
type turn struct {
	busy chan struct{} // has an element while the versions are read
	last reading
}

// reading is a reading of the versions: when it began, and what came of it.
type reading struct {
	begun    time.Time
	versions map[place]*Version // with those that were known before; also where err is not nil
	err      error
}

// since reports whether it began at a time or later.
func (r reading) since(at time.Time) bool { return !r.begun.IsZero() && !r.begun.Before(at) }

// noID is the id of a version whose id is not known.
const noID = -1

// place is where a schema is in the registry.
type place struct {
	subject string
	version int
}

// Subjects returns the versions of subjects, the same for the same names. Nothing is read yet.
func (c *Client) Subjects(names []string) *Subjects {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := strings.Join(names, "\x00")
	s := c.subjects[key]
	if s == nil {
		s = &Subjects{client: c, names: slices.Clone(names), versions: map[place]*Version{}}
		s.looks.busy, s.questions.busy = make(chan struct{}, 1), make(chan struct{}, 1)
		s.known.Store(&byID{})
		c.subjects[key] = s
	}
	return s
}

// Known returns the schema of an id. It is false for an id that no version has which a look found,
// and for one whose schema can't be used. It takes some nanoseconds and no lock.
func (s *Subjects) Known(id int32) (*schema.Schema, bool) {
	found := (*s.known.Load())[id]
	return found, found != nil
}

// Has reports whether a version that a look found has an id.
func (s *Subjects) Has(id int32) bool {
	_, ok := (*s.known.Load())[id]
	return ok
}

// Resolve reads the versions if one of the ids is unknown, and once more after a moment if it still
// is. It returns the schemas of all ids that are known then: when these are all of them, or the
// registry has said twice that others are not there, or it has not been reached for ten seconds.
//
// How often the registry is asked does not depend on how many ids are unknown. Calls at the same
// time share what they ask. Nothing is remembered for later ones, neither of what was found nor of
// what was not: the next call has what looks by the clock have found, and what it finds itself.
func (s *Subjects) Resolve(all []int32) map[int32]*schema.Schema {
	known := maps.Clone(*s.known.Load())
	for n := range 2 {
		if known.has(all) {
			break
		}
		if n > 0 {
			time.Sleep(s.client.options.again)
		}
		if s.patiently(known) != nil {
			break
		}
	}
	found := map[int32]*schema.Schema{}
	for _, id := range all {
		if of := known[id]; of != nil {
			found[id] = of
		}
	}
	return found
}

// has reports whether all of some ids are there.
func (x byID) has(all []int32) bool {
	return !slices.ContainsFunc(all, func(id int32) bool { _, has := x[id]; return !has })
}

// add adds the ids of versions. An id that is there stays there with its schema.
func (x byID) add(versions map[place]*Version) {
	for _, v := range versions {
		if v.ID != noID && x[v.ID] == nil && !v.passing {
			x[v.ID] = v.Schema
		}
	}
}

// patiently reads the versions, and again if that fails, for as long as a decoder waits, and adds
// to known what was found. Where looks by the clock have failed for as long already, it tries once:
// so an outage of the registry holds decoders up only at its beginning.
func (s *Subjects) patiently(known byID) error {
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), s.client.options.patience)
		r := s.read(ctx, &s.questions, time.Now())
		cancel()
		known.add(r.versions)
		if r.err == nil || time.Since(began) >= s.client.options.patience || s.downFor() >= s.client.options.patience {
			return r.err
		}
		time.Sleep(s.client.options.pause)
	}
}

// downFor returns for how long the registry has not been reached, as looks by the clock know it.
func (s *Subjects) downFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down.IsZero() {
		return 0
	}
	return time.Since(s.down)
}

// Look reads the versions unless another look has begun less than a time ago. It is called by the
// clock. What it returns and when, and what [Subjects.Versions] returns, do not depend on what
// decoders met.
//
// Errors: what the registry answers, or why it can't be reached; ErrNotThere if it does not have
// a subject of which nothing has been read.
func (s *Subjects) Look(ctx context.Context, ago time.Duration) error {
	now := time.Now()
	err := s.read(ctx, &s.looks, now.Add(-ago)).err
	if err != nil && ctx.Err() == nil {
		err = s.read(ctx, &s.looks, now).err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.down = time.Time{}
	case s.down.IsZero():
		s.down = now
	}
	return err
}

// Versions returns the versions as of the last look that succeeded, by subject and number.
func (s *Subjects) Versions() []Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.shown)
}

// keep makes what a look has read known, and, if it has read all, shows it.
func (s *Subjects) keep(r reading) {
	known := maps.Clone(*s.known.Load())
	known.add(r.versions)
	s.known.Store(&known)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions = r.versions
	if r.err != nil {
		return
	}
	var all []Version
	for _, v := range s.versions {
		all = append(all, *v)
	}
	slices.SortFunc(all, func(a, b Version) int {
		return cmp.Or(slices.Index(s.names, a.Subject)-slices.Index(s.names, b.Subject), a.Number-b.Number)
	})
	s.shown = all
}

// read reads the versions, unless a reading in this turn that began at since or later has been made
// meanwhile: then it returns that one. What looks read is kept; what questions read is not, or one
// record's id would decide, while the registry is away, what becomes of others with that id.
func (s *Subjects) read(ctx context.Context, t *turn, since time.Time) reading {
	select {
	case t.busy <- struct{}{}:
	case <-ctx.Done():
		return reading{err: ctx.Err()}
	}
	defer func() { <-t.busy }()
	if t.last.since(since) {
		return t.last
	}
	now := reading{begun: time.Now()}
	now.versions, now.err = s.load(ctx)
	if t == &s.looks {
		s.keep(now)
	}
	if now.err != nil && errors.Is(ctx.Err(), context.Canceled) {
		now.err = ctx.Err() // nothing is known of the registry
		return now
	}
	t.last = now
	return now
}

// load returns the versions that looks have found, with those that were added.
func (s *Subjects) load(ctx context.Context) (versions map[place]*Version, err error) {
	s.mu.Lock()
	versions = maps.Clone(s.versions)
	s.mu.Unlock()
	var errs []error
	for _, name := range s.names {
		if err := s.loadSubject(ctx, name, versions); err != nil {
			errs = append(errs, fmt.Errorf("subject %s: %w", name, err))
		}
	}
	return versions, errors.Join(errs...)
}

// loadSubject adds the versions of a subject that were added. A version's number can come back
// with another schema only after all of the subject has been deleted for good. Then the newest
// version is another one, and all are read.
func (s *Subjects) loadSubject(ctx context.Context, name string, versions map[place]*Version) error {
	numbers, err := s.client.versionsOf(ctx, name)
	if errors.Is(err, ErrNotThere) && has(versions, name) {
		return nil // it was deleted
	}
	if err != nil {
		return err
	}
	latest, err := s.client.at(ctx, name, newest)
	if err != nil && !errors.Is(err, ErrNotThere) && !errors.Is(err, errTooLarge) {
		return err
	}
	was := versions[place{name, latest.Version}]
	again := err == nil && was != nil && was.ID != int32(latest.ID)
	numbers = slices.DeleteFunc(numbers, func(n int) bool {
		v := versions[place{name, n}]
		return v != nil && !v.passing && !again
	})
	if len(numbers) > MaxVersions-len(versions) {
		return fmt.Errorf("more than %d versions", MaxVersions)
	}
	slices.Sort(numbers)
	slices.Reverse(numbers) // where not all have room, the newest have
	texts := 0
	for _, v := range versions {
		texts += v.bytes
	}
	var errs []error
	for some := range slices.Chunk(numbers, atOnce) {
		found := make([]*Version, len(some))
		failed := make([]error, len(some))
		var wg sync.WaitGroup
		for i, n := range some {
			wg.Go(func() { found[i], failed[i] = s.client.version(ctx, name, n) })
		}
		wg.Wait()
		for _, v := range found {
			if v == nil {
				continue
			}
			at := place{name, v.Number}
			if was := versions[at]; was != nil {
				texts -= was.bytes
			}
			texts, versions[at] = v.within(texts), v
		}
		errs = append(errs, failed...)
	}
	for at, v := range versions {
		if newest := at.version == latest.Version; at.subject == name && v.Latest != newest {
			changed := *v
			changed.Latest = newest
			versions[at] = &changed
		}
	}
	return errors.Join(errs...)
}

// within takes the schema from a version if all texts would be too large with it. It returns how
// large all are then.
func (v *Version) within(texts int) int {
	if texts+v.bytes > maxTexts {
		v.Schema, v.bytes = nil, 0
		v.Err = fmt.Errorf(
			"the schemas of all versions have more than %d MiB, with what they refer to: delete old ones", maxTexts>>20)
	}
	return texts + v.bytes
}

// has reports whether there is a version of a subject.
func has(versions map[place]*Version, name string) bool {
	for at := range versions {
		if at.subject == name {
			return true
		}
	}
	return false
}

// version reads one version of a subject. An answer that can't be used is in the version's Err.
func (c *Client) version(ctx context.Context, subject string, number int) (*Version, error) {
	v := &Version{Subject: subject, Number: number}
	found, err := c.at(ctx, subject, number)
	switch {
	case errors.Is(err, ErrNotThere):
		return nil, nil // deleted meanwhile
	case errors.Is(err, errTooLarge):
		v.Err, v.ID = err, noID
		return v, nil
	case err != nil:
		return nil, err
	case found.ID < 0 || int(int32(found.ID)) != found.ID:
		v.Err, v.ID = fmt.Errorf("its id is %d, which no record can have", found.ID), noID
		return v, nil
	}
	v.ID = int32(found.ID)
	var closure references
	switch err := closure.read(ctx, c, found.References, map[place]bool{}); {
	case errors.Is(err, ErrNotThere):
		v.Err, v.passing = err, true
		return v, nil
	case errors.Is(err, errReferences) || errors.Is(err, errTooLarge):
		v.Err = err
		return v, nil
	case err != nil:
		return nil, err
	}
	format := map[sr.SchemaType]string{sr.TypeAvro: schema.Avro, sr.TypeProtobuf: schema.Protobuf,
		sr.TypeJSON: schema.JSON}[found.Type]
	if format == "" {
		v.Err = fmt.Errorf("its type is %q, which is none of AVRO, PROTOBUF and JSON", brief(found.Type.String()))
		return v, nil
	}
	if v.Schema, err = schema.Parse(format, found.Schema.Schema, closure.all); err != nil {
		v.Err = errors.New(brief(err.Error()))
		return v, nil
	}
	v.bytes = len(found.Schema.Schema) + closure.bytes
	return v, nil
}

// errReferences is the error of references that can't be followed.
var errReferences = errors.New("its references")

// references are the schemas that another one refers to, each behind those that it needs.
type references struct {
	all   []schema.Reference
	have  map[place]string // under which name
	bytes int
}

// read adds what refs name. inside are the places that lead here.
func (r *references) read(ctx context.Context, c *Client, refs []sr.SchemaReference, inside map[place]bool) error {
	for _, ref := range refs {
		at := place{ref.Subject, ref.Version}
		if name, ok := r.have[at]; ok && name == ref.Name {
			continue
		}
		if inside[at] {
			return fmt.Errorf("%w lead back to subject %s, version %d", errReferences, brief(at.subject), at.version)
		}
		found, err := c.at(ctx, at.subject, at.version)
		if err != nil {
			return fmt.Errorf("reference to subject %s, version %d: %w", brief(at.subject), at.version, err)
		}
		if r.bytes += len(found.Schema.Schema); len(r.all) >= maxReferences || r.bytes > schema.MaxText {
			return fmt.Errorf("%w are more than %d, or than %d KiB", errReferences, maxReferences, schema.MaxText>>10)
		}
		inside[at] = true
		if err := r.read(ctx, c, found.References, inside); err != nil {
			return err
		}
		delete(inside, at)
		if r.have == nil {
			r.have = map[place]string{}
		}
		r.have[at] = ref.Name
		r.all = append(r.all, schema.Reference{Name: ref.Name, Text: found.Schema.Schema})
	}
	return nil
}
