// Package words has no code: its tests hold the language of comments, messages and documents, and the length of lines.
package words
