package config

// Reference returns docs/config.md: every key of the schema with its type, its default and
// its meaning. "go generate ./config" writes the file.
func Reference() []byte {
	return []byte(referenceHead + root().Describe())
}

const referenceHead = `# Configuration

<!-- Written by go generate ./config; edit config/schema.go instead. -->

One TOML file describes an instance. [examples/orders.toml](../examples/orders.toml) is a small one with a comment for every line.

The file is read strictly. The following are faults. All faults are reported at once, as ` + "`file:line: key: rule (value)`" + `:

- an unknown key, including one in upper case;
- a value of the wrong type: an integer is accepted as a number, nothing else is converted;
- a number that is not finite;
- a duration without its unit: ` + "`\"200ms\"`" + `, not ` + "`200`" + `.

Strings may hold ` + "`${NAME}`" + `, which stands for the environment variable NAME; a variable that is not set is a fault. ` + "`$${`" + ` stands for ` + "`${`" + `.
Secrets are never values in this file: the file names the files that hold them.
A path that does not begin with ` + "`/`" + ` is relative to the folder in which the command runs, not to the folder of this file. Run all commands in one folder, or write absolute paths: in another folder the same path is another ` + "`state.dir`" + `with another ledger.

A table may be written as a section, inline, or by dotted keys: ` + "`[stream.orders.input]`" + ` with ` + "`topic = \"orders\"`" + ` below it, ` + "`input = { topic = \"orders\" }`" + ` and ` + "`input.topic = \"orders\"`" + ` are equivalent.

Keys marked ° may change while an epoch is open. All other keys of a stream are in its digest, on which the noise of an epoch depends: after a change the task halts until its epoch is closed, and the next epoch is charged separately.
A changed file is read at the next start, or by a running daemon on ` + "`streamdp reload`" + `: [operations.md](operations.md#changing-the-configuration-while-it-runs) lists what a running daemon can change.
The configuration may also be a directory: all its files whose names end in ` + "`.toml`" + ` are read as one.
`
