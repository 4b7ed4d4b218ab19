package config

// Reference returns docs/config.md: every key of the schema with its type, its default and
// its meaning. "go generate ./config" writes the file.
func Reference() []byte {
	return []byte(referenceHead + root().Describe())
}

const referenceHead = `# Configuration

<!-- Written by go generate ./config; edit config/schema.go instead. -->

One TOML file describes an instance. [examples/orders.toml](../examples/orders.toml) is a small one with a comment on every line. The configuration may also be a directory; its files ending in ` + "`.toml`" + ` are then read as one.

The file is read strictly. All errors are reported at once, as ` + "`file:line: key: rule (value)`" + `. Errors are:

- an unknown key, or a key in upper case;
- a value of the wrong type: only an integer may stand for a number; durations and paths are strings;
- a number that is not finite;
- a duration without a unit: write ` + "`\"200ms\"`" + `, not ` + "`200`" + `.

In strings, ` + "`${NAME}`" + ` stands for the environment variable NAME, which must be set, and ` + "`$${`" + ` for ` + "`${`" + `. Secrets are never in this file; it names the files that hold them.
A relative path starts at the working directory of the command, not at the directory of this file. Use absolute paths or run all commands in one directory: otherwise ` + "`state.dir`" + `, and with it the ledger, is a different one.

A table may be a section, an inline table or dotted keys: ` + "`[stream.orders.input]`" + ` followed by ` + "`topic = \"orders\"`" + `, ` + "`input = { topic = \"orders\" }`" + ` and ` + "`input.topic = \"orders\"`" + ` are equivalent.

Keys marked ° may change while an epoch is open. All other keys of a stream are in its digest, to which the epoch's noise is bound: after a change the task stops until its epoch is closed, and the next epoch is charged as a new one.
A changed file takes effect at the next start, or in a running daemon on ` + "`streamdp reload`" + `; [operations.md](operations.md#changing-the-configuration-while-it-runs) says which changes are accepted.
`
