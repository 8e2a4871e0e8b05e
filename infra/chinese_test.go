package infra_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// code is what stands in backticks, one line or several, with its blanks made one.
func code(t *testing.T, file string) (spans []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(b), "")
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		spans = append(spans, strings.Join(strings.Fields(m[1]), " "))
	}
	slices.Sort(spans)
	return spans
}

func TestTheChineseGuideHasTheSameCommandsAndTheSameSections(t *testing.T) {
	english, chinese := code(t, "README.md"), code(t, "README.zh-CN.md")
	own := []string{"LOWTIDE_MIRROR", "border: china", "border: cross", "go.sum"} // of the section on building in China
	for _, span := range english {
		if i := slices.Index(chinese, span); i >= 0 {
			chinese = slices.Delete(chinese, i, i+1)
		} else {
			t.Errorf("README.zh-CN.md lacks `%s`", span)
		}
	}
	for _, span := range chinese {
		if !slices.Contains(own, span) {
			t.Errorf("README.zh-CN.md has `%s`, which README.md has not", span)
		}
	}
	sections := func(file string) int {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n## ")
	}
	if e, c := sections("README.md"), sections("README.zh-CN.md"); c != e+1 {
		t.Errorf("%d sections and %d, want one more, on building in China", e, c)
	}
	b, err := os.ReadFile("README.zh-CN.md")
	if err != nil || !strings.Contains(string(b), "go env -w GOPROXY=https://goproxy.cn,direct") {
		t.Errorf("no GOPROXY line (%v)", err)
	}
}
