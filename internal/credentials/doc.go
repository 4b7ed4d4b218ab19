// Package credentials gets the credentials that are made for a while and have to be renewed: tokens
// of an OAuth server, and signatures with the keys of AWS.
//
// No error of this package holds a secret, a token or a key.
package credentials
