// Package all knows which clouds are configured: it reads their settings, checks them at once, makes the adapters and
// puts the wrappers around them. Beside main it is the only reader of the environment; the AWS SDK's own credential
// chain reads its variables and files besides.
//
//	LOWTIDE_MIRROR                  https:// folder with the agent, for bought machines   none: nothing can be launched
//	LOWTIDE_MIRROR_SHA256_AMD64     digest of lowtide-linux-amd64 there, hex              one of the two is needed
//	LOWTIDE_MIRROR_SHA256_ARM64     digest of lowtide-linux-arm64
//	LOWTIDE_CAP_HOURLY              USD an hour, an account, all machines together        none
//	LOWTIDE_CAP_MACHINES            machines at once, an account                          20
//	LOWTIDE_CAP_LAUNCHES            launches within an hour, an account                   20
//	LOWTIDE_BOOK                    file with the user's prices (ReadBook)                none
//	VAST_API_KEY                    vast: the key                                         without it: skipped
//	VAST_URL                        vast: its API                                         https://console.vast.ai
//	LOWTIDE_VAST_IMAGE              vast: the container that runs; sh, sha256sum, curl    none: offers only
//	LOWTIDE_VAST_DISK               vast: GB a machine                                    50
//	LAMBDA_API_KEY                  lambdalabs: the key                                   without it: skipped
//	LAMBDA_URL                      lambdalabs: its API                                   https://cloud.lambda.ai
//	LOWTIDE_LAMBDALABS_SSH_KEY      lambdalabs: name of an SSH key at the account         none: offers only
//	PAPERSPACE_API_KEY              paperspace: a team's key                              without it: skipped
//	PAPERSPACE_URL                  paperspace: its API                                   https://api.paperspace.com/v1
//	LOWTIDE_PAPERSPACE_REGIONS      paperspace: regions to buy in, with commas            ny2,ca1,ams1
//	LOWTIDE_PAPERSPACE_TEMPLATE     paperspace: operating-system template for all         none: offers only
//	                                machine types, or type=template,…
//	LOWTIDE_PAPERSPACE_DISK         paperspace: GB a machine, of the sizes that are sold  100
//	AWS_ACCESS_KEY_ID, AWS_PROFILE… aws: the SDK's own variables, files and roles         without any: skipped
//	LOWTIDE_AWS_REGIONS             aws: regions to buy in, with commas; set alone, the   AWS_REGION
//	                                credentials come from files or the machine's role
//	AWS_ENDPOINT_URL                aws: one address for all of its APIs                  the vendor's
//	LOWTIDE_AWS_IMAGE               aws: AMI for all regions, or region=ami,…             none: offers only
//	LOWTIDE_AWS_SUBNETS             aws: zone=subnet,… by zone name or id                 the default VPC's
//	LOWTIDE_AWS_SECURITY_GROUPS     aws: ids, with commas                                 the VPC's default
//	LOWTIDE_AWS_PROFILE             aws: instance profile of the machines                 none
//	LOWTIDE_AWS_BLOCKS              aws: types whose capacity blocks are shown            none
//	AZURE_SUBSCRIPTION_ID           azure: the subscription                               without it: skipped, or prices
//	AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET                                 alone with --public
//	                                azure: a service principal; needed with it
//	LOWTIDE_AZURE_REGIONS           azure: regions to buy in, with commas                 eastus
//	LOWTIDE_AZURE_URL               azure: one address for login, resources and prices    the vendor's
//	LOWTIDE_AZURE_GROUP             azure: resource group of the machines                 none: offers only
//	LOWTIDE_AZURE_IMAGE             azure: publisher:offer:sku:version or a resource id   none: offers only
//	                                for all regions, or region=image,…
//	LOWTIDE_AZURE_SUBNETS           azure: region=network/subnet of the group,…           none: offers only
//	LOWTIDE_AZURE_SSH_KEY           azure: the operator's public key                      none: offers only
//	LOWTIDE_AZURE_DISK              azure: GB of the system disk                          100
//	LOWTIDE_AZURE_ADDRESS           azure: "yes" gives machines a public address          none, the subnet needs a way out
//	TENCENTCLOUD_SECRET_ID, _KEY    tencent: the account's credentials                    without them: skipped
//	TENCENTCLOUD_SECURITY_TOKEN     tencent: of temporary credentials                     none: they last
//	LOWTIDE_TENCENT_REGIONS         tencent: regions to buy in, with commas               TENCENTCLOUD_REGION
//	LOWTIDE_TENCENT_CURRENCY        tencent: CNY on the China site, USD on the            without it: skipped, since
//	                                international one                                     no answer tells
//	LOWTIDE_TENCENT_URL             tencent: one address for all regions                  the vendor's
//	LOWTIDE_TENCENT_IMAGE           tencent: image for all regions, or region=img,…       none: offers only
//	LOWTIDE_TENCENT_SUBNETS         tencent: zone=vpc-…/subnet-…,…                        the default network
//	LOWTIDE_TENCENT_SECURITY_GROUPS tencent: ids, with commas                             the default
//	LOWTIDE_TENCENT_BANDWIDTH       tencent: Mbit/s outwards of a machine's public        100
//	                                address, billed by traffic
//	LOWTIDE_TENCENT_DISK            tencent: GB of the system disk                        the vendor's default
//	ALIBABA_CLOUD_ACCESS_KEY_ID     alibaba: the key's id                                 without it: skipped
//	ALIBABA_CLOUD_ACCESS_KEY_SECRET alibaba: the key; needed with its id
//	ALIBABA_CLOUD_SECURITY_TOKEN    alibaba: of temporary credentials                     none
//	LOWTIDE_ALIBABA_REGIONS         alibaba: regions to buy in, with commas               without any: skipped
//	LOWTIDE_ALIBABA_URL             alibaba: one address for ECS in all regions           the vendor's
//	LOWTIDE_ALIBABA_IMAGE           alibaba: image for all regions, or region=image,…     none: offers only
//	LOWTIDE_ALIBABA_VSWITCHES       alibaba: zone=vswitch,…; only there is bought         none: offers only
//	LOWTIDE_ALIBABA_SECURITY_GROUPS alibaba: group for all regions, or region=group,…     none: offers only
//	LOWTIDE_ALIBABA_DISK            alibaba: GB of the system disk                        100
//	LOWTIDE_ALIBABA_BANDWIDTH       alibaba: Mbit/s of a public address, paid by traffic  no address
//	LOWTIDE_ALIBABA_ROLE            alibaba: RAM role of the machines                     none
//	HUAWEICLOUD_SDK_AK              huawei: the key's id                                  without it: skipped
//	HUAWEICLOUD_SDK_SK              huawei: the key; needed with its id
//	HUAWEICLOUD_SDK_SECURITY_TOKEN  huawei: of temporary credentials                      none
//	LOWTIDE_HUAWEI_PROJECTS         huawei: region=project id,…: the regions to buy in    without any: skipped
//	LOWTIDE_HUAWEI_URL              huawei: one address for all regions and services      the vendor's
//	LOWTIDE_HUAWEI_BSS_URL          huawei: its billing API                               https://bss.myhuaweicloud.com
//	LOWTIDE_HUAWEI_SPOT             huawei: limit of spot, a share of the hourly price    none: spot, whose price is
//	                                such as 0.5                                           not told, is not offered
//	LOWTIDE_HUAWEI_IMAGE            huawei: image for all regions, or region=image,…      none: offers only
//	LOWTIDE_HUAWEI_SUBNETS          huawei: region=vpc id/subnet id,…                     none: offers only
//	LOWTIDE_HUAWEI_SECURITY_GROUPS  huawei: group id for all regions, or region=id,…      none: offers only
//	LOWTIDE_HUAWEI_DISK             huawei: GB of the system disk                         100
//	LOWTIDE_HUAWEI_BANDWIDTH        huawei: Mbit/s of an address, paid by traffic         no address
//	VOLCENGINE_ACCESS_KEY           volcengine: the key's id                              without it: skipped
//	VOLCENGINE_SECRET_KEY           volcengine: the key; needed with its id
//	VOLCENGINE_SESSION_TOKEN        volcengine: of temporary credentials                  none
//	LOWTIDE_VOLCENGINE_REGIONS      volcengine: regions to buy in, with commas            VOLCENGINE_REGION
//	LOWTIDE_VOLCENGINE_URL          volcengine: its API, of all regions                   the vendor's
//	LOWTIDE_VOLCENGINE_CURRENCY     volcengine: of spot prices, which come without one    CNY
//	LOWTIDE_VOLCENGINE_CONFIG       volcengine: the billing API's configuration code for  none: on demand and subscriptions
//	                                this account, {type} for the machine type             have no price but the book's
//	LOWTIDE_VOLCENGINE_ITEM         volcengine: its charge item code, likewise            none
//	LOWTIDE_VOLCENGINE_IMAGE        volcengine: image for all regions, or region=image,…  none: offers only
//	LOWTIDE_VOLCENGINE_SUBNETS      volcengine: zone=subnet,…; only there is bought       none: offers only
//	LOWTIDE_VOLCENGINE_SECURITY_GROUPS  volcengine: group for all regions, or region=…    none: offers only
//	LOWTIDE_VOLCENGINE_DISK         volcengine: GiB of the system disk                    100
//	LOWTIDE_VOLCENGINE_BANDWIDTH    volcengine: Mbit/s of an address, paid by traffic     no address
//	LOWTIDE_STATIC                  static: file of the machines that are there already   without it: skipped
//	                                (static.Read)
//
// It decides nothing, and it asks no cloud anything.
package all

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/alibaba"
	"lowtide/shared/provider/aws"
	"lowtide/shared/provider/azure"
	"lowtide/shared/provider/huawei"
	"lowtide/shared/provider/lambdalabs"
	"lowtide/shared/provider/paperspace"
	"lowtide/shared/provider/static"
	"lowtide/shared/provider/tencent"
	"lowtide/shared/provider/vast"
	"lowtide/shared/provider/volcengine"
)

