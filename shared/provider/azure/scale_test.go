package azure_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"

	"lowtide/shared/provider/azure"
)

// feed is the price feed of a region: rows of all sizes in pages of a thousand, of which few are of GPUs, without a network.
type feed [][]byte

func newFeed(tb testing.TB, rows int) feed {
	tb.Helper()
	var out feed
	for from := 0; from < rows; from += 1000 {
		var items []map[string]any
		for i := from; i < min(from+1000, rows); i++ {
			size := fmt.Sprintf("Standard_D%ds_v5", i)
			if i%20 == 0 {
				size = []string{"Standard_NC24ads_A100_v4", "Standard_ND96isr_H100_v5", "Standard_NC16as_T4_v3"}[i/20%3]
			}
			items = append(items, map[string]any{
				"currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": 1 + float64(i%7)/10, "unitPrice": 1.0, "armRegionName": "eastus", "location": "US East",
				"effectiveStartDate": "2026-01-01T00:00:00Z", "meterId": "25385797-d48b-5b47-9e0c-6ee37b6b9a8d", "meterName": "m", "productId": "DZH318Z0K9JH",
				"skuId": "DZH318Z0K9JH/00QW", "productName": "Virtual Machines Series", "skuName": "sku", "serviceName": "Virtual Machines", "serviceId": "DZH313Z7MMC8",
				"serviceFamily": "Compute", "unitOfMeasure": "1 Hour", "type": "Consumption", "isPrimaryMeterRegion": true, "armSkuName": size,
			})
		}
		page := map[string]any{"Items": items, "NextPageLink": nil, "Count": len(items)}
		if from+1000 < rows {
			page["NextPageLink"] = fmt.Sprintf("https://prices.azure.com:443/api/retail/prices?page=%d", len(out)+1)
		}
		b, err := json.Marshal(page)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

func (f feed) RoundTrip(r *http.Request) (*http.Response, error) {
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(f[n])), Request: r}, nil
}

// BenchmarkAWholeRegionsPrices reads the largest answer of all clouds: every size of a region, at all its prices.
func BenchmarkAWholeRegionsPrices(b *testing.B) {
	pages := newFeed(b, 8000)
	a := azure.New(azure.Settings{Regions: []string{"eastus"}, Client: &http.Client{Transport: pages}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Offers(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
