"""Tests of what is read of gradients, against full norms and an optimizer's real updates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from mementum.perceive.gradients import FULL_EVERY, GradientReading, Gradients
from mementum.perceive.sample import BLOCK

Named = dict[int, str]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


def small_model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def large_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(60, 120), nn.Tanh(), nn.Linear(120, 60))


def names_of(model: nn.Module) -> Named:
    return {id(one): name for name, one in model.named_parameters()}


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, *, scale: float = 1.0) -> None:
    optimizer.zero_grad(set_to_none=True)
    first = next(model.parameters())
    (scale * model(torch.randn(16, first.shape[1], device=first.device)).square().mean()).backward()


def norm_of(model: nn.Module) -> float:
    return float(torch.stack([one.grad.norm() for one in model.parameters() if one.grad is not None]).norm())


@contextmanager
def watching(model: nn.Module, optimizer: torch.optim.Optimizer, **options: int) -> Iterator[Gradients]:
    gradients = Gradients({"optimizer": optimizer}, names_of(model), **options)
    try:
        yield gradients
    finally:
        gradients.close()


def taken(gradients: Gradients) -> GradientReading:
    reading = gradients.take()
    assert reading is not None
    return reading


def test_of_a_small_model_every_norm_is_exact() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(model, optimizer) as gradients:
        for _ in range(30):
            backward(model, optimizer)
            norm = norm_of(model)
            optimizer.step()
            reading = taken(gradients)
            assert reading.finite
            assert reading.norm == pytest.approx(norm, rel=1e-5)
            assert reading.update_ratio is reading.curvature is None
            assert gradients.take() is None
        assert gradients.sampling()[0].part == 1.0


def test_of_a_large_one_the_estimate_is_near_and_its_error_is_known() -> None:
    model = large_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(model, optimizer, full_every=4) as gradients:
        errors = []
        for step in range(40):
            backward(model, optimizer)
            norm = norm_of(model)
            optimizer.step()
            errors.append(abs((taken(gradients).norm or 0.0) / norm - 1))
            if step == 0:
                assert errors[-1] < 1e-5
        (sampling,) = gradients.sampling()
    read = sum(min(one.numel(), BLOCK) for one in model.parameters())
    assert sampling.part == pytest.approx(read / sum(one.numel() for one in model.parameters()))
    assert sampling.count == 8  # turns, the first of which has nothing to estimate with, and the last has not ended
    assert sampling.error is not None
    assert sampling.error < 0.05
    assert sorted(errors[8:])[16] < 0.05


def test_a_tensor_whose_sample_tells_nothing_stands_in_the_norm_as_it_was_last_read() -> None:
    """From turn to turn its first element doubles, which is in no sample, and the others grow by a fifth."""
    grown = nn.Parameter(torch.zeros(20 * BLOCK))
    optimizer = torch.optim.SGD([grown], lr=0.0)
    gradients, turns = Gradients({"optimizer": optimizer}, {}, full_every=4), 14
    try:
        for step in range(4 * turns):
            grown.grad = torch.full_like(grown, 1e-3 * 1.2 ** (step // 4))
            grown.grad[0] = 2.0 ** (step // 4)
            optimizer.step()
            norm = taken(gradients).norm
            if step >= 4 * 8:  # by then it is known how little the sample tells
                assert norm == pytest.approx(float(grown.grad.norm()), rel=1e-4)
    finally:
        gradients.close()


def test_the_layer_that_grows_is_named_with_its_ratio() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(model, optimizer) as gradients:
        for _ in range(20):
            for one in model.parameters():
                one.grad = torch.full_like(one, 0.5)
            optimizer.step()
            reading = taken(gradients)
        assert reading.layer_ratio == pytest.approx(1.0)
        for name, one in model.named_parameters():
            one.grad = torch.full_like(one, 3.5 if name == "2.weight" else 0.5)
        optimizer.step()
        reading = taken(gradients)
    assert (reading.layer, reading.layer_ratio) == ("2.weight", pytest.approx(7.0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_seen_and_forgotten(bad: float) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with watching(model, optimizer) as gradients:
        for step in range(40):
            model.load_state_dict(weights)
            backward(model, optimizer)
            if step % 7 == 3:
                next(model.parameters()).grad[0, 0] = bad  # type: ignore[index]
            optimizer.step()
            reading = taken(gradients)
            assert reading.finite == (step % 7 != 3)
            assert (reading.norm is None) == (step % 7 == 3)
        assert reading.layer_ratio is not None
        assert 0.1 < reading.layer_ratio < 10


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_updates_and_curvature_are_those_of_the_real_step(kind: type[torch.optim.Adam]) -> None:
    model = small_model()
    optimizer = kind(model.parameters(), lr=0.003, weight_decay=0.0)
    with watching(model, optimizer, full_every=10) as gradients:
        ratios: list[list[float]] = []
        for _ in range(6):  # the sixth reads the moments, which are those of the fifth
            before = [one.detach().clone() for one in model.parameters()]
            seconds = [optimizer.state[one]["exp_avg_sq"].sum().item() for one in model.parameters() if ratios]
            backward(model, optimizer)
            optimizer.step()
            reading = taken(gradients)
            pairs = zip(model.parameters(), before, strict=True)
            ratios.append(sorted(float((one.detach() - old).norm() / one.detach().norm()) for one, old in pairs))
    assert reading.update_ratio == pytest.approx((ratios[4][1] + ratios[4][2]) / 2, rel=1e-3)
    assert reading.curvature == pytest.approx(sum(seconds) / sum(one.numel() for one in model.parameters()), rel=1e-5)


def test_none_and_no_gradients_and_frozen_layers() -> None:
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    with watching(model, optimizer, full_every=2) as gradients:
        optimizer.step()
        assert gradients.take() is None
        for step in range(60):
            model[0].requires_grad_(step % 3 != 0)
            backward(model, optimizer)
            norm = norm_of(model)
            optimizer.step()
            reading = taken(gradients)
            assert reading.norm == pytest.approx(norm, rel=1e-5)
    assert reading.layer_ratio is not None


def test_sparse_half_complex_and_oddly_laid_out_gradients() -> None:
    torch.manual_seed(3)
    table = nn.Embedding(1000, 8, sparse=True)
    half = nn.Parameter(torch.ones(100, dtype=torch.float16))
    imaginary = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    kernel = nn.Parameter(torch.ones(8, 16, 5, 5).to(memory_format=torch.channels_last))
    turned = nn.Parameter(torch.ones(60, 50))
    optimizer = torch.optim.SGD([table.weight, half, imaginary, kernel, turned], lr=0.0)
    gradients = Gradients({"optimizer": optimizer}, {})
    try:
        for step in range(30):
            optimizer.zero_grad(set_to_none=True)
            table(torch.randint(1000, (20 + step,))).square().sum().backward()
            half.grad = torch.full_like(half, 60000.0)
            imaginary.grad = torch.full_like(imaginary, 3 + 4j)
            kernel.grad = torch.ones(8, 16, 5, 5).to(memory_format=torch.channels_last)
            turned.grad = torch.ones(50, 60).t()
            optimizer.step()
            reading = taken(gradients)
            assert reading.finite
            assert reading.norm == pytest.approx(600_000.0, rel=1e-3)  # beyond what a half can hold
    finally:
        gradients.close()


def test_two_optimizers_that_step_in_turn_have_one_norm_that_does_not_jump() -> None:
    one, other = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    first, second = torch.optim.SGD([one], lr=0.0), torch.optim.Adam([other], lr=0.0)
    gradients = Gradients({"first": first, "second": second}, {id(one): "one", id(other): "other"})
    stranger = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
    try:
        one.grad, other.grad = torch.full((4,), 1.5), torch.full((4,), 2.0)
        seen = []
        for step in range(6):
            (first if step % 2 == 0 else second).step()
            seen.append(taken(gradients).norm)
        stranger.step()
        assert gradients.take() is None
    finally:
        gradients.close()
    assert seen == pytest.approx([3.0] + [5.0] * 5)
    first.step()
    assert gradients.take() is None


def test_parameters_that_come_and_go() -> None:
    model, late = small_model(), nn.Parameter(torch.ones(3000))
    optimizer = torch.optim.Adam(model.parameters())
    with watching(model, optimizer, full_every=3) as gradients:
        for step in range(12):
            backward(model, optimizer)
            if step == 4:
                optimizer.add_param_group({"params": [late]})
            if step == 8:
                optimizer.param_groups[1]["params"] = [nn.Parameter(torch.ones(5))]
            for parameter in optimizer.param_groups[1]["params"] if step >= 4 else ():
                parameter.grad = torch.full_like(parameter, 0.1)
            norm = float(
                torch.stack([p.grad.norm() for group in optimizer.param_groups for p in group["params"]]).norm()
            )
            optimizer.step()
            assert taken(gradients).norm == pytest.approx(norm, rel=1e-4)


def test_a_closure_an_optimizer_in_the_backward_pass_and_a_fork() -> None:
    model = small_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss

    with watching(model, optimizer) as gradients:
        optimizer.step(closure)
        assert gradients.take() is None  # there were no gradients yet
        optimizer.step(closure)
        assert taken(gradients).norm is not None
        gradients._pid = os.getpid() + 1
        optimizer.step(closure)
        assert gradients.take() is None
    each = {name: torch.optim.SGD([one], lr=0.01) for name, one in model.named_parameters()}
    for name, one in model.named_parameters():
        one.grad = None
        one.register_post_accumulate_grad_hook(lambda _, name=name: each[name].step())
    gradients = Gradients(each, names_of(model))
    try:
        model(torch.ones(4, 8)).square().mean().backward()
        assert taken(gradients).norm == pytest.approx(norm_of(model), rel=1e-5)
    finally:
        gradients.close()


def test_a_loss_scale_is_divided_out_and_a_step_that_it_leaves_out_is_no_reading() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    with watching(model, optimizer) as gradients:
        for scale in (1024.0, 2048.0, 4096.0):
            backward(model, optimizer)
            norm = norm_of(model)
            assert scaler.get_scale() == scale
            for one in model.parameters():
                one.grad = scaler.scale(one.grad)
            scaler.step(optimizer)
            scaler.update()
            assert taken(gradients).norm == pytest.approx(norm, rel=1e-5)
        backward(model, optimizer)
        next(model.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
        scaler.scale(torch.tensor(1.0))
        scaler.step(optimizer)
        assert gradients.take() is None


def test_what_cannot_be_read_is_told_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gradients = Gradients({"optimizer": optimizer}, {}, tell=told.append)

    def refuse(targets: object, sources: object) -> None:
        raise RuntimeError("not implemented for this kind of tensor")

    monkeypatch.setattr(torch, "_foreach_copy_", refuse)
    try:
        for _ in range(3):
            before = next(model.parameters()).detach().clone()
            backward(model, optimizer)
            optimizer.step()
            assert gradients.take() is None
            assert not torch.equal(before, next(model.parameters()))
    finally:
        gradients.close()
    assert told == [
        "gradients are not read any more: RuntimeError: not implemented for this kind of tensor; training goes on"
    ]


def test_what_is_usual_comes_back() -> None:
    model = large_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(model, optimizer, full_every=4) as gradients:
        for _ in range(40):
            backward(model, optimizer)
            optimizer.step()
            taken(gradients)
        state = gradients.state()
    with watching(model, optimizer) as again:
        again.apply(state)
        assert again.state() == state
        backward(model, optimizer)
        optimizer.step()
        ratio = taken(again).layer_ratio
        assert ratio is not None
        assert 0.5 < ratio < 2


@needs_gpu
def test_on_a_device_nobody_waits() -> None:
    model = large_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seen, norms = [], []
    with watching(model, optimizer, full_every=4) as gradients:
        for _ in range(12):
            backward(model, optimizer)
            norms.append(norm_of(model))
            torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
                seen.append(gradients.take())
            finally:
                torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        last = taken(gradients)
    assert last.finite
    assert last.norm == pytest.approx(norms[-1], rel=0.2)
    assert last.update_ratio is not None
    assert last.curvature is not None
    assert any(reading is not None for reading in seen)


def test_the_ratio_of_updates_follows_the_learning_rate() -> None:
    """It is read once in twenty steps, and a schedule goes on."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    gradients = Gradients({"optimizer": optimizer}, {})

    def ratio() -> float | None:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        reading = gradients.take()
        assert reading is not None
        return reading.update_ratio

    seen = [ratio() for _ in range(FULL_EVERY)]
    before = seen[-1]
    assert before is not None
    optimizer.param_groups[0]["lr"] = 1e-1
    assert ratio() == pytest.approx(100 * before)
    gradients.forget()
    assert ratio() is None
    gradients.close()
