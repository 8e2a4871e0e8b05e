#!/bin/sh
# device-check.sh measures one machine with an NVIDIA GPU: the whole suite, and the same multiplication by PyTorch on the same
# card in the same run, and prints one table. It changes no setting of the device and needs no network.
#
#   infra/device-check.sh [folder for the results, default .]
#
# BENCHRUNNER names the binary (default: ./bench-linux beside the repository, else built here with go and gcc). The result
# is dated; keep it in benchrunner/testdata. Exit: the suite's code, or 4 where the ratio to PyTorch is below 0.98.
set -eu

out=${1:-.}
mkdir -p "$out"
stamp=$(date -u +%Y-%m-%dT%H%M%SZ)
result="$out/device-$stamp.json"
table="$out/device-$stamp.txt"

runner=${BENCHRUNNER:-./bench-linux}
if [ ! -x "$runner" ]; then
	runner=$(mktemp -d)/benchrunner
	CGO_ENABLED=1 go build -o "$runner" ./benchrunner
fi

# Wheels carry cuBLAS: use it where the machine has no other.
libraries=$(python3 - <<'PY' 2>/dev/null || true
import glob, os, site
found = []
for root in site.getsitepackages() + [site.getusersitepackages()]:
    found += glob.glob(os.path.join(root, "nvidia", "*", "lib"))
print(":".join(sorted(found)))
PY
)
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}${LD_LIBRARY_PATH:+${libraries:+:}}$libraries"

code=0
# RUN_FLAGS: further flags of `benchrunner run`, for a trial against fake libraries.
# shellcheck disable=SC2086
"$runner" run --backend cuda --suite quick --json ${RUN_FLAGS:-} >"$result" || code=$?
if [ "$code" -eq 2 ]; then
	echo "benchrunner made no result" >&2
	exit 2
fi

# The same shape, types and spread of data by torch.matmul: windows of about a second for ten seconds after a warm-up.
torch=$(python3 - <<'PY' 2>/dev/null || true
import time, torch
n = 8192
a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
for device_use in range(2):
    rates, begin = [], time.monotonic()
    while time.monotonic() - begin < 10:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(200):
            a @ b
        stop.record()
        stop.synchronize()
        rates.append(2 * n ** 3 * 200 / start.elapsed_time(stop) / 1e9)
rates.sort()
print(rates[len(rates) // 2])
PY
)

status=0
python3 - "$result" "${torch:-}" >"$table" <<'PY' || status=$?
import json, sys
r = json.load(open(sys.argv[1]))
torch = float(sys.argv[2]) if sys.argv[2] else None
unknown = "unknown"
show = lambda v, form="%.3f": unknown if v is None else form % v
print("verdict %s, %.1f s, table %s, versions %s" % (r["verdict"], r["elapsed"], r.get("table"), r.get("versions")))
for c in r.get("causes") or []:
    print("machine: %(cause)s %(detail)s" % {"detail": "", **c})
print("%-3s %-28s %9s %9s %6s %6s %6s %7s %7s  %s" % ("gpu", "name", "TFLOPS", "reference", "ratio", "sheet", "clock", "GB/s", "fp64", "verdict"))
for d in r["devices"]:
    p = d.get("probe") or {}
    print("%-3d %-28s %9.1f %9s %6s %6s %6s %7s %7s  %s" % (
        d["index"], d["name"], d["measured_tflops"], show(d.get("reference_tflops"), "%.1f"), show(d.get("ratio_reference")),
        show(d.get("ratio_datasheet")), show(d.get("ratio_per_clock")), show(p.get("bandwidth_gbs"), "%.0f"),
        show(p.get("fp64_tflops"), "%.1f"), d["verdict"]))
    for c in d.get("causes") or []:
        print("    %s %s %s %s" % (c["cause"], c.get("detail", ""), c.get("want", ""), c.get("got", "")))
    i = d["interval"]
    print("    windows: deviation %.2f %%, lag-1 autocorrelation %.2f, worth %.1f; product off by %.2f of its tolerance" % (
        100 * i["deviation"] / max(i["mean"], 1e-12), i["autocorrelation"], i["effective_n"], d["product"]["worst"]))
if torch is None:
    print("torch.matmul: not measured (no PyTorch on this machine): the ratio is unproven")
elif r["devices"]:
    ratio = r["devices"][0]["measured_tflops"] / torch
    print("torch.matmul on gpu 0: %.1f TFLOPS; benchrunner is %.3f of it (bar 0.98)" % (torch, ratio))
    sys.exit(0 if ratio >= 0.98 else 4)
PY
cat "$table"
[ "$status" -eq 0 ] || exit 4
exit "$code"
