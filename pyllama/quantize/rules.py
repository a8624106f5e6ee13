"""The type that each tensor of a model gets.

    types = choose_types(tensors, find_file_type("Q4_K_M"), sizes, Wishes())
    types["blk.0.attn_v.weight"].type              # GGMLType.Q6_K

What is asked for by name wins, then the mix decides, then rows that do not fill blocks get a type
whose blocks they fill. The order of the tensors matters: kinds are counted.
Source: llama.cpp, ``llama_tensor_get_type`` and ``tensor_allows_quantization``; PowerInfer,
``get_k_quant_type``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyggml.dtype import GGMLType
from pyggml.gguf import TensorInfo

from .file_types import FileType
from .mixes import (
    COARSE,
    EIGHT_EXPERTS,
    FALCON,
    FALLBACK,
    MIXES,
    NEEDS_IMATRIX,
    TOKEN_EMBD,
    Place,
    Rule,
    Sizes,
)

T = GGMLType
_OUTPUT, _TOKEN_EMBD = "output.weight", ("token_embd.weight", "per_layer_token_embd.weight")
# What a tensor's name contains -> its kind; the first that is found.
_KINDS = {
    "attn_qkv.weight": "attn_v",
    "attn_kv_b.weight": "attn_v",
    "attn_v.weight": "attn_v",
    "attn_k.weight": "attn_k",
    "attn_q.weight": "attn_q",
    "attn_output.weight": "attn_output",
    "ffn_up": "ffn_up",
    "ffn_gate": "ffn_gate",
    "ffn_down": "ffn_down",
}
_STAY = (  # matrices that are never quantized, by what their name contains
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "attn_rel_b.weight"),
    *("indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight"),
    *(f"time_mix_{n}{i}.weight" for n, end in (("w", 3), ("v", 3), ("a", 3)) for i in range(end)),
    *("time_mix_g1.weight", "time_mix_g2.weight", "time_mix_lerp_fused.weight"),
    *("time_mix_decay_w1.weight", "time_mix_decay_w2.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
_STAY_EXACTLY = ("position_embd.weight", "token_types.weight")
_PREDICTORS = ("fc1.weight", "fc2.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class Wishes:
    """What is asked for in place of a mix's choice.

    Attributes:
        pure: no mix: every matrix the file type's own type.
        leave_output: output.weight stays as it is.
        output_type, token_embedding_type: of output.weight, and of token_embd.weight.
        tensor_types: (regular expression, type); the first that is found in a name counts.
        imatrix: there is an importance matrix.
        powerinfer: the file is one of PowerInfer's.
    """

    pure: bool = False
    leave_output: bool = False
    output_type: GGMLType | None = None
    token_embedding_type: GGMLType | None = None
    tensor_types: tuple[tuple[re.Pattern[str], GGMLType], ...] = ()
    imatrix: bool = False
    powerinfer: bool = False


@dataclass(frozen=True)
class Choice:
    """A tensor's type; ``wanted`` is another where its rows do not fill that type's blocks."""

    type: GGMLType
    wanted: GGMLType
    needs_imatrix: bool = False


def is_matrix(name: str, ne: Sequence[int], wishes: Wishes) -> bool:
    """Whether a tensor may be quantized at all."""
    if not any(n > 1 for n in ne[1:]) or not name.endswith("weight"):
        return False
    if name in _STAY_EXACTLY or any(part in name for part in _STAY):
        return wishes.powerinfer and name == "position_embd.weight"  # as its own program does
    return not (wishes.leave_output and name == _OUTPUT)


def choose_types(
    tensors: Sequence[TensorInfo], file_type: FileType, sizes: Sizes, wishes: Wishes
) -> dict[str, Choice]:
    """The types by name, of those tensors that may be quantized.

    Args:
        tensors: all, in the order that they are counted.
        sizes: of the model, all its layers.
    """
    chooser = _Chooser(tensors, file_type, sizes, wishes)
    return {t.name: chooser.choose(t) for t in tensors if is_matrix(t.name, t.ne, wishes)}


class _Chooser:
    """Counts tensors of each kind while it chooses."""

    def __init__(
        self, tensors: Sequence[TensorInfo], file_type: FileType, sizes: Sizes, wishes: Wishes
    ) -> None:
        assert file_type.type is not None
        self.name, self.type = file_type.name, file_type.type
        self.sizes, self.wishes = sizes, wishes
        self.tied = all(t.name != _OUTPUT for t in tensors) and not wishes.powerinfer
        self.n_attn_v = sum(_kind(t.name, wishes) == "attn_v" for t in tensors)
        self.seen: Counter[str] = Counter()

    def choose(self, tensor: TensorInfo) -> Choice:
        wanted = self._wanted(tensor)
        n = tensor.ne[0]
        type = wanted
        if n % type.block_size:
            type = FALLBACK.get(type, type)
            type = T.F16 if n % type.block_size else type
        sensitive = tensor.name != _OUTPUT and tensor.name not in _TOKEN_EMBD
        needs = type in NEEDS_IMATRIX or (type is T.Q2_K and self.name == "Q2_K_S")
        return Choice(type, wanted, sensitive and needs)

    def _wanted(self, tensor: TensorInfo) -> GGMLType:
        """The type that is asked for or that the mix has, whatever the length of the rows."""
        name, wishes = tensor.name, self.wishes
        asked = next((t for pattern, t in wishes.tensor_types if pattern.search(name)), None)
        if name in _TOKEN_EMBD and wishes.token_embedding_type is not None:
            if asked is None or name == _TOKEN_EMBD[0]:
                return wishes.token_embedding_type
        elif name == _OUTPUT and wishes.output_type is not None:
            return wishes.output_type
        if not self.type.is_quantized:
            return self.type
        if asked is not None:
            return asked
        return self.type if wishes.pure else self._mixed(tensor)

    def _mixed(self, tensor: TensorInfo) -> GGMLType:
        name = tensor.name
        if name == _OUTPUT or (self.tied and name in _TOKEN_EMBD):
            return self._output_type(tensor)
        if name.endswith(_PREDICTORS):
            return T.Q4_0 if self.name == "Q4_0" else T.Q5_0
        if self.name == "MXFP4_MOE":
            return T.MXFP4 if tensor.ne[2] > 1 else T.Q8_0
        if name in _TOKEN_EMBD:
            return TOKEN_EMBD.get(self.name, self.type)
        kind = _kind(name, self.wishes)
        if kind is None:
            return self.type
        type = self._by_rule(kind, self._place(kind, name))
        return self._with_experts(kind, type)

    def _output_type(self, tensor: TensorInfo) -> GGMLType:
        if self.wishes.output_type is not None:
            return self.wishes.output_type
        whole = tensor.ne[0] % self.type.block_size == 0
        if self.name == "MXFP4_MOE" or self.sizes.arch == "falcon" or not whole:
            return T.Q8_0
        if self.name in (*COARSE, "IQ3_XXS"):
            return T.Q5_K
        return self.type if self.type is T.Q8_0 else T.Q6_K

    def _place(self, kind: str, name: str) -> Place:
        """Where the tensor is among those of its kind; of experts by the layer that it names."""
        i = self.seen[kind]
        self.seen[kind] += 1
        if kind == "attn_v":
            return Place(i, self.n_attn_v, self.sizes, self.wishes.imatrix)
        layer = _LAYER.match(name)
        if self.sizes.n_expert > 1 and layer and self.name not in COARSE:
            i = int(layer[1])
        return Place(i, self.sizes.n_layer, self.sizes, self.wishes.imatrix)

    def _by_rule(self, kind: str, place: Place) -> GGMLType:
        rules = MIXES.get(self.name, {})
        if self.sizes.arch == "falcon" and self.name not in COARSE:
            rules = {**rules, "attn_output": (), **FALCON.get(self.name, {})}
        rule: Rule = rules.get(kind, ())
        if kind == "attn_output" and self.sizes.n_expert == 8:
            rule = ()
        type = next((type for holds, type in rule if holds(place)), self.type)
        large = self.sizes.is_70b and kind == "attn_v" and self.name not in COARSE
        return T.Q5_K if large and type in (T.Q3_K, T.Q4_K) else type

    def _with_experts(self, kind: str, type: GGMLType) -> GGMLType:
        """A mixture of eight experts shares little else, which may then be finer."""
        if self.sizes.n_expert != 8:
            return type
        if kind == "attn_k":
            return T.Q4_K if self.name in COARSE else T.Q8_0
        if kind == "attn_v" and self.name not in COARSE:
            return T.Q8_0
        finer = kind == "attn_output" and self.name in EIGHT_EXPERTS
        return T.Q5_K if finer and self.sizes.arch != "falcon" else type


def _kind(name: str, wishes: Wishes) -> str | None:
    if name == _OUTPUT or name in _TOKEN_EMBD:
        return None
    if wishes.powerinfer and name.endswith("ffn_down_t.weight"):  # it knows no such tensor
        return None
    return next((kind for part, kind in _KINDS.items() if part in name), None)
