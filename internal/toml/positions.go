package toml

import (
	"strconv"
	"strings"

	burnt "github.com/BurntSushi/toml"
)

// positions gives the line of each key of a file. The TOML package records no positions of keys, so the source is read
// a second time after that package has accepted it. The text read here is therefore valid, and the result is used only
// for line numbers.
type positions struct {
	order   []Key          // keys and table headers, in order of appearance
	written map[string]int // line of a key or header, by Key.String()
	implied map[string]int // for a table without a header: line of its first mention
}

// line returns the line of the key or, if the file does not have it, of the nearest table around it. element ≥ 0 asks
// for the line of that element of a list.
func (p *positions) line(key Key, element int) int {
	if n, ok := p.written[place(key, element)]; ok {
		return n
	}
	for ; len(key) > 0; key = key[:len(key)-1] {
		if n, ok := p.written[key.String()]; ok {
			return n
		}
		if n, ok := p.implied[key.String()]; ok {
			return n
		}
	}
	return 1
}

// place returns the name under which written holds the position of a key or, if element ≥ 0, of an element of its list.
// The two kinds of names never coincide, because a key with a bracket is quoted.
func place(key Key, element int) string {
	if element < 0 {
		return key.String()
	}
	return key.String() + "[" + strconv.Itoa(element) + "]"
}

// scan reads the positions of a valid TOML file.
func scan(src string) *positions {
	s := &scanner{
		src:  strings.TrimPrefix(src, "\xef\xbb\xbf"),
		line: 1,
		out:  &positions{written: map[string]int{}, implied: map[string]int{}},
	}
	var section Key
	for s.blank(); s.at < len(s.src); s.blank() {
		before := s.at
		if s.src[s.at] == '[' {
			for s.peek() == '[' {
				s.at++
			}
			line := s.line
			section = s.key()
			s.found(nil, section, line)
			for s.peek() == ']' {
				s.at++
			}
		} else {
			s.pair(section)
		}
		if s.at == before { // only if the text is not TOML
			break
		}
	}
	return s.out
}

type scanner struct {
	src  string
	at   int
	line int
	out  *positions
}

// found records the position of key, which is relative to section.
func (s *scanner) found(section, key Key, line int) {
	full := append(section[:len(section):len(section)], key...)
	s.out.order = append(s.out.order, full)
	for n := 1; n < len(full); n++ {
		if name := full[:n].String(); s.out.implied[name] == 0 {
			s.out.implied[name] = line
		}
	}
	if name := full.String(); s.out.written[name] == 0 {
		s.out.written[name] = line
	}
}

func (s *scanner) peek() byte {
	if s.at < len(s.src) {
		return s.src[s.at]
	}
	return 0
}

// space skips blanks on a line.
func (s *scanner) space() {
	for s.peek() == ' ' || s.peek() == '\t' {
		s.at++
	}
}

// blank skips blanks, line ends and comments.
func (s *scanner) blank() {
	for ; s.at < len(s.src); s.at++ {
		switch s.src[s.at] {
		case ' ', '\t', '\r':
		case '\n':
			s.line++
		case '#':
			for s.at+1 < len(s.src) && s.src[s.at+1] != '\n' {
				s.at++
			}
		default:
			return
		}
	}
}

// pair reads key = value.
func (s *scanner) pair(section Key) {
	line := s.line
	key := s.key()
	if len(key) == 0 {
		return
	}
	s.found(section, key, line)
	if s.peek() == '=' {
		s.at++
	}
	s.space()
	s.value(append(section[:len(section):len(section)], key...))
}

// key reads a key of one or more parts, and the blanks after it.
func (s *scanner) key() (key Key) {
	for {
		s.space()
		from := s.at
		switch s.peek() {
		case '"', '\'':
			s.text()
			key = append(key, unquote(s.src[from:s.at]))
		default:
			for bare(s.peek()) {
				s.at++
			}
			if s.at == from {
				return key
			}
			key = append(key, s.src[from:s.at])
		}
		s.space()
		if s.peek() != '.' {
			return key
		}
		s.at++
	}
}

func bare(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// unquote returns the string of a one-line literal. It uses the TOML package, so that both readings agree on the
// meaning of escapes.
func unquote(literal string) string {
	var v struct{ Key string }
	if _, err := burnt.Decode("key = "+literal, &v); err != nil {
		return literal
	}
	return v.Key
}

// close reports whether a list or table ends here, at its closing bracket or at the end of the text. It skips the
// bracket.
func (s *scanner) close(bracket byte) bool {
	if s.at == len(s.src) {
		return true
	}
	if s.src[s.at] != bracket {
		return false
	}
	s.at++
	return true
}

// elements reads a list or an inline table up to its closing bracket, element by element.
func (s *scanner) elements(bracket byte, read func(i int)) {
	s.at++
	for i := 0; ; i++ {
		s.blank()
		if s.close(bracket) {
			return
		}
		before := s.at
		read(i)
		s.blank()
		if s.peek() == ',' {
			s.at++
		}
		if s.at == before { // only if the text is not TOML
			return
		}
	}
}

// value skips a value, and records the positions of the keys and elements in it.
func (s *scanner) value(key Key) {
	switch s.peek() {
	case '"', '\'':
		s.text()
	case '[':
		s.elements(']', func(i int) {
			if name := place(key, i); s.out.written[name] == 0 {
				s.out.written[name] = s.line
			}
			s.value(key)
		})
	case '{':
		s.elements('}', func(int) { s.pair(key) })
	default:
		for s.at < len(s.src) && !strings.ContainsRune(",]}#\r\n", rune(s.src[s.at])) {
			s.at++
		}
	}
}

// text skips a string of any of the four kinds.
func (s *scanner) text() {
	quote := s.src[s.at : s.at+1]
	end, long := quote, false
	if strings.HasPrefix(s.src[s.at:], quote+quote+quote) {
		end, long = quote+quote+quote, true
	}
	for s.at += len(end); s.at < len(s.src); s.at++ {
		switch c := s.src[s.at]; {
		case c == '\n':
			s.line++
		case c == '\\' && quote == `"`:
			if s.at++; s.peek() == '\n' {
				s.line++
			}
		case strings.HasPrefix(s.src[s.at:], end):
			s.at += len(end)
			for n := 0; long && n < 2 && strings.HasPrefix(s.src[s.at:], quote); n++ {
				s.at++ // one or two quotes may precede the closing three
			}
			return
		}
	}
	s.at = len(s.src) // the string has no end: the text is not TOML
}
