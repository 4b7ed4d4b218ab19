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

// schema has a row for every key, in the order of the reference. Decoding, the search for
// unknown keys, the digest and docs/config.md all use it. NAME stands for the name of a stream,
// COLUMN for that of a column.
//
// The canonical form of a stream's table is in the digest. toml.Outside: not in the digest; may
// change while an epoch is open. toml.Always: all keys of a stream in the first version have this
// flag or toml.Outside. A key of a later version has neither: it enters the digest only when it
// differs from its default. So an upgrade alone ends no epoch. Never give toml.Always to a new
// key, except in a table of a later version that is in the digest as a whole, or not at all.
//
// toml.Usual: required, unless the mechanism has no use for it; validate knows which mechanisms
// have none. toml.Found: a warm-up finds the number that is "auto".
var schema = []toml.Row{
	{Path: "kafka", Kind: toml.Table, Flags: toml.Required | toml.Outside, Doc: "The Kafka cluster."},
	{Path: "kafka.brokers", Kind: toml.Texts, Flags: toml.Required, Rule: broker,
		Doc: "Brokers from which the cluster is found."},
	{Path: "kafka.client_id", Kind: toml.Text, Def: `"streamdp"`,
		Doc: "Name of this client in the brokers' logs and quotas."},
	{Path: "kafka.boundary_topic", Kind: toml.Text, Def: `""`, Rule: topicOrNone,
		Doc: "Topic that holds the boundaries of steps by the clock (`step = \"1m\"`), which need it. It has one " +
			"partition and is not compacted; where it is missing it is made so, with unlimited retention. Several " +
			"streams, and copies of a state directory, share it."},
	{Path: "kafka.control_topic", Kind: toml.Text, Def: `""`, Rule: topicOrNone,
		Doc: "Topic that mirrors the ledger and in which an epoch is claimed before its first noise. Of copies of a " +
			"state directory, and of several that run one stream, it lets one open epochs, and a state directory " +
			"that is an old copy does not start. All daemons that may read the same input share it. It has one " +
			"partition and keeps everything; where it is missing it is made so."},
	{Path: "kafka.group", Kind: toml.Text, Def: `""`, Rule: groupOrNone,
		Doc: "Consumer group to which it is committed how far the tasks have read, every 5 seconds where that " +
			"changed, for tools that show the lag of consumer groups. The daemon never reads these offsets: nothing " +
			"depends on them. No consumer may be a member of the group, and no other daemon share it where both read " +
			"one topic. With `[cluster]` it is another group than `cluster.group`."},
	{Path: "kafka.fetch_memory", Kind: toml.Whole, Def: `268435456`, Rule: fetchMemory,
		Doc: "Bytes of memory that all tasks together have for answers of brokers and for the records and rows in " +
			"them, not counting what decompression needs. Half is divided among the tasks, the other half lent; a " +
			"task that gets nothing works in its share, so no task waits for another one. One that starts while the " +
			"others hold everything gets a part of its share beyond the bound. A share is at least 80 KiB. A batch " +
			"or record larger than its task's share is held all the same."},
	{Path: "kafka.tls", Kind: toml.Table,
		Doc: "TLS towards the brokers. The table alone, `[kafka.tls]`, trusts the system's authorities. The files " +
			"may be replaced while the daemon runs: it reads them again every 10 seconds, new connections use them, " +
			"and what cannot be used is not taken, with a warning."},
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
	{Path: "kafka.sasl.token_url", Kind: toml.Text, Says: "required for oauthbearer, or `token_file`", Rule: tokenURL,
		Doc: "Token endpoint of an OAuth server, from which tokens come by client credentials. A new one is asked " +
			"for when three quarters of the old one's life have passed."},
	{Path: "kafka.sasl.token_ca_file", Kind: toml.File, Says: "the system's",
		Doc: "Certificates (PEM) of the authorities that the token endpoint is checked against."},
	{Path: "kafka.sasl.client_id", Kind: toml.Text, Says: "required with `token_url`",
		Doc: "Name of this client to the OAuth server."},
	{Path: "kafka.sasl.client_secret_file", Kind: toml.File, Says: "required with `token_url`",
		Doc: "File that holds the client's secret, and at most one newline; permissions as for `state.key_file`. It " +
			"is read for each request, so it may be replaced."},
	{Path: "kafka.sasl.scopes", Kind: toml.Texts, Says: "none", Rule: scope, Doc: "Scopes that tokens are asked for."},
	{Path: "kafka.sasl.audience", Kind: toml.Text, Says: "none",
		Doc: "Audience that tokens are asked for, which some OAuth servers want."},
	{Path: "kafka.sasl.token_file", Kind: toml.File, Says: "required for oauthbearer, or `token_url`",
		Doc: "File that another program keeps filled with a token, in one line; permissions as for `state.key_file`. " +
			"It is read each time that a token is shown."},
	{Path: "kafka.sasl.extensions", Kind: toml.Texts, Says: "none", Rule: extension,
		Doc: "SASL extensions that are sent with a token, each `\"NAME=VALUE\"`, as some brokers want them."},
	{Path: "kafka.sasl.region", Kind: toml.Text, Says: "required for aws-msk-iam", Rule: region,
		Doc: "AWS region of the brokers. The keys are found as AWS's programs find them: environment, shared files, " +
			"web identity, container, machine."},
	{Path: "kafka.sasl.role_arn", Kind: toml.Text, Says: "none", Rule: role,
		Doc: "Role to assume with these keys (AWS STS)."},

	{Path: "state", Kind: toml.Table, Flags: toml.Required | toml.Outside,
		Doc: "What must survive a restart. The directory is as private as the input: it holds exact sums."},
	{Path: "state.dir", Kind: toml.Text, Flags: toml.Required,
		Doc: "Directory of checkpoints, manifests and the ledger. A relative path begins at the folder in which the " +
			"command is run."},
	{Path: "state.key_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File of the master key, written by `streamdp keygen`. Whoever holds it can take the noise off the " +
			"releases of open epochs."},
	{Path: "state.key_group_readable", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept a key file that its group may read, as mounted secrets often are."},
	{Path: "state.commit_interval", Kind: toml.Span, Def: `"200ms"`, Rule: interval,
		Doc: "Period of durable commits; releases become visible at commits. `\"0s\"` commits at every step: for " +
			"tests, and refused unless every broker is a loopback address."},
	{Path: "state.epoch_secret_retention", Kind: toml.Span, Def: `"0s"`, Rule: lasting,
		Doc: "How long the secret of a closed epoch is kept: until it is destroyed, whoever holds it and the master " +
			"key can take the noise off that epoch's releases."},
	{Path: "state.encrypt", Kind: toml.Boolean, Def: `false`,
		Doc: "Encrypt checkpoints and epoch secrets under the master key. A change takes effect at the next start, " +
			"for all files."},
	{Path: "state.archive", Kind: toml.Boolean, Def: `false`,
		Doc: "Keep published releases in the state directory, so that `streamdp republish` can publish them again " +
			"where the output lost them. They are as public as the output; nothing deletes them."},

	{Path: "http", Kind: toml.Table, Flags: toml.Outside, Doc: "Metrics, status and health."},
	{Path: "http.listen", Kind: toml.Text, Def: `"127.0.0.1:9464"`, Rule: listen, Doc: "Address to listen on."},
	{Path: "http.exposure", Kind: toml.Text, Def: `"operator"`, Words: []string{"operator", "public"},
		Doc: "Who can read it. `\"public\"` leaves out every metric that is an exact function of records."},
	{Path: "http.metrics", Kind: toml.Text, Def: `"task"`, Words: []string{"task", "aggregate"},
		Doc: "Series of each task or, with `\"aggregate\"`, sums and extremes over all tasks, for processes with " +
			"hundreds of them; docs/metrics.md says which. `/api/v1/streams` has every task in any case."},
	{Path: "http.hosts", Kind: toml.Texts, Says: "none", Rule: hostName,
		Doc: "Names, without a port, by which requests may call the listener. An IP address, `localhost`, the name " +
			"in `http.listen` and the names of the certificate may always. Any other name is refused, because a web " +
			"page can give its own name this machine's address."},
	{Path: "http.insecure_listen", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept a listener beyond this machine with neither `[http.tls]` nor `[http.basic_auth]`: whoever " +
			"reaches it can read it."},
	{Path: "http.tls", Kind: toml.Table,
		Doc: "TLS of the listener. The files may be replaced while the daemon runs, as those of `[kafka.tls]`."},
	{Path: "http.tls.cert_file", Kind: toml.File, Flags: toml.Required, Doc: "Certificate (PEM), with its chain."},
	{Path: "http.tls.key_file", Kind: toml.File, Flags: toml.Required,
		Doc: "Key of the certificate (PEM). Permissions as for `state.key_file`."},
	{Path: "http.basic_auth", Kind: toml.Table,
		Doc: "Password of the listener. Without TLS it crosses the network in the clear."},
	{Path: "http.basic_auth.username", Kind: toml.Text, Flags: toml.Required, Rule: userName, Doc: "User."},
	{Path: "http.basic_auth.password_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},

	{Path: "log", Kind: toml.Table, Flags: toml.Outside, Doc: "Messages on standard error."},
	{Path: "log.level", Kind: toml.Text, Def: `"info"`, Words: []string{"debug", "info", "warn", "error"},
		Doc: "Least level written."},
	{Path: "log.format", Kind: toml.Text, Def: `"json"`, Words: []string{"json", "text"}, Doc: "Form of a line."},

	{Path: "registry", Kind: toml.Table, Flags: toml.Outside,
		Doc: "The schema registry, in which codecs with schemas look up how a record was written: Confluent's API, " +
			"which Apicurio (at `/apis/ccompat/v7`), Redpanda and Karapace have too. " +
			"[howto/schema-registry.md](howto/schema-registry.md) says how."},
	{Path: "registry.urls", Kind: toml.Texts, Flags: toml.Required, Rule: registryURL,
		Doc: "Addresses of the registry, tried in turn."},
	{Path: "registry.timeout", Kind: toml.Span, Def: `"5s"`,
		Rule: toml.MustBe("\"100ms\" to \"1m\"", lasts(100*time.Millisecond, time.Minute)),
		Doc:  "Time in which the registry must answer a request."},
	{Path: "registry.token_file", Kind: toml.File,
		Doc: "File that holds a bearer token, read again for every request; permissions as for `state.key_file`."},
	{Path: "registry.basic_auth", Kind: toml.Table, Doc: "User and password towards the registry."},
	{Path: "registry.basic_auth.username", Kind: toml.Text, Flags: toml.Required, Rule: userName,
		Doc: "User; of Confluent Cloud the API key."},
	{Path: "registry.basic_auth.password_file", Kind: toml.File, Flags: toml.Required,
		Doc: "File that holds the password, and at most one newline; permissions as for `state.key_file`."},
	{Path: "registry.tls", Kind: toml.Table,
		Doc: "TLS towards a registry at `https`. Without this table the system's authorities are trusted. The files " +
			"may be replaced while the daemon runs, as those of `[kafka.tls]`."},
	{Path: "registry.tls.ca_file", Kind: toml.File,
		Doc: "Certificates (PEM) of the authorities that the registry is checked against, instead of the system's."},
	{Path: "registry.tls.cert_file", Kind: toml.File, Doc: "Certificate (PEM) of this client; needs `key_file` too."},
	{Path: "registry.tls.key_file", Kind: toml.File,
		Doc: "Key of that certificate (PEM); needs `cert_file` too. Permissions as for `state.key_file`."},

	{Path: "trace", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Traces of what the daemon does, for a collector of OpenTelemetry: OTLP over HTTP, in protobuf. Without " +
			"this table nothing is recorded. Spans name streams, partitions, epochs and steps, and nothing that is " +
			"in records. But their times are real ones, and how long work takes depends on records: whoever reads " +
			"traces must be allowed to see the input. So the table is a fault with `http.exposure = \"public\"`. " +
			"[operations.md](operations.md#traces) says what is sent, and what happens without a collector."},
	{Path: "trace.endpoint", Kind: toml.Text, Flags: toml.Required, Rule: otlpURL,
		Doc: "URL of the receiver. Without a path it is that of OTLP, `/v1/traces`."},
	{Path: "trace.headers_file", Kind: toml.File,
		Doc: "File of headers for each request, `Name: value` in each line, such as those that authorize it; " +
			"permissions as for `state.key_file`. They are never sent on when the receiver redirects."},
	{Path: "trace.sample", Kind: toml.Number, Def: `1.0`, Rule: share,
		Doc: "Share of traces that are sent: all that one commit made durable, or one fetch."},
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
		Doc: "Several instances share the tasks, with one configuration and one key each; what must survive is in " +
			"Kafka, and `state.dir` holds only what each knows of the ledgers' last lines, and its control socket. " +
			"[howto/cluster.md](howto/cluster.md) says how. Without this table one process runs all tasks, with its " +
			"state in `state.dir`."},
	{Path: "cluster.group", Kind: toml.Text, Flags: toml.Required, Rule: groupName,
		Doc: "Consumer group of the instances. It also begins the names of their topics (`.state`, `.ledger`, " +
			"`.control`, `.partials`) and of their transactional ids."},
	{Path: "cluster.shards", Kind: toml.Whole, Def: `64`, Rule: toml.MustBe("1 to 4096", between(1, 4096)),
		Doc: "Parts into which the tasks are divided. Each has one owner at a time, and a ledger of its own. As many " +
			"instances can have work. It never changes."},
	{Path: "cluster.assign", Kind: toml.Text, Def: `"partition"`, Words: []string{"partition", "topic"},
		Doc: "What decides the shard of an input partition: its topic and its number, or its topic alone. All " +
			"partitions of a merged stream must be in one shard, so `merge = true` needs `\"topic\"`. It " +
			"never changes."},
	{Path: "cluster.session_timeout", Kind: toml.Span, Def: `"6s"`,
		Rule: toml.MustBe("\"1s\" to \"5m\"", lasts(time.Second, 5*time.Minute)),
		Doc: "Silence after which an instance counts as dead and others take over its shards. Brokers accept no " +
			"less than their `group.min.session.timeout.ms`, 6 s by default."},
	{Path: "cluster.instance", Kind: toml.Text, Says: "the host's name", Rule: instanceName,
		Doc: "Name of this instance in messages, in the status and in the state."},
	{Path: "cluster.advertise", Kind: toml.Text, Says: "the address that it listens on", Rule: broker,
		Doc: "Address at which other machines reach this instance's status page; the pages of all " +
			"instances link to it."},
	{Path: "cluster.allow_unreplicated", Kind: toml.Boolean, Def: `false`,
		Doc: "Accept topics with one replica: for tests. The loss of one broker's disk is then the loss of ledgers."},

	{Path: "stream", Kind: toml.Table, Flags: toml.Required, Named: readStreams, Doc: "Streams by name."},
	{Path: "stream.NAME", Kind: toml.Table,
		Doc: "One stream: a topic, its partitions, one mechanism. NAME is 1 to 63 of `a-z`, `0-9`, `_` and `-`."},
	{Path: "stream.NAME.input", Kind: toml.Table, Flags: toml.Required,
		Doc: "Where records come from and how they are read."},
	{Path: "stream.NAME.input.topic", Kind: toml.Text, Flags: toml.Usual | toml.Always, Rule: topic,
		Says: "required, but with `topics`", Doc: "Topic. A missing one is waited for."},
	{Path: "stream.NAME.input.topics", Kind: toml.Text, Flags: toml.Outside, Def: `""`, Says: "none",
		Doc: "Instead of `topic`, a regular expression (RE2) that matches whole names of topics: each topic that " +
			"matches, also one that is made while the daemon runs, is a stream NAME.TOPIC of its own, with a budget, " +
			"a ledger's entries and an output of its own, as if a table had been written for it. Never matched are " +
			"topics that this process writes to, those that another table's `topic` names, and names that begin with " +
			"`_` or end in `.dp`. The names of topics are public. " +
			"[howto/topics-by-pattern.md](howto/topics-by-pattern.md) says how."},
	{Path: "stream.NAME.input.max_topics", Kind: toml.Whole, Flags: toml.Outside, Def: `100`,
		Rule: toml.MustBe("1 to 10000", between(1, 10000)),
		Doc: "How many topics `topics` takes at most. Those that have an epoch come first, then the others by name; " +
			"the rest wait, with a warning and a metric."},
	{Path: "stream.NAME.input.partition", Kind: toml.Wholes, Flags: toml.Always | toml.Every, Def: `0`, Rule: partition,
		Doc: "Partition, or list of them, or `\"all\"`: every partition of the topic, also one that is added while " +
			"the daemon runs. Each is a task of its own, with its own epochs; the digest of a task holds its own " +
			"partition only."},
	{Path: "stream.NAME.input.start", Kind: start, Flags: toml.Always, Def: `"earliest"`,
		Doc: "Where the first epoch begins: `\"earliest\"` (start of the log), `\"latest\"` (last stable offset) " +
			"or an offset."},
	{Path: "stream.NAME.input.codec", Kind: toml.Text, Flags: toml.Always, Def: `"json"`,
		Words: []string{"json", "json-array", "csv", "float64", "float32", "avro", "protobuf", "json-schema"},
		Doc: "Form of a record's value: a JSON object, a JSON array of numbers, a line of CSV, packed " +
			"little-endian numbers; or a record with a schema, of Avro, Protobuf or JSON Schema."},
	{Path: "stream.NAME.input.framing", Kind: toml.Text, Def: `"confluent"`, Words: []string{"confluent", "plain"},
		Doc: "What stands before a record with a schema: a byte 0, the four bytes of its schema's id in the registry " +
			"and, of Protobuf, which message it is; or nothing, and `schema_file` is the schema of all records."},
	{Path: "stream.NAME.input.subjects", Kind: toml.Texts, Def: `[]`, Rule: subject,
		Says: "`input.topic`, followed by `-value`",
		Doc: "Subjects of the registry that have the schemas of the records. A record with the id of another " +
			"schema is null."},
	{Path: "stream.NAME.input.schema_file", Kind: toml.File, Flags: toml.Outside, Def: `""`,
		Says: "required with framing `\"plain\"`",
		Doc: "Schema of all records, with framing `\"plain\"`: Avro's JSON, a `.proto` file, or a JSON Schema. It " +
			"is read with the configuration; the SHA-256 of its text is in the digest."},
	{Path: "stream.NAME.input.message", Kind: toml.Text, Def: `""`, Rule: messageName,
		Says: "with framing `\"confluent\"` the message that the record names, with `\"plain\"` the first of the file",
		Doc:  "Protobuf message, as `package.Name`. With framing `\"confluent\"` records of any other are null."},
	{Path: "stream.NAME.input.columns", Kind: toml.Texts, Flags: toml.Usual | toml.Always,
		Says: "required, but for gradients",
		Doc: "The columns, in order. `json` and codecs with a schema: names, or paths `a.b[0].c` to what is inside " +
			"objects and arrays; a backslash makes `.`, `\\`, `[` or `]` part of a name. `csv`: positions from " +
			"`\"1\"`, unless `path` has them. Elsewhere labels, one for each number of the record. Each is a number " +
			"of the row, unless it has a table of its own."},
	{Path: "stream.NAME.input.column", Kind: toml.Table, Named: readColumns,
		Doc: "Columns that are not plainly numbers, by name."},
	{Path: "stream.NAME.input.column.COLUMN", Kind: toml.Table,
		Doc: "What the row's numbers are of one of `input.columns`. COLUMN is its name, in quotes where it has dots " +
			"or brackets. [howto/columns.md](howto/columns.md) shows what it is for. None of it costs budget: rows " +
			"are clipped after it."},
	{Path: "stream.NAME.input.column.COLUMN.path", Kind: toml.Text, Says: "the column's name",
		Doc: "Where the value is: a path or, for `csv`, a position. Several columns may read one value. Not for " +
			"codecs without paths."},
	{Path: "stream.NAME.input.column.COLUMN.type", Kind: toml.Text, Def: `"number"`, Words: column.Types,
		Doc: "What the value is. `\"decimal\"`: a number, also one in a string. `\"bool\"`: true or false, 1 or 0 of " +
			"the row. `\"category\"`: a text, a whole number or a boolean, of which the row has one number for each " +
			"of a list. `\"enum\"`: the number of an enumeration's symbol, for codecs that have enumerations. " +
			"`\"timestamp\"`: a time by RFC 3339 or ISO 8601, one that the schema says is a time, or with `unit` a " +
			"number. A value of another type gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.default", Kind: toml.AnyValue,
		Doc: "What stands for a value that is missing, null or an empty cell: a number, for `\"bool\"` also true or " +
			"false, for categories one of them. It has the transform too. Without it, such a record gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.categories", Kind: toml.Texts, Says: "required for `\"category\"`",
		Doc: "The public list of categories. For each the row has a number, called `COLUMN=CATEGORY`: 1 where the " +
			"value is that category, else 0. Never make the list from the data. Also for a `\"timestamp\"` whose " +
			"`take` gives whole numbers."},
	{Path: "stream.NAME.input.column.COLUMN.other", Kind: toml.Boolean, Def: `false`,
		Doc: "The row has one more number, `COLUMN=other`, which is 1 for a value that is none of the categories. " +
			"Without it, such a record gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.baseline", Kind: toml.Text, Says: "none",
		Doc: "A category, or `\"other\"`, that has no number of its own: all are 0. A regression with an intercept " +
			"needs it, because all numbers of a list add up to 1."},
	{Path: "stream.NAME.input.column.COLUMN.take", Kind: toml.Text, Says: "`\"seconds\"`", Words: column.Taking(),
		Doc: "What of a time is the number: seconds since 1970 in UTC; minute, hour, weekday (1 is Monday), day and " +
			"month from 1; or where the hand of a clock points that goes round once a day (`hour-`), a " +
			"week or a year."},
	{Path: "stream.NAME.input.column.COLUMN.unit", Kind: toml.Text, Says: "none: a number is no time",
		Words: column.Units, Doc: "Unit of a time that is a number, since 1970-01-01T00:00Z."},
	{Path: "stream.NAME.input.column.COLUMN.utc_offset", Kind: toml.Text, Says: "`\"+00:00\"`",
		Doc: "How far the clock of `take` is ahead of UTC, the same all year. A time without an offset is one by " +
			"this clock. There are no time zones: their rules change, and a row must not depend on the machine."},
	{Path: "stream.NAME.input.column.COLUMN.transform", Kind: toml.Text, Says: "none", Words: column.Transforms,
		Doc: "Function of the number plus `offset`, before `centre` and `scale`: the natural logarithm of x or 1 + " +
			"x, the square root, or x to the power of `exponent`. Where it is not finite, the record gives no row."},
	{Path: "stream.NAME.input.column.COLUMN.exponent", Kind: toml.Number, Says: "required for `\"power\"`",
		Doc: "Exponent of `\"power\"`: -16 to 16, not 0. A negative number has a power only if this is a " +
			"whole number."},
	{Path: "stream.NAME.input.column.COLUMN.offset", Kind: toml.Number, Def: `0`,
		Doc: "What is added before the transform: a public constant."},
	{Path: "stream.NAME.input.max_record_bytes", Kind: toml.Whole, Def: `0`, Rule: recordSize,
		Doc: "Size beyond which a record counts as null and its content is not held: the bytes of key, value and " +
			"headers, and 40 for each header. 0: 1 MiB, or 32 bytes a number of a row where that is more; at most 1 " +
			"GiB. It depends on nothing but the record."},
	{Path: "stream.NAME.input.allow_compacted", Kind: toml.Boolean, Flags: toml.Always, Def: `false`,
		Doc: "Read a topic that Kafka compacts. Then a lost state directory cannot be rebuilt from the log, and that " +
			"one record may remove another is not covered by the guarantee."},
	{Path: "stream.NAME.output", Kind: toml.Table, Flags: toml.Outside, Doc: "Where releases go."},
	{Path: "stream.NAME.output.topic", Kind: toml.Text, Rule: topicOfOutput, Says: "`input.topic`, followed by `.dp`",
		Doc: "Topic; no other stream's, and no input. With `input.topics` a `*` in it stands for the input's topic; " +
			"then `*.dp` is the default."},
	{Path: "stream.NAME.output.partition", Kind: toml.Whole, Def: `0`, Rule: partition,
		Doc: "Partition of all releases of this stream."},
	{Path: "stream.NAME.output.create", Kind: toml.Boolean, Def: `true`,
		Doc: "Create a missing topic, compacted, with the broker's replication."},
	{Path: "stream.NAME.output.values", Kind: toml.Texts, Def: `[]`,
		Doc: "Names of the values to publish. Empty: all that the mechanism has."},
	{Path: "stream.NAME.output.encoding", Kind: toml.Text, Def: `"json"`, Words: []string{"json", "base64"},
		Doc: "Form of the numbers: JSON, or base64 of little-endian float64."},
	{Path: "stream.NAME.output.privacy_every", Kind: toml.Whole, Def: `1`, Rule: fromOne,
		Doc: "Every how many releases one says all about its guarantee, beginning with step 1; the others have " +
			"`privacy_sha256`, the hash of that block, instead, and are a kilobyte shorter. Above 1 for `moments` " +
			"and `refit` only, which have a release at each step."},
	{Path: "stream.NAME.centre", Kind: toml.Spread, Flags: toml.Always | toml.Found, Def: `0`,
		Says: "`0`; `\"auto\"` where `moments.clip`, or `clip_x` of a regression, is",
		Doc: "What is subtracted from each column: a public constant, never computed from the data; or `\"auto\"`, " +
			"also for some columns of a list: found privately from the first records of an epoch, the warm-up."},
	{Path: "stream.NAME.scale", Kind: toml.Spread, Flags: toml.Always | toml.Found, Def: `1`, Rule: divisor,
		Says: "`1`; `\"auto\"` likewise",
		Doc:  "What each column is divided by after that: public constants, or `\"auto\"`, likewise."},
	{Path: "stream.NAME.warmup", Kind: toml.Whole, Def: `0`, Rule: natural,
		Says: "the larger of 5000 and twice what `plan` says is needed, in whole steps",
		Doc: "Offsets of the warm-up, a multiple of `step` for moments, where `centre`, `scale` or a bound is " +
			"`\"auto\"`. Its records enter noisy histograms and nothing else; the mechanism's steps begin behind it."},
	{Path: "stream.NAME.warmup_mode", Kind: toml.Text, Def: `"buffer"`, Words: []string{"buffer", "split"},
		Doc: "`\"buffer\"`: every record of the warm-up takes part in all of its five stages, and stays in memory " +
			"until its end. `\"split\"`: each stage has records of its own; nothing is kept, and two to three times " +
			"as many records are needed."},
	{Path: "stream.NAME.step", Kind: length, Flags: toml.Always, Rule: says("at least 1, or at least `\"100ms\"`"),
		Says: "100 for moments, required for adam, of refits a period or nothing, a fault elsewhere",
		Doc: "Offsets of one step; or, for moments and refits, a period of the clock such as `\"1m\"`: then a step " +
			"ends at each multiple of it (UTC), with what the partitions hold. A step ends with a release. Of a " +
			"refit the step by the clock is its window, and a number of offsets is a fault."},
	{Path: "stream.NAME.step_max", Kind: toml.Whole, Def: stepMaxDefault, Rule: stepMax,
		Doc: "Most offsets that a step by the clock holds, of all partitions together, each the same part of them. " +
			"What is beyond falls into later steps. Required for refits, whose memory it bounds; for these at " +
			"most 2147483648."},
	{Path: "stream.NAME.merge", Kind: toml.Boolean, Def: `false`,
		Doc: "Publish one sequence of releases for all partitions together: a step holds `step` offsets of each, its " +
			"sums are added before the noise is drawn, and the budget of every partition is charged. For moments and " +
			"refits with given bounds."},
	{Path: "stream.NAME.merge_ahead", Kind: toml.Whole, Flags: toml.Outside, Def: `4`, Rule: ahead,
		Doc: "Steps that a partition of a merged stream may be ahead of the slowest; their sums stay in memory, and " +
			"of refits their rows. A refit by the clock that is not merged also holds so many windows ahead of the " +
			"one that is solved."},
	{Path: "stream.NAME.horizon", Kind: toml.Whole, Flags: toml.Always, Def: `0`, Rule: natural,
		Doc: "Steps of an epoch; 0: no end."},
	{Path: "stream.NAME.on_horizon", Kind: toml.Text, Flags: toml.Always, Def: `"halt"`,
		Words: []string{"halt", "rollover", "continue"},
		Doc: "What comes after the last step of a horizon: nothing; a new epoch, charged as one; or more steps " +
			"under the same charge, where the factorization is valid for every length. In the digest only whether it " +
			"is `\"continue\"`."},
	{Path: "stream.NAME.on_gap", Kind: toml.Text, Flags: toml.Outside, Def: `"halt"`, Words: []string{"halt", "null"},
		Doc: "When Kafka deleted records that were not read: stop, or count them as invalid."},
	{Path: "stream.NAME.dead_letter", Kind: toml.Table, Flags: toml.Outside,
		Doc: "Which records gave no row, each with its reason, for who may see the input: not a private output."},
	{Path: "stream.NAME.dead_letter.mode", Kind: toml.Text, Def: `"off"`, Words: []string{"off", "reference", "full"},
		Doc: "What is written of them: nothing, where they stand and why, or their key, value and headers too."},
	{Path: "stream.NAME.dead_letter.topic", Kind: toml.Text, Def: `""`, Rule: topicOrMany,
		Doc: "Topic, which any mode but `off` needs; several streams may share it. It is not created. Partition 0 is " +
			"written. With `input.topics` it may have a `*`, as `output.topic`."},
	{Path: "stream.NAME.lattice_bits", Kind: toml.Whole, Flags: toml.Always, Def: `24`, Rule: bits,
		Doc: "How much finer than clip norm and noise the lattice is that records are rounded to."},

	{Path: "stream.NAME.privacy", Kind: toml.Table, Flags: toml.Required,
		Doc: "The guarantee. One record is the unit."},
	{Path: "stream.NAME.privacy.epsilon", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: positive,
		Doc: "ε that one epoch costs each record it reads, all releases together."},
	{Path: "stream.NAME.privacy.delta", Kind: toml.Number, Flags: toml.Required | toml.Always, Rule: fraction,
		Doc: "δ of the same."},
	{Path: "stream.NAME.privacy.adjacency", Kind: toml.Text, Flags: toml.Required | toml.Always,
		Words: []string{"zero-out", "replace"},
		Doc: "What neighbouring logs differ in: the content of one record, which in the other log is empty " +
			"(`\"zero-out\"`), or anything else (`\"replace\"`). Number and offsets of records are public in both."},
	{Path: "stream.NAME.privacy.limit_epsilon", Kind: toml.Number, Flags: toml.Outside, Rule: positive,
		Says: "`epsilon`: one epoch of one stream",
		Doc: "ε that no record of the input partition ever exceeds, over all epochs and all streams that read it; " +
			"at least `epsilon`. Streams that read one topic state the same limit and adjacency. Where one of them " +
			"has a solver with sketches, the first epoch sets a part of the limit aside for them, which covers all " +
			"streams of the topic together; `plan` shows it."},
	{Path: "stream.NAME.privacy.limit_delta", Kind: toml.Number, Flags: toml.Outside, Rule: fraction, Says: "`delta`",
		Doc: "δ of that limit; at least `delta`."},

	{Path: "stream.NAME.user", Kind: toml.Table,
		Doc: "Persons, not records, are the unit of the guarantee: all records of an epoch with one user key. ε, δ " +
			"and the limit then speak of persons, who pay for every epoch of their population (docs/privacy.md). For " +
			"the mechanisms that docs/mechanisms.md names."},
	{Path: "stream.NAME.user.key", Kind: toml.Text, Flags: toml.Required | toml.Always, Rule: userKey,
		Doc: "Where a record has its user key: the record's key, a string or integer of a JSON object (`field:PATH`, " +
			"as in `columns`) or a cell of CSV (`field:1`), or a header. A record without one never counts."},
	{Path: "stream.NAME.user.cap", Kind: toml.Whole, Flags: toml.Always, Def: `0`,
		Rule: toml.MustBe("1 to 16777215", between(0, persons.MaxCap)),
		Says: "as many as `horizon` and `separation` allow; required without a horizon",
		Doc:  "Steps in which a person counts, at most."},
	{Path: "stream.NAME.user.separation", Kind: toml.Whole, Flags: toml.Always, Def: `1`,
		Rule: toml.MustBe("1 to 4294967294", between(1, persons.MaxStep)),
		Doc:  "Steps from one in which a person counts to the next, at least; 1 allows consecutive ones."},
	{Path: "stream.NAME.user.per_step", Kind: toml.Whole, Flags: toml.Always, Def: `1`,
		Rule: toml.MustBe("1 to 255", between(1, persons.MaxPerStep)),
		Doc:  "Records of a person that count in one step, at most."},
	{Path: "stream.NAME.user.period", Kind: toml.Whole, Def: `0`,
		Rule: toml.MustBe("0 to 4294967294", between(0, persons.MaxStep)), Says: "the whole epoch",
		Doc: "Steps of a period. With it the unit of the guarantee is a person's records of one period, no longer of " +
			"the whole epoch: `cap` and `separation` begin anew with each, and whoever is there for several pays for " +
			"several. The first begins with the epoch. `limit_epsilon` begins anew too, in each task, once its " +
			"epochs in a row have so many steps."},
	{Path: "stream.NAME.user.max_users", Kind: toml.Whole, Flags: toml.Required | toml.Always,
		Rule: toml.MustBe("1 to 2147483648", between(1, persons.MaxUsers)),
		Doc: "Persons that are remembered, at most, of each partition. Where `cap` binds, records of others do not " +
			"count when so many have, and with adjacency `\"zero-out\"` the noise is that of `\"replace\"` unless " +
			"that cannot happen; where `separation` alone does, it must be enough for all records of so many steps."},
	{Path: "stream.NAME.user.partitioner", Kind: toml.Text, Flags: toml.Always, Def: `"none"`,
		Words: []string{"none", "murmur2"},
		Doc: "With `\"murmur2\"`, for `record-key`, a record whose key does not belong to its partition by Java's " +
			"default does not count; so a person is in one partition. `merge` needs it."},
	{Path: "stream.NAME.user.population", Kind: toml.Text, Flags: toml.Always, Def: `""`, Says: "`input.topic`",
		Doc: "Name of the persons' population. What its streams, over all topics, cost a person is added up."},

	{Path: "stream.NAME.moments", Kind: toml.Table,
		Doc: "Mechanism: running means, sums, second moments and covariances. Lengths and weights are in " +
			"scaled units."},
	{Path: "stream.NAME.moments.method", Kind: toml.Text, Flags: toml.Always, Def: `"auto"`,
		Words: []string{"auto", "jme", "ime", "cs", "pp", "pp_debiased", "combined"},
		Doc: "Estimator: joint estimation of both moments (`jme`), independent estimation (`ime`), concatenation " +
			"and split (`cs`), squares of noisy rows (`pp`, and without its bias `pp_debiased`; `step = 1`), or the " +
			"best mix of those with `jme` (`combined`). `\"auto\"` chooses from public numbers between `jme` and, " +
			"for `step = 1`, `pp_debiased` and `combined`; releases say what it chose and between which errors."},
	{Path: "stream.NAME.moments.clip", Kind: toml.Number, Flags: toml.Always | toml.Found, Def: `"auto"`,
		Rule: says("positive and finite"),
		Doc: "Bound on a row's Euclidean norm after scaling; longer rows are shortened to it. `\"auto\"`: found in " +
			"the warm-up."},
	{Path: "stream.NAME.moments.workload", Kind: toml.Text, Flags: toml.Always, Def: `"mean"`,
		Words: []string{"mean", "sum", "exponential", "window"},
		Doc: "Which steps a release sums up, and with which weights: all of them, or with weights that fall with " +
			"age, or the last ones."},
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
		Doc:  "Steps for which the noise of `blt` and `banded` is made least."},
	{Path: "stream.NAME.moments.normalise", Kind: toml.Boolean, Def: `false`,
		Doc: "Scale the noise of `sqrt`, `bsr`, `bisr`, `banded` or `blt` to the horizon, at which the epoch then " +
			"ends for certain; at most 65536 steps."},
	{Path: "stream.NAME.moments.nu", Kind: toml.Number, Flags: toml.Always, Def: `0`,
		Rule: says("positive and finite, or 0 (chosen)"),
		Doc:  "Weight ν of the second moment: more of it means less noise there and more in the mean."},
	{Path: "stream.NAME.moments.weights", Kind: toml.Numbers, Flags: toml.Always, Rule: says("two positive numbers"),
		Says: "the free ν under replace, 1/clip² and 1/clip⁴ under zero-out",
		Doc:  "Weights of the squared errors of mean and second moment from which ν is chosen."},
	{Path: "stream.NAME.moments.inflation", Kind: toml.Number, Flags: toml.Always, Rule: says("at least 1"),
		Doc: "Chooses ν by the factor that the mean's variance may grow by. At most one of `nu`, `weights` and " +
			"`inflation`."},
	{Path: "stream.NAME.moments.split", Kind: toml.Number, Def: `0.5`, Rule: fraction,
		Doc: "Part of μ² that `ime` spends on the mean."},
	{Path: "stream.NAME.moments.tau", Kind: toml.Number, Rule: says("positive"),
		Says: "required for `cs`, a fault elsewhere",
		Doc:  "Weight λ of the second moment in `cs`, in scaled units to the power −2."},
	{Path: "stream.NAME.moments.metric", Kind: toml.Text, Def: `"last"`, Words: []string{"last", "sum"},
		Doc: "Error by which `auto` chooses: of the release of the last step, or of all up to it. The last step is " +
			"`horizon`, else `tune`, else 10 000."},
	{Path: "stream.NAME.moments.psd_floor", Kind: toml.Off, Def: `"off"`, Rule: natural,
		Doc: "Publish also `covariance_psd`, the covariance with its eigenvalues raised to this number."},
	{Path: "stream.NAME.moments.project", Kind: toml.Boolean, Def: `false`,
		Doc: "Publish also `second_moment_projected`, the nearest second moment that rows within `clip` can have."},
	{Path: "stream.NAME.moments.covariance", Kind: toml.Boolean, Flags: toml.Always, Says: "`true`, `false` for `sum`",
		Doc: "Publish the covariance, which costs no budget. A sum has none."},
	{Path: "stream.NAME.moments.valid_count", Kind: toml.Boolean,
		Says: "`true` with `[stream.NAME.user]`, else `false`",
		Doc: "Publish also `valid_count`, the number of valid records under the workload's weights, with noise; of " +
			"persons those that count, and then `counted_share` and `mean_counted` too."},

	{Path: "stream.NAME.sgd", Kind: toml.Table,
		Doc: "Mechanism: online linear regression of one column on the others. A step has as many offsets as `plan` " +
			"shows, with `amb` those of `amb.batch`, and ends with a release; a search of the clip norm is a step " +
			"without one. Lengths are in scaled units."},
	{Path: "stream.NAME.sgd.target", Kind: toml.Text, Flags: toml.Required, Doc: "Column to predict from all others."},
	{Path: "stream.NAME.sgd.clip_x", Kind: toml.Number, Flags: toml.Found, Def: `"auto"`,
		Rule: says("positive, and in the range 1e-60 to 1e60"),
		Doc: "Bound on the features' Euclidean norm after scaling; longer ones are shortened to it. `\"auto\"`: " +
			"found by the warm-up, so that about one row in a thousand is longer."},
	{Path: "stream.NAME.sgd.clip_y", Kind: toml.Number, Flags: toml.Found, Rule: positive,
		Doc: "Bound on the target's absolute value after scaling, or `\"auto\"`, likewise."},
	{Path: "stream.NAME.sgd.intercept", Kind: toml.Boolean, Def: `true`,
		Doc: "Fit a constant. `newton` finds privately where features and target lie, and needs no `centre` for it."},
	{Path: "stream.NAME.sgd.method", Kind: toml.Text, Def: `"newton"`, Words: []string{"newton", "amb"},
		Doc: "Estimator. `\"newton\"` needs nothing but bounds: it learns the features' second moment as it goes. " +
			"`\"amb\"` is a descent that has to be told their curvature, and has keys of its own in " +
			"`[stream.NAME.sgd.amb]`."},
	{Path: "stream.NAME.sgd.radius", Kind: toml.Number, Rule: positive, Says: "none; required for `amb`",
		Doc: "Bound on the norm of the coefficients, for `newton` without the intercept: a public guess, far enough."},
	{Path: "stream.NAME.sgd.intervals", Kind: toml.Boolean, Def: `true`,
		Doc: "Publish standard errors and approximate confidence intervals of `theta_average`, where there are " +
			"steps enough."},
	{Path: "stream.NAME.sgd.level", Kind: toml.Number, Def: `0.95`, Rule: fraction, Doc: "Level of the intervals."},
	{Path: "stream.NAME.sgd.amb", Kind: toml.Table, Flags: toml.Flat, Of: "amb",
		Doc: "What method `amb` alone has, and a fault with another one."},
	{Path: "stream.NAME.sgd.amb.clip", Kind: toml.Text, Def: `"track"`,
		Words: []string{"track", "bisect", "scan", "fixed"},
		Doc: "How the gradients' clip norm is found: it follows a quantile by a noisy count in every step; or a " +
			"binary search in records of its own goes before every step; or the published search, which finds " +
			"little; or it is `zeta`."},
	{Path: "stream.NAME.sgd.amb.value", Kind: toml.Text, Def: `"gradnorm"`, Words: []string{"gradnorm", "residual"},
		Doc: "What that quantile is of: the gradients' norm, or the residual's size, multiplied by the largest norm " +
			"of the features."},
	{Path: "stream.NAME.sgd.amb.batch", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of a gradient step; 0: chosen so that noise is no larger than sampling error, see " +
			"`streamdp plan`."},
	{Path: "stream.NAME.sgd.amb.stat", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of a search, for `bisect` and `scan`; 0: chosen."},
	{Path: "stream.NAME.sgd.amb.bootstrap", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Offsets of the first step of `track`, a search; 0: chosen."},
	{Path: "stream.NAME.sgd.amb.threshold_quantile", Kind: toml.Number, Def: `0.6`, Rule: fraction,
		Doc: "Part of the records that is not clipped. More of it, and longer batches, where residuals are skewed " +
			"and the intercept matters."},
	{Path: "stream.NAME.sgd.amb.kappa", Kind: toml.Number, Def: `1`,
		Rule: toml.MustBe("positive and at most 100", positive.OK),
		Doc:  "Gain with which `track` follows the quantile."},
	{Path: "stream.NAME.sgd.amb.fraction", Kind: toml.Number, Def: `0.05`, Rule: fraction,
		Doc: "Part of the budget μ² that the counts of `track` cost."},
	{Path: "stream.NAME.sgd.amb.rungs", Kind: toml.Whole, Def: `32`, Rule: toml.MustBe("1 to 10000", atLeast(1)),
		Doc: "Doublings that a search covers."},
	{Path: "stream.NAME.sgd.amb.top", Kind: toml.Number, Def: `65536`, Rule: positive,
		Doc: "Largest clip norm that a search finds."},
	{Path: "stream.NAME.sgd.amb.zeta", Kind: toml.Number, Rule: positive,
		Says: "required for `fixed`, a fault elsewhere", Doc: "The clip norm."},
	{Path: "stream.NAME.sgd.amb.bands", Kind: toml.Whole, Def: `16`, Rule: toml.MustBe("1 to 256", atLeast(1)),
		Doc: "Bands of the noise's correlation over steps; 1: independent."},
	{Path: "stream.NAME.sgd.amb.eta0", Kind: toml.Number, Def: `0.3`,
		Rule: toml.MustBe("positive and at most 1", positive.OK),
		Doc:  "Step size, where 2 is the limit of stability for the curvature given."},
	{Path: "stream.NAME.sgd.amb.curvature", Kind: toml.Number, Def: `0`,
		Rule: toml.MustBe("at most clip_x squared", atLeast(0)),
		Doc: "Bound on the largest eigenvalue of the features' second moment, in scaled units; 0: the largest norm " +
			"squared, 10 to 3000 times too large on most data, and then coefficients hardly move. A stream of " +
			"moments tells it privately."},
	{Path: "stream.NAME.sgd.amb.growth", Kind: toml.Text, Def: `"none"`, Words: []string{"none", "double"},
		Doc: "Growth of batches: none, or doubling whenever the number of steps has doubled, for data that " +
			"do not change."},
	{Path: "stream.NAME.sgd.amb.average", Kind: toml.Text, Def: `"tail"`, Words: []string{"tail", "smooth"},
		Doc: "`theta_average` is the mean of the last iterates, or a mean with weights that fall with age and " +
			"less to keep."},
	{Path: "stream.NAME.sgd.amb.tail", Kind: toml.Number, Def: `0.25`, Rule: fraction,
		Doc: "Part of the iterates that `tail` leaves out, at most."},
	{Path: "stream.NAME.sgd.amb.restart", Kind: toml.Boolean, Def: `true`,
		Doc: "Begin the average anew when releases show that the data have changed."},

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
		Doc:  "Bound on the target's absolute value after scaling, or `\"auto\"`, likewise."},
	{Path: "stream.NAME.refit.intercept", Kind: toml.Boolean, Def: `true`,
		Doc: "Fit a constant. `newton` finds privately where features and target lie, and needs no `centre` for it; " +
			"to the others a constant is one more feature, of value clip_x."},
	{Path: "stream.NAME.refit.window", Kind: toml.Whole, Rule: toml.MustBe("1 to 2147483648", atLeast(0)),
		Says: "required, a fault where `step` is by the clock",
		Doc: "Offsets of a window. A record belongs to one window at most, and pays for that. Where the stream's " +
			"`step` is a period of the clock, a window is such a step."},
	{Path: "stream.NAME.refit.stride", Kind: toml.Whole, Rule: says("at least `window`"), Says: "`window`",
		Doc: "Offsets from one window's start to the next. Records between windows are left out."},
	{Path: "stream.NAME.refit.solver", Kind: toml.Text, Def: `"newton"`,
		Words: []string{"newton", "ihm", "adassp", "linmix", "fast-ihm", "dp-gd", "dp-gd-residual"},
		Doc: "Solver. `\"newton\"` is the most accurate; the others are methods of the literature, for comparison " +
			"or for few passes over a window. `\"linmix\"`, and `\"ihm\"` with a radius, keep no rows."},
	{Path: "stream.NAME.refit.accounting", Kind: toml.Text, Words: []string{"exact", "rdp", "analytic", "paper"},
		Says: "`\"exact\"`, `\"rdp\"` for `fast-ihm`",
		Doc: "How noise follows from ε and δ: by the exact curve of all that is released; by its Rényi curve; split " +
			"among releases, for `adassp`; or as the method's paper has it."},
	{Path: "stream.NAME.refit.share", Kind: toml.Number, Def: `0.2`, Rule: fraction,
		Doc: "Part of the budget that sketches get, for `ihm` and `fast-ihm`. More where the signal is strong."},
	{Path: "stream.NAME.refit.rows", Kind: toml.Whole, Def: `0`, Rule: natural, Doc: "Rows of a sketch; 0: chosen."},
	{Path: "stream.NAME.refit.iterations", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Iterations of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: chosen."},
	{Path: "stream.NAME.refit.eigen_test", Kind: toml.Boolean, Def: `false`,
		Doc: "Spend budget on the smallest eigenvalue, for `ihm` and `adassp`: less noise where windows have " +
			"variance in every direction."},
	{Path: "stream.NAME.refit.debias", Kind: toml.Boolean, Def: `false`,
		Doc: "Correct the length of `ihm`'s steps, with `eigen_test` where a sketch has no noise."},
	{Path: "stream.NAME.refit.pool", Kind: toml.Boolean, Def: `false`,
		Doc: "Use earlier iterations' sketches of `ihm` too."},
	{Path: "stream.NAME.refit.residual_clip", Kind: toml.Number, Def: `0`, Rule: natural,
		Doc: "Bound on residuals of `ihm`, `fast-ihm` and `dp-gd-residual`; 0: `clip_y`."},
	{Path: "stream.NAME.refit.transforms", Kind: toml.Whole, Def: `1`, Rule: says("1 or `iterations`"),
		Doc: "Fast transforms of `fast-ihm`."},
	{Path: "stream.NAME.refit.ratio", Kind: toml.Number, Def: `4`, Rule: positive,
		Doc: "Rows of `fast-ihm`'s transform, in units of the number of features or of a logarithm, if that is more."},
	{Path: "stream.NAME.refit.radius", Kind: toml.Number, Def: `0`, Rule: natural,
		Doc: "Bound on the coefficients' norm, in units of clip_y over the features' bound with their constant, for " +
			"`ihm`, which then needs no rows, and `dp-gd`; 0: none."},

	{Path: "stream.NAME.adam", Kind: toml.Table,
		Doc: "Mechanism: steps of the Adam optimiser, from gradients or from examples of a model. A step divides by " +
			"`step`, whatever number of records it holds."},
	{Path: "stream.NAME.adam.mode", Kind: toml.Text, Def: `"gradients"`, Words: []string{"gradients", "model"},
		Doc: "Records are gradients, `dim` numbers each in `float32`, `float64` or `json-array`, without " +
			"`input.columns`, `centre` and `scale`; or rows of features and a target, from which the gradient of " +
			"`model` is taken."},
	{Path: "stream.NAME.adam.method", Kind: toml.Text, Def: `"pp_debiased"`,
		Words: []string{"pp_debiased", "pp", "jme", "jme_per_example", "jme_batch", "joint_clip", "momentum"},
		Doc: "Where the second moment comes from: the noisy mean squared, less its noise's part (`pp_debiased`), " +
			"or with it (`pp`); squares noised by themselves, of one gradient (`jme`, step = 1), of every gradient " +
			"(`jme_per_example`) or of their mean (`jme_batch`); both clipped together (`joint_clip`). " +
			"`momentum` has none."},
	{Path: "stream.NAME.adam.clip", Kind: toml.Number, Flags: toml.Required, Rule: says("positive and finite"),
		Doc: "Bound on a gradient's Euclidean norm; longer ones are shortened to it. Where that happens to many, " +
			"parameters are those of another optimum: those of a logistic regression come out too large."},
	{Path: "stream.NAME.adam.mean_clip", Kind: toml.Number, Def: `0`, Rule: says("less than `clip`"),
		Doc: "Bound on the norm of a step's mean, for `jme_batch`; 0: none."},
	{Path: "stream.NAME.adam.nu", Kind: toml.Number, Def: `0`, Rule: says("positive and finite, or 0 (chosen)"),
		Doc: "Weight ν of the second moment in the methods `jme…`: more of it means less noise there and more " +
			"in the first."},
	{Path: "stream.NAME.adam.tau", Kind: toml.Number, Rule: says("positive and finite"),
		Says: "required for `joint_clip`, a fault elsewhere",
		Doc:  "Weight of the squares in the norm that both share."},
	{Path: "stream.NAME.adam.beta1", Kind: toml.Number, Def: `0.9`, Rule: says("in (0, 1)"),
		Doc: "Weight of the previous step in the first moment."},
	{Path: "stream.NAME.adam.beta2", Kind: toml.Number, Def: `0.999`, Rule: says("in (0, 1)"),
		Doc: "Weight of the previous step in the second moment."},
	{Path: "stream.NAME.adam.rate", Kind: toml.Number, Flags: toml.Required, Rule: says("positive and finite"),
		Doc: "Learning rate. One chosen by trial on the same records is outside the guarantee."},
	{Path: "stream.NAME.adam.schedule", Kind: toml.Text, Def: `"constant"`,
		Words: []string{"constant", "inverse-sqrt", "cosine"},
		Doc:   "How the learning rate falls: not, with the root of the step, or to 0 at the horizon."},
	{Path: "stream.NAME.adam.eps", Kind: toml.Number, Def: `1e-8`, Rule: says("positive and finite"),
		Doc: "Added to the root of the second moment."},
	{Path: "stream.NAME.adam.v_floor", Kind: toml.Number, Def: `0`, Rule: says("positive, or 0 (chosen)"),
		Doc: "Least second moment; 0: the standard deviation of its noise."},
	{Path: "stream.NAME.adam.negative", Kind: toml.Text, Def: `"floor"`, Words: []string{"floor", "zero", "abs"},
		Doc: "What becomes of a second moment that noise made negative: `v_floor`; 0, which needs `update_clip`; or " +
			"its absolute value."},
	{Path: "stream.NAME.adam.update_clip", Kind: toml.Number, Def: `0`, Rule: says("positive, or 0 (none)"),
		Doc: "Bound on the Euclidean norm of an update, before the learning rate."},
	{Path: "stream.NAME.adam.weight_decay", Kind: toml.Number, Def: `0`, Rule: says("at least 0"),
		Doc: "Share of themselves, times the learning rate, that parameters lose in every step."},
	{Path: "stream.NAME.adam.factorization", Kind: toml.Text, Def: `"identity"`,
		Words: []string{"identity", "blt", "sqrt"},
		Doc: "How noise is correlated over steps. Squaring a mean undoes it: with `pp` and `pp_debiased` only " +
			"`identity` keeps the second moment accurate."},
	{Path: "stream.NAME.adam.dim", Kind: toml.Whole, Rule: says("at least 1"),
		Says: "required for `gradients`, a fault elsewhere", Doc: "Number of parameters."},
	{Path: "stream.NAME.adam.step_header", Kind: toml.Text, Def: `"model-step"`,
		Rule: toml.MustBe("a name", func(v any) bool { return v != "" }),
		Doc: "Record header of mode `gradients`: in decimal, the `model_step` of the parameters that the gradient " +
			"was taken at, 0 for the initial ones."},
	{Path: "stream.NAME.adam.max_staleness", Kind: toml.Whole, Def: `0`, Rule: natural,
		Doc: "Steps that those may be behind the newest; an older gradient, and one from the future, counts as zero."},
	{Path: "stream.NAME.adam.release", Kind: toml.Text, Def: `"parameters"`, Words: []string{"parameters", "update"},
		Doc: "What is published: the parameters after the step, or what the step adds to them."},
	{Path: "stream.NAME.adam.initial_file", Kind: toml.File, Flags: toml.Outside,
		Doc: "Public parameters to begin with, packed little-endian float64; read when an epoch opens that has no " +
			"predecessor. Not where centre or scale is `\"auto\"`. Without it they are 0, those of `mlp` " +
			"small and fixed."},
	{Path: "stream.NAME.adam.model", Kind: toml.Table, Doc: "The model of mode `model`."},
	{Path: "stream.NAME.adam.model.loss", Kind: toml.Text, Flags: toml.Required,
		Words: []string{"linear", "logistic", "softmax", "mlp"},
		Doc: "Linear, logistic (class 1 is a target above 0 in scaled units) and softmax regression (targets are " +
			"classes from 0 on, after centre and scale; others make a record invalid), or a network with one hidden " +
			"layer of tanh units."},
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
	// recordSize is a size that a reader of package kafka accepts, or 0 for the default.
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
	// instanceName is a name that a message, a metric and a page show as it is.
	instanceName = toml.MustBe("at most 200 characters", func(v any) bool { return len(v.(string)) <= 200 })
	topicOrNone  = toml.MustBe(topic.Text, func(v any) bool { return v == "" || isTopic(v) })
	// topicOfOutput is a topic or, of a pattern, one for each of its topics; topicOrMany also none.
	topicOfOutput = toml.MustBe(topic.Text, func(v any) bool { return v != "" && topicOrMany.OK(v) })
	topicOrMany   = toml.MustBe(topic.Text,
		func(v any) bool { return v == "" || isTopic(strings.Replace(v.(string), anyTopic, "x", 1)) })
)

// groupNames are the consumer groups that a configuration may name.
const groupNames = `1 to 200 of letters, digits, ".", "_" and "-"`

func isGroup(v any) bool { return isTopic(v) && len(v.(string)) <= maxGroup }

// says is a rule that the mechanism's package checks; text is for the reference.
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

// between is a rule for integers from least to most.
func between(least, most int64) func(any) bool {
	return func(v any) bool { n, ok := v.(int64); return ok && n >= least && n <= most }
}

// lasts is a rule for durations from least to most.
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

// former are keys of earlier versions. They accepted their default alone, because the
// program could do nothing else.
var former = []string{"http.pprof"}

// root is the schema as a tree.
var root = sync.OnceValue(func() *toml.Node { return toml.New(schema, former...) })
