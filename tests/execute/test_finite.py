"""A tensor is called not finite if, and only if, one of its numbers is not; only what has to be finite is looked at."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch

from mementum.execute.capture import BlockingCapture, Captured
from mementum.execute.finite import PATTERNS, PIECE, Finite, first_bad, infinite, is_sound, must_by_context
from mementum.execute.gathered import Gathered
from mementum.execute.plan import FileLayout
from mementum.execute.snapshot import Image
from mementum.execute.structure import Reader
from mementum.format import typed_json
from mementum.live.stateful import components_in

INF, NAN = float("inf"), float("nan")
SMALL = [name for name, pattern in PATTERNS.items() if pattern.width <= 2 and not name.startswith("complex")]
LARGE = ["float32", "float64", "complex64", "complex128"]
STRIDE = 53  # patterns of 16 bits, beside all those next to where a kind's infinities and NaN begin
TORCH = {name: getattr(torch, name) for name in PATTERNS if hasattr(torch, name)}
HIGHEST = {"float16": 16, "bfloat16": 64, "float32": 64, "float64": 512}  # powers of two that are the first too large


def sound(tensor: torch.Tensor, *, squares: bool = False, infinities: bool = False) -> bool:
    stream = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
    dtype = str(tensor.dtype).removeprefix("torch.")
    return is_sound(stream, 0, len(stream), dtype, squares=squares, infinities=infinities)


def is_large(name: str, number: torch.Tensor) -> bool:
    """Whether its square is infinite, where that counts."""
    return PATTERNS[name].large is not None and abs(float(number)) >= 2.0**64


@pytest.mark.parametrize("name", [name for name in SMALL if name in TORCH])
def test_every_pattern_of_a_small_kind(name: str) -> None:
    """All 256 of them, or many of 65,536, each alone, against what torch takes them for."""
    count = 1 << (8 * PATTERNS[name].width)
    border = PATTERNS[name].first
    borders = [border] if PATTERNS[name].large is None else [border, PATTERNS[name].large]
    near = [place + half for one in borders for place in range(one - 3, one + 4) for half in (0, count // 2)]
    asked = range(count) if count == 256 else [*range(0, count, STRIDE), *near, count // 2, count - 1]
    bits = np.arange(count, dtype=f"u{PATTERNS[name].width}")
    numbers = torch.from_numpy(bits.view(f"i{PATTERNS[name].width}").copy()).view(TORCH[name]).double()
    raw, width = bits.view(np.uint8).data, PATTERNS[name].width
    for one in asked:
        place, number = one * width, numbers[one]
        finite = bool(torch.isfinite(number))
        assert is_sound(raw, place, place + width, name) == finite
        assert is_sound(raw, place, place + width, name, squares=True) == (finite and not is_large(name, number))
        assert is_sound(raw, place, place + width, name, infinities=True) == (not bool(torch.isnan(number)))


@pytest.mark.parametrize("name", LARGE)
def test_one_number_among_many(name: str) -> None:
    dice = random.Random(3)
    torch.manual_seed(3)
    for bad in (INF, -INF, NAN, -NAN):
        tensor = torch.randn(1000, dtype=torch.float32).to(TORCH[name])
        assert sound(tensor)
        flat = torch.view_as_real(tensor).view(-1) if tensor.is_complex() else tensor
        flat[dice.randrange(len(flat))] = bad
        assert not sound(tensor)
        assert sound(tensor, infinities=True) == (bad in (INF, -INF))


@pytest.mark.parametrize("name", HIGHEST)
def test_the_largest_whose_square_is_finite(name: str) -> None:
    bound = torch.tensor(2.0 ** HIGHEST[name], dtype=torch.float64).to(TORCH[name])
    below = torch.nextafter(bound, torch.zeros((), dtype=TORCH[name]))
    tensor = torch.full((4096,), float(below), dtype=torch.float64).to(TORCH[name])
    for part in (tensor, -tensor, torch.cat([tensor, -tensor])):
        assert sound(part, squares=True)
    assert bool(below.square().isfinite()) or name == "float16"  # whose numbers come near its end in training
    for sign in (1, -1):
        tensor[77] = sign * bound
        assert not sound(tensor, squares=True)
        assert sound(tensor) == bool(tensor.isfinite().all())
        assert sound(tensor, infinities=True)
    smallest = torch.full((9,), 5e-324, dtype=torch.float64).to(TORCH[name])
    assert sound(torch.cat([smallest, -smallest, torch.zeros(3, dtype=TORCH[name]) * -1]))


def test_pieces_and_places() -> None:
    """The last number of a piece, the first of the next, the last of all; and a stretch that begins at an odd byte."""
    count = 2 * PIECE // 4 + 3
    for place in (0, PIECE // 4 - 1, PIECE // 4, count - 1):
        tensor = torch.zeros(count)
        tensor[place] = NAN
        assert not sound(tensor)
        raw = memoryview(b"\xff" * 3 + tensor.numpy().tobytes() + b"\xff" * 8)
        assert not is_sound(raw, 3, 3 + 4 * count, "float32")
        assert is_sound(raw, 3, 3 + 4 * place, "float32")
        assert is_sound(raw, 3 + 4 * (place + 1), 3 + 4 * count, "float32")


def test_what_can_not_be_otherwise() -> None:
    assert sound(torch.full((7,), -1, dtype=torch.int32))
    assert sound(torch.full((7,), 255, dtype=torch.uint8))
    assert sound(torch.tensor([True, False]))
    assert sound(torch.empty(0))
    assert is_sound(memoryview(b""), 0, 0, "bfloat16")


def test_complex_numbers_of_two_halves() -> None:
    half = torch.tensor([1.0, 65504.0, -0.0, 3.0], dtype=torch.float16)
    stream = half.view(torch.uint8).numpy().data
    assert is_sound(stream, 0, len(stream), "complex32")
    half[3] = -INF
    assert not is_sound(stream, 0, len(stream), "complex32")
    assert is_sound(stream, 0, len(stream), "complex32", infinities=True)


class Net(torch.nn.Module):
    """With a mask, a parameter of two names, one that nothing trains, and a buffer of fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 3, bias=False)
        self.tied = torch.nn.Linear(5, 3, bias=False)
        self.tied.weight = self.first.weight
        self.odd = torch.nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.still = torch.nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("mask", torch.full((3, 3), -INF).triu(1))
        self.register_buffer("small", torch.tensor([NAN], dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.first(x).sum() + self.odd.float().sum()
        return out


class Made:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.net = Net()
        trained = [one for one in self.net.parameters() if one.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=1e-3)
        self.net(torch.ones(2, 5)).backward()
        self.optimizer.step()
        extra = {"average": torch.tensor([INF])}
        self.components = components_in({"model": self.net, "optimizer": self.optimizer, "extra": extra})

    def captured(self) -> Captured:
        captured = BlockingCapture(codec="raw").take(self.components)
        assert captured is not None
        return captured

    def bad(self, *, meant: frozenset[str] = frozenset()) -> str | None:
        """What is found in a copy; and in the same when it is stored, whose context alone is known."""
        captured = self.captured()
        found = Finite(self.components, meant=meant).first_bad(captured.images)
        trees = typed_json.loads(typed_json.dumps(dict(captured.components)))
        streams = {image.layout.name: image.raw for image in captured.images}
        layouts = [image.layout for image in captured.images]
        again = first_bad(layouts, streams, must_by_context(trees), meant=meant)
        assert again == (None if found == "model.still" else found)  # nothing trains it: no optimizer tells its name
        return found


@pytest.fixture
def made() -> Made:
    return Made()


def test_buffers_may_hold_anything(made: Made) -> None:
    assert made.bad() is None


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.first.weight", lambda made: made.net.tied.weight),  # stored once, under its first name
        ("model.odd", lambda made: made.net.odd),
        ("model.still", lambda made: made.net.still),
        ("optimizer.state/model.odd/exp_avg_sq", lambda made: made.optimizer.state[made.net.odd]["exp_avg_sq"]),
        ("optimizer.state/model.odd/step", lambda made: made.optimizer.state[made.net.odd]["step"]),
    ],
)
def test_a_parameter_or_a_moment(made: Made, name: str, tensor: object, value: float) -> None:
    assert callable(tensor)
    with torch.no_grad():
        tensor(made).view(-1)[-1] = value
    assert made.bad() == name


