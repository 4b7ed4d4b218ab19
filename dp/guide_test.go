package dp_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestGuide: the code in docs/library.md equals the code of the examples that it names. With STREAMDP_WRITE=1 the test
// writes it.
func TestGuide(t *testing.T) {
	root := cases.Root(t)
	guide := filepath.Join(root, "docs", "library.md")
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?m)^<!-- (\\w+)\\.(\\w+) -->\n(?:\n```go\n(?s:.*?)\n```\n)?")
	count := 0
	want := block.ReplaceAllStringFunc(string(text), func(found string) string {
		count++
		name := block.FindStringSubmatch(found)
		return "<!-- " + name[1] + "." + name[2] + " -->\n\n```go\n" +
			exampleBody(t, root, name[1], name[2]) + "\n```\n"
	})
	if count < 8 {
		t.Errorf("%d examples", count)
	}
	if want == string(text) {
		return
	}
	if os.Getenv("STREAMDP_WRITE") != "" {
		if err := os.WriteFile(guide, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Error("the code in docs/library.md differs from the examples: STREAMDP_WRITE=1 go test -run Guide ./dp writes it")
}

// exampleBody returns the body of an example, without one tab of indentation.
func exampleBody(t *testing.T, root, pkg, name string) string {
	t.Helper()
	path := filepath.Join(root, pkg, "example_test.go")
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
			body := string(source[files.Position(f.Body.Lbrace).Offset+1 : files.Position(f.Body.Rbrace).Offset])
			return strings.Trim(strings.ReplaceAll(body, "\n\t", "\n"), "\n")
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return ""
}
