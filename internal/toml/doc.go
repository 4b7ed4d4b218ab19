// Package toml reads TOML files strictly: it accepts only the keys in a table of known keys.
//
// A [Row] describes a key: the values that it accepts, its default, and its meaning. [New] builds a tree of rows. A
// [Document] is the parsed content of files. [Document.ReadTable] reads it into a struct, and records a [Fault] with
// file and line for each key that the tree does not have, and for each value that violates its row. The caller adds
// faults that concern several values with [Document.Add].
//
// The same rows give the reference for people, [Node.Describe], and the canonical form, [Node.Canonical]: the part of a
// struct in which a change matters.
package toml