// Options say how clouds are opened. Getenv is needed.
type Options struct {
	Getenv func(string) string
	Now    func() time.Time // time.Now
	Dry    bool             // nothing is ever written to a cloud
	Public bool             // also clouds that show their offers to anybody
	Only   []string         // names; none: all
}

// Cloud is one of the clouds that lowtide knows, configured or not.
type Cloud struct {
	Name     string
	Provider provider.Provider // in its wrappers; nil: skipped
	Skipped  string            // why, in one line; ""
	Lacks    string            // what keeps it from launching; "": nothing

	// Try asks the cloud whether it would sell, and does not buy; nil: the cloud has no such question.
	Try func(ctx context.Context, want provider.Request) error
}

// builder opens one cloud. An error that wraps errSkipped is no fault of the settings.
type builder struct {
	name string
	open func(context.Context, *reader) (made, error)
}

// made is an adapter before its wrappers.
type made struct {
	provider.Provider
	pace  provider.Pace
	lacks []string
	try   func(context.Context, provider.Request) error
}

var errSkipped = errors.New("")

func skip(format string, args ...any) error {
	return fmt.Errorf("%s%w", fmt.Sprintf(format, args...), errSkipped)
}

// builders are the clouds, in the order in which they are shown.
var builders = []builder{
	{"aws", openAWS},
	{"azure", openAzure},
	{"lambdalabs", openLambda},
	{"vast", openVast},
	{"paperspace", openPaperspace},
	{"tencent", openTencent},
	{"alibaba", openAlibaba},
	{"huawei", openHuawei},
	{"volcengine", openVolcengine},
	{"static", openStatic},
}

