# How every Lambda function is built. SAM calls build-<LogicalId> with ARTIFACTS_DIR set, in a scratch copy of the function's
# folder or, with --build-in-source, in the folder itself; either way what is built is the folder that the Makefile lies
# in, within its module. SAM does not say for which architecture: GOARCH and the template's parameter Architecture must
# agree (GOARCH=amd64 for x86_64).
# -buildvcs=false: with the commit in the binary, every commit would change every function.
GOARCH ?= arm64

build-%:
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -C "$(dir $(abspath $(firstword $(MAKEFILE_LIST))))" \
		-trimpath -buildvcs=false -tags lambda.norpc -ldflags '-s -w' -o "$(ARTIFACTS_DIR)/bootstrap" .
