// Package credentials reads credentials from files that nobody else may read: the master key,
// passwords, tokens, headers, certificates with their keys. It makes those that are good for a
// while and have to be renewed: tokens of an OAuth server, and signatures with the keys of AWS.
//
// No error of this package holds a secret, a token or a key.
package credentials
