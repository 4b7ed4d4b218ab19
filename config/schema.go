package config

import (
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/column"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/toml"
)

// stepMaxDefault is the default of step_max.
const stepMaxDefault = "10000000"

// schema has a row for every key, in the order of the reference. It drives decoding, the search for unknown keys, the
// digest and docs/config.md. NAME stands for the name of a stream, COLUMN for the name of a column.
//
// The digest covers the canonical form of a stream's table. A key with toml.Outside is not in the digest and may change
// while an epoch is open. All other keys of a stream that existed in the first version are marked toml.Always. A key of
// a later version has neither mark: it enters the digest only if it differs from its default, so that an upgrade alone
// ends no epoch. Give toml.Always to a new key only if its whole table is new, and is either in the digest as a whole
// or not at all.
//
// A key with toml.Usual is required unless the mechanism does not use it; validate checks that. A key with toml.Found
// may be "auto": then a warm-up finds its number.
var schema = []toml.Row{
	{Path: "kafka", Kind: toml.Table, Flags: toml.Required | toml.Outside, Doc: "The Kafka cluster."},
	{Path: "kafka.brokers", Kind: toml.Texts, Flags: toml.Required, Rule: broker,
		Doc: "Brokers to connect to first. They report the other brokers."},
	{Path: "kafka.client_id", Kind: toml.Text, Def: `"streamdp"`,
		Doc: "Name of this client in the brokers' logs and quotas."},
	{Path: "kafka.boundary_topic", Kind: toml.Text, Def: `""`, Rule: topicOrNone,
		Doc: "Topic that holds the boundaries of steps by the clock; required where a stream has such a `step`. " +
			"It has one partition and is not compacted. If it is missing, the daemon creates it with unlimited " +
			"retention. All streams, and all copies of a state directory, must use the same topic."},
	{Path: "kafka.control_topic", Kind: toml.Text, Def: `""`, Rule: topicOrNone,
		Doc: "Topic that mirrors the ledger. The daemon claims an epoch there before the epoch's first noise. So " +
			"if several daemons have the same stream, or copies of one state directory, only one of them opens " +
			"epochs, and an outdated copy of a state directory does not start. All daemons that may read the same " +
			"input must use the same topic. It has one partition and unlimited retention. If it is missing, the " +
			"daemon creates it."},
	{Path: "kafka.group", Kind: toml.Text, Def: `""`, Rule: groupOrNone,
		Doc: "Consumer group for tools that show lag: every 5 seconds the daemon commits the offsets that its " +
			"tasks have read. The daemon never reads these offsets. The group must have no members and must not " +
			"be `cluster.group`; daemons that read the same topic need different groups."},
	{Path: "kafka.fetch_memory", Kind: toml.Whole, Def: `268435456`, Rule: fetchMemory,
		Doc: "Memory in bytes for brokers' responses and the records and rows in them, for all tasks together; " +
			"memory for decompression is extra. One half is divided into equal shares for the tasks, the other " +
			"half is lent on demand, so no task waits for another. A share is at least 80 KiB. The total may " +
			"exceed the limit by the share of a task that starts while all memory is in use, and by a batch or " +
			"record larger than a share."},
	{Path: "kafka.tls", Kind: toml.Table,
		Doc: "TLS to the brokers. An empty table, `[kafka.tls]`, uses the system's authorities. The files are read " +
			"again every 10 seconds: new connections use the new content; invalid content is ignored with a warning."},
	{Path: "kafka.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that brokers' certificates are checked against, instead of " +
			"the system's."},
	{Path: "kafka.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file`."},
	{Path: "kafka.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file`. Permissions as for `state.key_file`."},
	{Path: "kafka.sasl", Kind: toml.Table, Doc: "Authentication to the brokers."},
	{Path: "kafka.sasl.mechanism", Kind: toml.Text, Flags: toml.Required,
		Words: []string{"plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "aws-msk-iam"},
		Doc:   "Mechanism; [howto/access.md](howto/access.md) has an example of each."},
	{Path: "kafka.sasl.username", Kind: toml.Text, Says: "required for plain and scram",
		Doc: "User, for plain and scram."},
	{Path: "kafka.sasl.password_file", Kind: toml.File, Says: "required for plain and scram",
		Doc: "File with the password, optionally followed by one newline; permissions as for `state.key_file`."},
	{Path: "kafka.sasl.token_url", Kind: toml.Text, Says: "oauthbearer needs it or `token_file`", Rule: tokenURL,
		Doc: "Token endpoint of an OAuth server (client credentials grant). A token is renewed after three quarters " +
			"of its lifetime."},
	{Path: "kafka.sasl.token_ca_file", Kind: toml.File, Says: "default: the system's",
		Doc: "Certificates (PEM) of the authorities that the token endpoint's certificate is checked against."},
	{Path: "kafka.sasl.client_id", Kind: toml.Text, Says: "required with `token_url`",
		Doc: "Client id at the OAuth server."},
	{Path: "kafka.sasl.client_secret_file", Kind: toml.File, Says: "required with `token_url`",
		Doc: "File with the client secret, optionally followed by one newline; permissions as for `state.key_file`. " +
			"It is read for each request."},
	{Path: "kafka.sasl.scopes", Kind: toml.Texts, Rule: scope, Doc: "Scopes to request."},
	{Path: "kafka.sasl.audience", Kind: toml.Text, Doc: "Audience to request, which some OAuth servers need."},
	{Path: "kafka.sasl.token_file", Kind: toml.File, Says: "oauthbearer needs it or `token_url`",
		Doc: "File in which another program keeps a current token, on one line; permissions as for `state.key_file`. " +
			"It is read whenever a token is presented."},
	{Path: "kafka.sasl.extensions", Kind: toml.Texts, Rule: extension,
		Doc: "SASL extensions sent with a token, each `\"NAME=VALUE\"`."},
	{Path: "kafka.sasl.region", Kind: toml.Text, Says: "required for aws-msk-iam", Rule: region,
		Doc: "AWS region of the brokers. Credentials are found as by AWS's own programs: environment, shared files, " +
			"web identity, container, machine."},
	{Path: "kafka.sasl.role_arn", Kind: toml.Text, Rule: role, Doc: "Role to assume with these credentials (AWS STS)."},

	{Path: "state", Kind: toml.Table, Flags: toml.Required | toml.Outside,
		Doc: "State that must survive a restart. The directory is as confidential as the input: it holds exact sums."},
	{Path: "state.dir", Kind: toml.Text, Flags: toml.Required,
		Doc: "Directory of checkpoints, manifests and the ledger. A relative path starts at the working directory of " +
			"the command."},
	{Path: "state.key_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File of the master key, written by `streamdp keygen`. With it one can remove the noise from the " +
			"releases of open epochs."},
	{Path: "state.key_group_readable", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept a key file that its group can read, as mounted secrets often are."},
	{Path: "state.commit_interval", Kind: toml.Span, Def: `"200ms"`, Rule: interval,
		Doc: "Period of durable commits; releases become visible at commits. `\"0s\"` commits at every step, for " +
			"tests; it is refused unless every broker is a loopback address."},
	{Path: "state.epoch_secret_retention", Kind: toml.Span, Def: `"0s"`, Rule: lasting,
		Doc: "How long the secret of a closed epoch is kept before it is destroyed. With it and the master key one " +
			"can remove the noise from that epoch's releases."},
	{Path: "state.encrypt", Kind: toml.Boolean, Def: `false`,
		Doc: "Encrypt checkpoints and epoch secrets under the master key. A change takes effect at the next start, " +
			"for all files."},
	{Path: "state.archive", Kind: toml.Boolean, Def: `false`,
		Doc: "Keep published releases in the state directory, so that `streamdp republish` can restore them if the " +
			"output topic loses them. They are as public as the output; nothing deletes them."},

	{Path: "http", Kind: toml.Table, Flags: toml.Outside, Doc: "Metrics, status and health."},
	{Path: "http.listen", Kind: toml.Text, Def: `"127.0.0.1:9464"`, Rule: listen, Doc: "Address to listen on."},
	{Path: "http.exposure", Kind: toml.Text, Def: `"operator"`, Words: []string{"operator", "public"},
		Doc: "Who can read it. `\"public\"` omits every metric that is an exact function of records."},
	{Path: "http.metrics", Kind: toml.Text, Def: `"task"`, Words: []string{"task", "aggregate"},
		Doc: "`\"task\"`: series for each task. `\"aggregate\"`: sums and extremes over all tasks, for processes " +
			"with hundreds of tasks ([metrics.md](metrics.md)). `/api/v1/streams` always lists every task."},
	{Path: "http.hosts", Kind: toml.Texts, Rule: hostName,
		Doc: "Further host names, without port, that requests may use. IP addresses, `localhost`, the name in " +
			"`http.listen` and the names of the certificate are always allowed. Others are refused, because a web " +
			"page can point its own name at this machine."},
	{Path: "http.insecure_listen", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept a listener reachable from other machines with neither `[http.tls]` nor `[http.basic_auth]`: " +
			"anyone who reaches it can read it."},
	{Path: "http.tls", Kind: toml.Table,
		Doc: "TLS of the listener. Replaced files are read again as in `[kafka.tls]`."},
	{Path: "http.tls.cert_file", Kind: toml.File, Flags: toml.Required, Doc: "Certificate (PEM), with its chain."},
	{Path: "http.tls.key_file", Kind: toml.File, Flags: toml.Required,
		Doc: "Key of the certificate (PEM). Permissions as for `state.key_file`."},
	{Path: "http.basic_auth", Kind: toml.Table, Doc: "Password of the listener. Without TLS it is sent unencrypted."},
	{Path: "http.basic_auth.username", Kind: toml.Text, Flags: toml.Required, Rule: userName, Doc: "User."},
	{Path: "http.basic_auth.password_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File with the password, optionally followed by one newline; permissions as for `state.key_file`."},

	{Path: "log", Kind: toml.Table, Flags: toml.Outside, Doc: "Messages on standard error."},
	{Path: "log.level", Kind: toml.Text, Def: `"info"`, Words: []string{"debug", "info", "warn", "error"},
		Doc: "Lowest level written."},
	{Path: "log.format", Kind: toml.Text, Def: `"json"`, Words: []string{"json", "text"}, Doc: "Format of a line."},

	{Path: "registry", Kind: toml.Table, Flags: toml.Outside,
		Doc: "The schema registry where codecs with schemas look up a record's schema. Its API is Confluent's, which " +
			"Apicurio (at `/apis/ccompat/v7`), Redpanda and Karapace offer too; see " +
			"[howto/schema-registry.md](howto/schema-registry.md)."},
	{Path: "registry.urls", Kind: toml.Texts, Flags: toml.Required, Rule: registryURL,
		Doc: "Addresses of the registry, tried in turn."},
	{Path: "registry.timeout", Kind: toml.Span, Def: `"5s"`,
		Rule: toml.MustBe("\"100ms\" to \"1m\"", lasts(100*time.Millisecond, time.Minute)),
		Doc:  "Time limit for a request."},
	{Path: "registry.token_file", Kind: toml.File,
		Doc: "File with a bearer token, read for every request; permissions as for `state.key_file`."},
	{Path: "registry.basic_auth", Kind: toml.Table, Doc: "User and password for the registry."},
	{Path: "registry.basic_auth.username", Kind: toml.Text, Flags: toml.Required, Rule: userName,
		Doc: "User; for Confluent Cloud the API key."},
	{Path: "registry.basic_auth.password_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File with the password, optionally followed by one newline; permissions as for `state.key_file`."},
	{Path: "registry.tls", Kind: toml.Table,
		Doc: "TLS to a registry at `https`. Without this table the system's authorities are used. Replaced files are " +
			"read again as in `[kafka.tls]`."},
	{Path: "registry.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that the registry's certificate is checked against, instead of " +
			"the system's."},
	{Path: "registry.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file`."},
	{Path: "registry.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file`. Permissions as for `state.key_file`."},

	{Path: "trace", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Traces for an OpenTelemetry collector: OTLP over HTTP, in protobuf. Without this table nothing is " +
			"recorded. Spans name streams, partitions, epochs and steps, and contain no record content. But their " +
			"times depend on records, so readers of traces must be allowed to see the input, and `http.exposure = " +
			"\"public\"` excludes this table. See [operations.md](operations.md#traces)."},
	{Path: "trace.endpoint", Kind: toml.Text, Flags: toml.Required, Rule: otlpURL,
		Doc: "URL of the receiver. Without a path, `/v1/traces` is used."},
	{Path: "trace.headers_file", Kind: toml.File,
		Doc: "File of headers for each request, one `Name: value` per line, for example for authorization; " +
			"permissions as for `state.key_file`. They are never sent on after a redirect."},
	{Path: "trace.sample", Kind: toml.Number, Def: `1.0`, Rule: share,
		Doc: "Share of traces that are sent. A trace covers one commit or one fetch."},
	{Path: "trace.service", Kind: toml.Text, Def: `"streamdp"`, Doc: "Name of the service, `service.name`."},
	{Path: "trace.tls", Kind: toml.Table,
		Doc: "TLS to the receiver. Without this table an `https` endpoint is checked against the system's " +
			"authorities."},
	{Path: "trace.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that the receiver's certificate is checked against, instead of " +
			"the system's."},
	{Path: "trace.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file`."},
	{Path: "trace.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file`. Permissions as for `state.key_file`."},

	{Path: "cluster", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Several instances share the tasks, with the same configuration and key. Kafka holds all state that " +
			"must survive; `state.dir` holds only the last known lines of the ledgers and the control socket. See " +
			"[howto/cluster.md](howto/cluster.md). Without this table one process runs all tasks, with its state in " +
			"`state.dir`."},
	{Path: "cluster.group", Kind: toml.Text, Flags: toml.Required, Rule: groupName,
		Doc: "Consumer group of the instances; also the prefix of their topics (`.state`, `.ledger`, `.control`, " +
			"`.partials`) and transactional ids."},
	{Path: "cluster.shards", Kind: toml.Whole, Def: `64`, Rule: toml.MustBe("1 to 4096", between(1, 4096)),
		Doc: "Number of shards among which tasks are divided, and so the largest number of instances with work. A " +
			"shard has one owner at a time and its own ledger. The number never changes."},
	{Path: "cluster.assign", Kind: toml.Text, Def: `"partition"`, Words: []string{"partition", "topic"},
		Doc: "Whether an input partition's shard follows from its topic and number, or from its topic alone. All " +
			"partitions of a merged stream must be in one shard, so `merge = true` needs `\"topic\"`. It " +
			"never changes."},
	{Path: "cluster.session_timeout", Kind: toml.Span, Def: `"6s"`,
		Rule: toml.MustBe("\"1s\" to \"5m\"", lasts(time.Second, 5*time.Minute)),
		Doc: "Silence after which an instance counts as dead and others take over its shards. Brokers accept no " +
			"less than their `group.min.session.timeout.ms`, 6 s by default."},
	{Path: "cluster.instance", Kind: toml.Text, Says: "default: the host's name", Rule: instanceName,
		Doc: "Name of this instance in messages, the status page and the state."},
	{Path: "cluster.advertise", Kind: toml.Text, Says: "default: the address it listens on", Rule: broker,
		Doc: "Address at which other machines reach this instance's status page; all instances' pages link to it."},
	{Path: "cluster.allow_unreplicated", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept topics with one replica, for tests: losing one broker's disk then loses ledgers."},

	{Path: "stream", Kind: toml.Table, Flags: toml.Required, Named: readStreams, Doc: "Streams by name."},
	{Path: "stream.NAME", Kind: toml.Table,
		Doc: "One stream: a topic, its partitions, one mechanism. NAME is 1 to 63 of `a-z`, `0-9`, `_` and `-`."},
	{Path: "stream.NAME.input", Kind: toml.Table, Flags: toml.Required,
		Doc: "Where records come from and how they are read."},
	{Path: "stream.NAME.input.topic", Kind: toml.Text, Flags: toml.Usual | toml.Always, Rule: topic,
		Says: "required, except with `topics`", Doc: "Topic. If it is missing, the daemon waits for it."},
	{Path: "stream.NAME.input.topics", Kind: toml.Text, Flags: toml.Outside, Def: `""`,
		Doc: "Instead of `topic`: a regular expression (RE2) for whole topic names. Each matching topic, even one " +
			"created while the daemon runs, becomes a stream NAME.TOPIC with its own budget, ledger entries and " +
			"output, as if it had its own table. The pattern never matches topics that this process writes to, " +
			"topics that another table names in `topic`, and names that begin with `_` or end in `.dp`. Topic " +
			"names are public. See [howto/topics-by-pattern.md](howto/topics-by-pattern.md)."},
	{Path: "stream.NAME.input.max_topics", Kind: toml.Whole, Flags: toml.Outside, Def: `100`,
		Rule: toml.MustBe("1 to 10000", between(1, 10000)),
		Doc: "Largest number of topics for `topics`. Topics that have an epoch come first, then the others by " +
			"name; topics beyond this number wait, with a warning and a metric."},
	{Path: "stream.NAME.input.partition", Kind: toml.Wholes, Flags: toml.Always | toml.Every, Def: `0`, Rule: partition,
		Doc: "A partition, a list of partitions, or `\"all\"`: every partition of the topic, even one added while " +
			"the daemon runs. Each partition is a task with its own epochs; a task's digest holds only its own " +
			"partition."},
	{Path: "stream.NAME.input.start", Kind: start, Flags: toml.Always, Def: `"earliest"`,
		Doc: "Where the first epoch begins: `\"earliest\"` (start of the log), `\"latest\"` (last stable offset) " +
			"or an offset."},
	{Path: "stream.NAME.input.codec", Kind: toml.Text, Flags: toml.Always, Def: `"json"`,
		Words: []string{"json", "json-array", "csv", "float64", "float32", "avro", "protobuf", "json-schema"},
		Doc: "Format of a record's value: a JSON object (`\"json\"`), a JSON array of numbers (`\"json-array\"`), " +
			"a line of CSV (`\"csv\"`), packed little-endian numbers (`\"float64\"`, `\"float32\"`), or a record " +
			"with a schema (`\"avro\"`, `\"protobuf\"`, `\"json-schema\"`)."},
	{Path: "stream.NAME.input.framing", Kind: toml.Text, Def: `"confluent"`, Words: []string{"confluent", "plain"},
		Doc: "Bytes that precede a record with a schema. `\"confluent\"`: a byte 0, the four bytes of the schema's " +
			"id in the registry and, for Protobuf, the index of the message. `\"plain\"`: nothing; `schema_file` is " +
			"the schema of all records."},
	{Path: "stream.NAME.input.subjects", Kind: toml.Texts, Def: `[]`, Rule: subject,
		Says: "default `input.topic` + `-value`",
		Doc:  "Subjects of the registry that hold the records' schemas. A record with any other schema id is null."},
	{Path: "stream.NAME.input.schema_file", Kind: toml.File, Flags: toml.Outside, Def: `""`,
		Says: "required with framing `\"plain\"`",
		Doc: "Schema of all records with framing `\"plain\"`: Avro's JSON, a `.proto` file, or a JSON Schema. It is " +
			"read with the configuration; the SHA-256 of its text is in the digest."},
	{Path: "stream.NAME.input.message", Kind: toml.Text, Def: `""`, Rule: messageName,
		Says: "default: with framing `\"confluent\"` the message that the record names, with `\"plain\"` the " +
			"file's first",
		Doc: "Protobuf message, as `package.Name`. With framing `\"confluent\"`, records of other messages are null."},
	{Path: "stream.NAME.input.columns", Kind: toml.Texts, Flags: toml.Usual | toml.Always,
		Says: "required, except for gradients",
		Doc: "The columns, in order. For `json` and codecs with a schema: names, or paths `a.b[0].c` into objects " +
			"and arrays; a backslash makes `.`, `\\`, `[` or `]` part of a name. For `csv`: positions from `\"1\"`, " +
			"unless the column has a `path`. Otherwise: labels, one for each number of the record. Each column is " +
			"one number of the row, unless it has its own table."},
	{Path: "stream.NAME.input.column", Kind: toml.Table, Named: readColumns,
		Doc: "Columns that are not plain numbers, by name."},
	{Path: "stream.NAME.input.column.COLUMN", Kind: toml.Table,
		Doc: "How one of `input.columns` becomes numbers of the row. COLUMN is its name, quoted if it has dots or " +
			"brackets. See [howto/columns.md](howto/columns.md). None of this costs budget: rows are " +
			"clipped afterwards."},
	{Path: "stream.NAME.input.column.COLUMN.path", Kind: toml.Text, Says: "default: the column's name",
		Doc: "Where the value is: a path or, for `csv`, a position. Several columns may read one value. Not for " +
			"codecs without paths."},
	{Path: "stream.NAME.input.column.COLUMN.type", Kind: toml.Text, Def: `"number"`, Words: column.Types,
		Doc: "Type of the value. `\"number\"`: a number. `\"decimal\"`: a number, possibly in a string. `\"bool\"`: " +
			"true or false; the row has 1 or 0. `\"category\"`: a string, integer or boolean; the row has one number " +
			"per category. `\"enum\"`: the number of an enumeration's symbol, for codecs with enumerations. " +
			"`\"timestamp\"`: a time by RFC 3339 or ISO 8601, a time by the schema, or a number with `unit`. A " +
			"record with a value of another type gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.default", Kind: toml.AnyValue,
		Doc: "Replaces a value that is missing, null or an empty cell: a number; for `\"bool\"` also true or false; " +
			"for categories one of them. The transform applies to it. Without a default, such a record gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.categories", Kind: toml.Texts, Says: "required for `\"category\"`",
		Doc: "The public list of categories; never derive it from the data. The row has a number `COLUMN=CATEGORY` " +
			"for each: 1 if the value is that category, else 0. Also for a `\"timestamp\"` whose `take` " +
			"gives integers."},
	{Path: "stream.NAME.input.column.COLUMN.other", Kind: toml.Boolean, Def: `false`,
		Doc: "Add a number `COLUMN=other` to the row, 1 for a value that is none of the categories. Without it, such " +
			"a record gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.baseline", Kind: toml.Text,
		Doc: "A category, or `\"other\"`, that gets no number in the row: its records have 0 in the numbers of " +
			"all other categories. A regression with an intercept needs a baseline, because the numbers of a full " +
			"list add up to 1."},
	{Path: "stream.NAME.input.column.COLUMN.take", Kind: toml.Text, Says: "default `\"seconds\"`",
		Words: column.Taking(),
		Doc: "Number taken from a time: seconds since 1970 (UTC); minute, hour, weekday (Monday is 1), day or " +
			"month from 1; or sine or cosine of the position in the day (`hour-`), week or year."},
	{Path: "stream.NAME.input.column.COLUMN.unit", Kind: toml.Text,
		Says: "optional, but needed where a time is a number", Words: column.Units,
		Doc: "Unit of a time given as a number, since 1970-01-01T00:00Z."},
	{Path: "stream.NAME.input.column.COLUMN.utc_offset", Kind: toml.Text, Says: "default `\"+00:00\"`",
		Doc: "How far the clock of `take` is ahead of UTC, all year. It also applies to times without a UTC offset. " +
			"There are no time zones: their rules change, and a row must not depend on the machine."},
	{Path: "stream.NAME.input.column.COLUMN.transform", Kind: toml.Text, Words: column.Transforms,
		Doc: "Function of the number plus `offset`, before `centre` and `scale`: natural logarithm of x (`\"log\"`) " +
			"or 1 + x (`\"log1p\"`), square root (`\"sqrt\"`), or x to the power of `exponent` (`\"power\"`). If the " +
			"result is not finite, the record gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.exponent", Kind: toml.Number, Says: "required for `\"power\"`",
		Doc: "Exponent of `\"power\"`: -16 to 16, not 0. Negative numbers have powers only if it is an integer."},
	{Path: "stream.NAME.input.column.COLUMN.offset", Kind: toml.Number, Def: `0`,
		Doc: "Public constant that is added to the number before the transform."},
	{Path: "stream.NAME.input.max_record_bytes", Kind: toml.Whole, Def: `0`, Rule: recordSize,
		Doc: "Largest record: bytes of key, value and headers, plus 40 per header. A larger one counts as null and " +
			"its content is dropped. 0: 1 MiB, or 32 bytes per number of a row if that is more, at most 1 GiB. The " +
			"limit depends only on the record."},
	{Path: "stream.NAME.input.allow_compacted", Kind: toml.Boolean, Flags: toml.Always, Def: `false`,
		Doc: "Read a compacted topic. Then a lost state directory cannot be rebuilt from the log, and the guarantee " +
			"does not cover that one record may remove another."},
	{Path: "stream.NAME.output", Kind: toml.Table, Flags: toml.Outside, Doc: "Where releases go."},
	{Path: "stream.NAME.output.topic", Kind: toml.Text, Rule: topicOfOutput, Says: "default `input.topic` + `.dp`",
		Doc: "Topic of the releases. It must not be another stream's output, nor any input. With `input.topics`, " +
			"a `*` in it stands for the input's topic, and the default is `*.dp`."},
	{Path: "stream.NAME.output.partition", Kind: toml.Whole, Def: `0`, Rule: partition,
		Doc: "Partition of all releases of this stream."},
	{Path: "stream.NAME.output.create", Kind: toml.Boolean, Def: `true`,
		Doc: "Create a missing topic, compacted, with the broker's default replication."},
	{Path: "stream.NAME.output.values", Kind: toml.Texts, Def: `[]`,
		Doc: "Names of the values to publish. Empty: all values of the mechanism."},
	{Path: "stream.NAME.output.encoding", Kind: toml.Text, Def: `"json"`, Words: []string{"json", "base64"},
		Doc: "Format of the numbers: JSON, or base64 of little-endian float64."},
	{Path: "stream.NAME.output.privacy_every", Kind: toml.Whole, Def: `1`, Rule: fromOne,
		Doc: "Every N-th release, from step 1 on, has the full `privacy` block. The others have its hash, " +
			"`privacy_sha256`, and are a kilobyte shorter. Above 1 only for `moments` and `refit`, which release " +
			"at each step."},
	{Path: "stream.NAME.centre", Kind: toml.Spread, Flags: toml.Always | toml.Found, Def: `0`,
		Says: "default `0`, or `\"auto\"` if `moments.clip` or a regression's `clip_x` is",
		Doc: "Public constants that are subtracted from the columns; never compute them from the data. " +
			"`\"auto\"`, also for single columns of a list: found privately from the first records of an epoch, " +
			"the warm-up."},
	{Path: "stream.NAME.scale", Kind: toml.Spread, Flags: toml.Always | toml.Found, Def: `1`, Rule: divisor,
		Says: "default `1`, or `\"auto\"` under the same condition as `centre`",
		Doc: "Public constants by which the columns are divided after `centre` is subtracted; or `\"auto\"`, as " +
			"for `centre`."},
	{Path: "stream.NAME.warmup", Kind: toml.Whole, Def: `0`, Rule: natural,
		Says: "default: twice what `plan` says is needed, at least 5000, in whole steps",
		Doc: "Offsets of the warm-up, where `centre`, `scale` or a bound is `\"auto\"`; for moments a multiple of " +
			"`step`. Its records enter noisy histograms and nothing else; the mechanism's steps begin after it."},
	{Path: "stream.NAME.warmup_mode", Kind: toml.Text, Def: `"buffer"`, Words: []string{"buffer", "split"},
		Doc: "`\"buffer\"`: every record of the warm-up is used in all of its five stages and kept in memory until " +
			"its end. `\"split\"`: each stage uses its own records; none is kept, but two to three times as " +
			"many are needed."},
	{Path: "stream.NAME.step", Kind: length, Flags: toml.Always, Rule: says("at least 1, or at least `\"100ms\"`"),
		Says: "moments: default 100; adam: required; refits: none, or a period; sgd: not allowed",
		Doc: "Offsets of one step, which ends with a release. For moments and refits also a period such as " +
			"`\"1m\"`: a step then ends at each multiple of it (UTC) and holds the records that arrived since the " +
			"last end. For refits a period is the window, and a number of offsets is an error."},
	{Path: "stream.NAME.step_max", Kind: toml.Whole, Def: stepMaxDefault, Rule: stepMax,
		Doc: "Largest number of offsets in a step by the clock, over all partitions, divided equally among them. " +
			"Further records fall into later steps. Required for refits, whose memory it bounds: at most 2147483648."},
	{Path: "stream.NAME.merge", Kind: toml.Boolean, Def: `false`,
		Doc: "Publish one sequence of releases for all partitions together: a step holds `step` offsets of each, " +
			"their sums are added before noise is drawn, and every partition's budget is charged. Only for " +
			"moments and refits in which `centre`, `scale` and bounds are not `\"auto\"`."},
	{Path: "stream.NAME.merge_ahead", Kind: toml.Whole, Flags: toml.Outside, Def: `4`, Rule: ahead,
		Doc: "Number of steps that a partition of a merged stream may be ahead of the slowest partition; the sums " +
			"(for refits, the rows) of these steps stay in memory. For an unmerged refit by the clock: number of " +
			"windows kept in memory while an earlier window is solved."},
	{Path: "stream.NAME.horizon", Kind: toml.Whole, Flags: toml.Always, Def: `0`, Rule: natural,
		Doc: "Number of steps of an epoch; 0: unlimited."},
	{Path: "stream.NAME.on_horizon", Kind: toml.Text, Flags: toml.Always, Def: `"halt"`,
		Words: []string{"halt", "rollover", "continue"},
		Doc: "After the last step of the horizon: stop (`\"halt\"`); start a new epoch, which is charged too " +
			"(`\"rollover\"`); or go on under the same charge, if the factorization is valid for every length " +
			"(`\"continue\"`). The digest holds only whether it is `\"continue\"`."},
	{Path: "stream.NAME.on_gap", Kind: toml.Text, Flags: toml.Outside, Def: `"halt"`, Words: []string{"halt", "null"},
		Doc: "When Kafka deleted records before they were read: stop (`\"halt\"`), or count them as invalid " +
			"(`\"null\"`)."},
	{Path: "stream.NAME.dead_letter", Kind: toml.Table, Flags: toml.Outside,
		Doc: "A topic that lists the records that gave no row, each with its reason. It is not private: it is " +
			"only for readers who may see the input."},
	{Path: "stream.NAME.dead_letter.mode", Kind: toml.Text, Def: `"off"`, Words: []string{"off", "reference", "full"},
		Doc: "Written for such a record: nothing (`\"off\"`), its position and the reason (`\"reference\"`), or also " +
			"its key, value and headers (`\"full\"`)."},
	{Path: "stream.NAME.dead_letter.topic", Kind: toml.Text, Def: `""`, Rule: topicOrMany,
		Doc: "Topic; required unless `mode` is `off`. Several streams may share it. The daemon does not create it. " +
			"Partition 0 is written. With `input.topics` it may contain a `*`, as `output.topic`."},
	{Path: "stream.NAME.lattice_bits", Kind: toml.Whole, Flags: toml.Always, Def: `24`, Rule: bits,
		Doc: "Records are rounded to a lattice that is finer than clip norm and noise by this many bits."},

	{Path: "stream.NAME.privacy", Kind: toml.Table, Flags: toml.Required,
		Doc: "The guarantee. Its unit is one record."},
	{Path: "stream.NAME.privacy.epsilon", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: positive,
		Doc: "ε that all releases of one epoch together cost each record."},
	{Path: "stream.NAME.privacy.delta", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: fraction,
		Doc: "δ of the same guarantee."},
	{Path: "stream.NAME.privacy.adjacency", Kind: toml.Text, Flags: toml.Required | toml.Always,
		Words: []string{"zero-out", "replace"},
		Doc: "How neighbouring logs differ: in the content of one record, which in the other log is empty " +
			"(`\"zero-out\"`) or different (`\"replace\"`). Number and offsets of records are public."},
	{Path: "stream.NAME.privacy.limit_epsilon", Kind: toml.Number, Flags: toml.Outside, Rule: positive,
		Says: "default `epsilon`: one epoch of one stream",
		Doc: "Largest ε that a record of the input partition may pay, over all epochs and streams that read it; " +
			"at least `epsilon`. Streams that read one topic must have equal limits and adjacency. If one of them " +
			"uses a solver with sketches, the first epoch reserves part of the limit for the sketches of all " +
			"streams of the topic; `plan` shows it."},
	{Path: "stream.NAME.privacy.limit_delta", Kind: toml.Number, Flags: toml.Outside, Rule: fraction,
		Says: "default `delta`", Doc: "δ of that limit; at least `delta`."},

	{Path: "stream.NAME.user", Kind: toml.Table,
		Doc: "Makes a person the unit of the guarantee. A person is all records of an epoch with one user key. ε, " +
			"δ and the limit then hold per person, and a person is charged for every epoch of the population " +
			"([privacy.md](privacy.md)). [mechanisms.md](mechanisms.md) lists the mechanisms."},
	{Path: "stream.NAME.user.key", Kind: toml.Text, Flags: toml.Required | toml.Always, Rule: userKey,
		Doc: "Where the user key is: the record's key, a field (`field:PATH`, as in `columns`; a string or integer " +
			"of a JSON object, or a CSV cell `field:1`), or a header. A record without a user key never counts."},
	{Path: "stream.NAME.user.cap", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: toml.MustBe("1 to 16777215", between(0, persons.MaxCap)),
		Says: "default: as many as `horizon` and `separation` allow; required without a horizon",
		Doc:  "Largest number of steps in which a person counts."},
	{Path: "stream.NAME.user.separation", Kind: toml.Whole, Flags: toml.Always, Def: `1`,
		Rule: toml.MustBe("1 to 4294967294", between(1, persons.MaxStep)),
		Doc:  "Least distance, in steps, between two steps in which a person counts; 1 allows consecutive ones."},
	{Path: "stream.NAME.user.per_step", Kind: toml.Whole, Flags: toml.Always, Def: `1`,
		Rule: toml.MustBe("1 to 255", between(1, persons.MaxPerStep)),
		Doc:  "Largest number of a person's records that count in one step."},
	{Path: "stream.NAME.user.period", Kind: toml.Whole, Def: `0`,
		Rule: toml.MustBe("0 to 4294967294", between(0, persons.MaxStep)), Says: "default: the whole epoch",
		Doc: "Steps of a period. With it the unit of the guarantee is a person's records of one period instead of " +
			"the whole epoch: `cap` and `separation` start again in each period, and a person is charged for each " +
			"period. The first period begins with the epoch. In each task, `limit_epsilon` starts again too, once " +
			"consecutive epochs have this many steps."},
	{Path: "stream.NAME.user.max_users", Kind: toml.Whole, Flags: toml.Required | toml.Always,
		Rule: toml.MustBe("1 to 2147483648", between(1, persons.MaxUsers)),
		Doc: "Largest number of persons remembered per partition. Where `cap` is the binding rule, records of " +
			"further persons do not count once this number is reached; unless that is impossible, the noise under " +
			"`\"zero-out\"` is the noise of `\"replace\"`. Where only `separation` is binding, the number must be " +
			"enough for all records of `separation` steps."},
	{Path: "stream.NAME.user.partitioner", Kind: toml.Text, Flags: toml.Always, Def: `"none"`,
		Words: []string{"none", "murmur2"},
		Doc: "`\"murmur2\"`, for `record-key`: a record does not count unless Java's default partitioner assigns " +
			"its key to its partition, so a person's records count in one partition only. `merge` needs it."},
	{Path: "stream.NAME.user.population", Kind: toml.Text, Flags: toml.Always, Def: `""`, Says: "default `input.topic`",
		Doc: "Name of the population. The costs of its streams, over all topics, are added up per person."},

	{Path: "stream.NAME.moments", Kind: toml.Table,
		Doc: "Mechanism: running means, sums, second moments and covariances. Lengths and weights are in " +
			"scaled units."},
	{Path: "stream.NAME.moments.method", Kind: toml.Text, Flags: toml.Always, Def: `"auto"`,
		Words: []string{"auto", "jme", "ime", "cs", "pp", "pp_debiased", "combined"},
		Doc: "Estimator. `\"jme\"`: joint estimation of both moments; `\"ime\"`: independent estimation; `\"cs\"`: " +
			"concatenation and split; `\"pp\"`: squares of noisy rows, and `\"pp_debiased\"` without their bias, " +
			"both for `step = 1`; `\"combined\"`: the best mix of those with `jme`. `\"auto\"` chooses from public " +
			"numbers: `jme` or, for `step = 1`, also `pp_debiased` or `combined`. Releases name the choice and the " +
			"errors compared."},
	{Path: "stream.NAME.moments.clip", Kind: toml.Number, Flags: toml.Always | toml.Found, Def: `"auto"`,
		Rule: says("positive and finite"),
		Doc: "Bound on a row's Euclidean norm after scaling; longer rows are shortened to it. `\"auto\"`: found in " +
			"the warm-up."},
	{Path: "stream.NAME.moments.workload", Kind: toml.Text, Flags: toml.Always, Def: `"mean"`,
		Words: []string{"mean", "sum", "exponential", "window"},
		Doc: "Steps that a release sums up: all of them (`\"mean\"`, `\"sum\"`), all with weights that fall with " +
			"age (`\"exponential\"`), or the last ones (`\"window\"`)."},
	{Path: "stream.NAME.moments.decay", Kind: toml.Number, Flags: toml.Always, Rule: says("in (0, 1)"),
		Says: "required for `exponential`, else not allowed", Doc: "Weight of the previous step."},
	{Path: "stream.NAME.moments.window", Kind: toml.Whole, Flags: toml.Always,
		Rule: toml.MustBe("at least 1", atLeast(0)), Says: "required for `window`, else not allowed",
		Doc: "Number of steps that a release averages."},
	{Path: "stream.NAME.moments.factorization", Kind: toml.Text, Flags: toml.Always, Def: `"auto"`,
		Words: []string{"auto", "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt", "phased"},
		Doc:   "How noise is correlated over steps; see [factorizations.md](factorizations.md)."},
	{Path: "stream.NAME.moments.buffers", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: says("1 to 8, or 0 (chosen)"), Doc: "Buffers of `blt`."},
	{Path: "stream.NAME.moments.bands", Kind: toml.Whole, Def: `16`, Rule: says("1 to 256"),
		Doc: "Bands of `bsr`, `bisr` and `banded` (at most 64)."},
	{Path: "stream.NAME.moments.tune", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: toml.MustBe("at least 1, or 0 (the horizon)", atLeast(0)),
		Doc:  "Number of steps for which the noise of `blt` and `banded` is minimized."},
	{Path: "stream.NAME.moments.normalise", Kind: toml.Boolean, Def: `false`,
		Doc: "Scale the noise of `sqrt`, `bsr`, `bisr`, `banded` or `blt` to the horizon, which then always ends the " +
			"epoch; at most 65536 steps."},
	{Path: "stream.NAME.moments.nu", Kind: toml.Number, Flags: toml.Always, Def: `0`,
		Rule: says("positive and finite, or 0 (chosen)"),
		Doc:  "Weight ν of the second moment: a larger one means less noise there and more in the mean."},
	{Path: "stream.NAME.moments.weights", Kind: toml.Numbers, Flags: toml.Always, Rule: says("two positive numbers"),
		Says: "default: 1/clip² and 1/clip⁴ under zero-out; none under replace, where ν is the largest " +
			"that costs the " +
			"mean nothing",
		Doc: "Weights of the squared errors of mean and second moment: ν is chosen so that their weighted sum is " +
			"least."},
	{Path: "stream.NAME.moments.inflation", Kind: toml.Number, Flags: toml.Always, Rule: says("at least 1"),
		Doc: "Chooses ν by the factor by which the mean's variance may grow. At most one of `nu`, `weights` and " +
			"`inflation` is set."},
	{Path: "stream.NAME.moments.split", Kind: toml.Number, Def: `0.5`, Rule: fraction,
		Doc: "Share of μ² that `ime` spends on the mean."},
	{Path: "stream.NAME.moments.tau", Kind: toml.Number, Rule: says("positive"),
		Says: "required for `cs`, else not allowed",
		Doc:  "Weight λ of the second moment in `cs`, in scaled units to the power −2."},
	{Path: "stream.NAME.moments.metric", Kind: toml.Text, Def: `"last"`, Words: []string{"last", "sum"},
		Doc: "Error by which `auto` chooses: of the last step's release, or summed over all releases up to it. The " +
			"last step is `horizon`, else `tune`, else 10 000."},
	{Path: "stream.NAME.moments.psd_floor", Kind: toml.Off, Def: `"off"`, Rule: natural,
		Doc: "Also publish `covariance_psd`, the covariance in which eigenvalues below this number are raised to " +
			"it."},
	{Path: "stream.NAME.moments.project", Kind: toml.Boolean, Def: `false`,
		Doc: "Also publish `second_moment_projected`, the nearest second moment that rows within `clip` can have."},
	{Path: "stream.NAME.moments.covariance", Kind: toml.Boolean, Flags: toml.Always,
		Says: "default `true`, `false` for `sum`",
		Doc:  "Publish the covariance, which costs no budget. A sum has none."},
	{Path: "stream.NAME.moments.valid_count", Kind: toml.Boolean,
		Says: "default `true` with `[stream.NAME.user]`, else `false`",
		Doc: "Also publish `valid_count`, the noisy number of valid records under the workload's weights. With " +
			"persons it counts the records that count, and `counted_share` and `mean_counted` are published too."},

	{Path: "stream.NAME.sgd", Kind: toml.Table,
		Doc: "Mechanism: online linear regression of one column on the others. `plan` shows how many offsets a " +
			"step has; for `amb`, `amb.batch` sets this number. It ends with a release, unless it searches for " +
			"the clip norm. Lengths are in scaled units."},
	{Path: "stream.NAME.sgd.target", Kind: toml.Text, Flags: toml.Required, Doc: "Column to predict from all others."},
	{Path: "stream.NAME.sgd.clip_x", Kind: toml.Number, Flags: toml.Found, Def: `"auto"`,
		Rule: says("positive, and in the range 1e-60 to 1e60"),
		Doc: "Bound on the features' Euclidean norm after scaling; longer ones are shortened to it. `\"auto\"`: " +
			"found by the warm-up, so that about one row in a thousand is longer."},
	{Path: "stream.NAME.sgd.clip_y", Kind: toml.Number, Flags: toml.Found, Rule: positive,
		Doc: "Bound on the target's absolute value after scaling, or `\"auto\"`: found likewise."},
	{Path: "stream.NAME.sgd.intercept", Kind: toml.Boolean, Def: `true`,
		Doc: "Fit a constant. `newton` finds the location of features and target privately and needs no " +
			"`centre` for it."},
	{Path: "stream.NAME.sgd.method", Kind: toml.Text, Def: `"newton"`, Words: []string{"newton", "amb"},
		Doc: "Estimator. `\"newton\"` needs only bounds: it learns the features' second moment as it goes. `\"amb\"` " +
			"is a descent that needs their curvature, with its own keys in `[stream.NAME.sgd.amb]`."},
	{Path: "stream.NAME.sgd.radius", Kind: toml.Number, Rule: positive,
		Says: "optional for `newton`, required for `amb`",
		Doc:  "Bound on the coefficients' norm (for `newton` without the intercept): a generous public guess."},
	{Path: "stream.NAME.sgd.intervals", Kind: toml.Boolean, Def: `true`,
		Doc: "Publish standard errors and approximate confidence intervals of `theta_average` once there are " +
			"enough steps."},
	{Path: "stream.NAME.sgd.level", Kind: toml.Number, Def: `0.95`, Rule: fraction, Doc: "Confidence level of the " +
		"intervals."},
	{Path: "stream.NAME.sgd.amb", Kind: toml.Table, Flags: toml.Flat, Of: "amb", Doc: "Keys of method `amb` only."},
	{Path: "stream.NAME.sgd.amb.clip", Kind: toml.Text, Def: `"track"`,
		Words: []string{"track", "bisect", "scan", "fixed"},
		Doc: "How the gradients' clip norm is found. `\"track\"`: it follows a quantile by a noisy count in every " +
			"step. `\"bisect\"`: a binary search before every step, on its own records. `\"scan\"`: the published " +
			"search, which finds little. `\"fixed\"`: it is `zeta`."},
	{Path: "stream.NAME.sgd.amb.value", Kind: toml.Text, Def: `"gradnorm"`, Words: []string{"gradnorm", "residual"},
		Doc: "Quantity whose quantile `track` follows: the gradients' norm, or the absolute residual times the " +
			"largest norm of the features."},
	{Path: "stream.NAME.sgd.amb.batch", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of a gradient step; 0: chosen so that noise is no larger than sampling error, see " +
			"`streamdp plan`."},
	{Path: "stream.NAME.sgd.amb.stat", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of a search, for `bisect` and `scan`; 0: chosen."},
	{Path: "stream.NAME.sgd.amb.bootstrap", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of the first step of `track`, a search; 0: chosen."},
	{Path: "stream.NAME.sgd.amb.threshold_quantile", Kind: toml.Number, Def: `0.6`, Rule: fraction,
		Doc: "Share of records that is not clipped. Increase it, with longer batches, where residuals are skewed and " +
			"the intercept matters."},
	{Path: "stream.NAME.sgd.amb.kappa", Kind: toml.Number, Def: `1`,
		Rule: toml.MustBe("positive and at most 100", positive.OK),
		Doc:  "Gain with which `track` follows the quantile."},
	{Path: "stream.NAME.sgd.amb.fraction", Kind: toml.Number, Def: `0.05`, Rule: fraction,
		Doc: "Share of the budget μ² that the counts of `track` cost."},
	{Path: "stream.NAME.sgd.amb.rungs", Kind: toml.Whole, Def: `32`, Rule: toml.MustBe("1 to 10000", atLeast(1)),
		Doc: "Number of doublings that a search covers."},
	{Path: "stream.NAME.sgd.amb.top", Kind: toml.Number, Def: `65536`, Rule: positive,
		Doc: "Largest clip norm that a search finds."},
	{Path: "stream.NAME.sgd.amb.zeta", Kind: toml.Number, Rule: positive,
		Says: "required for `fixed`, else not allowed", Doc: "The clip norm."},
	{Path: "stream.NAME.sgd.amb.bands", Kind: toml.Whole, Def: `16`, Rule: toml.MustBe("1 to 256", atLeast(1)),
		Doc: "Bands of the noise's correlation over steps; 1: independent."},
	{Path: "stream.NAME.sgd.amb.eta0", Kind: toml.Number, Def: `0.3`,
		Rule: toml.MustBe("positive and at most 1", positive.OK),
		Doc:  "Step size; 2 is the limit of stability for the given curvature."},
	{Path: "stream.NAME.sgd.amb.curvature", Kind: toml.Number, Def: `0`,
		Rule: toml.MustBe("at most clip_x squared", atLeast(0)),
		Doc: "Bound on the largest eigenvalue of the features' second moment, in scaled units; a moments stream " +
			"finds it privately. 0: the largest norm squared, which on most data is 10 to 3000 times too large, so " +
			"that coefficients barely move."},
	{Path: "stream.NAME.sgd.amb.growth", Kind: toml.Text, Def: `"none"`, Words: []string{"none", "double"},
		Doc: "Growth of batches: `\"none\"`, or for stationary data `\"double\"` whenever the number of steps " +
			"has doubled."},
	{Path: "stream.NAME.sgd.amb.average", Kind: toml.Text, Def: `"tail"`, Words: []string{"tail", "smooth"},
		Doc: "`theta_average` is the mean of the last iterates (`\"tail\"`), or a mean with weights that fall with " +
			"age, which needs less memory (`\"smooth\"`)."},
	{Path: "stream.NAME.sgd.amb.tail", Kind: toml.Number, Def: `0.25`, Rule: fraction,
		Doc: "Largest part of the iterates that `tail` leaves out."},
	{Path: "stream.NAME.sgd.amb.restart", Kind: toml.Boolean, Def: `true`,
		Doc: "Restart the average when releases show that the data have changed."},

	{Path: "stream.NAME.refit", Kind: toml.Table,
		Doc: "Mechanism: a linear regression of one column on the others over each window, released at its end. " +
			"Lengths are in scaled units."},
	{Path: "stream.NAME.refit.target", Kind: toml.Text, Flags: toml.Required,
		Doc: "Column to predict from all others."},
	{Path: "stream.NAME.refit.clip_x", Kind: toml.Number, Flags: toml.Found, Def: `"auto"`,
		Rule: says("positive and finite"),
		Doc: "Bound on the features' Euclidean norm after scaling; longer ones are shortened to it. `\"auto\"`: " +
			"found by the warm-up, so that about one row in a thousand is longer."},
	{Path: "stream.NAME.refit.clip_y", Kind: toml.Number, Flags: toml.Found, Def: `"auto"`,
		Rule: says("positive and finite"),
		Doc:  "Bound on the target's absolute value after scaling, or `\"auto\"`: found likewise."},
	{Path: "stream.NAME.refit.intercept", Kind: toml.Boolean, Def: `true`,
		Doc: "Fit a constant. `newton` finds the location of features and target privately and needs no `centre` for " +
			"it; the other solvers add a feature of value clip_x."},
	{Path: "stream.NAME.refit.window", Kind: toml.Whole, Rule: toml.MustBe("1 to 2147483648", atLeast(0)),
		Says: "required, but not allowed if `step` is a period",
		Doc: "Offsets of a window. A record belongs to at most one window and is charged for it once. Where " +
			"`step` is a period, it is the window."},
	{Path: "stream.NAME.refit.stride", Kind: toml.Whole, Rule: says("at least `window`"), Says: "default `window`",
		Doc: "Offsets from the start of one window to the next. Records between windows are not used."},
	{Path: "stream.NAME.refit.solver", Kind: toml.Text, Def: `"newton"`,
		Words: []string{"newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd", "dp-gd-residual"},
		Doc: "Solver. `\"newton\"` is the most accurate; the others are methods of the literature, for comparison " +
			"or for few passes over a window. `\"linmix\"`, and `\"ihm\"` with a radius, keep no rows."},
	{Path: "stream.NAME.refit.accounting", Kind: toml.Text, Words: []string{"exact", "rdp", "analytic", "paper"},
		Says: "default `\"exact\"`, `\"rdp\"` for `fast-ihm`",
		Doc: "How noise follows from ε and δ. `\"exact\"`: the exact curve of all releases; `\"rdp\"`: their Rényi " +
			"curve; `\"analytic\"`: split among releases, for `adassp`; `\"paper\"`: as in the method's paper."},
	{Path: "stream.NAME.refit.share", Kind: toml.Number, Def: `0.2`, Rule: fraction,
		Doc: "Part of the budget for sketches, for `ihm` and `fast-ihm`. Increase it where the signal is strong."},
	{Path: "stream.NAME.refit.rows", Kind: toml.Whole, Def: `0`, Rule: natural, Doc: "Rows of a sketch; 0: chosen."},
	{Path: "stream.NAME.refit.iterations", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Iterations of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: chosen."},
	{Path: "stream.NAME.refit.eigen_test", Kind: toml.Boolean, Def: `false`,
		Doc: "Spend budget on the smallest eigenvalue, for `ihm` and `adassp`: less noise if windows have " +
			"variance in every direction."},
	{Path: "stream.NAME.refit.debias", Kind: toml.Boolean, Def: `false`,
		Doc: "Correct the length of `ihm`'s steps; with `eigen_test` only while a sketch has no noise."},
	{Path: "stream.NAME.refit.pool", Kind: toml.Boolean, Def: `false`,
		Doc: "Also use the sketches of earlier iterations of `ihm`."},
	{Path: "stream.NAME.refit.residual_clip", Kind: toml.Number, Def: `0`, Rule: natural,
		Doc: "Bound on residuals of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: `clip_y`."},
	{Path: "stream.NAME.refit.transforms", Kind: toml.Whole, Def: `1`, Rule: says("1 or `iterations`"),
		Doc: "Number of fast transforms in `fast-ihm`."},
	{Path: "stream.NAME.refit.ratio", Kind: toml.Number, Def: `4`, Rule: positive,
		Doc: "Rows of `fast-ihm`'s transform, divided by the number of features or by a logarithm if that is larger."},
	{Path: "stream.NAME.refit.radius", Kind: toml.Number, Def: `0`, Rule: natural,
		Doc: "Bound on the coefficients' norm, for `dp-gd` and `ihm` (which then keeps no rows). Its unit is " +
			"clip_y divided by the bound of the features including the constant. 0: none."},

	{Path: "stream.NAME.adam", Kind: toml.Table,
		Doc: "Mechanism: steps of the Adam optimiser, from gradients or from examples of a model. A step's sum is " +
			"divided by `step`, however many records it holds."},
	{Path: "stream.NAME.adam.mode", Kind: toml.Text, Def: `"gradients"`, Words: []string{"gradients", "model"},
		Doc: "`\"gradients\"`: records are gradients of `dim` numbers in `float32`, `float64` or `json-array`, " +
			"without `input.columns`, `centre` and `scale`. `\"model\"`: records are rows of features and a target, " +
			"from which the gradient of `model` is computed."},
	{Path: "stream.NAME.adam.method", Kind: toml.Text, Def: `"pp_debiased"`,
		Words: []string{"pp_debiased", "pp", "jme", "jme_per_example", "jme_batch", "joint_clip", "momentum"},
		Doc: "Source of the second moment. `\"pp\"`: the squared noisy mean; `\"pp_debiased\"`: the same without " +
			"the part that is noise. Squares with noise of their own: of one gradient (`\"jme\"`, step = 1), of " +
			"every gradient (`\"jme_per_example\"`) or of their mean (`\"jme_batch\"`). `\"joint_clip\"`: mean " +
			"and squares, clipped together. `\"momentum\"` has no second moment."},
	{Path: "stream.NAME.adam.clip", Kind: toml.Number, Flags: toml.Required, Rule: says("positive and finite"),
		Doc: "Bound on a gradient's Euclidean norm; longer ones are shortened to it. If many are, parameters " +
			"converge to another optimum: those of a logistic regression become too large."},
	{Path: "stream.NAME.adam.mean_clip", Kind: toml.Number, Def: `0`, Rule: says("less than `clip`"),
		Doc: "Bound on the norm of a step's mean, for `jme_batch`; 0: none."},
	{Path: "stream.NAME.adam.nu", Kind: toml.Number, Def: `0`, Rule: says("positive and finite, or 0 (chosen)"),
		Doc: "Weight ν of the second moment in the methods `jme…`: a larger one means less noise there and more " +
			"in the first."},
	{Path: "stream.NAME.adam.tau", Kind: toml.Number, Rule: says("positive and finite"),
		Says: "required for `joint_clip`, else not allowed",
		Doc:  "Weight of the squares in the norm that both moments share."},
	{Path: "stream.NAME.adam.beta1", Kind: toml.Number, Def: `0.9`, Rule: says("in (0, 1)"),
		Doc: "Weight of the previous step in the first moment."},
	{Path: "stream.NAME.adam.beta2", Kind: toml.Number, Def: `0.999`, Rule: says("in (0, 1)"),
		Doc: "Weight of the previous step in the second moment."},
	{Path: "stream.NAME.adam.rate", Kind: toml.Number, Flags: toml.Required, Rule: says("positive and finite"),
		Doc: "Learning rate. Choosing it by trial on the same records is not covered by the guarantee."},
	{Path: "stream.NAME.adam.schedule", Kind: toml.Text, Def: `"constant"`,
		Words: []string{"constant", "inverse-sqrt", "cosine"},
		Doc: "How the learning rate falls: not at all (`\"constant\"`), with the root of the step " +
			"(`\"inverse-sqrt\"`), or to 0 at the horizon (`\"cosine\"`)."},
	{Path: "stream.NAME.adam.eps", Kind: toml.Number, Def: `1e-8`, Rule: says("positive and finite"),
		Doc: "Added to the root of the second moment."},
	{Path: "stream.NAME.adam.v_floor", Kind: toml.Number, Def: `0`, Rule: says("positive, or 0 (chosen)"),
		Doc: "Lower bound of the second moment. If it is 0, the standard deviation of the second moment's " +
			"noise is used."},
	{Path: "stream.NAME.adam.negative", Kind: toml.Text, Def: `"floor"`, Words: []string{"floor", "zero", "abs"},
		Doc: "Replacement for a second moment that noise made negative: `v_floor` (`\"floor\"`), 0, which needs " +
			"`update_clip` (`\"zero\"`), or its absolute value (`\"abs\"`)."},
	{Path: "stream.NAME.adam.update_clip", Kind: toml.Number, Def: `0`, Rule: says("positive, or 0 (none)"),
		Doc: "Bound on the Euclidean norm of an update, before the learning rate."},
	{Path: "stream.NAME.adam.weight_decay", Kind: toml.Number, Def: `0`, Rule: says("at least 0"),
		Doc: "In every step, parameters shrink by this share times the learning rate."},
	{Path: "stream.NAME.adam.factorization", Kind: toml.Text, Def: `"identity"`,
		Words: []string{"identity", "blt", "sqrt"},
		Doc: "How noise is correlated over steps. Squaring a mean destroys the correlation: with `pp` and " +
			"`pp_debiased` only `identity` keeps the second moment accurate."},
	{Path: "stream.NAME.adam.dim", Kind: toml.Whole, Rule: says("at least 1"),
		Says: "required for `gradients`, else not allowed", Doc: "Number of parameters."},
	{Path: "stream.NAME.adam.step_header", Kind: toml.Text, Def: `"model-step"`,
		Rule: toml.MustBe("a name", func(v any) bool { return v != "" }),
		Doc: "Record header, for mode `gradients`: in decimal, the `model_step` of the parameters at which the " +
			"gradient was taken, 0 for the initial ones."},
	{Path: "stream.NAME.adam.max_staleness", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Number of steps by which those parameters may be older than the newest parameters. An older " +
			"gradient, or one of a future step, counts as zero."},
	{Path: "stream.NAME.adam.release", Kind: toml.Text, Def: `"parameters"`, Words: []string{"parameters", "update"},
		Doc: "Published values: the parameters after the step, or the step's change of them."},
	{Path: "stream.NAME.adam.initial_file", Kind: toml.File, Flags: toml.Outside,
		Doc: "Public initial parameters, packed little-endian float64, read when an epoch without predecessor opens. " +
			"Not allowed where centre or scale is `\"auto\"`. Without it they are 0 (for `mlp`, small fixed numbers)."},
	{Path: "stream.NAME.adam.model", Kind: toml.Table, Doc: "The model of mode `model`."},
	{Path: "stream.NAME.adam.model.loss", Kind: toml.Text, Flags: toml.Required,
		Words: []string{"linear", "logistic", "softmax", "mlp"},
		Doc: "`\"linear\"` regression; `\"logistic\"` regression (class 1 is a target above 0 in scaled units); " +
			"`\"softmax\"` regression (targets are classes from 0 on, after centre and scale; a record with another " +
			"target is invalid); or `\"mlp\"`, a network with one hidden layer of tanh units."},
	{Path: "stream.NAME.adam.model.target", Kind: toml.Text, Flags: toml.Required,
		Doc: "Column to predict; the others are features."},
	{Path: "stream.NAME.adam.model.classes", Kind: toml.Whole, Rule: says("at least 2"),
		Says: "required for `softmax`; 0 makes `mlp` predict a number", Doc: "Number of classes."},
	{Path: "stream.NAME.adam.model.hidden", Kind: toml.Whole, Rule: says("at least 1"),
		Says: "required for `mlp`, else not allowed", Doc: "Number of hidden units."},
}

var (
	natural = toml.MustBe("at least 0", atLeast(0))
	fromOne = toml.MustBe("at least 1", atLeast(1))
	stepMax = toml.MustBe("1 to 1099511627776", between(1, 1<<40))
	// recordSize accepts the sizes that a reader of package kafka accepts, and 0 for the default.
	recordSize  = toml.MustBe("in [0, 1073741824]", between(0, 1<<30))
	fetchMemory = toml.MustBe("16777216 to 1099511627776", between(16<<20, 1<<40))
	positive    = toml.MustBe("positive", func(v any) bool { x, ok := v.(float64); return ok && x > 0 })
	fraction    = toml.MustBe("in (0, 1)", func(v any) bool { x, ok := v.(float64); return ok && x > 0 && x < 1 })
	share       = toml.MustBe("in (0, 1]", func(v any) bool { x, ok := v.(float64); return ok && x > 0 && x <= 1 })
	otlpURL     = toml.MustBe("a URL such as \"http://127.0.0.1:4318\", without user, query and fragment", isOTLP)
	divisor     = toml.MustBe("positive, with a finite inverse",
		func(v any) bool { x, ok := v.(float64); return ok && x > 0 && !math.IsInf(1/x, 0) })
	partition = toml.MustBe("0 to 2147483647", between(0, math.MaxInt32))
	userKey   = toml.MustBe("\"record-key\", \"field:PATH\" or \"header:NAME\"", isUserKey)
	ahead     = toml.MustBe("1 to 1000", between(1, 1000))
	bits      = toml.MustBe("24 to 30", between(24, 30))
	interval  = toml.MustBe("at least \"10ms\", or \"0s\"",
		func(v any) bool { d, ok := v.(time.Duration); return ok && (d == 0 || d >= 10*time.Millisecond) })
	lasting  = toml.MustBe("at least \"0s\"", func(v any) bool { d, ok := v.(time.Duration); return ok && d >= 0 })
	broker   = toml.MustBe("host:port", func(v any) bool { return address(v, false) })
	listen   = toml.MustBe("an address such as \"127.0.0.1:9464\"", func(v any) bool { return address(v, true) })
	hostName = toml.MustBe("a host's name, without a port",
		func(v any) bool { return v != "" && !strings.ContainsAny(v.(string), ":/ ") })
	userName = toml.MustBe("a name without a colon",
		func(v any) bool { return v != "" && !strings.Contains(v.(string), ":") })
	topic       = toml.MustBe("a Kafka topic: 1 to 249 of letters, digits, \".\", \"_\" and \"-\"", isTopic)
	groupName   = toml.MustBe(groupNames, isGroup)
	groupOrNone = toml.MustBe(groupNames, func(v any) bool { return v == "" || isGroup(v) })
	// instanceName accepts a name that messages, metrics and pages show unchanged.
	instanceName = toml.MustBe("at most 200 characters", func(v any) bool { return len(v.(string)) <= 200 })
	topicOrNone  = toml.MustBe(topic.Text, func(v any) bool { return v == "" || isTopic(v) })
	// topicOfOutput accepts a topic or, for a pattern, a template with "*"; topicOrMany also accepts the empty text.
	topicOfOutput = toml.MustBe(topic.Text, func(v any) bool { return v != "" && topicOrMany.OK(v) })
	topicOrMany   = toml.MustBe(topic.Text,
		func(v any) bool { return v == "" || isTopic(strings.Replace(v.(string), anyTopic, "x", 1)) })
)

// groupNames describes the consumer groups that a configuration may name.
const groupNames = `1 to 200 of letters, digits, ".", "_" and "-"`

func isGroup(v any) bool { return isTopic(v) && len(v.(string)) <= maxGroup }

// says makes a rule that only documents a check, which the mechanism's package makes. text appears in the reference.
func says(text string) toml.Rule { return toml.Rule{Text: text} }

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

// between returns a rule for integers from `least` to `most`, both inclusive.
func between(least, most int64) func(any) bool {
	return func(v any) bool { n, ok := v.(int64); return ok && n >= least && n <= most }
}

// lasts returns a rule for durations from `least` to `most`, both inclusive.
func lasts(least, most time.Duration) func(any) bool {
	return func(v any) bool { d, ok := v.(time.Duration); return ok && d >= least && d <= most }
}

// isUserKey reports whether v is a valid place of a user key.
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

// former are keys of earlier versions that accepted only their default and have no effect.
var former = []string{"http.pprof"}

// root is the schema as a tree.
var root = sync.OnceValue(func() *toml.Node { return toml.New(schema, former...) })
