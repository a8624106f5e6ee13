"""Chooses the type of each tensor of a model.

    types = choose_types(tensors, find_file_type("Q4_K_M"), sizes, TypeOverrides())
    types["blk.0.attn_v.weight"].type              # GGMLType.Q6_K

Overrides by name come first, then the mix decides. If the row size is no multiple of the type's
block size, a fallback type is used. The order of tensors matters, since tensors of a kind are
counted.
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

from ..file_types import FileType
from .mixes import (
    COARSE,
    EIGHT_EXPERTS,
    FALCON,
    FALLBACK,
    HOLDS,
    MIXES,
    NEEDS_IMATRIX,
    TOKEN_EMBD,
    Place,
    Rule,
    Sizes,
)

T = GGMLType
_OUTPUT, _TOKEN_EMBD = "output.weight", ("token_embd.weight", "per_layer_token_embd.weight")
# Part of a tensor's name -> its kind; the first match counts.
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
_STAY = (  # parts of the names of matrices that are never quantized
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
class TypeOverrides:
    """Options that override the types of a mix.

    Attributes:
        pure: use the file type's default type for all matrices.
        leave_output: do not quantize output.weight.
        output_type: type of output.weight.
        token_embedding_type: type of token_embd.weight.
        tensor_types: (regular expression, type); the first match in a name counts.
        imatrix: there is an importance matrix.
        powerinfer: the file is a PowerInfer file.
    """

    pure: bool = False
    leave_output: bool = False
    output_type: GGMLType | None = None
    token_embedding_type: GGMLType | None = None
    tensor_types: tuple[tuple[re.Pattern[str], GGMLType], ...] = ()
    imatrix: bool = False
    powerinfer: bool = False


@dataclass(frozen=True)
class TypeChoice:
    """A tensor's type; differs from ``requested`` if the row size does not fit its blocks."""

    type: GGMLType
    requested: GGMLType
    needs_imatrix: bool = False


def is_matrix(name: str, ne: Sequence[int], type_overrides: TypeOverrides) -> bool:
    """Return whether a tensor may be quantized."""
    if not any(n > 1 for n in ne[1:]) or not name.endswith("weight"):
        return False
    if name in _STAY_EXACTLY or any(part in name for part in _STAY):
        # PowerInfer's quantizer quantizes position_embd
        return type_overrides.powerinfer and name == "position_embd.weight"
    return not (type_overrides.leave_output and name == _OUTPUT)


def choose_types(
    tensors: Sequence[TensorInfo], file_type: FileType, sizes: Sizes, type_overrides: TypeOverrides
) -> dict[str, TypeChoice]:
    """Return the types by name of the tensors that may be quantized.

    Args:
        tensors: all tensors, in the order of counting.
        sizes: sizes of the whole model.
    """
    chooser = _Chooser(tensors, file_type, sizes, type_overrides)
    return {t.name: chooser.choose(t) for t in tensors if is_matrix(t.name, t.ne, type_overrides)}


class _Chooser:
    """Chooses types, and counts the tensors of each kind."""

    def __init__(
        self,
        tensors: Sequence[TensorInfo],
        file_type: FileType,
        sizes: Sizes,
        type_overrides: TypeOverrides,
    ) -> None:
        assert file_type.type is not None
        self.name, self.type = file_type.name, file_type.type
        self.sizes, self.type_overrides = sizes, type_overrides
        self.tied = all(t.name != _OUTPUT for t in tensors) and not type_overrides.powerinfer
        self.n_attn_v = sum(_kind(t.name, type_overrides) == "attn_v" for t in tensors)
        self.seen: Counter[str] = Counter()

    def choose(self, tensor: TensorInfo) -> TypeChoice:
        requested = self._requested(tensor)
        n = tensor.ne[0]
        type = requested
        if n % type.block_size:
            type = FALLBACK.get(type, type)
            type = T.F16 if n % type.block_size else type
        sensitive = tensor.name != _OUTPUT and tensor.name not in _TOKEN_EMBD
        needs = type in NEEDS_IMATRIX or (type is T.Q2_K and self.name == "Q2_K_S")
        return TypeChoice(type, requested, sensitive and needs)

    def _requested(self, tensor: TensorInfo) -> GGMLType:
        """Return the type of the overrides or the mix, without regard to the row size."""
        name, type_overrides = tensor.name, self.type_overrides
        override = next(
            (t for pattern, t in type_overrides.tensor_types if pattern.search(name)), None
        )
        if name in _TOKEN_EMBD and type_overrides.token_embedding_type is not None:
            if override is None or name == _TOKEN_EMBD[0]:
                return type_overrides.token_embedding_type
        elif name == _OUTPUT and type_overrides.output_type is not None:
            return type_overrides.output_type
        if not self.type.is_quantized:
            return self.type
        if override is not None:
            return override
        return self.type if type_overrides.pure else self._mixed(tensor)

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
        kind = _kind(name, self.type_overrides)
        if kind is None:
            return self.type
        type = self._by_rule(kind, self._place(kind, name))
        return self._with_experts(kind, type)

    def _output_type(self, tensor: TensorInfo) -> GGMLType:
        if self.type_overrides.output_type is not None:
            return self.type_overrides.output_type
        whole = tensor.ne[0] % self.type.block_size == 0
        if self.name == "MXFP4_MOE" or self.sizes.arch == "falcon" or not whole:
            return T.Q8_0
        if self.name in (*COARSE, "IQ3_XXS"):
            return T.Q5_K
        return self.type if self.type is T.Q8_0 else T.Q6_K

    def _place(self, kind: str, name: str) -> Place:
        """Return the tensor's place among its kind; with experts its layer is the index."""
        i = self.seen[kind]
        self.seen[kind] += 1
        if kind == "attn_v":
            return Place(i, self.n_attn_v, self.sizes, self.type_overrides.imatrix)
        layer = _LAYER.match(name)
        if self.sizes.n_expert > 1 and layer and self.name not in COARSE:
            i = int(layer[1])
        return Place(i, self.sizes.n_layer, self.sizes, self.type_overrides.imatrix)

    def _by_rule(self, kind: str, place: Place) -> GGMLType:
        rules = MIXES.get(self.name, {})
        if self.sizes.arch == "falcon" and self.name not in COARSE:
            rules = {**rules, "attn_output": (), **FALCON.get(self.name, {})}
        rule: Rule = rules.get(kind, ())
        if kind == "attn_output" and self.sizes.n_expert == 8:
            rule = ()
        type = next((type for name, type in rule if HOLDS[name](place)), self.type)
        large = self.sizes.is_70b and kind == "attn_v" and self.name not in COARSE
        return T.Q5_K if large and type in (T.Q3_K, T.Q4_K) else type

    def _with_experts(self, kind: str, type: GGMLType) -> GGMLType:
        """Return a finer type for the small shared matrices of models with eight experts."""
        if self.sizes.n_expert != 8:
            return type
        if kind == "attn_k":
            return T.Q4_K if self.name in COARSE else T.Q8_0
        if kind == "attn_v" and self.name not in COARSE:
            return T.Q8_0
        finer = kind == "attn_output" and self.name in EIGHT_EXPERTS
        return T.Q5_K if finer and self.sizes.arch != "falcon" else type


def _kind(name: str, type_overrides: TypeOverrides) -> str | None:
    if name == _OUTPUT or name in _TOKEN_EMBD:
        return None
    if type_overrides.powerinfer and name.endswith("ffn_down_t.weight"):  # no rule in PowerInfer
        return None
    return next((kind for part, kind in _KINDS.items() if part in name), None)
