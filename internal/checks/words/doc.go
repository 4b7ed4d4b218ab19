// Package words has no code. Its tests check the language of comments, messages and documents, and the length of lines.
package words
