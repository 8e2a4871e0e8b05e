package shared_test

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pkg is what `go list` says of one of our packages.
type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
}

// load lists our packages as they build without cgo, which is how they are released.
func load(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles", "./...")
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	return pkgs
}

// rules says who may import whom, of ours; the first row whose folder holds the package counts.
// "x/..." is a folder and all below; a package may always import what lies in its own folder.
var rules = []struct {
	of  string
	may []string
}{
	{"shared/market", nil},
	{"shared/fleet", nil},
	{"shared/plan/pool", []string{"shared/fleet"}},
	{"shared/plan", []string{"shared/fleet", "shared/plan/pool"}},
	{"shared/gpu", []string{"shared/fleet"}},
	{"events", []string{"shared/fleet"}},
	{"shared/provider/fake", []string{"shared/fleet", "shared/provider", "shared/market"}},
	{"shared/provider/providertest", []string{"shared/fleet", "shared/provider", "shared/provider/fake", "shared/market"}},
	{"shared/provider/all", []string{"shared/fleet", "shared/provider/..."}},
	{"shared/provider", []string{"shared/fleet", "shared/provider"}}, // an adapter knows no other
	{"shared/bus", []string{"shared/fleet", "events"}},
	{"shared/store", []string{"shared/fleet", "events"}},
	{"shared/checkpoint", []string{"shared/fleet", "events"}},
	{"shared/fn", []string{"shared/fleet", "events", "shared/bus", "shared/store"}},
	{"shared/order", []string{"shared/fleet", "events"}},
	{"shared", nil},
	{"benchrunner", []string{"events", "shared/fleet", "shared/gpu/...", "shared/bus"}},
	{"functions/lowtide", []string{"..."}},
	{"functions", []string{"events", "shared/..."}},
}

func within(path, folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }

func allowed(path, imported string) bool {
	for _, r := range rules {
		if !within(path, r.of) {
			continue
		}
		for _, m := range r.may {
			folder, below := strings.CutSuffix(m, "...")
			if imported == m || below && (folder == "" || within(imported, strings.TrimSuffix(folder, "/"))) {
				return true
			}
		}
		standIn := r.of == "shared/provider" && strings.HasSuffix(path, "test") // of a vendor, over the fake cloud
		return within(imported, home(path, r.of)) || standIn && imported == "shared/provider/fake"
	}
	return false
}

// home is the folder whose packages belong together: a function's or an adapter's own, or the row's.
func home(path, of string) string {
	if of == "functions" || of == "shared/provider" {
		parts := strings.Split(path, "/")
		return strings.Join(parts[:min(len(parts), strings.Count(of, "/")+2)], "/")
	}
	return of
}

func TestPackagesImportOnlyWhatTheDesignAllows(t *testing.T) {
	for _, p := range load(t) {
		path := strings.TrimPrefix(p.ImportPath, "lowtide/")
		for _, i := range p.Imports {
			imported, ours := strings.CutPrefix(i, "lowtide/")
			if !ours {
				continue
			}
			if !allowed(path, imported) {
				t.Errorf("%s imports %s: the table in house_test.go does not allow it", path, imported)
			}
			if strings.HasPrefix(path, "functions/") && !within(path, "functions/lowtide") && within(imported, "shared/bus") {
				t.Errorf("%s imports shared/bus: a function says facts, its host publishes", path)
			}
		}
	}
}

// homes says where a heavy outside module may be imported.
var homes = map[string][]string{
	"github.com/nats-io/nats-server/": {"functions/lowtide"},
	"github.com/NVIDIA/go-nvml":       {"shared/gpu"},
	"github.com/aws/aws-lambda-go":    {"shared/fn"},
	"gocloud.dev/":                    {"shared/checkpoint", "functions/lowtide"},
	"gonum.org/":                      {"functions/lowtide", "benchrunner"},
	"github.com/aws/aws-sdk-go-v2":    {"shared/provider/aws", "shared/checkpoint", "shared/fn/lambda", "functions/lowtide/relay", "functions/lowtide/secrets"},
	"github.com/slack-go/":            {"functions/notify", "functions/chatops"},
	"cel.dev/":                        {"functions/rules"},
	"github.com/netresearch/go-cron":  {"functions/rules"},
}

func TestHeavyModulesStayInTheirHomes(t *testing.T) {
	for _, p := range load(t) {
		path := strings.TrimPrefix(p.ImportPath, "lowtide/")
		for _, i := range p.Imports {
			for module, folders := range homes {
				if strings.HasPrefix(i, module) && !slices.ContainsFunc(folders, func(f string) bool { return within(path, f) }) {
					t.Errorf("%s imports %s, which belongs into %v", path, i, folders)
				}
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range load(t) {
		if !slices.ContainsFunc(p.GoFiles, func(f string) bool {
			tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.PackageClauseOnly|parser.ParseComments)
			return err == nil && tree.Doc != nil && len(strings.TrimSpace(tree.Doc.Text())) > 40
		}) {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

func TestWhatIsSharedHasTwoUsers(t *testing.T) {
	users := map[string]map[string]bool{}
	pkgs := load(t)
	for _, p := range pkgs {
		for _, i := range p.Imports {
			if users[i] == nil {
				users[i] = map[string]bool{}
			}
			users[i][p.ImportPath] = true
		}
	}
	for _, p := range pkgs {
		path := strings.TrimPrefix(p.ImportPath, "lowtide/")
		// Adapters have one user by design; suites are used by tests; parts of a package belong to it.
		if !strings.HasPrefix(path, "shared/") || strings.Count(path, "/") > 1 {
			continue
		}
		if n := len(users[p.ImportPath]); n < 2 {
			t.Errorf("%s has %d users: what one program uses moves into its folder", path, n)
		}
	}
}
