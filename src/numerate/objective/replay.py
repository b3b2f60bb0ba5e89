"""Record a numeric gradient on a GPU and replay it: one launch in place of about a hundred.

A number-level loss is many small kernels, which a GPU runs faster than a CPU can launch them. With a small head the GPU would
wait for them. So the third time that a loss is asked for a gradient of about the same size, its kernels are recorded in a CUDA
graph, on rows padded to that size, and from then on replayed.

A recording belongs to a loss with its settings, its buffers and a size. Its memory, a few times that of the numeric logits, is
kept until the loss is gone or ``MOST`` newer recordings have replaced it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.targets import Targets

MOST = 16  # recordings kept for a loss
LARGEST = 1 << 23  # numeric logits of a recording
_PATIENCE = 3  # calls before a recording is made


class _Recording:
    """The kernels of ``loss.value_and_grad`` for one size, and the memory they work on."""

    def __init__(self, loss: NumericLoss, z: Tensor, targets: Targets, packed: Tensor) -> None:
        self.z, self.packed = z.clone(), packed.clone()
        self.graph = torch.cuda.CUDAGraph()
        loss.value_and_grad(self.z, None, targets.unpacked(self.packed))  # libraries set themselves up in a first run
        torch.cuda.current_stream(z.device).synchronize()
        self.graph.capture_begin(capture_error_mode="thread_local")
        try:
            self.total, self.dz, _ = loss.value_and_grad(self.z, None, targets.unpacked(self.packed))
        finally:
            self.graph.capture_end()

    def replay(self, z: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
        """The results for other rows of the same size, in memory of their own."""
        self.z.copy_(z)
        self.packed.copy_(packed)
        self.graph.replay()
        return self.total.clone(), self.dz.clone()


_recordings: WeakKeyDictionary[NumericLoss, OrderedDict[Hashable, _Recording | int]] = WeakKeyDictionary()


def padded_size(rows: int) -> int:
    """Rows of a recording that serves ``rows``: at most a quarter more, of four sizes between two powers of two."""
    step = max(64, 1 << max(0, rows - 1).bit_length() - 3)
    return -(-rows // step) * step


def replayed_gradient(loss: NumericLoss, z: Tensor, targets: Targets, packed: Tensor) -> tuple[Tensor, Tensor]:
    """The numeric sum and its gradient by ``z [P, N]``, from a recording once there is one.

    ``packed`` holds what ``targets`` says, on the device, as :meth:`Targets.packed` makes it. Runs on the current stream, which
    must not be the default one.
    """
    kept = _recordings.setdefault(loss, OrderedDict())
    key = (z.shape, z.dtype, z.device, targets.position_weights is None, _state(loss))
    found = kept.pop(key, 0)
    if isinstance(found, _Recording):
        kept[key] = found
        return found.replay(z, packed)
    kept[key] = found + 1 if found + 1 < _PATIENCE else _Recording(loss, z, targets, packed)
    while len(kept) > MOST:
        kept.popitem(last=False)
    total, dz, _ = loss.value_and_grad(z, None, targets.unpacked(packed))
    return total, dz


def _state(loss: NumericLoss) -> Hashable:
    """What a recording has taken in: plain settings, and where buffers lie."""
    settings = ((name, value) for name, value in vars(loss).items() if isinstance(value, (bool, int, float, str)))
    return tuple(settings), tuple(buffer.data_ptr() for buffer in loss.buffers())
