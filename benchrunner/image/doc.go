// Package image holds the proof that benchrunner's container image works: it is built from ../Containerfile on a base made
// here, and run as a stranger's machine would run it, with fake GPU libraries inside.
//
// The proof is a test under the build tag "container": it needs root, podman, runc and debootstrap, and a mirror of Debian.
// The package has no code of its own.
package image