def test_squares_of_gradients_may_be_large_and_parameters_may_not(made: Made) -> None:
    large = 2.0**70
    with torch.no_grad():
        made.optimizer.state[made.net.odd]["exp_avg_sq"][0] = large
    assert made.bad() is None
    assert infinite(made.components) == set()
    with torch.no_grad():
        made.net.odd[0] = -large
    assert made.bad() == "the square of model.odd"
    assert infinite(made.components) == {"model.odd"}


def test_what_a_task_began_with_is_meant_unless_it_is_nan(made: Made) -> None:
    with torch.no_grad():
        made.net.odd[0], made.net.still[1] = -INF, NAN
        made.optimizer.state[made.net.odd]["exp_avg"][0] = INF
    meant = infinite(made.components)
    assert meant == {"model.odd", "optimizer.state/model.odd/exp_avg"}
    assert made.bad(meant=meant) == "model.still"
    with torch.no_grad():
        made.net.still[1] = 0.0
    assert made.bad() == "model.odd"
    assert made.bad(meant=meant) is None
    with torch.no_grad():
        made.net.odd[1] = NAN
    assert infinite(made.components) == {"optimizer.state/model.odd/exp_avg"}
    assert made.bad(meant=meant) == "model.odd"


def test_a_parameter_that_is_added_is_seen(made: Made) -> None:
    looks = Finite(made.components)
    assert looks.first_bad(made.captured().images) is None
    made.net.added = torch.nn.Parameter(torch.tensor([1.0, NAN]))
    assert looks.first_bad(made.captured().images) == "model.added"


