package connect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/registry"
	"github.com/streamdp/streamdp/internal/schema"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
)

// Schemas knows where the streams of a configuration find the schemas of their records. It is safe
// for concurrent use.
type Schemas struct {
	client *registry.Client      // nil: there is no [registry]
	Files  *credentials.Rotation // of its TLS, nil: there are none

	mu     sync.Mutex
	warned map[SchemaAt]bool
	failed bool // the last look of the process failed
}

// SchemaAt is a version of a subject, as one stream sees it.
type SchemaAt struct {
	Stream, Subject string
	Version         int
	ID              int32
}

// OpenSchemas reads the credentials of [registry]. It sends nothing yet.
//
// Errors: ErrCredentials.
func OpenSchemas(c *config.Config) (*Schemas, error) {
	x := &Schemas{warned: map[SchemaAt]bool{}}
	r := c.Registry
	if r == nil {
		return x, nil
	}
	o := registry.Options{URLs: r.URLs, Timeout: r.Timeout}
	group := c.State.KeyGroupReadable
	if r.TokenFile != "" || r.BasicAuth != nil {
		login := credentials.Login{TokenFile: r.TokenFile}
		if b := r.BasicAuth; b != nil {
			login.Username, login.PasswordFile = b.Username, b.PasswordFile
		}
		o.Authorization = func() (string, error) { return login.Authorization(group) }
		if _, err := o.Authorization(); err != nil {
			return nil, fmt.Errorf("%w: registry: %w", ErrCredentials, err)
		}
	}
	var err error
	if r.TLS != nil {
		if x.Files, err = credentials.OpenTLS(credentials.TLSFiles(*r.TLS), group); err != nil {
			return nil, fmt.Errorf("%w: registry.tls: %w", ErrCredentials, err)
		}
		o.TLS = x.Files.Config
	}
	x.client, err = registry.New(o)
	return x, err
}

// Close ends its connections.
func (x *Schemas) Close() {
	if x != nil && x.client != nil {
		x.client.Close()
	}
}

// Subjects returns the versions of a stream's subjects, nil if the stream looks nothing up.
func (x *Schemas) Subjects(s *config.Stream) *registry.Subjects {
	if !s.Input.Looked() || x == nil || x.client == nil {
		return nil
	}
	return x.client.Subjects(s.Input.SchemaSubjects())
}

// Format returns the format of the records of a stream, with their schema or with what looks
// schemas up. What is looked up is known after [Schemas.Look].
//
// Errors: those of the schema in input.schema_file.
func (x *Schemas) Format(s *config.Stream) (codec.Format, error) {
	f := core.FormatOf(s)
	if !s.Input.Schemas() {
		return f, nil
	}
	if looked := x.Subjects(s); looked != nil {
		f.Schemas, f.Message = looked, s.Input.Message
		return f, nil
	}
	if s.Input.Looked() {
		return f, errors.New("the schemas of the records are in a registry, which is not there")
	}
	var err error
	f.Schema, err = schemaOf(&s.Input)
	return f, err
}

// schemaOf reads the schema of all records of a stream with plain framing.
func schemaOf(in *config.Input) (*schema.Schema, error) {
	found, err := schema.Parse(in.Codec, in.SchemaText, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.SchemaFile, err)
	}
	if in.Message != "" {
		of, ok := found.Message(in.Message)
		if !ok {
			return nil, fmt.Errorf("%s has no message %s", in.SchemaFile, in.Message)
		}
		found = of
	}
	return found, nil
}

// Look reads what was added to a stream's subjects, unless that was done less than a time ago. It
// does nothing for a stream that looks nothing up.
//
// Errors: what the registry answers, or why it can't be reached.
func (x *Schemas) Look(ctx context.Context, s *config.Stream, ago time.Duration) error {
	if looked := x.Subjects(s); looked != nil {
		return looked.Look(ctx, ago)
	}
	return nil
}

// SchemaStatus says how the newest schema of a subject goes with a stream's columns. It is as
// public as the registry.
type SchemaStatus struct {
	Subject string `json:"subject"`
	Version int    `json:"version"`
	ID      int32  `json:"id"`
	// Faults say why records of this schema give no rows; none: they can.
	Faults []string `json:"faults,omitempty"`

	Latest bool `json:"-"`
}

