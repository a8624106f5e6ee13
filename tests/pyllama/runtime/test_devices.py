"""Models on other devices give the same greedy text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend import registry
from pyggml.backend.interface import Backend
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, BackendError, ComputeError
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.hub.demo import demo_model_path
from pyllama.runtime.decode_graph import DecodeGraph
from pyllama.runtime.devices import Offload, layer_devices, parse_devices
from pyllama.runtime.offload import Planner
from pyllama.runtime.params import ContextParams
from pyllama.runtime.state import load_state, save_state
from tests.pyggml.sched.fake_device import DeferredDevice, FakeDevice, HostOnly, Log
from tests.tiers import long, only, some

from ..arch.checkpoints import conversions, long_but, own_graphs, write_checkpoint
from ..models import Spec, random_weights, write_model
from ..sparsity.files import VARIANTS as SPARSE
from ..sparsity.files import sparse_file

PROMPT = [7, 42, 3, 99, 12]
DEVICES: dict[str, Callable[[], str | Backend]] = {
    "reference": lambda: "reference",
    "fake": FakeDevice,
    "deferred": DeferredDevice,
}
SAME_BITS = ("fake", "deferred")  # they compute all nodes, by the CPU's kernels


def greedy(model: Model, n: int = 6, prompt: list[int] = PROMPT, **sizes: Any) -> list[int]:
    """The likeliest tokens after a prompt."""
    context = Context(model, n_ctx=128, n_threads=1, **sizes)
    context.decode(Batch(prompt))
    tokens = [context.argmax_ith(-1)]
    while len(tokens) < n:
        context.decode_token(tokens[-1])
        tokens.append(context.argmax_ith(-1))
    return tokens


def same_on(name: str, path: Path, **options: Any) -> Any:
    """Check that a file's greedy text equals the CPU's; returns the device."""
    device = DEVICES[name]()
    there = Model.load(path, devices=[device], **options)
    exact = {"type_k": GGMLType.F32, "type_v": GGMLType.F32}
    assert greedy(there, **exact) == greedy(Model.load(path, **options), **exact)
    return device


BY_DEFAULT = ("falcon_7b", "gemma3", "gpt2", "llama", "qwen3moe")


GRAPHS = sorted({*own_graphs(), *BY_DEFAULT})


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that converts a variant of an architecture once."""
    return conversions(tmp_path_factory.mktemp("x"), write_checkpoint)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pair if pair[0] in BY_DEFAULT else long(pair)
        for pair in zip(GRAPHS, cycle(DEVICES), strict=False)
    ],
)
def test_every_graph_runs_on_a_device(
    converted: Callable[[str], Path], name: str, device: str
) -> None:
    there = same_on(device, converted(name))
    if device in SAME_BITS:
        ops = {op for graph in there.compiled for op in graph}
        attends = any(Model.load(converted(name), vocab_only=True).hparams.n_head_kv_arr)
        assert {"MUL_MAT", *(("SET_ROWS", "FLASH_ATTN_EXT") if attends else ())} <= ops


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", some(SPARSE, 2))
def test_sparse_models_run_on_any_device(tmp_path: Path, name: str, device: str) -> None:
    there = same_on(device, sparse_file(tmp_path, name))
    if device in SAME_BITS:
        assert {"MUL_MAT_SPARSE", "AXPY"} <= {op for graph in there.compiled for op in graph}


@pytest.mark.parametrize("n_layers", [0, 1, 2, 3, -1])
def test_some_layers_on_a_device(tmp_path: Path, n_layers: int) -> None:
    spec = Spec(tied=n_layers % 2 == 0)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), GGMLType.F16)
    device = FakeDevice()
    model = Model.load(path, devices=[device], n_gpu_layers=n_layers)
    there = {n for n, w in model.weights.items() if w.buffer and w.buffer.buft is device.buft}
    on = spec.n_layer + 1 if n_layers < 0 else n_layers
    assert ("output.weight" in there) == (on > 0) and "token_embd.weight" not in there
    layers = {int(name.split(".")[1]) for name in there if name.startswith("blk.")}
    assert layers == {*range(spec.n_layer + 1 - max(on, 1), spec.n_layer)}
    context = Context(model, n_ctx=64)
    caches = {i for i, k in context.kv.caches[0].k.items() if k.buffer.buft is device.buft}
    assert caches == layers
    assert greedy(model) == greedy(Model.load(path))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("type", some([GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_0], 2))
