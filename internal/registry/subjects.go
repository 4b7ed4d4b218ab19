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
	ID      int32 // negative if unknown
	// Latest is true for the subject's newest version that is not deleted.
	Latest bool
	// Schema is nil if the registry's text is unusable; Err gives the reason.
	Schema *schema.Schema
	Err    error

	passing bool // true if reading the version again may succeed
	bytes   int  // size of the schema's text and its references, 0 if Schema is nil
}

// Subjects holds the versions of some subjects of a registry, as of the last look. It is the codec.Resolver of
// decoders. A look reads all versions; looks happen by the clock. [Subjects.Known] returns the schema of an id that a
// look has found. [Subjects.Resolve] reads versions that were added since, and returns them to its caller only. It is
// safe for concurrent use.
type Subjects struct {
	client *Client
	names  []string

	known atomic.Pointer[byID] // schemas found by looks, by id

	looks, questions turn // looks and questions of Resolve never wait for each other

	mu       sync.Mutex
	versions map[place]*Version // found by looks; the map is replaced, never changed
	shown    []Version          // as of the last successful look
	down     time.Time          // time since which every look has failed; zero: the last one succeeded
}

// byID holds schemas by id. A schema is nil if it is unusable.
type byID map[int32]*schema.Schema

// turn makes readings for one purpose (looks or questions) happen one at a time, and lets callers share their results.
type turn struct {
	busy chan struct{} // contains an element while the versions are being read
	last reading
}

// reading is one reading of the versions. It holds its time of beginning and its result.
type reading struct {
	begun    time.Time
	versions map[place]*Version // includes versions known before; valid even if err is not nil
	err      error
}

// since reports whether the reading began at a time or later.
func (r reading) since(at time.Time) bool { return !r.begun.IsZero() && !r.begun.Before(at) }

// noID is the id of a version whose id is unknown.
const noID = -1

// place identifies a schema in the registry by subject and version.
type place struct {
	subject string
	version int
}

// Subjects returns the [Subjects] with these names, the same value for the same names. It reads nothing yet.
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

// Known returns the schema of an id. It returns false if no look has found the id, or if the schema is unusable. It
// takes some nanoseconds and no lock.
func (s *Subjects) Known(id int32) (*schema.Schema, bool) {
	found := (*s.known.Load())[id]
	return found, found != nil
}

// Has reports whether a look has found a version with an id.
func (s *Subjects) Has(id int32) bool {
	_, ok := (*s.known.Load())[id]
	return ok
}

// Resolve reads the versions if one of the ids is unknown. If an id is still unknown, it reads them once more after a
// moment. It returns the schemas of all known ids, as soon as all are known, or the registry has answered twice that
// the others do not exist, or the registry has been unreachable for ten seconds.
//
// The number of requests to the registry does not depend on the number of unknown ids. Concurrent calls share their
// requests. Resolve remembers no result, found or not, for later calls: the next call starts with what looks have
// found, and what it finds itself.
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

// has reports whether it contains all ids.
func (x byID) has(all []int32) bool {
	return !slices.ContainsFunc(all, func(id int32) bool { _, has := x[id]; return !has })
}

// add adds the ids of versions. An id that x already contains keeps its schema.
func (x byID) add(versions map[place]*Version) {
	for _, v := range versions {
		if v.ID != noID && x[v.ID] == nil && !v.passing {
			x[v.ID] = v.Schema
		}
	}
}

// patiently reads the versions and adds them to known. If that fails, it tries again for up to s.patience. If looks
// have already failed for that time, it tries only once, so that an outage of the registry delays decoders only at its
// beginning.
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

// downFor returns the time for which all looks have failed.
func (s *Subjects) downFor() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down.IsZero() {
		return 0
	}
	return time.Since(s.down)
}

// Look reads the versions, unless another look began within the last `ago`. It is called by the clock. Its result, its
// timing, and the result of [Subjects.Versions] do not depend on the records that decoders met.
//
// Errors: the registry's answer, or the reason why it is unreachable; ErrNotThere if the registry lacks a subject of
// which nothing has been read before.
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

// Versions returns the versions as of the last successful look, sorted by subject and number.
func (s *Subjects) Versions() []Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.shown)
}

// keep stores the result of a look for Known and, if the look read everything, for Versions.
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

// read reads the versions. If another reading of the same turn, begun at `since` or later, has finished in the
// meantime, read returns its result instead. Results of looks are kept. Results of questions are not: otherwise, while
// the registry is unreachable, the id of one record would influence other records with that id.
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
		now.err = ctx.Err() // this says nothing about the registry
		return now
	}
	t.last = now
	return now
}

// load returns the versions that looks have found, and those added since.
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

// loadSubject adds the new versions of a subject. A version number can get another schema only after the whole subject
// was deleted permanently. In that case the newest version differs, and loadSubject reads all versions again.
func (s *Subjects) loadSubject(ctx context.Context, name string, versions map[place]*Version) error {
	numbers, err := s.client.versionsOf(ctx, name)
	if errors.Is(err, ErrNotThere) && has(versions, name) {
		return nil // the subject was deleted
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
		return fmt.Errorf("the subject has more than %d versions", MaxVersions)
	}
	slices.Sort(numbers)
	slices.Reverse(numbers) // newest first: if not all fit, these are kept
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

// within removes the schema of v if its text would make the total size of all texts too large. texts is the total
// before v. It returns the total after v.
func (v *Version) within(texts int) int {
	if texts+v.bytes > maxTexts {
		v.Schema, v.bytes = nil, 0
		v.Err = fmt.Errorf(
			"the schemas of all versions and their references exceed %d MiB together: delete old versions",
			maxTexts>>20)
	}
	return texts + v.bytes
}

// has reports whether versions contains a version of a subject.
func has(versions map[place]*Version, name string) bool {
	for at := range versions {
		if at.subject == name {
			return true
		}
	}
	return false
}

// version reads one version of a subject. If the answer is unusable, the version's Err says why.
func (c *Client) version(ctx context.Context, subject string, number int) (*Version, error) {
	v := &Version{Subject: subject, Number: number}
	found, err := c.at(ctx, subject, number)
	switch {
	case errors.Is(err, ErrNotThere):
		return nil, nil // deleted in the meantime
	case errors.Is(err, errTooLarge):
		v.Err, v.ID = err, noID
		return v, nil
	case err != nil:
		return nil, err
	case found.ID < 0 || int(int32(found.ID)) != found.ID:
		v.Err, v.ID = fmt.Errorf("its id is %d, which does not fit into a record's header", found.ID), noID
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
		v.Err = fmt.Errorf("its type is %q, must be AVRO, PROTOBUF or JSON", brief(found.Type.String()))
		return v, nil
	}
	if v.Schema, err = schema.Parse(format, found.Schema.Schema, closure.all); err != nil {
		v.Err = errors.New(brief(err.Error()))
		return v, nil
	}
	v.bytes = len(found.Schema.Schema) + closure.bytes
	return v, nil
}

// errReferences is wrapped by the errors about references that cannot be followed.
var errReferences = errors.New("its references")

// references collects the schemas to which another one refers, each after those that it needs.
type references struct {
	all   []schema.Reference
	have  map[place]string // name of the schema at each place
	bytes int
}

// read adds the schemas that refs name. inside are the places of the schemas on the path to refs, which detects cycles.
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
			return fmt.Errorf("%w are more than %d schemas, or exceed %d KiB together", errReferences, maxReferences,
				schema.MaxText>>10)
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
