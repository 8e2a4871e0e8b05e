package simulate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"lowtide/functions/lowtide/simulate/replay"
	"lowtide/shared/plan/pool"
)

// Replayed is one workload of an installation's own event stream, as it was and under each policy.
type Replayed struct {
	Fleet    string    `json:"fleet"`
	Workload string    `json:"workload"`
	Work     string    `json:"work"`
	Began    time.Time `json:"began"`
	Deadline time.Time `json:"deadline,omitzero"`
	Delay    string    `json:"delay"`
	Pools    int       `json:"pools"`
	Lines    []Line    `json:"lines"`  // the first is how it was
	Untold   []string  `json:"untold"` // what the stream cannot tell
}

// Line is one policy on one workload.
type Line struct {
	Policy   string  `json:"policy"`
	Cost     float64 `json:"cost_usd"`
	State    string  `json:"state"` // met, missed, open: not done when the stream ends
	Launches int     `json:"launches"`
}

// Replay plays the policies on every workload of a record.
func Replay(r replay.Record, policies []Policy) []Replayed {
	var out []Replayed
	for _, l := range r.Lives() {
		x := Replayed{
			Fleet: l.Fleet, Workload: l.Spec.Name, Work: l.Spec.Work.String(), Began: l.Began, Deadline: l.Spec.Deadline,
			Delay: l.Delay.Round(time.Second).String(), Pools: len(l.Pools), Untold: untold(l, r.Unread),
		}
		was := Line{"as it was", l.Cost, "met", l.Launches}
		switch {
		case l.Missed:
			was.State = "missed"
		case l.Finished.IsZero():
			was.State = "open"
		}
		x.Lines = []Line{was}
		j, why := job(l)
		if why != "" {
			x.Untold = append(x.Untold, why)
			out = append(out, x)
			continue
		}
		for _, p := range policies {
			if p.Make != nil {
				x.Lines = append(x.Lines, against(j, p, l))
			}
		}
		out = append(out, x)
	}
	return out
}

// against plays one policy on the pools of a life.
func against(j pool.Job, p Policy, l replay.Life) Line {
	up := make([][]bool, len(l.Pools))
	for z := range l.Pools {
		up[z] = l.Pools[z].Up
	}
	o := PlayAt(j, p.Make(j, History(up, l.Start, j.Tick)), up, l.Start, func(zone, at int) float64 { return l.Pools[zone].Price[at] })
	state := "met"
	switch {
	case o.Open && o.Finish < j.End():
		state = "open"
	case o.Missed:
		state = "missed"
	}
	return Line{p.Name, o.Cost, state, o.Launches}
}

// job is the workload as policies see it; why says why no policy can be played.
func job(l replay.Life) (j pool.Job, why string) {
	sum, n := 0.0, 0.0
	for _, p := range l.Pools {
		for t := l.Start; t < len(p.Up); t++ {
			if p.Up[t] {
				sum, n = sum+p.Price[t], n+1
			}
		}
	}
	j = pool.Job{
		Work: l.Spec.Work.Seconds(), Deadline: l.Spec.Deadline.Sub(l.Began).Seconds(), Delay: l.Delay.Seconds(), Tick: l.Tick.Seconds(), OnDemand: l.OnDemand,
	}
	switch {
	case l.Spec.Deadline.IsZero():
		return j, "no policy is played: it has no deadline, and the policies compared here are for one"
	case l.OnDemand <= 0:
		return j, "no policy is played: no on-demand price that suits is in the stream"
	case len(l.Pools) == 0 || n == 0:
		return j, "no policy is played: no spot pool that suits was ever seen up after it began"
	}
	j.Spot = sum / n
	if !j.Promisable() {
		return j, fmt.Sprintf("no policy is played: %s of work and %s to start do not fit before its deadline", l.Spec.Work, l.Delay.Round(time.Second))
	}
	return j, ""
}

// untold is what a stream cannot say about a life.
func untold(l replay.Life, unread int) []string {
	var out []string
	if l.Unseen > 0 {
		out = append(out, fmt.Sprintf("%s without a look at the markets: what was seen last is taken to hold", l.Unseen.Round(time.Minute)))
	}
	if l.Bare > 0 {
		out = append(out, fmt.Sprintf("%d price changes whose offers are not there: only what was bought, refused or taken is known of them", l.Bare))
	}
	if l.Starts == 0 {
		out = append(out, fmt.Sprintf("how long a start takes: none was seen, %s is assumed", l.Delay.Round(time.Second)))
	}
	if unread > 0 {
		out = append(out, fmt.Sprintf("%d facts that did not read", unread))
	}
	return append(out, "whether a listed offer would have been sold, and for how long, where nothing was tried: the list is believed, and a pool is down from when it was refused, taken or left out until it is listed again")
}

// played prints a replay.
func (f flags) played(ctx context.Context, w io.Writer) error {
	r, err := replay.Read(ctx, f.replay)
	if err != nil {
		return err
	}
	policies, err := f.chosen()
	if err != nil {
		return err
	}
	all := Replay(r, policies)
	if len(all) == 0 {
		return fmt.Errorf("replay %s: no workload was accepted in it; there is nothing to compare", f.replay)
	}
	switch f.output {
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(all)
	case "text":
	default:
		return fmt.Errorf("--output %q: want text or json", f.output)
	}
	for _, x := range all {
		deadline := "best effort"
		if !x.Deadline.IsZero() {
			deadline = fmt.Sprintf("due in %s", x.Deadline.Sub(x.Began).Round(time.Minute))
		}
		fmt.Fprintf(w, "%s (%s): %s of work, %s, %s to start, %d spot pools\n", x.Workload, x.Fleet, x.Work, deadline, x.Delay, x.Pools)
		for _, l := range x.Lines {
			fmt.Fprintf(w, "  %-19s %-7s %10.4f USD %4d launches\n", l.Policy, l.State, l.Cost, l.Launches)
		}
		fmt.Fprintf(w, "  the stream cannot tell: %s\n", strings.Join(x.Untold, ";\n    "))
	}
	return nil
}