def test_sequences_and_states_on_a_device(tmp_path: Path, type: GGMLType, device: str) -> None:
    """All operations on a cache besides decodes: copies of cells, shifts, saved states."""
    spec = Spec(head_dim=32, n_embd=64)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))

    def run(model: Model) -> list[np.ndarray]:
        sizes = {"n_ctx": 96, "n_seq_max": 3, "type_k": type, "type_v": type, "n_threads": 1}
        context = Context(model, unified=False, **sizes)  # type: ignore[arg-type]
        rows: list[np.ndarray] = []

        def decode(tokens: list[int], seq: int) -> None:
            context.decode(Batch(tokens, seq_id=seq, logits="all"))
            rows.append(context.logits.copy())

        decode([*range(3, 19)], 0)
        context.kv.seq_cp(0, 1)  # has cells of its own: a copy
        context.kv.seq_rm(1, 4, 9)
        context.kv.seq_add(1, 9, -1, -5)  # rotates keys
        decode([30, 31], 1)
        decode([40], 0)
        save_state(context, tmp_path / "x.state", seq=1)
        other = Context(model, **sizes)  # type: ignore[arg-type]
        load_state(other, tmp_path / "x.state", seq=2)
        other.decode(Batch([50, 51], seq_id=2, logits="all"))
        return [*rows, other.logits.copy()]

    want = run(Model.load(path))
    got = run(Model.load(path, devices=[DEVICES[device]()]))
    error = max(np.sum((a - b) ** 2) / np.sum(b**2) for a, b in zip(got, want, strict=True))
    assert error <= (0 if device in SAME_BITS else 1e-3)


def test_a_device_without_attention_leaves_caches_to_the_host(tmp_path: Path) -> None:
    spec = Spec()
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    device = FakeDevice({"MUL_MAT", "GLU"})
    model = Model.load(path, devices=[device])
    context = Context(model, n_ctx=64)
    assert all(k.buffer and k.buffer.buft.is_host for k in context.kv.caches[0].k.values())
    assert greedy(model) == greedy(Model.load(path))
    assert {op for ops in device.compiled for op in ops} == {"MUL_MAT", "GLU"}


N_UBATCH = 4
LONG = [(7 * i) % 250 for i in range(5 * N_UBATCH)]


def pipelined(folder: Path, log: Log) -> Context:
    """A context with its layers on two devices that compute as late as they may."""
    spec = Spec(n_layer=4)
    path = write_model(folder / "x.gguf", spec, random_weights(spec))
    devices = [DeferredDevice(name="one", log=log), DeferredDevice(name="two", log=log)]
    model = Model.load(path, devices=[*devices, HostOnly(log=log)])
    return Context(model, n_ctx=64, n_ubatch=N_UBATCH)


def test_a_device_begins_a_ubatch_before_the_next_one_has_ended_the_last(tmp_path: Path) -> None:
    log: Log = []
    context = pipelined(tmp_path, log)
    context.decode(Batch(LONG[:N_UBATCH]))  # compiles the graph
    log.clear()
    context.decode(Batch(LONG[N_UBATCH:]))
    n = len(LONG) // N_UBATCH - 1
    begun = [i for i, e in enumerate(log) if e[:2] == ("enqueue", "one")]
    ended = [i for i, e in enumerate(log) if e[:2] == ("run", "two")]
    assert len(begun) == len(ended) == n
    assert all(start < end for start, end in zip(begun[1:], ended[:-1], strict=True))
    assert not [i for i, e in enumerate(log) if e[0] == "synchronize" and i < begun[-1]]
    want = Context(Model.load(context.model.path), n_ctx=64)
    want.decode(Batch(LONG[:N_UBATCH]))
    want.decode(Batch(LONG[N_UBATCH:]))
    np.testing.assert_array_equal(context.logits, want.logits)


