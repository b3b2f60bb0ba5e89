"""The registry of losses, from which the command line, playground, tests, benchmarks and documentation take their lists."""

from __future__ import annotations

from typing import TypeVar

from numerate.losses.base import NumericLoss

LOSSES: dict[str, type[NumericLoss]] = {}
"""All losses by name, as ``--loss`` of the command line takes them."""
Loss = TypeVar("Loss", bound=type[NumericLoss])


def register(loss: Loss) -> Loss:
    """Class decorator that adds a loss to ``LOSSES`` under its ``name``.

    All files in ``numerate/losses`` are imported with the package, so a new file needs no other entry.

    Raises:
        TypeError: the class is not a subclass of :class:`~numerate.losses.base.NumericLoss`.
        ValueError: it does not define a ``name``, or the name is taken.
    """
    if not (isinstance(loss, type) and issubclass(loss, NumericLoss)):
        raise TypeError(f"loss is {loss!r}: expected a subclass of NumericLoss.")
    name = vars(loss).get("name")
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"name of {loss.__name__} is {name!r}: expected an identifier; set name = 'my_loss' in the class.")
    if LOSSES.get(name, loss) is not loss:
        raise ValueError(f"name of {loss.__name__} is {name!r}: already the name of {LOSSES[name].__name__}; choose another.")
    LOSSES[name] = loss
    return loss
