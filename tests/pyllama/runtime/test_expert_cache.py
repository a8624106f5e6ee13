"""A cache of experts changes no bit, and holds what its budget allows."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFError, GGUFFile, plan_split, write_gguf, write_split
from pyggml.quants import quantize
from pyllama import Batch, Context, Llama, Model
from pyllama.convert import convert
from pyllama.errors import ModelError
from pyllama.runtime import expert_cache
from pyllama.runtime.adapters import load_lora
from pyllama.runtime.expert_cache import ExpertCache
from pyllama.runtime.state import load_state, save_state

from ..adapters import adaptable, random_terms, write_lora
from ..arch.checkpoints import N_VOCAB, recorded, write_checkpoint
from ..models import Spec, random_weights, rows, write_model

CASES = [("qwen3moe", "q8_0"), ("gpt-oss", "q8_0"), ("smallthinker", "f16")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def path(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, type = request.param
    folder = tmp_path_factory.mktemp("x")
    return convert(write_checkpoint(folder / "x", name), folder / f"{name}.gguf", type)


@pytest.fixture
def tokens(path: Path) -> list[int]:
    found: list[int] = recorded(path.stem)["tokens"].tolist()
    return found[:24]


def load(path: Path, share: float, **options: Any) -> Model:
    """A model with slots for the experts of one layer, and for a share of those of the others."""
    whole = cache_of(Model.load(path, moe_cache_mib=64))
    least = whole.n_bytes / len(whole.fetchers)
    budget = least + share * (whole.n_bytes - least)
    return Model.load(path, moe_cache_mib=(budget + 1) / 2**20, **options)


def cache_of(model: Model) -> ExpertCache:
    assert model.experts is not None
    return model.experts


def context(model: Model, **options: Any) -> Context:
    return Context(model, **{"n_ctx": 64, "n_seq_max": 2, **options})


def logits(ctx: Context, tokens: list[int]) -> np.ndarray:
    """Of a prompt, of single tokens after it, and of two sequences in one batch."""
    found = [rows(ctx, tokens[:12]), rows(ctx, *([t] for t in tokens[12:20]))]
    ctx.kv.seq_cp(0, 1)
    ctx.decode(Batch(tokens[20:24], seq_id=[0, 1, 0, 1], logits="all"))
    return np.concatenate([*found, ctx.logits.copy()])


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_bits_are_those_of_a_whole_model(
    path: Path, tokens: list[int], share: float, n_threads: int
) -> None:
    wanted = logits(context(Model.load(path), n_threads=n_threads), tokens)
    model = load(path, share)
    assert np.array_equal(logits(context(model, n_threads=n_threads), tokens), wanted)
    stats = cache_of(model).stats
    missed = stats.n_used - stats.n_hits - stats.n_awaited
    assert stats.n_used > stats.n_hits > 0 and stats.n_reads >= missed > 0
    assert stats.n_right <= stats.n_guesses and stats.n_guesses > 0


def test_weights_that_are_not_repacked(path: Path, tokens: list[int]) -> None:
    wanted = logits(context(Model.load(path, repack=False)), tokens)
    assert np.array_equal(logits(context(load(path, 0.3, repack=False)), tokens), wanted)


def test_parts_of_a_split_file(path: Path, tokens: list[int], tmp_path: Path) -> None:
    file = GGUFFile(path)
    plans = plan_split(file, tmp_path / "x", max_tensors=20)
    write_split(file, plans)
    wanted = logits(context(Model.load(path)), tokens)
    assert len(plans) > 1
    assert np.array_equal(logits(context(load(plans[0].path, 0.0)), tokens), wanted)


def test_contexts_share_a_cache_and_saved_states(
    path: Path, tokens: list[int], tmp_path: Path
) -> None:
    whole, model = Model.load(path), load(path, 0.0)
    first, second = context(model), context(model, n_ubatch=5)
    for ctx in (first, second):
        ctx.decode(Batch(tokens[:9], logits="none"))
    save_state(first, tmp_path / "x.state", seq=0)
    other = context(whole)
    load_state(other, tmp_path / "x.state", seq=0)
    wanted = rows(other, tokens[9:])
    model.close()  # contexts keep it
    assert np.array_equal(rows(first, tokens[9:]), wanted)
    assert np.array_equal(rows(second, *([t] for t in tokens[9:])), wanted)


def test_drafted_text(path: Path, tokens: list[int]) -> None:
    def text(**options: Any) -> list[int]:
        llm = Llama(path, n_ctx=128, verbose=False, **options)
        return [token for token, _ in zip(llm.generate(tokens, temp=0.0), range(40), strict=False)]

    mib = cache_of(load(path, 0.2)).n_bytes / 2**20 + 1e-5
    assert text(moe_cache_mib=mib, draft_model="suffix") == text()


def test_a_failed_or_interrupted_read_is_forgotten(
    path: Path, tokens: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, copy = path.read_bytes(), tmp_path / "x.gguf"
    copy.write_bytes(data)
    wanted = logits(context(Model.load(path)), tokens)
    model = load(copy, 0.0)
    first = min(t.offset for name, t in GGUFFile(copy).tensors.items() if "_exps.w" in name)
    with copy.open("r+b") as file:
        file.truncate(first + 100)
        ctx = context(model)
        with pytest.raises(GGUFError, match=r"ends within a tensor|was cut"):
            logits(ctx, tokens)
        file.seek(0)
        file.write(data)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(expert_cache, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            logits(context(model), tokens)
    shutdown = ThreadPoolExecutor.shutdown

    def interrupted_too(pool: ThreadPoolExecutor, **_: object) -> None:
        shutdown(pool, wait=False, cancel_futures=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(expert_cache, "wait", interrupted)
        patch.setattr(ThreadPoolExecutor, "shutdown", interrupted_too)
        with pytest.raises(KeyboardInterrupt):
            logits(context(model), tokens)
    assert np.array_equal(logits(context(model), tokens), wanted)
    cache_of(model)._pid = -1  # as in a forked process, which has no readers
    assert np.array_equal(logits(context(model), tokens), wanted)


def test_slots_that_reads_for_guesses_still_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each expert of a batch gets a slot of its own when all slots are needed."""
    model = load(path, 0.0)
    cache, n = cache_of(model), model.hparams.n_expert
    fetch, table, every = next(iter(cache.fetchers.values())), np.zeros(n, np.int32), np.arange(n)
    fetch(table, every[:1])
    read, wait = ExpertCache._read, expert_cache.wait
    begun, go_on = threading.Semaphore(0), threading.Event()

    def held_up(cache: ExpertCache, pool: Any, expert: int, slot: int) -> None:
        if expert >= n:  # of the second layer
            begun.release()
            go_on.wait()
        read(cache, pool, expert, slot)

    def waits(futures: list[Future[None]]) -> None:
        go_on.set()
        wait(futures)

    monkeypatch.setattr(ExpertCache, "_read", held_up)
    monkeypatch.setattr(expert_cache, "wait", waits)
    fetch(table, every[:1], every)
    for _ in range(min(n - 1, expert_cache.READERS)):
        begun.acquire()
    assert not go_on.is_set()
    fetch(table, every)
    assert sorted(table) == every.tolist()


