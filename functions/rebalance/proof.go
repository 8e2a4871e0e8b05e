package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// hostBan is how long a host that sold a bad machine is not bought from: on a marketplace nobody else remembers it.
const hostBan = 30 * 24 * time.Hour

// Of the pace of a workload, held against its own past on the same type of machine.
const (
	paceWindow  = 10 * time.Minute // over which steps are counted
	paceKnown   = 3                // windows until there is a past to compare with
	paceForgets = 8                // windows over which the past is averaged
	slowShare   = 0.7              // of the usual pace; a job's own ups and downs are smaller
	slowWindows = 2                // in a row make a doubt
	provedFor   = time.Hour        // a machine that has just proved itself is not doubted
)

// verified takes a machine for what it was sold as.
func (d *Decider) verified(e events.InstanceVerified) {
	m := d.state.Machines[e.Machine]
	if m == nil || !asked(m, e.Nonce) || !m.Phase.Before(fleet.Verified) {
		return
	}
	if m.Proved.IsZero() && !m.ReadyAt.IsZero() { // a later proof says nothing about how long a start takes
		d.startUp(m).Proof.Add(d.state.Now.Sub(m.ReadyAt))
	}
	m.Phase, m.Proved = fleet.Verified, d.state.Now
	d.paid(m, e.Took)
}

// rejected gives a machine up, and remembers who sold it: its host where the marketplace names one, else its pool.
func (d *Decider) rejected(e events.InstanceRejected) {
	m := d.state.Machines[e.Machine]
	if m == nil || !asked(m, e.Nonce) || !m.Phase.Before(fleet.Rejected) {
		return
	}
	m.Phase, m.Cause = fleet.Rejected, e.Cause
	d.paid(m, e.Took)
	d.disliked(m)
	if m.Offer.Host == "" {
		d.refuse(m.Offer.Pool(), "rejected: "+e.Cause)
		return
	}
	key := hostKey(m.Offer.Cloud, m.Offer.Host)
	d.refuse(key, "rejected: "+e.Cause)
	d.state.Refusals[key].Until = d.state.Now.Add(hostBan)
}

// disliked counts what the workload's own check has rejected as it counts runs that fail: a check that no machine passes must
// not buy machines for ever. One that has run passed its check somewhere: those pools are to be avoided, not the workload.
func (d *Decider) disliked(m *fleet.Instance) {
	w := d.state.Workloads[m.Workload]
	if w == nil || w.Phase.Final() || w.Epoch > 0 || !strings.HasPrefix(m.Cause, events.CauseFramework) {
		return
	}
	if w.Fails++; w.Fails >= maxFails {
		w.Phase, w.Ended = fleet.Failed, d.state.Now
		w.Why = fmt.Sprintf("its own check failed on %d machines without a new checkpoint in between; the last: %s", w.Fails, m.Cause)
	}
}

// paid counts what a proof cost at the machine's price.
func (d *Decider) paid(m *fleet.Instance, took time.Duration) {
	hourly, ok := m.Offer.Hourly.Get()
	if w := d.state.Workloads[m.Workload]; ok && w != nil {
		w.Proofs = w.Proofs.Add(hourly.Times(took.Hours()))
	}
}

// hostKey is where a host is kept among the refusals; no pool begins so.
func hostKey(cloud, host string) string { return "host:" + cloud + "/" + host }

// avoid lists the hosts of a cloud that are not to be bought from.
func (d *Decider) avoid(cloud string) (hosts []string) {
	prefix := hostKey(cloud, "")
	for key, r := range d.state.Refusals {
		if len(key) > len(prefix) && key[:len(prefix)] == prefix && d.state.Now.Before(r.Until) {
			hosts = append(hosts, key[len(prefix):])
		}
	}
	slices.Sort(hosts)
	return hosts
}

// doubt asks for another proof of a machine that runs a workload. The run is saved and stopped first: a benchmark beside it
// would measure the neighbour.
func (d *Decider) doubt(m *fleet.Instance, why string) {
	if m.Phase == fleet.Verified && m.Doubt == "" && !m.Doomed() {
		m.Doubt = why
	}
}

// reprove carries a doubt out: it stops the run, and once that is over puts the machine where a new one stands, ready and
// unproved. This is the one way in which a machine's phase goes back.
func (d *Decider) reprove(w *fleet.Workload, on *fleet.Instance) {
	switch {
	case on.Doubt == "" || w.Next != "" || on.Doomed():
	case on.Run.Epoch == w.Epoch && on.Run.Phase == fleet.RunStopped:
		on.Doubt, on.Phase, on.Order.Benchmark = "", fleet.Ready, nil
		w.On, w.Next, w.Pace = "", on.Name, fleet.Pace{}
	case on.Run.Phase == fleet.Running && !on.Order.Stop:
		d.saveAndStop(on, time.Time{})
	}
}

// due says when a machine must prove itself again although nothing is wrong; zero: never.
func (d *Decider) proofDue(m *fleet.Instance) time.Time {
	every := d.cfg.Reprove
	if m.Offer.Marketplace {
		every = d.cfg.ReproveHosts
	}
	if every <= 0 || m.Proved.IsZero() {
		return time.Time{}
	}
	return m.Proved.Add(every)
}

// overdue doubts a machine whose last proof is old, where the workload's promise leaves room for a stop.
func (d *Decider) overdue(w *fleet.Workload, on *fleet.Instance) {
	due := d.proofDue(on)
	if due.IsZero() || d.state.Now.Before(due) || !d.spare(w) {
		return
	}
	d.doubt(on, fmt.Sprintf("last proved %s ago", d.state.Now.Sub(on.Proved).Round(time.Minute)))
}

// spare says that a stop for a proof cannot break the promise: two starts fit, and the next look.
func (d *Decider) spare(w *fleet.Workload) bool {
	if w.Spec.Deadline.IsZero() {
		return true
	}
	p := d.cfg.Policy
	return w.Spec.Deadline.Sub(d.state.Now)-w.Left(w.Saved.Step) > 2*p.StartMax+p.Wake
}

// pace holds a run's progress against the workload's own past on that type of machine. A card that slows down, or fell
// away while the job goes on with the CPU, shows here first.
func (d *Decider) pace(w *fleet.Workload, m *fleet.Instance, step int64) {
	p, now := &w.Pace, d.state.Now
	if p.Epoch != m.Run.Epoch || p.Type != m.Offer.Type {
		usual, windows := p.Usual, p.Windows
		if p.Type != m.Offer.Type {
			usual, windows = 0, 0
		}
		*p = fleet.Pace{Type: m.Offer.Type, Epoch: m.Run.Epoch, Step: step, At: now, Usual: usual, Windows: windows}
		return
	}
	spent := now.Sub(p.At)
	if spent < paceWindow {
		return
	}
	rate := float64(step-p.Step) / spent.Hours()
	p.Step, p.At = step, now
	if p.Windows < paceKnown || rate >= slowShare*p.Usual {
		p.Windows = min(p.Windows+1, paceForgets)
		p.Usual += (rate - p.Usual) / float64(p.Windows)
		p.Slow = 0
		return
	}
	if p.Slow++; p.Slow >= slowWindows && now.Sub(m.Proved) > provedFor && d.spare(w) {
		d.doubt(m, fmt.Sprintf("%.0f steps an hour, usually %.0f", rate, p.Usual))
	}
}