// Names are the clouds that lowtide knows.
func Names() []string {
	var out []string
	for _, b := range builders {
		out = append(out, b.name)
	}
	return out
}

// Open opens every cloud that the settings configure and says of the others why not. Settings that are wrong are an
// error with a line each.
func Open(ctx context.Context, o Options) ([]Cloud, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, n := range o.Only {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("there is no cloud %q; there are %s", n, strings.Join(Names(), ", "))
		}
	}
	r := &reader{o: o}
	caps := r.caps()
	var out []Cloud
	for _, b := range builders {
		if len(o.Only) > 0 && !slices.Contains(o.Only, b.name) {
			continue
		}
		m, err := b.open(ctx, r)
		switch {
		case errors.Is(err, errSkipped):
			out = append(out, Cloud{Name: b.name, Skipped: err.Error()})
		case err != nil:
			r.errs = append(r.errs, fmt.Errorf("%s: %w", b.name, err))
		default:
			out = append(out, Cloud{Name: b.name, Provider: wrap(m, caps, o), Lacks: strings.Join(m.lacks, ", "), Try: m.try})
		}
	}
	return out, errors.Join(r.errs...)
}

func openStatic(_ context.Context, r *reader) (made, error) {
	file := r.o.Getenv("LOWTIDE_STATIC")
	if file == "" {
		return made{}, skip("no machines of your own: set LOWTIDE_STATIC to the file that lists them")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return made{}, fmt.Errorf("LOWTIDE_STATIC: %w", err)
	}
	s := static.Settings{Now: r.o.Now}
	if s.Machines, err = static.Read(file, b); err != nil {
		return made{}, err
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	return made{Provider: static.New(s), pace: provider.Pace{PerSecond: 5, Burst: 10}, lacks: lacks}, nil
}

// wrap puts the wrappers on: the cap sees every launch once, each try of a retry waits for its turn.
func wrap(m made, caps provider.Caps, o Options) provider.Provider {
	p := provider.Retry(provider.Limit(m.Provider, m.pace), provider.Patience{})
	if o.Dry {
		return provider.Dry(p, o.Now)
	}
	return provider.Cap(p, caps, o.Now)
}

// reader reads settings and collects what is wrong.
type reader struct {
	o      Options
	errs   []error
	mirror *provider.Boot // nil: not read yet
	lacks  []string
}

func (r *reader) wrong(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

// number reads a whole number from 1 on.
func (r *reader) number(name string, otherwise int) int {
	v := r.o.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		r.wrong(name, "%q: want a whole number above zero", v)
		return otherwise
	}
	return n
}

func (r *reader) list(name string) []string {
	return strings.FieldsFunc(r.o.Getenv(name), func(c rune) bool { return c == ',' || c == ' ' })
}

// pairs reads key=value,key=value.
func (r *reader) pairs(name string) map[string]string {
	out := map[string]string{}
	for _, p := range r.list(name) {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" || v == "" {
			r.wrong(name, "%q: want name=value, with commas between", p)
			continue
		}
		out[k] = v
	}
	return out
}