def test_tensors_that_are_made_of_parts() -> None:
    """The values of a sparse parameter count, its indices do not; nor do the numbers of a quantised one."""
    torch.manual_seed(2)
    table = torch.nn.Embedding(9, 4, sparse=True)
    sparse = torch.nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)
    net = torch.nn.Module()
    net.table, net.sparse = table, sparse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # such tensors will go one day, torch says
        quantised = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    net.quantised = torch.nn.Parameter(quantised, requires_grad=False)
    components = components_in({"model": net})

    def bad() -> str | None:
        captured = BlockingCapture(codec="raw").take(components)
        assert captured is not None
        return Finite(components).first_bad(captured.images)

    assert bad() is None
    sparse.data._values()[1] = NAN
    assert bad() == "model.sparse.values"


def test_live_tensors_and_files_that_are_durable_already(made: Made) -> None:
    """A stream that is put together from live tensors is read like a copy; one that need not be written is not read."""
    with torch.no_grad():
        made.net.odd[2] = NAN
    reading = Reader(codec="raw").read(made.components)

    def images(steady: bool) -> Iterator[Image]:
        layouts: tuple[FileLayout, ...] = reading.structure.layouts
        for number, layout in enumerate(layouts):
            yield Image(layout=layout, raw=Gathered(layout, reading, number), steady=steady)

    looks = Finite(made.components)
    assert looks.first_bad(list(images(False))) == "model.odd"
    assert looks.first_bad(list(images(True))) is None


def test_a_state_without_an_optimizer_has_nothing_that_must_be_finite_by_its_context() -> None:
    trees: Mapping[str, Mapping[str, object]] = {"model": {"kind": "module", "state": {}}}
    assert not must_by_context(trees)("model", "weight")
