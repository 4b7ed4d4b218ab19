package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// TestNoise checks that only three places implement dp.Noise: dp, with keys; dptest, which no program contains; and the
// audits. The audits do not export their noise: no exported function, method or field provides it, either there or in
// the suites that build audits. So a program that contains the audits cannot release anything with their noise.
func TestNoise(t *testing.T) {
	root := cases.Root(t)
	found := map[string]int{}
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
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "Row" &&
				signature(f.Type) == "string []int64" {
				found[filepath.ToSlash(folder)]++
			}
			if f := filepath.ToSlash(folder); f == "internal/audit" || f == "internal/audit/suites" {
				for _, name := range gives(decl) {
					t.Errorf("%s: %s exports noise", f, name)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, n := range found {
		if !slices.Contains([]string{"dp", "internal/audit", "internal/testing/dptest"}, folder) {
			t.Errorf("%s has %d sources of noise", folder, n)
		}
	}
	if found["dp"] == 0 || found["internal/audit"] == 0 || found["internal/testing/dptest"] == 0 {
		t.Errorf("found sources of noise in %v only", found)
	}
}

// signature returns the types of a function's parameters.
func signature(f *ast.FuncType) string {
	var types []string
	for _, p := range f.Params.List {
		for range max(1, len(p.Names)) {
			types = append(types, text(p.Type))
		}
	}
	return strings.Join(types, " ")
}

func text(e ast.Expr) string { return types.ExprString(e) }

// gives returns the exported names in a declaration through which noise could leave the package.
func gives(decl ast.Decl) (names []string) {
	noise := func(e ast.Expr) bool {
		s := text(e)
		return strings.Contains(s, "dp.Noise") || strings.Contains(s, "dp.Row") || strings.Contains(s, "Source") ||
			strings.Contains(s, "Epoch")
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		receiver := true
		if d.Recv != nil {
			receiver = ast.IsExported(strings.TrimPrefix(text(d.Recv.List[0].Type), "*"))
		}
		if d.Name.IsExported() && receiver && d.Type.Results != nil {
			for _, r := range d.Type.Results.List {
				if noise(r.Type) {
					names = append(names, d.Name.Name)
				}
			}
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Type != nil && noise(s.Type) {
						names = append(names, n.Name)
					}
				}
			case *ast.TypeSpec:
				st, ok := s.Type.(*ast.StructType)
				if !ok || !s.Name.IsExported() {
					continue
				}
				for _, f := range st.Fields.List {
					for _, n := range f.Names {
						if n.IsExported() && noise(f.Type) {
							names = append(names, s.Name.Name+"."+n.Name)
						}
					}
					if len(f.Names) == 0 && noise(f.Type) {
						names = append(names, s.Name.Name)
					}
				}
			}
		}
	}
	return names
}
