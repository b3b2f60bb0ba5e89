"""The registry of losses: what the command line, the playground, the tests, the benchmarks and the documentation list."""

from __future__ import annotations

from typing import TypeVar

from numerate.losses.base import NumericLoss

LOSSES: dict[str, type[NumericLoss]] = {}
"""Every loss by its name: what `--loss` of the command line takes."""
Loss = TypeVar("Loss", bound=type[NumericLoss])


def register(loss: Loss) -> Loss:
    """Enter a loss in ``LOSSES`` under its ``name``, and return it: a decorator of its class.

    A file in ``numerate/losses`` is imported with the package: its losses are registered without being named anywhere else.

    Raises:
        TypeError: it is not a subclass of :class:`~numerate.losses.base.NumericLoss`.
        ValueError: it has no name of its own, or another loss has that name.
    """
    if not (isinstance(loss, type) and issubclass(loss, NumericLoss)):
        raise TypeError(f"loss is {loss!r}: expected a subclass of NumericLoss.")
    name = vars(loss).get("name")
    if not (isinstance(name, str) and name.isidentifier()):
        raise ValueError(f"name of {loss.__name__} is {name!r}: expected an identifier; set name = 'my_loss' in the class.")
    if LOSSES.get(name, loss) is not loss:
        raise ValueError(f"name of {loss.__name__} is {name!r}: expected one that {LOSSES[name].__name__} does not have.")
    LOSSES[name] = loss
    return loss
