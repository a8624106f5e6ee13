"""Which of llama-cpp-python's arguments are accepted without being obeyed, and what then happens.

    check_arguments("Llama", {"n_gpu_layers": 99, "lora_path": None})     # one warning
    check_arguments("Llama", {"lora_path": "x.gguf"})                     # NotSupported

An argument that would change results is refused, unless it has the value that changes nothing. One
that would change only speed gives a warning. One that matters only beside those is let pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pyggml.dtype import GGMLType
from pyggml.ops.attention import KV_TYPES

from .errors import PyllamaError
from .hparams import ROPE_SCALINGS
from .overrides import Overrides

# values that change nothing
_REFUSED: dict[str, tuple[object, ...]] = {
    # of the constructor
    "pooling_type": (-1,),
    "attention_type": (-1,),
    "embedding": (False,),
    "lora_base": (None,),
    "lora_path": (None,),
    "tokenizer": (None,),
    # of a completion
    "suffix": (None,),
    "typical_p": (1.0,),
    "mirostat_mode": (0,),
    "grammar": (None,),
}
_WITHOUT_EFFECT: dict[str, tuple[tuple[object, ...], str]] = {
    "n_gpu_layers": ((0, None), "there is no GPU backend yet, the CPU does it all"),
    "draft_model": ((None,), "there is no speculative decoding yet, the text is the same"),
}


class NotSupported(PyllamaError, NotImplementedError, ValueError):
    """Something that llama-cpp-python can do and pyllama cannot yet."""


def check_arguments(where: str, given: Mapping[str, Any], *, stacklevel: int = 3) -> None:
    """Refuse, or warn of, the arguments that would not be obeyed; others are not looked at.

    Args:
        where: the call, for the message.
        given: arguments by name.
        stacklevel: of the warning; 3 blames the caller of the caller.

    Raises:
        NotSupported: an argument that would change results.
    """
    for name, value in given.items():
        if name in _REFUSED and value not in _REFUSED[name]:
            raise NotSupported(f"{where}: {name}={value!r} is not supported yet; leave it out")
        if name in _WITHOUT_EFFECT and value not in _WITHOUT_EFFECT[name][0]:
            warnings.warn(
                f"{where}: {name}={value!r} has no effect: {_WITHOUT_EFFECT[name][1]}",
                stacklevel=stacklevel,
            )


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


# arguments of rope, and their values that leave the model's
_ROPE: dict[str, tuple[float, ...]] = {
    "rope_freq_base": (0.0,),
    "rope_freq_scale": (0.0,),
    "yarn_ext_factor": (-1.0,),
    "yarn_attn_factor": (1.0, -1.0),
    "yarn_beta_fast": (32.0, -1.0),
    "yarn_beta_slow": (1.0, -1.0),
    "yarn_orig_ctx": (0,),
}


def overrides(given: Mapping[str, Any]) -> Overrides:
    """A context's rope from the constructor's arguments; a default is the model's own value.

    Raises:
        NotSupported: a type of scaling that is not llama.cpp's.
    """
    kind = given["rope_scaling_type"]
    if kind not in range(-1, len(ROPE_SCALINGS)):
        raise NotSupported(
            f"Llama: rope_scaling_type={kind!r} is not known; want -1 (the model's), 0 (none), "
            f"1 (linear), 2 (yarn) or 3 (longrope)"
        )
    values = {name: given[name] for name, same in _ROPE.items() if given[name] not in same}
    return Overrides(rope_scaling=None if kind == -1 else ROPE_SCALINGS[kind], **values)
