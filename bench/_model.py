"""A small GPT in plain torch, its AdamW, and the training step whose seconds are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mementum.records import record

BATCH = 2


@record
class Shape:
    """The sizes of a model; these make 100 million parameters, 1.2 GB of state with AdamW in fp32."""

    vocabulary: int = 19_200
    width: int = 768
    layers: int = 12
    heads: int = 12
    positions: int = 256


SHAPES = {
    "full": Shape(),
    "tiny": Shape(vocabulary=512, width=64, layers=2, heads=4),  # shows that a benchmark works; its figures say nothing
}


class Layer(nn.Module):
    """Attention and a feed-forward net, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_attention, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_feed(x))))


class Gpt(nn.Module):
    """Tokens in, the score of every next token out; the embedding is the head, too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(shape.vocabulary, shape.width),
            nn.Embedding(shape.positions, shape.width),
        )
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.tokens.weight.T


class Training:
    """A model with its optimizer, the same for the same seed; `step` is one whole training step."""

    def __init__(self, *, seed: int, sequence: int, size: str = "full", device: str = "cpu") -> None:
        shape = SHAPES[size]
        torch.manual_seed(seed)
        self.sequence, self.size, self.device = sequence, size, device
        self.model = Gpt(shape).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self._vocabulary = shape.vocabulary
        self._data = torch.Generator().manual_seed(seed)

    def step(self) -> float:
        """Forward, backward, step; gives the loss."""
        loss = self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)

    def backward(self, *, scale: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Forward and backward pass alone; `scale` is that of a GradScaler. Gives the loss as it is."""
        shape = (BATCH, self.sequence + 1)
        tokens = torch.randint(0, self._vocabulary, shape, generator=self._data).to(self.device)
        scores = self.model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        (loss if scale is None else scale(loss)).backward()
        return loss.detach()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the state, by name: what a restore must bring back bit for bit."""
        for name, tensor in self.model.state_dict().items():
            yield f"model.{name}", tensor
        for index, parameter in enumerate(self.optimizer.param_groups[0]["params"]):
            for name, value in sorted(self.optimizer.state[parameter].items()):
                yield f"optimizer.{index}.{name}", value