@pytest.mark.parametrize("logits", ["last", "all"])
@pytest.mark.parametrize("n", some([3, 7, 8, 17, 20], 2))
def test_ubatches_in_flight_have_the_bits_of_one_after_the_other(
    tmp_path: Path, n: int, logits: str
) -> None:
    context = pipelined(tmp_path, [])
    want = Context(Model.load(context.model.path), n_ctx=64)
    for tokens in (LONG[:n], LONG[:2], LONG[:n]):
        for each in (context, want):
            each.decode(Batch(tokens, logits=logits))
        np.testing.assert_array_equal(context.logits, want.logits)


def test_a_failure_drops_all_ubatches_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = pipelined(tmp_path, [])
    context.decode(Batch(LONG[:N_UBATCH]))
    calls: list[object] = []

    def fail_third(graph: DecodeGraph, *ubatch: Any) -> None:
        calls.append(graph)
        if len(calls) == 3:
            raise ComputeError("on purpose")
        enqueue(graph, *ubatch)

    enqueue = DecodeGraph.enqueue
    with monkeypatch.context() as patch:
        patch.setattr(DecodeGraph, "enqueue", fail_third)
        with pytest.raises(ComputeError, match="on purpose"):
            context.decode(Batch(LONG[N_UBATCH:]))
    assert context.kv.length(0) == N_UBATCH and len(context.logits) == 0
    context.decode(Batch(LONG[N_UBATCH:]))
    want = Context(Model.load(context.model.path), n_ctx=64)
    want.decode(Batch(LONG))
    np.testing.assert_array_equal(context.logits, want.logits)


def test_names_of_devices() -> None:
    fake = FakeDevice()
    assert parse_devices(None) == parse_devices("none") == ("cpu",)
    assert parse_devices("reference") == ("reference", "cpu")
    assert parse_devices("cpu, reference") == ("cpu", "reference")
    assert parse_devices([fake]) == (fake, "cpu")
    assert parse_devices("Reference,CPU") == ("reference", "cpu") and parse_devices("NONE") == (
        "cpu",
    )
    for wrong in ("", "bogus", "cpu,", ["cpu", "x"]):
        with pytest.raises(BackendError, match="use none or one of"):
            parse_devices(wrong)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[FakeDevice]:
    """Two devices that are found on this machine."""
    found = [FakeDevice(name="a", total_bytes=4 << 30), DeferredDevice(name="b")]
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    registry.register_backend("a", lambda n_threads=None: found[0])
    registry.register_backend("b", lambda n_threads=None: found[1])
    return found


def test_layers_are_divided_by_proportions_or_memory() -> None:
    def names(n: int, memory: tuple[int | None, ...] = (None, None), **options: Any) -> str:
        backends = [FakeDevice(name=x, total_bytes=m) for x, m in zip("ab", memory, strict=True)]
        owners = layer_devices([*backends, HostOnly()], 5, Offload(n_gpu_layers=n, **options))
        return " ".join(x.name for x in owners)

    assert names(-1) == names(6) == names(99) == "a a a b b b"
    assert names(0) == "cpu cpu cpu cpu cpu cpu"
    assert names(2) == "cpu cpu cpu cpu a b" and names(1) == "cpu cpu cpu cpu cpu a"
    assert names(-1, (200, 100)) == names(-1, (0, None), tensor_split=(2, 1)) == "a a a a b b"
    assert names(-1, (0, 0)) == names(-1, (200, 200), tensor_split=(0, 0)) == "a a a b b b"
    assert names(-1, tensor_split=(1,)) == "a a a a a a"
    assert names(4, tensor_split=(0, 1)) == "cpu cpu b b b b"
    assert names(-1, (900, 900), vram_budget=(100, 500)) == "a b b b b b"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split_mode": "row"}, "`split_mode` 'row' is not supported: want layer"),
        ({"split_mode": "none", "main_gpu": 2}, "`main_gpu` is 2, want 0 to 1: a, b"),
        ({"tensor_split": (1, -1)}, "`tensor_split` 1,-1: want proportions of 0 or more"),
        ({"tensor_split": (1, 1, 1)}, "`tensor_split` has 3 values for 2 GPUs"),
        ({"vram_budget": (1, 1, 1)}, "`vram_budget` has 3 values for 2 GPUs"),
        ({"override_tensor": [("(", "cpu")]}, r"'\(' is not a regular expression: missing"),
        ({"override_tensor": [("x", "gpu7")]}, "device 'gpu7', .* it has a, b, cpu"),
    ],
)
def test_illegal_options(
    tmp_path: Path, gpus: list[FakeDevice], options: dict[str, Any], message: str
) -> None:
    spec = Spec()
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    with pytest.raises(BackendError, match=message):
        Model.load(path, n_gpu_layers=-1, **options)


