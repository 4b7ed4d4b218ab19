package config

import (
	"math"
	"net"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/persons"
)

// kind is the type of a key's value.
type kind int

const (
	table kind = iota
	text       // string
	file       // string: the path of a file; what stands there is never printed
	boolean
	whole   // integer
	number  // integer or float, read as float
	span    // string: a duration with its unit
	texts   // list of strings
	numbers // list of numbers
	spread  // one number for every column, or a list of them
	wholes  // one integer or a list of them
	start   // "earliest", "latest" or an offset
	off     // "off" or a number
	length  // offsets, or a duration

	anyValue // a number, a boolean or a string
)

// flags of a key. outside holds for everything in a table that has it.
type flags int

const (
	// required: there is no default.
	required flags = 1 << iota
	// usual: required, unless the mechanism has no use for it. validate knows which
	// mechanisms have none.
	usual
	// flat: the file has a table, the program and the digest do not. The keys of the table
	// are fields of the struct of the table around it, and are in that table in the digest.
	flat
	// outside: not in the digest; may change while an epoch is open.
	outside
	// found: may be "auto"; then a warm-up finds the number. It is read as NaN.
	found
	// always: in the digest even if it has its default. All keys of a stream in the
	// first version have this flag or outside. A key of a later version has neither: it
	// enters the digest only when it differs from its default. So an upgrade alone ends no
	// epoch. Never give this flag to a new key, except in a table of a later version that is
	// in the digest as a whole, or not at all.
	always
	// every: may be "all". It is read as [AllPartitions].
	every
)

// key is one row of the schema.
type key struct {
	path  string // dotted; NAME stands for the name of a stream, COLUMN for that of a column
	kind  kind
	flags flags
	def   string   // the default as TOML text; "" where there is none
	says  string   // the default in words, where it follows from other keys
	words []string // an enumeration's words
	of    string   // the method that has the table; with another one its keys have no value
	rule  rule
	doc   string // one line for the reference
}

// rule is what a value, or each element of a list, must satisfy besides its type.
type rule struct {
	text string         // completes "must be"
	ok   func(any) bool // nil: checked by the mechanism's package, the text is for the reference
}

// stepMaxDefault is the default of step_max.
const stepMaxDefault = "10000000"

