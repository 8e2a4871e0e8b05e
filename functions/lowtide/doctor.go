package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
	"lowtide/shared/parcel"
	"lowtide/shared/provider"
	clouds "lowtide/shared/provider/all"
)

// The results of an examination.
const (
	healthy = "ok"
	limping = "warn" // lowtide works, and does less
	ill     = "fail"
)

// finding is one line of the examination.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Found  string `json:"found"`
	Mend   string `json:"mend,omitempty"`
}

func doctorCommand() *cobra.Command {
	var o common
	cmd := &cobra.Command{
		Use: "doctor", Short: "Looks at credentials, permissions, quotas, image, mirror, bucket, clock and NATS; each finding with its mend",
		Long: "Looks at what lowtide needs, and buys and changes nothing: at clouds only reading requests are let out, and the cloud's own\n" +
			"trial of a purchase where it has one (EC2's DryRun). In the bucket it writes one small object.\n\n" +
			"Exit status: 0 nothing fails, 1 something does.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := doctor{getenv: os.Getenv, now: time.Now}
			d.all(cmd.Context(), o.state)
			if err := o.print(cmd.OutOrStdout(), d.found, func(w io.Writer) { d.print(w) }); err != nil {
				return err
			}
			if n := d.count(ill); n > 0 {
				return failed("%d of %d checks fail", n, len(d.found))
			}
			return nil
		},
	}
	return o.on(cmd, true)
}

// doctor collects findings.
type doctor struct {
	getenv func(string) string
	now    func() time.Time
	found  []finding
}

func (d *doctor) note(check, result, found, mend string) {
	d.found = append(d.found, finding{check, result, strings.Join(strings.Fields(found), " "), mend})
}

func (d *doctor) count(result string) (n int) {
	for _, f := range d.found {
		if f.Result == result {
			n++
		}
	}
	return n
}

func (d *doctor) print(w io.Writer) {
	fmt.Fprintln(w, "CHECK\tRESULT\tFOUND\tMEND")
	for _, f := range d.found {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Check, f.Result, f.Found, cmp.Or(f.Mend, "-"))
	}
}

// all looks at everything, in the order in which things must work.
func (d *doctor) all(ctx context.Context, state string) {
	bucket := d.nats(ctx, state)
	d.bucket(ctx, cmp.Or(bucket, d.getenv(agentBucket)))
	d.mirror(ctx)
	d.clouds(ctx)
}

// nats looks for a lowtide that runs, and returns where its checkpoints go.
func (d *doctor) nats(ctx context.Context, state string) (bucket string) {
	c, err := dial(ctx, state)
	if err != nil {
		d.note("nats", limping, err.Error(), "start one: lowtide run --state DIR; or set LOWTIDE_NATS_URL and LOWTIDE_NATS_CREDS for a deployment")
		return ""
	}
	defer c.nc.Close()
	if n := c.nc.MaxPayload(); n < 8<<20 {
		d.note("nats", ill, fmt.Sprintf("max_payload is %d bytes", n), "set max_payload: 8MB at the servers")
	}
	rtt, err := c.nc.RTT()
	if err != nil {
		d.note("nats", ill, err.Error(), "see that the servers run and can be reached")
		return c.Bucket
	}
	d.note("nats", healthy, fmt.Sprintf("%s answers in %s, version %s", c.nc.ConnectedUrlRedacted(), rtt.Round(10*time.Microsecond), c.nc.ConnectedServerVersion()), "")
	f, err := c.fleet(ctx)
	switch {
	case err != nil:
		d.note("fleet", ill, err.Error(), "see the daemon's log; was its state directory changed?")
	case f.Halted != "":
		d.note("fleet", limping, "nothing is bought: "+f.Halted, "lowtide resume, once you know why")
	default:
		d.note("fleet", healthy, fmt.Sprintf("%d workloads, %d machines", len(f.Workloads), len(f.Machines)), "")
	}
	return c.Bucket
}

