"""An ordinary training program that keeps its progress with mementum: start it again, and it goes on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from losslog import LossLog
from text import Windows, read_text
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

import mementum
from mementum.data import ElasticSampler

TASK = "byte-llama"
VOCABULARY = 256  # one token a byte, so nothing has to be downloaded
PEAK_RATE = 2e-3
WARM_UP_SHARE = 0.1  # of the steps; then the rate falls along a cosine
CLIP_NORM = 1.0


def seed_generators(seed: int) -> None:
    """Every generator of the process, also those that nothing draws from yet."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def new_model(*, hidden: int, layers: int, window: int) -> LlamaForCausalLM:
    """A small decoder over bytes; with hidden=128 and layers=4 it has 0.9 M parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=window,
            attention_dropout=0.1,  # draws random numbers in every step: their state has to come back too
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def train(
    root: Annotated[Path, typer.Argument(help="The folder of the checkpoints.")],
    steps: Annotated[int, typer.Option(help="Steps in all, those of earlier attempts included.")] = 240,
    every: Annotated[int, typer.Option(help="Save every so many steps.")] = 20,
    seed: Annotated[int, typer.Option(help="Of weights, dropout and the order of the data.")] = 0,
    text: Annotated[Path | None, typer.Option(help="Train on this file instead of the standard library.")] = None,
    log: Annotated[Path | None, typer.Option(help="Append every step's loss to this file.")] = None,
    hidden: Annotated[int, typer.Option(help="The width of the model.")] = 128,
    layers: Annotated[int, typer.Option(help="The depth of the model.")] = 4,
    window: Annotated[int, typer.Option(help="Bytes in a sample.")] = 64,
    batch: Annotated[int, typer.Option(help="Samples in a batch.")] = 4,
    workers: Annotated[int, typer.Option(help="Processes that load data.")] = 0,
) -> None:
    """Train until `steps` steps are done, from wherever the last attempt stopped."""
    torch.set_num_threads(1)  # with several, sums may be split differently from start to start
    seed_generators(seed)
    model = new_model(hidden=hidden, layers=layers, window=window)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE)
    scheduler = OneCycleLR(optimizer, max_lr=PEAK_RATE, total_steps=steps, pct_start=WARM_UP_SHARE)
    data = Windows(read_text(text), length=window)
    loader = DataLoader(data, batch_size=batch, sampler=ElasticSampler(data, seed=seed), num_workers=workers)

    with mementum.open_run(
        root,
        task=TASK,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        data=loader,
        every_steps=every,
        keep_last=None,
        codec="planes+zstd:1",
    ) as run:
        losses = LossLog(log, began_step=run.step, resumed=run.resumed)
        for step, tokens in run.steps(loader, total=steps):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            run.record(loss=loss, grad_norm=norm, lr=scheduler.get_last_lr()[0])
            losses.add(step, loss.item())


if __name__ == "__main__":
    typer.run(train)
