// Package accounts says who may do what at NATS, and mints the users: one for each function, the relay, the machines'
// agents, leaf nodes, and the person who deploys.
//
// It promises that a user may publish only the facts that its function says (the design's table), write only the buckets
// that are its own, and read only answers to its own questions; and that keys are written for their owner alone.
// It runs no server: what it writes is read by one (infra/nats).
package accounts

import (
	"slices"

	"lowtide/events"
	"lowtide/shared/bus"
)

// User is one program's permissions.
type User struct {
	Name      string
	Publish   []string
	Subscribe []string
	Answers   bool // it may answer what it is asked, wherever the answer is wanted
}

// Inbox is where answers to a user come; the user may read nowhere else.
func Inbox(name string) string { return "_INBOX_" + name }

// says are the facts of each function, as the design's table has them. rebalance's ticks are its own wake-ups.
var says = map[string][]events.Kind{
	"clock":     {"clock.ticked"},
	"prices":    {"price.changed"},
	"notices":   {"notice.received", "instance.interrupted", "instance.at_risk"},
	"intake":    {"workload.submitted", "workload.refused"}, // what rules ask for and cannot be read
	"verify":    {"instance.verified", "instance.rejected"},
	"rebalance": {"workload.accepted", "workload.refused", "plan.proposed", "plan.made", "order.given", "approval.refused", "workload.warned", "change.refused", "reservation.expiring", "reservation.idle"},
	"provision": {"instance.launched", "instance.ended", "plan.failed"},
	"census":    {"instance.found", "instance.lost", "instance.ended", "policy.set"}, // a halt, when machines of ours are nobody's
	"ledger":    {"budget.warned", "budget.exhausted"},
	"usage":     {"workload.idle", "workload.underused", "workload.busy"},
	"notify":    {"channel.failed", "channel.recovered"},
	"chatops":   append([]events.Kind{"plan.approved", "plan.rejected", "policy.set", "silence.set", "workload.kept", "person.acted", "alert.received"}, orders...),
	"rules":     append([]events.Kind{"rule.acted", "rule.failed", "webhook.asked", "workload.asked"}, orders...),
}

// orders are what may be changed by a word (shared/order), a person's or a rule's.
var orders = []events.Kind{"workload.changed", "workload.withdrawn", "workload.paused", "workload.resumed", "checkpoint.asked", "plan.asked"}

// wakes are who may have themselves woken, now or later, by ticks of which keys. A channel's key is its name.
var wakes = map[string]string{"rebalance": "wake", "rules": "rules", "notify": "*"}

// buckets are what each function reads, and whether it is the writer.
var buckets = map[string]map[string]bool{
	"prices":    {"market": true, "offers": true},
	"verify":    {"benchmarks": true},
	"rebalance": {"fleets": true, "market": false},
	"provision": {"claims": true},
	"census":    {"census": true, "claims": false},
	"ledger":    {"ledger": true},
	"usage":     {"usage": true},
	"notify":    {"notify": true},
	"chatops":   {"chatops": true, "fleets": false, "market": false},
	"rules":     {"rules": true, "fleets": false, "market": false},
	"relay":     {"joins": true, "fleets": false}, // admits machines that the fleet lists
}

// Buckets are all that a deployment makes; those of large objects come second.
func Buckets() (values, objects []string) {
	all := map[string]bool{}
	for _, of := range buckets {
		for name := range of {
			all[name] = true
		}
	}
	for name := range all {
		if name == "offers" {
			objects = append(objects, name)
		} else {
			values = append(values, name)
		}
	}
	slices.Sort(values)
	return values, objects
}