// bucket writes an object once, is refused the second time, and reads it.
func (d *doctor) bucket(ctx context.Context, address string) {
	if address == "" {
		d.note("bucket", limping, "none is known", "run a lowtide, or set "+agentBucket)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	store, err := checkpoint.Open(ctx, address, []byte("a doctor's key, for nothing"), checkpoint.Options{Attempts: 1})
	if err != nil {
		d.note("bucket", ill, err.Error(), "see the URL (README, Buckets)")
		return
	}
	defer store.Close()
	text := []byte("lowtide doctor")
	if err = store.SaveCode(ctx, "doctor", parcel.Sum(text), text); err == nil {
		_, err = store.Code(ctx, "doctor", parcel.Sum(text))
	}
	if err != nil {
		d.note("bucket", ill, err.Error(), "give these credentials leave to list, read and write there")
		return
	}
	d.note("bucket", healthy, "an object was written and read", "")
}

// mirror fetches the agent as a machine would, and looks at the clock that comes with the answer.
func (d *doctor) mirror(ctx context.Context) {
	mirror := strings.TrimRight(d.getenv("LOWTIDE_MIRROR"), "/")
	if mirror == "" {
		return // said with each cloud that lacks it
	}
	for _, arch := range []string{"amd64", "arm64"} {
		variable := "LOWTIDE_MIRROR_SHA256_" + strings.ToUpper(arch)
		want := d.getenv(variable)
		if want == "" {
			continue
		}
		url := mirror + "/lowtide-linux-" + arch
		sum, date, err := fetchSum(ctx, url)
		switch {
		case err != nil:
			d.note("mirror "+arch, ill, fmt.Sprintf("%s: %v", url, err), "put the program there: CGO_ENABLED=0 GOOS=linux GOARCH="+arch+" go build -o lowtide-linux-"+arch+" ./functions/lowtide")
		case !strings.EqualFold(sum, want):
			d.note("mirror "+arch, ill, "its SHA-256 is "+sum, "set "+variable+" to it if that is your build; else put yours there")
		default:
			d.note("mirror "+arch, healthy, url, "")
		}
		d.clock(date)
	}
}

// skewed is how far a clock may be off before signatures are refused and tokens expire early.
const skewed = 30 * time.Second

func (d *doctor) clock(date time.Time) {
	if date.IsZero() || slices.ContainsFunc(d.found, func(f finding) bool { return f.Check == "clock" }) {
		return
	}
	if off := d.now().Sub(date); off.Abs() > skewed {
		d.note("clock", ill, fmt.Sprintf("it is %s off, by the mirror's", off.Round(time.Second)), "let NTP set this host's clock: clouds refuse its signatures")
		return
	}
	d.note("clock", healthy, "as the mirror's", "")
}

func fetchSum(ctx context.Context, url string) (sum string, date time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", date, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", date, err
	}
	defer resp.Body.Close()
	date, _ = http.ParseTime(resp.Header.Get("Date"))
	if resp.StatusCode != http.StatusOK {
		return "", date, errors.New(resp.Status)
	}
	h := sha256.New()
	_, err = io.Copy(h, io.LimitReader(resp.Body, 1<<30))
	return hex.EncodeToString(h.Sum(nil)), date, err
}

// clouds asks each configured account what it sells and what runs there, and tries a purchase where the cloud lets one.
func (d *doctor) clouds(ctx context.Context) {
	list, err := clouds.Open(ctx, clouds.Options{Getenv: d.getenv, Now: d.now, Dry: true})
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			d.note("settings", ill, line, "see the variables in shared/provider/all")
		}
	}
	configured := 0
	for _, c := range list {
		if c.Provider == nil {
			continue
		}
		configured++
		d.cloud(ctx, c)
	}
	if configured == 0 {
		d.note("clouds", limping, "none is configured", "lowtide offers says what each lacks; without any there is the fake one")
		return
	}
	for _, name := range []string{agentNATS, agentToken, agentBucket} {
		if d.getenv(name) == "" {
			d.note("machines", limping, name+" is not set: all is dry, since no machine could reach this lowtide", "set it (README, Clouds)")
		}
	}
}

func (d *doctor) cloud(ctx context.Context, c clouds.Cloud) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	all, err := c.Provider.Offers(ctx)
	if err != nil {
		d.note(c.Name+" offers", ill, err.Error(), remedy(c.Name, err))
		return
	}
	d.note(c.Name+" offers", healthy, fmt.Sprintf("%d", len(all)), "")
	if machines, err := c.Provider.List(ctx); err != nil {
		d.note(c.Name+" machines", ill, err.Error(), remedy(c.Name, err))
	} else {
		d.note(c.Name+" machines", healthy, fmt.Sprintf("%d are listed", len(machines)), "")
	}
	if c.Lacks != "" {
		d.note(c.Name+" launch", limping, "offers only: "+c.Lacks+" is not set", "set it to buy there")
		return
	}
	i := slices.IndexFunc(all, func(o fleet.Offer) bool { return o.Market == fleet.OnDemand && o.Term == 0 && o.Stock.Or(1) > 0 })
	switch {
	case c.Try == nil:
		d.note(c.Name+" launch", limping, "not tried: this cloud, or its adapter, has no trial of a purchase", "the first purchase shows it")
	case i < 0:
		d.note(c.Name+" launch", limping, "not tried: nothing is on offer on demand", "")
	default:
		want := provider.Request{
			Token: "lowtide-doctor", Name: "lowtide-doctor", Offer: all[i], UserData: "LOWTIDE_MACHINE=doctor\n",
			Labels: provider.Labels{Fleet: "doctor", Install: "doctor", Plan: "doctor", Machine: "lowtide-doctor"},
		}
		if err := c.Try(ctx, want); err != nil {
			d.note(c.Name+" launch", ill, err.Error(), remedy(c.Name, err))
			return
		}
		d.note(c.Name+" launch", healthy, all[i].String()+" would be sold: permissions, image and quota do", "")
	}
}

// remedy is what to do about an error of the closed list.
func remedy(cloud string, err error) string {
	switch {
	case errors.Is(err, provider.ErrDenied):
		return "give these credentials leave (template.yaml names each action), or see whether they have expired"
	case errors.Is(err, provider.ErrQuota):
		return "ask " + cloud + " for a higher quota of this family in this region"
	case errors.Is(err, provider.ErrNoCapacity):
		return "none to be had now; try again, or allow more regions"
	case errors.Is(err, provider.ErrInvalid):
		return "see image, subnets and regions in the settings"
	case errors.Is(err, provider.ErrThrottled), errors.Is(err, provider.ErrUnavailable):
		return "try again in a few minutes; see that this host reaches the cloud"
	case errors.Is(err, provider.ErrRefusedHere):
		return "lowtide refuses by itself: see what it says"
	}
	return "see what it says"
}
