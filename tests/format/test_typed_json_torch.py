"""Typed JSON keeps the values of numpy and torch to the bit, while they are small."""

from __future__ import annotations

import base64
import random
import re
import struct
import sys
from typing import Any

import numpy as np
import pytest
import torch

from mementum.errors import UnknownFormat, UnsupportedState
from mementum.format.typed_json import INLINE_LIMIT, dumps, encode, loads

DTYPES = sorted(
    {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype) and "quint" not in str(dtype)}
    - {torch.qint8, torch.qint32},
    key=str,
)
SCALARS = [
    *(np.float64(0.1), np.float64(-0.0), np.float32("nan"), np.float16(1.5), np.longdouble(1) / 3, np.int8(-1)),
    *(
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.complex64(1 - 2j),
        np.clongdouble(1j),
        np.str_("é\0"),
        np.bytes_(b"a\0"),
    ),
    *(np.datetime64("2024-01-01T00:00:01", "ns"), np.datetime64("NaT"), np.timedelta64(5, "25s"), np.str_("\ud800")),
    *(np.str_(""), np.bytes_(b"")),
]
ARRAYS = [
    *(np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 3), np.float16), np.array(2.5), np.array([True, False])),
    *(
        np.arange(4, dtype=">u2"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(9)[::-2],
        np.array(["a", "bé"]),
    ),
    *(np.array([b"x", b"yy"]), np.array(["2024-01-01", "NaT"], "M8[D]"), np.array([1j, np.nan])),
]


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bytes seen as a dtype; whatever they mean, they must come back."""
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(3).integers(0, 2 if dtype is torch.bool else 256, count, dtype=np.uint8)
    return torch.tensor(raw.tolist(), dtype=torch.uint8).view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_numpy_scalars(value: Any) -> None:
    back: Any = loads(dumps(value))
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()
    if isinstance(value, str | bytes):
        assert len(back) == len(value)


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype.str}{value.shape}")
def test_numpy_arrays(value: Any) -> None:
    back: Any = loads(dumps([value]))
    (back,) = back
    assert type(back) is np.ndarray
    assert (back.dtype.str, back.shape) == (value.dtype.str, value.shape)
    assert back.tobytes() == value.tobytes()
    assert back.flags.writeable
    assert back.flags.owndata


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype(dtype: torch.dtype) -> None:
    for shape in ((2, 8), (), (1,), (0, 3)):
        value = tensor_of(dtype, *shape)
        back: Any = loads(dumps(value))
        assert type(back) is torch.Tensor
        assert (back.dtype, back.shape, bits(back)) == (dtype, value.shape, bits(value))


def test_tensors_lose_what_is_not_their_value() -> None:
    base = torch.arange(24.0).view(torch.complex64).reshape(3, 4)
    odd = (base[::2, 1][:1], base[0, 0].expand(1), torch.from_numpy(np.zeros((0, 3), np.float32)))
    for value in (base.t(), base.conj(), base[1:, ::2], base.conj().imag, base[0, 0].expand(3, 2), *odd):
        back: Any = loads(dumps(value))
        assert torch.equal(back, value)
        assert back.is_contiguous()
        assert not back.is_conj()
        assert not back.is_neg()
    parameter: Any = loads(dumps(torch.nn.Parameter(torch.ones(2))))
    assert type(parameter) is torch.Tensor
    assert not parameter.requires_grad


def test_a_read_tensor_has_its_own_memory() -> None:
    back: Any = loads(dumps(torch.zeros(3)))
    back += 1
    assert back.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "value",
    [
        *(torch.Size([2, 3]), torch.Size([]), torch.float32, torch.bfloat16, torch.float8_e4m3fn),
        *(torch.device("cpu"), torch.device("cuda"), torch.device("cuda", 3), torch.device("meta")),
    ],
    ids=str,
)
def test_torch_nouns(value: Any) -> None:
    back: Any = loads(dumps({value: [value]}))
    assert back == {value: [value]}
    assert type(back[value][0]) is type(value)


def test_generators_resume_bit_for_bit() -> None:
    torch_rng, numpy_rng, python_rng = torch.Generator().manual_seed(7), np.random.default_rng(7), random.Random(7)
    legacy = np.random.RandomState(7)
    states = (torch_rng.get_state(), numpy_rng.bit_generator.state, python_rng.getstate(), legacy.get_state())
    expected = (
        torch.rand(3, generator=torch_rng).tolist(),
        numpy_rng.random(3).tolist(),
        python_rng.random(),
        legacy.rand(),
    )
    back: Any = loads(dumps(states))
    torch_rng.set_state(back[0])
    numpy_rng.bit_generator.state = back[1]
    python_rng.setstate(back[2])
    legacy.set_state(back[3])
    assert expected == (
        torch.rand(3, generator=torch_rng).tolist(),
        numpy_rng.random(3).tolist(),
        python_rng.random(),
        legacy.rand(),
    )


def test_optimizer_and_scheduler_state_comes_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(torch.optim.SGD(model.parameters(), 0.1), 1.0, total_steps=9)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    state = {"optimizer": optimizer.state_dict(), "model": model.state_dict(), "scheduler": scheduler.state_dict()}
    back: Any = loads(dumps(state))
    optimizer.load_state_dict(back["optimizer"])
    assert back["model"]._metadata == state["model"]._metadata
    assert dumps(back) == dumps(state)


class Tagged(torch.Tensor):
    pass


REFUSED = [
    (torch.zeros(INLINE_LIMIT // 4 + 1), "over the inline limit"),
    (np.zeros(INLINE_LIMIT + 1, np.uint8), "over the inline limit"),
    (np.array([object()]), "dtype object"),
    (np.zeros(2, [("a", "<f4")]), "dtype"),
    (np.zeros((), [("a", "<f4")])[()], "dtype"),
    (np.ma.masked_array([1.0]), "subclass of numpy.ndarray"),
    (np.ndarray((2,), "<U0", buffer=b""), "dtype"),
    (torch.zeros(2).as_subclass(Tagged), "subclass of torch.Tensor"),
    (torch.zeros(2, device="meta"), "dense tensor with data"),
    (torch.eye(2).to_sparse(), "dense tensor with data"),
    (torch.zeros(2, dtype=torch.uint8).view(torch.qint8), "dense tensor with data"),
    (torch.nn.Linear(1, 1), "no typed form"),
    (type("Scalar", (np.float64,), {})(1.0), "subclass of a numpy scalar"),
]


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_refuses_and_names_the_path(value: object, why: str) -> None:
    with pytest.raises(UnsupportedState, match=re.escape(why)) as caught:
        encode({"state": [0, value]})
    assert caught.value.path == "$.state[1]"


def test_the_limit_itself_is_inline() -> None:
    value = torch.zeros(INLINE_LIMIT, dtype=torch.uint8)
    back: Any = loads(dumps(value))
    assert torch.equal(back, value)


def test_a_tensor_is_no_key() -> None:
    for value in ({(1, torch.zeros(1)): 1}, {torch.zeros(1)}):
        with pytest.raises(UnsupportedState, match="cannot be a key"):
            encode(value)


@pytest.mark.parametrize(
    "text",
    [
        *(
            '{"$numpy_array":["<f4",[2],"AAAA"]}',
            '{"$numpy_array":["O",[1],"AAAAAAAAAAA="]}',
            '{"$numpy_array":["<f4",[-1],""]}',
        ),
        *(
            '{"$numpy_array":["<f4",[4611686018427387904,4611686018427387904,0],""]}',
            '{"$numpy_array":["<U1",[1],"/////w=="]}',
        ),
        *(
            '{"$numpy_array":["f4,f4",[],""]}',
            '{"$numpy_array":["<M8[0s]",[0],""]}',
            '{"$numpy_array":["<M8[zz]",[0],""]}',
        ),
        *('{"$numpy_array":["<f4",[true],""]}', '{"$numpy_array":["<f4",{},""]}', '{"$numpy_array":["<f3",[0],""]}'),
        *(
            '{"$numpy_scalar":["<f4",""]}',
            '{"$numpy_scalar":["<U1","AAAAAA=="]}',
            '{"$numpy_str":5}',
            '{"$numpy_bytes":"!"}',
        ),
        *(
            '{"$torch_tensor":["float32",[2],"AAAA"]}',
            '{"$torch_tensor":["load",[0],""]}',
            '{"$torch_tensor":["qint8",[1],"AA=="]}',
        ),
        *('{"$torch_tensor":["float32",[9223372036854775807,9223372036854775807,0],""]}', '{"$torch_dtype":"nn"}'),
        *('{"$torch_tensor":["float32",[0,{"$int":"0x8000000000000000"}],""]}', '{"$torch_dtype":7}'),
        *('{"$torch_size":["a"]}', '{"$torch_size":5}'),
        *('{"$torch_device":"cuda:999"}', '{"$torch_device":"nowhere"}', '{"$torch_device":""}', '{"$torch_device":0}'),
        '{"$set":[{"$torch_tensor":["uint8",[1],"AA=="]}]}',
    ],
)
def test_refuses_what_it_never_wrote(text: str) -> None:
    with pytest.raises(UnknownFormat, match=r"^\$\.a: ") as caught:
        loads(b'{"a":' + text.encode() + b"}")
    assert len(caught.value.message) < 400


def test_a_big_endian_machine_swaps_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    for value in (torch.tensor([1.5, 2.5]), torch.tensor([1.5 + 2.5j])):
        encoded: Any = encode(value)
        assert base64.b64decode(encoded["$torch_tensor"][2]) == struct.pack(">2f", 1.5, 2.5)
        back: Any = loads(dumps(value))
        assert torch.equal(back, value)
