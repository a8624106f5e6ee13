"""A model's hyperparameters, read from GGUF metadata and checked before anything uses them.

    hp = read_hparams(gguf_file, n_vocab)
    hp.n_embd, hp.n_layer, hp.head_dim             # 576, 30, 64

A field is read from the key that ``KEYS`` names, or that the architecture's ``HPARAMS`` names in
its place; an architecture may also fix it.
Source: llama.cpp, ``llama_hparams`` and the ``{arch}.*`` keys of GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from pyggml.gguf import GGUFFile

from .arch import get_arch
from .errors import ModelError


class Key(NamedTuple):
    """Where a hyperparameter stands in a file: ``{arch}.{name}``; without a default it must."""

    name: str
    default: int | float | str | bool | None = None


Values = Mapping[str, Key | int | float | str | bool]  # by field of HParams

KEYS: Values = {
    "n_ctx_train": Key("context_length"),
    "n_embd": Key("embedding_length"),
    "n_layer": Key("block_count"),
    "n_ff": Key("feed_forward_length"),
    "n_head": Key("attention.head_count"),
    "norm_eps": Key("attention.layer_norm_rms_epsilon", 1e-5),
    "rope_freq_base": Key("rope.freq_base", 10000.0),
    "hidden_act": Key("hidden_act", ""),
}
# Far beyond any model that exists: a damaged file must not make us reserve or loop for ever.
_LIMITS = {
    "n_layer": 4096,
    "n_embd": 1 << 20,
    "n_ff": 1 << 22,
    "n_head": 1 << 14,
    "n_head_kv": 1 << 14,
    "n_ctx_train": 1 << 30,
    "n_vocab": 1 << 24,
    "head_dim": 1 << 14,
}
_MIN_FLOAT, _MAX_FLOAT = 1e-30, 1e30  # float32 holds it, and its inverse; nan is outside


@dataclass(frozen=True)
class HParams:
    """Sizes and constants of a model."""

    arch: str
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    n_vocab: int
    norm_eps: float
    rope_freq_base: float
    rope_freq_scale: float
    rope_neox: bool = False  # pairs are half a head apart, not neighbours
    rope_freq_base_swa: float = 0.0  # of layers that slide; 0: the same
    hidden_act: str = ""  # of the feed-forward part; empty: the architecture's
    n_swa: int = 0  # positions that a sliding layer sees, its own included
    swa_period: int = 1  # every layer of so many slides, but the last; 0: all do
    causal: bool = True
    max_alibi_bias: float = 0.0
    alibi_scaled: bool = False  # its bias is scaled as scores are
    learned_positions: bool = False  # there is a table of them: position_embd.weight
    attn_logit_softcap: float = 0.0
    attn_scale: float = 0.0  # of scores; 0: 1 / sqrt(head_dim)
    clamp_kqv: float = 0.0  # queries, keys and values lie within +- this; 0: anywhere
    parallel_residual: bool = True  # attention and feed-forward read the same, where either may be
    post_norm: bool = False  # norms stand behind attention and feed-forward, where either may be
    n_embd_token: int = 0  # columns of an embedding that a matrix widens; 0: n_embd

    def window(self, layer: int) -> int:
        """Positions that a layer's tokens see, 0 for all."""
        period = self.swa_period
        slides = period == 0 or layer % period < period - 1
        return self.n_swa if slides else 0

    @property
    def n_embd_inp(self) -> int:
        """Columns of the embedding."""
        return self.n_embd_token or self.n_embd

    @property
    def n_embd_qkv(self) -> int:
        """Columns of all queries, keys and values."""
        return self.n_embd_q + 2 * self.n_embd_kv

    @property
    def n_embd_q(self) -> int:
        """Columns of all queries."""
        return self.n_head * self.head_dim

    @property
    def n_embd_kv(self) -> int:
        """Columns of all keys (or values)."""
        return self.n_head_kv * self.head_dim


def read_hparams(file: GGUFFile, n_vocab: int) -> HParams:
    """The hyperparameters of a file.

    Raises:
        ModelError, GGUFError: the architecture is unknown; a key is missing, of another type, or
            out of its range.
    """
    arch = file.get_str("general.architecture")
    getters: Mapping[str, Any] = {
        "int": file.get_int, "float": file.get_float, "str": file.get_str, "bool": file.get_bool,
    }  # fmt: skip

    def read(field: str, key: Key) -> Any:
        default = () if key.default is None else (key.default,)
        return getters[_TYPES[field]](f"{arch}.{key.name}", *default)

    got: dict[str, Any] = {"arch": arch, "n_vocab": n_vocab}
    for field, value in {**KEYS, **get_arch(arch).HPARAMS}.items():
        got[field] = read(field, value) if isinstance(value, Key) else value
    got["learned_positions"] = "position_embd.weight" in file.tensors
    n_head = got["n_head"]
    _check(file, arch, n_head >= 1, f"attention.head_count = {n_head}", "at least 1")
    for field, key in (
        ("n_head_kv", Key("attention.head_count_kv", n_head)),
        ("head_dim", Key("attention.key_length", got["n_embd"] // n_head)),
    ):
        got.setdefault(field, read(field, key))
    got.setdefault("n_rot", read("n_rot", Key("rope.dimension_count", got["head_dim"])))
    scaling = file.get_str(f"{arch}.rope.scaling.type", "linear")
    _check(file, arch, scaling in ("none", "linear"), f"rope scaling {scaling!r}", "none or linear")
    factor = file.get_float(f"{arch}.rope.scaling.factor", 1.0)
    _check_float(file, arch, "rope.scaling.factor", factor)
    experts = file.get_int(f"{arch}.expert_count", 0)
    _check(file, arch, experts == 0, f"{experts} experts", "none")
    hp = HParams(**got, rope_freq_scale=1.0 if scaling == "none" else 1.0 / factor)
    for name, most in _LIMITS.items():
        value = getattr(hp, name)
        _check(file, arch, 1 <= value <= most, f"{name} = {value}", f"1 to {most}")
    _check(
        file, arch, hp.n_head % hp.n_head_kv == 0,
        f"{hp.n_head} heads over {hp.n_head_kv} key-value heads", "a multiple",
    )  # fmt: skip
    _check(
        file, arch, hp.n_rot <= hp.head_dim and hp.n_rot % 2 == 0 and hp.head_dim % 8 == 0,
        f"head size {hp.head_dim}, {hp.n_rot} rotated",
        "a multiple of 8; rotated: even, at most all",
    )  # fmt: skip
    _check_float(file, arch, "norm epsilon", hp.norm_eps)
    _check_float(file, arch, "rope.freq_base", hp.rope_freq_base)
    return hp


_TYPES = {field.name: str(field.type) for field in fields(HParams)}


def _check(file: GGUFFile, arch: str, ok: bool, got: str, wanted: str) -> None:
    if not ok:
        raise ModelError(
            f"{file.path}: {arch} model with {got}, want {wanted}; the metadata is damaged, "
            f"or this variant is not supported"
        )


def _check_float(file: GGUFFile, arch: str, name: str, value: float) -> None:
    ok = _MIN_FLOAT <= value <= _MAX_FLOAT
    _check(file, arch, ok, f"{name} = {value}", f"{_MIN_FLOAT:g} to {_MAX_FLOAT:g}")
