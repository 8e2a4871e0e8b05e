package infra_test

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// stack is what stack.py prints.
type stack struct {
	Status   string
	Reason   string
	Outputs  map[string]string
	LeftOut  []string `json:"outputs_left_out"`
	Made     []string
	Roles    map[string][]document
	Rules    []string
	Queues   int
	Template struct {
		Resources map[string]resource
	}
}

type resource struct {
	Type       string
	Properties map[string]any
}

type document struct {
	Statement []statement
}

type statement struct {
	Sid       string
	Action    any
	Resource  any
	Condition any
}

// list reads a word or a list of words.
func list(v any) (out []string) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			out = append(out, fmt.Sprint(x))
		}
	case nil:
	default:
		out = append(out, fmt.Sprint(v))
	}
	return out
}

var stacks = struct {
	sync.Mutex
	of map[string]*stack
}{of: map[string]*stack{}}

// bring brings the template up in moto's CloudFormation.
func bring(t *testing.T, more ...string) *stack {
	t.Helper()
	python := venv(t, "python")
	stacks.Lock()
	defer stacks.Unlock()
	key := strings.Join(more, " ")
	if s := stacks.of[key]; s != nil {
		return s
	}
	args := append([]string{"infra/stack.py", "template.yaml", "NatsUrl=tls://nats.example:4222", "Install=0123456789ab"}, more...)
	out := run(t, []string{"AWS_DEFAULT_REGION=us-east-1", "AWS_ACCESS_KEY_ID=testing", "AWS_SECRET_ACCESS_KEY=testing"}, python, args...)
	s := &stack{}
	if err := json.Unmarshal(out, s); err != nil {
		t.Fatal(err)
	}
	stacks.of[key] = s
	return s
}

