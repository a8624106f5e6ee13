"""Arguments of llama-cpp-python that are accepted for compatibility but not implemented.

    check_arguments("Llama", {"numa": True})       # a warning

``WITHOUT_EFFECT`` would only change speed or the device: values that are not neutral log a warning.
``IGNORED`` have no effect here with any value. All others must reach the model or the context
(there is a test). Unknown ones are ignored with one warning.
``docs/from-llama-cpp.md`` shows the tables.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any, NamedTuple

from pyggml.dtype import GGMLType
from pyggml.ops.attention.attention import KV_TYPES

from ..errors import NotSupported
from ..hparams import ROPE_SCALINGS
from ..parameters import from_arguments
from ..runtime.overrides import Overrides

log = logging.getLogger(__name__)


class NeutralValues(NamedTuple):
    """The neutral values of an argument, and why others are not supported."""

    same: tuple[object, ...]
    why: str


WITHOUT_EFFECT = {
    "op_offload": NeutralValues((False, None), "each op runs where its weights are"),
    "numa": NeutralValues((False, None), "start the process with numactl(8)"),
}
IGNORED = {
    # of the constructor
    "flash_attn": "attention is always fused",
    "lora_base": "an adapter is applied to weights of any type, so no other base is needed",
    # of a completion
    "tfs_z": "llama.cpp has removed this sampler",
    "penalize_nl": "llama.cpp has removed this option",
}


def check_arguments(where: str, given: Mapping[str, Any]) -> None:
    """Log a warning for arguments that are not implemented.

    Args:
        where: name of the called function, for the message.
        given: arguments by name.
    """
    for name, value in given.items():
        if name in WITHOUT_EFFECT and not _is_one_of(value, WITHOUT_EFFECT[name].same):
            log.warning("%s: %s=%r has no effect: %s", where, name, value, WITHOUT_EFFECT[name].why)


def warn_of_unknown(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Log one warning that names all arguments that do not exist.

    Source: llama-cpp-python, whose ``Llama`` ignores them; LangChain sends some (``n_parts``).
    """
    if not given:
        return
    near = {name: difflib.get_close_matches(name, known, 1, 0.8) for name in given}
    names = [f"{name} (did you mean {n[0]}?)" if n else name for name, n in near.items()]
    log.warning("%s: there are no arguments of these names, ignored: %s", where, ", ".join(names))


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    """Whether ``value`` is one of ``values``; False for arrays, which compare by element."""
    if isinstance(value, Number):
        return value in values
    return any(value is one for one in values)


def cache_type(name: str, given: int | None) -> GGMLType:
    """A type of the KV cache by ggml's id; None is F16.

    Raises:
        NotSupported: not one of ``KV_TYPES``.
    """
    if given is None:
        return GGMLType.F16
    if given not in KV_TYPES:
        want = ", ".join(f"{int(t)} ({t.name})" for t in KV_TYPES)
        raise NotSupported(f"Llama: {name}={given!r} is not supported yet; want one of {want}")
    return GGMLType(given)


_SPLIT_MODES = ("none", "layer", "row", "tensor")


def split_mode(given: int | None) -> str:
    """The name of a split mode by llama.cpp's number; None is ``layer``.

    Raises:
        NotSupported: weights would be divided between devices, or the number is not known.
    """
    if given is None:
        return "layer"
    if given not in (0, 1):
        name = _SPLIT_MODES[given] if given in range(len(_SPLIT_MODES)) else "unknown"
        raise NotSupported(
            f"Llama: split_mode={given!r} ({name}) is not supported: weights are not divided "
            "between devices; want 1 (layer) or 0 (none)"
        )
    return _SPLIT_MODES[given]


_CAUSAL = {-1: None, 0: True, 1: False}


def overrides_of(given: Mapping[str, Any]) -> Overrides:
    """The overrides of a context, of rope and attention, from the constructor's arguments.

    Raises:
        NotSupported: an unknown type of scaling or of attention.
    """
    if given["attention_type"] not in _CAUSAL:
        raise NotSupported(
            f"Llama: attention_type={given['attention_type']!r} is not known; want -1 (the "
            "model's), 0 (causal) or 1 (non-causal)"
        )
    kind = -1 if given["rope_scaling_type"] is None else given["rope_scaling_type"]
    if kind not in range(-1, len(ROPE_SCALINGS)):
        raise NotSupported(
            f"Llama: rope_scaling_type={kind!r} is not known; want -1 (the model's), 0 (none), "
            f"1 (linear), 2 (yarn) or 3 (longrope)"
        )
    return Overrides(
        rope_scaling=None if kind == -1 else ROPE_SCALINGS[kind],
        causal=_CAUSAL[given["attention_type"]],
        **from_arguments(Overrides, given),
    )
