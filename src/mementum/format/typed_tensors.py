"""The tagged JSON forms of numpy's and torch's values; neither library is imported until a value of it turns up."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

from mementum.format.typed_scalars import (
    JSON,
    NoTypedForm,
    decode_base64,
    encode_base64,
    encode_int,
    encode_str,
    parts,
    read,
)

INLINE_LIMIT = 64 * 1024
"""Bytes of an array or tensor that may stand in JSON: an RNG state (5 KB) fits; more belongs in a data file."""

MAX_RANK = 64
"""Dimensions of an array or tensor: as many as numpy has."""

MAX_CODE_POINT = 0x10FFFF
"""The last character that there is; numpy's text can hold numbers beyond it and dies of them when read."""

NUMPY_KINDS = frozenset("biufcmMSU")
NUMPY_DTYPE = re.compile(r"[<>|][biufcmMSU][1-9][0-9]{0,5}(\[([1-9][0-9]{0,8})?[A-Za-z]{1,2}\])?")
QUANTISED = ("qint", "quint")


def encode(value: object) -> JSON:
    """The typed form of a value of numpy or torch; None if it is neither's. NoTypedForm where it has none."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return _encode_numpy_scalar(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        if type(value) is not numpy.ndarray:
            raise NoTypedForm("is a subclass of numpy.ndarray, whose class would be lost")
        return _encode_array(value)
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise NoTypedForm("is a subclass of torch.Tensor, whose class would be lost")
        return _encode_tensor(value)
    return _encode_torch_noun(value, torch)


def is_tensor(value: object) -> bool:
    """Whether it is a torch tensor, which hashes by identity and so cannot be a key in what is stored."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _refuse_large(size: int) -> None:
    if size > INLINE_LIMIT:
        raise NoTypedForm(f"has {size} bytes, which is over the inline limit of {INLINE_LIMIT}")


def _check_kind(dtype: Any) -> None:
    if dtype.kind not in NUMPY_KINDS or dtype.itemsize == 0:
        raise NoTypedForm(f"has the dtype {dtype}, which is no plain number, time or text")


def _encode_numpy_scalar(value: Any) -> JSON:
    if type(value) is not value.dtype.type:
        raise NoTypedForm("is a subclass of a numpy scalar, whose class would be lost")
    _refuse_large(value.nbytes)
    # Text goes by the methods of its Python parents: numpy's own, and arrays, drop trailing zeros.
    if value.dtype.kind == "U":
        return {"$numpy_str": encode_str(str.__str__(value))}
    if value.dtype.kind == "S":
        return {"$numpy_bytes": encode_base64(bytes.__add__(value, b""))}
    _check_kind(value.dtype)
    return {"$numpy_scalar": [value.dtype.str, encode_base64(value.tobytes())]}


def _encode_array(value: Any) -> JSON:
    _check_kind(value.dtype)
    _refuse_large(value.nbytes)
    return {"$numpy_array": [value.dtype.str, list(value.shape), encode_base64(value.tobytes(order="C"))]}


def _encode_tensor(value: Any) -> JSON:
    import torch

    quantised = _dtype_name(value.dtype).startswith(QUANTISED)
    if value.layout is not torch.strided or quantised or value.device.type == "meta":
        raise NoTypedForm("is not a dense tensor with data")
    _refuse_large(value.numel() * value.element_size())
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # reshape keeps the odd stride of a single element, view refuses it
    raw = flat.view(torch.uint8).numpy().tobytes()
    data = encode_base64(_little_endian(raw, dense.dtype))
    return {"$torch_tensor": [_dtype_name(dense.dtype), list(dense.shape), data]}


