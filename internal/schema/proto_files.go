package schema

import (
	"errors"
	"fmt"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/ast"
	"github.com/bufbuild/protocompile/parser"
	"github.com/bufbuild/protocompile/reporter"
	"google.golang.org/protobuf/types/descriptorpb"
)

// The bounds below hold for a Protobuf schema together with all files that it imports. The compiler needs memory and
// time in proportion to each of the bounded quantities.
const (
	maxTokens   = 1 << 17 // words, punctuation marks and comments
	maxBrackets = 100     // nesting depth of brackets
	maxMessages = 32      // nesting depth of messages
	maxDeclared = 20_000  // messages, fields, enums, symbols, other named things, and ranges
	maxNames    = 4 << 20 // total length, in bytes, of the full names of all declarations
	maxImported = 32      // length of a chain of imports
	maxLookups  = 1 << 22 // declarations × places where the compiler looks for a name
)

// protoFiles are the files that a schema may import. Each is read and its size checked before any of them is compiled.
type protoFiles struct {
	texts map[string]string       // by path
	read  map[string]*protoParsed // by path; the value is nil while the file's imports are being read

	tokens, declared, names, lookups int
}

// protoParsed is a file that was read, as a syntax tree or as a descriptor.
type protoParsed struct {
	syntax     *ast.FileNode
	descriptor *descriptorpb.FileDescriptorProto
	reach
}

// reach measures how expensive it is for the compiler to look a name up in a file.
type reach struct {
	files int // number of files: this one and its public imports, with repetitions
	row   int // length of the longest chain of imports from this file
}

// standardProtos resolves the files that are built into the compiler. No reference can replace them, because this
// package handles some of their messages by name.
var standardProtos = protocompile.WithStandardImports(
	protocompile.ResolverFunc(func(path string) (found protocompile.SearchResult, err error) {
		return found, fmt.Errorf("%s is not among the schema's references", path)
	}))

// FindFileByPath gives the compiler a file that add has read.
func (p *protoFiles) FindFileByPath(path string) (protocompile.SearchResult, error) {
	if f := p.read[path]; f != nil {
		return protocompile.SearchResult{AST: f.syntax, Proto: f.descriptor}, nil
	}
	return standardProtos.FindFileByPath(path)
}

// add reads a file and everything that it imports.
func (p *protoFiles) add(path string) (r reach, err error) {
	if f, ok := p.read[path]; ok {
		if f == nil {
			return r, errors.New("the file imports itself, directly or through other files")
		}
		return f.reach, nil
	}
	if _, err := standardProtos.FindFileByPath(path); err == nil {
		return reach{1, 1}, nil
	}
	text, ok := p.texts[path]
	if !ok {
		return r, fmt.Errorf("%s is not among the schema's references", path)
	}
	p.read[path] = nil
	f, d, err := p.parse(path, text)
	if err != nil {
		return r, err
	}
	f.reach = reach{1, 1}
	public := map[int32]bool{}
	for _, i := range d.PublicDependency {
		public[i] = true
	}
	all := 1
	for i, imported := range d.Dependency {
		below, err := p.add(imported)
		if err != nil {
			return r, err
		}
		f.row = max(f.row, below.row+1)
		all = min(all+below.files, maxLookups)
		if public[int32(i)] {
			f.files = min(f.files+below.files, maxLookups)
		}
	}
	if f.row > maxImported {
		return r, fmt.Errorf("a chain of imports has more than %d files", maxImported)
	}
	if err := p.bound(d, all); err != nil {
		return r, err
	}
	p.read[path] = f
	return f.reach, nil
}

// parse reads one file. d is its descriptor before names are resolved.
func (p *protoFiles) parse(path, text string) (f *protoParsed, d *descriptorpb.FileDescriptorProto, err error) {
	if d = serializedFile(text, path); d != nil {
		return &protoParsed{descriptor: d}, d, nil
	}
	if err = p.scan(text); err != nil {
		return nil, nil, err
	}
	h := reporter.NewHandler(nil)
	syntax, err := parser.Parse(path, strings.NewReader(text), h)
	if err != nil {
		return nil, nil, err
	}
	result, err := parser.ResultFromAST(syntax, false, h)
	if err != nil {
		return nil, nil, err
	}
	return &protoParsed{syntax: syntax}, result.FileDescriptorProto(), nil
}

