"""llama-quantize's mixes as tables: the tensors whose type is not the file type's default.

    MIXES["Q4_K_M"]["ffn_down"]                    # (("more bits", Q6_K),): otherwise the default

A rule is a list of (condition, type); the first condition that holds decides. A condition of
``HOLDS`` gets the ``Place`` of a tensor: its index among those of its kind, and the model's sizes.
Source: llama.cpp, ``llama_tensor_get_type_impl``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyggml.dtype import GGMLType

T = GGMLType


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that decide on types; ``n_expert`` is 0 without experts."""

    arch: str
    n_layer: int
    n_head: int
    n_head_kv: int
    n_expert: int = 0

    @property
    def n_gqa(self) -> int:
        """Query heads per KV head."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp classifies the model as 70B."""
        grouped = self.arch != "llama" or self.n_head != self.n_head_kv
        return grouped and self.n_layer == _LAYERS_OF_70B.get(self.arch)


_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "olmo": 80, "deci": 80, "jais2": 68}


@dataclass(frozen=True)
class Place:
    """A tensor's index ``i`` among the ``n`` tensors of its kind, and its model."""

    i: int
    n: int
    sizes: Sizes
    imatrix: bool = False


Rule = tuple[tuple[str, GGMLType], ...]

HOLDS: dict[str, Callable[[Place], bool]] = {
    "always": lambda p: True,
    "first 2": lambda p: p.i < 2,
    "first 4": lambda p: p.i < 4,
    "first 16th": lambda p: p.i < p.n // 16,
    "first 8th": lambda p: p.i < p.n // 8,
    "middle": lambda p: p.n // 8 <= p.i < 7 * p.n // 8,
    # the first and the last eighth, and every third tensor between
    "more bits": lambda p: not HOLDS["middle"](p) or (p.i - p.n // 8) % 3 == 2,
    "grouped": lambda p: p.sizes.n_gqa >= 4,  # so many query heads share a KV head
    "grouped or experts": lambda p: p.sizes.n_gqa >= 4 or p.sizes.n_expert >= 4,
    "no imatrix": lambda p: not p.imatrix,
    "no imatrix, first 8th": lambda p: not p.imatrix and p.i < p.n // 8,
    "imatrix, first 8th": lambda p: p.imatrix and p.i < p.n // 8,
    "first 8th, more of 8 experts": lambda p: (
        p.i < p.n // 8 or (p.sizes.n_expert == 8 and HOLDS["more bits"](p))
    ),
}
"""The conditions of rules."""


def _coarse(attn_v: GGMLType, ffn_down: GGMLType, output: GGMLType | None) -> dict[str, Rule]:
    """Return the mix of a type of two bits or less."""
    return {
        "attn_v": (("grouped or experts", T.Q4_K), ("always", attn_v)),
        "ffn_down": (("first 8th", ffn_down),),
        "attn_output": () if output is None else (("always", output),),
    }


_IQ4: dict[str, Rule] = {
    "attn_v": (("grouped", T.Q5_K),),
    "ffn_down": (("no imatrix, first 8th", T.Q5_K),),
}
MIXES: dict[str, dict[str, Rule]] = {
    "Q4_0": {"ffn_down": (("imatrix, first 8th", T.Q4_1),)},
    "Q5_0": {"ffn_down": (("imatrix, first 8th", T.Q5_1),)},
    "Q2_K": {
        "attn_v": (("grouped", T.Q4_K), ("always", T.Q3_K)),
        "ffn_down": (("always", T.Q3_K),),
        "attn_output": (("always", T.Q3_K),),
    },
    "Q2_K_S": {"attn_v": (("grouped", T.Q4_K),), "ffn_down": (("first 8th", T.Q4_K),)},
    "Q3_K_M": {
        "attn_v": (("first 2", T.Q5_K), ("always", T.Q4_K)),
        "ffn_down": (("first 16th", T.Q5_K), ("always", T.Q4_K)),
        "attn_output": (("always", T.Q4_K),),
    },
    "Q3_K_L": {
        "attn_v": (("always", T.Q5_K),),
        "ffn_down": (("always", T.Q5_K),),
        "attn_output": (("always", T.Q5_K),),
    },
    "Q4_K_S": {"attn_v": (("first 4", T.Q5_K),), "ffn_down": (("first 8th", T.Q5_K),)},
    "Q4_K_M": {"attn_v": (("more bits", T.Q6_K),), "ffn_down": (("more bits", T.Q6_K),)},
    "Q5_K_M": {"attn_v": (("more bits", T.Q6_K),), "ffn_down": (("more bits", T.Q6_K),)},
    "IQ4_NL": _IQ4,
    "IQ4_XS": _IQ4,
    "IQ3_M": {
        "attn_v": (("always", T.Q4_K),),
        "ffn_down": (("first 8th, more of 8 experts", T.Q4_K),),
        "attn_output": (("always", T.Q4_K),),
    },
    "IQ3_S": {"attn_v": (("grouped", T.Q4_K),)},
    "IQ3_XS": {
        "attn_v": (("grouped", T.Q4_K),),
        "attn_k": (("always", T.IQ3_XXS),),
        "attn_q": (("always", T.IQ3_XXS),),
        "ffn_gate": (("middle", T.IQ3_XXS),),
        "ffn_up": (("middle", T.IQ3_XXS),),
    },
    "IQ3_XXS": {
        "attn_v": (("grouped", T.Q4_K), ("no imatrix", T.IQ3_S), ("always", T.IQ3_XXS)),
        "attn_k": (("always", T.IQ2_S),),
        "attn_q": (("always", T.IQ2_S),),
        "ffn_down": (("no imatrix, first 8th", T.Q4_K), ("no imatrix", T.Q3_K)),
        "attn_output": (("always", T.IQ3_S),),
    },
    "IQ2_XXS": _coarse(T.Q2_K, T.Q2_K, None),
    "IQ2_XS": _coarse(T.Q2_K, T.Q2_K, None),
    "IQ2_S": _coarse(T.IQ3_S, T.IQ3_S, T.IQ3_S),
    "IQ2_M": _coarse(T.IQ3_S, T.IQ3_S, T.IQ3_S),
    "IQ1_S": _coarse(T.Q2_K, T.Q2_K, T.IQ2_XXS),
    "IQ1_M": _coarse(T.Q2_K, T.Q2_K, T.IQ2_XXS),
}
# Two bits or less: output.weight is Q5_K, token_embd.weight has its own type (TOKEN_EMBD), and
# experts have other rules.
COARSE = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")

# Rules that differ for Falcon; attn_output has only these.
FALCON: dict[str, dict[str, Rule]] = {
    "Q3_K_M": {"ffn_down": (("first 16th", T.Q5_K), ("more bits", T.Q4_K))},
    "Q3_K_L": {"ffn_down": (("always", T.Q4_K),), "attn_output": (("always", T.Q4_K),)},
    "Q4_K_S": {"ffn_down": ()},
    "Q4_K_M": {"ffn_down": (("first 16th", T.Q6_K), ("more bits", T.Q5_K))},
}
# File types whose attn_output is Q5_K in models with eight experts.
EIGHT_EXPERTS = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS"),
    *("IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", *COARSE),
)
TOKEN_EMBD = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), T.Q2_K),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), T.IQ3_S),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), T.Q4_K),
}
# Replacement if the row size is not a multiple of the block size.
FALLBACK = {
    **dict.fromkeys((T.Q1_0, T.Q2_0, T.Q2_K, T.Q3_K, T.TQ1_0, T.TQ2_0), T.Q4_0),
    **dict.fromkeys((T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS), T.IQ4_NL),
    **dict.fromkeys((T.IQ3_S, T.IQ4_XS), T.IQ4_NL),
    T.Q4_K: T.Q5_0,
    T.Q5_K: T.Q5_1,
    T.Q6_K: T.Q8_0,
}
NEEDS_IMATRIX = (T.IQ3_XXS, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ1_M, T.IQ1_S)
