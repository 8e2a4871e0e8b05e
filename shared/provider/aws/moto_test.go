package aws_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/aws"
	"lowtide/shared/provider/aws/awstest"
	"lowtide/shared/provider/fake"
	"lowtide/shared/provider/providertest"
)

// tool finds a program of the Python environment that .ci/run makes. Without it the test is skipped, but not in CI.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, p := range []string{filepath.Join(os.Getenv("LOWTIDE_PYTHON"), "bin", name), name} {
		if found, err := exec.LookPath(p); err == nil {
			return found
		}
	}
	msg := name + " is not here: python3 -m venv D && D/bin/pip install 'moto[ec2,server]' vastai, and set LOWTIDE_PYTHON=D"
	if os.Getenv("CI") != "" {
		t.Fatal(msg)
	}
	t.Skip(msg)
	return ""
}

// listening reads a server's own words up to the address it was given, and lets it talk on.
func listening(t *testing.T, said io.Reader) string {
	found := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(said)
		for lines.Scan() {
			if _, addr, ok := strings.Cut(lines.Text(), "Running on http://"); ok {
				found <- strings.TrimSpace(addr)
				break
			}
		}
		_, _ = io.Copy(io.Discard, said)
	}()
	select {
	case addr := <-found:
		return addr
	case <-time.After(90 * time.Second):
		t.Fatal("moto_server does not say where it runs")
		return ""
	}
}

// moto starts somebody else's EC2 and returns its address. It has no price list: those calls go to our stand-in.
func moto(t *testing.T) string {
	program := tool(t, "moto_server")
	cmd := exec.Command(program, "-H", "127.0.0.1", "-p", "0")
	cmd.Env = append(os.Environ(), "MOTO_EC2_LOAD_DEFAULT_AMIS=true")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	addr := listening(t, said)
	c, err := fake.Open(awstest.Market())
	if err != nil {
		t.Fatal(err)
	}
	prices, ec2 := awstest.New(c, &fake.Knobs{Now: time.Now}), httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Amz-Target") != "" {
			prices.ServeHTTP(w, r)
			return
		}
		ec2.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// image is any image that moto has.
func image(t *testing.T, endpoint string) string {
	t.Helper()
	body := url.Values{"Action": {"DescribeImages"}, "Version": {"2016-11-15"}}.Encode()
	req, err := http.NewRequest(http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=0") // how moto knows the service
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	m := regexp.MustCompile(`<imageId>(ami-[0-9a-f]+)</imageId>`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no image in %.300s", b)
	}
	return string(m[1])
}

func TestAWSAgainstMoto(t *testing.T) {
	endpoint := moto(t)
	a := aws.New(aws.Settings{
		Regions: []string{"us-east-1"}, Credentials: credentials, Endpoint: endpoint, Boot: boot, Images: map[string]string{"": image(t, endpoint)},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // moto computes what EC2 knows; a busy machine takes its time
	defer cancel()
	offers, err := a.Offers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	find := func(kind string, m fleet.Market) fleet.Offer {
		i := slices.IndexFunc(offers, func(o fleet.Offer) bool { return o.Type == kind && o.Market == m && o.Zone != "" })
		if i < 0 {
			t.Fatalf("%s %s is not among %d offers", kind, m, len(offers))
		}
		return offers[i]
	}
	od := find("g5.xlarge", fleet.OnDemand)
	if od.GPU != "A10G" || od.GPUs != 1 || od.Memory != 24 || !strings.HasPrefix(od.Zone, "use1-az") {
		t.Errorf("moto's g5.xlarge is read as %+v", od)
	}
	spot := find("g5.xlarge", fleet.Spot)
	bought := map[string]bool{}
	for i, o := range []fleet.Offer{od, spot} {
		plan := fmt.Sprintf("p%d", i)
		m, err := a.Launch(ctx, provider.Request{Token: "lt-" + plan, Name: "m-" + plan, Offer: o, Labels: providertest.Labels(plan), UserData: "A=1\n"})
		if err != nil {
			t.Fatalf("launch %s: %v", o, err)
		}
		if m.Offer.Pool() != o.Pool() || m.Since.IsZero() {
			t.Errorf("read back %+v, want %s", m.Offer, o)
		}
		bought[m.ID] = true
	}
	all, err := a.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if bought[m.ID] && (m.Labels.Install == "" || m.State == provider.Gone) {
			t.Errorf("%s is listed as %+v", m.ID, m)
		}
	}
	for id := range bought {
		if err := a.End(ctx, id); err != nil {
			t.Errorf("end: %v", err)
		}
	}
	all, err = a.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if bought[m.ID] && m.State != provider.Gone && m.State != provider.Ending {
			t.Errorf("after its end: %+v", m)
		}
	}
	if err := a.End(ctx, "i-0fffffffffffffff0"); provider.Word(err) != "not_found" {
		t.Errorf("end of nothing: %v", err)
	}
}
