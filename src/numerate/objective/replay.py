"""Capture numeric gradients in CUDA graphs: one launch instead of about a hundred.

A number-level loss consists of many small kernels and, with a small head, is launch-bound. The third time a loss computes a
gradient of about the same size, its kernels are captured in a CUDA graph on rows padded to that size, and replayed from then on.

A recording belongs to a loss with its settings and buffers, and to a size. Its memory, a few times that of the numeric logits,
is freed when the loss is deleted or ``MAX_RECORDINGS`` newer recordings replace it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from numerate.losses.base import NumericLoss
from numerate.losses.target_tokens import Targets

MAX_RECORDINGS = 16  # per loss
MAX_LOGITS = 1 << 23  # numeric logits per recording
_RECORD_AT_CALL = 3


class Recording:
    """The kernels of ``loss.value_and_grad`` for one size, and the memory they use."""

    def __init__(self, loss: NumericLoss, z: Tensor, targets: Targets, packed: Tensor) -> None:
        self.z, self.packed = z.clone(), packed.clone()
        self.graph = torch.cuda.CUDAGraph()
        loss.value_and_grad(self.z, None, targets.unpacked(self.packed))  # warm-up: libraries initialise in the first run
        torch.cuda.current_stream(z.device).synchronize()
        self.graph.capture_begin(capture_error_mode="thread_local")
        try:
            self.total, self.dz, _ = loss.value_and_grad(self.z, None, targets.unpacked(self.packed))
        finally:
            self.graph.capture_end()

    def replay(self, z: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of the results for other rows of the same size."""
        self.z.copy_(z)
        self.packed.copy_(packed)
        self.graph.replay()
        return self.total.clone(), self.dz.clone()


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
    of_loss = recordings.setdefault(loss, OrderedDict())
    key = (z.shape, z.dtype, z.device, targets.position_weights is None, _state(loss))
    entry = of_loss.pop(key, 0)
    if isinstance(entry, Recording):
        of_loss[key] = entry
        return entry.replay(z, packed)
    of_loss[key] = entry + 1 if entry + 1 < _RECORD_AT_CALL else Recording(loss, z, targets, packed)
    while len(of_loss) > MAX_RECORDINGS:
        of_loss.popitem(last=False)
    total, dz, _ = loss.value_and_grad(z, None, targets.unpacked(packed))
    return total, dz


def _state(loss: NumericLoss) -> Hashable:
    """Return the key of a recording: plain settings and the addresses of buffers."""
    settings = ((name, value) for name, value in vars(loss).items() if isinstance(value, (bool, int, float, str)))
    return tuple(settings), tuple(buffer.data_ptr() for buffer in loss.buffers())
