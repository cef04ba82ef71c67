"""All or nothing: after a load that was refused or has failed half-way, no live object differs from before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mementum
from loops import Parts, parts, step_once
from mementum.errors import CheckpointDamaged, MementumError, NothingToResume, StateMismatch
from mementum.live import rng
from trips import Box, bits


def things(made: Parts) -> dict[str, Any]:
    return {
        "model": made.model,
        "optimizer": made.optimizer,
        "scheduler": made.scheduler,
        "data": made.loader,
        "state": made.extra,
    }


def program(seed: int, steps: int) -> Parts:
    """A program in the middle of its work: state in all of its objects, gradients, modes, a frozen weight, a scaler,
    containers and generators of its own."""
    made = parts(seed=seed)
    made.extra |= {
        "held": {"deep": [torch.full((2,), float(seed)), {"n": seed}]},
        "list": [seed, torch.ones(3)],
        "tensor": torch.full((4,), float(seed)),
        "generator": torch.Generator().manual_seed(seed),
        "box": Box(a=torch.full((2,), float(seed)), b=[seed]),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**seed),
        "ema": torch.optim.swa_utils.AveragedModel(made.model),
    }
    for number, batch in enumerate(made.loader):
        if number < steps:
            step_once(made, batch)
    made.model[2].eval()
    made.model[0].weight.requires_grad_(False)
    return made


def objects(made: Parts) -> dict[str, torch.Tensor]:
    """All tensors of a program by a name, those of its containers too."""
    found: dict[str, torch.Tensor] = {}
    for name, model in (("model", made.model), ("ema", made.extra["ema"])):
        found |= {f"{name}.{key}": tensor for key, tensor in [*model.named_parameters(), *model.named_buffers()]}
    for number, state in enumerate(made.optimizer.state.values()):
        found |= {f"optimizer.{number}.{key}": value for key, value in state.items() if isinstance(value, torch.Tensor)}
    found["held"], found["list"] = made.extra["held"]["deep"][0], made.extra["list"][1]
    found["tensor"] = made.extra["tensor"]
    return found


def everything(made: Parts) -> dict[str, Any]:
    """All that a load could change of a program, by a name."""
    found: dict[str, Any] = {}
    for name, tensor in objects(made).items():
        found[f"{name}: object"] = (
            id(tensor),
            tensor.data_ptr(),
            tensor.requires_grad,
            tensor.stride(),
            id(tensor.grad),
        )
        found[f"{name}: bits"] = bits(tensor)
        found[f"{name}: grad"] = None if tensor.grad is None else bits(tensor.grad)
        found[f"{name}: version"] = tensor._version
    given = {"model": made.model, "optimizer": made.optimizer, "scheduler": made.scheduler, **made.extra}
    for name, thing in given.items():
        state = thing.state_dict() if hasattr(thing, "state_dict") else thing
        found[f"{name}: state"] = repr(state.get_state()) if isinstance(state, torch.Generator) else bits(state)
        found[f"{name}: attributes"] = {key: id(value) for key, value in getattr(thing, "__dict__", {}).items()}
    found["modes"] = [module.training for module in made.model.modules()]
    found["groups"] = [
        (id(group), sorted(group), list(map(id, group["params"]))) for group in made.optimizer.param_groups
    ]
    found["lr"] = [repr(group["lr"]) for group in made.optimizer.param_groups]
    found["generators"] = bits(rng.read())
    found["place"] = (made.loader.sampler.epoch, made.loader.sampler.position, made.loader.sampler.state_dict())
    deep = made.extra["held"]["deep"]
    found["containers"] = (id(deep), id(deep[1]), [id(one) for one in made.extra["list"][1:]])
    return found


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    with mementum.open_run(root, task="t", **things(program(seed=3, steps=3))) as run:
        run.record()
    return root


def refused(
    root: Path, made: Parts, *, error: type[BaseException] = StateMismatch, written: tuple[str, ...] = (), **wishes: Any
) -> Any:
    """Try to resume, and compare every live object with what it was; the error. Tensors whose names end with
    one of `written` may count one write and another one that undid it."""
    opening = {**things(made), **wishes}
    before = everything(made)
    with pytest.raises(error) as caught:
        mementum.open_run(root, task="t", **opening)
    after = everything(made)
    differing = [name for name in before if before[name] != after[name]]
    assert [name for name in differing if not name.endswith(tuple(f"{one}: version" for one in written))] == []
    assert before.keys() == after.keys()
    return caught.value


def swap(made: Parts, number: int, layer: nn.Module) -> None:
    made.model[number] = layer


class Another(torch.optim.AdamW):
    pass


UNFIT: dict[str, tuple[Callable[[Parts], object], str]] = {
    "shape": (lambda made: swap(made, 4, nn.Linear(8, 2)), "was stored with shape (1, 8) and has shape (2, 8)"),
    "dtype": (lambda made: made.model[4].to(torch.bfloat16), "was stored as torch.float32 and is torch.bfloat16"),
    "missing": (lambda made: swap(made, 3, nn.PReLU()), "model.3.weight is in the model and was not stored"),
    "extra": (lambda made: swap(made, 1, nn.Identity()), "model.1.running_mean was stored and the model has no such"),
    "a component that came": (lambda made: made.extra.update(new={}), "new is given and was not stored"),
    "a component that went": (lambda made: made.extra.pop("list"), "list was stored and is not given"),
    "another kind": (lambda made: made.extra.update(held=[]), "held was stored as dict and is list"),
    "another container": (lambda made: made.extra.update(tensor=torch.ones(5)), "tensor was stored as torch.float32"),
    "another generator": (lambda made: made.extra.update(generator=__import__("random").Random(1)), "of kind random"),
    "another component": (lambda made: made.extra.update(box={}), "box was stored as stateful and is container"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_changes_nothing(stored: Path, name: str) -> None:
    change, told = UNFIT[name]
    made = program(seed=5, steps=2)
    opening = things(made)
    given = dict(made.extra)
    change(made)
    if name in ("shape", "dtype", "missing", "extra"):
        made.optimizer.zero_grad()
    changed = {"state": dict(made.extra)}
    made.extra.clear()
    made.extra.update(given)  # `everything` looks at the same objects each time
    error = refused(stored, made, **{**opening, **changed})
    assert told in str(error)


def test_another_optimizer_changes_nothing(stored: Path) -> None:
    made = program(seed=5, steps=2)
    optimizer = Another(made.model.parameters(), lr=0.3)
    made.optimizer = optimizer
    assert "optimizer was stored as AdamW and is Another" in str(refused(stored, made))


def test_other_groups_change_nothing(stored: Path) -> None:
    made = program(seed=5, steps=2)
    made.optimizer = torch.optim.AdamW(list(made.model.parameters())[:-1])
    assert "optimizer: model.4.bias was stored and is not in it" in str(refused(stored, made))


def test_data_of_another_length_changes_nothing(stored: Path) -> None:
    made = program(seed=5, steps=2)
    data = made.loader.dataset
    data.tensors = (data.tensors[0][:-1],)
    sampler = mementum.data.ElasticSampler(data, seed=5)
    made.loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    assert "the data had 23 samples and has 22" in str(refused(stored, made))


@pytest.mark.parametrize("file", ["model.safetensors", "ema.safetensors", "optimizer.blocks", "context-00000.json"])
def test_damage_changes_nothing(stored: Path, file: str) -> None:
    (path,) = stored.rglob(file)
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    refused(stored, program(seed=5, steps=2), error=NothingToResume)


class Raising(Box):
    """Changes much of itself, in place and by new objects, and then refuses, whatever it is given."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held["a"].add_(1)
        self.held["b"].append(9)
        self.held = state
        self.half = "done"
        raise ValueError("this is version 2")