// oneOrPairs reads one value for all, kept under "", or key=value,key=value.
func (r *reader) oneOrPairs(name string) map[string]string {
	v := r.o.Getenv(name)
	if v == "" || strings.Contains(v, "=") {
		return r.pairs(name)
	}
	return map[string]string{"": v}
}

func (r *reader) caps() provider.Caps {
	c := provider.Caps{Machines: r.number("LOWTIDE_CAP_MACHINES", 20), Launches: r.number("LOWTIDE_CAP_LAUNCHES", 20)}
	if v := r.o.Getenv("LOWTIDE_CAP_HOURLY"); v != "" {
		d, err := decimal.NewFromString(v)
		if err != nil || d.Sign() <= 0 {
			r.wrong("LOWTIDE_CAP_HOURLY", "%q: want USD an hour, above zero", v)
		}
		c.Hourly = fleet.Money{Amount: d, Currency: fleet.USD}
	}
	return c
}

// boot reads the mirror, once for all clouds, or what is wrong would be said for each; lacks says what is missing for a launch.
func (r *reader) boot() (provider.Boot, []string) {
	if r.mirror == nil {
		r.mirror, r.lacks = r.readBoot()
	}
	return *r.mirror, slices.Clone(r.lacks)
}

func (r *reader) readBoot() (b *provider.Boot, lacks []string) {
	b = &provider.Boot{Mirror: r.o.Getenv("LOWTIDE_MIRROR"), SHA256: map[string]string{}}
	for arch, name := range map[string]string{"amd64": "LOWTIDE_MIRROR_SHA256_AMD64", "arm64": "LOWTIDE_MIRROR_SHA256_ARM64"} {
		if v := r.o.Getenv(name); len(v) == 64 {
			b.SHA256[arch] = strings.ToLower(v)
		} else if v != "" {
			r.wrong(name, "want a SHA-256 in 64 hexadecimal digits")
		}
	}
	if b.Mirror == "" {
		lacks = append(lacks, "LOWTIDE_MIRROR")
	} else if len(b.SHA256) == 0 {
		lacks = append(lacks, "LOWTIDE_MIRROR_SHA256_AMD64 or _ARM64")
	}
	return b, lacks
}

