// Package shared holds only what two or more of lowtide's programs use, one folder a subject.
// It has no code of its own: house_test.go beside this file checks who may import whom.
package shared
