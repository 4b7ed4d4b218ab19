// Package config reads the configuration file of the daemon: TOML, strictly.
//
// An unknown key, a key in upper case, a number that is not finite, a duration without its
// unit and an unknown word are faults: no key of the file is ignored. All faults of a file
// are reported at once, each with its line. docs/config.md lists the keys; it is made from
// the same table as the reader.
//
// Strings may hold ${NAME}, which stands for an environment variable. Secrets
// are files, which package credentials reads; their contents are never part of the
// configuration, and no message shows them.
//
// The guarantee of an epoch depends on a part of the stream's table. That part has a
// canonical form, [Stream.Canonical], and a digest, [Stream.Digest]. The noise of the epoch
// depends on the digest.
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

// Config is a configuration file without faults, with defaults filled in.
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
	// BoundaryTopic is the topic that holds the boundaries of steps by the clock. Default "": none.
	BoundaryTopic string `toml:"boundary_topic"`
	// ControlTopic is the topic that mirrors the ledger and in which epochs are claimed. Empty: none.
	ControlTopic string `toml:"control_topic"`
	// Group is a consumer group to which offsets are committed, for tools that show lag. The daemon never reads them.
	// Empty: none.
	Group string `toml:"group"`
	// FetchMemory is the memory in bytes that all tasks together have for brokers' responses and the records and rows
	// in them. Default 256 MiB.
	FetchMemory int `toml:"fetch_memory"`
	// TLS is the table [kafka.tls]. Nil: none.
	TLS *TLS `toml:"tls"`
	// SASL is the table [kafka.sasl]. Nil: none.
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

// State is the table [state]: where the state that must survive a restart is kept, and its key.
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
	// Hosts are further host names under which requests may reach the listener.
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

// Stream is a table [stream.NAME]: one topic, its partitions, one mechanism.
type Stream struct {
	// Name is 1 to 63 of a-z, 0-9, _ and -. For a stream made from a pattern it is the result of [Stream.StreamName].
	Name   string `toml:"-"`
	Input  Input  `toml:"input"`
	Output Output `toml:"output"`
	// Centre is subtracted from each column before it is divided by Scale. One number per column, NaN for "auto".
	// Default 0, or "auto" if moments.clip is "auto".
	Centre []float64 `toml:"centre"`
	// Scale is positive, one number per column, NaN for "auto". Default 1, or "auto" if moments.clip is "auto".
	Scale []float64 `toml:"scale"`
	// Warmup is the number of offsets from which "auto" values are found. Default 0: the mechanism's choice.
	Warmup uint64 `toml:"warmup"`
	// WarmupMode is "buffer" (the default) or "split".
	WarmupMode string `toml:"warmup_mode"`
	found      bool   `toml:"-"` // numbers replaced all "auto"; see Bounded
	// masked is like Config.masked, for keys below the stream.
	masked map[string]bool `toml:"-"`
	// Step is the length of a step: a number of offsets, at least 1, or a period of the clock. Default 100 offsets for
	// moments. For refits a step is a window, and can only be a period.
	Step Step `toml:"step"`
	// StepMax is the largest number of offsets of a step by the clock, of all partitions
	// together. Default 10 million; required for refits.
	StepMax uint64 `toml:"step_max"`
	// Merge makes all partitions one task, whose steps hold Step offsets of each. Default
	// false.
	Merge bool `toml:"merge"`
	// MergeAhead is the number of steps by which a partition may be ahead of the slowest one. For a refit by the clock
	// it is also the number of windows that may be read ahead of the one being solved. Default 4.
	MergeAhead int `toml:"merge_ahead"`
	// Horizon is the number of steps of an epoch. Default 0: unlimited.
	Horizon uint64 `toml:"horizon"`
	// OnHorizon says what happens after the last step: "halt" (the default), "rollover" or "continue". Only with a
	// horizon.
	OnHorizon string `toml:"on_horizon"`
	// OnGap says what happens if records were deleted before they were read: "halt" (the default) or "null".
	OnGap string `toml:"on_gap"`
	// DeadLetter is the table [stream.NAME.dead_letter].
	DeadLetter DeadLetter `toml:"dead_letter"`
	// LatticeBits says by how many bits the lattice is finer than clip norm and noise: 24 to 30. Default 24.
	LatticeBits int     `toml:"lattice_bits"`
	Privacy     Privacy `toml:"privacy"`
	// User makes persons the unit of the guarantee. Nil: the unit is one record.
	User *User `toml:"user"`

	// Moments, SGD, Refit and Adam are the mechanisms. Exactly one is not nil. It takes its columns, steps, horizon,
	// centre and scale from the stream.
	Moments *moments.Config `toml:"moments"`
	SGD     *sgd.Config     `toml:"sgd"`
	Refit   *refit.Config   `toml:"refit"`
	// The configuration does not set Adam's Initial.
	Adam *adam.Config `toml:"adam"`

	matches *regexp.Regexp `toml:"-"` // only for a pattern
	of      *Stream        `toml:"-"` // the pattern that made the stream; nil: it is a table of the file
}