// of are the names of a type's resources.
func (s *stack) of(kind string) (names []string) {
	for name, r := range s.Template.Resources {
		if r.Type == kind {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// at walks into properties; a number is an index.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func TestTheTemplateIsValidAndLintsClean(t *testing.T) {
	env := []string{"SAM_CLI_TELEMETRY=0", "AWS_DEFAULT_REGION=us-east-1"}
	run(t, env, venv(t, "sam"), "validate", "--lint", "-t", "template.yaml")
	run(t, env, venv(t, "cfn-lint"), "template.yaml", "infra/region.yaml")
	b, err := os.ReadFile(filepath.Join(root, "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`rate\((\d+) (\w+)\)`).FindAllStringSubmatch(string(b), -1) { // cfn-lint takes "1 minutes"
		if (m[1] == "1") == strings.HasSuffix(m[2], "s") {
			t.Errorf("%s: AWS wants the singular for 1 and the plural for more", m[0])
		}
	}
}

func TestTheStackComesUp(t *testing.T) {
	for _, dry := range []string{"true", "false"} {
		s := bring(t, "DryRun="+dry)
		if s.Status != "CREATE_COMPLETE" {
			t.Fatalf("DryRun=%s: %s: %s", dry, s.Status, s.Reason)
		}
		skipped := map[string]int{}
		for name, r := range s.Template.Resources {
			if !slices.Contains(s.Made, name) {
				skipped[r.Type]++
			}
		}
		// What moto does not know. A type that leaves or joins this list is worth a look.
		var types []string
		for kind := range skipped {
			types = append(types, kind)
		}
		slices.Sort(types)
		want := []string{"AWS::CloudWatch::Alarm", "AWS::Lambda::EventInvokeConfig", "AWS::Lambda::Permission", "AWS::Lambda::Url", "AWS::SQS::QueuePolicy", "AWS::Scheduler::Schedule"}
		if !slices.Equal(types, want) {
			t.Errorf("moto skipped %v, want %v", types, want)
		}
		t.Logf("DryRun=%s: %d resources made, moto skips %v and the outputs %v", dry, len(s.Made), skipped, s.LeftOut)
	}
}

// actions are all that a stack's roles and policies allow, "<role> <action>" to its resources.
func (s *stack) actions() map[string][]string {
	out := map[string][]string{}
	add := func(role string, docs ...document) {
		for _, d := range docs {
			for _, st := range d.Statement {
				for _, a := range list(st.Action) {
					out[role+" "+a] = append(out[role+" "+a], list(st.Resource)...)
				}
			}
		}
	}
	for role, docs := range s.Roles {
		add(role, docs...)
	}
	for _, name := range s.of("AWS::IAM::ManagedPolicy") {
		raw, _ := json.Marshal(s.Template.Resources[name].Properties["PolicyDocument"])
		var d document
		if json.Unmarshal(raw, &d) == nil {
			add(name, d)
		}
	}
	return out
}

// harmless says of an action that it changes nothing at a cloud: it reads, or it writes only what is lowtide's own.
func harmless(action string) bool {
	for _, ok := range []string{
		"ec2:Describe", "pricing:Get", "secretsmanager:GetSecretValue", "logs:CreateLogStream", "logs:PutLogEvents", "sqs:SendMessage", "lambda:InvokeFunction",
	} {
		if strings.HasPrefix(action, ok) {
			return true
		}
	}
	return false
}

func TestInADryRunNoRoleHoldsAWritingAction(t *testing.T) {
	var added []string
	dry, live := bring(t, "DryRun=true").actions(), bring(t, "DryRun=false").actions()
	for a := range dry {
		if _, action, _ := strings.Cut(a, " "); !harmless(action) {
			t.Errorf("a dry run may %s", a)
		}
	}
	for a := range live {
		if _, was := dry[a]; !was {
			added = append(added, a)
		}
	}
	slices.Sort(added)
	want := []string{
		"ProvisionRole ec2:CancelSpotInstanceRequests", "ProvisionRole ec2:CreateFleet", "ProvisionRole ec2:CreateTags",
		"ProvisionRole ec2:RunInstances", "ProvisionRole ec2:TerminateInstances",
	}
	if !slices.Equal(added, want) {
		t.Errorf("going live adds %q, want %q", added, want)
	}
	said := bring(t, "DryRun=true").Outputs["GoingLiveAdds"]
	for _, a := range want {
		if _, action, _ := strings.Cut(a, ":"); !strings.Contains(said, action) {
			t.Errorf("the stack says that going live adds %q, which lacks %s", said, action)
		}
	}
	if got := bring(t, "DryRun=true").Outputs["WritingActions"]; !strings.HasPrefix(got, "nothing") {
		t.Errorf("a dry stack says that it may write: %s", got)
	}
}

func TestNoRoleHoldsAWildcardWhereAWSAllowsNarrower(t *testing.T) {
	// What only describes has no narrower resource at AWS ("Actions, resources, and condition keys for Amazon EC2", and for
	// AWS Price List).
	for role, resources := range bring(t, "DryRun=false", "MachineRoleArn=arn:aws:iam::123456789012:role/machine").actions() {
		_, action, _ := strings.Cut(role, " ")
		if strings.HasSuffix(action, "*") {
			t.Errorf("%s: a wildcard of actions", role)
		}
		for _, r := range resources {
			if r == "*" && !strings.HasPrefix(action, "ec2:Describe") && action != "pricing:GetProducts" {
				t.Errorf("%s on *", role)
			}
		}
	}
	s := bring(t, "DryRun=false", "MachineRoleArn=arn:aws:iam::123456789012:role/machine")
	for _, d := range s.Roles["ProvisionRole"] {
		for _, st := range d.Statement {
			guarded := map[string]string{"BuyWithOurMark": "aws:RequestTag/lowtide:install", "EndOnlyOurs": "aws:ResourceTag/lowtide:install", "MarkOnlyWhatIsBeingBought": "ec2:CreateAction", "GiveMachinesTheirRole": "iam:PassedToService"}
			if want, ok := guarded[st.Sid]; ok && !strings.Contains(fmt.Sprint(st.Condition), want) {
				t.Errorf("%s holds under %v, want %s", st.Sid, st.Condition, want)
			}
		}
	}
}

func TestEachFunctionHasItsOwnRoleAndSecret(t *testing.T) {
	s := bring(t, "DryRun=true")
	roles, secrets := map[string]string{}, map[string]string{}
	functions := s.of("AWS::Lambda::Function")
	for _, name := range functions {
		p := s.Template.Resources[name].Properties
		role := fmt.Sprint(at(p, "Role", "Fn::GetAtt", 0))
		if other := roles[role]; other != "" || role == "<nil>" {
			t.Errorf("%s and %s share the role %s", name, other, role)
		}
		roles[role] = name
		secret := fmt.Sprint(at(p, "Environment", "Variables", "LOWTIDE_NATS_SECRET"))
		if other := secrets[secret]; other != "" || secret == "<nil>" {
			t.Errorf("%s and %s share the NATS user %s", name, other, secret)
		}
		secrets[secret] = name
		if at(p, "LoggingConfig", "LogGroup") == nil {
			t.Errorf("%s has no log group with a retention", name)
		}
	}
	folders, err := filepath.Glob(filepath.Join(root, "functions", "*", "lambda", "main.go"))
	if err != nil || len(folders) != len(functions) {
		t.Errorf("%d functions in the template, %d in functions/*/lambda (%v)", len(functions), len(folders), err)
	}
}

func TestEachTargetHasItsOwnDeadLettersAndNoPatience(t *testing.T) {
	s := bring(t, "DryRun=true")
	queues := map[string]string{}
	for _, name := range s.of("AWS::Events::Rule") {
		target := at(s.Template.Resources[name].Properties, "Targets", 0)
		if fn := at(target, "Arn", "Fn::GetAtt", 0); fn != "Notices" {
			t.Errorf("%s goes to %v, want notices itself", name, fn)
		}
		if age := at(target, "RetryPolicy", "MaximumEventAgeInSeconds"); age != 60.0 && name != "NoticesChanges" {
			t.Errorf("%s is tried for %v s, want 60: later is too late", name, age)
		}
		queue := fmt.Sprint(at(target, "DeadLetterConfig", "Arn", "Fn::GetAtt", 0))
		if other := queues[queue]; other != "" || queue == "<nil>" {
			t.Errorf("%s and %s share the dead letters %s", name, other, queue)
		}
		queues[queue] = name
	}
	if len(queues) != 4 {
		t.Errorf("%d rules, want 4", len(queues))
	}
	async := s.Template.Resources["NoticesEventInvokeConfig"].Properties
	if at(async, "MaximumEventAgeInSeconds") != 60.0 || at(async, "DestinationConfig", "OnFailure", "Destination") == nil {
		t.Errorf("notices is invoked with %v, want 60 s and a destination on failure", async)
	}
	for _, name := range s.of("AWS::Scheduler::Schedule") {
		p := s.Template.Resources[name].Properties
		if p["Name"] != nil || at(p, "FlexibleTimeWindow", "Mode") != "OFF" || at(p, "Target", "RetryPolicy", "MaximumRetryAttempts") != 0.0 {
			t.Errorf("%s: %v; want no fixed name, the exact minute, and no late ticks", name, p)
		}
	}
	alarmed := map[string]bool{}
	for _, name := range s.of("AWS::CloudWatch::Alarm") {
		alarmed[fmt.Sprint(at(s.Template.Resources[name].Properties, "Dimensions", 0, "Value", "Fn::GetAtt", 0))] = true
	}
	for _, q := range s.of("AWS::SQS::Queue") {
		if !alarmed[q] {
			t.Errorf("nobody is told that something lies in %s", q)
		}
	}
}

func TestOnlyWebhooksAreOpenToEverybody(t *testing.T) {
	s := bring(t, "DryRun=true")
	want := map[string]string{"NoticesUrl": "NONE", "ChatopsUrl": "NONE", "IntakeUrl": "AWS_IAM"}
	for _, name := range s.of("AWS::Lambda::Url") {
		if got := fmt.Sprint(at(s.Template.Resources[name].Properties, "AuthType")); got != want[name] {
			t.Errorf("%s: %s, want %q", name, got, want[name])
		}
	}
	open := map[string]int{}
	for _, name := range s.of("AWS::Lambda::Permission") {
		if p := s.Template.Resources[name].Properties; p["Principal"] == "*" {
			open[fmt.Sprint(at(p, "FunctionName", "Ref"))]++
		}
	}
	if len(open) != 2 || open["Notices"] != 2 || open["Chatops"] != 2 { // AWS wants both InvokeFunctionUrl and InvokeFunction
		t.Errorf("open to everybody: %v, want notices and chatops with two permissions each", open)
	}
}

func TestSamBuildsEveryFunctionStaticSmallAndForItsArchitecture(t *testing.T) {
	dir := samBuild(t, "arm64")
	limits := map[string]int64{"Rebalance": 9, "Notices": 9, "Verify": 9, "Usage": 9, "Notify": 20, "Chatops": 20, "Rules": 25}
	functions := bring(t, "DryRun=true").of("AWS::Lambda::Function")
	for _, name := range functions {
		entries, err := os.ReadDir(filepath.Join(dir, name))
		if err != nil || len(entries) != 1 || entries[0].Name() != "bootstrap" {
			t.Errorf("%s: %v, %v; want bootstrap alone", name, entries, err)
			continue
		}
		file := filepath.Join(dir, name, "bootstrap")
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%-10s %.2f MB", name, float64(info.Size())/1e6)
		if limit, ok := limits[name]; ok && info.Size() > limit*1e6 {
			t.Errorf("%s is %d bytes, want %d MB at most", name, info.Size(), limit)
		}
		f, err := elf.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if f.Machine != elf.EM_AARCH64 || f.Section(".interp") != nil || f.Section(".symtab") != nil {
			t.Errorf("%s: %s, dynamic %v, symbols %v; want a static, stripped program for arm64", name, f.Machine, f.Section(".interp") != nil, f.Section(".symtab") != nil)
		}
		f.Close()
	}
}