class Losing(Box):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = {"a": state["a"]}


class Failing(Box):
    """Fails with what no list of ours has."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held.clear()
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "error"), [(Raising, StateMismatch), (Losing, StateMismatch), (Failing, KeyboardInterrupt)]
)
def test_an_object_that_fails_half_way_is_as_it_was(stored: Path, kind: type[Box], error: type[BaseException]) -> None:
    made = program(seed=5, steps=2)
    made.extra["box"] = kind(a=torch.ones(2), b=[1])
    before, held = bits(made.extra["box"].held), made.extra["box"].held
    refused(stored, made, error=error)
    assert made.extra["box"].held is held
    assert bits(held) == before
    assert vars(made.extra["box"]).keys() == {"held"}


class Stubborn(torch.optim.AdamW):
    """Writes into its own tensors, and then refuses."""

    def load_state_dict(self, state_dict: Any) -> None:
        for state in self.state.values():
            state["exp_avg"].add_(1)
            state["more"] = 1
        self.param_groups[0]["lr"] = 7.0
        self.note = "half"
        raise TypeError("no")


@pytest.mark.parametrize("hook", [False, True])
def test_an_optimizer_that_fails_half_way_is_as_it_was(stored: Path, hook: bool) -> None:
    """The one in a hook after torch's load, the other in its own load. The container was loaded before."""
    made = program(seed=5, steps=2)
    if hook:

        def after(optimizer: Any) -> None:
            optimizer.state[made.model[1].weight]["exp_avg"].add_(1)
            raise TypeError("no")

        made.optimizer.register_load_state_dict_post_hook(after)
    else:
        made.optimizer.__class__ = type("AdamW", (Stubborn,), {})
    error = refused(stored, made, written=("exp_avg", "tensor"))
    assert "optimizer refused its state: TypeError: no" in str(error)


