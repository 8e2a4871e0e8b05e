module lowtide

go 1.26.0

require (
	github.com/fxamacker/cbor/v2 v2.10.0
	github.com/goccy/go-yaml v1.19.2
	github.com/google/go-cmp v0.7.0
	github.com/klauspost/compress v1.20.4
	github.com/shopspring/decimal v1.6.0
)

require github.com/x448/float16 v0.8.4 // indirect