// client is an HTTP client for a cloud's API: no redirects, and in a dry run nothing that writes.
func (r *reader) client(reads func(*http.Request) bool) *http.Client {
	c := &http.Client{Timeout: 60 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if r.o.Dry {
		c.Transport = provider.ReadOnly(http.DefaultTransport, reads)
	}
	return c
}

func openVast(_ context.Context, r *reader) (made, error) {
	key := r.o.Getenv("VAST_API_KEY")
	if key == "" && !r.o.Public {
		return made{}, skip("VAST_API_KEY is not set (its offers can be read without: --public)")
	}
	s := vast.Settings{
		URL: r.o.Getenv("VAST_URL"), Key: key, Image: r.o.Getenv("LOWTIDE_VAST_IMAGE"), Disk: r.number("LOWTIDE_VAST_DISK", 50),
		Client: r.client(vast.Reads), Now: r.o.Now, Reliable: 0.95,
	}
	if s.URL == "" { // another address is a stand-in, which is in no hurry to refuse
		s.Pace = vast.Published()
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	if key == "" {
		lacks = append([]string{"VAST_API_KEY"}, lacks...)
	}
	if s.Image == "" {
		lacks = append(lacks, "LOWTIDE_VAST_IMAGE")
	}
	return made{Provider: vast.New(s), lacks: lacks}, nil
}

func openLambda(_ context.Context, r *reader) (made, error) {
	key := r.o.Getenv("LAMBDA_API_KEY")
	if key == "" {
		return made{}, skip("LAMBDA_API_KEY is not set")
	}
	s := lambdalabs.Settings{
		URL: r.o.Getenv("LAMBDA_URL"), Key: key, SSHKey: r.o.Getenv("LOWTIDE_LAMBDALABS_SSH_KEY"), Client: r.client(lambdalabs.Reads), Now: r.o.Now,
	}
	if s.URL == "" { // another address is a stand-in, which is in no hurry to refuse
		s.Pace = lambdalabs.Published()
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	if s.SSHKey == "" {
		lacks = append(lacks, "LOWTIDE_LAMBDALABS_SSH_KEY")
	}
	return made{Provider: lambdalabs.New(s), lacks: lacks}, nil
}

// credentialNames are the variables by which a person says that there is an AWS account.
var credentialNames = []string{
	"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
}

func openAWS(ctx context.Context, r *reader) (made, error) {
	regions := r.list("LOWTIDE_AWS_REGIONS")
	account := len(regions) > 0 || slices.ContainsFunc(credentialNames, func(n string) bool { return r.o.Getenv(n) != "" })
	if len(regions) == 0 {
		if one := cmp.Or(r.o.Getenv("AWS_REGION"), r.o.Getenv("AWS_DEFAULT_REGION")); one != "" {
			regions = []string{one}
		}
	}
	switch {
	case !account:
		return made{}, skip("no credentials: set AWS_ACCESS_KEY_ID or AWS_PROFILE, or LOWTIDE_AWS_REGIONS to use files or the machine's role")
	case len(regions) == 0:
		return made{}, skip("no region: set LOWTIDE_AWS_REGIONS or AWS_REGION")
	}
	chain, err := aws.Chain(ctx)
	if err != nil {
		return made{}, err
	}
	s := aws.Settings{
		Regions: regions, Credentials: chain, Endpoint: r.o.Getenv("AWS_ENDPOINT_URL"), Images: r.oneOrPairs("LOWTIDE_AWS_IMAGE"),
		Subnets: r.pairs("LOWTIDE_AWS_SUBNETS"), Groups: r.list("LOWTIDE_AWS_SECURITY_GROUPS"), Profile: r.o.Getenv("LOWTIDE_AWS_PROFILE"),
		Blocks: r.list("LOWTIDE_AWS_BLOCKS"), Client: r.client(aws.Reads), Now: r.o.Now,
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	if len(s.Images) == 0 {
		lacks = append(lacks, "LOWTIDE_AWS_IMAGE")
	}
	adapter := aws.New(s)
	return made{Provider: adapter, pace: provider.Pace{PerSecond: 5, Burst: 10, LaunchGap: 500 * time.Millisecond}, lacks: lacks, try: adapter.Try}, nil
}

func openTencent(_ context.Context, r *reader) (made, error) {
	s := tencent.Settings{
		ID: r.o.Getenv("TENCENTCLOUD_SECRET_ID"), Key: r.o.Getenv("TENCENTCLOUD_SECRET_KEY"), Token: r.o.Getenv("TENCENTCLOUD_SECURITY_TOKEN"),
		Regions: r.list("LOWTIDE_TENCENT_REGIONS"), Currency: fleet.Currency(r.o.Getenv("LOWTIDE_TENCENT_CURRENCY")), Images: r.oneOrPairs("LOWTIDE_TENCENT_IMAGE"),
		Endpoint: r.o.Getenv("LOWTIDE_TENCENT_URL"), Client: r.client(tencent.Reads), Now: r.o.Now,
	}
	if one := r.o.Getenv("TENCENTCLOUD_REGION"); len(s.Regions) == 0 && one != "" {
		s.Regions = []string{one}
	}
	switch {
	case s.ID == "" || s.Key == "":
		return made{}, skip("no credentials: set TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY")
	case len(s.Regions) == 0:
		return made{}, skip("no region: set LOWTIDE_TENCENT_REGIONS or TENCENTCLOUD_REGION")
	case s.Currency == "":
		return made{}, skip("no currency: set LOWTIDE_TENCENT_CURRENCY to CNY (an account of the China site) or USD (of the international one)")
	case s.Currency != fleet.CNY && s.Currency != fleet.USD:
		r.wrong("LOWTIDE_TENCENT_CURRENCY", "%q: want CNY or USD", s.Currency)
	}
	s.Groups = r.list("LOWTIDE_TENCENT_SECURITY_GROUPS")
	s.Bandwidth, s.Disk = r.number("LOWTIDE_TENCENT_BANDWIDTH", 100), r.number("LOWTIDE_TENCENT_DISK", 0)
	s.Subnets = r.pairs("LOWTIDE_TENCENT_SUBNETS")
	for zone, v := range s.Subnets {
		if vpc, subnet, ok := strings.Cut(v, "/"); !ok || vpc == "" || subnet == "" {
			r.wrong("LOWTIDE_TENCENT_SUBNETS", "%s=%s: want zone=vpc-…/subnet-…", zone, v)
		}
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	if len(s.Images) == 0 {
		lacks = append(lacks, "LOWTIDE_TENCENT_IMAGE")
	}
	adapter := tencent.New(s)
	return made{Provider: adapter, pace: provider.Pace{PerSecond: 5, Burst: 10, LaunchGap: 500 * time.Millisecond}, lacks: lacks, try: adapter.Try}, nil
}

func openAlibaba(_ context.Context, r *reader) (made, error) {
	s := alibaba.Settings{
		Regions: r.list("LOWTIDE_ALIBABA_REGIONS"), KeyID: r.o.Getenv("ALIBABA_CLOUD_ACCESS_KEY_ID"), Secret: r.o.Getenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET"),
		Token: r.o.Getenv("ALIBABA_CLOUD_SECURITY_TOKEN"), Endpoint: r.o.Getenv("LOWTIDE_ALIBABA_URL"), Images: r.oneOrPairs("LOWTIDE_ALIBABA_IMAGE"),
		Switches: r.pairs("LOWTIDE_ALIBABA_VSWITCHES"), Groups: r.oneOrPairs("LOWTIDE_ALIBABA_SECURITY_GROUPS"), Role: r.o.Getenv("LOWTIDE_ALIBABA_ROLE"),
		Disk: r.number("LOWTIDE_ALIBABA_DISK", 100), Bandwidth: r.number("LOWTIDE_ALIBABA_BANDWIDTH", 0), Client: r.client(alibaba.Reads), Now: r.o.Now,
	}
	switch {
	case s.KeyID == "" || s.Secret == "":
		return made{}, skip("ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET are not both set")
	case len(s.Regions) == 0:
		return made{}, skip("no region: set LOWTIDE_ALIBABA_REGIONS, such as cn-hangzhou")
	}
	if s.Endpoint == "" { // no limits are published: a cautious pace, also within one look at the market
		s.PerSecond = 8
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	lacks = append(lacks, without("LOWTIDE_ALIBABA_", part{"IMAGE", len(s.Images)}, part{"VSWITCHES", len(s.Switches)}, part{"SECURITY_GROUPS", len(s.Groups)})...)
	adapter := alibaba.New(s)
	return made{Provider: adapter, lacks: lacks, try: adapter.Try}, nil
}

// part is a setting that a launch needs, and how much of it there is.
type part struct {
	name string
	has  int
}

// without names the settings that are missing.
func without(prefix string, parts ...part) (lacks []string) {
	for _, p := range parts {
		if p.has == 0 {
			lacks = append(lacks, prefix+p.name)
		}
	}
	return lacks
}

// regions reads the regions to buy in: of the list, or else of the vendor's own variable.
func (r *reader) regions(list, one string) []string {
	if all := r.list(list); len(all) > 0 {
		return all
	}
	return r.list(one)
}

func openVolcengine(_ context.Context, r *reader) (made, error) {
	s := volcengine.Settings{
		Regions: r.regions("LOWTIDE_VOLCENGINE_REGIONS", "VOLCENGINE_REGION"), KeyID: r.o.Getenv("VOLCENGINE_ACCESS_KEY"), Secret: r.o.Getenv("VOLCENGINE_SECRET_KEY"),
		Token: r.o.Getenv("VOLCENGINE_SESSION_TOKEN"), Endpoint: r.o.Getenv("LOWTIDE_VOLCENGINE_URL"), Currency: fleet.Currency(r.o.Getenv("LOWTIDE_VOLCENGINE_CURRENCY")),
		Config: r.o.Getenv("LOWTIDE_VOLCENGINE_CONFIG"), Item: r.o.Getenv("LOWTIDE_VOLCENGINE_ITEM"), Images: r.oneOrPairs("LOWTIDE_VOLCENGINE_IMAGE"),
		Subnets: r.pairs("LOWTIDE_VOLCENGINE_SUBNETS"), Groups: r.oneOrPairs("LOWTIDE_VOLCENGINE_SECURITY_GROUPS"), Disk: r.number("LOWTIDE_VOLCENGINE_DISK", 100),
		Bandwidth: r.number("LOWTIDE_VOLCENGINE_BANDWIDTH", 0), Client: r.client(volcengine.Reads), Now: r.o.Now,
	}
	switch {
	case s.KeyID == "" || s.Secret == "":
		return made{}, skip("VOLCENGINE_ACCESS_KEY and VOLCENGINE_SECRET_KEY are not both set")
	case len(s.Regions) == 0:
		return made{}, skip("no region: set LOWTIDE_VOLCENGINE_REGIONS, such as cn-beijing")
	case len(s.Currency) != 0 && len(s.Currency) != 3:
		r.wrong("LOWTIDE_VOLCENGINE_CURRENCY", "%q: want CNY or USD", s.Currency)
	}
	if s.Endpoint == "" { // no limits are published: a cautious pace, also within one look at the market
		s.PerSecond = 8
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	lacks = append(lacks, without("LOWTIDE_VOLCENGINE_", part{"IMAGE", len(s.Images)}, part{"SUBNETS", len(s.Subnets)}, part{"SECURITY_GROUPS", len(s.Groups)})...)
	adapter := volcengine.New(s)
	return made{Provider: adapter, lacks: lacks, try: adapter.Try}, nil
}

func openPaperspace(_ context.Context, r *reader) (made, error) {
	s := paperspace.Settings{
		URL: r.o.Getenv("PAPERSPACE_URL"), Key: r.o.Getenv("PAPERSPACE_API_KEY"), Regions: r.list("LOWTIDE_PAPERSPACE_REGIONS"),
		Templates: r.oneOrPairs("LOWTIDE_PAPERSPACE_TEMPLATE"), Disk: r.number("LOWTIDE_PAPERSPACE_DISK", 100), Client: r.client(paperspace.Reads), Now: r.o.Now,
	}
	if s.Key == "" {
		return made{}, skip("PAPERSPACE_API_KEY is not set")
	}
	for _, region := range s.Regions {
		if !slices.Contains(paperspace.Regions(), region) {
			r.wrong("LOWTIDE_PAPERSPACE_REGIONS", "%q: there are %s", region, strings.Join(paperspace.Regions(), ", "))
		}
	}
	if !slices.Contains(paperspace.Disks(), s.Disk) {
		r.wrong("LOWTIDE_PAPERSPACE_DISK", "%d: the sizes that are sold are %v", s.Disk, paperspace.Disks())
	}
	if s.URL == "" { // no limits are published: a cautious pace, also within one look at the market
		s.PerSecond = 5
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	lacks = append(lacks, without("LOWTIDE_PAPERSPACE_", part{"TEMPLATE", len(s.Templates)})...)
	return made{Provider: paperspace.New(s), lacks: lacks}, nil
}

func openHuawei(_ context.Context, r *reader) (made, error) {
	s := huawei.Settings{
		Projects: r.pairs("LOWTIDE_HUAWEI_PROJECTS"), KeyID: r.o.Getenv("HUAWEICLOUD_SDK_AK"), Secret: r.o.Getenv("HUAWEICLOUD_SDK_SK"),
		Token: r.o.Getenv("HUAWEICLOUD_SDK_SECURITY_TOKEN"), Endpoint: r.o.Getenv("LOWTIDE_HUAWEI_URL"), Billing: r.o.Getenv("LOWTIDE_HUAWEI_BSS_URL"),
		Images: r.oneOrPairs("LOWTIDE_HUAWEI_IMAGE"), Subnets: r.pairs("LOWTIDE_HUAWEI_SUBNETS"), Groups: r.oneOrPairs("LOWTIDE_HUAWEI_SECURITY_GROUPS"),
		Disk: r.number("LOWTIDE_HUAWEI_DISK", 100), Bandwidth: r.number("LOWTIDE_HUAWEI_BANDWIDTH", 0), Client: r.client(huawei.Reads), Now: r.o.Now,
	}
	switch {
	case s.KeyID == "" || s.Secret == "":
		return made{}, skip("HUAWEICLOUD_SDK_AK and HUAWEICLOUD_SDK_SK are not both set")
	case len(s.Projects) == 0:
		return made{}, skip("no region: set LOWTIDE_HUAWEI_PROJECTS, such as cn-north-4=0a1b2c…")
	}
	if v := r.o.Getenv("LOWTIDE_HUAWEI_SPOT"); v != "" {
		share, err := decimal.NewFromString(v)
		if err != nil || share.Sign() <= 0 || share.GreaterThan(decimal.NewFromInt(1)) {
			r.wrong("LOWTIDE_HUAWEI_SPOT", "%q: want a share of the hourly price, such as 0.5", v)
		}
		s.SpotShare = share
	}
	for region, v := range s.Subnets {
		if vpc, subnet, ok := strings.Cut(v, "/"); !ok || vpc == "" || subnet == "" {
			r.wrong("LOWTIDE_HUAWEI_SUBNETS", "%s=%s: want region=vpc id/subnet id", region, v)
		}
	}
	if s.Endpoint == "" { // no limits are published: a cautious pace, also within one look at the market
		s.PerSecond = 5
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	lacks = append(lacks, without("LOWTIDE_HUAWEI_", part{"IMAGE", len(s.Images)}, part{"SUBNETS", len(s.Subnets)}, part{"SECURITY_GROUPS", len(s.Groups)})...)
	return made{Provider: huawei.New(s), lacks: lacks}, nil
}

func openAzure(_ context.Context, r *reader) (made, error) {
	s := azure.Settings{
		Regions: r.list("LOWTIDE_AZURE_REGIONS"), Subscription: r.o.Getenv("AZURE_SUBSCRIPTION_ID"), Tenant: r.o.Getenv("AZURE_TENANT_ID"),
		ClientID: r.o.Getenv("AZURE_CLIENT_ID"), Secret: r.o.Getenv("AZURE_CLIENT_SECRET"), Endpoint: r.o.Getenv("LOWTIDE_AZURE_URL"),
		Group: r.o.Getenv("LOWTIDE_AZURE_GROUP"), Images: r.oneOrPairs("LOWTIDE_AZURE_IMAGE"), Subnets: r.pairs("LOWTIDE_AZURE_SUBNETS"),
		SSHKey: r.o.Getenv("LOWTIDE_AZURE_SSH_KEY"), Disk: r.number("LOWTIDE_AZURE_DISK", 100), Keep: 30 * time.Minute, Client: r.client(azure.Reads), Now: r.o.Now,
	}
	switch v := r.o.Getenv("LOWTIDE_AZURE_ADDRESS"); v {
	case "", "no", "yes":
		s.Address = v == "yes"
	default:
		r.wrong("LOWTIDE_AZURE_ADDRESS", "%q: want yes or no", v)
	}
	if len(s.Regions) == 0 {
		s.Regions = []string{"eastus"}
	}
	principal := s.Tenant != "" && s.ClientID != "" && s.Secret != ""
	switch {
	case s.Subscription == "" && !r.o.Public:
		return made{}, skip("AZURE_SUBSCRIPTION_ID is not set (its prices can be read without: --public)")
	case s.Subscription != "" && !principal:
		return made{}, skip("AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET are not all set")
	}
	var lacks []string
	s.Boot, lacks = r.boot()
	if s.Subscription == "" {
		lacks = append([]string{"AZURE_SUBSCRIPTION_ID"}, lacks...)
	}
	lacks = append(lacks, without("LOWTIDE_AZURE_", part{"GROUP", len(s.Group)}, part{"IMAGE", len(s.Images)}, part{"SUBNETS", len(s.Subnets)}, part{"SSH_KEY", len(s.SSHKey)})...)
	return made{Provider: azure.New(s), pace: provider.Pace{PerSecond: 5, Burst: 10, LaunchGap: 500 * time.Millisecond}, lacks: lacks}, nil
}
