"""``python -m benchmarks``: measure time and memory of losses, fused operator and decoding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.decode import WIDTHS, DecodeBench, bench_decode
from benchmarks.fused import FusedBench, bench_fused
from benchmarks.losses import DTYPES, LossesBench, bench_losses
from benchmarks.picture import plot_decode, plot_fused
from benchmarks.shards import ShardsBench, bench_shards
from benchmarks.workloads import decode_workload
from numerate.checks import check_choice
from numerate.losses import LOSSES

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure time and memory, relative to a baseline.",
)
console = Console(highlight=False)

Tokens = Annotated[int, typer.Option(min=32, help="Label tokens; a quarter of them are numeric.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or cuda:1 and so on.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds; the table shows medians.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this JSON file.")]


@app.command("losses")
def losses_command(
    loss: Annotated[list[str] | None, typer.Option(help="Loss to measure; repeatable. Default: all.")] = None,
    tokens: Tokens = 1024,
    vocab_size: Annotated[int, typer.Option(min=2048, help="Vocabulary size (columns of the logits).")] = 49152,
    numeric_tokens: Annotated[int, typer.Option(help="10: single digits. 1110: chunks of one to three digits.")] = 10,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 7,
    json_file: JsonFile = None,
) -> None:
    """Measure time and peak memory of cross-entropy plus each loss, relative to cross-entropy alone."""
    with console.status("measuring"):
        result = bench_losses(
            loss or tuple(LOSSES),
            tokens=tokens,
            vocab_size=vocab_size,
            numeric_tokens=numeric_tokens,
            dtype=dtype,
            device=device,
            repeats=repeats,
        )
    title = f"{result.tokens} tokens x {result.vocab_size}, {result.numeric_tokens} numeric, {result.dtype}, {result.device}"
    table = _table(title, "cross-entropy +", ("ms", "time ratio", "peak MiB", "memory ratio"))
    table.add_row("nothing", f"{result.ce_runtime_ms:.1f}", "1.00", f"{result.ce_peak_mib:.0f}", "1.00")
    for cost in result.costs:
        figures = f"{cost.runtime_ms:.1f}", f"{cost.runtime_ratio:.2f}", f"{cost.peak_mib:.0f}", f"{cost.peak_ratio:.2f}"
        table.add_row(cost.loss, *figures)
    console.print(table)
    console.print("Forward and backward on the same logits. A ratio below 1 is cheaper than F.cross_entropy alone.")
    speedup, difference = f"{result.ntil_speedup:,.0f}", f"{result.ntil_disagreement:.1e}"
    console.print(f"ntil is {speedup} times faster than its loops; relative difference {difference}.")
    _save(result, json_file)


@app.command("shards")
def shards_command(
    loss: Annotated[list[str] | None, typer.Option(help="Loss to measure; repeatable. Default: all.")] = None,
    tokens: Tokens = 1024,
    vocab_size: Annotated[int, typer.Option(min=2048, help="Vocabulary size of all processes.")] = 49152,
    processes: Annotated[int, typer.Option(min=2, help="Processes that share the vocabulary; one of them is measured.")] = 8,
    numeric_tokens: Annotated[int, typer.Option(help="10: single digits. 1110: chunks of one to three digits.")] = 10,
    hidden_size: Annotated[int | None, typer.Option(min=1, help="Measure the fused operator, with a head of this size.")] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 7,
    top: Annotated[int, typer.Option(min=0, help="Kernels to list for each loss, by time.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure the objective on one shard of the vocabulary, relative to vocabulary-parallel cross-entropy; no communication."""
    shape = {"tokens": tokens, "vocab_size": vocab_size, "processes": processes, "numeric_tokens": numeric_tokens}
    with console.status("measuring"):
        result = bench_shards(
            loss or tuple(LOSSES), **shape, hidden_size=hidden_size, dtype=dtype, device=device, repeats=repeats
        )
    table = _table(
        f"{tokens} tokens x {vocab_size} over {processes}, {dtype}, {result.device}",
        "cross-entropy +",
        ("ms", "ratio", "queued ms", "ratio", "kernels", "their ms"),
    )
    for cost in result.costs:
        times = f"{cost.runtime_ms:.2f}", f"{cost.ratio:.2f}", f"{cost.queued_ms:.2f}", f"{cost.queued_ratio:.2f}"
        kernels = sum(kernel.count for kernel in cost.kernels), sum(kernel.runtime_ms for kernel in cost.kernels)
        table.add_row(cost.loss or "nothing", *times, str(kernels[0]), f"{kernels[1]:.2f}")
    console.print(table)
    for cost in result.costs if top else ():
        console.print(f"\n{cost.loss or 'cross-entropy alone'}")
        for kernel in cost.kernels[:top]:
            console.print(f"  {kernel.runtime_ms:8.3f} ms {kernel.count:4} x {kernel.name[:90]}")
    _save(result, json_file)


