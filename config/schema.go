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

// schema has a row for every key, in the order of the reference. Decoding, the search for unknown keys, the digest and
// docs/config.md all use it. NAME stands for the name of a stream, COLUMN for that of a column.
//
// The canonical form of a stream's table is in the digest. A key with toml.Outside is not in the digest and may change
// while an epoch is open. All other keys of a stream that the first version had are marked toml.Always. A key of a
// later version has neither: it enters the digest only when it differs from its default. So an upgrade alone ends no
// epoch. Give toml.Always to a new key only if it is in a new table that is in the digest as a whole or not at all.
//
// A key with toml.Usual is required unless the mechanism does not use it, which validate knows. A key with toml.Found
// may be "auto": a warm-up finds its number.
var schema = []toml.Row{
	{Path: "kafka", Kind: toml.Table, Flags: toml.Required | toml.Outside, Doc: "The Kafka cluster."},
	{Path: "kafka.brokers", Kind: toml.Texts, Flags: toml.Required, Rule: broker,
		Doc: "Brokers through which the client finds the cluster."},
	{Path: "kafka.client_id", Kind: toml.Text, Def: `"streamdp"`,
		Doc: "Name of this client in the brokers' logs and quotas."},
	{Path: "kafka.boundary_topic", Kind: toml.Text, Def: `""`, Rule: topicOrNone,
		Doc: "Topic that holds the boundaries of steps by the clock (`step = \"1m\"`); required for them. It has one " +
			"partition and is not compacted. A missing topic is created like this, with unlimited retention. Several " +
			"streams, and copies of a state directory, share one topic."},
	{Path: "kafka.control_topic", Kind: toml.Text, Def: `""`, Rule: topicOrNone,
		Doc: "Topic that mirrors the ledger and in which an epoch is claimed before its first noise. With it, only " +
			"one of several copies of a state directory, or of several daemons that run one stream, can open epochs, and " +
			"a state directory restored from an old copy does not start. All daemons that may read the same input " +
			"share the topic. It has one partition and unlimited retention; a missing topic is created like this."},
	{Path: "kafka.group", Kind: toml.Text, Def: `""`, Rule: groupOrNone,
		Doc: "Consumer group to which the daemon commits the positions of its tasks, every 5 seconds if they " +
			"changed, for tools that show the lag of consumer groups. The daemon never reads these offsets: nothing " +
			"depends on them. The group must have no members, and two daemons that read one topic must not share " +
			"it. It must differ from `cluster.group`."},
	{Path: "kafka.fetch_memory", Kind: toml.Whole, Def: `268435456`, Rule: fetchMemory,
		Doc: "Bytes of memory that all tasks together have for brokers' responses and for the records and rows in " +
			"them, not counting decompression. Half is divided among the tasks, the other half is lent on demand. A " +
			"task that gets no loan works within its share, so no task waits for another one. A task that starts " +
			"while the others hold all memory gets part of its share beyond the bound. A share is at least 80 KiB. " +
			"A batch or record larger than its task's share is accepted nevertheless."},
	{Path: "kafka.tls", Kind: toml.Table,
		Doc: "TLS towards the brokers. The table alone, `[kafka.tls]`, trusts the system's authorities. The files " +
			"may be replaced while the daemon runs. It reads them again every 10 seconds and uses them for new " +
			"connections. If they are unusable, it logs a warning and keeps the previous ones."},
	{Path: "kafka.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that brokers are checked against, instead of the system's."},
	{Path: "kafka.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{Path: "kafka.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},
	{Path: "kafka.sasl", Kind: toml.Table, Doc: "Authentication towards the brokers."},
	{Path: "kafka.sasl.mechanism", Kind: toml.Text, Flags: toml.Required,
		Words: []string{"plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "aws-msk-iam"},
		Doc:   "Mechanism. [howto/access.md](howto/access.md) has an example of each."},
	{Path: "kafka.sasl.username", Kind: toml.Text, Says: "required for plain and scram",
		Doc: "User, for plain and scram."},
	{Path: "kafka.sasl.password_file", Kind: toml.File, Says: "required for plain and scram",
		Doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},
	{Path: "kafka.sasl.token_url", Kind: toml.Text, Says: "required for oauthbearer without " +
		"`token_file`", Rule: tokenURL,
		Doc: "Token endpoint of an OAuth server, which issues tokens for client credentials. The daemon requests a " +
			"new token after three quarters of the old one's lifetime."},
	{Path: "kafka.sasl.token_ca_file", Kind: toml.File, Says: "the system's",
		Doc: "Certificates (PEM) of the authorities that the token endpoint is checked against."},
	{Path: "kafka.sasl.client_id", Kind: toml.Text, Says: "required with `token_url`",
		Doc: "Name of this client to the OAuth server."},
	{Path: "kafka.sasl.client_secret_file", Kind: toml.File, Says: "required with `token_url`",
		Doc: "File that holds the client's secret, and at most one newline; permissions as for `state.key_file`. It " +
			"is read for each request, so it may be replaced."},
	{Path: "kafka.sasl.scopes", Kind: toml.Texts, Says: "none", Rule: scope, Doc: "Scopes to request for tokens."},
	{Path: "kafka.sasl.audience", Kind: toml.Text, Says: "none",
		Doc: "Audience to request for tokens, which some OAuth servers want."},
	{Path: "kafka.sasl.token_file", Kind: toml.File, Says: "required for oauthbearer without `token_url`",
		Doc: "File with a token in one line, which another program keeps up to date; permissions as for " +
			"`state.key_file`. It is read each time that a token is sent."},
	{Path: "kafka.sasl.extensions", Kind: toml.Texts, Says: "none", Rule: extension,
		Doc: "SASL extensions to send with a token, each `\"NAME=VALUE\"`. Some brokers require them."},
	{Path: "kafka.sasl.region", Kind: toml.Text, Says: "required for aws-msk-iam", Rule: region,
		Doc: "AWS region of the brokers. AWS keys are looked up where AWS's own programs do: environment, shared " +
			"files, web identity, container, machine."},
	{Path: "kafka.sasl.role_arn", Kind: toml.Text, Says: "none", Rule: role,
		Doc: "Role to assume with the AWS keys (AWS STS)."},

	{Path: "state", Kind: toml.Table, Flags: toml.Required | toml.Outside,
		Doc: "What must survive a restart. The directory is as private as the input: it holds exact sums."},
	{Path: "state.dir", Kind: toml.Text, Flags: toml.Required,
		Doc: "Directory of checkpoints, manifests and the ledger. A relative path begins at the folder in which the " +
			"command is run."},
	{Path: "state.key_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File of the master key, written by `streamdp keygen`. Anyone who has it can remove the noise from the " +
			"releases of open epochs."},
	{Path: "state.key_group_readable", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept a key file that its group may read, as mounted secrets often are."},
	{Path: "state.commit_interval", Kind: toml.Span, Def: `"200ms"`, Rule: interval,
		Doc: "Period of durable commits; releases become visible at commits. `\"0s\"` commits at every step: for " +
			"tests, and refused unless every broker is a loopback address."},
	{Path: "state.epoch_secret_retention", Kind: toml.Span, Def: `"0s"`, Rule: lasting,
		Doc: "How long the secret of a closed epoch is kept. Until it is destroyed, anyone who has it and the master " +
			"key can remove the noise from that epoch's releases."},
	{Path: "state.encrypt", Kind: toml.Boolean, Def: `false`,
		Doc: "Encrypt checkpoints and epoch secrets under the master key. A change takes effect at the next start, " +
			"for all files."},
	{Path: "state.archive", Kind: toml.Boolean, Def: `false`,
		Doc: "Keep published releases in the state directory, so that `streamdp republish` can publish them again if " +
			"the output lost them. They are as public as the output. Nothing deletes them."},

	{Path: "http", Kind: toml.Table, Flags: toml.Outside, Doc: "Metrics, status and health."},
	{Path: "http.listen", Kind: toml.Text, Def: `"127.0.0.1:9464"`, Rule: listen, Doc: "Address to listen on."},
	{Path: "http.exposure", Kind: toml.Text, Def: `"operator"`, Words: []string{"operator", "public"},
		Doc: "Who can read the listener. `\"public\"` omits every metric that is an exact function of records."},
	{Path: "http.metrics", Kind: toml.Text, Def: `"task"`, Words: []string{"task", "aggregate"},
		Doc: "`\"task\"`: a series for each task. `\"aggregate\"`: sums and extremes over all tasks, for processes " +
			"with hundreds of tasks; docs/metrics.md lists them. `/api/v1/streams` always shows every task."},
	{Path: "http.hosts", Kind: toml.Texts, Says: "none", Rule: hostName,
		Doc: "Host names, without a port, that requests may use for the listener. An IP address, `localhost`, the " +
			"name in `http.listen` and the names of the certificate are always allowed. Other names are refused " +
			"because a web page can make its own name resolve to this machine (DNS rebinding)."},
	{Path: "http.insecure_listen", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept a listener that other machines can reach without `[http.tls]` and `[http.basic_auth]`: anyone " +
			"who reaches it can read it."},
	{Path: "http.tls", Kind: toml.Table,
		Doc: "TLS of the listener. The files may be replaced while the daemon runs, like those of `[kafka.tls]`."},
	{Path: "http.tls.cert_file", Kind: toml.File, Flags: toml.Required, Doc: "Certificate (PEM), with its chain."},
	{Path: "http.tls.key_file", Kind: toml.File, Flags: toml.Required,
		Doc: "Key of the certificate (PEM). Permissions as for `state.key_file`."},
	{Path: "http.basic_auth", Kind: toml.Table,
		Doc: "Password of the listener. Without TLS it is sent unencrypted."},
	{Path: "http.basic_auth.username", Kind: toml.Text, Flags: toml.Required, Rule: userName, Doc: "User."},
	{Path: "http.basic_auth.password_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},

	{Path: "log", Kind: toml.Table, Flags: toml.Outside, Doc: "Messages on standard error."},
	{Path: "log.level", Kind: toml.Text, Def: `"info"`, Words: []string{"debug", "info", "warn", "error"},
		Doc: "Lowest level that is written."},
	{Path: "log.format", Kind: toml.Text, Def: `"json"`, Words: []string{"json", "text"}, Doc: "Form of a line."},

	{Path: "registry", Kind: toml.Table, Flags: toml.Outside,
		Doc: "The schema registry, from which codecs with schemas get the schema of a record. It speaks Confluent's " +
			"API, as Apicurio (at `/apis/ccompat/v7`), Redpanda and Karapace do too. " +
			"[howto/schema-registry.md](howto/schema-registry.md) explains its use."},
	{Path: "registry.urls", Kind: toml.Texts, Flags: toml.Required, Rule: registryURL,
		Doc: "Addresses of the registry, tried in turn."},
	{Path: "registry.timeout", Kind: toml.Span, Def: `"5s"`,
		Rule: toml.MustBe("\"100ms\" to \"1m\"", lasts(100*time.Millisecond, time.Minute)),
		Doc:  "Time in which the registry must answer a request."},
	{Path: "registry.token_file", Kind: toml.File,
		Doc: "File that holds a bearer token, read again for every request; permissions as for `state.key_file`."},
	{Path: "registry.basic_auth", Kind: toml.Table, Doc: "User and password towards the registry."},
	{Path: "registry.basic_auth.username", Kind: toml.Text, Flags: toml.Required, Rule: userName,
		Doc: "User; for Confluent Cloud the API key."},
	{Path: "registry.basic_auth.password_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},
	{Path: "registry.tls", Kind: toml.Table,
		Doc: "TLS towards a registry at `https`. Without this table the system's authorities are trusted. The files " +
			"may be replaced while the daemon runs, like those of `[kafka.tls]`."},
	{Path: "registry.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that the registry is checked against, instead of the system's."},
	{Path: "registry.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{Path: "registry.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},

	{Path: "trace", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Traces of the daemon's work, sent to an OpenTelemetry collector as OTLP over HTTP in protobuf. Without " +
			"this table nothing is recorded. Spans name streams, partitions, epochs and steps, but no content of " +
			"records. Their times are real, however, and the duration of work depends on records: anyone who reads " +
			"traces must be allowed to see the input. So this table is a fault with `http.exposure = \"public\"`. " +
			"[operations.md](operations.md#traces) says what is sent, and what happens without a collector."},
	{Path: "trace.endpoint", Kind: toml.Text, Flags: toml.Required, Rule: otlpURL,
		Doc: "URL of the receiver. Without a path, `/v1/traces` is added."},
	{Path: "trace.headers_file", Kind: toml.File,
		Doc: "File of headers for each request, such as an authorization, one `Name: value` in each line; " +
			"permissions as for `state.key_file`. They are not sent when the receiver redirects."},
	{Path: "trace.sample", Kind: toml.Number, Def: `1.0`, Rule: share,
		Doc: "Share of traces that are sent. A trace covers one commit with all that it made durable, or one fetch."},
	{Path: "trace.service", Kind: toml.Text, Def: `"streamdp"`, Doc: "Name of the service, `service.name`."},
	{Path: "trace.tls", Kind: toml.Table,
		Doc: "TLS towards the receiver. Without this table an endpoint with `https` is checked against the system's " +
			"authorities."},
	{Path: "trace.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that the receiver is checked against, instead of the system's."},
	{Path: "trace.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{Path: "trace.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},

	{Path: "cluster", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Several instances share the tasks, all with the same configuration and key. The state that must " +
			"survive is in Kafka; `state.dir` holds only the last known lines of the ledgers and the control socket. " +
			"[howto/cluster.md](howto/cluster.md) explains it. Without this table one process runs all tasks, with " +
			"its state in `state.dir`."},
	{Path: "cluster.group", Kind: toml.Text, Flags: toml.Required, Rule: groupName,
		Doc: "Consumer group of the instances. The names of their topics (its name with `.state`, `.ledger`, " +
			"`.control`, `.partials`) and of their transactional ids begin with it."},
	{Path: "cluster.shards", Kind: toml.Whole, Def: `64`, Rule: toml.MustBe("1 to 4096", between(1, 4096)),
		Doc: "Parts into which the tasks are divided. Each has one owner at a time and its own ledger, so at most so " +
			"many instances have work. It never changes."},
	{Path: "cluster.assign", Kind: toml.Text, Def: `"partition"`, Words: []string{"partition", "topic"},
		Doc: "What determines the shard of an input partition: its topic and its number, or its topic alone. All " +
			"partitions of a merged stream must be in one shard, so `merge = true` needs `\"topic\"`. It " +
			"never changes."},
	{Path: "cluster.session_timeout", Kind: toml.Span, Def: `"6s"`,
		Rule: toml.MustBe("\"1s\" to \"5m\"", lasts(time.Second, 5*time.Minute)),
		Doc: "Time without heartbeats after which an instance counts as dead and others take over its shards. " +
			"Brokers accept no less than their `group.min.session.timeout.ms`, 6 s by default."},
	{Path: "cluster.instance", Kind: toml.Text, Says: "the host's name", Rule: instanceName,
		Doc: "Name of this instance in messages, in the status and in the state."},
	{Path: "cluster.advertise", Kind: toml.Text, Says: "the address that it listens on", Rule: broker,
		Doc: "Address at which other machines reach this instance's status page; the pages of all " +
			"instances link to it."},
	{Path: "cluster.allow_unreplicated", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept topics with a single replica, for tests. The loss of one broker's disk then loses the ledgers."},

	{Path: "stream", Kind: toml.Table, Flags: toml.Required, Named: readStreams, Doc: "Streams by name."},
	{Path: "stream.NAME", Kind: toml.Table,
		Doc: "One stream: a topic, its partitions, one mechanism. NAME is 1 to 63 of `a-z`, `0-9`, `_` and `-`."},
	{Path: "stream.NAME.input", Kind: toml.Table, Flags: toml.Required,
		Doc: "Where records come from and how they are read."},
	{Path: "stream.NAME.input.topic", Kind: toml.Text, Flags: toml.Usual | toml.Always, Rule: topic,
		Says: "required without `topics`", Doc: "Topic. The daemon waits for a topic that does not exist yet."},
	{Path: "stream.NAME.input.topics", Kind: toml.Text, Flags: toml.Outside, Def: `""`, Says: "none",
		Doc: "Instead of `topic`: a regular expression (RE2) that matches whole names of topics. Each topic that " +
			"matches, including one created while the daemon runs, becomes a separate stream NAME.TOPIC with its own " +
			"budget, ledger entries and output, as if it had its own table. Never matched are " +
			"topics that this process writes to, those that another table's `topic` names, and names that begin with " +
			"`_` or end in `.dp`. The names of topics are public. " +
			"[howto/topics-by-pattern.md](howto/topics-by-pattern.md) explains it."},
	{Path: "stream.NAME.input.max_topics", Kind: toml.Whole, Flags: toml.Outside, Def: `100`,
		Rule: toml.MustBe("1 to 10000", between(1, 10000)),
		Doc: "Largest number of topics for `topics`. Topics with an epoch come first, then the others by name; " +
			"the rest wait, with a warning and a metric."},
	{Path: "stream.NAME.input.partition", Kind: toml.Wholes, Flags: toml.Always | toml.Every, Def: `0`, Rule: partition,
		Doc: "Partition, or list of them, or `\"all\"`: every partition of the topic, including one added while " +
			"the daemon runs. Each is a separate task with its own epochs; the digest of a task holds its own " +
			"partition only."},
	{Path: "stream.NAME.input.start", Kind: start, Flags: toml.Always, Def: `"earliest"`,
		Doc: "Where the first epoch begins: `\"earliest\"` (start of the log), `\"latest\"` (last stable offset) " +
			"or an offset."},
	{Path: "stream.NAME.input.codec", Kind: toml.Text, Flags: toml.Always, Def: `"json"`,
		Words: []string{"json", "json-array", "csv", "float64", "float32", "avro", "protobuf", "json-schema"},
		Doc: "Format of a record's value: a JSON object, a JSON array of numbers, a line of CSV, packed " +
			"little-endian numbers; or a record with a schema, of Avro, Protobuf or JSON Schema."},
	{Path: "stream.NAME.input.framing", Kind: toml.Text, Def: `"confluent"`, Words: []string{"confluent", "plain"},
		Doc: "Header before a record with a schema. `\"confluent\"`: a byte 0, four bytes with the schema's id in " +
			"the registry and, for Protobuf, the message type. `\"plain\"`: none; `schema_file` is the schema of all " +
			"records."},
	{Path: "stream.NAME.input.subjects", Kind: toml.Texts, Def: `[]`, Rule: subject,
		Says: "`input.topic`, followed by `-value`",
		Doc: "Subjects of the registry that hold the schemas of the records. A record with the id of any other " +
			"schema counts as null."},
	{Path: "stream.NAME.input.schema_file", Kind: toml.File, Flags: toml.Outside, Def: `""`,
		Says: "required with framing `\"plain\"`",
		Doc: "Schema of all records, with framing `\"plain\"`: Avro's JSON, a `.proto` file, or a JSON Schema. It " +
			"is read with the configuration; the SHA-256 of its text is in the digest."},
	{Path: "stream.NAME.input.message", Kind: toml.Text, Def: `""`, Rule: messageName,
		Says: "with framing `\"confluent\"` the message that the record names, with `\"plain\"` the first of the file",
		Doc:  "Protobuf message, as `package.Name`. With framing `\"confluent\"`, other messages count as null."},
	{Path: "stream.NAME.input.columns", Kind: toml.Texts, Flags: toml.Usual | toml.Always,
		Says: "required except for gradients",
		Doc: "The columns, in order. `json` and codecs with a schema: names, or paths such as `a.b[0].c` into " +
			"objects and arrays; a backslash makes `.`, `\\`, `[` or `]` part of a name. `csv`: positions from " +
			"`\"1\"`, unless `path` gives them. Other codecs: labels, one for each number of the record. Each is a " +
			"number of the row, unless it has its own table."},
	{Path: "stream.NAME.input.column", Kind: toml.Table, Named: readColumns,
		Doc: "Columns that are not plain numbers, by name."},
	{Path: "stream.NAME.input.column.COLUMN", Kind: toml.Table,
		Doc: "How one of `input.columns` becomes numbers of the row. COLUMN is its name, in quotes if it has dots " +
			"or brackets. [howto/columns.md](howto/columns.md) has examples. It costs no budget, because rows " +
			"are clipped afterwards."},
	{Path: "stream.NAME.input.column.COLUMN.path", Kind: toml.Text, Says: "the column's name",
		Doc: "Where the value is: a path or, for `csv`, a position. Several columns may read one value. Not for " +
			"codecs without paths."},
	{Path: "stream.NAME.input.column.COLUMN.type", Kind: toml.Text, Def: `"number"`, Words: column.Types,
		Doc: "Type of the value. `\"decimal\"`: a number, or a string with one. `\"bool\"`: true or false, 1 or 0 in " +
			"the row. `\"category\"`: a text, a whole number or a boolean; the row has one number for each " +
			"of a list of them. `\"enum\"`: the number of an enumeration's symbol, for codecs that have " +
			"enumerations. `\"timestamp\"`: a time by RFC 3339 or ISO 8601, one that the schema says is a time, or " +
			"with `unit` a number. A record with a value of another type gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.default", Kind: toml.AnyValue,
		Doc: "Replaces a value that is missing, null or an empty cell: a number, for `\"bool\"` also true or " +
			"false, for categories one of them. The transform applies to it too. Without a default, such a record " +
			"gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.categories", Kind: toml.Texts, Says: "required for `\"category\"`",
		Doc: "The public list of categories. For each of them the row has a number `COLUMN=CATEGORY`: 1 if the " +
			"value is that category, else 0. Never make the list from the data. Also for a `\"timestamp\"` whose " +
			"`take` gives whole numbers."},
	{Path: "stream.NAME.input.column.COLUMN.other", Kind: toml.Boolean, Def: `false`,
		Doc: "The row has one more number, `COLUMN=other`, which is 1 for a value outside the categories. " +
			"Without this number, a record with such a value gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.baseline", Kind: toml.Text, Says: "none",
		Doc: "A category, or `\"other\"`, that has no number: for it all numbers of the list are 0. A regression " +
			"with an intercept needs it, because otherwise the numbers of the list always add up to 1."},
	{Path: "stream.NAME.input.column.COLUMN.take", Kind: toml.Text, Says: "`\"seconds\"`", Words: column.Taking(),
		Doc: "Number that is taken from a time: seconds since 1970 in UTC; minute, hour, weekday (1 is Monday), day " +
			"and month from 1; or sine or cosine of the time as an angle, which goes round once a day (`hour-`), a " +
			"week or a year."},
	{Path: "stream.NAME.input.column.COLUMN.unit", Kind: toml.Text, Says: "none: a number is not a time",
		Words: column.Units, Doc: "Unit of a time that is given as a number since 1970-01-01T00:00Z."},
	{Path: "stream.NAME.input.column.COLUMN.utc_offset", Kind: toml.Text, Says: "`\"+00:00\"`",
		Doc: "Offset of the clock of `take` from UTC, the same all year. A time without an offset is read by " +
			"this clock. Time zones are not supported: their rules change, and a row must not depend on the machine."},
	{Path: "stream.NAME.input.column.COLUMN.transform", Kind: toml.Text, Says: "none", Words: column.Transforms,
		Doc: "Function of the number plus `offset`, before `centre` and `scale`: the natural logarithm of x or 1 + " +
			"x, the square root, or x to the power of `exponent`. If the result is not finite, the record gives no " +
			"row."},
	{Path: "stream.NAME.input.column.COLUMN.exponent", Kind: toml.Number, Says: "required for `\"power\"`",
		Doc: "Exponent of `\"power\"`: -16 to 16, not 0. A negative number has a power only if it is a " +
			"whole number."},
	{Path: "stream.NAME.input.column.COLUMN.offset", Kind: toml.Number, Def: `0`,
		Doc: "Public constant that is added before the transform."},
	{Path: "stream.NAME.input.max_record_bytes", Kind: toml.Whole, Def: `0`, Rule: recordSize,
		Doc: "Size beyond which a record counts as null and its content is not kept: the bytes of key, value and " +
			"headers, plus 40 for each header. 0: 1 MiB, or 32 bytes for each number of a row if that is more; at " +
			"most 1 GiB. Whether a record exceeds it depends on that record alone."},
	{Path: "stream.NAME.input.allow_compacted", Kind: toml.Boolean, Flags: toml.Always, Def: `false`,
		Doc: "Accept a topic that Kafka compacts. A lost state directory then cannot be rebuilt from the log, and " +
			"the guarantee does not cover that one record may remove another."},
	{Path: "stream.NAME.output", Kind: toml.Table, Flags: toml.Outside, Doc: "Where releases go."},
	{Path: "stream.NAME.output.topic", Kind: toml.Text, Rule: topicOfOutput, Says: "`input.topic`, followed by `.dp`",
		Doc: "Topic; not that of another stream, nor an input. With `input.topics` a `*` in it stands for the " +
			"input's topic; then `*.dp` is the default."},
	{Path: "stream.NAME.output.partition", Kind: toml.Whole, Def: `0`, Rule: partition,
		Doc: "Partition of all releases of this stream."},
	{Path: "stream.NAME.output.create", Kind: toml.Boolean, Def: `true`,
		Doc: "Create a missing topic, compacted, with the broker's default replication."},
	{Path: "stream.NAME.output.values", Kind: toml.Texts, Def: `[]`,
		Doc: "Names of the values to publish. Empty: all values of the mechanism."},
	{Path: "stream.NAME.output.encoding", Kind: toml.Text, Def: `"json"`, Words: []string{"json", "base64"},
		Doc: "Format of the numbers: JSON, or base64 of little-endian float64."},
	{Path: "stream.NAME.output.privacy_every", Kind: toml.Whole, Def: `1`, Rule: fromOne,
		Doc: "n: only the releases of step 1 and of every n-th step after it hold the whole privacy block. Others " +
			"have its hash instead, `privacy_sha256`, and are a kilobyte shorter. Above 1 only for `moments` " +
			"and `refit`, which have a release at each step."},
	{Path: "stream.NAME.centre", Kind: toml.Spread, Flags: toml.Always | toml.Found, Def: `0`,
		Says: "`0`, or `\"auto\"` if `moments.clip` or a regression's `clip_x` is",
		Doc: "Number to subtract from each column: a public constant, never computed from the data; or `\"auto\"`, " +
			"possibly for some columns of a list only: it is found privately from the epoch's first records, the " +
			"warm-up."},
	{Path: "stream.NAME.scale", Kind: toml.Spread, Flags: toml.Always | toml.Found, Def: `1`, Rule: divisor,
		Says: "`1`, or `\"auto\"` as for `centre`",
		Doc:  "Number to divide each column by afterwards: a public constant, or `\"auto\"` as for `centre`."},
	{Path: "stream.NAME.warmup", Kind: toml.Whole, Def: `0`, Rule: natural,
		Says: "the larger of 5000 and twice the number that `plan` shows as needed, in whole steps",
		Doc: "Offsets of the warm-up, a multiple of `step` for moments, if `centre`, `scale` or a bound is " +
			"`\"auto\"`. Its records enter noisy histograms and nothing else; the mechanism's steps begin after it."},
	{Path: "stream.NAME.warmup_mode", Kind: toml.Text, Def: `"buffer"`, Words: []string{"buffer", "split"},
		Doc: "`\"buffer\"`: every record of the warm-up takes part in all of its five stages, and stays in memory " +
			"until its end. `\"split\"`: each stage uses different records; nothing is kept, and two to three times " +
			"as many records are needed."},
	{Path: "stream.NAME.step", Kind: length, Flags: toml.Always, Rule: says("at least 1, or at least `\"100ms\"`"),
		Says: "100 for moments, required for adam, only a period for refits, a fault for other mechanisms",
		Doc: "Offsets of one step; or, for moments and refits, a period of the clock such as `\"1m\"`: then a step " +
			"ends at each multiple of it (UTC) and holds the offsets up to then. A step ends with a release. For a " +
			"refit, a step by the clock is its window, and a number of offsets is a fault."},
	{Path: "stream.NAME.step_max", Kind: toml.Whole, Def: stepMaxDefault, Rule: stepMax,
		Doc: "Largest number of offsets in a step by the clock, of all partitions together and equally for each. " +
			"Offsets beyond it fall into later steps. Required for refits, whose memory it bounds; for them at " +
			"most 2147483648."},
	{Path: "stream.NAME.merge", Kind: toml.Boolean, Def: `false`,
		Doc: "Publish one sequence of releases for all partitions together: a step holds `step` offsets of each, the " +
			"sums are added before the noise is drawn, and the budget of every partition is charged. Only for " +
			"moments and refits, with bounds that are not `\"auto\"`."},
	{Path: "stream.NAME.merge_ahead", Kind: toml.Whole, Flags: toml.Outside, Def: `4`, Rule: ahead,
		Doc: "Steps that a partition of a merged stream may be ahead of the slowest; their sums stay in memory, and " +
			"for refits their rows. A refit by the clock that is not merged holds this number of windows ahead of " +
			"the one that is being solved."},
	{Path: "stream.NAME.horizon", Kind: toml.Whole, Flags: toml.Always, Def: `0`, Rule: natural,
		Doc: "Steps of an epoch; 0: unlimited."},
	{Path: "stream.NAME.on_horizon", Kind: toml.Text, Flags: toml.Always, Def: `"halt"`,
		Words: []string{"halt", "rollover", "continue"},
		Doc: "What follows the last step of a horizon: nothing; a new epoch, charged as such; or more steps " +
			"under the same charge, if the factorization is valid for every length. The digest holds only whether it " +
			"is `\"continue\"`."},
	{Path: "stream.NAME.on_gap", Kind: toml.Text, Flags: toml.Outside, Def: `"halt"`, Words: []string{"halt", "null"},
		Doc: "What happens if Kafka deleted records before they were read: the task halts, or counts them as invalid."},
	{Path: "stream.NAME.dead_letter", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Report of the records that gave no row, with reasons. It is not private: its readers must be allowed " +
			"to see the input."},
	{Path: "stream.NAME.dead_letter.mode", Kind: toml.Text, Def: `"off"`, Words: []string{"off", "reference", "full"},
		Doc: "What is written about them: nothing; their position and the reason; or key, value and headers too."},
	{Path: "stream.NAME.dead_letter.topic", Kind: toml.Text, Def: `""`, Rule: topicOrMany,
		Doc: "Topic, required unless the mode is `off`; several streams may share it. It is not created. Partition 0 " +
			"is written. With `input.topics` it may contain a `*`, like `output.topic`."},
	{Path: "stream.NAME.lattice_bits", Kind: toml.Whole, Flags: toml.Always, Def: `24`, Rule: bits,
		Doc: "Records are rounded to a lattice that is finer than clip norm and noise by this number of bits."},

	{Path: "stream.NAME.privacy", Kind: toml.Table, Flags: toml.Required,
		Doc: "The guarantee. One record is the unit."},
	{Path: "stream.NAME.privacy.epsilon", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: positive,
		Doc: "ε that one epoch costs each record it reads, for all its releases together."},
	{Path: "stream.NAME.privacy.delta", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: fraction,
		Doc: "δ that one epoch costs each record it reads, likewise."},
	{Path: "stream.NAME.privacy.adjacency", Kind: toml.Text, Flags: toml.Required | toml.Always,
		Words: []string{"zero-out", "replace"},
		Doc: "In what neighbouring logs differ: in the content of one record, which in the other log is empty " +
			"(`\"zero-out\"`), or arbitrary (`\"replace\"`). Number and offsets of records are public in both."},
	{Path: "stream.NAME.privacy.limit_epsilon", Kind: toml.Number, Flags: toml.Outside, Rule: positive,
		Says: "`epsilon`, enough for one epoch of one stream",
		Doc: "ε that no record of the input partition ever exceeds, over all epochs and all streams that read it; " +
			"at least `epsilon`. All streams that read one topic must state the same limit and adjacency. If one of " +
			"them has a solver with sketches, the first epoch sets a part of the limit aside for them, which covers " +
			"all streams of the topic together; `plan` shows it."},
	{Path: "stream.NAME.privacy.limit_delta", Kind: toml.Number, Flags: toml.Outside, Rule: fraction, Says: "`delta`",
		Doc: "δ of the limit; at least `delta`."},

	{Path: "stream.NAME.user", Kind: toml.Table,
		Doc: "Makes persons, not records, the unit of the guarantee: all records of an epoch with one user key. ε, δ " +
			"and the limit then apply to persons, who pay for every epoch of their population (docs/privacy.md). For " +
			"the mechanisms that docs/mechanisms.md names."},
	{Path: "stream.NAME.user.key", Kind: toml.Text, Flags: toml.Required | toml.Always, Rule: userKey,
		Doc: "Where the user key of a record is: the record's key, a string or integer of a JSON object " +
			"(`field:PATH`, as in `columns`) or a cell of CSV (`field:1`), or a header. A record without a user key " +
			"never counts."},
	{Path: "stream.NAME.user.cap", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: toml.MustBe("1 to 16777215", between(0, persons.MaxCap)),
		Says: "as many as `horizon` and `separation` allow; required without a horizon",
		Doc:  "Largest number of steps in which a person counts."},
	{Path: "stream.NAME.user.separation", Kind: toml.Whole, Flags: toml.Always, Def: `1`,
		Rule: toml.MustBe("1 to 4294967294", between(1, persons.MaxStep)),
		Doc:  "Least distance in steps between two steps in which a person counts; 1 allows consecutive ones."},
	{Path: "stream.NAME.user.per_step", Kind: toml.Whole, Flags: toml.Always, Def: `1`,
		Rule: toml.MustBe("1 to 255", between(1, persons.MaxPerStep)),
		Doc:  "Largest number of a person's records that count in one step."},
	{Path: "stream.NAME.user.period", Kind: toml.Whole, Def: `0`,
		Rule: toml.MustBe("0 to 4294967294", between(0, persons.MaxStep)), Says: "the whole epoch",
		Doc: "Steps of a period. With it the unit of the guarantee is a person's records of one period instead of " +
			"the whole epoch: `cap` and `separation` start again in each period, and a person with records in " +
			"several periods pays for each. The first begins with the epoch. `limit_epsilon` starts again too, in " +
			"each task, once its consecutive epochs have as many steps as a period."},
	{Path: "stream.NAME.user.max_users", Kind: toml.Whole, Flags: toml.Required | toml.Always,
		Rule: toml.MustBe("1 to 2147483648", between(1, persons.MaxUsers)),
		Doc: "Largest number of persons to remember for each partition. If `cap` binds and the table is full, " +
			"records of further persons do not count, and with adjacency `\"zero-out\"` the noise is that of " +
			"`\"replace\"` unless this cannot happen. If only `separation` binds, the table must hold all records of " +
			"that many steps."},
	{Path: "stream.NAME.user.partitioner", Kind: toml.Text, Flags: toml.Always, Def: `"none"`,
		Words: []string{"none", "murmur2"},
		Doc: "With `\"murmur2\"`, for `record-key`, a record counts only if it is in the partition that Java's " +
			"default partitioner assigns to its key, so each person is in one partition. `merge` needs it."},
	{Path: "stream.NAME.user.population", Kind: toml.Text, Flags: toml.Always, Def: `""`, Says: "`input.topic`",
		Doc: "Name of the persons' population. The costs of all its streams, over all topics, are added up for a " +
			"person."},

	{Path: "stream.NAME.moments", Kind: toml.Table,
		Doc: "Mechanism: running means, sums, second moments and covariances. Lengths and weights are in " +
			"scaled units."},
	{Path: "stream.NAME.moments.method", Kind: toml.Text, Flags: toml.Always, Def: `"auto"`,
		Words: []string{"auto", "jme", "ime", "cs", "pp", "pp_debiased", "combined"},
		Doc: "Estimator: joint estimation of both moments (`jme`), independent estimation (`ime`), concatenation " +
			"and split (`cs`), squares of noisy rows (`pp`, and without its bias `pp_debiased`; `step = 1`), or the " +
			"best mix of those with `jme` (`combined`). `\"auto\"` chooses from public numbers between `jme` and, " +
			"for `step = 1`, `pp_debiased` and `combined`; releases state the choice and the errors that decided it."},
	{Path: "stream.NAME.moments.clip", Kind: toml.Number, Flags: toml.Always | toml.Found, Def: `"auto"`,
		Rule: says("positive and finite"),
		Doc: "Bound on a row's Euclidean norm after scaling; longer rows are shortened to it. `\"auto\"`: found in " +
			"the warm-up."},
	{Path: "stream.NAME.moments.workload", Kind: toml.Text, Flags: toml.Always, Def: `"mean"`,
		Words: []string{"mean", "sum", "exponential", "window"},
		Doc: "Which steps a release covers, and with which weights: all of them equally, or with weights that fall " +
			"with age, or the last ones only."},
	{Path: "stream.NAME.moments.decay", Kind: toml.Number, Flags: toml.Always, Rule: says("in (0, 1)"),
		Says: "required for `exponential`, a fault elsewhere", Doc: "Weight of the previous step."},
	{Path: "stream.NAME.moments.window", Kind: toml.Whole, Flags: toml.Always,
		Rule: toml.MustBe("at least 1", atLeast(0)), Says: "required for `window`, a fault elsewhere",
		Doc: "Steps averaged."},
	{Path: "stream.NAME.moments.factorization", Kind: toml.Text, Flags: toml.Always, Def: `"auto"`,
		Words: []string{"auto", "identity", "sqrt", "bsr", "bisr", "banded", "dense", "blt", "phased"},
		Doc:   "How noise is correlated over steps."},
	{Path: "stream.NAME.moments.buffers", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: says("1 to 8, or 0 (chosen)"), Doc: "Buffers of `blt`."},
	{Path: "stream.NAME.moments.bands", Kind: toml.Whole, Def: `16`, Rule: says("1 to 256"),
		Doc: "Bands of `bsr`, `bisr` and `banded` (at most 64)."},
	{Path: "stream.NAME.moments.tune", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: toml.MustBe("at least 1, or 0 (the horizon)", atLeast(0)),
		Doc:  "Number of steps for which the noise of `blt` and `banded` is minimized."},
	{Path: "stream.NAME.moments.normalise", Kind: toml.Boolean, Def: `false`,
		Doc: "Scale the noise of `sqrt`, `bsr`, `bisr`, `banded` or `blt` to the horizon; the epoch then always " +
			"ends there; at most 65536 steps."},
	{Path: "stream.NAME.moments.nu", Kind: toml.Number, Flags: toml.Always, Def: `0`,
		Rule: says("positive and finite, or 0 (chosen)"),
		Doc:  "Weight ν of the second moment: a larger ν means less noise there and more in the mean."},
	{Path: "stream.NAME.moments.weights", Kind: toml.Numbers, Flags: toml.Always, Rule: says("two positive numbers"),
		Says: "the free ν under replace, 1/clip² and 1/clip⁴ under zero-out",
		Doc:  "Weights of the squared errors of mean and second moment; ν minimizes the weighted sum."},
	{Path: "stream.NAME.moments.inflation", Kind: toml.Number, Flags: toml.Always, Rule: says("at least 1"),
		Doc: "Chooses ν by the factor by which the mean's variance may grow. At most one of `nu`, `weights` and " +
			"`inflation`."},
	{Path: "stream.NAME.moments.split", Kind: toml.Number, Def: `0.5`, Rule: fraction,
		Doc: "Share of μ² that `ime` spends on the mean."},
	{Path: "stream.NAME.moments.tau", Kind: toml.Number, Rule: says("positive"),
		Says: "required for `cs`, a fault elsewhere",
		Doc:  "Weight λ of the second moment in `cs`, in scaled units to the power −2."},
	{Path: "stream.NAME.moments.metric", Kind: toml.Text, Def: `"last"`, Words: []string{"last", "sum"},
		Doc: "Error by which `auto` chooses: that of the last step's release, or of all releases up to it. The last " +
			"step is `horizon`, else `tune`, else 10 000."},
	{Path: "stream.NAME.moments.psd_floor", Kind: toml.Off, Def: `"off"`, Rule: natural,
		Doc: "Publish also `covariance_psd`, the covariance with its eigenvalues raised to this number."},
	{Path: "stream.NAME.moments.project", Kind: toml.Boolean, Def: `false`,
		Doc: "Publish also `second_moment_projected`, the nearest matrix that rows within `clip` can have as second " +
			"moment."},
	{Path: "stream.NAME.moments.covariance", Kind: toml.Boolean, Flags: toml.Always, Says: "`true`, `false` for `sum`",
		Doc: "Publish the covariance, which costs no budget. Sums have no covariance."},
	{Path: "stream.NAME.moments.valid_count", Kind: toml.Boolean,
		Says: "`true` with `[stream.NAME.user]`, else `false`",
		Doc: "Publish also `valid_count`, the number of valid records under the workload's weights, with noise; for " +
			"persons the records that count, and `counted_share` and `mean_counted` too."},

	{Path: "stream.NAME.sgd", Kind: toml.Table,
		Doc: "Mechanism: online linear regression of one column on the others. A step has the number of offsets that " +
			"`plan` shows, or `amb.batch` with `amb`, and ends with a release; a search for the clip norm is a step " +
			"without one. Lengths are in scaled units."},
	{Path: "stream.NAME.sgd.target", Kind: toml.Text, Flags: toml.Required, Doc: "Column to predict from all others."},
	{Path: "stream.NAME.sgd.clip_x", Kind: toml.Number, Flags: toml.Found, Def: `"auto"`,
		Rule: says("positive, and in the range 1e-60 to 1e60"),
		Doc: "Bound on the features' Euclidean norm after scaling; longer ones are shortened to it. `\"auto\"`: " +
			"found by the warm-up, so that about one row in a thousand is longer."},
	{Path: "stream.NAME.sgd.clip_y", Kind: toml.Number, Flags: toml.Found, Rule: positive,
		Doc: "Bound on the target's absolute value after scaling, or `\"auto\"`, as for `clip_x`."},
	{Path: "stream.NAME.sgd.intercept", Kind: toml.Boolean, Def: `true`,
		Doc: "Fit a constant. `newton` finds privately where features and target lie, and needs no `centre` for it."},
	{Path: "stream.NAME.sgd.method", Kind: toml.Text, Def: `"newton"`, Words: []string{"newton", "amb"},
		Doc: "Estimator. `\"newton\"` needs only bounds: it learns the features' second moment as it goes. " +
			"`\"amb\"` is a gradient descent that must be given their curvature; its keys are in " +
			"`[stream.NAME.sgd.amb]`."},
	{Path: "stream.NAME.sgd.radius", Kind: toml.Number, Rule: positive, Says: "none; required for `amb`",
		Doc: "Bound on the norm of the coefficients, for `newton` without the intercept: a generous public guess."},
	{Path: "stream.NAME.sgd.intervals", Kind: toml.Boolean, Def: `true`,
		Doc: "Publish standard errors and approximate confidence intervals of `theta_average`, once there are " +
			"enough steps."},
	{Path: "stream.NAME.sgd.level", Kind: toml.Number, Def: `0.95`, Rule: fraction, Doc: "Level of the intervals."},
	{Path: "stream.NAME.sgd.amb", Kind: toml.Table, Flags: toml.Flat, Of: "amb",
		Doc: "Keys of method `amb`. They are a fault with any other method."},
	{Path: "stream.NAME.sgd.amb.clip", Kind: toml.Text, Def: `"track"`,
		Words: []string{"track", "bisect", "scan", "fixed"},
		Doc: "How the gradients' clip norm is found: it follows a quantile by a noisy count in every step; a " +
			"binary search on separate records precedes every step; the search of the paper, which finds far too " +
			"small a norm, precedes every step; or it is fixed at `zeta`."},
	{Path: "stream.NAME.sgd.amb.value", Kind: toml.Text, Def: `"gradnorm"`, Words: []string{"gradnorm", "residual"},
		Doc: "Quantity whose quantile `track` follows: the gradients' norm, or the residual's size times the largest " +
			"norm of the features."},
	{Path: "stream.NAME.sgd.amb.batch", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of a gradient step; 0: chosen so that noise is no larger than sampling error, see " +
			"`streamdp plan`."},
	{Path: "stream.NAME.sgd.amb.stat", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of a search, for `bisect` and `scan`; 0: chosen."},
	{Path: "stream.NAME.sgd.amb.bootstrap", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of the first step of `track`, a search; 0: chosen."},
	{Path: "stream.NAME.sgd.amb.threshold_quantile", Kind: toml.Number, Def: `0.6`, Rule: fraction,
		Doc: "Share of the records that is not clipped. Raise it, with longer batches, if residuals are skewed " +
			"and the intercept matters."},
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
		Says: "required for `fixed`, a fault elsewhere", Doc: "The clip norm."},
	{Path: "stream.NAME.sgd.amb.bands", Kind: toml.Whole, Def: `16`, Rule: toml.MustBe("1 to 256", atLeast(1)),
		Doc: "Bands of the noise's correlation over steps; 1: independent."},
	{Path: "stream.NAME.sgd.amb.eta0", Kind: toml.Number, Def: `0.3`,
		Rule: toml.MustBe("positive and at most 1", positive.OK),
		Doc:  "Step size; 2 is the limit of stability for the given curvature."},
	{Path: "stream.NAME.sgd.amb.curvature", Kind: toml.Number, Def: `0`,
		Rule: toml.MustBe("at most clip_x squared", atLeast(0)),
		Doc: "Bound on the largest eigenvalue of the features' second moment, in scaled units; 0: the largest norm " +
			"squared, which is 10 to 3000 times too large on most data, so that coefficients barely move. A stream " +
			"of moments can estimate it privately."},
	{Path: "stream.NAME.sgd.amb.growth", Kind: toml.Text, Def: `"none"`, Words: []string{"none", "double"},
		Doc: "Growth of batches: none, or doubling whenever the number of steps doubles, for data that " +
			"do not change."},
	{Path: "stream.NAME.sgd.amb.average", Kind: toml.Text, Def: `"tail"`, Words: []string{"tail", "smooth"},
		Doc: "`theta_average` is the mean of the last iterates, or a mean with weights that fall with age, which " +
			"needs less memory."},
	{Path: "stream.NAME.sgd.amb.tail", Kind: toml.Number, Def: `0.25`, Rule: fraction,
		Doc: "Largest share of the iterates that `tail` leaves out."},
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
		Doc:  "Bound on the target's absolute value after scaling, or `\"auto\"`, as for `clip_x`."},
	{Path: "stream.NAME.refit.intercept", Kind: toml.Boolean, Def: `true`,
		Doc: "Fit a constant. `newton` finds privately where features and target lie, and needs no `centre` for it; " +
			"other methods treat it as one more feature, of value clip_x."},
	{Path: "stream.NAME.refit.window", Kind: toml.Whole, Rule: toml.MustBe("1 to 2147483648", atLeast(0)),
		Says: "required, but a fault if `step` is by the clock",
		Doc: "Offsets of a window. A record belongs to at most one window, and pays for that one. If the stream's " +
			"`step` is a period of the clock, a window is such a step."},
	{Path: "stream.NAME.refit.stride", Kind: toml.Whole, Rule: says("at least `window`"), Says: "`window`",
		Doc: "Offsets from one window's start to the next. Records between windows are left out."},
	{Path: "stream.NAME.refit.solver", Kind: toml.Text, Def: `"newton"`,
		Words: []string{"newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd", "dp-gd-residual"},
		Doc: "Solver. `\"newton\"` is the most accurate; the others are methods of the literature, for comparison " +
			"or for few passes over a window. `\"linmix\"`, and `\"ihm\"` with a radius, keep no rows."},
	{Path: "stream.NAME.refit.accounting", Kind: toml.Text, Words: []string{"exact", "rdp", "analytic", "paper"},
		Says: "`\"exact\"`, `\"rdp\"` for `fast-ihm`",
		Doc: "How noise follows from ε and δ: by the exact privacy curve of all releases; by its Rényi curve; split " +
			"among releases, for `adassp`; or as in the method's paper."},
	{Path: "stream.NAME.refit.share", Kind: toml.Number, Def: `0.2`, Rule: fraction,
		Doc: "Share of the budget for sketches, in `ihm` and `fast-ihm`. Raise it if the signal is strong."},
	{Path: "stream.NAME.refit.rows", Kind: toml.Whole, Def: `0`, Rule: natural, Doc: "Rows of a sketch; 0: chosen."},
	{Path: "stream.NAME.refit.iterations", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Iterations of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: chosen."},
	{Path: "stream.NAME.refit.eigen_test", Kind: toml.Boolean, Def: `false`,
		Doc: "Spend budget on the smallest eigenvalue, for `ihm` and `adassp`: less noise if windows have " +
			"variance in every direction."},
	{Path: "stream.NAME.refit.debias", Kind: toml.Boolean, Def: `false`,
		Doc: "Correct the length of `ihm`'s steps; with `eigen_test` only while a sketch has no noise."},
	{Path: "stream.NAME.refit.pool", Kind: toml.Boolean, Def: `false`,
		Doc: "Let an iteration of `ihm` use the sketches of earlier ones too."},
	{Path: "stream.NAME.refit.residual_clip", Kind: toml.Number, Def: `0`, Rule: natural,
		Doc: "Bound on residuals of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: `clip_y`."},
	{Path: "stream.NAME.refit.transforms", Kind: toml.Whole, Def: `1`, Rule: says("1 or `iterations`"),
		Doc: "Number of fast transforms in `fast-ihm`."},
	{Path: "stream.NAME.refit.ratio", Kind: toml.Number, Def: `4`, Rule: positive,
		Doc: "Rows of `fast-ihm`'s transform, in units of the number of features, or of a logarithm if that is more."},
	{Path: "stream.NAME.refit.radius", Kind: toml.Number, Def: `0`, Rule: natural,
		Doc: "Bound on the coefficients' norm, in units of clip_y over the features' bound with their constant, for " +
			"`ihm`, which then needs no rows, and `dp-gd`; 0: none."},

	{Path: "stream.NAME.adam", Kind: toml.Table,
		Doc: "Mechanism: steps of the Adam optimiser, from gradients or from examples of a model. A step divides by " +
			"`step`, whatever number of records it holds."},
	{Path: "stream.NAME.adam.mode", Kind: toml.Text, Def: `"gradients"`, Words: []string{"gradients", "model"},
		Doc: "Records are gradients, `dim` numbers each in `float32`, `float64` or `json-array`, without " +
			"`input.columns`, `centre` and `scale`; or rows of features and a target, from which the daemon computes " +
			"the gradient of `model`."},
	{Path: "stream.NAME.adam.method", Kind: toml.Text, Def: `"pp_debiased"`,
		Words: []string{"pp_debiased", "pp", "jme", "jme_per_example", "jme_batch", "joint_clip", "momentum"},
		Doc: "Source of the second moment: the square of the noisy mean, minus the noise's share (`pp_debiased`), " +
			"or with it (`pp`); squares with their own noise: of one gradient (`jme`, step = 1), of every gradient " +
			"(`jme_per_example`) or of their mean (`jme_batch`); both clipped together (`joint_clip`). " +
			"`momentum` uses no second moment."},
	{Path: "stream.NAME.adam.clip", Kind: toml.Number, Flags: toml.Required, Rule: says("positive and finite"),
		Doc: "Bound on a gradient's Euclidean norm; longer ones are shortened to it. If many are, " +
			"the optimum is a different one: parameters of a logistic regression come out too large."},
	{Path: "stream.NAME.adam.mean_clip", Kind: toml.Number, Def: `0`, Rule: says("less than `clip`"),
		Doc: "Bound on the norm of a step's mean, for `jme_batch`; 0: none."},
	{Path: "stream.NAME.adam.nu", Kind: toml.Number, Def: `0`, Rule: says("positive and finite, or 0 (chosen)"),
		Doc: "Weight ν of the second moment in the methods `jme…`: a larger ν means less noise there and more " +
			"in the first moment."},
	{Path: "stream.NAME.adam.tau", Kind: toml.Number, Rule: says("positive and finite"),
		Says: "required for `joint_clip`, a fault elsewhere",
		Doc:  "Weight of the squares in the joint norm."},
	{Path: "stream.NAME.adam.beta1", Kind: toml.Number, Def: `0.9`, Rule: says("in (0, 1)"),
		Doc: "Weight of the previous step in the first moment."},
	{Path: "stream.NAME.adam.beta2", Kind: toml.Number, Def: `0.999`, Rule: says("in (0, 1)"),
		Doc: "Weight of the previous step in the second moment."},
	{Path: "stream.NAME.adam.rate", Kind: toml.Number, Flags: toml.Required, Rule: says("positive and finite"),
		Doc: "Learning rate. The guarantee does not cover choosing it by trials on the same records."},
	{Path: "stream.NAME.adam.schedule", Kind: toml.Text, Def: `"constant"`,
		Words: []string{"constant", "inverse-sqrt", "cosine"},
		Doc:   "How the learning rate falls: not at all, with the root of the step, or to 0 at the horizon."},
	{Path: "stream.NAME.adam.eps", Kind: toml.Number, Def: `1e-8`, Rule: says("positive and finite"),
		Doc: "Added to the root of the second moment."},
	{Path: "stream.NAME.adam.v_floor", Kind: toml.Number, Def: `0`, Rule: says("positive, or 0 (chosen)"),
		Doc: "Lower bound of the second moment; 0: the standard deviation of its noise."},
	{Path: "stream.NAME.adam.negative", Kind: toml.Text, Def: `"floor"`, Words: []string{"floor", "zero", "abs"},
		Doc: "Replacement for a second moment that noise made negative: `v_floor`; 0, which needs `update_clip`; or " +
			"its absolute value."},
	{Path: "stream.NAME.adam.update_clip", Kind: toml.Number, Def: `0`, Rule: says("positive, or 0 (none)"),
		Doc: "Bound on the Euclidean norm of an update, before the learning rate."},
	{Path: "stream.NAME.adam.weight_decay", Kind: toml.Number, Def: `0`, Rule: says("at least 0"),
		Doc: "In every step, parameters shrink by this share times the learning rate."},
	{Path: "stream.NAME.adam.factorization", Kind: toml.Text, Def: `"identity"`,
		Words: []string{"identity", "blt", "sqrt"},
		Doc: "How noise is correlated over steps. Squaring the mean spoils the correlation: with `pp` and " +
			"`pp_debiased` only `identity` keeps the second moment accurate."},
	{Path: "stream.NAME.adam.dim", Kind: toml.Whole, Rule: says("at least 1"),
		Says: "required for `gradients`, a fault elsewhere", Doc: "Number of parameters."},
	{Path: "stream.NAME.adam.step_header", Kind: toml.Text, Def: `"model-step"`,
		Rule: toml.MustBe("a name", func(v any) bool { return v != "" }),
		Doc: "Record header of mode `gradients`. It holds, in decimal, the `model_step` of the parameters at which " +
			"the gradient was taken, 0 for the initial ones."},
	{Path: "stream.NAME.adam.max_staleness", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Steps by which these parameters may be behind the newest ones. A gradient of older or of future ones " +
			"counts as zero."},
	{Path: "stream.NAME.adam.release", Kind: toml.Text, Def: `"parameters"`, Words: []string{"parameters", "update"},
		Doc: "What is published: the parameters after the step, or the change that the step makes."},
	{Path: "stream.NAME.adam.initial_file", Kind: toml.File, Flags: toml.Outside,
		Doc: "File of public initial parameters, packed little-endian float64; read when an epoch opens that has no " +
			"predecessor. A fault if centre or scale is `\"auto\"`. Without it parameters begin at 0, those of `mlp` " +
			"at small fixed values."},
	{Path: "stream.NAME.adam.model", Kind: toml.Table, Doc: "The model of mode `model`."},
	{Path: "stream.NAME.adam.model.loss", Kind: toml.Text, Flags: toml.Required,
		Words: []string{"linear", "logistic", "softmax", "mlp"},
		Doc: "Linear, logistic (class 1 is a target above 0 in scaled units) and softmax regression (targets are " +
			"classes from 0 on, after centre and scale; another target makes a record invalid), or a network with " +
			"one hidden layer of tanh units."},
	{Path: "stream.NAME.adam.model.target", Kind: toml.Text, Flags: toml.Required,
		Doc: "Column to predict; the others are features."},
	{Path: "stream.NAME.adam.model.classes", Kind: toml.Whole, Rule: says("at least 2"),
		Says: "required for `softmax`; 0 makes `mlp` predict a number", Doc: "Number of classes."},
	{Path: "stream.NAME.adam.model.hidden", Kind: toml.Whole, Rule: says("at least 1"),
		Says: "required for `mlp`, a fault elsewhere", Doc: "Number of hidden units."},
}

var (
	natural = toml.MustBe("at least 0", atLeast(0))
	fromOne = toml.MustBe("at least 1", atLeast(1))
	stepMax = toml.MustBe("1 to 1099511627776", between(1, 1<<40))
	// recordSize accepts a size that a reader of package kafka accepts, or 0 for the default.
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

// says describes a rule that the mechanism's package checks; text is for the reference.
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

// between is a rule for integers from least to most, both inclusive.
func between(least, most int64) func(any) bool {
	return func(v any) bool { n, ok := v.(int64); return ok && n >= least && n <= most }
}

// lasts is a rule for durations from least to most, both inclusive.
func lasts(least, most time.Duration) func(any) bool {
	return func(v any) bool { d, ok := v.(time.Duration); return ok && d >= least && d <= most }
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

// former are keys of earlier versions that accepted only their default and have no effect.
var former = []string{"http.pprof"}

// root is the schema as a tree.
var root = sync.OnceValue(func() *toml.Node { return toml.New(schema, former...) })
