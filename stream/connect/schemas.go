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

// Schemas finds the schemas of the records of a configuration's streams. It is safe for concurrent use.
type Schemas struct {
	client *registry.Client      // nil: the configuration has no [registry]
	Files  *credentials.Rotation // TLS files for the registry; nil: none

	mu     sync.Mutex
	warned map[SchemaAt]bool
	failed bool // the last query of the registry failed
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

// Close closes the connections.
func (x *Schemas) Close() {
	if x != nil && x.client != nil {
		x.client.Close()
	}
}

// Subjects returns the versions of a stream's subjects, or nil if the stream does not use the registry.
func (x *Schemas) Subjects(s *config.Stream) *registry.Subjects {
	if !s.Input.Looked() || x == nil || x.client == nil {
		return nil
	}
	return x.client.Subjects(s.Input.SchemaSubjects())
}

// Format returns the format of a stream's records. It includes their schema, or a lookup of schemas in the registry,
// which knows them after [Schemas.Look].
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
		return f, errors.New("the schemas of the records are in a registry, but the configuration has no [registry]")
	}
	var err error
	f.Schema, err = schemaOf(&s.Input)
	return f, err
}

// schemaOf parses the schema in input.schema_file. A stream with plain framing has one schema for all records.
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

// Look reads new versions of a stream's subjects, unless the last look was less than ago before. It does nothing for a
// stream that does not use the registry.
//
// Errors: those of the registry or of the connection to it.
func (x *Schemas) Look(ctx context.Context, s *config.Stream, ago time.Duration) error {
	if looked := x.Subjects(s); looked != nil {
		return looked.Look(ctx, ago)
	}
	return nil
}

// SchemaStatus says whether the newest schema of a subject fits a stream's columns. It is as public as the registry.
type SchemaStatus struct {
	Subject string `json:"subject"`
	Version int    `json:"version"`
	ID      int32  `json:"id"`
	// Faults say why records of this schema give no rows. It is empty if they give rows.
	Faults []string `json:"faults,omitempty"`

	Latest bool `json:"-"`
}

// Compare compares a stream's columns with all versions of its subjects that were read.
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

// schemaFaults returns why records of a version give no rows. The words are as public as the registry.
func schemaFaults(f codec.Format, v *registry.Version) (faults []string) {
	if v.Err != nil {
		return []string{"the schema can't be used: " + v.Err.Error()}
	}
	return mismatches(f, v.Schema)
}

// mismatches returns one fault for each column that records of a schema do not give.
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

// First reports whether it is called with this version for the first time.
func (x *Schemas) First(at SchemaAt) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.warned[at]
	x.warned[at] = true
	return !was
}

// Reached calls show with the outcome of the last query of the registry, and logs a change.
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
			"the schema registry does not answer: records with known schemas are decoded; all other records wait "+
				"some seconds and then give no rows", "error", err.Error())
	case changed:
		log.Info("the schema registry answers again")
	}
}

// CheckSchemas compares the columns of all streams with the schemas of their records. With plain framing, the schema is
// in input.schema_file. If connect is true, CheckSchemas also compares all versions in the registry.
//
// The error says what a stream's newest or only schema lacks, or why the registry cannot be queried. The warnings name
// faults of older versions, and missing subjects.
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

// ofStream adds the stream's name to an error. If the error joins several, it adds the name to each.
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

// inSchema returns an error that lists what a schema lacks, or nil if it lacks nothing.
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
			fmt.Sprintf("stream %s: %s yet: run waits until a producer registers it; or correct input.subjects",
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