// schema has a row for every key, in the order of the reference. Decoding, the search for
// unknown keys, the digest and docs/config.md all use it.
var schema = []key{
	{path: "kafka", kind: table, flags: required | outside, doc: "The Kafka cluster."},
	{path: "kafka.brokers", kind: texts, flags: required, rule: broker, doc: "Brokers from which the cluster is found."},
	{path: "kafka.client_id", kind: text, def: `"streamdp"`, doc: "Name of this client in the brokers' logs and quotas."},
	{path: "kafka.boundary_topic", kind: text, def: `""`, rule: topicOrNone, doc: "Topic that holds the boundaries of steps by the clock (`step = \"1m\"`), which need it. It has one partition and is not compacted; where it is missing it is made so, with unlimited retention. Several streams, and copies of a state directory, share it."},
	{path: "kafka.control_topic", kind: text, def: `""`, rule: topicOrNone, doc: "Topic that mirrors the ledger and in which an epoch is claimed before its first noise. Of copies of a state directory, and of several that run one stream, it lets one open epochs, and a state directory that is an old copy does not start. All daemons that may read the same input share it. It has one partition and keeps everything; where it is missing it is made so."},
	{path: "kafka.group", kind: text, def: `""`, rule: groupOrNone, doc: "Consumer group to which it is committed how far the tasks have read, every 5 seconds where that changed, for tools that show the lag of consumer groups. The daemon never reads these offsets: nothing depends on them. No consumer may be a member of the group, and no other daemon share it where both read one topic. With `[cluster]` it is another group than `cluster.group`."},
	{path: "kafka.fetch_memory", kind: whole, def: `268435456`, rule: fetchMemory, doc: "Bytes of memory that all tasks together have for answers of brokers and for the records and rows in them, not counting what decompression needs. Half is divided among the tasks, the other half lent; a task that gets nothing works in its share, so no task waits for another one. One that starts while the others hold everything gets a part of its share beyond the bound. A share is at least 80 KiB. A batch or record larger than its task's share is held all the same."},
	{path: "kafka.tls", kind: table, doc: "TLS towards the brokers. The table alone, `[kafka.tls]`, trusts the system's authorities. The files may be replaced while the daemon runs: it reads them again every 10 seconds, new connections use them, and what cannot be used is not taken, with a warning."},
	{path: "kafka.tls.ca_file", kind: file, doc: "Certificates (PEM) of the authorities that brokers are checked against, instead of the system's."},
	{path: "kafka.tls.cert_file", kind: file, doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{path: "kafka.tls.key_file", kind: file, doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},
	{path: "kafka.sasl", kind: table, doc: "Authentication towards the brokers."},
	{path: "kafka.sasl.mechanism", kind: text, flags: required, words: []string{"plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "aws-msk-iam"}, doc: "Mechanism. [howto/access.md](howto/access.md) has an example of each."},
	{path: "kafka.sasl.username", kind: text, says: "required for plain and scram", doc: "User, for plain and scram."},
	{path: "kafka.sasl.password_file", kind: file, says: "required for plain and scram", doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},
	{path: "kafka.sasl.token_url", kind: text, says: "required for oauthbearer, or `token_file`", rule: tokenURL, doc: "Token endpoint of an OAuth server, from which tokens come by client credentials. A new one is asked for when three quarters of the old one's life have passed."},
	{path: "kafka.sasl.token_ca_file", kind: file, says: "the system's", doc: "Certificates (PEM) of the authorities that the token endpoint is checked against."},
	{path: "kafka.sasl.client_id", kind: text, says: "required with `token_url`", doc: "Name of this client to the OAuth server."},
	{path: "kafka.sasl.client_secret_file", kind: file, says: "required with `token_url`", doc: "File that holds the client's secret, and at most one newline; permissions as for `state.key_file`. It is read for each request, so it may be replaced."},
	{path: "kafka.sasl.scopes", kind: texts, says: "none", rule: scope, doc: "Scopes that tokens are asked for."},
	{path: "kafka.sasl.audience", kind: text, says: "none", doc: "Audience that tokens are asked for, which some OAuth servers want."},
	{path: "kafka.sasl.token_file", kind: file, says: "required for oauthbearer, or `token_url`", doc: "File that another program keeps filled with a token, in one line; permissions as for `state.key_file`. It is read each time that a token is shown."},
	{path: "kafka.sasl.extensions", kind: texts, says: "none", rule: extension, doc: "SASL extensions that are sent with a token, each `\"NAME=VALUE\"`, as some brokers want them."},
	{path: "kafka.sasl.region", kind: text, says: "required for aws-msk-iam", rule: region, doc: "AWS region of the brokers. The keys are found as AWS's programs find them: environment, shared files, web identity, container, machine."},
	{path: "kafka.sasl.role_arn", kind: text, says: "none", rule: role, doc: "Role to assume with these keys (AWS STS)."},

	{path: "state", kind: table, flags: required | outside, doc: "What must survive a restart. The directory is as private as the input: it holds exact sums."},
	{path: "state.dir", kind: text, flags: required, doc: "Directory of checkpoints, manifests and the ledger. A relative path begins at the folder in which the command is run."},
	{path: "state.key_file", kind: file, flags: required, doc: "File of the master key, written by `streamdp keygen`. Whoever holds it can take the noise off the releases of open epochs."},
	{path: "state.key_group_readable", kind: boolean, def: `false`, doc: "Accept a key file that its group may read, as mounted secrets often are."},
	{path: "state.commit_interval", kind: span, def: `"200ms"`, rule: interval, doc: "Period of durable commits; releases become visible at commits. `\"0s\"` commits at every step: for tests, and refused unless every broker is a loopback address."},
	{path: "state.epoch_secret_retention", kind: span, def: `"0s"`, rule: lasting, doc: "How long the secret of a closed epoch is kept: until it is destroyed, whoever holds it and the master key can take the noise off that epoch's releases."},
	{path: "state.encrypt", kind: boolean, def: `false`, doc: "Encrypt checkpoints and epoch secrets under the master key. A change takes effect at the next start, for all files."},
	{path: "state.archive", kind: boolean, def: `false`, doc: "Keep published releases in the state directory, so that `streamdp republish` can publish them again where the output lost them. They are as public as the output; nothing deletes them."},

	{path: "http", kind: table, flags: outside, doc: "Metrics, status and health."},
	{path: "http.listen", kind: text, def: `"127.0.0.1:9464"`, rule: listen, doc: "Address to listen on."},
	{path: "http.exposure", kind: text, def: `"operator"`, words: []string{"operator", "public"}, doc: "Who can read it. `\"public\"` leaves out every metric that is an exact function of records."},
	{path: "http.metrics", kind: text, def: `"task"`, words: []string{"task", "aggregate"}, doc: "Series of each task or, with `\"aggregate\"`, sums and extremes over all tasks, for processes with hundreds of them; docs/metrics.md says which. `/api/v1/streams` has every task in any case."},
	{path: "http.hosts", kind: texts, says: "none", rule: hostName, doc: "Names, without a port, by which requests may call the listener. An IP address, `localhost`, the name in `http.listen` and the names of the certificate may always. Any other name is refused, because a web page can give its own name this machine's address."},
	{path: "http.insecure_listen", kind: boolean, def: `false`, doc: "Accept a listener beyond this machine with neither `[http.tls]` nor `[http.basic_auth]`: whoever reaches it can read it."},
	{path: "http.tls", kind: table, doc: "TLS of the listener. The files may be replaced while the daemon runs, as those of `[kafka.tls]`."},
	{path: "http.tls.cert_file", kind: file, flags: required, doc: "Certificate (PEM), with its chain."},
	{path: "http.tls.key_file", kind: file, flags: required, doc: "Key of the certificate (PEM). Permissions as for `state.key_file`."},
	{path: "http.basic_auth", kind: table, doc: "Password of the listener. Without TLS it crosses the network in the clear."},
	{path: "http.basic_auth.username", kind: text, flags: required, rule: userName, doc: "User."},
	{path: "http.basic_auth.password_file", kind: file, flags: required, doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},

	{path: "log", kind: table, flags: outside, doc: "Messages on standard error."},
	{path: "log.level", kind: text, def: `"info"`, words: []string{"debug", "info", "warn", "error"}, doc: "Least level written."},
	{path: "log.format", kind: text, def: `"json"`, words: []string{"json", "text"}, doc: "Form of a line."},

	{path: "registry", kind: table, flags: outside, doc: "The schema registry, in which codecs with schemas look up how a record was written: Confluent's API, which Apicurio (at `/apis/ccompat/v7`), Redpanda and Karapace have too. [howto/schema-registry.md](howto/schema-registry.md) says how."},
	{path: "registry.urls", kind: texts, flags: required, rule: registryURL, doc: "Addresses of the registry, tried in turn."},
	{path: "registry.timeout", kind: span, def: `"5s"`, rule: rule{"\"100ms\" to \"1m\"", func(v any) bool {
		d, ok := v.(time.Duration)
		return ok && d >= 100*time.Millisecond && d <= time.Minute
	}}, doc: "Time in which the registry must answer a request."},
	{path: "registry.token_file", kind: file, doc: "File that holds a bearer token, read again for every request; permissions as for `state.key_file`."},
	{path: "registry.basic_auth", kind: table, doc: "User and password towards the registry."},
	{path: "registry.basic_auth.username", kind: text, flags: required, rule: userName, doc: "User; of Confluent Cloud the API key."},
	{path: "registry.basic_auth.password_file", kind: file, flags: required, doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},
	{path: "registry.tls", kind: table, doc: "TLS towards a registry at `https`. Without this table the system's authorities are trusted. The files may be replaced while the daemon runs, as those of `[kafka.tls]`."},
	{path: "registry.tls.ca_file", kind: file, doc: "Certificates (PEM) of the authorities that the registry is checked against, instead of the system's."},
	{path: "registry.tls.cert_file", kind: file, doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{path: "registry.tls.key_file", kind: file, doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},

	{path: "trace", kind: table, flags: outside, doc: "Traces of what the daemon does, for a collector of OpenTelemetry: OTLP over HTTP, in protobuf. Without this table nothing is recorded. Spans name streams, partitions, epochs and steps, and nothing that is in records. But their times are real ones, and how long work takes depends on records: whoever reads traces must be allowed to see the input. So the table is a fault with `http.exposure = \"public\"`. [operations.md](operations.md#traces) says what is sent, and what happens without a collector."},
	{path: "trace.endpoint", kind: text, flags: required, rule: otlpURL, doc: "URL of the receiver. Without a path it is that of OTLP, `/v1/traces`."},
	{path: "trace.headers_file", kind: file, doc: "File of headers for each request, `Name: value` in each line, such as those that authorize it; permissions as for `state.key_file`. They are never sent on when the receiver redirects."},
	{path: "trace.sample", kind: number, def: `1.0`, rule: share, doc: "Share of traces that are sent: all that one commit made durable, or one fetch."},
	{path: "trace.service", kind: text, def: `"streamdp"`, doc: "Name of the service, `service.name`."},
	{path: "trace.tls", kind: table, doc: "TLS towards the receiver. Without this table an endpoint with `https` is checked against the system's authorities."},
	{path: "trace.tls.ca_file", kind: file, doc: "Certificates (PEM) of the authorities that the receiver is checked against, instead of the system's."},
	{path: "trace.tls.cert_file", kind: file, doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{path: "trace.tls.key_file", kind: file, doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},

	{path: "cluster", kind: table, flags: outside, doc: "Several instances share the tasks, with one configuration and one key each; what must survive is in Kafka, and `state.dir` holds only what each knows of the ledgers' last lines, and its control socket. [howto/cluster.md](howto/cluster.md) says how. Without this table one process runs all tasks, with its state in `state.dir`."},
	{path: "cluster.group", kind: text, flags: required, rule: groupName, doc: "Consumer group of the instances. It also begins the names of their topics (`.state`, `.ledger`, `.control`, `.partials`) and of their transactional ids."},
	{path: "cluster.shards", kind: whole, def: `64`, rule: rule{"1 to 4096", between(1, 4096)}, doc: "Parts into which the tasks are divided. Each has one owner at a time, and a ledger of its own. As many instances can have work. It never changes."},
	{path: "cluster.assign", kind: text, def: `"partition"`, words: []string{"partition", "topic"}, doc: "What decides the shard of an input partition: its topic and its number, or its topic alone. All partitions of a merged stream must be in one shard, so `merge = true` needs `\"topic\"`. It never changes."},
	{path: "cluster.session_timeout", kind: span, def: `"6s"`, rule: rule{"\"1s\" to \"5m\"", func(v any) bool { d, ok := v.(time.Duration); return ok && d >= time.Second && d <= 5*time.Minute }}, doc: "Silence after which an instance counts as dead and others take over its shards. Brokers accept no less than their `group.min.session.timeout.ms`, 6 s by default."},
	{path: "cluster.instance", kind: text, says: "the host's name", rule: instanceName, doc: "Name of this instance in messages, in the status and in the state."},
	{path: "cluster.advertise", kind: text, says: "the address that it listens on", rule: broker, doc: "Address at which other machines reach this instance's status page; the pages of all instances link to it."},
	{path: "cluster.allow_unreplicated", kind: boolean, def: `false`, doc: "Accept topics with one replica: for tests. The loss of one broker's disk is then the loss of ledgers."},

	{path: "stream", kind: table, flags: required, doc: "Streams by name."},
	{path: "stream.NAME", kind: table, doc: "One stream: a topic, its partitions, one mechanism. NAME is 1 to 63 of `a-z`, `0-9`, `_` and `-`."},
	{path: "stream.NAME.input", kind: table, flags: required, doc: "Where records come from and how they are read."},
	{path: "stream.NAME.input.topic", kind: text, flags: usual | always, rule: topic, says: "required, but with `topics`", doc: "Topic. A missing one is waited for."},
	{path: "stream.NAME.input.topics", kind: text, flags: outside, def: `""`, says: "none", doc: "Instead of `topic`, a regular expression (RE2) that matches whole names of topics: each topic that matches, also one that is made while the daemon runs, is a stream NAME.TOPIC of its own, with a budget, a ledger's entries and an output of its own, as if a table had been written for it. Never matched are topics that this process writes to, those that another table's `topic` names, and names that begin with `_` or end in `.dp`. The names of topics are public. [howto/topics-by-pattern.md](howto/topics-by-pattern.md) says how."},
	{path: "stream.NAME.input.max_topics", kind: whole, flags: outside, def: `100`, rule: rule{"1 to 10000", between(1, 10000)}, doc: "How many topics `topics` takes at most. Those that have an epoch come first, then the others by name; the rest wait, with a warning and a metric."},
	{path: "stream.NAME.input.partition", kind: wholes, flags: always | every, def: `0`, rule: partition, doc: "Partition, or list of them, or `\"all\"`: every partition of the topic, also one that is added while the daemon runs. Each is a task of its own, with its own epochs; the digest of a task holds its own partition only."},
	{path: "stream.NAME.input.start", kind: start, flags: always, def: `"earliest"`, doc: "Where the first epoch begins: `\"earliest\"` (start of the log), `\"latest\"` (last stable offset) or an offset."},
	{path: "stream.NAME.input.codec", kind: text, flags: always, def: `"json"`, words: []string{"json", "json-array", "csv", "float64", "float32", "avro", "protobuf", "json-schema"}, doc: "Form of a record's value: a JSON object, a JSON array of numbers, a line of CSV, packed little-endian numbers; or a record with a schema, of Avro, Protobuf or JSON Schema."},
	{path: "stream.NAME.input.framing", kind: text, def: `"confluent"`, words: []string{"confluent", "plain"}, doc: "What stands before a record with a schema: a byte 0, the four bytes of its schema's id in the registry and, of Protobuf, which message it is; or nothing, and `schema_file` is the schema of all records."},
	{path: "stream.NAME.input.subjects", kind: texts, def: `[]`, rule: subject, says: "`input.topic`, followed by `-value`", doc: "Subjects of the registry that have the schemas of the records. A record with the id of another schema is null."},
	{path: "stream.NAME.input.schema_file", kind: file, flags: outside, def: `""`, says: "required with framing `\"plain\"`", doc: "Schema of all records, with framing `\"plain\"`: Avro's JSON, a `.proto` file, or a JSON Schema. It is read with the configuration; the SHA-256 of its text is in the digest."},
	{path: "stream.NAME.input.message", kind: text, def: `""`, rule: messageName, says: "with framing `\"confluent\"` the message that the record names, with `\"plain\"` the first of the file", doc: "Protobuf message, as `package.Name`. With framing `\"confluent\"` records of any other are null."},
	{path: "stream.NAME.input.columns", kind: texts, flags: usual | always, says: "required, but for gradients", doc: "The columns, in order. `json` and codecs with a schema: names, or paths `a.b[0].c` to what is inside objects and arrays; a backslash makes `.`, `\\`, `[` or `]` part of a name. `csv`: positions from `\"1\"`, unless `path` has them. Elsewhere labels, one for each number of the record. Each is a number of the row, unless it has a table of its own."},
	{path: "stream.NAME.input.column", kind: table, doc: "Columns that are not plainly numbers, by name."},
	{path: "stream.NAME.input.column.COLUMN", kind: table, doc: "What the row's numbers are of one of `input.columns`. COLUMN is its name, in quotes where it has dots or brackets. [howto/columns.md](howto/columns.md) shows what it is for. None of it costs budget: rows are clipped after it."},
	{path: "stream.NAME.input.column.COLUMN.path", kind: text, says: "the column's name", doc: "Where the value is: a path or, for `csv`, a position. Several columns may read one value. Not for codecs without paths."},
	{path: "stream.NAME.input.column.COLUMN.type", kind: text, def: `"number"`, words: column.Types, doc: "What the value is. `\"decimal\"`: a number, also one in a string. `\"bool\"`: true or false, 1 or 0 of the row. `\"category\"`: a text, a whole number or a boolean, of which the row has one number for each of a list. `\"enum\"`: the number of an enumeration's symbol, for codecs that have enumerations. `\"timestamp\"`: a time by RFC 3339 or ISO 8601, one that the schema says is a time, or with `unit` a number. A value of another type gives no row."},
	{path: "stream.NAME.input.column.COLUMN.default", kind: anyValue, doc: "What stands for a value that is missing, null or an empty cell: a number, for `\"bool\"` also true or false, for categories one of them. It has the transform too. Without it, such a record gives no row."},
	{path: "stream.NAME.input.column.COLUMN.categories", kind: texts, says: "required for `\"category\"`", doc: "The public list of categories. For each the row has a number, called `COLUMN=CATEGORY`: 1 where the value is that category, else 0. Never make the list from the data. Also for a `\"timestamp\"` whose `take` gives whole numbers."},
	{path: "stream.NAME.input.column.COLUMN.other", kind: boolean, def: `false`, doc: "The row has one more number, `COLUMN=other`, which is 1 for a value that is none of the categories. Without it, such a record gives no row."},
	{path: "stream.NAME.input.column.COLUMN.baseline", kind: text, says: "none", doc: "A category, or `\"other\"`, that has no number of its own: all are 0. A regression with an intercept needs it, because all numbers of a list add up to 1."},
	{path: "stream.NAME.input.column.COLUMN.take", kind: text, says: "`\"seconds\"`", words: column.Taking(), doc: "What of a time is the number: seconds since 1970 in UTC; minute, hour, weekday (1 is Monday), day and month from 1; or where the hand of a clock points that goes round once a day (`hour-`), a week or a year."},
	{path: "stream.NAME.input.column.COLUMN.unit", kind: text, says: "none: a number is no time", words: column.Units, doc: "Unit of a time that is a number, since 1970-01-01T00:00Z."},
	{path: "stream.NAME.input.column.COLUMN.utc_offset", kind: text, says: "`\"+00:00\"`", doc: "How far the clock of `take` is ahead of UTC, the same all year. A time without an offset is one by this clock. There are no time zones: their rules change, and a row must not depend on the machine."},
	{path: "stream.NAME.input.column.COLUMN.transform", kind: text, says: "none", words: column.Transforms, doc: "Function of the number plus `offset`, before `centre` and `scale`: the natural logarithm of x or 1 + x, the square root, or x to the power of `exponent`. Where it is not finite, the record gives no row."},
	{path: "stream.NAME.input.column.COLUMN.exponent", kind: number, says: "required for `\"power\"`", doc: "Exponent of `\"power\"`: -16 to 16, not 0. A negative number has a power only if this is a whole number."},
	{path: "stream.NAME.input.column.COLUMN.offset", kind: number, def: `0`, doc: "What is added before the transform: a public constant."},
	{path: "stream.NAME.input.max_record_bytes", kind: whole, def: `0`, rule: recordSize, doc: "Size beyond which a record counts as null and its content is not held: the bytes of key, value and headers, and 40 for each header. 0: 1 MiB, or 32 bytes a number of a row where that is more; at most 1 GiB. It depends on nothing but the record."},
	{path: "stream.NAME.input.allow_compacted", kind: boolean, flags: always, def: `false`, doc: "Read a topic that Kafka compacts. Then a lost state directory cannot be rebuilt from the log, and that one record may remove another is not covered by the guarantee."},
	{path: "stream.NAME.output", kind: table, flags: outside, doc: "Where releases go."},
	{path: "stream.NAME.output.topic", kind: text, rule: topicOfOutput, says: "`input.topic`, followed by `.dp`", doc: "Topic; no other stream's, and no input. With `input.topics` a `*` in it stands for the input's topic; then `*.dp` is the default."},
	{path: "stream.NAME.output.partition", kind: whole, def: `0`, rule: partition, doc: "Partition of all releases of this stream."},
	{path: "stream.NAME.output.create", kind: boolean, def: `true`, doc: "Create a missing topic, compacted, with the broker's replication."},
	{path: "stream.NAME.output.values", kind: texts, def: `[]`, doc: "Names of the values to publish. Empty: all that the mechanism has."},
	{path: "stream.NAME.output.encoding", kind: text, def: `"json"`, words: []string{"json", "base64"}, doc: "Form of the numbers: JSON, or base64 of little-endian float64."},
	{path: "stream.NAME.output.privacy_every", kind: whole, def: `1`, rule: fromOne, doc: "Every how many releases one says all about its guarantee, beginning with step 1; the others have `privacy_sha256`, the hash of that block, instead, and are a kilobyte shorter. Above 1 for `moments` and `refit` only, which have a release at each step."},
	{path: "stream.NAME.centre", kind: spread, flags: always | found, def: `0`, says: "`0`; `\"auto\"` where `moments.clip`, or `clip_x` of a regression, is", doc: "What is subtracted from each column: a public constant, never computed from the data; or `\"auto\"`, also for some columns of a list: found privately from the first records of an epoch, the warm-up."},
	{path: "stream.NAME.scale", kind: spread, flags: always | found, def: `1`, rule: divisor, says: "`1`; `\"auto\"` likewise", doc: "What each column is divided by after that: public constants, or `\"auto\"`, likewise."},
	{path: "stream.NAME.warmup", kind: whole, def: `0`, rule: natural, says: "the larger of 5000 and twice what `plan` says is needed, in whole steps", doc: "Offsets of the warm-up, a multiple of `step` for moments, where `centre`, `scale` or a bound is `\"auto\"`. Its records enter noisy histograms and nothing else; the mechanism's steps begin behind it."},
	{path: "stream.NAME.warmup_mode", kind: text, def: `"buffer"`, words: []string{"buffer", "split"}, doc: "`\"buffer\"`: every record of the warm-up takes part in all of its five stages, and stays in memory until its end. `\"split\"`: each stage has records of its own; nothing is kept, and two to three times as many records are needed."},
	{path: "stream.NAME.step", kind: length, flags: always, rule: says("at least 1, or at least `\"100ms\"`"), says: "100 for moments, required for adam, of refits a period or nothing, a fault elsewhere", doc: "Offsets of one step; or, for moments and refits, a period of the clock such as `\"1m\"`: then a step ends at each multiple of it (UTC), with what the partitions hold. A step ends with a release. Of a refit the step by the clock is its window, and a number of offsets is a fault."},
	{path: "stream.NAME.step_max", kind: whole, def: stepMaxDefault, rule: stepMax, doc: "Most offsets that a step by the clock holds, of all partitions together, each the same part of them. What is beyond falls into later steps. Required for refits, whose memory it bounds; for these at most 2147483648."},
	{path: "stream.NAME.merge", kind: boolean, def: `false`, doc: "Publish one sequence of releases for all partitions together: a step holds `step` offsets of each, its sums are added before the noise is drawn, and the budget of every partition is charged. For moments and refits with given bounds."},
	{path: "stream.NAME.merge_ahead", kind: whole, flags: outside, def: `4`, rule: ahead, doc: "Steps that a partition of a merged stream may be ahead of the slowest; their sums stay in memory, and of refits their rows. A refit by the clock that is not merged also holds so many windows ahead of the one that is solved."},
	{path: "stream.NAME.horizon", kind: whole, flags: always, def: `0`, rule: natural, doc: "Steps of an epoch; 0: no end."},
	{path: "stream.NAME.on_horizon", kind: text, flags: always, def: `"halt"`, words: []string{"halt", "rollover", "continue"}, doc: "What comes after the last step of a horizon: nothing; a new epoch, charged as one; or more steps under the same charge, where the factorization is valid for every length. In the digest only whether it is `\"continue\"`."},
	{path: "stream.NAME.on_gap", kind: text, flags: outside, def: `"halt"`, words: []string{"halt", "null"}, doc: "When Kafka deleted records that were not read: stop, or count them as invalid."},
	{path: "stream.NAME.dead_letter", kind: table, flags: outside, doc: "Which records gave no row, each with its reason, for who may see the input: not a private output."},
	{path: "stream.NAME.dead_letter.mode", kind: text, def: `"off"`, words: []string{"off", "reference", "full"}, doc: "What is written of them: nothing, where they stand and why, or their key, value and headers too."},
	{path: "stream.NAME.dead_letter.topic", kind: text, def: `""`, rule: topicOrMany, doc: "Topic, which any mode but `off` needs; several streams may share it. It is not created. Partition 0 is written. With `input.topics` it may have a `*`, as `output.topic`."},
	{path: "stream.NAME.lattice_bits", kind: whole, flags: always, def: `24`, rule: bits, doc: "How much finer than clip norm and noise the lattice is that records are rounded to."},

	{path: "stream.NAME.privacy", kind: table, flags: required, doc: "The guarantee. One record is the unit."},
	{path: "stream.NAME.privacy.epsilon", kind: number, flags: required | always, rule: positive, doc: "ε that one epoch costs each record it reads, all releases together."},
	{path: "stream.NAME.privacy.delta", kind: number, flags: required | always, rule: fraction, doc: "δ of the same."},
	{path: "stream.NAME.privacy.adjacency", kind: text, flags: required | always, words: []string{"zero-out", "replace"}, doc: "What neighbouring logs differ in: the content of one record, which in the other log is empty (`\"zero-out\"`), or anything else (`\"replace\"`). Number and offsets of records are public in both."},
	{path: "stream.NAME.privacy.limit_epsilon", kind: number, flags: outside, rule: positive, says: "`epsilon`: one epoch of one stream", doc: "ε that no record of the input partition ever exceeds, over all epochs and all streams that read it; at least `epsilon`. Streams that read one topic state the same limit and adjacency. Where one of them has a solver with sketches, the first epoch sets a part of the limit aside for them, which covers all streams of the topic together; `plan` shows it."},
	{path: "stream.NAME.privacy.limit_delta", kind: number, flags: outside, rule: fraction, says: "`delta`", doc: "δ of that limit; at least `delta`."},

	{path: "stream.NAME.user", kind: table, doc: "Persons, not records, are the unit of the guarantee: all records of an epoch with one user key. ε, δ and the limit then speak of persons, who pay for every epoch of their population (docs/privacy.md). For the mechanisms that docs/mechanisms.md names."},
	{path: "stream.NAME.user.key", kind: text, flags: required | always, rule: userKey, doc: "Where a record has its user key: the record's key, a string or integer of a JSON object (`field:PATH`, as in `columns`) or a cell of CSV (`field:1`), or a header. A record without one never counts."},
	{path: "stream.NAME.user.cap", kind: whole, flags: always, def: `0`, rule: rule{"1 to 16777215", between(0, persons.MaxCap)}, says: "as many as `horizon` and `separation` allow; required without a horizon", doc: "Steps in which a person counts, at most."},
	{path: "stream.NAME.user.separation", kind: whole, flags: always, def: `1`, rule: rule{"1 to 4294967294", between(1, persons.MaxStep)}, doc: "Steps from one in which a person counts to the next, at least; 1 allows consecutive ones."},
	{path: "stream.NAME.user.per_step", kind: whole, flags: always, def: `1`, rule: rule{"1 to 255", between(1, persons.MaxPerStep)}, doc: "Records of a person that count in one step, at most."},
	{path: "stream.NAME.user.period", kind: whole, def: `0`, rule: rule{"0 to 4294967294", between(0, persons.MaxStep)}, says: "the whole epoch", doc: "Steps of a period. With it the unit of the guarantee is a person's records of one period, no longer of the whole epoch: `cap` and `separation` begin anew with each, and whoever is there for several pays for several. The first begins with the epoch. `limit_epsilon` begins anew too, in each task, once its epochs in a row have so many steps."},
	{path: "stream.NAME.user.max_users", kind: whole, flags: required | always, rule: rule{"1 to 2147483648", between(1, persons.MaxUsers)}, doc: "Persons that are remembered, at most, of each partition. Where `cap` binds, records of others do not count when so many have, and with adjacency `\"zero-out\"` the noise is that of `\"replace\"` unless that cannot happen; where `separation` alone does, it must be enough for all records of so many steps."},
	{path: "stream.NAME.user.partitioner", kind: text, flags: always, def: `"none"`, words: []string{"none", "murmur2"}, doc: "With `\"murmur2\"`, for `record-key`, a record whose key does not belong to its partition by Java's default does not count; so a person is in one partition. `merge` needs it."},
	{path: "stream.NAME.user.population", kind: text, flags: always, def: `""`, says: "`input.topic`", doc: "Name of the persons' population. What its streams, over all topics, cost a person is added up."},

	{path: "stream.NAME.moments", kind: table, doc: "Mechanism: running means, sums, second moments and covariances. Lengths and weights are in scaled units."},
	{path: "stream.NAME.moments.method", kind: text, flags: always, def: `"auto"`, words: []string{"auto", "jme", "ime", "cs", "pp", "pp_debiased", "combined"}, doc: "Estimator: joint estimation of both moments (`jme`), independent estimation (`ime`), concatenation and split (`cs`), squares of noisy rows (`pp`, and without its bias `pp_debiased`; `step = 1`), or the best mix of those with `jme` (`combined`). `\"auto\"` chooses from public numbers between `jme` and, for `step = 1`, `pp_debiased` and `combined`; releases say what it chose and between which errors."},
	{path: "stream.NAME.moments.clip", kind: number, flags: always | found, def: `"auto"`, rule: says("positive and finite"), doc: "Bound on a row's Euclidean norm after scaling; longer rows are shortened to it. `\"auto\"`: found in the warm-up."},
	{path: "stream.NAME.moments.workload", kind: text, flags: always, def: `"mean"`, words: []string{"mean", "sum", "exponential", "window"}, doc: "Which steps a release sums up, and with which weights: all of them, or with weights that fall with age, or the last ones."},
	{path: "stream.NAME.moments.decay", kind: number, flags: always, rule: says("in (0, 1)"), says: "required for `exponential`, a fault elsewhere", doc: "Weight of the previous step."},
	{path: "stream.NAME.moments.window", kind: whole, flags: always, rule: rule{"at least 1", atLeast(0)}, says: "required for `window`, a fault elsewhere", doc: "Steps averaged."},
	{path: "stream.NAME.moments.factorization", kind: text, flags: always, def: `"auto"`, words: []string{"auto", "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt", "phased"}, doc: "How noise is correlated over steps."},
	{path: "stream.NAME.moments.buffers", kind: whole, flags: always, def: `0`, rule: says("1 to 8, or 0 (chosen)"), doc: "Buffers of `blt`."},
	{path: "stream.NAME.moments.bands", kind: whole, def: `16`, rule: says("1 to 256"), doc: "Bands of `bsr`, `bisr` and `banded` (at most 64)."},
	{path: "stream.NAME.moments.tune", kind: whole, flags: always, def: `0`, rule: rule{"at least 1, or 0 (the horizon)", atLeast(0)}, doc: "Steps for which the noise of `blt` and `banded` is made least."},
	{path: "stream.NAME.moments.normalise", kind: boolean, def: `false`, doc: "Scale the noise of `sqrt`, `bsr`, `bisr`, `banded` or `blt` to the horizon, at which the epoch then ends for certain; at most 65536 steps."},
	{path: "stream.NAME.moments.nu", kind: number, flags: always, def: `0`, rule: says("positive and finite, or 0 (chosen)"), doc: "Weight ν of the second moment: more of it means less noise there and more in the mean."},
	{path: "stream.NAME.moments.weights", kind: numbers, flags: always, rule: says("two positive numbers"), says: "the free ν under replace, 1/clip² and 1/clip⁴ under zero-out", doc: "Weights of the squared errors of mean and second moment from which ν is chosen."},
	{path: "stream.NAME.moments.inflation", kind: number, flags: always, rule: says("at least 1"), doc: "Chooses ν by the factor that the mean's variance may grow by. At most one of `nu`, `weights` and `inflation`."},
	{path: "stream.NAME.moments.split", kind: number, def: `0.5`, rule: fraction, doc: "Part of μ² that `ime` spends on the mean."},
	{path: "stream.NAME.moments.tau", kind: number, rule: says("positive"), says: "required for `cs`, a fault elsewhere", doc: "Weight λ of the second moment in `cs`, in scaled units to the power −2."},
	{path: "stream.NAME.moments.metric", kind: text, def: `"last"`, words: []string{"last", "sum"}, doc: "Error by which `auto` chooses: of the release of the last step, or of all up to it. The last step is `horizon`, else `tune`, else 10 000."},
	{path: "stream.NAME.moments.psd_floor", kind: off, def: `"off"`, rule: natural, doc: "Publish also `covariance_psd`, the covariance with its eigenvalues raised to this number."},
	{path: "stream.NAME.moments.project", kind: boolean, def: `false`, doc: "Publish also `second_moment_projected`, the nearest second moment that rows within `clip` can have."},
	{path: "stream.NAME.moments.covariance", kind: boolean, flags: always, says: "`true`, `false` for `sum`", doc: "Publish the covariance, which costs no budget. A sum has none."},
	{path: "stream.NAME.moments.valid_count", kind: boolean, says: "`true` with `[stream.NAME.user]`, else `false`", doc: "Publish also `valid_count`, the number of valid records under the workload's weights, with noise; of persons those that count, and then `counted_share` and `mean_counted` too."},

	{path: "stream.NAME.sgd", kind: table, doc: "Mechanism: online linear regression of one column on the others. A step has as many offsets as `plan` shows, with `amb` those of `amb.batch`, and ends with a release; a search of the clip norm is a step without one. Lengths are in scaled units."},
	{path: "stream.NAME.sgd.target", kind: text, flags: required, doc: "Column to predict from all others."},
	{path: "stream.NAME.sgd.clip_x", kind: number, flags: found, def: `"auto"`, rule: says("positive, and in the range 1e-60 to 1e60"), doc: "Bound on the features' Euclidean norm after scaling; longer ones are shortened to it. `\"auto\"`: found by the warm-up, so that about one row in a thousand is longer."},
	{path: "stream.NAME.sgd.clip_y", kind: number, flags: found, rule: positive, doc: "Bound on the target's absolute value after scaling, or `\"auto\"`, likewise."},
	{path: "stream.NAME.sgd.intercept", kind: boolean, def: `true`, doc: "Fit a constant. `newton` finds privately where features and target lie, and needs no `centre` for it."},
	{path: "stream.NAME.sgd.method", kind: text, def: `"newton"`, words: []string{"newton", "amb"}, doc: "Estimator. `\"newton\"` needs nothing but bounds: it learns the features' second moment as it goes. `\"amb\"` is a descent that has to be told their curvature, and has keys of its own in `[stream.NAME.sgd.amb]`."},
	{path: "stream.NAME.sgd.radius", kind: number, rule: positive, says: "none; required for `amb`", doc: "Bound on the norm of the coefficients, for `newton` without the intercept: a public guess, far enough."},
	{path: "stream.NAME.sgd.intervals", kind: boolean, def: `true`, doc: "Publish standard errors and approximate confidence intervals of `theta_average`, where there are steps enough."},
	{path: "stream.NAME.sgd.level", kind: number, def: `0.95`, rule: fraction, doc: "Level of the intervals."},
	{path: "stream.NAME.sgd.amb", kind: table, flags: flat, of: "amb", doc: "What method `amb` alone has, and a fault with another one."},
	{path: "stream.NAME.sgd.amb.clip", kind: text, def: `"track"`, words: []string{"track", "bisect", "scan", "fixed"}, doc: "How the gradients' clip norm is found: it follows a quantile by a noisy count in every step; or a binary search in records of its own goes before every step; or the published search, which finds little; or it is `zeta`."},
	{path: "stream.NAME.sgd.amb.value", kind: text, def: `"gradnorm"`, words: []string{"gradnorm", "residual"}, doc: "What that quantile is of: the gradients' norm, or the residual's size, multiplied by the largest norm of the features."},
	{path: "stream.NAME.sgd.amb.batch", kind: whole, def: `0`, rule: natural, doc: "Offsets of a gradient step; 0: chosen so that noise is no larger than sampling error, see `streamdp plan`."},
	{path: "stream.NAME.sgd.amb.stat", kind: whole, def: `0`, rule: natural, doc: "Offsets of a search, for `bisect` and `scan`; 0: chosen."},
	{path: "stream.NAME.sgd.amb.bootstrap", kind: whole, def: `0`, rule: natural, doc: "Offsets of the first step of `track`, a search; 0: chosen."},
	{path: "stream.NAME.sgd.amb.threshold_quantile", kind: number, def: `0.6`, rule: fraction, doc: "Part of the records that is not clipped. More of it, and longer batches, where residuals are skewed and the intercept matters."},
	{path: "stream.NAME.sgd.amb.kappa", kind: number, def: `1`, rule: rule{"positive and at most 100", positive.ok}, doc: "Gain with which `track` follows the quantile."},
	{path: "stream.NAME.sgd.amb.fraction", kind: number, def: `0.05`, rule: fraction, doc: "Part of the budget μ² that the counts of `track` cost."},
	{path: "stream.NAME.sgd.amb.rungs", kind: whole, def: `32`, rule: rule{"1 to 10000", atLeast(1)}, doc: "Doublings that a search covers."},
	{path: "stream.NAME.sgd.amb.top", kind: number, def: `65536`, rule: positive, doc: "Largest clip norm that a search finds."},
	{path: "stream.NAME.sgd.amb.zeta", kind: number, rule: positive, says: "required for `fixed`, a fault elsewhere", doc: "The clip norm."},
	{path: "stream.NAME.sgd.amb.bands", kind: whole, def: `16`, rule: rule{"1 to 256", atLeast(1)}, doc: "Bands of the noise's correlation over steps; 1: independent."},
	{path: "stream.NAME.sgd.amb.eta0", kind: number, def: `0.3`, rule: rule{"positive and at most 1", positive.ok}, doc: "Step size, where 2 is the limit of stability for the curvature given."},
	{path: "stream.NAME.sgd.amb.curvature", kind: number, def: `0`, rule: rule{"at most clip_x squared", atLeast(0)}, doc: "Bound on the largest eigenvalue of the features' second moment, in scaled units; 0: the largest norm squared, 10 to 3000 times too large on most data, and then coefficients hardly move. A stream of moments tells it privately."},
	{path: "stream.NAME.sgd.amb.growth", kind: text, def: `"none"`, words: []string{"none", "double"}, doc: "Growth of batches: none, or doubling whenever the number of steps has doubled, for data that do not change."},
	{path: "stream.NAME.sgd.amb.average", kind: text, def: `"tail"`, words: []string{"tail", "smooth"}, doc: "`theta_average` is the mean of the last iterates, or a mean with weights that fall with age and less to keep."},
	{path: "stream.NAME.sgd.amb.tail", kind: number, def: `0.25`, rule: fraction, doc: "Part of the iterates that `tail` leaves out, at most."},
	{path: "stream.NAME.sgd.amb.restart", kind: boolean, def: `true`, doc: "Begin the average anew when releases show that the data have changed."},

	{path: "stream.NAME.refit", kind: table, doc: "Mechanism: a linear regression of one column on the others over each window, released at its end. Lengths are in scaled units."},
	{path: "stream.NAME.refit.target", kind: text, flags: required, doc: "Column to predict from all others."},
	{path: "stream.NAME.refit.clip_x", kind: number, flags: found, def: `"auto"`, rule: says("positive and finite"), doc: "Bound on the features' Euclidean norm after scaling; longer ones are shortened to it. `\"auto\"`: found by the warm-up, so that about one row in a thousand is longer."},
	{path: "stream.NAME.refit.clip_y", kind: number, flags: found, def: `"auto"`, rule: says("positive and finite"), doc: "Bound on the target's absolute value after scaling, or `\"auto\"`, likewise."},
	{path: "stream.NAME.refit.intercept", kind: boolean, def: `true`, doc: "Fit a constant. `newton` finds privately where features and target lie, and needs no `centre` for it; to the others a constant is one more feature, of value clip_x."},
	{path: "stream.NAME.refit.window", kind: whole, rule: rule{"1 to 2147483648", atLeast(0)}, says: "required, a fault where `step` is by the clock", doc: "Offsets of a window. A record belongs to one window at most, and pays for that. Where the stream's `step` is a period of the clock, a window is such a step."},
	{path: "stream.NAME.refit.stride", kind: whole, rule: says("at least `window`"), says: "`window`", doc: "Offsets from one window's start to the next. Records between windows are left out."},
	{path: "stream.NAME.refit.solver", kind: text, def: `"newton"`, words: []string{"newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd", "dp-gd-residual"}, doc: "Solver. `\"newton\"` is the most accurate; the others are methods of the literature, for comparison or for few passes over a window. `\"linmix\"`, and `\"ihm\"` with a radius, keep no rows."},
	{path: "stream.NAME.refit.accounting", kind: text, words: []string{"exact", "rdp", "analytic", "paper"}, says: "`\"exact\"`, `\"rdp\"` for `fast-ihm`", doc: "How noise follows from ε and δ: by the exact curve of all that is released; by its Rényi curve; split among releases, for `adassp`; or as the method's paper has it."},
	{path: "stream.NAME.refit.share", kind: number, def: `0.2`, rule: fraction, doc: "Part of the budget that sketches get, for `ihm` and `fast-ihm`. More where the signal is strong."},
	{path: "stream.NAME.refit.rows", kind: whole, def: `0`, rule: natural, doc: "Rows of a sketch; 0: chosen."},
	{path: "stream.NAME.refit.iterations", kind: whole, def: `0`, rule: natural, doc: "Iterations of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: chosen."},
	{path: "stream.NAME.refit.eigen_test", kind: boolean, def: `false`, doc: "Spend budget on the smallest eigenvalue, for `ihm` and `adassp`: less noise where windows have variance in every direction."},
	{path: "stream.NAME.refit.debias", kind: boolean, def: `false`, doc: "Correct the length of `ihm`'s steps, with `eigen_test` where a sketch has no noise."},
	{path: "stream.NAME.refit.pool", kind: boolean, def: `false`, doc: "Use earlier iterations' sketches of `ihm` too."},
	{path: "stream.NAME.refit.residual_clip", kind: number, def: `0`, rule: natural, doc: "Bound on residuals of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: `clip_y`."},
	{path: "stream.NAME.refit.transforms", kind: whole, def: `1`, rule: says("1 or `iterations`"), doc: "Fast transforms of `fast-ihm`."},
	{path: "stream.NAME.refit.ratio", kind: number, def: `4`, rule: positive, doc: "Rows of `fast-ihm`'s transform, in units of the number of features or of a logarithm, if that is more."},
	{path: "stream.NAME.refit.radius", kind: number, def: `0`, rule: natural, doc: "Bound on the coefficients' norm, in units of clip_y over the features' bound with their constant, for `ihm`, which then needs no rows, and `dp-gd`; 0: none."},

	{path: "stream.NAME.adam", kind: table, doc: "Mechanism: steps of the Adam optimiser, from gradients or from examples of a model. A step divides by `step`, whatever number of records it holds."},
	{path: "stream.NAME.adam.mode", kind: text, def: `"gradients"`, words: []string{"gradients", "model"}, doc: "Records are gradients, `dim` numbers each in `float32`, `float64` or `json-array`, without `input.columns`, `centre` and `scale`; or rows of features and a target, from which the gradient of `model` is taken."},
	{path: "stream.NAME.adam.method", kind: text, def: `"pp_debiased"`, words: []string{"pp_debiased", "pp", "jme", "jme_per_example", "jme_batch", "joint_clip", "momentum"}, doc: "Where the second moment comes from: the noisy mean squared, less its noise's part (`pp_debiased`), or with it (`pp`); squares noised by themselves, of one gradient (`jme`, step = 1), of every gradient (`jme_per_example`) or of their mean (`jme_batch`); both clipped together (`joint_clip`). `momentum` has none."},
	{path: "stream.NAME.adam.clip", kind: number, flags: required, rule: says("positive and finite"), doc: "Bound on a gradient's Euclidean norm; longer ones are shortened to it. Where that happens to many, parameters are those of another optimum: those of a logistic regression come out too large."},
	{path: "stream.NAME.adam.mean_clip", kind: number, def: `0`, rule: says("less than `clip`"), doc: "Bound on the norm of a step's mean, for `jme_batch`; 0: none."},
	{path: "stream.NAME.adam.nu", kind: number, def: `0`, rule: says("positive and finite, or 0 (chosen)"), doc: "Weight ν of the second moment in the methods `jme…`: more of it means less noise there and more in the first."},
	{path: "stream.NAME.adam.tau", kind: number, rule: says("positive and finite"), says: "required for `joint_clip`, a fault elsewhere", doc: "Weight of the squares in the norm that both share."},
	{path: "stream.NAME.adam.beta1", kind: number, def: `0.9`, rule: says("in (0, 1)"), doc: "Weight of the previous step in the first moment."},
	{path: "stream.NAME.adam.beta2", kind: number, def: `0.999`, rule: says("in (0, 1)"), doc: "Weight of the previous step in the second moment."},
	{path: "stream.NAME.adam.rate", kind: number, flags: required, rule: says("positive and finite"), doc: "Learning rate. One chosen by trial on the same records is outside the guarantee."},
	{path: "stream.NAME.adam.schedule", kind: text, def: `"constant"`, words: []string{"constant", "inverse-sqrt", "cosine"}, doc: "How the learning rate falls: not, with the root of the step, or to 0 at the horizon."},
	{path: "stream.NAME.adam.eps", kind: number, def: `1e-8`, rule: says("positive and finite"), doc: "Added to the root of the second moment."},
	{path: "stream.NAME.adam.v_floor", kind: number, def: `0`, rule: says("positive, or 0 (chosen)"), doc: "Least second moment; 0: the standard deviation of its noise."},
	{path: "stream.NAME.adam.negative", kind: text, def: `"floor"`, words: []string{"floor", "zero", "abs"}, doc: "What becomes of a second moment that noise made negative: `v_floor`; 0, which needs `update_clip`; or its absolute value."},
	{path: "stream.NAME.adam.update_clip", kind: number, def: `0`, rule: says("positive, or 0 (none)"), doc: "Bound on the Euclidean norm of an update, before the learning rate."},
	{path: "stream.NAME.adam.weight_decay", kind: number, def: `0`, rule: says("at least 0"), doc: "Share of themselves, times the learning rate, that parameters lose in every step."},
	{path: "stream.NAME.adam.factorization", kind: text, def: `"identity"`, words: []string{"identity", "blt", "sqrt"}, doc: "How noise is correlated over steps. Squaring a mean undoes it: with `pp` and `pp_debiased` only `identity` keeps the second moment accurate."},
	{path: "stream.NAME.adam.dim", kind: whole, rule: says("at least 1"), says: "required for `gradients`, a fault elsewhere", doc: "Number of parameters."},
	{path: "stream.NAME.adam.step_header", kind: text, def: `"model-step"`, rule: rule{"a name", func(v any) bool { return v != "" }}, doc: "Record header of mode `gradients`: in decimal, the `model_step` of the parameters that the gradient was taken at, 0 for the initial ones."},
	{path: "stream.NAME.adam.max_staleness", kind: whole, def: `0`, rule: natural, doc: "Steps that those may be behind the newest; an older gradient, and one from the future, counts as zero."},
	{path: "stream.NAME.adam.release", kind: text, def: `"parameters"`, words: []string{"parameters", "update"}, doc: "What is published: the parameters after the step, or what the step adds to them."},
	{path: "stream.NAME.adam.initial_file", kind: file, flags: outside, doc: "Public parameters to begin with, packed little-endian float64; read when an epoch opens that has no predecessor. Not where centre or scale is `\"auto\"`. Without it they are 0, those of `mlp` small and fixed."},
	{path: "stream.NAME.adam.model", kind: table, doc: "The model of mode `model`."},
	{path: "stream.NAME.adam.model.loss", kind: text, flags: required, words: []string{"linear", "logistic", "softmax", "mlp"}, doc: "Linear, logistic (class 1 is a target above 0 in scaled units) and softmax regression (targets are classes from 0 on, after centre and scale; others make a record invalid), or a network with one hidden layer of tanh units."},
	{path: "stream.NAME.adam.model.target", kind: text, flags: required, doc: "Column to predict; the others are features."},
	{path: "stream.NAME.adam.model.classes", kind: whole, rule: says("at least 2"), says: "required for `softmax`; 0 makes `mlp` predict a number", doc: "Number of classes."},
	{path: "stream.NAME.adam.model.hidden", kind: whole, rule: says("at least 1"), says: "required for `mlp`, a fault elsewhere", doc: "Number of hidden units."},
}

var (
	natural = rule{"at least 0", atLeast(0)}
	fromOne = rule{"at least 1", atLeast(1)}
	stepMax = rule{"1 to 1099511627776", func(v any) bool { n, ok := v.(int64); return ok && n >= 1 && n <= 1<<40 }}
	// recordSize is a size that a reader of package kafka accepts, or 0 for the default.
	recordSize  = rule{"in [0, 1073741824]", func(v any) bool { n, ok := v.(int64); return ok && n >= 0 && n <= 1<<30 }}
	fetchMemory = rule{"16777216 to 1099511627776", func(v any) bool { n, ok := v.(int64); return ok && n >= 16<<20 && n <= 1<<40 }}
	positive    = rule{"positive", func(v any) bool { x, ok := v.(float64); return ok && x > 0 }}
	fraction    = rule{"in (0, 1)", func(v any) bool { x, ok := v.(float64); return ok && x > 0 && x < 1 }}
	share       = rule{"in (0, 1]", func(v any) bool { x, ok := v.(float64); return ok && x > 0 && x <= 1 }}
	otlpURL     = rule{"a URL such as \"http://127.0.0.1:4318\", without user, query and fragment", isOTLP}
	divisor     = rule{"positive, with a finite inverse", func(v any) bool { x, ok := v.(float64); return ok && x > 0 && !math.IsInf(1/x, 0) }}
	partition   = rule{"0 to 2147483647", func(v any) bool { n, ok := v.(int64); return ok && n >= 0 && n <= math.MaxInt32 }}
	userKey     = rule{"\"record-key\", \"field:PATH\" or \"header:NAME\"", isUserKey}
	ahead       = rule{"1 to 1000", func(v any) bool { n, ok := v.(int64); return ok && n >= 1 && n <= 1000 }}
	bits        = rule{"24 to 30", func(v any) bool { n, ok := v.(int64); return ok && n >= 24 && n <= 30 }}
	interval    = rule{"at least \"10ms\", or \"0s\"", func(v any) bool { d, ok := v.(time.Duration); return ok && (d == 0 || d >= 10*time.Millisecond) }}
	lasting     = rule{"at least \"0s\"", func(v any) bool { d, ok := v.(time.Duration); return ok && d >= 0 }}
	broker      = rule{"host:port", func(v any) bool { return address(v, false) }}
	listen      = rule{"an address such as \"127.0.0.1:9464\"", func(v any) bool { return address(v, true) }}
	hostName    = rule{"a host's name, without a port", func(v any) bool { return v != "" && !strings.ContainsAny(v.(string), ":/ ") }}
	userName    = rule{"a name without a colon", func(v any) bool { return v != "" && !strings.Contains(v.(string), ":") }}
	topic       = rule{"a Kafka topic: 1 to 249 of letters, digits, \".\", \"_\" and \"-\"", isTopic}
	groupName   = rule{groupNames, isGroup}
	groupOrNone = rule{groupNames, func(v any) bool { return v == "" || isGroup(v) }}
	// instanceName is a name that a message, a metric and a page show as it is.
	instanceName = rule{"at most 200 characters", func(v any) bool { return len(v.(string)) <= 200 }}
	topicOrNone  = rule{topic.text, func(v any) bool { return v == "" || isTopic(v) }}
	// topicOfOutput is a topic or, of a pattern, one for each of its topics; topicOrMany also none.
	topicOfOutput = rule{topic.text, func(v any) bool { return v != "" && topicOrMany.ok(v) }}
	topicOrMany   = rule{topic.text, func(v any) bool { return v == "" || isTopic(strings.Replace(v.(string), anyTopic, "x", 1)) }}
)

// groupNames are the consumer groups that a configuration may name.
const groupNames = `1 to 200 of letters, digits, ".", "_" and "-"`

func isGroup(v any) bool { return isTopic(v) && len(v.(string)) <= maxGroup }

// says is a rule that the mechanism's package checks; text is for the reference.
func says(text string) rule { return rule{text: text} }

func atLeast(least int64) func(any) bool {
	return func(v any) bool {
		switch v := v.(type) {
		case int64:
			return v >= least
		case float64:
			return v >= float64(least)
		}
		return false
	}
}

// between is a rule for integers from least to most.
func between(least, most int64) func(any) bool {
	return func(v any) bool { n, ok := v.(int64); return ok && n >= least && n <= most }
}

// isUserKey reports whether v says where a user key is.
func isUserKey(v any) bool {
	s, _ := v.(string)
	path, field := strings.CutPrefix(s, UserField)
	name, header := strings.CutPrefix(s, UserHeader)
	return s == UserRecordKey || field && path != "" || header && name != ""
}

// address reports whether v is host:port. A listener may omit the host, and may use port 0
// to let the system choose one.
func address(v any, listener bool) bool {
	s, _ := v.(string)
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, " /") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && (listener || host != "" && n > 0)
}

var topicPattern = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func isTopic(v any) bool {
	s, _ := v.(string)
	return topicPattern.MatchString(s) && s != "." && s != ".."
}

// node is a row of the schema in the tree of tables.
type node struct {
	key
	name     string
	parent   *node
	fallback any // the default as the TOML package reads it; nil where there is none
	children []*node
}

// child returns the row of the named key, nil if the schema has none.
func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name || c.name == "NAME" || c.name == "COLUMN" {
			return c
		}
	}
	return nil
}

// at returns the row that the names lead to, one below the other.
func (n *node) at(names ...string) *node {
	for _, name := range names {
		if n = n.child(name); n == nil {
			return nil
		}
	}
	return n
}

// has reports whether all flags f are set.
func (n *node) has(f flags) bool { return n.flags&f == f }

// root is the schema as a tree.
var root = sync.OnceValue(func() *node {
	top := &node{}
	for _, k := range schema {
		names := strings.Split(k.path, ".")
		parent := top.at(names[:len(names)-1]...)
		k.flags |= parent.flags & outside
		parent.children = append(parent.children, &node{key: k, name: names[len(names)-1], parent: parent, fallback: k.fallback()})
	}
	return top
})

// fallback parses the default.
func (k *key) fallback() any {
	if k.def == "" {
		return nil
	}
	var v struct{ Default any }
	if _, err := toml.Decode("default = "+k.def, &v); err != nil {
		panic("config: default of " + k.path + ": " + err.Error())
	}
	return v.Default
}

// in returns the field of struct v that row n is read into. For a flat table it returns v
// itself.
func (n *node) in(v reflect.Value) reflect.Value {
	if n.has(flat) {
		return v
	}
	return field(v, n.name)
}

// field returns the struct field whose TOML name is name, the zero Value if there is
// none.
func field(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("toml") == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}