def test_data_that_refuses_its_place_changes_nothing(tmp_path: Path) -> None:
    class Loader:
        """A loader that tells its place, and takes none that has been changed since."""

        def __init__(self, fails: bool) -> None:
            self.fails, self.place = fails, 0

        def __iter__(self) -> Any:
            for _ in range(3):
                self.place += 1
                yield self.place

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]
            if self.fails:
                raise ValueError("made by another version")

    model, loader = nn.Linear(1, 1), Loader(False)
    with mementum.open_run(tmp_path, task="t", model=model, data=loader) as run:
        for _ in run.steps(loader, 2):
            run.record()
    fresh, failing = nn.Linear(1, 1), Loader(True)
    before = bits(fresh.state_dict())
    with pytest.raises(StateMismatch, match="the data refused its place: ValueError: made by another version"):
        mementum.open_run(tmp_path, task="t", model=fresh, data=failing)
    assert (bits(fresh.state_dict()), failing.place) == (before, 0)
    shape, good = nn.Linear(2, 1), Loader(False)
    with pytest.raises(StateMismatch, match="shape"):
        mementum.open_run(tmp_path, task="t", model=shape, data=good)
    assert good.place == 0


def test_not_a_number_is_no_failure(tmp_path: Path) -> None:
    made = {"model": nn.Linear(2, 2), "state": {"nan": torch.tensor([float("nan"), -float("nan"), float("inf")])}}
    with torch.no_grad():
        made["model"].weight.fill_(float("nan"))
    with mementum.open_run(tmp_path, task="t", **made) as run:
        run.record()
    fresh = {"model": nn.Linear(2, 2), "state": {"nan": torch.zeros(3)}}
    with mementum.open_run(tmp_path, task="t", **fresh, resume="must"):
        pass
    assert bits(fresh["model"].state_dict()) == bits(made["model"].state_dict())
    assert bits(fresh["state"]) == bits(made["state"])


def test_the_errors_are_ours() -> None:
    assert all(issubclass(kind, MementumError) for kind in (StateMismatch, NothingToResume, CheckpointDamaged))