def devices_of(model: Model, gpus: list[FakeDevice]) -> dict[str, str]:
    """The device of each weight by name, with the CPU as an empty text."""
    bufts = {gpu.buft: gpu.name for gpu in gpus}
    return {name: bufts.get(w.buffer.buft, "") for name, w in model.weights.items()}


def test_devices_are_found_and_chosen(tmp_path: Path, gpus: list[FakeDevice]) -> None:
    spec = Spec(n_layer=3)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))

    def where(**options: Any) -> str:
        """The device of each layer and of the output."""
        found = devices_of(Model.load(path, **options), gpus)
        names = [*(f"blk.{i}.ffn_up.weight" for i in range(3)), "output.weight"]
        return " ".join(found.get(name) or "-" for name in names)

    assert where() == where(n_gpu_layers=0) == where(devices="none") == "- - - -"
    assert where(n_gpu_layers=-1) == where(n_gpu_layers="auto") == "a a b b"
    assert where(vram_budget=(1 << 30,)) == "a a b b"
    assert where(devices="B") == where(n_gpu_layers=9, split_mode="none", main_gpu=1) == "b b b b"
    assert where(n_gpu_layers=9, split_mode="none", main_gpu=-1) == "- - - -"
    moved = [("blk.0", "B"), (r"ffn_up", "cpu"), ("output.w", "a")]
    assert where(n_gpu_layers=-1, override_tensor=moved) == "b - - a"
    want = greedy(Model.load(path))
    model = Model.load(path, n_gpu_layers=3, override_tensor=moved)
    assert greedy(model, offload_kqv=False) == greedy(model) == want and model.n_gpu_layers == 3


def planner(path: Path, devices: list[FakeDevice], **params: Any) -> Planner:
    model, backends = Model.load(path, vocab_only=True), (*devices, HostOnly())
    return Planner(GGUFFile(path), model.arch, model.hparams, backends, ContextParams(**params))


SIZES: dict[str, Any] = {"n_ctx": 96, "n_ubatch": 24, "n_seq_max": 2}


@pytest.mark.parametrize("name", long_but(GRAPHS, BY_DEFAULT))
def test_plans_of_every_graph_are_exact(converted: Callable[[str], Path], name: str) -> None:
    """The device allocates as many bytes for some layers as were planned."""
    device, sizes = FakeDevice(name="a"), {"n_ctx": 96, "n_ubatch": 24}
    path = converted(name)
    plan = planner(path, [device], **sizes).plan(Offload(n_gpu_layers=2))
    Context(Model.load(path, devices=[device], n_gpu_layers=2), **sizes, n_threads=1)
    assert plan.devices[0].used == sum(device.buft.sizes) > 0


@pytest.mark.parametrize("n_layers", [0, 2, -1])
@pytest.mark.parametrize(
    "params", some([{}, {"offload_kqv": False}, {"type_k": GGMLType.F32, "unified": False}], 2)
)
@pytest.mark.parametrize("moved", [(), [("blk.1.attn", "cpu"), ("token_embd", "a")]])
def test_plans_are_exact(
    tmp_path: Path, n_layers: int, params: dict[str, Any], moved: list[tuple[str, str]]
) -> None:
    """Each device allocates as many bytes as were planned."""
    spec = Spec()
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    devices = [FakeDevice(name="a"), FakeDevice(name="b")]
    options = Offload(n_gpu_layers=n_layers, override_tensor=tuple(moved))
    plan = planner(path, devices, **SIZES, **params).plan(options)
    assert not devices[0].buft.sizes
    given = {name: value for name, value in vars(options).items() if name != "reserved"}
    Context(Model.load(path, devices=devices, **given), **SIZES, **params, n_threads=1)
    for use, device in zip(plan.devices, devices, strict=False):
        assert use.used == sum(device.buft.sizes)
        by_layer = sum(layer.weights[use.name] for layer in plan.layers)
        assert use.weights == by_layer and sum(x.kv[use.name] for x in plan.layers) <= use.kv


