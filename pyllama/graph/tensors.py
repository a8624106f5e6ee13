"""Tables of the tensors of architectures.

    TENSORS = tensors({"blk.{i}.attn_q.*?": ("n_embd", "n_embd_q"), **GATED_FFN, **OUTPUT})
    TENSORS = without(llama.TENSORS, "ffn_gate")

A star stands for the weight and its bias, as in ``CONVERT``; ``.*?`` for a bias that variants may
lack. A matrix's bias has the sizes of its rows' outputs, a norm's those of its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pyggml.dtype import GGMLType

Sizes = tuple[str, ...]
_V = TypeVar("_V")

ATTENTION = {  # without biases
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_q.weight": ("n_embd", "n_embd_q"),
    "blk.{i}.attn_k.weight": ("n_embd", "n_embd_k"),
    "blk.{i}.attn_v.weight": ("n_embd", "n_embd_v"),
    "blk.{i}.attn_output.weight": ("n_embd_out", "n_embd"),
}
QKV = {  # with biases if the model has them: see ``tensors``
    "blk.{i}.attn_q.*?": ("n_embd", "n_embd_q"),
    "blk.{i}.attn_k.*?": ("n_embd", "n_embd_k"),
    "blk.{i}.attn_v.*?": ("n_embd", "n_embd_v"),
}
GATED_FFN = {  # without biases
    "blk.{i}.ffn_gate.weight": ("n_embd", "n_ff"),
    "blk.{i}.ffn_up.weight": ("n_embd", "n_ff"),
    "blk.{i}.ffn_down.weight": ("n_ff", "n_embd"),
}
EXPERTS = {
    "blk.{i}.ffn_gate_inp.weight": ("n_embd", "n_expert"),
    "blk.{i}.ffn_gate_exps.weight": ("n_embd", "n_ff_exp", "n_expert"),
    "blk.{i}.ffn_up_exps.weight": ("n_embd", "n_ff_exp", "n_expert"),
    "blk.{i}.ffn_down_exps.weight": ("n_ff_exp", "n_embd", "n_expert"),
}
SHARED_EXPERTS = {
    "blk.{i}.ffn_gate_shexp.weight": ("n_embd", "n_ff_shexp"),
    "blk.{i}.ffn_up_shexp.weight": ("n_embd", "n_ff_shexp"),
    "blk.{i}.ffn_down_shexp.weight": ("n_ff_shexp", "n_embd"),
}
DEEPSEEK_EXPERTS = {  # ``exp_probs_b`` is added to the router's scores to choose experts
    **EXPERTS,
    "blk.{i}.exp_probs_b.bias?": ("n_expert",),
    **SHARED_EXPERTS,
}
ENCODER = {  # with a norm after attention and one after the feed-forward part; see ``tensors``
    "token_embd.weight": ("n_embd", "n_vocab"),
    "token_types.weight?": ("n_embd", "n_token_types"),
    "token_embd_norm.*": ("n_embd",),
    **QKV,
    "blk.{i}.attn_output.*?": ("n_embd_out", "n_embd"),
    "blk.{i}.attn_output_norm.*": ("n_embd",),
    "blk.{i}.ffn_up.*?": ("n_embd", "n_ff"),
    "blk.{i}.ffn_down.*?": ("n_ff", "n_embd"),
    "blk.{i}.layer_output_norm.*": ("n_embd",),
}
OUTPUT = {  # the output matrix may be tied to the embeddings
    "output_norm.weight": ("n_embd",),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", "n_vocab"),
}
INDICES = {"d2t": GGMLType.I64, "ffn_gate_tid2eid.weight": GGMLType.I32}  # endings of names


def index_type(name: str) -> GGMLType | None:
    """The type of a tensor that has indices in place of weights; None for weights."""
    return next((type for end, type in INDICES.items() if name.endswith(end)), None)


def tensors(table: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """The table with a name for each tensor, in the same order."""
    named: dict[str, Sizes] = {}
    for pattern, sizes in table.items():
        stem, star, optional = pattern.partition(".*")
        if star:
            named[f"{stem}.weight"] = sizes
            named[f"{stem}.bias{optional}"] = sizes[1:] or sizes
        else:
            named[pattern] = sizes
    return named


def without(table: Mapping[str, _V], *parts: str) -> dict[str, _V]:
    """The table without the names that contain one of ``parts``, in the same order."""
    return {name: x for name, x in table.items() if not any(part in name for part in parts)}


def only_in(layers: str, table: Mapping[str, Sizes]) -> dict[str, Sizes]:
    """The table for those layers alone where the hyperparameter ``layers`` is 1, and not 0."""
    return {name: (f"{layers}*{sizes[0]}", *sizes[1:]) for name, sizes in table.items()}
