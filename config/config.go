// Package config reads the daemon's configuration file, which is strict TOML.
//
// An unknown key, a key in upper case, a number that is not finite, a duration without its unit and an unknown word are
// faults. No key of the file is ignored. All faults of a file are reported at once, each with its line. docs/config.md
// lists the keys; it is made from the same table as the reader.
//
// Strings may hold ${NAME}, which stands for an environment variable. Secrets
// are files, which package credentials reads; their contents are never part of the
// configuration, and no message shows them.
//
// The guarantee of an epoch depends on only some keys of the stream's table. These keys have a canonical form,
// [Stream.Canonical], and a digest, [Stream.Digest]. The epoch's noise depends on the digest.
package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/toml"
	"github.com/streamdp/streamdp/moments"
	"github.com/streamdp/streamdp/refit"
	"github.com/streamdp/streamdp/sgd"
)

//go:generate go test -run ^TestReference$ -update

// Config is a configuration without faults, in which defaults are filled in.
type Config struct {
	Kafka Kafka `toml:"kafka"`
	State State `toml:"state"`
	HTTP  HTTP  `toml:"http"`
	Log   Log   `toml:"log"`
	// Registry is the table [registry]. Nil: the file has none.
	Registry *Registry `toml:"registry"`
	// Trace is the table [trace]. Nil: no traces are sent.
	Trace *Trace `toml:"trace"`
	// Cluster is the table [cluster]. Nil: this process alone runs the tasks.
	Cluster *Cluster `toml:"cluster"`
	// Streams are the tables [stream.NAME] and the streams made from patterns, by name.
	Streams []*Stream `toml:"-"`
	// Patterns are the tables [stream.NAME] with input.topics, by name; see [Config.Expand]. The file has at least one
	// table, of either kind.
	Patterns []*Stream `toml:"-"`

	masked map[string]bool `toml:"-"` // keys with values from environment variables; see Differences
}

// Kafka is the table [kafka]: the Kafka cluster.
type Kafka struct {
	// Brokers are the addresses through which the client finds the cluster, each host:port, without duplicates.
	// Required.
	Brokers []string `toml:"brokers"`
	// ClientID is the name under which brokers know this client. Default
	// "streamdp".
	ClientID string `toml:"client_id"`
	// BoundaryTopic is the topic that holds the ends (boundaries) of steps by the clock. Default "": none.
	BoundaryTopic string `toml:"boundary_topic"`
	// ControlTopic is the topic that mirrors the ledger and in which epochs are claimed. Empty: none.
	ControlTopic string `toml:"control_topic"`
	// Group is a consumer group to which the daemon commits its offsets, so that other tools can show its lag. The
	// daemon never reads these offsets. Empty: none.
	Group string `toml:"group"`
	// FetchMemory is the memory in bytes that all tasks share for brokers' responses and the records and rows decoded
	// from them. Default 256 MiB.
	FetchMemory int `toml:"fetch_memory"`
	// TLS is the table [kafka.tls]. Nil: connections use no TLS.
	TLS *TLS `toml:"tls"`
	// SASL is the table [kafka.sasl]. Nil: the client does not authenticate.
	SASL *SASL `toml:"sasl"`
}

// TLS is the table [kafka.tls]: TLS towards the brokers.
type TLS struct {
	// CAFile holds the certificate authorities to trust instead of the system's.
	CAFile string `toml:"ca_file"`
	// CertFile and KeyFile are this client's certificate and its key. Both or none.
	CertFile string `toml:"cert_file"`
	KeyFile  string `toml:"key_file"`
}

// State is the table [state]. It says where the state that must survive a restart is kept, and where its key is.
type State struct {
	// Dir is the directory of checkpoints, manifests and the ledger. Required.
	Dir string `toml:"dir"`
	// KeyFile is the file of the master key. Required.
	KeyFile string `toml:"key_file"`
	// KeyGroupReadable accepts a key file that its group may read. Default
	// false.
	KeyGroupReadable bool `toml:"key_group_readable"`
	// CommitInterval is the period of durable commits, at least 10 ms. Default 200 ms. 0 commits at every step, which
	// is accepted only if all brokers are loopback addresses.
	CommitInterval time.Duration `toml:"commit_interval"`
	// EpochSecretRetention is how long the secret of a closed epoch is kept.
	// Default 0.
	EpochSecretRetention time.Duration `toml:"epoch_secret_retention"`
	// Encrypt encrypts checkpoints and secrets under the master key. Default false.
	Encrypt bool `toml:"encrypt"`
	// Archive keeps published releases on disk. Default false.
	Archive bool `toml:"archive"`
}