def test_guesses_are_read_while_most_are_right(path: Path) -> None:
    model = load(path, 0.0)
    cache, n = cache_of(model), model.hparams.n_expert
    layers = sorted(cache.fetchers)
    first, second = (cache.fetchers[i] for i in layers[:2])
    table = np.zeros(n, np.int32)

    def step(i: int, guess: int) -> None:
        """A token that uses expert ``i`` in two layers, all of which the others then evict."""
        first(table, np.array([i]), np.array([guess]))
        second(table, np.array([i]))
        for layer in layers[2:]:
            cache.fetchers[layer](table, np.arange(n))

    for i in range(40):
        step(i % n, (i + 1) % n)
    wrong = cache.stats.n_guesses
    assert cache.stats.n_right == 0 and 0 < wrong < 5
    for i in range(60):
        step(i % n, i % n)
    assert cache.stats.n_right > 10


def test_adapters_of_experts(path: Path, tokens: list[int], tmp_path: Path) -> None:
    found = []
    terms = random_terms(adaptable(Model.load(path)), N_VOCAB)
    lora = write_lora(tmp_path / "a.gguf", GGUFFile(path).get_str("general.architecture"), terms)
    for model in (Model.load(path), load(path, 0.0)):
        ctx = context(model)
        adapter = load_lora(lora, model)
        ctx.set_adapters([adapter])
        ctx.decode(Batch(tokens, logits="all", adapters=ctx.scales({adapter: 1.0})))
        found.append(ctx.logits.copy())
    assert np.array_equal(*found)


