// Package infra is how lowtide is deployed: the SAM template at the top of the repository, the rule by which its functions
// are built (lambda.mk), NATS with its accounts and users (nats/), and the guide (README.md).
//
// It promises what its tests show: that what sam builds runs under Lambda's own emulator beside a real NATS and tells the
// story of a spot warning, that the template comes up, and that no role and no NATS user can do more than it needs.
// It holds no program.
package infra
