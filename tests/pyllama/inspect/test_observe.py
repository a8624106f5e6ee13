"""Observed nodes have the bits of an ordinary run, on any device."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.backend.reference.backend import ReferenceBackend
from pyggml.cgraph import CGraph
from pyggml.dtype import GGMLType
from pyggml.errors import Aborted, ComputeError
from pyggml.ops.op import OPS
from pyggml.sched import Sched, Schedule
from pyggml.tensor import Tensor
from pyllama import Batch, Context, Model
from pyllama.errors import BatchError
from pyllama.inspect.node_text import NodeFiles, node_text
from pyllama.inspect.observe import observe, watch
from tests.pyggml.sched.fake_device import DeferredDevice, FakeDevice, HostOnly

from ..models import Spec, random_weights, write_model

SPEC = Spec()
TOKENS = np.random.default_rng(7).integers(0, 261, 37).tolist()  # the next bucket is 40


@pytest.fixture(scope="module", params=["F32", "Q8_0"])
def path(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    type = GGMLType[request.param]
    spec = SPEC if type == GGMLType.F32 else Spec(n_ff=64)
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec), type)


@pytest.fixture(scope="module", params=["repacked", "plain"])
def model(request: Any, path: Path) -> Model:
    return Model.load(path, repack=request.param == "repacked")


def new(model: Model, **options: Any) -> Context:
    return Context(model, **{"n_ctx": 128, "n_threads": 1, **options})


def decoded(context: Context, tokens: list[int] = TOKENS, cut: int = 30) -> np.ndarray:
    """Logits of a prompt, of single tokens after it, and of a last part."""
    rows = []
    for part in (tokens[:cut], tokens[cut : cut + 1], tokens[cut + 1 :]):
        context.decode(Batch(part, logits="all"))
        rows.append(context.logits.copy())
    return np.concatenate(rows)


# --- observe --------------------------------------------------------------------------------------


def test_hidden_states_agree_with_the_logits(model: Model) -> None:
    context = new(model)
    states = observe(context, TOKENS, ["l_out-*", "result_*"])
    assert list(states) == ["l_out-0", "l_out-1", "result_norm", "result_output"]
    for name, value in states.items():
        n = model.hparams.n_vocab if name == "result_output" else model.hparams.n_embd
        assert value.shape == (37, n) and value.dtype == np.float32 and np.isfinite(value).all()
    np.testing.assert_array_equal(states["result_output"], context.logits)
    norm = states["l_out-1"].astype(np.float64)
    norm /= np.sqrt((norm**2).mean(axis=1, keepdims=True) + SPEC.eps)
    weight = model.weights["output_norm.weight"].numpy()
    np.testing.assert_allclose(states["result_norm"], norm * weight, rtol=1e-4, atol=1e-5)


def test_observing_does_not_change_the_decode(model: Model) -> None:
    context = new(model)
    everything = observe(context, TOKENS[:30])
    assert len(everything) > 40 and any("(reshaped)" in name for name in everything)
    np.testing.assert_array_equal(context.logits, everything["result_output"])
    context.decode(Batch(TOKENS[30:], logits="all"))
    np.testing.assert_array_equal(context.logits, decoded(new(model))[30:])


def test_one_token_and_the_last_row(model: Model) -> None:
    context = new(model)
    first = observe(context, TOKENS[:5], ["l_out-*"], logits="last")
    assert [v.shape[0] for v in first.values()] == [5, 1]
    one = observe(context, TOKENS[5:6], ["l_out-*"])
    every = observe(new(model), TOKENS[:6], ["l_out-*"])
    for name in every:
        np.testing.assert_array_equal(one[name], every[name][5:])


def test_observe_refuses_long_prompts_and_unknown_nodes(model: Model) -> None:
    context = new(model, n_ubatch=8)
    with pytest.raises(BatchError, match="37 tokens to observe at once, but n_ubatch is 8"):
        observe(context, TOKENS)
    with pytest.raises(BatchError, match=r"no node matches h_out-\*; there are .*attn_norm-0"):
        observe(context, TOKENS[:3], ["h_out-*"])


def test_watch_is_called_for_each_ubatch(model: Model) -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []
    watch(
        new(model, n_ubatch=16),
        TOKENS,
        lambda node, values: seen.append((node.name, values.shape)),
        name_filter=lambda name: name == "l_out-0",
    )
    n_embd = model.hparams.n_embd
    assert seen == [("l_out-0", (1, 1, n, n_embd)) for n in (16, 16, 5)]


def test_stop_on_nan_aborts_and_leaves_the_kv_cache_unchanged(path: Path) -> None:
    model = Model.load(path, repack=False)
    weight = model.weights["blk.1.ffn_norm.weight"]
    poisoned = Tensor(weight.type, weight.ne).set_name(weight.name)
    buffer = HostOnly().buffer_type().alloc_buffer(weight.nbytes)
    poisoned.buffer, poisoned.data = buffer, buffer.base
    poisoned.set(np.where(np.arange(weight.ne[0]) == 3, np.nan, weight.numpy()))
    model.weights["blk.1.ffn_norm.weight"] = poisoned
    context, seen = new(model), []
    with pytest.raises(ComputeError, match="'ffn_norm-1' = MUL has 5 NaN among its"):
        watch(context, TOKENS[:5], lambda n, v: seen.append(n.name), logits="all", stop_on_nan=True)
    assert seen[-1] == "ffn_norm-1" and context.kv.seq_pos_max(0) == -1


def test_an_error_in_the_callback_reaches_the_caller(model: Model) -> None:
    context = new(model)

    def callback(node: Tensor, values: np.ndarray) -> None:
        raise KeyError(node.name)

    with pytest.raises(KeyError, match="attn_norm-1"):
        watch(context, TOKENS, callback, name_filter=lambda name: name == "attn_norm-1")
    np.testing.assert_array_equal(decoded(context), decoded(new(model)))


def test_abort_reaches_the_runner(model: Model) -> None:
    context = new(model, n_ubatch=8)
    with pytest.raises(Aborted):
        watch(context, TOKENS, lambda node, values: context.abort())


# --- a model on two devices -----------------------------------------------------------------------


def run_on(
    model: Model, devices: list[Any], pins: Callable[[Sched, CGraph], dict[Tensor, Any]] | None
) -> tuple[np.ndarray, list[Schedule]]:
    """Logits of a model that runs on these devices too, and the schedules of its decodes."""
    there = copy.copy(model)
    there.devices = (*devices, HostOnly(), ReferenceBackend())
    context = new(there)
    if pins is not None:
        context.pinned_nodes = lambda graph: pins(context.sched, graph)
    context.reset()  # applies the pins
    return decoded(context), [graph.schedule for graph in context._graphs.values()]


@cache
def decoded_alone(model: Model) -> np.ndarray:
    return decoded(new(model))


@given(st.integers(0, 1 << 30), st.booleans())
@settings(max_examples=5)
def test_random_device_for_each_op_keeps_the_bits(model: Model, seed: int, deferred: bool) -> None:
    device = (DeferredDevice if deferred else FakeDevice)(
        set(OPS) - set(np.random.default_rng(seed).choice(sorted(OPS), 2))
    )

    def pins(sched: Sched, graph: CGraph) -> dict[Tensor, Any]:
        rng = np.random.default_rng(seed)
        return {node: sched.backends[int(rng.integers(2))] for node in graph.nodes}

    got, made = run_on(model, [device], pins)
    np.testing.assert_array_equal(got, decoded_alone(model))
    assert len(made) == 3
    assert all(len(s.splits) > 4 and sum(len(x.copies) for x in s.splits) > 4 for s in made)


@pytest.fixture(scope="module")
def four_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(n_layer=4)
    weights = random_weights(spec, seed=1)
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, weights, GGMLType.F16)


@given(st.sets(st.integers(0, 3)))
@settings(max_examples=4)
def test_layers_on_another_device_keep_the_bits(four_layers: Path, layers: set[int]) -> None:
    model = Model.load(four_layers)
    want = decoded(new(model))
    device = DeferredDevice()
    for name, weight in list(model.weights.items()):
        if name.startswith(tuple(f"blk.{i}." for i in layers)):
            moved = Tensor(weight.type, weight.ne).set_name(name)
            moved.buffer = device.buffer_type().alloc_buffer(weight.nbytes)
            moved.data = moved.buffer.base
            moved.buffer.set_tensor(moved, weight.bytes())
            model.weights[name] = moved
    got, made = run_on(model, [device], None)
    np.testing.assert_array_equal(got, want)
    if layers:
        assert sum(ops.count("MUL_MAT") for ops in device.compiled) >= 3 * 7 * len(layers)
    assert (not any(split.copies for split in made[0].splits)) == (not layers)


def test_reference_backend_runs_unsupported_ops(model: Model) -> None:
    there, without = copy.copy(model), HostOnly(set(OPS) - {"GLU", "ROPE"})
    there.devices = (without, ReferenceBackend())
    got = decoded(new(there))
    np.testing.assert_allclose(got, decoded(new(model)), rtol=0.02, atol=0.02)
    assert not any({"GLU", "ROPE"} & set(ops) for ops in without.compiled)


# --- text and files -------------------------------------------------------------------------------


def tensor(name: str, *ne: int, type: GGMLType = GGMLType.F32) -> Tensor:
    return Tensor(type, (*ne, *(1,) * (4 - len(ne)))).set_name(name)  # type: ignore[arg-type]


def test_printed_text_matches_llama_cpp() -> None:
    node = tensor("ffn_up-0", 7, 2)
    node.op = OPS["MUL_MAT"]
    node.src = (tensor("blk.0.ffn_up.weight", 4, 7), tensor("ffn_norm-0", 4, 2))
    values = np.arange(14, dtype=np.float32).reshape(1, 1, 2, 7) - 3
    assert node_text(node, values) == (
        "common_debug_cb_eval:                 ffn_up-0 = (f32)    MUL_MAT("
        "blk.0.ffn_up.weight{4, 7, 1, 1}, ffn_norm-0{4, 2, 1, 1}}) = {7, 2, 1, 1}\n"
        "    [\n"
        "        [\n"
        "            [     -3.0000,      -2.0000,      -1.0000,    ...,"
        "       1.0000,       2.0000,       3.0000  ],\n"
        "            [      4.0000,       5.0000,       6.0000,    ...,"
        "       8.0000,       9.0000,      10.0000  ],\n"
        "        ],\n"
        "    ]\n"
        "    sum = 49.000000\n"
    )
    many = node_text(tensor_of("SILU", 1, 8, 9), np.zeros((1, 9, 8, 1), np.float32))
    assert many.count("..., \n") == 7 and many.count("[") == 1 + 6 + 36
    assert ") = (f16)" not in many and "SILU(" in many


def tensor_of(kind: str, *ne: int) -> Tensor:
    node = tensor("x", *ne)
    node.op, node.op_params = OPS["UNARY"], {"kind": kind.lower()}
    return node


def test_file_names_are_safe_and_unique(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    names = ["Qcur-0 (roped)", "../../etc", "Qcur-0_(roped)", "", "a" * 63, "ß/\\:*?"]
    with NodeFiles(folder) as files:
        for i, name in enumerate(names):
            node = tensor_of("silu", 3, 2).set_name(name)
            files.write(node, np.full((1, 1, 2, 3), i, np.int32))
    index = json.loads((folder / "index.json").read_text())
    assert [entry["name"] for entry in index] == names
    assert {p.name for p in folder.iterdir()} == {"index.json", *(e["file"] for e in index)}
    assert len(index) == 6 and index[0]["file"] == "0000_Qcur-0_roped.npy"
    for i, entry in enumerate(index):
        array = np.load(folder / entry["file"])
        assert array.dtype == np.float32 and array.shape == (2, 3) and (array == i).all()
    assert index[0]["op"] == "SILU" and index[0]["ne"] == [3, 2, 1, 1]