// Functions are the users of functions on Lambda, of one fleet.
func Functions(fleet string) []User {
	var out []User
	for name, kinds := range says {
		u := User{Name: name, Subscribe: []string{Inbox(name) + ".>"}}
		for _, k := range kinds {
			u.Publish = append(u.Publish, bus.Subject(fleet, k, ">"))
		}
		if key := wakes[name]; key != "" {
			wake := bus.Subject(fleet, "clock.ticked", key)
			u.Publish = append(u.Publish, wake, "later."+wake[len("lowtide."):])
		}
		if name == "notices" || name == "clock" { // invoked directly: there is no relay to bury what cannot be read
			u.Publish = append(u.Publish, "dead."+name)
		}
		u.Publish = append(u.Publish, ofBuckets(name)...)
		slices.Sort(u.Publish)
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b User) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// ofBuckets is what a user may do with the buckets that it has.
func ofBuckets(name string) (out []string) {
	for b, writes := range buckets[name] {
		out = append(out, reads(b)...)
		if writes {
			out = append(out, "$KV."+b+".>")
		}
	}
	return out
}

// reads is what binding to a bucket and reading from its leader takes.
func reads(bucket string) []string {
	return []string{"$JS.API.STREAM.INFO.KV_" + bucket, "$JS.API.STREAM.MSG.GET.KV_" + bucket}
}

// Relay is the relay's user: it hears for the functions, on consumers that carry their names, buries what they cannot
// read, says of a launch that it came too late, and hands secrets to machines. consumers are its own.
func Relay(fleet string, consumers []Consumer) User {
	u := User{Name: "relay", Answers: true, Subscribe: []string{Inbox("relay") + ".>", Secrets(fleet, "*")}, Publish: []string{"dead.>", bus.Subject(fleet, "plan.failed", ">")}}
	for _, c := range consumers {
		u.Publish = append(u.Publish, consumer(c.Stream, c.Name)...)
	}
	u.Publish = append(u.Publish, ofBuckets("relay")...)
	return u
}

// Consumer is a durable one, on its stream.
type Consumer struct{ Stream, Name string }

// consumer is what serving a durable consumer takes: to make it or bring it up to date, to pull, and to answer.
func consumer(stream, name string) []string {
	return []string{
		"$JS.API.CONSUMER.INFO." + stream + "." + name,
		"$JS.API.CONSUMER.CREATE." + stream + "." + name, "$JS.API.CONSUMER.CREATE." + stream + "." + name + ".>",
		"$JS.API.CONSUMER.MSG.NEXT." + stream + "." + name,
		"$JS.ACK." + stream + "." + name + ".>",
	}
}

// Admin is whoever deploys and looks after a fleet: all of the account, and nothing of the server.
func Admin() User { return User{Name: "admin", Publish: []string{">"}, Subscribe: []string{">"}} }

// Leaf is a leaf node of a site elsewhere. What is said there passes only as far as its own users may say it.
func Leaf() User { return User{Name: "leaf", Publish: []string{">"}, Subscribe: []string{">"}} }

// Secrets is where a machine asks for the secrets of what it runs; "*" is where the relay hears all.
func Secrets(fleet, machine string) string { return "secrets." + fleet + "." + machine }

// All are the users of a deployment. consumers are the relay's.
func All(fleet string, consumers []Consumer) []User {
	return append(Functions(fleet), Relay(fleet, consumers), Admin(), Leaf())
}

// NewestConsumer is the consumer through which a machine reads the newest of its orders.
func NewestConsumer(fleet, machine string) string { return "newest-" + fleet + "-" + machine }

// Agent is the template of all machines' agents: the server puts the user's name, which is the machine's, and its tag in.
// A machine says facts about itself and about its workload, and hears its own orders alone.
func Agent(fleet string) User {
	const me, job = "{{name()}}", "{{tag(workload)}}"
	u := User{Name: "agent", Subscribe: []string{"_INBOX_" + me + ".>"}}
	for _, k := range []events.Kind{"machine.heard", "instance.ready", "benchmark.finished", "instance.interrupted", "instance.at_risk"} {
		u.Publish = append(u.Publish, bus.Subject(fleet, k, me))
	}
	for _, k := range []events.Kind{
		"workload.started", "workload.progressed", "workload.stopped", "workload.finished", "workload.failed", "checkpoint.saved", "checkpoint.failed",
	} {
		u.Publish = append(u.Publish, bus.Subject(fleet, k, job))
	}
	u.Publish = append(u.Publish, bus.Subject(fleet, "utilisation.measured", me))
	u.Publish = append(u.Publish, Secrets(fleet, me))
	name := "agent-" + fleet + "-" + me
	u.Publish = append(u.Publish,
		"$JS.API.CONSUMER.INFO."+bus.Facts+"."+name, "$JS.API.CONSUMER.MSG.NEXT."+bus.Facts+"."+name, "$JS.ACK."+bus.Facts+"."+name+".>",
		"$JS.API.CONSUMER.CREATE."+bus.Facts+"."+name+"."+bus.Subject(fleet, "order.given", me), // with this filter and no other
	)
	last := NewestConsumer(fleet, me)
	u.Publish = append(u.Publish, "$JS.API.CONSUMER.DELETE."+bus.Facts+"."+last, "$JS.API.CONSUMER.MSG.NEXT."+bus.Facts+"."+last,
		"$JS.API.CONSUMER.CREATE."+bus.Facts+"."+last+"."+bus.Subject(fleet, "order.given", me))
	return u
}
