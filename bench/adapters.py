"""The benchmark of adapters: what a save of LoRA on frozen weights writes, beside `torch.save` of everything."""

from __future__ import annotations

import json
import logging
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _measure import size_of, sync_file
from _savers import WhenTold
from _tables import Bar, print_bars, print_table, ratio, told, wide_console
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import mementum
from mementum import events

RANK = 8
TARGETS = ["q_proj", "v_proj"]
TOKENS = (2, 32)  # batch and sequence
STEPS = 2  # between two saves
SAVES, SAVES_QUICK = 10, 4
SIZES: dict[str, dict[str, int]] = {
    "full": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "vocab_size": 19_200},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512},
}


def adapted(size: str) -> Any:
    """A Llama with random weights, frozen, with LoRA on its queries and values."""
    torch.manual_seed(5)
    config = LlamaConfig(**SIZES[size], num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256)
    lora = LoraConfig(r=RANK, target_modules=TARGETS, task_type="CAUSAL_LM")
    return get_peft_model(LlamaForCausalLM(config), lora)


class Adapting:
    """A training of the adapters, saved by both."""

    def __init__(self, folder: Path, *, size: str) -> None:
        self.folder, self.commits, self.wrong = folder, list[events.Committed](), list[str]()
        self.model = adapted(size)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3)
        self._vocabulary = SIZES[size]["vocab_size"]
        self._data = torch.Generator().manual_seed(5)
        self._policy = WhenTold()
        self.run = mementum.open_run(
            folder / "mementum",
            task="adapters",
            model=self.model,
            optimizer=self.optimizer,
            policy=self._policy,
            keep_last=None,  # every save stays, so that its new bytes can be counted on the disk
            resume="never",
            on_event=self._hear,
        )

    def train_and_save(self) -> int:
        """Some steps, then a save; gives the bytes that it added to the disk, counting a file with two names once."""
        for _ in range(STEPS):
            tokens = torch.randint(0, self._vocabulary, TOKENS, generator=self._data)
            loss = self.model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.run.record(loss=loss)
        before = bytes_below(self.folder / "mementum")
        self._policy.wanted = True
        self.run.record()
        self.run.wait()
        if self.wrong:
            raise RuntimeError(self.wrong[0])
        return bytes_below(self.folder / "mementum") - before

    def torch_save(self) -> int:
        """Bytes of `torch.save` of everything, fsync included as in the other benchmark."""
        path = self.folder / "everything.pt"
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
        sync_file(path)
        return size_of(path)

    def _hear(self, event: events.Event) -> None:
        match event:
            case events.Committed():
                self.commits.append(event)
            case events.Failed() | events.SaveSkipped():
                self.wrong.append(repr(event))


def bytes_below(folder: Path) -> int:
    """Bytes of the checkpoints' files below a folder; hard links to one file are one file. The catalog is a cache."""
    stats = [path.stat() for path in folder.rglob("step_*/*") if path.is_file()]
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())


def measure(folder: Path, *, size: str, saves: int) -> dict[str, object]:
    """The figures, and the samples that they came from."""
    adapting = Adapting(folder, size=size)
    try:
        written = [adapting.train_and_save() for _ in range(saves)]
        whole = adapting.torch_save()
    finally:
        adapting.run.close()
    blocked_ms = [1e3 * commit.blocked_s for commit in adapting.commits[:saves]]
    later = statistics.median(written[1:])
    return {
        "lora_share": later / whole,
        "first_save_bytes": written[0],
        "bytes_per_save": later,
        "torch_save_bytes": whole,
        "blocked_ms_median": statistics.median(blocked_ms[1:]),
        "samples": {"written": written, "blocked_ms": blocked_ms},
    }


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer saves.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write figures and raw samples there.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the files go.")] = None,
    size: Annotated[str, typer.Option(help=f"Of the model: {', '.join(SIZES)}.")] = "full",
) -> None:
    """Measure what a save of an adapted model writes, once the frozen weights are on the disk."""
    if size not in SIZES:
        raise typer.BadParameter(f"there is no size {size}; there are {', '.join(SIZES)}")
    logging.getLogger("mementum").setLevel(logging.CRITICAL)  # what fails is raised by the benchmark itself
    folder = Path(tempfile.mkdtemp(prefix="bench-adapters-", dir=directory or Path.cwd()))
    try:
        figures = measure(folder, size=size, saves=SAVES_QUICK if quick else SAVES)
    finally:
        shutil.rmtree(folder)
    console = wide_console()
    numbers = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
    whole = numbers["torch_save_bytes"]
    rows = [
        (name, told(numbers[name] / 1e6, 2), told(ratio(numbers[name], whole), 4))
        for name in ("torch_save_bytes", "first_save_bytes", "bytes_per_save")
    ]
    print_table(console, "LoRA on frozen weights", ("bytes", "MB", "to torch.save"), rows)
    console.print(f"blocked {numbers['blocked_ms_median']:.1f} ms", highlight=False)
    print_bars(console, [Bar(what="bytes a save, to torch.save", value=numbers["lora_share"], bound=0.02)])
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
