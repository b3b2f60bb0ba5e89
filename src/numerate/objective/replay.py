"""Capture numeric gradients in CUDA graphs: one launch instead of about a hundred.

A number-level loss consists of many small kernels and, with a small head, is launch-bound. The third time a loss computes a
gradient of about the same size, its kernels are captured in a CUDA graph on rows padded to that size, and replayed from then on.
Where the labels are read on the GPU, the graph has that too.

A recording belongs to a loss with its settings and buffers, and to a size. Its memory, a few times that of the numeric logits,
is freed when the loss is deleted or ``MAX_RECORDINGS`` newer recordings replace it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.target_tokens import Targets
from numerate.objective.device import SideStream
from numerate.objective.term import numeric_gradient

MAX_RECORDINGS = 16  # per loss
MAX_LOGITS = 1 << 23  # numeric logits per recording
MAX_LABELS = 1 << 14  # read in a recording
_RECORD_AT_CALL = 3

Compute = Callable[..., tuple[Tensor, ...]]


class Recording:
    """The kernels of a function for inputs of one size, and the memory they use."""

    def __init__(self, compute: Compute, inputs: Sequence[Tensor]) -> None:
        self.inputs = [value.clone() for value in inputs]
        self.graph = torch.cuda.CUDAGraph()
        compute(*self.inputs)  # warm-up: libraries initialise in the first run
        torch.cuda.current_stream(inputs[0].device).synchronize()
        self.graph.capture_begin(capture_error_mode="thread_local")
        try:
            self.results = compute(*self.inputs)
        finally:
            self.graph.capture_end()

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return copies of the results for other inputs of the same size."""
        for own, value in zip(self.inputs, inputs, strict=True):
            own.copy_(value)
        self.graph.replay()
        return tuple(result.clone() for result in self.results)


# Per loss and key: a recording, or the number of calls so far.
recordings: WeakKeyDictionary[NumericLoss, OrderedDict[Hashable, Recording | int]] = WeakKeyDictionary()


def padded_size(rows: int) -> int:
    """Round rows up to a few sizes per power of two: at most 63 rows or a quarter more."""
    step = max(64, 1 << max(0, (rows - 1).bit_length() - 3))
    return -(-rows // step) * step


def replayed_gradient(loss: NumericLoss, z: Tensor, targets: Targets, packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numeric sum and its gradient w.r.t. ``z [P, N]``, from a recording if there is one.

    ``packed`` has the tensors of ``targets`` on the device, from :meth:`Targets.packed`. Runs on the current stream, which
    must not be the default stream.
    """

    def compute(z: Tensor, packed: Tensor) -> tuple[Tensor, ...]:
        return loss.value_and_grad(z, None, targets.unpacked(packed))[:2]

    total, dz = _replayed(loss, targets.position_weights is None, compute, (z, packed))
    return total, dz


def replays_labels(loss: NumericLoss, labels: Tensor) -> bool:
    """Whether :func:`replayed_from_labels` pays off: on a GPU, whose kernels are short for so few labels."""
    rows = labels.numel()
    small = 0 < rows <= MAX_LABELS and rows * loss.columns.shape[0] <= MAX_LOGITS
    on_gpu = labels.device.type == "cuda" and labels.device == loss.columns.device
    return on_gpu and loss.replayable and small and not torch.cuda.is_current_stream_capturing()


def replayed_from_labels(
    loss: NumericLoss, z: Tensor, labels: Tensor, position_weights: Tensor | None, position_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the numeric sum, its gradient w.r.t. the logits ``z [B·T, N]`` of all rows, and the number of units."""
    optional = {"position_weights": position_weights, "position_ids": position_ids}
    given = {name: value for name, value in optional.items() if value is not None}

    def compute(z: Tensor, labels: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        targets = loss.targets(labels, compact=False, **dict(zip(given, others, strict=True)))
        total, dz, _ = numeric_gradient(loss, z, None, targets, needs_grad=True)
        assert dz is not None
        return total, dz, loss.num_units(targets)

    with torch.no_grad(), SideStream(z.device):
        total, dz, num_units = _replayed(loss, tuple(given), compute, (z, labels, *given.values()))
    return total, dz, num_units


def _replayed(loss: NumericLoss, kind: Hashable, compute: Compute, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the results of a function, from a recording if there is one."""
    of_loss = recordings.setdefault(loss, OrderedDict())
    key = (kind, *((value.shape, value.dtype, value.device) for value in inputs), _state(loss))
    entry = of_loss.pop(key, 0)
    if isinstance(entry, Recording):
        of_loss[key] = entry
        return entry.replay(inputs)
    of_loss[key] = entry + 1 if entry + 1 < _RECORD_AT_CALL else Recording(compute, inputs)
    while len(of_loss) > MAX_RECORDINGS:
        of_loss.popitem(last=False)
    return compute(*inputs)


def _state(loss: NumericLoss) -> Hashable:
    """Return the key of a recording: plain settings and the addresses of buffers."""
    settings = ((name, value) for name, value in vars(loss).items() if isinstance(value, (bool, int, float, str)))
    return tuple(settings), tuple(buffer.data_ptr() for buffer in loss.buffers())
