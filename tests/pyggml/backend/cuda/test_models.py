"""Whole models on the CUDA backend over the driver's twin: the CPU's greedy text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyllama import Batch, Context, Model
from pyllama.convert import ConvertOptions, convert
from pyllama.runtime.adapters import load_control_vector, load_lora
from pyllama.sparsity.division import Placements, Share
from pyllama.sparsity.inventory import NeuronRows
from pyllama.sparsity.placement import NeuronSplit, Placement
from pyllama.sparsity.plan import MemoryBudget, read_needs

from ....pyllama.adapters import adaptable, random_terms, write_lora, write_vector
from ....pyllama.arch.checkpoints import write_checkpoint
from ....pyllama.models import Spec, random_weights, write_model
from ....pyllama.sparsity.files import N_LAYER, VARIANTS, sparse_file

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend

from .images import ptx_of
from .latent import latent_file
from .twin import TwinDriver

pytestmark = pytest.mark.long
SPEC = Spec(n_layer=2, n_embd=64, n_ff=96, n_head=4, n_head_kv=2, head_dim=16)
PROMPT = [7, 42, 3, 99, 12]
LONG = [7 * i % 250 for i in range(20)]
EXACT: Any = {"type_k": GGMLType.F32, "type_v": GGMLType.F32}
Logits = list[np.ndarray]
RECURRENT = {  # variants, and a kernel of each
    "falcon_h1": "ssm_scan",
    "kimi-linear": "gated_delta_net",
    "lfm2": "conv_kernel",
    "mamba": "ssm_scan",
    "qwen3next": "gated_delta_net",
    "rwkv6": "rwkv_wkv6",
    "rwkv6qwen2": "gated_linear_attn",
    "rwkv7": "rwkv_wkv7",
}


def gpu(number: int = 0, **options: Any) -> CudaBackend:
    driver = TwinDriver(cc=(9, 0), name=f"twin {number}", **options)
    return CudaBackend(driver, f"cuda{number}", compile=ptx_of)


def greedy(model: Model, n: int = 5, **options: Any) -> tuple[list[int], Logits]:
    """Tokens after the prompt, and all logits on the way."""
    context = Context(model, n_ctx=64, n_threads=1, **options)
    context.decode(Batch(PROMPT))
    logits = [np.array(context.logits[-1])]
    tokens = [int(logits[-1].argmax())]
    for _ in range(n):
        context.decode_token(tokens[-1])
        logits.append(np.array(context.logits[-1]))
        tokens.append(int(logits[-1].argmax()))
    return tokens, logits


def difference(a: Logits, b: Logits) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("type", ["F32", "Q4_0"])
def test_a_llama_on_a_gpu_writes_the_cpus_text(tmp_path: Path, type: str) -> None:
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), GGMLType[type])
    there = gpu()
    tokens, logits = greedy(Model.load(path, devices=[there]), **EXACT)
    want, cpu = greedy(Model.load(path), **EXACT)
    assert tokens == want
    assert difference(logits, cpu) < (1e-4 if type == "F32" else 0.1)
    assert there.driver.counts.graphs > 0


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.F32])
def test_latent_attention_on_a_gpu_gives_the_cpus_logits(tmp_path: Path, type: GGMLType) -> None:
    """Keys of 576 columns: by tensor cores, or by several warps in float32."""
    path, there = latent_file(tmp_path / "x"), gpu()
    tokens, logits = greedy(Model.load(path, devices=[there]), n=2, type_k=type)
    want, cpu = greedy(Model.load(path), n=2, type_k=type)
    assert tokens == want
    assert difference(logits, cpu) < (1e-4 if type is GGMLType.F32 else 0.02)
    names = there.driver.counts.launches
    assert any("attention" in name for name in names)
    assert any("attention_tile" in name for name in names) == (type is GGMLType.F16)


@pytest.mark.parametrize(("name", "kernel"), RECURRENT.items())
def test_recurrent_layers_on_a_gpu_give_the_cpus_logits(
    tmp_path: Path, name: str, kernel: str
) -> None:
    """States are on the GPU, and the text goes back to one of them."""
    write_checkpoint(tmp_path / "x", name)
    path, there = convert(tmp_path / "x", tmp_path / "x.gguf", "f32"), gpu()
    found = []
    for devices in ([there], None):
        context = Context(Model.load(path, devices=devices), n_ctx=64, n_threads=1, **EXACT)
        for tokens in (LONG, [3], [5]):
            context.decode(Batch(tokens, logits="all", checkpoints=[len(tokens) - 1]))
            found.append(context.logits.copy())
        assert context.kv.rewind(0, len(LONG)) == len(LONG)
        context.decode(Batch([9]))
        found.append(context.logits.copy())
        on_device = {x.buffer.buft is there.buffer_type() for x in context.kv.states.stored}
        assert on_device == {devices is not None}
    for got, want in zip(found[:4], found[4:], strict=True):
        assert np.abs(got - want).max() < 1e-3
    assert any(kernel in launched for launched in there.driver.counts.launches)


@pytest.mark.parametrize("type", ["f32", "q8_0"])
def test_sparse_experts_on_a_gpu_give_the_cpus_logits(tmp_path: Path, type: str) -> None:
    """Experts whose rows are read by their gates, the down matrices by rows of neurons."""
    write_checkpoint(tmp_path / "x", "smallthinker")
    options, there = ConvertOptions(transpose_down=True), gpu()
    path = convert(tmp_path / "x", tmp_path / "x.gguf", type, options)
    found = []
    for devices in ([there], None):
        context = Context(Model.load(path, devices=devices), n_ctx=64, n_threads=1, **EXACT)
        for tokens in (PROMPT, [3]):
            context.decode(Batch(tokens, logits="all"))
            found.append(context.logits.copy())
    for got, want in zip(found[:2], found[2:], strict=True):
        assert np.abs(got - want).max() < (1e-3 if type == "f32" else 0.1)
    names = there.driver.counts.launches
    assert any("mul_mat_id" in name for name in names) and any("axpy" in name for name in names)


def test_ubatches_follow_each_other_over_two_gpus(tmp_path: Path) -> None:
    spec = Spec(n_layer=4, n_embd=64, n_ff=96, n_head=4, n_head_kv=2, head_dim=16)
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    options: Any = {"n_ctx": 64, "n_ubatch": 4, "n_threads": 1, **EXACT}
    there = Context(Model.load(path, devices=[gpu(0), gpu(1)]), **options)
    here = Context(Model.load(path), **options)
    for tokens in (LONG, LONG[:7], LONG[:1]):
        for context in (there, here):
            context.decode(Batch(tokens))
        np.testing.assert_allclose(there.logits, here.logits, atol=1e-3)


@pytest.mark.parametrize(("type", "n_gpus"), [("F32", 1), ("F32", 2), ("F16", 1), ("Q4_0", 1)])
def test_adapters_on_gpus_give_the_cpus_logits(tmp_path: Path, type: str, n_gpus: int) -> None:
    """A LoRA of all matrices and a control vector, for some of the tokens."""
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC), GGMLType[type])
    terms = random_terms(adaptable(Model.load(path)), SPEC.n_vocab)
    lora = write_lora(tmp_path / "a.gguf", "llama", terms)
    vector = write_vector(tmp_path / "v.gguf", SPEC.n_embd, SPEC.n_layer)
    scales = np.array([[0, 0], [1, 0.5], [0.5, 0], [0, 1], [1, 1]], np.float32)
    gpus, found = [gpu(i) for i in range(n_gpus)], []
    for devices in (gpus, None):
        model = Model.load(path, devices=devices)
        context = Context(model, n_ctx=64, n_threads=1, **EXACT)
        context.set_adapters([load_lora(lora, model), load_control_vector(vector, model)])
        for n in (len(PROMPT), 1):
            context.decode(Batch(PROMPT[:n], logits="all", adapters=scales[-n:]))
            found.append(context.logits.copy())
    for there, here in zip(found[:2], found[2:], strict=True):
        assert np.abs(there - here).max() < (1e-4 if type == "F32" else 0.1)
    counts = sum((one.driver.counts.launches for one in gpus), Counter[str]())
    n_changes = sum(n for name, n in counts.items() if "lora_changes" in name)
    assert n_changes >= 2 * sum(name.startswith("blk.") for name in (*terms, "blk.1: vector"))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("dense", "share"), [(False, 3), (True, 1)], ids=["neurons", "all"])
def test_neurons_on_a_gpu_give_the_cpus_logits(
    tmp_path: Path, name: str, dense: bool, share: int
) -> None:
    """A third of the neurons, or all of them, with and without the dense weights."""
    model = Model.load(sparse_file(tmp_path, name))
    device, n_ff = gpu(), model.hparams.n_ff
    items = tuple(read_needs(model, MemoryBudget(1 << 30, n_ctx=64)).items) if dense else ()
    ids = np.arange(0, n_ff, share, dtype=np.int32)
    split = NeuronSplit(n_ff, (ids,) * N_LAYER, (ids,) * N_LAYER)
    placed = Placement(1 << 30, 0, items, (), split, (0,) * N_LAYER).apply(model, device)
    there = Context(placed, n_ctx=64, n_threads=1, **EXACT)
    here = Context(model, n_ctx=64, n_threads=1, **EXACT)
    for tokens in (PROMPT, [3]):
        for context in (there, here):
            context.decode(Batch(tokens))
        np.testing.assert_allclose(there.logits, here.logits, atol=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_neurons_on_two_gpus_give_the_cpus_logits(tmp_path: Path, name: str) -> None:
    """Each GPU has the dense weights and a third of the neurons of its layers."""
    path, gpus = sparse_file(tmp_path, name), (gpu(0), gpu(1))
    model = Model.load(path)
    shares = Share((0, 1), N_LAYER, False), Share((2,), N_LAYER, True)
    needs, n_ff = read_needs(model, MemoryBudget(1 << 30, n_ctx=64)), model.hparams.n_ff
    ids = np.arange(0, n_ff, 3, dtype=np.int32)

    def third(rows: NeuronRows, left: int) -> NeuronSplit:
        n = len(rows.down)
        return NeuronSplit(n_ff, (ids,) * n, (ids,) * n)

    parts = tuple(share.place(needs, 1 << 30, third, 0) for share in shares)
    placed = Model.load(path, devices=gpus, placement=Placements(parts))
    there = Context(placed, n_ctx=64, n_threads=1, **EXACT)
    here = Context(model, n_ctx=64, n_threads=1, **EXACT)
    for tokens in (PROMPT, [3]):
        for context in (there, here):
            context.decode(Batch(tokens))
        np.testing.assert_allclose(there.logits, here.logits, atol=1e-3)
    for device in gpus:
        assert any("axpy" in kernel for kernel in device.driver.counts.launches)