// HTTP is the table [http]: metrics, status and health.
type HTTP struct {
	// Listen is the address to listen on. Default "127.0.0.1:9464".
	Listen string `toml:"listen"`
	// Exposure is "operator" (the default) or "public", which leaves out
	// metrics that are exact functions of records.
	Exposure string `toml:"exposure"`
	// Metrics is "task" (the default), or "aggregate" for sums and extremes over all
	// tasks instead of series for each.
	Metrics string `toml:"metrics"`
	// Hosts are the additional host names that the listener accepts in requests.
	Hosts []string `toml:"hosts"`
	// InsecureListen accepts a listener that other machines can reach and that has
	// neither TLS nor a password. Default false.
	InsecureListen bool `toml:"insecure_listen"`
	// TLS is nil for HTTP without TLS.
	TLS *ServerTLS `toml:"tls"`
	// BasicAuth is nil if no password is required.
	BasicAuth *BasicAuth `toml:"basic_auth"`
}

// ServerTLS is the table [http.tls].
type ServerTLS struct {
	// CertFile and KeyFile are the listener's certificate and its key. Required.
	CertFile string `toml:"cert_file"`
	KeyFile  string `toml:"key_file"`
}

// BasicAuth is the table [http.basic_auth]: user and password of readers.
type BasicAuth struct {
	// Username is required.
	Username string `toml:"username"`
	// PasswordFile is the file of the password. Required.
	PasswordFile string `toml:"password_file"`
}

// Log is the table [log]: messages on standard error.
type Log struct {
	// Level is "debug", "info" (the default), "warn" or "error".
	Level string `toml:"level"`
	// Format is "json" (the default) or "text".
	Format string `toml:"format"`
}

// Stream is a table [stream.NAME]. It applies one mechanism to partitions of one topic.
type Stream struct {
	// Name is 1 to 63 of a-z, 0-9, _ and -. For a stream made from a pattern it is the result of [Stream.StreamName].
	Name   string `toml:"-"`
	Input  Input  `toml:"input"`
	Output Output `toml:"output"`
	// Centre is subtracted from each column before the result is divided by Scale. It has one number per column; NaN
	// stands for "auto". Default 0, or "auto" if moments.clip is "auto".
	Centre []float64 `toml:"centre"`
	// Scale has one positive number per column; NaN stands for "auto". Default 1, or "auto" if moments.clip is "auto".
	Scale []float64 `toml:"scale"`
	// Warmup is the number of offsets that the warm-up reads to find "auto" values. Default 0: the mechanism chooses.
	Warmup uint64 `toml:"warmup"`
	// WarmupMode is "buffer" (the default) or "split".
	WarmupMode string `toml:"warmup_mode"`
	found      bool   `toml:"-"` // all "auto" values have been replaced; see Bounded
	// masked holds the keys below the stream whose values come from environment variables, like Config.masked.
	masked map[string]bool `toml:"-"`
	// Step is the length of a step: a number of offsets, at least 1, or a period of the clock. Default 100 offsets for
	// moments. For refits a step is a window and must be a period.
	Step Step `toml:"step"`
	// StepMax is the largest number of offsets that a step by the clock may have in all partitions together. Default 10
	// million; required for refits.
	StepMax uint64 `toml:"step_max"`
	// Merge makes all partitions one task. Each of its steps holds Step offsets of each partition. Default false.
	Merge bool `toml:"merge"`
	// MergeAhead is the number of steps by which a partition may be ahead of the slowest one. For a refit by the clock
	// it is also the number of windows that may be read ahead of the one being solved. Default 4.
	MergeAhead int `toml:"merge_ahead"`
	// Horizon is the number of steps of an epoch. Default 0: unlimited.
	Horizon uint64 `toml:"horizon"`
	// OnHorizon says what happens after the last step: "halt" (the default), "rollover" or "continue". Only with a
	// horizon.
	OnHorizon string `toml:"on_horizon"`
	// OnGap says what happens if Kafka deleted records before the task read them: "halt" (the default) or "null".
	OnGap string `toml:"on_gap"`
	// DeadLetter is the table [stream.NAME.dead_letter].
	DeadLetter DeadLetter `toml:"dead_letter"`
	// LatticeBits says how fine the lattice is: its spacing is smaller than clip norm and noise by this number of bits,
	// 24 to 30. Default 24.
	LatticeBits int     `toml:"lattice_bits"`
	Privacy     Privacy `toml:"privacy"`
	// User makes persons the unit of the guarantee. Nil: the unit is one record.
	User *User `toml:"user"`

	// Moments, SGD, Refit and Adam are the mechanisms. Exactly one is not nil. Its columns, steps, horizon, centre and
	// scale are copied from the stream.
	Moments *moments.Config `toml:"moments"`
	SGD     *sgd.Config     `toml:"sgd"`
	Refit   *refit.Config   `toml:"refit"`
	// Adam.Initial is never set from the configuration.
	Adam *adam.Config `toml:"adam"`

	matches *regexp.Regexp `toml:"-"` // nil unless the stream is a pattern
	of      *Stream        `toml:"-"` // the pattern that made this stream; nil for a table of the file
}

