# How every Lambda function is built. SAM calls build-<LogicalId> in the function's folder with ARTIFACTS_DIR, and does not
# say for which architecture: GOARCH and the template's parameter Architecture must agree (GOARCH=amd64 for x86_64).
# -buildvcs=false: with the commit in the binary, every commit would change every function.
GOARCH ?= arm64

build-%:
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) go build -trimpath -buildvcs=false -tags lambda.norpc -ldflags '-s -w' \
		-o "$(ARTIFACTS_DIR)/bootstrap" .
