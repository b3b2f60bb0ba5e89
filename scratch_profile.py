"""CPU time of phases of the fused operator, and the ratio to three products."""
import sys, time, statistics as st, collections
import torch
from numerate import LOSSES, NumericObjective
from numerate.bench.fused import _Step, bench_fused
from numerate.bench.measure import compare_ms, median_ratio
from numerate.fused import operator as op
from numerate.losses.rows import Targets
from numerate.losses.base import NumericLoss
dev = torch.device("cuda")
log = collections.defaultdict(list)
def timed(owner, name):
    f = getattr(owner, name)
    def wrapped(*a, **k):
        t = time.perf_counter(); r = f(*a, **k); log[name].append((time.perf_counter() - t) * 1e3); return r
    setattr(owner, name, wrapped)
shape, tokens = (49152, 576), 16384
step = _Step(shape, tokens, torch.bfloat16, dev)
works = {"three products": step.products}
for n in (10, 1110):
    for name in ("smmd", "ntil", "ntl_number", "number", "crps"):
        o, y = step.objective(name, n), step.labels(n)
        works[f"{name} {n}"] = lambda o=o, y=y: step.fused(o, y)
times = compare_ms(works, dev, repeats=7, lead=3)
for k, v in times.items():
    print(f"{k:20s} {st.median(v):7.3f} ms  ratio {median_ratio(v, times['three products']):.3f}", flush=True)
for o, n in ((NumericLoss, "targets"), (Targets, "to"), (op, "numeric_gradient"), (op, "replayed_gradient"), (op._Run, "forward"), (op._Run, "_read_labels"), (op._Run, "_pass_chunk"), (op._Run, "_numeric_logits"), (op._Run, "_join"), (op._Run, "_head_back"), (op._Run, "_hidden_back"), (op._Run, "_head_back_at_columns")): timed(o, n)
for name, work in list(works.items())[1:]:
    torch.cuda.synchronize(); log.clear()
    for _ in range(8): work(); torch.cuda.synchronize()
    print(name, {k: round(st.median(v), 3) for k, v in log.items()}, flush=True)
from torch.profiler import profile, ProfilerActivity
for name in ("smmd 1110", "ntil 10", "number 1110"):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        works[name](); torch.cuda.synchronize()
    ev = sorted((e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA), key=lambda e: e.time_range.start)
    t0 = ev[0].time_range.start
    print(name, "kernels", len(ev))
    for e in ev:
        if e.time_range.elapsed_us() > 15: print(f"   {e.time_range.start-t0:9.1f} {e.time_range.elapsed_us():8.1f} {e.name[:90]}")
    print("   end", ev[-1].time_range.end - t0)
