"""Hyperparameters: defaults, and errors of one line for illegal values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.errors import GGUFError
from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Model
from pyllama.arch import arch_of
from pyllama.errors import ModelError
from pyllama.hparams import HParams
from pyllama.hparams_reader import read_hparams

from .models import Spec, random_weights, write_model

f32, f64 = np.float32, np.float64


def read(path: Path, metadata: dict[str, Any]) -> HParams:
    write_gguf(path, {k: v for k, v in metadata.items() if v is not None}, {})
    file = GGUFFile(path)
    return read_hparams(file, 261, arch_of(file).HPARAMS)


def test_values_and_defaults(tmp_path: Path) -> None:
    full = Spec(head_dim=16, n_rot=8, freq_base=5e5, factor=4.0, eps=0.25).metadata()
    hp = read(tmp_path / "x.gguf", full)
    wanted = HParams(
        arch="llama", n_ctx_train=256, n_embd=32, n_layer=2, n_ff_arr=(48, 48),
        n_head_arr=(4, 4), n_head_kv_arr=(2, 2), head_dim_arr=(16, 16), head_dim_v_arr=(16, 16),
        n_rot_arr=(8, 8), n_vocab=261,
        norm_eps=0.25, rope_freq_base=5e5,
        rope_freq_scale=0.25,
        swa_period=0,
    )  # fmt: skip
    assert hp == wanted and (hp.n_embd_q, hp.n_embd_k) == (64, 32)
    needed = ("architecture", "_length", "block_count", "head_count")
    few = {k: v for k, v in full.items() if k.endswith(needed) and "key" not in k}
    defaults = {
        "n_head_kv_arr": (4, 4), "head_dim_arr": (8, 8), "head_dim_v_arr": (8, 8),
        "n_rot_arr": (8, 8), "norm_eps": 1e-5,
        "rope_freq_base": 1e4, "rope_freq_scale": 1.0,
    }  # fmt: skip
    assert read(tmp_path / "x.gguf", few) == dataclasses.replace(wanted, **defaults)
    for key in few.keys() - {"general.architecture"}:  # the writer always writes that one
        with pytest.raises(GGUFError, match=f"'{key}' is missing") as error:
            read(tmp_path / "y.gguf", {**few, key: None})
        assert "\n" not in str(error.value)


EXPERTS = {"expert_count": 8, "expert_used_count": 2}
BAD = {
    **{
        f"{key}={value}": {key: value}
        for key in (
            "context_length", "embedding_length", "block_count", "feed_forward_length",
            "attention.head_count", "attention.head_count_kv", "attention.key_length",
            "rope.dimension_count",
        )
        for value in (0, -1, 1 << 31, 1 << 62)
    },
    **{
        f"{key}={value}": {key: f64(value)}
        for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor")
        for value in ("nan", "inf", "-inf", "0", "-1", "1e-300", "1e300")
    },
    "kv-heads-do-not-divide": {"attention.head_count_kv": 3},
    "more-kv-heads": {"attention.head_count_kv": 8},
    "more-heads-than-columns": {"attention.head_count": 33, "attention.key_length": None},
    "odd-rotation": {"rope.dimension_count": 7},
    "more-than-a-head-turns": {"rope.dimension_count": 10},
    **{
        f"{key}={value}": {key: f64(value)}
        for key in (
            "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "expert_weights_scale",
        )
        for value in ("nan", "inf", "0", "-1")
    },
    **{
        f"{key}={value}": {key: value}
        for key in (
            "rope.scaling.original_context_length", "attention.sliding_window", "expert_count",
        )
        for value in (-1, 1 << 31, 1 << 62)
    },
    "unknown-scaling": {"rope.scaling.type": "abacus"},
    "yarn_ext_factor=inf": {"rope.scaling.yarn_ext_factor": f64("inf")},
    "yarn_ext_factor=nan": {"rope.scaling.yarn_ext_factor": f64("nan")},
    "yarn-of-base-1": {"rope.scaling.type": "yarn", "rope.freq_base": f64(1)},
    "unknown-activation": {"hidden_act": "tanh"},
    "experts-none-used": {"expert_count": 8},
    "experts-too-many-used": {"expert_count": 8, "expert_used_count": 9},
    "experts-in-unequal-groups": {**EXPERTS, "expert_group_count": 3},
    "experts-of-no-columns": {**EXPERTS, "expert_feed_forward_length": 0},
    "experts-of-too-many-columns": {**EXPERTS, "expert_feed_forward_length": 1 << 40},
    "experts-chosen-by-no-known-function": {**EXPERTS, "expert_gating_func": 9},
}  # fmt: skip


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_a_value_out_of_range(tmp_path: Path, changes: dict[str, Any]) -> None:
    metadata = Spec().metadata() | {f"llama.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelError) as error:
        read(tmp_path / "x.gguf", metadata)
    message = str(error.value)
    assert "\n" not in message and "x.gguf" in message and "want" in message


OWN = {  # keys that only some architectures read
    "gpt2": {"attention.scale": "float", "attention.layer_norm_epsilon": "float"},
    "mpt": {"attention.max_alibi_bias": "float", "attention.clamp_kqv": "float"},
    "opt": {"token_embedding_length": "int", "attention.post_norm": "bool"},
    "falcon": {"attention.max_alibi_bias": "float", "use_parallel_residual": "bool"},
}
HOSTILE: dict[str, list[Any]] = {
    "float": [*(f64(x) for x in ("nan", "inf", "-inf", "-1", "1e-300", "1e300")), "much"],
    "int": [-1, 1 << 31, 1 << 62, "many", 0.5],
    "bool": [2, "yes", 0.0],
}
CASES = [
    (arch, key, value)
    for arch, keys in OWN.items()
    for key, kind in keys.items()
    for value in HOSTILE[kind]
]


@pytest.mark.parametrize(("arch", "key", "value"), CASES, ids=lambda x: str(x))
def test_keys_of_some_architectures(tmp_path: Path, arch: str, key: str, value: Any) -> None:
    metadata = {k.replace("llama.", f"{arch}."): v for k, v in Spec().metadata().items()}
    metadata |= {"general.architecture": arch}
    assert read(tmp_path / "x.gguf", metadata).arch == arch
    with pytest.raises((ModelError, GGUFError)) as error:
        read(tmp_path / "x.gguf", metadata | {f"{arch}.{key}": value})
    message = str(error.value)
    assert "\n" not in message and "x.gguf" in message and ("want" in message or key in message)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", -1),
        ("attention.sliding_window_pattern", -1),
        ("attention.sliding_window_pattern", 1 << 20),
        ("attention.scale", f64("nan")),
        ("attention.scale", f64(-1)),
        ("rope.freq_base_swa", f64("inf")),
        ("final_logit_softcapping", f64("nan")),
        ("final_logit_softcapping", f64(-30)),
    ],
)
def test_a_value_of_gemma3_out_of_range(tmp_path: Path, key: str, value: Any) -> None:
    metadata = {k.replace("llama.", "gemma3."): v for k, v in Spec().metadata().items()}
    metadata |= {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 8}
    assert read(tmp_path / "x.gguf", metadata).window(0) == 8
    with pytest.raises(ModelError, match="want"):
        read(tmp_path / "x.gguf", metadata | {f"gemma3.{key}": value})


@pytest.mark.parametrize(
    "changes", [{"block_count": "two"}, {"block_count": 2.0}, {"embedding_length": [32, 32]}]
)
def test_a_value_of_another_type(tmp_path: Path, changes: dict[str, Any]) -> None:
    metadata = Spec().metadata() | {f"llama.{key}": value for key, value in changes.items()}
    with pytest.raises(GGUFError, match="expected an integer") as error:
        read(tmp_path / "x.gguf", metadata)
    assert "\n" not in str(error.value)


SIZES = ("feed_forward_length", "attention.head_count", "attention.head_count_kv")


@pytest.mark.parametrize("key", SIZES)
def test_an_array_of_equal_values_is_the_number(tmp_path: Path, key: str) -> None:
    metadata = Spec().metadata()
    number = read(tmp_path / "x.gguf", metadata)
    for type in (np.int32, np.uint32, np.int64):
        array = np.full(2, metadata[f"llama.{key}"], type)
        assert read(tmp_path / "x.gguf", metadata | {f"llama.{key}": array}) == number


def test_layers_of_different_sizes(tmp_path: Path) -> None:
    values = dict(zip(SIZES, ([48, 64], [4, 8], [2, 4]), strict=True))
    metadata = Spec().metadata() | {f"llama.{k}": np.array(v) for k, v in values.items()}
    hp = read(tmp_path / "x.gguf", metadata)
    got = [(x.n_ff, x.n_head, x.n_head_kv, x.n_embd_qkv) for x in map(hp.of_layer, range(2))]
    assert got == [(48, 4, 2, 64), (64, 8, 4, 128)]
    for name, key in (("n_ff", SIZES[0]), ("n_embd_q", SIZES[1]), ("n_embd_k", SIZES[2])):
        with pytest.raises(ModelError, match=f"layers of this llama model differ in {key} ") as e:
            getattr(hp, name)
        assert "\n" not in str(e.value)


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("values", [[48], [48, 48, 48], [48, 0], [-1, 48], [48, 1 << 30], [1.0, 1]])
def test_an_array_of_illegal_sizes(tmp_path: Path, key: str, values: list[Any]) -> None:
    metadata = Spec().metadata() | {f"llama.{key}": np.array(values)}
    with pytest.raises((ModelError, GGUFError)) as error:
        read(tmp_path / "x.gguf", metadata)
    message = str(error.value)
    assert "\n" not in message and ("want" in message or "expected an integer" in message)


def test_scaling_none_ignores_the_factor(tmp_path: Path) -> None:
    metadata = Spec(factor=8.0).metadata()
    assert read(tmp_path / "x.gguf", metadata).rope_freq_scale == 0.125
    metadata["llama.rope.scaling.type"] = "none"
    assert read(tmp_path / "x.gguf", metadata).rope_freq_scale == 1.0


def test_the_older_key_of_a_factor(tmp_path: Path) -> None:
    metadata = Spec().metadata() | {"llama.rope.scaling.factor": None}
    metadata["llama.rope.scale_linear"] = 4.0
    assert read(tmp_path / "x.gguf", metadata).rope_freq_scale == 0.25
    metadata["llama.rope.scaling.factor"] = 8.0
    assert read(tmp_path / "x.gguf", metadata).rope_freq_scale == 0.125


def test_rope_of_a_layer(tmp_path: Path) -> None:
    metadata = Spec(factor=4.0).metadata()
    plain = read(tmp_path / "x.gguf", metadata).rope(0)
    assert (plain["n_ctx_orig"], plain["ext_factor"], plain["freq_scale"]) == (256, 0.0, 0.25)
    keys = {
        "type": "yarn", "original_context_length": 64, "attn_factor": f32(0.5),
        "yarn_attn_factor": f32(3), "yarn_beta_fast": f32(16), "yarn_beta_slow": f32(2),
    }  # fmt: skip
    hp = read(
        tmp_path / "x.gguf", metadata | {f"llama.rope.scaling.{k}": v for k, v in keys.items()}
    )
    scaling = {
        "n_ctx_orig": 64, "ext_factor": 1.0, "attn_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0
    }  # fmt: skip
    assert hp.rope(0) == plain | scaling
    hp = dataclasses.replace(hp, n_swa=8, swa_period=2, rope_freq_base_swa=500.0)
    assert (hp.rope(0)["freq_base"], hp.rope(0)["freq_scale"]) == (500.0, 1.0)
    assert hp.rope(1) == plain | scaling


def test_experts(tmp_path: Path) -> None:
    metadata = Spec().metadata() | {f"llama.{key}": value for key, value in EXPERTS.items()}
    hp = read(tmp_path / "x.gguf", metadata)
    assert (hp.n_expert, hp.n_expert_used, hp.n_ff_exp, hp.n_ff) == (8, 2, 48, 0)
    assert hp.expert_weights_norm and hp.expert_weights_scale == 1
    metadata["llama.expert_feed_forward_length"] = 24
    assert read(tmp_path / "x.gguf", metadata).n_ff_exp == 24


def test_an_unknown_architecture(tmp_path: Path) -> None:
    spec = Spec()
    keys = {k.replace("llama", "lama"): v for k, v in spec.metadata().items()}
    keys["general.architecture"] = "lama"
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), metadata=keys)
    with pytest.raises(ModelError, match="architecture 'lama' is not supported"):
        Model.load(path)
