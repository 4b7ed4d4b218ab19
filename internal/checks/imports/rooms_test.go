package imports

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/cases"
)

// rooms are parts of packages that cannot be packages of their own, because their exported names belong to one import
// path. Nothing in the files of `below` may use a declaration in the files of `above`. Both are patterns of file names;
// "!" means all files except these.
var rooms = []struct{ in, below, above string }{
	// Batch solvers, which have all records, do not use the estimators for streams, and vice versa.
	{"sgd", "!batch_*", "batch_*"},
	{"sgd", "batch_*", "sgd.go amb* newton*"},
	// Newton steps may use declarations of AMB, but not vice versa. sgd.go chooses between them.
	{"sgd", "!newton* sgd.go", "newton*"},
	// Budgets, errors and covariances need no estimator.
	{"moments", "sensitivity.go tradeoff.go overlap.go project.go density.go elliptope.go",
		"!sensitivity.go tradeoff.go overlap.go project.go density.go elliptope.go"},
	// Accounting, data and matrices use no solver, and solvers do not use the estimator for streams.
	{"refit", "calibrate.go data.go sums.go linalg.go wht.go srht.go",
		"!calibrate.go data.go sums.go linalg.go wht.go srht.go"},
	{"refit", "!config.go person.go plan.go refit.go part.go part_state.go",
		"config.go person.go plan.go refit.go part.go part_state.go"},
	// blt_forms.go uses no other file of the package, and no other file uses error.go.
	{"matfact", "blt_forms.go", "!blt_forms.go"},
	{"matfact", "!error.go", "error.go"},
}

// matches reports whether a pattern includes a file.
func matches(file, pattern string) bool {
	names, others := strings.CutPrefix(pattern, "!")
	for _, name := range strings.Fields(names) {
		if ok, _ := filepath.Match(name, file); ok {
			return !others
		}
	}
	return others
}

func TestRooms(t *testing.T) {
	root := cases.Root(t)
	set := token.NewFileSet()
	type use struct{ by, of, name string } // the file `by` uses a name that the file `of` declares
	uses := map[string]map[use]bool{}
	files := map[string][]string{}
	for _, room := range rooms {
		if uses[room.in] != nil {
			continue
		}
		uses[room.in] = map[use]bool{}
		var parsed []*ast.File
		paths, err := filepath.Glob(filepath.Join(root, room.in, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, file)
			files[room.in] = append(files[room.in], filepath.Base(path))
		}
		// The package's own declarations, methods and fields can be resolved without its imports.
		info := types.Info{Uses: map[*ast.Ident]types.Object{}}
		config := types.Config{Importer: nothing{}, Error: func(error) {}}
		pkg, _ := config.Check(room.in, set, parsed, &info)
		for id, object := range info.Uses {
			if object.Pkg() != pkg || !object.Pos().IsValid() {
				continue
			}
			if _, imported := object.(*types.PkgName); imported {
				continue
			}
			by, of := filepath.Base(set.Position(id.Pos()).Filename), filepath.Base(set.Position(object.Pos()).Filename)
			if by != of {
				uses[room.in][use{by, of, id.Name}] = true
			}
		}
	}
	for _, room := range rooms {
		var below, above int
		for _, file := range files[room.in] {
			if matches(file, room.below) {
				below++
			}
			if matches(file, room.above) {
				above++
			}
		}
		if below == 0 || above == 0 || len(uses[room.in]) < 50 {
			t.Errorf("%s: %d files below, %d above, %d uses between them", room.in, below, above, len(uses[room.in]))
		}
		for u := range uses[room.in] {
			if matches(u.by, room.below) && matches(u.of, room.above) {
				t.Errorf("%s/%s uses %s, of %s above it", room.in, u.by, u.name, u.of)
			}
		}
	}
}

// nothing is an importer that finds no package, because only declarations within the package matter.
type nothing struct{}

func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }
