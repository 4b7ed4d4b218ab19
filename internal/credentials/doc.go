// Package credentials reads credentials from files that only their owner may read: the master key, passwords, tokens,
// headers, certificates with their keys. It also obtains and renews credentials that expire: tokens of an OAuth server,
// and signatures with AWS keys.
//
// No error of this package contains a secret, a token or a key.
package credentials
