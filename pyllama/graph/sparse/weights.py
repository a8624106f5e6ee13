"""The weights of sparse layers: their names in files, and tensors computed at load.

    patterns = sparse_patterns(arch.TENSORS, file.tensors)
    plan = plan_weights(infos, hparams)            # plan.unread, plan.derived

A sparse layer has a transposed down matrix (``ffn_down_t``): row j belongs to neuron j, as in
``ffn_gate`` and ``ffn_up``. Matrices read by rows keep the file's layout; others may be repacked.
The down matrix of a dense file is transposed at load: float types are kept, quantized types become
F16, which rounds the dequantized values. Those of experts are transposed if they are floats; else
they are multiplied whole.
Source: PowerInfer, ``llm_load_sparse_model_tensors`` and its converters, for names and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType, row_size
from pyggml.gguf import GGUFFile, TensorInfo
from pyggml.ops.matrix.sparse import pack_signs
from pyggml.quants import dequantize, quantize
from pyggml.rounding import ceil_div
from pyggml.tensor import Dims

from ...errors import ModelError
from ...hparams import HParams
from ..builder import HEAD_PREDICTOR
from .svd import low_rank

Bytes = npt.NDArray[np.uint8]
Patterns = Mapping[str, tuple[str, ...]]  # sizes by tensor name; "?" marks optional tensors
ANY = "any"  # a size that the file chooses
UNREAD_SCALE = "input_scale"  # of activations of 4 bits, which ours are not
_PREDICTOR = {"blk.{i}.fc1.weight?": ("n_embd", ANY), "blk.{i}.fc2.weight?": (ANY, "n_ff")}
_DOWN_EXPERTS, _DOWN_EXPERTS_T = "ffn_down_exps.weight", "ffn_down_exps_t.weight"
_FIRST = ("blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight")  # predictors are listed before these
_STEP_ROWS = 256  # rows of a matrix read at once: a few megabytes


@dataclass(frozen=True)
class DerivedTensors:
    """Tensors computed from one tensor of the file.

    Attributes:
        source: the tensor of the file.
        tensors: name, type and sizes of each derived tensor.
        make: returns the bytes of each derived tensor, given those of the source.
    """

    source: TensorInfo
    tensors: tuple[tuple[str, GGMLType, Dims], ...]
    make: Callable[[Bytes], Sequence[Bytes]]


@dataclass(frozen=True)
class WeightPlan:
    """How the weights of a model are loaded.

    Attributes:
        unread: tensors of the file that no layer reads.
        derived: tensors to compute from others.
    """

    unread: frozenset[str] = frozenset()
    derived: tuple[DerivedTensors, ...] = ()

    @property
    def derived_sizes(self) -> dict[str, int]:
        """The size in bytes of each derived tensor."""
        return {
            name: row_size(type, ne[0]) * ne[1] * ne[2]
            for tensors in self.derived
            for name, type, ne in tensors.tensors
        }


# --- tensors and metadata of files ----------------------------------------------------------------


def is_sparse(names: Collection[str]) -> bool:
    """Return whether the tensors are those of a sparse model."""
    endings = (".ffn_down_t.weight", f".{_DOWN_EXPERTS_T}", ".fc1.weight", ".fc2.weight")
    return any(n.endswith(endings) for n in names)


def is_of_experts(name: str) -> bool:
    """Return whether a tensor has the matrices of a layer's experts."""
    return name.endswith(("_exps.weight", "_exps_t.weight"))


