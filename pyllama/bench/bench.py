"""Measures tokens per second, with llama-bench's method and fields.

    row = run_bench(model, BenchCase(n_prompt=512, n_depth=0), repetitions=5)
    print(row["avg_ts"], row["stddev_ts"])

Only decodes are timed, without sampling and detokenization. Token ids are pseudo-random, equal on
every run.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyggml.dtype import GGMLType

from .. import __version__
from ..engine import Engine, Lease
from ..errors import BatchError
from ..runtime.context import Context
from ..runtime.params import ContextParams

if TYPE_CHECKING:
    from ..runtime.model import Model

SEED = 1


@dataclass(frozen=True)
class BenchCase:
    """One test: a prompt, then generation, at a depth.

    Args:
        n_prompt: tokens evaluated in batches.
        n_gen: tokens evaluated one by one after the prompt.
        n_depth: tokens in the KV cache before the test, not timed.
        n_batch, n_ubatch: logical and physical batch size.
        type_k, type_v: types of the KV cache.
        offload_kqv: keep the KV cache on the devices of its layers.
        n_threads: None: automatic.

    Raises:
        BatchError: there is nothing to measure, or a number is negative.
    """

    n_prompt: int = 0
    n_gen: int = 0
    n_depth: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: GGMLType = GGMLType.F16
    type_v: GGMLType = GGMLType.F16
    offload_kqv: bool = True
    n_threads: int | None = None

    @property
    def params(self) -> ContextParams:
        """Sizes of the context."""
        return ContextParams(
            n_ctx=self.n_prompt + self.n_gen + self.n_depth,
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            type_k=self.type_k,
            type_v=self.type_v,
            offload_kqv=self.offload_kqv,
            n_threads=self.n_threads,
            n_threads_batch=self.n_threads,
        )

    def __post_init__(self) -> None:
        if min(self.n_prompt, self.n_gen, self.n_depth) < 0 or not self.n_prompt + self.n_gen:
            raise BatchError(
                f"bench of {self.n_prompt} prompt and {self.n_gen} generated tokens at depth "
                f"{self.n_depth}: at least one token is needed, and no number may be negative"
            )


def run_bench(
    model: Model, case: BenchCase, *, repetitions: int = 5, warmup: bool = True
) -> dict[str, Any]:
    """Measure one case in a new context.

    Args:
        repetitions: number of samples, at least 1.
        warmup: first run one batch of the prompt and one generated token, not timed.

    Returns:
        All of llama-bench's fields in its order, as plain data for JSON; times in nanoseconds.
        Some are constant here (flash attention is always on): its tools want them.

    Raises:
        AllocError: the context does not fit into memory.
        BatchError: there are no repetitions, or the model generates no tokens one by one.

    Source: llama.cpp, ``llama-bench.cpp``, ``test::get_fields``.
    """
    if repetitions < 1:
        raise BatchError(f"bench with {repetitions} repetitions: must be at least 1")
    context = Context(model, case.params)
    if case.n_gen and not context.hparams.causal:
        raise BatchError(
            "tokens of this context attend to later ones: it generates none; use `n_gen=0`"
        )
    try:
        test_time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _row(context, case, test_time, samples_ns(context, case, repetitions, warmup))
    finally:
        context.close()


def samples_ns(
    context: Context, case: BenchCase, repetitions: int = 1, warmup: bool = False
) -> list[int]:
    """Return the nanoseconds of each repetition, in an existing context; clears its KV cache."""
    model = context.model
    depth, prompt, generated = (
        bench_tokens(model, n, stream)
        for stream, n in enumerate((case.n_depth, case.n_prompt, case.n_gen))
    )
    lease = Lease(Engine(context, sequences=[0]))
    if warmup:
        _run(lease, prompt[: context.n_batch], generated[:1])
    context.kv.clear()
    lease.adopt(())
    lease.evaluate(depth)
    samples = []
    for _ in range(repetitions):
        lease.evaluate(depth[lease.keep([*depth, 0]) :])
        start = time.perf_counter_ns()
        _run(lease, prompt, generated)
        samples.append(max(1, time.perf_counter_ns() - start))
    return samples


def _run(lease: Lease, prompt: Sequence[int], generated: Sequence[int]) -> None:
    lease.evaluate(prompt)
    for token in generated:  # not counted by the lease, so the next `keep` removes them
        lease.context.decode_token(token)


def bench_tokens(model: Model, n: int, stream: int) -> list[int]:
    """Return ``n`` pseudo-random ids; the first is BOS if the model adds BOS."""
    rng = np.random.default_rng((SEED, stream))
    tokens: list[int] = rng.integers(model.hparams.n_vocab, size=n).tolist()
    bos = model.tokenizer.bos
    if tokens and model.tokenizer.add_bos and bos is not None:
        tokens[0] = bos
    return tokens


def _row(context: Context, case: BenchCase, test_time: str, samples: list[int]) -> dict[str, Any]:
    model = context.model
    rates = [1e9 * (case.n_prompt + case.n_gen) / ns for ns in samples]
    several = len(samples) > 1
    gpus = [b for b in model.devices if not isinstance(b, str) and b.device.kind != "cpu"]
    return {
        "build_commit": __version__,
        "build_number": 0,
        "cpu_info": cpu_info(),
        "gpu_info": ", ".join(gpu.device.description for gpu in gpus),
        "backends": ",".join(gpu.device.name for gpu in gpus) or "CPU",
        "model_filename": str(model.path),
        "model_type": model.desc,
        "model_size": model.size_bytes,
        "model_n_params": model.n_params,
        "n_batch": case.n_batch,
        "n_ubatch": case.n_ubatch,
        "n_threads": context.n_threads,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": case.type_k.name.lower(),
        "type_v": case.type_v.name.lower(),
        "n_gpu_layers": model.n_gpu_layers,
        "n_cpu_moe": 0,
        "split_mode": "layer",
        "main_gpu": 0,
        "no_kv_offload": not case.offload_kqv,
        "flash_attn": 1,
        "devices": "auto",
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "auto",
        "lazy_mode": "auto",
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "repack": True,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": case.n_prompt,
        "n_gen": case.n_gen,
        "n_depth": case.n_depth,
        "test_time": test_time,
        "avg_ns": round(statistics.fmean(samples)),
        "stddev_ns": round(statistics.stdev(samples)) if several else 0,
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": statistics.stdev(rates) if several else 0.0,
        "samples_ns": tuple(samples),
        "samples_ts": tuple(rates),
    }


def cpu_info() -> str:
    """Return the processor's name as the system reports it."""
    try:
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
