"""Plans of memory: a device is asked for as many bytes as were planned, and no more at any time.

Kernels are loaded, and do not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend.registry import init_backend
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError
from pyggml.gguf import GGUFFile
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.graph.sparse.weights import normalize_powerinfer_metadata
from pyllama.runtime.devices import Offload
from pyllama.runtime.offload import OffloadPlan, Planner
from pyllama.runtime.params import ContextParams
from pyllama.sparsity.division import Placements
from pyllama.sparsity.plan import PlacementParams, plan_on_devices

from ....pyllama.arch.checkpoints import write_checkpoint
from ....pyllama.models import Spec, random_weights, write_model
from ....pyllama.sparsity.files import N_LAYER, VARIANTS, sparse_file
from ....tiers import only, some

pytest.importorskip("numba_cuda")
pytest.importorskip("greenlet")

from pyggml.backend.cuda.backend import CudaBackend
from pyggml.backend.cuda.stream import WORK_BYTES

from .latent import latent_file
from .simulator import simulator_image
from .twin import TwinDriver

SPEC = Spec(n_layer=2, n_embd=64, n_ff=96, n_head=32, n_head_kv=1, head_dim=64)
SIZES: Any = {"n_ctx": 8192, "n_ubatch": 256, "n_seq_max": 2}


class IdleTwin(TwinDriver):
    """A twin whose kernels do nothing."""

    def _run(self, launches: Any) -> None:
        self.counts.launches.update(launch.function.name for launch in launches)


def gpu(limit: int = 1 << 30, name: str = "cuda0") -> CudaBackend:
    driver = IdleTwin(cc=(8, 0), name=name, limit=limit, n_sm=1320)  # splits need work memory
    return CudaBackend(driver, name, compile=simulator_image)


def peak(backend: CudaBackend) -> int:
    assert isinstance(backend.driver, IdleTwin)
    return backend.driver.spaces.peak


def plan_of(path: Path, backends: list[CudaBackend], offload: Offload, **sizes: Any) -> OffloadPlan:
    header, devices = Model.load(path, vocab_only=True), (*backends, init_backend("cpu"))
    with GGUFFile(path) as file:
        params = ContextParams(**sizes)
        return Planner(file, header.arch, header.hparams, devices, params).plan(offload)


@pytest.mark.parametrize("n_layers", only([1, 2, -1], [1]))
@pytest.mark.parametrize("more", [{}, {"offload_kqv": False}], ids=["kv", "nkvo"])
@pytest.mark.parametrize("type", only(["F32", "F16", "Q4_0", "Q6_K"], ["F16", "Q6_K"]))
def test_a_device_allocates_what_was_planned(
    tmp_path: Path, type: str, more: dict[str, Any], n_layers: int
) -> None:
    """To the byte, with graphs of all sizes; with one byte less it fails."""
    spec = SPEC if type != "Q6_K" else Spec(2, n_embd=256, n_ff=512, n_head=4, n_head_kv=1,
                                            head_dim=64)  # fmt: skip
    path = write_model(tmp_path / "x.gguf", spec, random_weights(spec), GGMLType[type])
    offload, sizes = Offload(n_gpu_layers=n_layers), {**SIZES, **more}
    probe = gpu()
    planned = plan_of(path, [probe], offload, **sizes).devices[0].used
    assert peak(probe) == 0
    enough, less = gpu(planned), gpu(planned - 1)
    model = Model.load(path, devices=[enough], n_gpu_layers=n_layers)
    context = Context(model, **sizes, n_threads=1)
    context.reserve((1, 2, 3, 8, 9, 16, 17, 18, 32, 64, 128, 256))
    assert peak(enough) == planned
    with pytest.raises(AllocError, match="are free"):
        Context(Model.load(path, devices=[less], n_gpu_layers=n_layers), **sizes, n_threads=1)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.Q8_0])
def test_latent_attention_and_its_cache_are_on_the_device(tmp_path: Path, type: GGMLType) -> None:
    """Keys of 576 columns; as many bytes as were planned."""
    path, sizes = latent_file(tmp_path / "x"), {**SIZES, "type_k": type}
    planned = plan_of(path, [gpu()], Offload(), **sizes).devices[0].used
    backend = gpu(planned)
    context = Context(Model.load(path, devices=[backend]), **sizes, n_threads=1)
    context.reserve((1, 2, 3, 16, 17, 64, 256))
    assert peak(backend) == planned
    plain = backend.buffer_type()
    assert all(k.buffer.buft is plain for k in context.kv.caches[0].k.values())
    context.decode(Batch([7, 42, 3]))
    names = {name.split("_")[0] for name in backend.driver.counts.launches}
    assert {"attention", *(["hadamard"] if type is GGMLType.Q8_0 else [])} <= names


@pytest.mark.parametrize(("name", "n_layers"), [("falcon_h1", -1), ("falcon_h1", 2), ("rwkv7", -1)])
def test_recurrent_states_are_where_their_layers_are(
    tmp_path: Path, name: str, n_layers: int
) -> None:
    """As many bytes as were planned; on a small device fewer slots."""
    write_checkpoint(tmp_path / "x", name)
    path, offload = convert(tmp_path / "x", tmp_path / "x.gguf", "f32"), Offload(n_layers)
    sizes: Any = {"n_ctx": 256, "n_ubatch": 64, "n_seq_max": 2}
    n_slots = []
    for limit in (1 << 30, 6 << 20):
        plan, backend = plan_of(path, [gpu(limit)], offload, **sizes), gpu(limit)
        model = Model.load(path, devices=[backend], n_gpu_layers=n_layers)
        context = Context(model, **sizes, n_threads=1)
        context.reserve((1, 2, 3, 16, 17, 64))
        assert peak(backend) == plan.devices[0].used
        states = context.kv.states
        assert states is not None
        plain, first = backend.buffer_type(), model.hparams.n_layer + 1 - n_layers
        for by_layer in states.tensors.values():
            for i, state in by_layer.items():
                assert (state.buffer.buft is plain) == (n_layers < 0 or i >= first)
        n_slots.append(states.n_slots)
    assert n_slots[0] > n_slots[1] >= 4


def test_a_last_norm_with_another_name_is_with_the_output(tmp_path: Path) -> None:
    """LFM2's, which is called as that of the embeddings: the device computes a token at once."""
    write_checkpoint(tmp_path / "x", "lfm2")
    path, backend = convert(tmp_path / "x", tmp_path / "x.gguf", "f32"), gpu()
    weights = Model.load(path, devices=[backend]).weights
    norm, embedding = (weights[f"token_embd{part}.weight"].buffer for part in ("_norm", ""))
    assert norm is not None and norm.buft is backend.buffer_type()
    assert embedding is not None and embedding.buft is not norm.buft