def test_prompts_evict_what_they_need_latest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch needs all experts, layer after layer: LRU would find none of them."""
    monkeypatch.setattr(ExpertCache, "_begin_guessed", lambda *_: None)  # when its reads end varies
    model = load(path, 0.5)
    ctx, stats = context(model), cache_of(model).stats
    texts = np.random.default_rng(0).integers(3, 500, (4, 48))
    for text in texts:
        ctx.kv.clear()
        before = stats.n_used, stats.n_hits
        ctx.decode(Batch(text.tolist()))
    assert stats.n_hits - before[1] > 0.4 * (stats.n_used - before[0])


def test_errors_say_what_to_do(path: Path, tmp_path: Path) -> None:
    for mib in (0.01, -1.0, float("nan")):
        with pytest.raises(ModelError, match=r"MiB, want at least .* for all experts of a"):
            Model.load(path, moe_cache_mib=mib)
    whole = cache_of(Model.load(path, moe_cache_mib=64)).n_bytes
    assert cache_of(Model.load(path, moe_cache_mib=float("inf"))).n_bytes == whole
    with pytest.raises(ModelError, match="without `mmap=False`"):
        Model.load(path, moe_cache_mib=64, use_mmap=False)
    dense = write_model(tmp_path / "x.gguf", Spec(), random_weights(Spec()))
    assert Model.load(dense, moe_cache_mib=1).experts is None


LIMITED = """
import resource, sys, threading
from pyggml.errors import PyggmlError
from pyllama import Batch, Context, Model

path, mib = sys.argv[1], float(sys.argv[2])
threading.stack_size(1 << 20)  # stacks of 8 MiB, in place of experts, would fill what is allowed
Context(Model.load(sys.argv[3], moe_cache_mib=mib), n_ctx=64).decode(Batch([1, 2, 3]))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
n = 1024 * int(status["VmData"].split()[0]) + (int(sys.argv[4]) << 20)
resource.setrlimit(resource.RLIMIT_DATA, (n, n))
try:
    Context(Model.load(path, repack=True), n_ctx=64)
    print("whole")
except (PyggmlError, MemoryError) as error:
    print(type(error).__name__)
model = Model.load(path, moe_cache_mib=mib)
ctx = Context(model, n_ctx=64)
for token in range(20, 30):
    ctx.decode(Batch([token]))
    print(int(ctx.logits_ith(-1).argmax()))
"""


def write_experts(path: Path, n: int) -> Path:
    """A model with ``n`` experts of 0.6 MiB in each of 4 layers."""
    spec = Spec(n_embd=256, n_ff=768, head_dim=64, n_layer=4, tied=False)
    weights, kind = random_weights(spec), GGMLType.Q8_0
    dense = GGUFFile(write_model(path, spec, weights))
    keys = {"llama.expert_count": n, "llama.expert_used_count": 4}
    tensors: dict[str, Any] = {}
    for name, x in weights.items():
        if ".ffn_norm" in name:
            router = np.random.default_rng(len(tensors)).standard_normal((n, len(x)))
            tensors[name.replace("ffn_norm", "ffn_gate_inp")] = router.astype(np.float32)
        if ".ffn_" not in name or "norm" in name:
            tensors[name] = x
            continue
        rows = quantize(x, kind)
        experts = np.stack([np.roll(rows, i, 0) for i in range(n)])
        tensors[name.replace(".weight", "_exps.weight")] = experts, kind, (*x.shape[::-1], n)
    metadata = {**dense.metadata, **keys}
    dense.close()
    write_gguf(path, metadata, tensors)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA of Linux")
def test_a_model_larger_than_the_allowed_memory(tmp_path: Path) -> None:
    """160 MiB of experts in a process that may allocate 120 MiB more."""
    path, small = (write_experts(tmp_path / f"{n}.gguf", n) for n in (64, 8))
    command = [sys.executable, "-P", "-c", LIMITED, *map(str, (path, 64, small, 120))]
    got = subprocess.run(command, capture_output=True, text=True, check=True)
    refused, *found = got.stdout.split()
    assert refused in ("AllocError", "MemoryError")
    ctx = Context(Model.load(path), n_ctx=64)
    for token, argmax in zip(range(20, 30), found, strict=True):
        ctx.decode(Batch([token]))
        assert int(ctx.logits_ith(-1).argmax()) == int(argmax)