@pytest.mark.parametrize(
    "kib", [long(((0,),)), (100,), long(((200,),)), (250,), (60, 150), long(((150, 60),)), (999,)]
)
@pytest.mark.parametrize("n_devices", only([1, 2], [2]))
def test_as_many_layers_as_fit(tmp_path: Path, kib: tuple[int, ...], n_devices: int) -> None:
    spec = Spec(n_layer=4)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    devices = [FakeDevice(name=name, total_bytes=1 << 30) for name in "ab"[:n_devices]]
    budget = tuple(n << 10 for n in kib[:n_devices])
    plans = planner(path, devices, **SIZES)
    plan = plans.plan(Offload(vram_budget=budget))
    assert plan.fits
    n = plan.offload.n_gpu_layers
    assert isinstance(n, int) and (n == 5 or kib != (999,))
    limits = [budget[0], budget[-1]]
    for first in range(n + 2) if n < 5 else ():  # no other division has room for one more
        split = (float(first), float(n + 1 - first))[:n_devices]
        more = plans.plan(Offload(n_gpu_layers=n + 1, tensor_split=split))
        uses = zip(more.devices[:-1], limits, strict=False)
        assert not all(use.used <= limit for use, limit in uses)
    model = Model.load(path, devices=devices, vram_budget=budget, params=ContextParams(**SIZES))
    Context(model, **SIZES, n_threads=1)
    assert model.n_gpu_layers == n
    for device, limit in zip(devices, limits, strict=False):
        assert sum(device.buft.sizes) <= limit


def test_auto_leaves_some_memory_free(tmp_path: Path) -> None:
    spec = Spec(n_layer=4)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    for extra, all_fit in ((0, False), (8 << 20, True)):
        device = FakeDevice(total_bytes=(1 << 30) + extra)
        params = ContextParams(n_ctx=96)
        model = Model.load(path, devices=[device], n_gpu_layers="auto", params=params)
        assert (model.n_gpu_layers == 5) == all_fit
    with pytest.raises(AllocError, match=r"as many as fit \(`n_gpu_layers=auto`\)"):
        Model.load(path, devices=[FakeDevice(total_bytes=1000)])


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_the_demo_model_on_any_device(device: str) -> None:
    path = demo_model_path()
    there = Model.load(path, devices=[DEVICES[device]()])
    prompt = there.tokenizer.encode("The capital of France is", add_special=True)
    n = 12 if device in SAME_BITS else 2  # the sixth choice is close
    got = greedy(there, n, prompt)
    assert got == greedy(Model.load(path), n, prompt)
    assert there.tokenizer.decode(got).startswith(" Paris")


@pytest.mark.parametrize("n_layers", [1, -1])
@pytest.mark.parametrize("device", SAME_BITS)
def test_embeddings_and_scores_on_a_device(tmp_path: Path, device: str, n_layers: int) -> None:
    """The classification head is read on the host; its bits are those without a device."""
    spec = Spec()
    head = np.random.default_rng(1).standard_normal((1, spec.n_embd)).astype(np.float32)
    weights = random_weights(spec) | {"cls.output.weight": head}
    path = write_model(tmp_path / "x.gguf", spec, weights)
    results = []
    for options in ({"devices": [DEVICES[device]()], "n_gpu_layers": n_layers}, {}):
        model = Model.load(path, **options)  # type: ignore[arg-type]
        context = Context(model, n_ctx=64, n_ubatch=8, n_threads=1)
        flags = [i % 3 == 0 for i in range(20)]
        context.decode(Batch([*range(3, 23)], logits=flags, embeddings=flags[::-1]))
        results.append((context.logits, context.embeddings, context.scores))
    for there, here in zip(*results, strict=True):
        assert len(here) == 7 and np.array_equal(there, here)