// scan counts the tokens of a .proto file and refuses too many.
func (p *protoFiles) scan(text string) error {
	depth := 0
	for i := 0; i < len(text); {
		begin := i
		switch c := text[i]; {
		case strings.HasPrefix(text[i:], "//"):
			i = behind(text, i, "\n")
		case strings.HasPrefix(text[i:], "/*"):
			i = behind(text, i+2, "*/")
		case c == '"' || c == '\'':
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			i++
		case wordByte(c):
			for i < len(text) && wordByte(text[i]) {
				i++
			}
			if i-begin > maxName {
				return errLongName
			}
		default:
			i++
			if strings.IndexByte("{[(<", c) >= 0 {
				depth++
			} else if strings.IndexByte("}])>", c) >= 0 {
				depth = max(0, depth-1)
			}
			if depth > maxBrackets {
				return fmt.Errorf("brackets are nested more than %d deep", maxBrackets)
			}
			if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
				continue
			}
		}
		if p.tokens++; p.tokens > maxTokens {
			return fmt.Errorf("the schema and its references have more than %d words and punctuation marks", maxTokens)
		}
	}
	return nil
}

// behind returns the index in `text` after the first occurrence of `end` in `text[i:]`.
func behind(text string, i int, end string) int {
	if n := strings.Index(text[i:], end); n >= 0 {
		return i + n + len(end)
	}
	return len(text)
}

func wordByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_'
}

// bound refuses a file that declares too much. files is the number of files in which the compiler looks up the names
// that d uses.
func (p *protoFiles) bound(d *descriptorpb.FileDescriptorProto, files int) error {
	c := &protoCount{}
	c.word(d.GetPackage())
	at := len(d.GetPackage()) + 1
	c.messages(d.MessageType, at, 1)
	c.enums(d.EnumType, at)
	c.fields(d.Extension, at)
	for _, s := range d.Service {
		c.name(s.GetName(), at)
		for _, m := range s.Method {
			c.name(m.GetName(), at+len(s.GetName())+1)
			c.word(m.GetInputType())
			c.word(m.GetOutputType())
		}
	}
	p.declared += c.declared
	p.names += c.names
	scopes := c.depth + strings.Count(d.GetPackage(), ".") + 2
	p.lookups += c.declared * scopes * files
	switch {
	case c.longest > maxName:
		return errLongName
	case c.depth > maxMessages:
		return fmt.Errorf("messages are nested more than %d deep", maxMessages)
	case p.declared > maxDeclared:
		return fmt.Errorf("there are more than %d messages, fields and symbols", maxDeclared)
	case p.names > maxNames:
		return fmt.Errorf("the full names take more than %d MiB together", maxNames>>20)
	case p.lookups > maxLookups:
		return errors.New("too many names and imports: resolving the names would take too long")
	case c.defaults:
		return errors.New("a message has a default value")
	}
	return nil
}

// protoCount counts what a file declares.
type protoCount struct {
	declared, names, longest, depth int
	defaults                        bool // a message has a default value
}

func (c *protoCount) word(s string) { c.longest = max(c.longest, len(s)) }

// name counts a declaration. at is the number of bytes of its full name that precede its own name.
func (c *protoCount) name(s string, at int) {
	c.word(s)
	c.declared++
	c.names += at + len(s)
}

func (c *protoCount) messages(all []*descriptorpb.DescriptorProto, at, depth int) {
	for _, m := range all {
		c.depth = max(c.depth, depth)
		c.name(m.GetName(), at)
		inside := at + len(m.GetName()) + 1
		c.fields(m.Field, inside)
		c.fields(m.Extension, inside)
		for _, o := range m.OneofDecl {
			c.name(o.GetName(), inside)
		}
		c.declared += len(m.ExtensionRange) + len(m.ReservedRange) + len(m.ReservedName)
		c.enums(m.EnumType, inside)
		c.messages(m.NestedType, inside, depth+1)
	}
}

func (c *protoCount) fields(all []*descriptorpb.FieldDescriptorProto, at int) {
	for _, f := range all {
		c.name(f.GetName(), at)
		c.word(f.GetTypeName())
		c.word(f.GetExtendee())
		if f.DefaultValue != nil &&
			(f.Type == nil || f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_MESSAGE ||
				f.GetType() == descriptorpb.FieldDescriptorProto_TYPE_GROUP) {
			c.defaults = true
		}
	}
}

func (c *protoCount) enums(all []*descriptorpb.EnumDescriptorProto, at int) {
	for _, e := range all {
		c.name(e.GetName(), at)
		for _, v := range e.Value {
			c.name(v.GetName(), at)
		}
		c.declared += len(e.ReservedRange) + len(e.ReservedName)
	}
}
