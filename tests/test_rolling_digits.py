"""A training on real data that some bad batches ruin comes back by itself, and ends as if they had not been there."""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from sklearn.datasets import load_digits

import mementum

SEEDS = range(5)
STEPS = 320
BAD = range(160, 168)  # batches whose images come in another scale, as from a loader that forgot to divide
SCALE = 300.0
LR = 0.2  # at which a model that was thrown off does not come back
VALIDATION = 297  # images


def validation_loss(root: Path, seed: int, *, bad: range = range(0), on_divergence: str = "rollback") -> float:
    """Train a small network on handwritten digits, and tell how it does on those that it has not seen."""
    images, digits = map(torch.as_tensor, load_digits(return_X_y=True))
    images = images.float() / 16
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    seen, unseen = shuffled[VALIDATION:], shuffled[:VALIDATION]
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    picks = [seen[torch.randint(len(seen), (64,))] for _ in range(2 * STEPS)]
    batches = [(images[pick] * (SCALE if number in bad else 1.0), digits[pick]) for number, pick in enumerate(picks)]
    with mementum.open_run(
        root,
        task="digits",
        model=model,
        optimizer=optimizer,
        data=batches,
        every_steps=20,
        slots=0,
        config={"on_divergence": on_divergence, "health": {"confirm": 20}},
    ) as run:
        for _, (inputs, targets) in run.steps(batches, STEPS):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            run.record(loss=loss)
        assert bool(run.rolled_back) == (bool(bad) and on_divergence == "rollback")
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(images[unseen]), digits[unseen]))


def test_a_poisoned_run_ends_like_the_clean_ones_by_itself(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clean = [validation_loss(tmp_path / f"clean{seed}", seed) for seed in SEEDS]
        kept = [validation_loss(tmp_path / f"k{seed}", seed, bad=BAD, on_divergence="keep") for seed in SEEDS]
        back = [validation_loss(tmp_path / f"b{seed}", seed, bad=BAD) for seed in SEEDS]
    finally:
        torch.set_num_threads(threads)
    most = statistics.mean(clean) + 2 * statistics.stdev(clean)
    for name, losses in (("clean", clean), ("poisoned, kept", kept), ("poisoned, rolled back", back)):
        print(f"{name}: validation loss " + " ".join(f"{loss:.3f}" for loss in losses))
    print(f"mean of the clean ones + 2 sd: {most:.3f}")
    assert all(loss <= most for loss in back)
    assert all(loss > most for loss in kept)