// Input is the table [stream.NAME.input]. It says where records come from and how they are decoded.
type Input struct {
	// Topic is the topic. Required, except in a pattern, which has none.
	Topic string `toml:"topic"`
	// Topics makes the stream a pattern: a regular expression (RE2) that matches whole names of topics. Default "": the
	// stream is not a pattern.
	Topics string `toml:"topics"`
	// MaxTopics is the largest number of topics that a pattern reads. Default 100.
	MaxTopics int `toml:"max_topics"`
	// Partitions are the numbers of the partitions, ascending, at least one; or only AllPartitions. Default [0].
	Partitions []int `toml:"partition"`
	// Start is where the first epoch begins. Default Earliest.
	Start Start `toml:"start"`
	// Codec is the form of a record's value: "json" (the default),
	// "json-array", "csv", "float64", "float32", "avro", "protobuf" or "json-schema".
	Codec string `toml:"codec"`
	// Framing says which header precedes a record with a schema: "confluent" (the default), or "plain" for none.
	Framing string `toml:"framing"`
	// Subjects are the names under which the registry keeps the schemas; see SchemaSubjects.
	Subjects []string `toml:"subjects"`
	// SchemaFile is the file of the schema of all records, for framing "plain". SchemaText is its content.
	SchemaFile string `toml:"schema_file"`
	SchemaText string `toml:"-"`
	// Message is the Protobuf message type of all records. Default "": the type that the record's header names or, with
	// framing "plain", the first type of the schema.
	Message string `toml:"message"`
	// Columns are the columns, in order: names or paths for json, positions from "1" for csv, labels for other codecs.
	// Required.
	Columns []string `toml:"columns"`
	// Column holds the tables [stream.NAME.input.column.COLUMN] by column: one for each column that is not a plain
	// number. A row may have more numbers than Columns has columns; the method Row names them.
	Column map[string]*Column `toml:"column"`
	// MaxRecordBytes is the largest size of a valid record; a larger one counts as null. Default 0: chosen from the
	// length of a row.
	MaxRecordBytes int `toml:"max_record_bytes"`
	// AllowCompacted accepts a topic that Kafka compacts. Default false.
	AllowCompacted bool `toml:"allow_compacted"`
}

// AllPartitionsis the only element of Input.Partitions if the stream reads every partition of the topic.
const AllPartitions = toml.All

// FewestMerged is the partition count assumed for `partition = "all"` when check and plan run offline.
const FewestMerged = 2

// All reports whether the stream reads every partition of its topic.
func (in *Input) All() bool { return slices.Contains(in.Partitions, AllPartitions) }

// Reads reports whether the stream reads a partition.
func (in *Input) Reads(partition int) bool {
	return in.All() && partition >= 0 || slices.Contains(in.Partitions, partition)
}

// First returns the lowest partition that the stream reads. For all partitions it is 0.
func (in *Input) First() int { return max(0, in.Partitions[0]) }

// Output is the table [stream.NAME.output]. It says where releases go.
type Output struct {
	// Topic is the topic. It must be neither another stream's output nor an input. Default: the input's topic followed
	// by ".dp".
	Topic string `toml:"topic"`
	// Partition is the partition to which all releases go. Default 0.
	Partition int `toml:"partition"`
	// Create creates the topic if it is missing. Default true.
	Create bool `toml:"create"`
	// Values are the names of the values to publish. Empty, the default: all values of the mechanism.
	Values []string `toml:"values"`
	// Encoding is the form of the numbers: "json" (the default) or "base64".
	Encoding string `toml:"encoding"`
	// PrivacyEvery says how often a release holds the whole privacy block: in step 1 and in every PrivacyEvery-th step
	// after it. Default 1: in every step.
	PrivacyEvery uint64 `toml:"privacy_every"`
}

// DeadLetter is the table [stream.NAME.dead_letter]. It says whether and where the task reports records that gave no
// row.
type DeadLetter struct {
	// Mode is "off" (the default), "reference" or "full".
	Mode string `toml:"mode"`
	// Topic is required unless Mode is "off". It must be neither an input nor an output.
	Topic string `toml:"topic"`
}

