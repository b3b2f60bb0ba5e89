"""attach, and then something changes the head or what the model does with its logits: the gradient stays that of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.integrations.trainers.cases import Case, Collect, arguments, assert_same, build, collate, gradients, trainer_for
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.checkpoint import checkpoint

from numerate.integrations.transformers import attach, compute_loss_func

MODELS = ("llama", "mixtral", "t5")  # a loss function; the same and a router's loss; F.cross_entropy


class Half(torch.autograd.Function):
    """Returns its argument, and half of the gradient: a gradient that goes around it shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad / 2


class HalfCopy(Half):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()


class HalfDetached(Half):
    """As DeepSpeed's functions, which pass a module's output through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()


class Weighted(Half):
    """Has a second argument with a gradient: its output requires one even if that of the logits is lost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor) -> Tensor:  # type: ignore[override]
        return x + 0 * other

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad / 2, torch.zeros(())


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def called(model: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Make the model's code call ``call(head, hidden)``: the head's attributes do not show it."""
    head = model.lm_head

    class Outer(nn.Linear):
        def __call__(self, hidden: Tensor) -> Tensor:
            return call(head, hidden)

    outer = Outer.__new__(Outer)
    outer.__dict__ = head.__dict__
    model._modules["lm_head"] = outer
    model.get_output_embeddings = lambda: head


def looked_at(head: nn.Module, hidden: Tensor) -> Tensor:
    logits: Tensor = head(hidden)
    with torch.no_grad():
        logits.argmax(-1)
    return logits


def lora(model: nn.Module) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(2)
    peft.inject_adapter_in_model(peft.LoraConfig(target_modules=["lm_head"], init_lora_weights=False), model)


def subclassed(model: nn.Module) -> None:
    model.lm_head.__class__ = Tripled


def replaced(model: nn.Module) -> None:
    head = Tripled(model.lm_head.in_features, model.lm_head.out_features, bias=False).to(torch.float64)
    head.weight = model.lm_head.weight
    model.lm_head = head


def replaced_plain(model: nn.Module) -> None:
    head = nn.Linear(model.lm_head.in_features, model.lm_head.out_features, bias=False).to(torch.float64)
    head.weight = nn.Parameter(2 * model.lm_head.weight.detach())
    model.lm_head = head


def forward_replaced(model: nn.Module) -> None:
    forward = model.lm_head.forward
    model.lm_head.forward = lambda x: 3 * forward(x)


def base_hook(model: nn.Module) -> None:
    """On the module whose output the head gets."""
    base = model.decoder if model.config.is_encoder_decoder else model.model
    base.register_forward_hook(lambda _, __, out: out.__class__(**{**out, "last_hidden_state": Half.apply(out[0])}))


# What may change a head or the logits after attach. A context manager where it must be undone.
CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "forward hook": lambda model: model.lm_head.register_forward_hook(lambda _, __, out: Half.apply(out)),
    "forward hook that detaches": lambda model: model.lm_head.register_forward_hook(lambda _, __, out: HalfDetached.apply(out)),
    "forward pre-hook": lambda model: model.lm_head.register_forward_pre_hook(lambda _, args: (Half.apply(args[0]),)),
    "backward hook": lambda model: model.lm_head.register_full_backward_hook(lambda _, grad, __: tuple(g / 2 for g in grad)),
    "backward pre-hook": lambda model: model.lm_head.register_full_backward_pre_hook(lambda _, grad: tuple(g / 2 for g in grad)),
    "global forward hook": lambda model: modules.register_module_forward_hook(
        lambda module, _, out: Half.apply(out) if module is model.lm_head else None
    ),
    "global forward pre-hook": lambda model: modules.register_module_forward_pre_hook(
        lambda module, args: (Half.apply(args[0]),) if module is model.lm_head else None
    ),
    "global backward hook": lambda model: modules.register_module_full_backward_hook(
        lambda module, grad, _: tuple(g / 2 for g in grad) if module is model.lm_head else None
    ),
    "global backward pre-hook": lambda model: modules.register_module_full_backward_pre_hook(
        lambda module, grad: tuple(g / 2 for g in grad) if module is model.lm_head else None
    ),
    "parametrization": lambda model: nn.utils.parametrize.register_parametrization(model.lm_head, "weight", Doubled()),
    "weight norm": lambda model: nn.utils.parametrizations.weight_norm(model.lm_head),
    "another class": subclassed,
    "another module": replaced,
    "another plain module": replaced_plain,
    "another forward": forward_replaced,
    "LoRA": lora,
    "hook of the base model": base_hook,
    "function of the logits": lambda model: called(model, lambda head, hidden: Half.apply(head(hidden))),
    "function that copies the logits": lambda model: called(model, lambda head, hidden: HalfCopy.apply(head(hidden))),
    "function that detaches the logits": lambda model: called(model, lambda head, hidden: HalfDetached.apply(head(hidden))),
    "function of two arguments": lambda model: called(
        model, lambda head, hidden: Weighted.apply(head(hidden), torch.zeros((), requires_grad=True))
    ),
    "a look at the logits": lambda model: called(model, looked_at),
    **{
        f"checkpoint, reentrant: {reentrant}": lambda model, reentrant=reentrant: called(
            model, lambda head, hidden: checkpoint(head, hidden, use_reentrant=reentrant)
        )
        for reentrant in (True, False)
    },
}
# How logits reach the loss depends on the model; how the head is called does not.
OF_LOGITS = ["forward hook", "another plain module", *(name for name in CHANGES if "logits" in name)]
COMPILED: dict[str, Callable[[nn.Module], Any]] = {
    "compiled in place": lambda model: model.lm_head.compile(backend="eager"),
    "whole model compiled in place": lambda model: model.compile(backend="eager"),
    "compiled": lambda model: setattr(model, "lm_head", torch.compile(model.lm_head, backend="eager")),
}


@contextlib.contextmanager
def changed(model: nn.Module, change: Callable[[nn.Module], Any]) -> Iterator[nn.Module]:
    handle = change(model)
    try:
        yield model
    finally:
        if handle is not None and hasattr(handle, "remove"):
            handle.remove()


def by_hand(case: Case, change: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
    """Return the gradient of one batch by autograd, with the change."""
    with changed(build(case.model), change) as model:
        batch = collate(case.rows)
        out, labels = model(**batch), batch["labels"]
        shifted = (out.logits, labels) if case.model == "t5" else (out.logits[:, :-1], labels[:, 1:])
        loss = case.objective(*shifted).loss
        if case.model == "mixtral":
            loss = loss + model.config.router_aux_loss_coef * out.aux_loss
        loss.backward()
        return gradients(model)


def by_trainer(case: Case, change: Callable[[nn.Module], Any], folder: Any) -> tuple[dict[str, Tensor], Any]:
    collect, objective, model = Collect(), case.objective, build(case.model)
    trainer = trainer_for(model, case.rows, arguments(str(folder), 2), callbacks=[collect])
    attach(trainer, objective)
    with changed(model, change):
        trainer.train()
    return collect.grads, objective


def assert_gradient_of_the_changed_model(name: str, change: Callable[[nn.Module], Any], folder: Any) -> Any:
    case = Case(name)
    found, objective = by_trainer(case, change, folder)
    assert_same(found, by_hand(case, change))
    return objective


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "change"),
    [*(("llama", change) for change in CHANGES), *((name, change) for name in MODELS[1:] for change in OF_LOGITS)],
)
def test_a_change_after_attach(name: str, change: str, tmp_path: Any) -> None:
    objective = assert_gradient_of_the_changed_model(name, CHANGES[change], tmp_path)
    if change in ("another plain module", "hook of the base model"):  # the head is plain
        assert (objective.fused_calls, objective.plain_calls) == (2, 0)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", COMPILED)
def test_a_head_compiled_after_attach(change: str, tmp_path: Any) -> None:
    assert_gradient_of_the_changed_model("llama", COMPILED[change], tmp_path)


def test_a_hook_added_and_removed(tmp_path: Any) -> None:
    """The head is looked at before every forward pass: logits are built while the hook is there, with one warning."""
    case, model = Case("llama"), build("llama")
    objective = case.objective
    trainer = trainer_for(model, case.rows, arguments(str(tmp_path), learning_rate=0.0))
    attach(trainer, objective)
    hook = model.lm_head.register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match="logits of the whole batch will be built: the head has hooks"):
        trainer.train()
    hook.remove()
    trainer.train()
    assert (objective.fused_calls, objective.plain_calls) == (1, 1)


def frozen(model: nn.Module) -> None:
    model.lm_head.register_forward_hook(lambda _, __, out: out.detach())


@pytest.mark.filterwarnings("ignore:logits of the whole batch")
@pytest.mark.parametrize(
    ("name", "attached"), [*((name, True) for name in MODELS), ("llama", False), ("mixtral", False)], ids=str
)
def test_a_loss_without_a_gradient_is_an_error(name: str, attached: bool, tmp_path: Any) -> None:
    """The router's loss of Mixtral has one. Not attached: ``compute_loss_func``."""
    case, model = Case(name), build(name)
    frozen(model)
    args = arguments(str(tmp_path))
    if attached:
        trainer = trainer_for(model, case.rows, args)
        attach(trainer, case.objective)
    else:
        model.config.output_router_logits = False
        trainer = trainer_for(model, case.rows, args, compute_loss_func=compute_loss_func(case.objective, shift=True))
    with pytest.raises(RuntimeError, match="the objective's loss has no gradient"):
        trainer.train()
    trainer.evaluate(case.rows)
