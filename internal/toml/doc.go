// Package toml reads TOML files strictly, by a table of the keys that they may have.
//
// A [Row] says of a key which values it takes, what it is without one, and what it means. [New] makes the rows a
// tree. A [Document] is what files say. [Document.ReadTable] reads it into a struct, and notes a [Fault] with file
// and line for each key that the tree does not have, and for each value that breaks its row. The caller adds the
// faults that concern several values, with [Document.Add].
//
// From the same rows come the reference for people, [Node.Describe], and the part of a struct in which a change
// matters, [Node.Canonical].
package toml
