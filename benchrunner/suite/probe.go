package suite

import (
	"context"
	"errors"
	"math"

	"lowtide/benchrunner/backend"
	"lowtide/shared/gpu"
)

// The limits of the probes.
const (
	leastBandwidth = 0.60 // of the product's: a copy reaches 0.8 to 0.95, another memory type a half or less
	leastLink      = 0.65 // of the PCIe link: the floor that Azure's node health checks use on generation 4
	leastPeer      = 0.75 // of one direction of the NVLinks
	leastHeld      = 0.80 // of the memory that an idle device says it has
	aliased        = 0.01 // of tested blocks: more wrong ones are memory that is not there, fewer are broken cells
	ratioFactor    = 5    // FP64 against FP16, of the product's: products with and without full FP64 differ by 30 and more
)

// probe measures what tells products apart besides the multiplication, where the device can.
func (x *run) probe(ctx context.Context) {
	prober, ok := x.device.(backend.Prober)
	if !ok {
		return
	}
	p := prober.Probe(ctx, x.options.Nonce)
	x.out.Probe = &p
	for _, err := range p.Errors {
		cause, known := causeOf(err)
		switch {
		case !known:
			cause = gpu.TestMissing
		case errors.Is(err, backend.ErrMemory) && x.idle():
			cause = gpu.MemoryUnwritable
		}
		x.find(gpu.Found(cause, "%v", err))
	}
	x.judgeMemory(p)
}

func (x *run) judgeMemory(p backend.Probe) {
	c := x.out.Identity.CUDA
	switch {
	case p.Blocks > 0 && float64(p.Wrong) > aliased*float64(p.Blocks):
		x.find(gpu.Differ(gpu.MemoryMissing, "blocks that came back as written", p.Blocks, "the pattern", p.Blocks-p.Wrong, "the device"))
	case p.Wrong > 0:
		x.find(gpu.Found(gpu.MemoryUnwritable, "%d of %d blocks came back different", p.Wrong, p.Blocks))
	case c != nil && c.Memory != nil && p.Blocks > 0 && float64(p.Held) < leastHeld*float64(*c.Memory):
		cause := gpu.MemoryBusy
		if x.idle() {
			cause = gpu.MemoryMissing
		}
		x.find(gpu.Differ(cause, "bytes that can be held", *c.Memory, "CUDA", p.Held, "allocation"))
	}
}

// judgeProbe holds the probes against the product; a slice or a virtual device has no product to be held against.
func (x *run) judgeProbe() {
	p, row := x.out.Probe, x.rating.row
	if p == nil || row == nil || x.isShared() {
		return
	}
	if b := p.Bandwidth; b != nil && row.Bandwidth > 0 && *b < leastBandwidth*row.Bandwidth {
		x.find(gpu.Differ(gpu.BandwidthBelow, "device memory in GB/s", row.Bandwidth, row.SKU, math.Round(*b), "a copy"))
	}
	if want := max(row.FP64, row.FP64Tensor) / row.Datasheet; p.Double != nil && want > 0 && x.out.Measured > 0 {
		if got := *p.Double / x.out.Measured; got < want/ratioFactor || got > want*ratioFactor {
			x.find(gpu.Differ(gpu.PrecisionRatio, "FP64 against FP16", want, row.SKU, got, "multiplications"))
		}
	}
	n := x.out.Identity.NVML
	if n == nil {
		return
	}
	if n.LinkGen != nil && n.LinkWidth != nil && p.ToDevice != nil {
		if link := lane(*n.LinkGen) * float64(*n.LinkWidth); *p.ToDevice < leastLink*link {
			x.find(gpu.Differ(gpu.PCIeSlow, "host to device in GB/s", link, "the link", *p.ToDevice, "a copy"))
		}
	}
	for _, peer := range p.Peers {
		if n.NVLink != nil && *n.NVLink > 0 && peer.GBs < leastPeer**n.NVLink/2 {
			x.find(gpu.Differ(gpu.PeerSlow, "copy to a peer in GB/s", *n.NVLink/2, "the links", peer.GBs, "a copy"))
		}
	}
}

func (x *run) isShared() bool {
	for _, f := range x.findings {
		if f.Cause == gpu.MIG || f.Cause == gpu.VGPU || f.Cause == gpu.SharedByMPS {
			return true
		}
	}
	return false
}

// lane is one PCIe lane in one direction, GB/s: 1 for generation 3 and twice as much for each after it.
func lane(generation int) float64 { return math.Pow(2, float64(generation-3)) }