// Input is the table [stream.NAME.input]: where records come from.
type Input struct {
	// Topic is the topic. Required; a pattern has none.
	Topic string `toml:"topic"`
	// Topics makes the stream a pattern: a regular expression (RE2) that matches whole names of topics. Default "": the
	// stream is not a pattern.
	Topics string `toml:"topics"`
	// MaxTopics is the largest number of topics that a pattern reads. Default 100.
	MaxTopics int `toml:"max_topics"`
	// Partitions are the partitions, ascending, at least one; or AllPartitions alone.
	// Default [0].
	Partitions []int `toml:"partition"`
	// Start is where the first epoch begins. Default Earliest.
	Start Start `toml:"start"`
	// Codec is the form of a record's value: "json" (the default),
	// "json-array", "csv", "float64", "float32", "avro", "protobuf" or "json-schema".
	Codec string `toml:"codec"`
	// Framing is the header before a record with a schema: "confluent" (the default) or "plain", which is none.
	Framing string `toml:"framing"`
	// Subjects are the registry's subjects that have the schemas; see SchemaSubjects.
	Subjects []string `toml:"subjects"`
	// SchemaFile is the schema of all records, with framing "plain". SchemaText is its content.
	SchemaFile string `toml:"schema_file"`
	SchemaText string `toml:"-"`
	// Message is the Protobuf message type of all records. Default "": the one that a record names or, with framing
	// "plain", the schema's first.
	Message string `toml:"message"`
	// Columns are the columns, in order: names or paths for json, positions from "1" for csv, labels for other codecs.
	// Required.
	Columns []string `toml:"columns"`
	// Column holds the tables [stream.NAME.input.column.COLUMN], by column: one for each column that is not plainly a
	// number. Row names the numbers of a row, which may be more than Columns.
	Column map[string]*Column `toml:"column"`
	// MaxRecordBytes is the size beyond which a record counts as null. Default 0: chosen from the length of a row.
	MaxRecordBytes int `toml:"max_record_bytes"`
	// AllowCompacted accepts a topic that Kafka compacts. Default false.
	AllowCompacted bool `toml:"allow_compacted"`
}

// AllPartitions, alone in Input.Partitions, stands for every partition of the topic.
const AllPartitions = toml.All

// FewestMerged is the partition count assumed for `partition = "all"` when check and plan run offline.
const FewestMerged = 2

// All reports whether the stream reads every partition of its topic.
func (in *Input) All() bool { return slices.Contains(in.Partitions, AllPartitions) }

// Reads reports whether the stream reads a partition.
func (in *Input) Reads(partition int) bool {
	return in.All() && partition >= 0 || slices.Contains(in.Partitions, partition)
}

// First returns a partition that the stream reads: the lowest, 0 for all.
func (in *Input) First() int { return max(0, in.Partitions[0]) }

// Output is the table [stream.NAME.output]: where releases go.
type Output struct {
	// Topic is the topic; it may be no other stream's output and no input. Default: the input's topic followed by
	// ".dp".
	Topic string `toml:"topic"`
	// Partition is the partition of all releases. Default 0.
	Partition int `toml:"partition"`
	// Create creates the topic if it is missing. Default true.
	Create bool `toml:"create"`
	// Values are the names of the values to publish. Empty, the default: all values of the mechanism.
	Values []string `toml:"values"`
	// Encoding is the form of the numbers: "json" (the default) or "base64".
	Encoding string `toml:"encoding"`
	// PrivacyEvery is n if step 1 and every n-th step after it hold the whole privacy block. Default 1: all releases
	// do.
	PrivacyEvery uint64 `toml:"privacy_every"`
}

// DeadLetter is the table [stream.NAME.dead_letter]: whether and where records that gave no row are reported.
type DeadLetter struct {
	// Mode is "off" (the default), "reference" or "full".
	Mode string `toml:"mode"`
	// Topic is required unless Mode is "off". It must be no input and no output.
	Topic string `toml:"topic"`
}

// Privacy is the table [stream.NAME.privacy]: the guarantee, per record.
type Privacy struct {
	// Epsilon is positive. Required.
	Epsilon float64 `toml:"epsilon"`
	// Delta is in (0, 1). Required.
	Delta float64 `toml:"delta"`
	// Adjacency says in what neighbouring logs differ. Required.
	Adjacency dp.Adjacency `toml:"adjacency"`
	// LimitEpsilon bounds what all epochs of all streams together may cost a record of the input partition. It is at
	// least Epsilon. Default Epsilon.
	LimitEpsilon float64 `toml:"limit_epsilon"`
	// LimitDelta is the bound of δ, at least Delta. Default Delta.
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

// Clock returns the period of steps by the clock, 0 for steps of a number of offsets.
func (s Step) Clock() time.Duration { return max(0, time.Duration(-s)) }

// Slots returns the largest number of offsets of a step: in one partition or, for steps by the clock, in all together.
func (s *Stream) Slots() uint64 {
	if s.Step.Clock() > 0 {
		return s.StepMax
	}
	return uint64(s.Step)
}

// Start is the position where a stream's first epoch begins: an offset, or
// Earliest or Latest.
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

// MarshalText writes what UnmarshalText reads.
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

// Load reads the configuration at path: a file, or the files of a directory whose names end in
// .toml and do not begin with a dot, in the order of their names, as if they were one. If they have faults, the error
// is of type Faults. Any other error means that a file could not be read.
func Load(path string) (*Config, error) {
	files, err := toml.Sources(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return parseFiles(files)
}

// Text returns the text that Load reads at path: that of a file, or the files of a directory one after the other.
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

// Parse reads a configuration from memory. Messages call the file name.
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