def _encode_torch_noun(value: object, torch: Any) -> JSON:
    if type(value) is torch.Size:
        return {"$torch_size": [encode_int(int(size)) for size in value]}  # type: ignore[attr-defined]
    if isinstance(value, torch.dtype):
        return {"$torch_dtype": _dtype_name(value)}
    if isinstance(value, torch.device):
        return {"$torch_device": str(value)}
    return None


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _torch_dtype(name: Any) -> Any:
    import torch

    # Not getattr: torch's modules import others when they are asked for a name, and a stored name must not do that.
    dtype = vars(torch).get(read(name, str))
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no dtype {name!r}")
    return dtype


def _little_endian(raw: bytes, dtype: Any) -> bytes:
    """From the machine's byte order to the file's, or back."""
    if sys.byteorder == "little":
        return raw
    import numpy as np

    width = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    return np.frombuffer(raw, np.uint8).reshape(-1, width)[:, ::-1].tobytes()


def _shape(payload: Any, itemsize: int, size: int) -> tuple[int, ...]:
    shape = tuple(read(length, int) for length in parts(payload, 0, MAX_RANK))
    if min(shape, default=0) < 0 or math.prod(shape) * itemsize != size:
        raise ValueError(f"the shape {shape} does not fit {size} bytes")
    return shape


def _numpy_dtype(name: Any) -> Any:
    import numpy as np

    if NUMPY_DTYPE.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no dtype of a plain number, time or text")
    return np.dtype(name)


def _decode_array(payload: Any) -> Any:
    import numpy as np

    name, lengths, encoded = parts(payload, 3)
    data, dtype = bytearray(decode_base64(encoded)), _numpy_dtype(name)
    shape = _shape(lengths, dtype.itemsize, len(data))
    if dtype.kind == "U" and data:
        points = np.frombuffer(data, np.dtype("u4").newbyteorder(dtype.byteorder))
        if points.max() > MAX_CODE_POINT:
            raise ValueError("there is a character beyond the last one of Unicode")
    return np.ndarray(shape, dtype, buffer=data).copy()


def _decode_numpy_scalar(payload: Any) -> Any:
    import numpy as np

    name, encoded = parts(payload, 2)
    dtype = _numpy_dtype(name)
    if dtype.kind in "SU":
        raise ValueError("text is no numpy_scalar")
    (value,) = np.frombuffer(decode_base64(encoded), dtype)
    return value


def _decode_tensor(payload: Any) -> Any:
    import torch

    name, lengths, encoded = parts(payload, 3)
    data, dtype = decode_base64(encoded), _torch_dtype(name)
    shape = _shape(lengths, dtype.itemsize, len(data))
    if name.startswith(QUANTISED):
        raise ValueError("quantised tensors need scales, which are not here")
    if not data:
        return torch.empty(0, dtype=torch.uint8).view(dtype).reshape(shape)
    raw = torch.frombuffer(bytearray(_little_endian(data, dtype)), dtype=torch.uint8)
    return raw.clone().view(dtype).reshape(shape)  # cloned into torch's own memory, which is aligned for every dtype


def _decode_numpy_str(payload: Any) -> Any:
    import numpy as np

    return np.str_(read(payload, str))


def _decode_numpy_bytes(payload: Any) -> Any:
    import numpy as np

    return np.bytes_(decode_base64(payload))


def _decode_size(payload: Any) -> Any:
    import torch

    return torch.Size([read(size, int) for size in parts(payload, 0, MAX_RANK)])


def _decode_device(payload: Any) -> Any:
    import torch

    device = torch.device(read(payload, str))
    if str(device) != payload:  # torch takes any index, and wraps those that do not fit
        raise ValueError(f"{payload!r} is no device")
    return device


DECODERS: dict[str, Callable[[Any], Any]] = {
    "$numpy_scalar": _decode_numpy_scalar,
    "$numpy_str": _decode_numpy_str,
    "$numpy_bytes": _decode_numpy_bytes,
    "$numpy_array": _decode_array,
    "$torch_tensor": _decode_tensor,
    "$torch_size": _decode_size,
    "$torch_dtype": _torch_dtype,
    "$torch_device": _decode_device,
}