@app.command("fused")
def fused_command(
    shape: Annotated[list[str] | None, typer.Option(help="Shape VxH of the head; repeatable. Default: 128256x4096.")] = None,
    tokens: Annotated[list[int] | None, typer.Option(min=32, help="Label tokens; repeatable. Default: 8192.")] = None,
    numeric_tokens: Annotated[
        list[int] | None, typer.Option(help="10, 110, 1110 or 11110; repeatable. Default: 10 and 1110.")
    ] = None,
    loss: Annotated[list[str] | None, typer.Option(help="Loss; repeatable. Default: smmd, ntil and number.")] = None,
    dtype: Dtype = "bfloat16",
    device: Device = "cuda",
    repeats: Repeats = 7,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Plot time and memory to this .png, .svg or .pdf file.")] = None,
) -> None:
    """Measure time and peak memory of the fused operator (head, CE and numeric term), relative to the matrix products."""
    with console.status("measuring") as status:
        result = bench_fused(
            shape or ("128256x4096",),
            tokens or (8192,),
            numeric_tokens or (10, 1110),
            loss or ("smmd", "ntil", "number"),
            dtype=dtype,
            device=device,
            repeats=repeats,
            progress=lambda case: status.update(f"measuring {case}"),
        )
    for case in result.cases:
        title = f"head {case.vocab_size} x {case.hidden_size}, {case.tokens} tokens, {result.dtype}, {result.device}"
        table = _table(title, "", ("ms", "ratio to products", "peak MiB"))
        for cost in case.costs:
            table.add_row(cost.name, f"{cost.runtime_ms:.2f}", f"{cost.ratio:.2f}", f"{cost.peak_mib:,.0f}")
        console.print(table)
        if case.did_not_fit:
            console.print(f"Did not fit in memory: {', '.join(case.did_not_fit)}.")
        console.print(f"Largest relative error against float64: {case.error:.1e}; plain path: {case.plain_error:.1e}.")
    _save(result, json_file)
    if plot is not None:
        plot_fused(result, plot)


@app.command("decode")
def decode_command(
    model: Annotated[
        str, typer.Argument(help="tiny, smollm2, llama-1b (random weights), or the folder of a run with its weights.")
    ] = "tiny",
    width: Annotated[list[int] | None, typer.Option(min=1, help="Beam width; repeatable.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts.")] = 128,
    samples: Annotated[int, typer.Option(min=1, help="Samples per prompt to compare the search with.")] = 32,
    reference: Annotated[int, typer.Option(min=2, help="Fresh samples per prompt to evaluate both on.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per batch.")] = 64,
    many: Annotated[int, typer.Option(min=1, help="Prompts of an additional search, for time and memory.")] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of tiny.")] = 300,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 5,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Plot quality against time to this .png, .svg or .pdf file.")] = None,
) -> None:
    """Measure a model's distribution over numbers: time, memory and quality, relative to greedy answers and to samples."""
    check_choice("dtype", dtype, tuple(DTYPES))
    with console.status("loading the model") as status:
        workload = decode_workload(
            model,
            prompts=prompts,
            device=device,
            dtype=DTYPES[dtype],
            steps=steps,
            progress=lambda stage, done, total, _: status.update(f"{stage}: {done} of {total}"),
        )
        result = bench_decode(
            workload,
            widths=tuple(width or WIDTHS),
            samples=samples,
            reference=reference,
            batch_size=batch_size,
            repeats=repeats,
            many=many,
            progress=status.update,
        )
    title = (
        f"{result.model}, {result.parameters / 1e6:,.4g} M parameters, {result.prompts} prompts, {result.dtype}, {result.device}"
    )
    heads = ("ms", "/ greedy", f"/ {samples} samples", "passes", "peak MiB", "covers", "excess CRPS", "MAE")
    table = _table(title, "", heads)
    for cost in result.costs:
        table.add_row(
            cost.name,
            f"{cost.runtime_ms:,.0f}",
            f"{cost.to_greedy:.2f}",
            f"{cost.to_samples:.3f}",
            str(cost.passes),
            f"{cost.peak_mib:,.0f}",
            "" if cost.covers is None else f"{cost.covers:.1%}",
            "" if cost.excess_crps is None else f"{cost.excess_crps:.1%}",
            "" if cost.absolute_error is None else f"{cost.absolute_error:.4g}",
        )
    console.print(table)
    if result.trained:
        console.print(
            f"covers: share of {result.reference} fresh samples between the 0.5 % and the 99.5 % quantile. excess CRPS: 0 for "
            f"the model's exact distribution, {1 / samples:.1%} expected of {samples} samples. MAE: of greedy answers, and of "
            "medians."
        )
    else:
        console.print("Random weights: only costs are measured.")
    console.print(
        f"{result.many_prompts:,} prompts with width 16, {result.batch_size} at a time: {result.many_ms / 1000:,.1f} s, peak "
        f"{result.many_peak_mib:,.0f} MiB. Reading the tokenizer, once: {result.finder_ms:,.0f} ms."
    )
    _save(result, json_file)
    if plot is not None:
        plot_decode(result, plot)


def _table(title: str, first: str, figures: Sequence[str]) -> Table:
    table = Table(first, title=title, title_justify="left")
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def _save(result: LossesBench | FusedBench | DecodeBench | ShardsBench, file: Path | None) -> None:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(result), indent=2), encoding="utf-8")


if __name__ == "__main__":
    app()
