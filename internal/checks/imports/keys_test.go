package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestKeys checks that all keys are derived in internal/keys/keys.go, so that its list of purposes is complete. No
// other file of a program may import HKDF, and every call of keys.Derive must name a constant of that list.
func TestKeys(t *testing.T) {
	root := cases.Root(t)
	var found, calls int
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if path, err = filepath.Rel(root, path); err != nil {
			return err
		}
		if filepath.ToSlash(path) == "internal/keys/keys.go" {
			found++
			return nil
		}
		for _, in := range file.Imports {
			name, err := strconv.Unquote(in.Path.Value)
			if err != nil {
				return err
			}
			if strings.HasSuffix(name, "/hkdf") {
				t.Errorf("%s imports %s: derive the key with keys.Derive", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			if name := selected(call.Fun); name != "Derive" && name != "DeriveFor" && name != "DeriveWithNonce" {
				return true
			}
			if !strings.HasPrefix(selected(call.Args[1]), "For") {
				t.Errorf("%s derives a key for a purpose that is not a constant of keys", path)
			}
			calls++
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found != 1 || calls < 10 {
		t.Errorf("found internal/keys/keys.go %d times, and %d calls that derive a key; want 1, and 10 or more",
			found, calls)
	}
}

// selected returns NAME if e is keys.NAME, otherwise "".
func selected(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok && x.Name == "keys" {
			return s.Sel.Name
		}
	}
	return ""
}
