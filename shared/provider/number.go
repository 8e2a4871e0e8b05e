package provider

import (
	"fmt"
	"strings"

	"github.com/shopspring/decimal"
)

// Number is a JSON number or one in quotes: some vendors' own examples have both. Null and "" are zero: no amount is.
type Number struct{ decimal.Decimal }

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(b []byte) error {
	s := strings.Trim(string(b), `"`)
	if s == "" || s == "null" {
		*n = Number{}
		return nil
	}
	d, err := decimal.NewFromString(s)
	if err != nil {
		return fmt.Errorf("%q is no number", s)
	}
	*n = Number{d}
	return nil
}