def has_transposed_experts(file: GGUFFile, layer: int | str) -> bool:
    """Return whether ``ffn_down_exps`` of a layer has a row for each neuron, as ``ffn_up_exps``."""
    down, up = (file.tensors.get(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("down", "up"))
    return down is not None and up is not None and down.ne == up.ne and up.ne[0] != up.ne[1]


def sparse_patterns(patterns: Patterns, names: Collection[str]) -> Patterns:
    """Return an architecture's tensors adapted to a file's tensor names, in the order of use."""
    if not is_sparse(names):
        return patterns
    renamed = [
        part for part in ("weight", "bias") if any(n.endswith(f".ffn_down_t.{part}") for n in names)
    ]
    experts = any(n.endswith(_DOWN_EXPERTS_T) for n in names)
    found: dict[str, tuple[str, ...]] = {}
    for pattern, ne in patterns.items():
        if pattern in _FIRST:
            found |= _PREDICTOR
        if experts and pattern.endswith(_DOWN_EXPERTS):
            pattern, ne = pattern.replace(_DOWN_EXPERTS, _DOWN_EXPERTS_T), (ne[1], ne[0], ne[2])
        part = pattern.rstrip("?").removeprefix("blk.{i}.ffn_down.")
        if part in renamed:
            pattern, ne = pattern.replace("ffn_down.", "ffn_down_t."), ("n_embd", "n_ff")[: len(ne)]
        found[pattern] = ne
    return found


def expert_patterns(patterns: Patterns, file: GGUFFile) -> Patterns:
    """Return the patterns with the sizes of transposed experts, if a file that is not normalized
    has some."""
    layers = (name.split(".")[1] for name in file.tensors if name.endswith(_DOWN_EXPERTS))
    if not any(has_transposed_experts(file, layer) for layer in layers):
        return patterns
    return {
        name: (ne[1], ne[0], ne[2]) if name.endswith(_DOWN_EXPERTS) else ne
        for name, ne in patterns.items()
    }


def predictor_faults(infos: Mapping[str, TensorInfo], n_layer: int) -> list[str]:
    """Return the faults of predictors: a missing matrix, or ranks that differ."""
    faults = []
    for i in range(n_layer):
        first, second = (f"blk.{i}.fc{n}.weight" for n in (1, 2))
        if (first in infos) != (second in infos):
            missing, present = (first, second) if second in infos else (second, first)
            faults.append(f"tensor '{missing}' is missing, which belongs to '{present}'")
        elif first in infos and infos[first].ne[1] != infos[second].ne[0]:
            faults.append(
                f"tensor '{second}' has sizes {list(infos[second].ne)}, must have rows of "
                f"{infos[first].ne[1]}, the rank of '{first}' {list(infos[first].ne)}"
            )
    return faults


def normalize_powerinfer_metadata(file: GGUFFile) -> None:
    """Add metadata that PowerInfer's converters omit, in memory.

    - Experts whose ``ffn_down_exps`` has the sizes of ``ffn_up_exps``: it is transposed, and gets
      the name ``ffn_down_exps_t``.
    - Sparse models: the activation is ReLU.
    - OPT (recognised by the missing epsilon): add BOS; drop the two unused rows at the start of the
      position embedding, and do not count them in the context length.
    """
    arch, metadata = file.get_str("general.architecture", ""), file.metadata
    for name in [n for n in file.tensors if n.endswith(_DOWN_EXPERTS)]:
        if has_transposed_experts(file, name.split(".")[1]):
            new = name.replace(_DOWN_EXPERTS, _DOWN_EXPERTS_T)
            file.tensors[new] = replace(file.tensors.pop(name), name=new)
    if is_sparse(file.tensors) and f"{arch}.hidden_act" not in metadata:
        file.override({f"{arch}.hidden_act": "relu"})
    if arch != "opt" or "opt.attention.layer_norm_epsilon" in metadata:
        return
    if "tokenizer.ggml.add_bos_token" not in metadata:
        file.override({"tokenizer.ggml.add_bos_token": True})
    table = file.tensors.get("position_embd.weight")
    if table is not None and table.ne[1] > 2:
        n, skipped = table.ne[1] - 2, 2 * (table.nbytes // table.ne[1])
        file.tensors[table.name] = replace(
            table, ne=(table.ne[0], n, 1, 1), offset=table.offset + skipped,
            nbytes=table.nbytes - skipped,
        )  # fmt: skip
        file.override({"opt.context_length": n})


# --- tensors computed at load ---------------------------------------------------------------------


def plan_weights(infos: Mapping[str, TensorInfo], hparams: HParams) -> WeightPlan:
    """Return the tensors to skip and to compute at load, for the sources in ``hparams.sparse``."""
    unread = {name for name in infos if name.endswith(f".{UNREAD_SCALE}")}
    derived: list[DerivedTensors] = []
    for i in range(hparams.n_layer):
        source, gate, up, down, down_t, fc1, fc2 = (
            hparams.source(i),
            *(f"blk.{i}.{part}.weight"
              for part in ("ffn_gate", "ffn_up", "ffn_down", "ffn_down_t", "fc1", "fc2")),
        )  # fmt: skip
        if source not in ("predictor", "cross"):
            unread |= {fc1, fc2} & infos.keys()
        experts = infos.get(f"blk.{i}.{_DOWN_EXPERTS}")
        if source != "off" and experts is not None and not experts.type.is_quantized:
            unread.add(experts.name)
            new = experts.name.replace(_DOWN_EXPERTS, _DOWN_EXPERTS_T)
            derived.append(_transposed(experts, new))
        if source != "off" and down in infos:
            unread.add(down)
            derived.append(_transposed(infos[down], down_t))
        first = infos.get(gate) or infos.get(up)
        if source == "signs" and first is not None:
            derived.append(_signs(first))
        if source == "svd" and first is not None:
            derived.append(_svd(first, int(hparams.sparse[i].partition("=")[2]), seed=i))
    predictor = infos.get(f"{HEAD_PREDICTOR}.weight")
    if predictor is not None:
        unread.add(predictor.name)
    if predictor is not None and hparams.sparse_head:
        table = infos.get("output.weight") or infos["token_embd.weight"]
        derived.append(_head_predictor(predictor, hparams.n_embd, table.ne[1]))
    return WeightPlan(frozenset(unread), tuple(derived))


def _transposed(info: TensorInfo, name: str) -> DerivedTensors:
    """Each matrix of a tensor transposed."""
    type = GGMLType.F16 if info.type.is_quantized else info.type
    n_ff, n_embd, n = info.ne[:3]

    def make(data: Bytes) -> list[Bytes]:
        unit = np.dtype(f"u{type.type_size}")
        out = np.empty((n, n_ff, n_embd), unit)
        for matrix, rows in zip(out, data.reshape(n, n_embd, -1), strict=True):
            for start in range(0, n_embd, _STEP_ROWS):
                piece = rows[start : start + _STEP_ROWS]
                if info.type.is_quantized:
                    piece = quantize(dequantize(piece, info.type), type)
                matrix[:, start : start + len(piece)] = piece.view(unit).T
        return [out.view(np.uint8).reshape(-1)]

    return DerivedTensors(info, ((name, type, (n_embd, n_ff, n, 1)),), make)


def _head_predictor(info: TensorInfo, n_embd: int, n_vocab: int) -> DerivedTensors:
    """The two matrices of the predictor of the output matrix, which the file has in one row."""
    rank, rest = divmod(info.ne[0], n_embd + n_vocab)
    if rest or not rank or rank % info.type.block_size or n_embd % info.type.block_size:
        raise ModelError(
            f"tensor '{info.name}' has {info.ne[0]} elements, must have a multiple of "
            f"{info.type.block_size} times {n_embd + n_vocab}, for {n_embd} columns and "
            f"{n_vocab} tokens"
        )

    def make(data: Bytes) -> list[Bytes]:
        first = rank * row_size(info.type, n_embd)
        return [data[:first], data[first:]]

    matrices = (n_embd, rank), (rank, n_vocab)
    return DerivedTensors(
        info,
        tuple(
            (f"{HEAD_PREDICTOR}_{k}.weight", info.type, (*ne, 1, 1))
            for k, ne in enumerate(matrices, 1)
        ),
        make,
    )


def _signs(info: TensorInfo) -> DerivedTensors:
    n, n_rows = info.ne[:2]

    def make(data: Bytes) -> list[Bytes]:
        rows = data.reshape(n_rows, -1)
        pieces = [
            pack_signs(dequantize(rows[start : start + _STEP_ROWS], info.type))
            for start in range(0, n_rows, _STEP_ROWS)
        ]
        return [np.concatenate(pieces).view(np.uint8).reshape(-1)]

    name = info.name.replace(".weight", "_signs")
    return DerivedTensors(info, ((name, GGMLType.I32, (ceil_div(n, 32), n_rows, 1, 1)),), make)


def _svd(info: TensorInfo, rank: int, seed: int) -> DerivedTensors:
    type = GGMLType.F32 if info.type is GGMLType.F32 else GGMLType.F16
    n, n_rows = info.ne[:2]
    first, second = (info.name.replace(".weight", f"_svd_{k}.weight") for k in (1, 2))

    def make(data: Bytes) -> list[Bytes]:
        w = dequantize(data.reshape(n_rows, -1), info.type)
        return [quantize(x, type).reshape(-1) for x in low_rank(w, rank, seed)]

    return DerivedTensors(
        info, ((first, type, (n, rank, 1, 1)), (second, type, (rank, n_rows, 1, 1))), make
    )
