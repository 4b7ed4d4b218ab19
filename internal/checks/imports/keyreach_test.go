package imports

import (
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// keyless are the packages that cannot reach the master key: records enter through the first, and releases leave
// through the second.
var keyless = []string{"stream/input", "stream/output"}

// TestKeyReach checks that nothing in the packages of keyless can reach the master key. The program passes and stores
// that key only as a *[32]byte. So a package cannot reach the key if no expression of the package has a type that leads
// to a *[32]byte through fields (exported or not), elements, parameters or results. The packages also import nothing
// that reads key files, and derive no key. The test cannot look into functions and interfaces that are passed to the
// packages, such as the function that derives the keys of partial sums.
func TestKeyReach(t *testing.T) {
	root := cases.Root(t)
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, name := range keyless {
		args = append(args, "./"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p struct{ ImportPath, Export string }
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
	}
	set := token.NewFileSet()
	deps := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, name := range keyless {
		checkKeyless(t, root, name, set, deps)
	}
	// The test must find the key in a type that has it.
	w := keyWalk{seen: map[types.Type]bool{}}
	pkg, err := deps.Import(module + "stream/state")
	if err != nil {
		t.Fatal(err)
	}
	if w.visit(pkg.Scope().Lookup("Store").Type(), "Store"); len(w.found) == 0 {
		t.Error("state.Store has the master key, but the test does not find it")
	}
}

// checkKeyless checks one package.
func checkKeyless(t *testing.T, root, name string, set *token.FileSet, deps types.Importer) {
	paths, err := filepath.Glob(filepath.Join(root, name, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		for _, in := range file.Imports {
			if strings.Contains(in.Path.Value, "internal/credentials") {
				t.Errorf("%s imports %s, which reads key files", path, in.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && strings.HasPrefix(selected(call.Fun), "Derive") {
				t.Errorf("%s derives a key", set.Position(call.Pos()))
			}
			return true
		})
	}
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: deps}
	if _, err := config.Check(module+name, set, files, &info); err != nil {
		t.Fatal(err)
	}
	w := keyWalk{seen: map[types.Type]bool{}}
	for id, object := range info.Defs {
		if object != nil {
			w.visit(object.Type(), set.Position(id.Pos()).String()+": "+id.Name)
		}
	}
	for e, v := range info.Types {
		if v.Type != nil {
			w.visit(v.Type, set.Position(e.Pos()).String()+": "+types.ExprString(e))
		}
	}
	if len(w.seen) < 500 {
		t.Errorf("%s: only %d types seen", name, len(w.seen))
	}
	for _, path := range w.found {
		t.Errorf("%s reaches a key: %s", name, path)
	}
}

// keyWalk visits all types that can be reached from a type.
type keyWalk struct {
	seen  map[types.Type]bool
	found []string // the paths to a *[32]byte
}

func (w *keyWalk) visit(t types.Type, way string) {
	t = types.Unalias(t)
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Named:
		// Skip libraries, which have no master key, and internal/kafka, where a record has a pointer to its hash.
		if p := t.Obj().Pkg(); p != nil &&
			(!strings.HasPrefix(p.Path(), module) || p.Path() == module+"internal/kafka") {
			return
		}
		w.visit(t.Underlying(), way)
	case *types.Pointer:
		a, ok := types.Unalias(t.Elem()).(*types.Array)
		if ok && a.Len() == 32 && types.Identical(a.Elem(), types.Typ[types.Uint8]) {
			w.found = append(w.found, way)
			return
		}
		w.visit(t.Elem(), way)
	case *types.Struct:
		for f := range t.Fields() {
			w.visit(f.Type(), way+"."+f.Name())
		}
	case *types.Slice:
		w.visit(t.Elem(), way+"[]")
	case *types.Array:
		w.visit(t.Elem(), way+"[]")
	case *types.Chan:
		w.visit(t.Elem(), way+"<-")
	case *types.Map:
		w.visit(t.Key(), way+"[key]")
		w.visit(t.Elem(), way+"[]")
	case *types.Tuple:
		for v := range t.Variables() {
			w.visit(v.Type(), way+"()")
		}
	case *types.Signature:
		w.visit(t.Params(), way)
		w.visit(t.Results(), way)
	}
}
