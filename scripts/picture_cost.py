"""Measure what the pictures of visual tasks cost: time to draw one, and room for 10,000 of them as PNG.

    python scripts/picture_cost.py         # Markdown

Times are those of one core, the first picture, which imports what draws, left out. A file takes whole blocks of 4 kB.
"""

from __future__ import annotations

import argparse
import io
import time

from numerate.lab.data import TASKS

BLOCK = 4096


def cost(name: str, count: int) -> tuple[float, float]:
    """Return the milliseconds of a drawing, and the megabytes of 10,000 PNG files, from ``count`` training examples."""
    examples = list(TASKS[name]().examples("train", count))
    images = [examples[0].image]
    begin = time.process_time()
    images += [example.image for example in examples[1:]]
    seconds = time.process_time() - begin
    size = 0
    for image in images:
        assert image is not None  # the task is visual
        file = io.BytesIO()
        image.save(file, "PNG")
        size += -(-file.tell() // BLOCK) * BLOCK
    return 1000 * seconds / (count - 1), 10_000 * size / count / 1e6


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=150, help="pictures of each task. Default: 150")
    given = parser.parse_args(arguments)
    print("| task | a drawing, ms | 10,000 as PNG, MB |\n|---|---|---|")
    for name in (name for name, task in TASKS.items() if task.visual):
        milliseconds, megabytes = cost(name, given.count)
        print(f"| `{name}` | {milliseconds:.0f} | {megabytes:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
