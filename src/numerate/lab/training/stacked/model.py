"""Stack models of one architecture into one, and take them apart again."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from numerate.lab.models.loading import LoadedModel
from numerate.lab.models.names import BUILT
from numerate.lab.training.stacked.layers import Members, stacked_layer


def stack(models: Sequence[LoadedModel]) -> LoadedModel:
    """Return E models of one architecture as one.

    Its batches have rows of all models: E equal parts, or any rows with ``members``, ``[R]``: the model of each row. Selecting
    and repeating rows, as ``generate`` and the search of numbers do, works as for other models, if ``members`` goes with them.

    Raises:
        ValueError: if a layer with weights is of a type that cannot be stacked.
    """
    from torch import nn
    from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

    members = Members(len(models))
    first: Any = models[0].model
    whole = copy.deepcopy(first)
    shared: dict[int, nn.Parameter] = {}  # tied weights stay tied
    replaced: list[str] = []
    for name, module in first.named_modules():
        if any(name.startswith(f"{done}.") for done in replaced):
            continue
        layer = stacked_layer(members, [model.model.get_submodule(name) for model in models])
        if layer is None:
            if own := [key for key, _ in module.named_parameters(recurse=False)]:
                raise ValueError(
                    f"{type(module).__name__} ({name or 'the model itself'}, with {', '.join(own)}) cannot be stacked: expected "
                    f"one of {', '.join(BUILT)}; train these models one at a time."
                )
            continue
        for key, parameter in module.named_parameters():
            owner, _, attribute = key.rpartition(".")
            place = layer.get_submodule(owner)
            if id(parameter) in shared:
                setattr(place, attribute, shared[id(parameter)])
            shared[id(parameter)] = place.get_parameter(attribute)
        whole.set_submodule(name, layer)
        replaced.append(name)
    for module in whole.modules():
        if isinstance(module, LlavaMultiModalProjector):
            module.register_forward_hook(_as_one)
    whole.__class__ = _stacked_class(type(first))
    whole.members = members
    return replace(models[0], model=whole)


def unstack(stacked: LoadedModel, index: int, into: LoadedModel) -> LoadedModel:
    """Write the weights of one of the stacked models into a model of its own, and return that."""
    weights = {name: parameter.detach()[index] for name, parameter in stacked.model.named_parameters()}
    with torch.no_grad():
        for name, parameter in into.model.named_parameters():
            parameter.copy_(weights[name])
    return into


def _as_one(module: Any, inputs: Any, features: Tensor) -> list[Tensor]:
    """Return the features of all pictures as one item: LLaVA makes a list of them and joins it, slow with thousands."""
    return [features]


def _stacked_class(kind: Any) -> Any:
    """Return the class of a model whose forward takes ``members``."""

    def forward(self: Any, *args: Any, members: Tensor | None = None, **kwargs: Any) -> Any:
        self.members.set(members)
        return kind.forward(self, *args, **kwargs)

    signature = inspect.signature(kind.forward)
    *parameters, last = signature.parameters.values()
    new = inspect.Parameter("members", inspect.Parameter.KEYWORD_ONLY, default=None)
    ordered = [*parameters, new, last] if last.kind is last.VAR_KEYWORD else [*parameters, last, new]
    forward.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    return type(f"Stacked{kind.__name__}", (kind,), {"forward": forward, "__module__": __name__})