// Compare says of each version that was read of a stream's subjects why records of it give no
// rows.
func (x *Schemas) Compare(s *config.Stream) (all []SchemaStatus, err error) {
	looked := x.Subjects(s)
	if looked == nil {
		return nil, nil
	}
	f, err := x.Format(s)
	if err != nil {
		return nil, err
	}
	for _, v := range looked.Versions() {
		all = append(all,
			SchemaStatus{Subject: v.Subject, Version: v.Number, ID: v.ID, Faults: schemaFaults(f, &v),
				Latest: v.Latest})
	}
	return all, nil
}

// schemaFaults says why records of a version give no rows, in words that are as public as the
// registry.
func schemaFaults(f codec.Format, v *registry.Version) (faults []string) {
	if v.Err != nil {
		return []string{"the schema can't be used: " + v.Err.Error()}
	}
	return mismatches(f, v.Schema)
}

// mismatches says which columns records of a schema do not give.
func mismatches(f codec.Format, of *schema.Schema) (faults []string) {
	found, err := f.Compare(of)
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range found {
		faults = append(faults, m.String())
	}
	return faults
}

// First reports whether nobody asked for this version before.
func (x *Schemas) First(at SchemaAt) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.warned[at]
	x.warned[at] = true
	return !was
}

// Reached shows whether the last look at the registry succeeded, and logs a change.
func (x *Schemas) Reached(log *slog.Logger, show func(on float64), err error) {
	x.mu.Lock()
	failed := err != nil && !errors.Is(err, registry.ErrNotThere)
	changed := x.failed != failed
	x.failed = failed
	x.mu.Unlock()
	on := 1.0
	if failed {
		on = 0
	}
	show(on)
	switch {
	case changed && failed:
		log.Warn(
			"the schema registry does not answer: records whose schemas are known go on, others wait some seconds "+
				"and give no rows then", "error", err.Error())
	case changed:
		log.Info("the schema registry answers again")
	}
}

// CheckSchemas compares the columns of all streams with the schemas of their records: with plain
// framing those of input.schema_file and, with connect, all versions in the registry.
//
// Errors: of each stream what its newest schema, or the only one, lacks; or why the registry
// can't be asked. Warnings: versions before the newest, and subjects that are not there yet.
func CheckSchemas(ctx context.Context, c *config.Config, connect bool) (warnings []string, err error) {
	x, err := OpenSchemas(c)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	var faults []error
	for _, s := range c.Streams {
		switch {
		case !s.Input.Schemas():
		case !s.Input.Looked():
			f, err := x.Format(s)
			if err == nil {
				err = inSchema(s.Input.SchemaFile, mismatches(f, f.Schema))
			}
			if err != nil {
				faults = append(faults, ofStream(s, err))
			}
		case connect:
			more, err := x.checkLooked(ctx, s)
			if err != nil {
				faults = append(faults, ofStream(s, err))
			}
			warnings = append(warnings, more...)
		}
	}
	return warnings, errors.Join(faults...)
}

// ofStream says of an error, and of each of joined ones, which stream has it.
func ofStream(s *config.Stream, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("stream %s: %w", s.Name, err)
	}
	var all []error
	for _, err := range joined.Unwrap() {
		all = append(all, ofStream(s, err))
	}
	return errors.Join(all...)
}

// inSchema makes an error of what a schema lacks, nil where that is nothing.
func inSchema(which string, lacks []string) error {
	var faults []error
	for _, why := range lacks {
		faults = append(faults, fmt.Errorf("%s: %s", which, why))
	}
	return errors.Join(faults...)
}

func (x *Schemas) checkLooked(ctx context.Context, s *config.Stream) (warnings []string, _ error) {
	switch err := x.Look(ctx, s, 0); {
	case errors.Is(err, registry.ErrNotThere):
		warnings = append(warnings,
			fmt.Sprintf("stream %s: %s yet; run waits until a producer registers it, or input.subjects names another",
				s.Name, err))
	case err != nil:
		return nil, err
	}
	all, err := x.Compare(s)
	faults := []error{err}
	for _, v := range all {
		which := fmt.Sprintf("subject %s, version %d (id %d)", v.Subject, v.Version, v.ID)
		if v.Latest {
			faults = append(faults, inSchema(which, v.Faults))
			continue
		}
		for _, why := range v.Faults {
			warnings = append(warnings, fmt.Sprintf("stream %s: %s: %s; its records give no rows", s.Name, which, why))
		}
	}
	return warnings, errors.Join(faults...)
}
