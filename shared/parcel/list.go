package parcel

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
)

// list walks a directory, in the order of names, without what .gitignore leaves out.
func list(dir string) ([]entry, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	w := &walk{root: dir}
	if err := w.above(); err != nil {
		return nil, err
	}
	if err := w.into(""); err != nil {
		return nil, err
	}
	return w.all, nil
}

type walk struct {
	root  string
	base  []string            // from the repository to root
	rules []gitignore.Pattern // from the outermost directory in
	all   []entry
}

// above reads the rules of the directories between the repository that root lies in, if there is one, and root.
func (w *walk) above() error {
	at, err := filepath.Abs(w.root)
	if err != nil {
		return err
	}
	var dirs, base []string // from root outwards
	for {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			break
		}
		up := filepath.Dir(at)
		if up == at {
			return nil // no repository
		}
		dirs, base = append(dirs, up), append(base, filepath.Base(at))
		at = up
	}
	slices.Reverse(dirs)
	slices.Reverse(base)
	for i, d := range dirs {
		rules, err := ignored(filepath.Join(d, ".gitignore"), base[:i])
		if err != nil {
			return err
		}
		w.rules = append(w.rules, rules...)
	}
	w.base = base
	return nil
}

// parts is a name below root as the rules count it.
func (w *walk) parts(name string) []string {
	parts := w.base[:len(w.base):len(w.base)]
	if name == "" {
		return parts
	}
	return append(parts, strings.Split(name, "/")...)
}

// into lists a directory below the root.
func (w *walk) into(name string) error {
	rules := w.rules
	defer func() { w.rules = rules }()
	own, err := ignored(filepath.Join(w.root, filepath.FromSlash(name), ".gitignore"), w.parts(name))
	if err != nil {
		return err
	}
	w.rules = append(rules[:len(rules):len(rules)], own...)
	matcher := gitignore.NewMatcher(w.rules)
	found, err := os.ReadDir(filepath.Join(w.root, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	for _, f := range found {
		below := path.Join(name, f.Name())
		if f.Name() == ".git" || matcher.Match(w.parts(below), f.IsDir()) {
			continue
		}
		if err := w.take(below, f); err != nil {
			return err
		}
	}
	return nil
}

// take lists one thing, and what is below it.
func (w *walk) take(name string, f fs.DirEntry) error {
	info, err := f.Info()
	if err != nil {
		return err
	}
	e := entry{name: name, path: filepath.Join(w.root, filepath.FromSlash(name)), mode: info.Mode()}
	switch {
	case f.IsDir():
		w.all = append(w.all, e)
		return w.into(name)
	case e.mode.Type() == fs.ModeSymlink:
		link, err := os.Readlink(e.path)
		if err != nil {
			return err
		}
		if e.link = filepath.ToSlash(link); leaves(name, e.link) {
			return fmt.Errorf("%s is a link to %s, which is not in the directory: copy what it points to, or list it in .gitignore", name, link)
		}
	case e.mode.IsRegular():
		e.size = info.Size()
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a link: remove it, or list it in .gitignore", name)
	}
	w.all = append(w.all, e)
	return nil
}

// ignored reads a .gitignore; where there is none, there are no rules.
func ignored(file string, domain []string) (rules []gitignore.Pattern, err error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if line := s.Text(); strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			rules = append(rules, gitignore.ParsePattern(line, domain))
		}
	}
	return rules, s.Err()
}
