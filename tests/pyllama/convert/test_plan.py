"""Mapping of a checkpoint's tensors to GGUF tensors, for an architecture made for these tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pyllama.arch import Arch
from pyllama.convert.files.safetensors import read_safetensors
from pyllama.convert.plan import ConvertedTensor, check_missing, find_arch, plan_tensors
from pyllama.errors import ModelError
from pyllama.hparams import HParams
from pyllama.mapping.rules import Array, Config, Convert, Tensors

from ...tiers import some
from .folders import write_safetensors

NAMES = {
    "m.embed.weight": "token_embd.weight",
    "m.layers.{i}.norm.*": "blk.{i}.attn_norm.*",
    "m.layers.{i}.qkv.weight": "blk.{i}.attn_qkv.weight",
    "m.layers.{i}.experts.{e}.up.weight": "blk.{i}.ffn_up_exps.weight",
    "head.weight": "output.weight",
}
TENSORS = {
    "blk.{i}.attn_norm.weight": ("n_embd",),
    "blk.{i}.attn_norm.bias?": ("n_embd",),
    "blk.{i}.attn_q.weight": ("n_embd", "n_embd"),
    "blk.{i}.attn_k.weight": ("n_embd", "n_embd"),
    "blk.{i}.ffn_up_exps.weight": ("n_embd", "n_ff", "n_expert"),
    "token_embd.weight": ("n_embd", "n_vocab"),
    "output.weight?": ("n_embd", "n_vocab"),
    "factors.weight?": ("n_embd",),
}


def change(name: str, x: Array, config: Config) -> Tensors:
    if "attn_qkv" in name:
        q, k = x.reshape(2, -1, x.shape[1])
        return {name.replace("qkv", "q"): q, name.replace("qkv", "k"): k}
    return {name: x.T if "exps" in name else x}


def extra(config: Config) -> Tensors:
    names = [name for name in ("factors", "rope_freqs") if name in config]
    return {f"{name}.weight": np.ones(4, np.float32) for name in names}


CONVERT = Convert(
    ("Mine",), NAMES, lambda config: {}, change, extra=extra, ignored=("*.inv_freq",), prefix="m.",
    other_media=("*eyes.*",),
)  # fmt: skip
ARCH = cast(Arch, SimpleNamespace(TENSORS=TENSORS, CONVERT=CONVERT))


SIZES = SimpleNamespace(n_layer=2, n_embd=4, n_ff=6, n_expert=3, n_vocab=8)
SIZES.of_layer = lambda i: SIZES
SIZES.size = lambda name: getattr(SIZES, name)
HPARAMS = cast(HParams, SIZES)


def checkpoint(n_layer: int = 2, n_expert: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def x(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    tensors = {"head.weight": x(8, 4), "m.embed.weight": x(8, 4)}
    for i in reversed(range(n_layer)):
        tensors[f"m.layers.{i}.inv_freq"] = x(2)
        tensors[f"m.layers.{i}.norm.weight"] = x(4)
        tensors[f"m.layers.{i}.qkv.weight"] = x(8, 4)
        for e in range(n_expert):
            tensors[f"m.layers.{i}.experts.{e}.up.weight"] = x(4, 6)
    return tensors


def plan(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> list[ConvertedTensor]:
    stored = read_safetensors(write_safetensors(folder / "model.safetensors", tensors))
    return plan_tensors(folder, stored, config, ARCH)


def test_tensor_names_order_and_values(tmp_path: Path) -> None:
    tensors = checkpoint()
    planned = plan(tmp_path, tensors, factors=1)
    layer = ["attn_norm", "attn_q", "attn_k", "ffn_up_exps"]
    wanted = [f"blk.{i}.{part}.weight" for i in range(2) for part in layer]
    wanted += ["token_embd.weight", "output.weight", "factors.weight"]
    assert [one.name for one in planned] == wanted
    by_name = {one.name: one for one in planned}
    assert all(one.shape == (4, 4) for one in planned if "attn_k" in one.name)
    values = {name: [part() for part in one.parts] for name, one in by_name.items()}
    (k,) = values["blk.1.attn_k.weight"]
    np.testing.assert_array_equal(k, tensors["m.layers.1.qkv.weight"][4:])
    experts = by_name["blk.0.ffn_up_exps.weight"]
    assert experts.shape == (3, 6, 4) and len(values[experts.name]) == 3
    for e, value in enumerate(values[experts.name]):
        np.testing.assert_array_equal(value, tensors[f"m.layers.0.experts.{e}.up.weight"].T)
    assert values["factors.weight"][0].tolist() == [1, 1, 1, 1]


def test_products_and_names_by_layer(tmp_path: Path) -> None:
    """Scores of Kimi-K3 are products of two tensors, and gates have names by the kind of layer."""
    norm, proj = np.arange(4, dtype=np.float32), np.ones((1, 4), np.float32) * 3
    convert = replace(
        CONVERT,
        tensors={"{i}.n": "blk.{i}.score.weight[0]", "{i}.p": "blk.{i}.score.weight[1]",
                 "{i}.gate": "blk.{i}.gate"},
        products=("blk.{i}.score.weight",),
        rename=lambda name, config: name.replace("gate", config["gates"][int(name[4])]),
    )  # fmt: skip
    arch = cast(Arch, SimpleNamespace(TENSORS={}, CONVERT=convert))

    def planned(tensors: dict[str, np.ndarray]) -> dict[str, ConvertedTensor]:
        stored = read_safetensors(write_safetensors(tmp_path / "model.safetensors", tensors))
        return {x.name: x for x in plan_tensors(tmp_path, stored, {"gates": ["a", "b"]}, arch)}

    got = planned({"1.n": norm, "1.p": proj, "0.gate": proj, "1.gate": proj})
    assert {*got} == {"blk.1.score.weight", "blk.0.a", "blk.1.b"}
    score = got["blk.1.score.weight"]
    assert score.shape == (4,) and score.parts[0]().tolist() == [0, 3, 6, 9]
    for bad in ({"0.n": norm}, {"0.n": norm, "0.p": proj[:, :3]}):
        with pytest.raises(ModelError, match=r"'blk.0.score.weight' is the product of two tensors"):
            planned(bad)


def test_the_name_prefix_is_optional(tmp_path: Path) -> None:
    tensors = {name.removeprefix("m."): x for name, x in checkpoint().items()}
    assert len(plan(tmp_path, tensors)) == 10


def test_vision_tensors_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = checkpoint()
    eyes = {f"m.eyes.{i}.weight": tensors["head.weight"] for i in range(3)}
    assert len(plan(tmp_path, tensors)) == len(plan(tmp_path, tensors | eyes))
    (line,) = caplog.messages
    assert "the text model is converted: 3 tensors are skipped, such as 'm.eyes.0" in line


def test_tied_output(tmp_path: Path) -> None:
    tensors = checkpoint()
    names = [one.name for one in plan(tmp_path, tensors, tie_word_embeddings=True)]
    assert "output.weight" in names  # a matrix of its own is used in any case
    tensors["head.weight"] = tensors["m.embed.weight"]
    names = [one.name for one in plan(tmp_path, tensors, tie_word_embeddings=True)]
    assert "output.weight" not in names and "token_embd.weight" in names
    stored = read_safetensors(tmp_path / "model.safetensors")
    stored["head.weight"] = stored["m.embed.weight"]  # PyTorch stores a shared tensor once
    assert len(plan_tensors(tmp_path, stored, {}, ARCH)) == len(names)
    del tensors["m.embed.weight"]  # without an embedding, the output is not a duplicate
    assert "output.weight" in [one.name for one in plan(tmp_path, tensors)]


def test_rope_factors_that_the_graph_does_not_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"RoPE scaling needs 'rope_freqs.weight'"):
        plan(tmp_path, checkpoint(), rope_freqs=True)


def without(tensors: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: x for key, x in tensors.items() if key != name}


def test_invalid_tensors(tmp_path: Path) -> None:
    good, x = checkpoint(), np.zeros((4, 4), np.float32)

    def refused(tensors: dict[str, np.ndarray], message: str) -> None:
        with pytest.raises(ModelError, match=message):
            check_missing(tmp_path, plan(tmp_path, tensors), HPARAMS, ARCH)

    refused(good | {"m.layers.0.gate.weight": x}, "'m.layers.0.gate.weight' is unknown in a Mine")
    refused(good | {"m.layers.01.norm.weight": x}, "is unknown in a")
    refused(good | {"embed.weight": x}, "both become 'token_embd.weight'")
    name = "m.layers.1.experts.1.up.weight"
    refused(without(good, name), "stacked from 2 experts, but expert 1 is missing")
    refused(good | {name: x}, r"has the shape \[4, 4\], but 'm.*0.up.weight' \[4, 6\]")
    refused(good | {"m.layers.0.qkv.weight": x[:3]}, r"of shape \[3, 4\] cannot be converted to")
    refused(good | {"m.layers.0.qkv.weight": x[0]}, r"of shape \[4\] cannot be converted to")
    name = "m.layers.1.norm.weight"
    refused(without(good, name), rf"for 'blk.1.attn_norm.weight' \(from '{name}'\) is missing")
    refused(
        without(good, "m.layers.1.qkv.weight"), "the tensor for 'blk.1.attn_q.weight' .*is missing"
    )
    refused(without(good, "m.embed.weight"), "from 'm.embed.weight'.* is missing")
    for e in range(3):
        good = without(good, f"m.layers.0.experts.{e}.up.weight")
    refused(good, "from 'm.layers.0.experts.0.up.weight'.* is missing")


@pytest.mark.parametrize("named", some([None, "LlamaForCausalLM", [], ["NoSuchModel"], [1]], 2))
def test_unknown_architectures(tmp_path: Path, named: Any) -> None:
    with pytest.raises(
        ModelError, match=r"not supported; docs/architectures.md.*docs/add-a-model.md"
    ):
        find_arch(tmp_path, {"architectures": named})
    assert find_arch(tmp_path, {"architectures": ["X", "LlamaForCausalLM"]})[0] == "llama"
