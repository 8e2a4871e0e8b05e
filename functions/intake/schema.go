package intake

import _ "embed"

// Schema is the JSON Schema of the workload file, for editors and other tools. It takes all that Parse takes.
//
//go:embed schema.json
var Schema []byte
