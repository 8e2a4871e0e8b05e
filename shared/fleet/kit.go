package fleet

import (
	"fmt"
	"path"
	"strings"
)

// Kit is what a workload brings along to each of its machines: references and hashes, never the bytes.
type Kit struct {
	Code    string            `json:"code,omitempty"`    // SHA-256 of its packed directory, in the bucket; "": none
	Bytes   int64             `json:"bytes,omitempty"`   // of that, packed
	Setup   []string          `json:"setup,omitempty"`   // command, once on each machine, in the directory, before the first run
	Secrets map[string]Secret `json:"secrets,omitempty"` // by the variable that the job finds each in
	Image   string            `json:"image,omitempty"`   // container image in which all of it runs, where a machine can
	Verify  []string          `json:"verify,omitempty"`  // command that a machine must pass after the benchmark
	Data    Data              `json:"data,omitzero"`     // that the job reads itself
}

// Data is what a job reads from a bucket.
type Data struct {
	URL   string `json:"url,omitempty"` // "": none
	Bytes int64  `json:"bytes,omitempty"`
}

// Secret says where a secret is found, by whoever hands it to a machine. It is a reference and may be told.
type Secret string

// The kinds of references.
const (
	SecretEnv  = "env"    // env:NAME, the variable LOWTIDE_SECRET_NAME where lowtide runs
	SecretFile = "file"   // file:NAME, below the directory of secrets there
	SecretAWS  = "aws-sm" // aws-sm:NAME or its ARN, of Secrets Manager; #KEY behind it takes one field of a JSON object
	SecretSSM  = "ssm"    // ssm:NAME, a parameter of Systems Manager
)

// Split is the reference's kind and name; it is an error if that cannot be one.
func (s Secret) Split() (kind, name string, err error) {
	kind, name, _ = strings.Cut(string(s), ":")
	switch kind {
	case SecretEnv, SecretFile, SecretAWS, SecretSSM:
	default:
		return "", "", fmt.Errorf("%q is no reference; write env:NAME, file:NAME, aws-sm:NAME or ssm:NAME, never the secret itself", clipped(string(s)))
	}
	if name == "" || strings.ContainsAny(name, " \t\n\x00") || len(name) > 512 {
		return "", "", fmt.Errorf("%q names nothing behind %q", clipped(string(s)), kind+":")
	}
	if kind == SecretFile && (path.IsAbs(name) || path.Clean(name) != name || strings.HasPrefix(name, "..")) {
		return "", "", fmt.Errorf("%q must name a file below the directory of secrets, such as file:team/token", clipped(string(s)))
	}
	return kind, name, nil
}

// clipped keeps what may be the secret itself, written in the wrong place, from being told.
func clipped(s string) string {
	if i := strings.IndexByte(s, ':'); i > 0 && i < 12 {
		return s
	}
	if len(s) > 4 {
		return s[:4] + "…"
	}
	return s
}
