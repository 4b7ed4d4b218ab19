package config

// Reference returns docs/config.md: every key of the schema with its type, its default and
// its meaning. "go generate ./config" writes the file.
func Reference() []byte {
	return []byte(referenceHead + root().Describe())
}

const referenceHead = `# Configuration

<!-- Written by go generate ./config; edit config/schema.go instead. -->

One TOML file describes an instance. [examples/orders.toml](../examples/orders.toml) is a small one with a comment for every line.

The file is read strictly. These are faults, and all of them are reported at once as ` + "`file:line: key: rule (value)`" + `:

- an unknown key, also one in upper case;
- a value of the wrong type: an integer may stand for a number, nothing else converts;
- a number that is not finite;
- a duration without its unit: ` + "`\"200ms\"`" + `, not ` + "`200`" + `.

Strings may hold ` + "`${NAME}`" + `, which stands for the environment variable NAME. One that is not set is a fault. ` + "`$${`" + ` stands for ` + "`${`" + `.
Secrets are never values of this file but files that it names.
A path that does not begin with ` + "`/`" + ` is relative to the folder in which the command is run, and not to that of this file. Run all commands in one folder, or write absolute paths: another folder is another ` + "`state.dir`" + `, and so another ledger.

A table may be written as a section, inline, or by dotted keys: ` + "`[stream.orders.input]`" + ` with ` + "`topic = \"orders\"`" + ` below it, ` + "`input = { topic = \"orders\" }`" + ` and ` + "`input.topic = \"orders\"`" + ` say the same.

Keys marked ° may change while an epoch is open. All other keys of a stream are in its digest, to which the noise of an epoch is bound: after a change the task does not go on until its epoch is closed, and the next one is charged anew.
A changed file is read at the next start, and by a running daemon on ` + "`streamdp reload`" + `: [operations.md](operations.md#changing-the-configuration-while-it-runs) says what it takes.
The configuration may also be a directory: its files whose names end in ` + "`.toml`" + ` are read as one.
`
