package aws_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"

	"lowtide/shared/provider"
	"lowtide/shared/provider/aws"
	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// boot is a mirror that nobody asks.
var boot = provider.Boot{Mirror: "https://mirror.example/lowtide", SHA256: map[string]string{"amd64": "00"}}

var credentials = sdk.CredentialsProviderFunc(func(context.Context) (sdk.Credentials, error) {
	return sdk.Credentials{AccessKeyID: awstest.KeyID, SecretAccessKey: awstest.Secret}, nil
})

func open(endpoint string, client *http.Client, now func() time.Time) provider.Provider {
	return aws.New(aws.Settings{
		Regions: []string{"us-east-1", "eu-central-1"}, Credentials: credentials, Endpoint: endpoint, Client: client, Now: now,
		Images: map[string]string{"": awstest.Image}, Boot: boot,
	})
}

// buys knows RunInstances; the body is put back.
func buys(r *http.Request) bool {
	b, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	v, _ := url.ParseQuery(string(b))
	return v.Get("Action") == "RunInstances"
}

func TestAWSKeepsTheContract(t *testing.T) {
	providertest.Vendor{
		Cloud:  awstest.Market(),
		Serve:  func(c *fake.Cloud, k *fake.Knobs) http.Handler { return awstest.New(c, k) },
		Open:   open,
		Buys:   buys,
		Reads:  aws.Reads,
		ID:     awstest.ID,
		Secret: []string{awstest.Secret, url.QueryEscape(awstest.Secret), awstest.KeyID},
		Nobody: "i-00000000000999999",
	}.Run(t)
}