// Privacy is the table [stream.NAME.privacy]: the guarantee that one epoch gives each record.
type Privacy struct {
	// Epsilon is positive. Required.
	Epsilon float64 `toml:"epsilon"`
	// Delta is in (0, 1). Required.
	Delta float64 `toml:"delta"`
	// Adjacency defines neighbouring logs: how two of them differ. Required.
	Adjacency dp.Adjacency `toml:"adjacency"`
	// LimitEpsilon is an upper bound on the ε that all epochs of all streams together may charge to a record of the
	// input partition. It is at least Epsilon. Default Epsilon.
	LimitEpsilon float64 `toml:"limit_epsilon"`
	// LimitDelta is the same bound for δ. It is at least Delta. Default Delta.
	LimitDelta float64 `toml:"limit_delta"`
}

// agrees reports whether two streams have the same limit and the same adjacency. Streams that share a budget must
// agree.
func (p Privacy) agrees(q Privacy) bool {
	return p.LimitEpsilon == q.LimitEpsilon && p.LimitDelta == q.LimitDelta && p.Adjacency == q.Adjacency
}

// Step is the length of a step: a number of offsets or, if negative, a period of the clock in nanoseconds.
type Step int64

// Every returns the Step whose steps end at each multiple of a period of the clock.
func Every(period time.Duration) Step { return Step(-period) }

// Clock returns the period of steps by the clock. It is 0 if a step is a number of offsets.
func (s Step) Clock() time.Duration { return max(0, time.Duration(-s)) }

// Slots returns the largest number of offsets of a step. For steps by the clock it counts all partitions together,
// otherwise one partition.
func (s *Stream) Slots() uint64 {
	if s.Step.Clock() > 0 {
		return s.StepMax
	}
	return uint64(s.Step)
}

// Start is the position where a stream's first epoch begins: an offset, Earliest or Latest.
type Start int64

const (
	// Latest is the last stable offset of the log.
	Latest Start = -1
	// Earliest is the start of the log.
	Earliest Start = -2
)

// String returns "earliest", "latest" or the offset.
func (s Start) String() string {
	switch s {
	case Earliest:
		return "earliest"
	case Latest:
		return "latest"
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText returns the text of s in the form that UnmarshalText reads.
func (s Start) MarshalText() ([]byte, error) {
	if s < Earliest {
		return nil, fmt.Errorf("start is %d, must be an offset", int64(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads "earliest", "latest" or the digits of an offset.
func (s *Start) UnmarshalText(text []byte) error {
	switch string(text) {
	case "earliest":
		*s = Earliest
	case "latest":
		*s = Latest
	default:
		n, err := strconv.ParseUint(string(text), 10, 63)
		if err != nil {
			return fmt.Errorf("start is %q, must be %s", text, startText)
		}
		*s = Start(n)
	}
	return nil
}

// Load reads the configuration at path. If path is a directory, Load reads its files whose names end in .toml and do
// not begin with a dot, in the order of their names, as if they were one file. If the configuration has faults, the
// error is of type Faults. Any other error means that a file could not be read.
func Load(path string) (*Config, error) {
	files, err := toml.Sources(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return parseFiles(files)
}

// Text returns the text that Load parses: the content of the file at path or, for a directory, the contents of its
// files one after the other.
//
// Errors: a file could not be read.
func Text(path string) ([]byte, error) {
	files, err := toml.Sources(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var all []byte
	for _, f := range files {
		all = append(all, f.Text...)
	}
	return all, nil
}

// Parse reads a configuration from memory. Messages use name as the file's name.
func Parse(name string, data []byte) (*Config, error) {
	return parseFiles([]toml.Source{{Name: name, Text: string(data)}})
}

func parseFiles(files []toml.Source) (*Config, error) {
	d := &document{toml.Parse(files)}
	c := &Config{}
	if len(d.Faults) == 0 {
		d.ReadTable(root(), nil, d.Tree, reflect.ValueOf(c).Elem())
		d.validate(c)
		c.part()
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	d.keepMasked(c)
	return c, nil
}

// Stream returns the named stream, nil if there is none.
func (c *Config) Stream(name string) *Stream {
	for _, s := range c.Streams {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Params returns the guarantee in the form that estimators take. Its adjacency is "replace" if [Stream.Crowds] holds.
func (s *Stream) Params() dp.Params {
	adjacency := s.Privacy.Adjacency
	if s.Crowds() {
		adjacency = dp.Replace
	}
	return dp.Params{
		Epsilon:     s.Privacy.Epsilon,
		Delta:       s.Privacy.Delta,
		Adjacency:   adjacency,
		LatticeBits: s.LatticeBits,
	}
}
