package choose_test

import (
	"math"
	"testing"

	"lowtide/functions/lowtide/choose"
	"lowtide/shared/fleet"
)

func offer(cloud, gpu string, gpus, memory int, m fleet.Market, usd float64) fleet.Offer {
	return fleet.Offer{Cloud: cloud, Region: "r", Type: gpu, Market: m, GPU: gpu, GPUs: gpus, Memory: memory, Hourly: fleet.Known(fleet.Dollars(usd))}
}

var boards = map[string]choose.Board{
	"A100": {true, 312, 600}, "A800": {true, 312, 400}, "T4": {true, 65, 0}, "RTX 3090": {true, 71, 0}, "V100": {true, 125, 300},
}

func board(o fleet.Offer) choose.Board { return boards[o.GPU] }

func rank(t *testing.T, f choose.For, past map[string]*fleet.PoolPast, offers ...fleet.Offer) []choose.Choice {
	t.Helper()
	n, err := choose.Usual(f)
	if err != nil {
		t.Fatal(err)
	}
	return choose.Rank(n, offers, board, past)
}

func TestTheGuidesOwnA800ClustersFailItsRuleForTraining(t *testing.T) {
	a100, a800 := offer("aws", "A100", 8, 80, fleet.OnDemand, 32), offer("volcengine", "A800", 8, 80, fleet.OnDemand, 10)
	a100.Stock, a800.Stock = fleet.Known(2), fleet.Known(4)
	got := rank(t, choose.Training, nil, a800, a100)
	if got[0].Offer.GPU != "A100" || got[0].No != 0 || got[0].Unproven != 0 {
		t.Errorf("got %+v first, want the A100s, which meet all", got[0])
	}
	if got[1].No != 1 || got[1].Verdicts[1].Rule != "nvlink" || got[1].Verdicts[1].Met != "no" {
		t.Errorf("got %+v, want the A800s to fail by NVLink alone", got[1])
	}
	one := rank(t, choose.Training, nil, offer("aws", "A100", 8, 80, fleet.OnDemand, 32))[0]
	if one.Unproven != 1 || one.No != 0 {
		t.Errorf("got %+v, want 16 cards unproven where no stock is told", one)
	}
}

func TestAT4IsTwiceAnA100WhereItCostsHalfForItsRate(t *testing.T) {
	got := rank(t, choose.Inference, nil, offer("x", "A100", 1, 80, fleet.OnDemand, 3.12), offer("x", "T4", 1, 16, fleet.OnDemand, 0.325))
	if got[0].Offer.GPU != "T4" || math.Abs(got[1].PerRate/got[0].PerRate-2) > 1e-9 {
		t.Errorf("got %+v", got)
	}
	if got[0].Unproven != 2 {
		t.Errorf("latency and throughput are %+v, want them unproven", got[0].Verdicts)
	}
}

func TestTimeBetweenFailuresIsProvedByOwnHoursAlone(t *testing.T) {
	o := offer("x", "V100", 1, 16, fleet.OnDemand, 3)
	o.Certified = "iso27001,mlps3"
	for name, c := range map[string]struct {
		past *fleet.PoolPast
		met  string
	}{
		"no history":                     {nil, "unproven"},
		"too few hours without failures": {&fleet.PoolPast{Hours: 14000}, "unproven"}, // 3.0 failures are possible
		"enough":                         {&fleet.PoolPast{Hours: 15100}, "yes"},
		"one failure":                    {&fleet.PoolPast{Hours: 15100, Interruptions: 1}, "unproven"},
		"many hours and one failure":     {&fleet.PoolPast{Hours: 24000, Interruptions: 1}, "yes"},
	} {
		got := rank(t, choose.Science, map[string]*fleet.PoolPast{o.Pool(): c.past}, o)[0]
		if got.Verdicts[0].Rule != "mtbf" || got.Verdicts[0].Met != c.met || got.Verdicts[1].Met != "yes" {
			t.Errorf("%s: got %+v, want %s", name, got.Verdicts, c.met)
		}
	}
}

func TestStrangersMachinesCarryWhatIsKeptForFailures(t *testing.T) {
	own, strangers := offer("a", "RTX 3090", 1, 24, fleet.OnDemand, 0.85), offer("vast", "RTX 3090", 1, 24, fleet.OnDemand, 0.8)
	strangers.Marketplace = true
	got := rank(t, choose.Experiment, nil, strangers, own)
	if got[0].Offer.Cloud != "a" || math.Abs(got[1].GPUHour-0.9) > 1e-9 {
		t.Errorf("got %+v, want 0.80 USD to count as 0.90 on a marketplace", got)
	}
	if _, err := choose.Usual("fun"); err == nil {
		t.Error("an unknown purpose is taken")
	}
}