def test_work_memory_is_more_than_its_minimum_here(tmp_path: Path) -> None:
    """Else the test above would not test it; a batch of few tokens needs more than a large one."""
    path = write_model(tmp_path / "x.gguf", SPEC, random_weights(SPEC))
    backend = gpu()
    used = []
    for n_ubatch in (1, 16, 256):
        plan = plan_of(path, [backend], Offload(), **{**SIZES, "n_ubatch": n_ubatch})
        model = Model.load(path, devices=[backend])
        Context(model, **{**SIZES, "n_ubatch": n_ubatch}, n_threads=1)
        used.append([size.size for size in backend.queue._work if size is not None])
        assert plan.fits
    assert used[0][0] < used[1][0] == used[2][0] and used[2][0] > WORK_BYTES[0]


@pytest.mark.parametrize("name", some(VARIANTS, 2))
@pytest.mark.parametrize("share", only([0.3, 0.5, 0.7, 0.9], [0.7]))
@pytest.mark.parametrize("n_gpus", only([1, 2], [2]))
def test_a_hybrid_allocates_what_was_planned(
    tmp_path: Path, name: str, share: float, n_gpus: int
) -> None:
    """Each GPU within its part of the budget, to the byte."""
    path = sparse_file(tmp_path, name)
    header = Model.load(path, vocab_only=True)
    params = ContextParams(n_ctx=2048, n_ubatch=64)
    names = [f"cuda{i}" for i in range(n_gpus)]
    with GGUFFile(path) as file:
        normalize_powerinfer_metadata(file)
        devices = *(gpu(name=name) for name in names), init_backend("cpu")
        planner = Planner(file, header.arch, header.hparams, devices, params)
        whole = [use.used - sum(WORK_BYTES) for use in planner.plan(Offload()).devices[:-1]]
        activity = np.random.default_rng(0).random((N_LAYER, header.hparams.n_ff))
        budget = tuple(sum(WORK_BYTES) + int(share * n) for n in whole)
        use, plans = plan_on_devices(
            planner,
            header,
            Offload(vram_budget=budget),
            activity,
            PlacementParams(block=8),
            write=False,
        )
    placement = Placements(tuple(plan.placed for plan in plans))
    gpus = [gpu(use.used, use.name) for use in use.devices[:-1]]
    context = Context(
        Model.load(path, devices=gpus, placement=placement), n_ctx=2048, n_ubatch=64, n_threads=1
    )
    context.reserve((1, 2, 8, 9, 16, 17, 32))
    for planned, backend, limit in zip(use.devices, gpus, budget, strict=False):
        assert peak(backend) == planned.used <= limit
    if share >= 0.5 or n_gpus == 1:  # at 30 % the caches of half of `opt` leave no room for weights
        assert all(device.used for device in use.devices[:n_gpus])
