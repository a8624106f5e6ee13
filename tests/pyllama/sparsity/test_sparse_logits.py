"""Sparse models: logits against torch and dense runs, and invariance of their bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.errors import ComputeError
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.embeddings import embed_many
from pyllama.engine import Engine
from pyllama.errors import BatchError, ModelError
from pyllama.inspect.observe import observe
from pyllama.runtime.overrides import Overrides

from ...tiers import only, some
from ..arch.checkpoints import EVERY, long_but, own_graphs, write_checkpoint
from ..arch.checkpoints import recorded as dense_recording
from ..arch.variants import VARIANTS as OF_ARCHITECTURES
from ..encoders.checkpoints import write_checkpoint as write_encoder
from ..encoders.variants import VARIANTS as OF_ENCODERS
from .files import N_LAYER, VARIANTS, dense_file, read, recorded, sparse_file, write

F32, F16, Q4_0, Q8_0 = GGMLType.F32, GGMLType.F16, GGMLType.Q4_0, GGMLType.Q8_0
ROUNDED = 2e-5  # largest difference of logits with a standard deviation of 1.5, all in float32
EIGHT_BITS = 1e-3  # NMSE: the dense down product rounds its activations, AXPY does not
INF = float("inf")
GATED = ("llama_relu", "bamboo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sparse")


def logits(
    model: Model, tokens: list[int], cuts: tuple[int, ...] = (), **options: Any
) -> np.ndarray:
    """Logits of all tokens, decoded in parts that end at ``cuts``."""
    context = Context(model, **{"n_ctx": 64, "type_k": F32, "type_v": F32, **options})
    parts = []
    for start, stop in pairwise((0, *cuts, len(tokens))):
        context.decode(Batch(tokens[start:stop], logits="all"))
        parts.append(context.logits.copy())
    return np.concatenate(parts)


def hidden(model: Model, tokens: list[int], **options: Any) -> np.ndarray:
    """An encoder's rows of all tokens."""
    return embed_many(Engine(Context(model, n_ctx=64, **options)), [tokens], "none")[0]


def of(path: Path, name: str, **options: Any) -> np.ndarray:
    return logits(Model.load(path, **options), recorded(name)["tokens"].tolist())


ONE_BY_ONE = tuple(range(1, 40))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_match_torch_in_one_batch_and_token_by_token(folder: Path, name: str) -> None:
    record = recorded(name)
    model, tokens = Model.load(sparse_file(folder, name)), record["tokens"].tolist()
    assert model.hparams.sparse == ("predictor",) * 3
    for cuts in ((), ONE_BY_ONE):
        assert np.abs(logits(model, tokens, cuts) - record["logits"]).max() < 2e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_all_neurons_active_equals_dense(folder: Path, name: str) -> None:
    path = sparse_file(folder, name)
    off = of(path, name, sparse="off")
    assert np.abs(off[::EVERY] - dense_recording(name)["logits"]).max() < 1e-4
    assert np.array_equal(of(path, name, sparse_threshold=-INF), off)
    assert np.abs(of(dense_file(folder, name), name) - off).max() < ROUNDED


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_of_the_layer_before(folder: Path, name: str) -> None:
    path, tokens = sparse_file(folder, name), recorded(name)["tokens"].tolist()
    everything = of(path, name, sparse="cross", sparse_threshold=-INF)
    assert np.array_equal(everything, of(path, name, sparse="off"))
    model = Model.load(path, sparse="cross")
    wanted = logits(model, tokens)
    assert np.array_equal(logits(model, tokens, ONE_BY_ONE), wanted)
    context = Context(model, n_ctx=64, type_k=F32, type_v=F32)
    context.decode(Batch(tokens[:18], logits=[False, *[True] * 17]))  # a graph of 18 outputs
    assert np.array_equal(context.logits, wanted[1:18])


def test_predictors_read_the_input_of_the_layer_before(folder: Path) -> None:
    path, tokens = sparse_file(folder, "llama_relu"), recorded("llama_relu")["tokens"].tolist()
    model, weights = Model.load(path, sparse="cross"), read(path)[1]
    states = observe(Context(model, n_ctx=64), tokens, ["ffn_inp-*", "mlp_pre_*"])
    for layer, before in enumerate((0, 0, 1)):
        hidden = np.maximum(states[f"ffn_inp-{before}"] @ weights[f"blk.{layer}.fc1.weight"].T, 0)
        wanted = hidden @ weights[f"blk.{layer}.fc2.weight"].T
        assert np.abs(states[f"mlp_pre_out-{layer}"] - wanted).max() < 1e-4


@pytest.mark.parametrize("name", VARIANTS)
def test_no_neurons_active_equals_attention_only(folder: Path, name: str, tmp_path: Path) -> None:
    metadata, weights = read(dense_file(folder, name))
    for key in weights:
        if key.endswith("ffn_down.weight"):  # the bias is kept
            weights[key][:] = 0
    wanted = of(write(tmp_path / "x.gguf", metadata, weights, magic=b"GGUF"), name)
    got = of(sparse_file(folder, name), name, sparse_threshold=INF)
    assert np.abs(got - wanted).max() < ROUNDED


def squared(folder: Path, name: str) -> Path:
    """The variant with squared ReLU, in a plain file."""
    metadata, weights = read(dense_file(folder, name))
    metadata[f"{metadata['general.architecture']}.hidden_act"] = "relu_sqr"
    return write(folder / f"{name}-squared.gguf", metadata, weights, magic=b"GGUF")


FILES: dict[str, Callable[[Path, str], Path]] = {
    "plain": dense_file, "transposed": sparse_file, "squared": squared
}  # fmt: skip


@pytest.mark.parametrize("kind", some(FILES, 2))
@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_exact_equals_dense(folder: Path, name: str, kind: str) -> None:
    path = FILES[kind](folder, name)
    dense = of(path, name, sparse="off")
    assert np.abs(of(path, name, sparse="exact") - dense).max() < ROUNDED
    all_of_rank, all_neurons = "svd=64", f"topk={256 if name not in GATED else 160}"
    assert np.abs(of(path, name, sparse=all_of_rank) - dense).max() < ROUNDED
    assert np.abs(of(path, name, sparse=all_neurons) - dense).max() < ROUNDED


@pytest.mark.parametrize("type", only([F16, Q8_0, Q4_0], [Q8_0]), ids=lambda type: type.name)
@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_exact_with_quantized_weights(folder: Path, name: str, type: GGMLType) -> None:
    plain = write(folder / f"{name}-{type.name}.gguf", *read(dense_file(folder, name)), type)
    dense, exact = (of(plain, name, sparse=source) for source in ("off", "exact"))
    assert ((exact - dense) ** 2).sum() < EIGHT_BITS * (dense**2).sum()
    path = sparse_file(folder, name, type)
    assert np.array_equal(of(path, name, sparse="exact"), of(path, name, sparse="off"))


OTHER_FFN = {  # experts, gate and up in one matrix, or a feed-forward part of their own
    "apertus", "arctic", "bitnet", "chatglm", "gemma-embedding2", "gemma3n", "gemma4", "glm4",
    "jina-bert-v2", "modern-bert", "neo-bert", "phi3", "plamo2", "plamo3", "rwkv6", "rwkv7", "t5",
    "t5encoder",
}  # fmt: skip
HEADS = {"eagle3"}  # they only draft for other models
BY_DEFAULT = ("bamboo", "chatglm", "gemma4", "gpt2", "llama", "qwen3moe")


@pytest.mark.parametrize(
    "arch", long_but({*own_graphs().values(), *OF_ENCODERS} - HEADS, BY_DEFAULT)
)
def test_every_graph_can_be_sparse_or_says_no(tmp_path: Path, arch: str) -> None:
    """With ReLU instead of the model's own activation; the latter is refused."""
    encoders = OF_ENCODERS.get(arch)
    name = next(iter(encoders or OF_ARCHITECTURES[arch]))
    path, options = tmp_path / "x.gguf", {"overrides": Overrides(hidden_act="relu")}
    write = write_encoder if encoders else write_checkpoint
    convert(write(tmp_path / "checkpoint", name), path, "f32")
    hp = Model.load(path, vocab_only=True).hparams
    plain = not hp.n_expert and all(hp.n_ff_arr)
    if arch in OTHER_FFN or not (plain or hp.relu_experts):
        with pytest.raises(ModelError, match="sparse inference does not support") as error:
            Context(Model.load(path, sparse="exact"), n_ctx=64, **options)
        assert "\n" not in str(error.value)
        return
    model = Model.load(path, sparse="exact")
    if encoders:
        dense, exact = (hidden(m, list(range(5, 17)), **options) for m in (Model.load(path), model))
        assert np.abs(exact - dense).max() < ROUNDED
    else:
        tokens = dense_recording(name)["tokens"].tolist()[:12]
        dense, exact = (logits(m, tokens, **options) for m in (Model.load(path), model))
        assert np.abs(exact - dense).max() < ROUNDED
        assert np.array_equal(logits(model, tokens, (3, 4), **options), exact)
    config = encoders[name] if encoders else OF_ARCHITECTURES[arch][name]
    if (
        arch != "opt"
        and not hp.relu_experts
        and not {"relu", "relu2"} & {*map(str, config.values())}
    ):
        with pytest.raises(ModelError, match="trained with ReLU"):
            Context(model, n_ctx=64)


def test_squared_relu_is_not_relu(folder: Path) -> None:
    for name in VARIANTS:
        assert (
            np.abs(of(squared(folder, name), name) - of(dense_file(folder, name), name)).max() > 1
        )


@pytest.mark.parametrize("source", only(["signs", "svd=32", "topk=48"], ["svd=32"]))
@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_approximations_are_close_to_dense(folder: Path, name: str, source: str) -> None:
    """Random weights are the worst case: half of the rank explains about half of the variance."""
    path = dense_file(folder, name)
    dense = of(path, name)
    nothing = of(path, name, sparse="signs", sparse_threshold=INF)
    for repack in (True, False):
        got = of(path, name, sparse=source, repack=repack)
        lost, all_lost = ((x - dense) ** 2 for x in (got, nothing))
        assert 0 < lost.sum() < 0.5 * all_lost.sum()


BITS = {
    F32: ("predictor", "svd"),
    F16: ("predictor,exact:0,off:1", "signs"),
    Q4_0: ("predictor", "exact"),
    Q8_0: ("exact,predictor:1", "topk=20"),
}


@pytest.mark.parametrize("type", some(BITS, 2), ids=lambda type: type.name)
@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_bits_do_not_depend_on_threads_batches_or_layout(
    folder: Path, name: str, type: GGMLType
) -> None:
    tokens = recorded(name)["tokens"].tolist()[:23]
    path = sparse_file(folder, name, type)
    for source in BITS[type]:
        model = Model.load(path, sparse=source)
        whole = logits(model, tokens, n_threads=1)
        for other in (
            logits(model, tokens, n_threads=2),
            logits(model, tokens, n_ubatch=1, n_threads=2),
            logits(model, tokens, n_ubatch=7),
            logits(Model.load(path, sparse=source, repack=False), tokens, (1, 4), n_ubatch=16),
        ):
            assert np.array_equal(other, whole), source


def test_bits_do_not_depend_on_other_sequences(folder: Path) -> None:
    model = Model.load(sparse_file(folder, "bamboo", Q8_0))
    texts = [np.random.default_rng(i).integers(4, 512, 6 + i).tolist() for i in range(5)]
    alone = [logits(model, tokens) for tokens in texts]
    context = Context(model, n_ctx=128, n_seq_max=5, type_k=F32, type_v=F32)
    tokens = [t for text in texts for t in text]
    seqs = [i for i, text in enumerate(texts) for _ in text]
    context.decode(Batch(tokens, seq_id=seqs, logits="all"))
    assert np.array_equal(context.logits, np.concatenate(alone))


def test_two_thresholds_in_one_process(folder: Path) -> None:
    path, name = sparse_file(folder, "bamboo"), "bamboo"
    alone = [of(path, name, sparse_threshold=t) for t in (0.0, 0.5)]
    models = [Model.load(path, sparse_threshold=t) for t in (0.0, 0.5)]
    contexts = [Context(m, n_ctx=64, type_k=F32, type_v=F32) for m in models]
    tokens = recorded(name)["tokens"].tolist()
    together: list[list[np.ndarray]] = [[], []]
    for token in tokens:
        for context, rows in zip(contexts, together, strict=True):
            context.decode_token(token)
            rows.append(context.logits.copy())
    assert not np.array_equal(*alone)
    for rows, wanted in zip(together, alone, strict=True):
        assert np.array_equal(np.concatenate(rows), wanted)


def test_powerinfer_opt_metadata(folder: Path) -> None:
    """No epsilon, no flag for BOS, and two extra position rows, counted in context_length."""
    path = sparse_file(folder, "opt")
    metadata, weights = read(path)
    assert metadata["opt.context_length"] == 2050
    assert weights["position_embd.weight"].shape == (258, 64)
    model = Model.load(path)
    assert model.hparams.n_ctx_train == 256 and model.hparams.norm_eps == 1e-5
    assert model.tokenizer.encode("a")[0] == 2
    assert Context(model).n_ctx == 256


@pytest.mark.parametrize("name", some(VARIANTS, 2))
def test_a_context_drafts_with_its_own_threshold_and_layers(folder: Path, name: str) -> None:
    """On the weights of a loaded model; with the model's own values it is the model itself."""
    path, tokens = sparse_file(folder, name), recorded(name)["tokens"].tolist()
    model = Model.load(path)

    def drafted(**given: Any) -> np.ndarray:
        return logits(model, tokens, overrides=Overrides(**given))

    target, own = logits(model, tokens), model.hparams.sparse_threshold
    assert np.array_equal(drafted(sparse_threshold=own, n_layer=N_LAYER), target)
    assert np.array_equal(drafted(sparse_threshold=-INF), of(path, name, sparse="off"))
    higher = drafted(sparse_threshold=own + 0.5)
    assert not np.array_equal(higher, target)
    assert np.array_equal(higher, of(path, name, sparse_threshold=own + 0.5))
    assert np.array_equal(logits(model, tokens), target)
    draft = Context(model, n_ctx=64, overrides=Overrides(sparse_threshold=INF, n_layer=2))
    assert draft._weights is model.weights
    assert [layer for cache in draft.kv.caches for layer in cache.layers] == [0, 1]


@pytest.mark.parametrize("sparse", ["off", "exact", "exact,predictor:2"])
def test_a_threshold_needs_predicted_scores(folder: Path, sparse: str) -> None:
    """In the layers that run: the last one, which has them, is left out here."""
    model = Model.load(sparse_file(folder, "bamboo"), sparse=sparse)
    overrides = Overrides(sparse_threshold=1.0, n_layer=2)
    with pytest.raises(BatchError, match="no layer of this context has predicted scores") as error:
        Context(model, n_ctx=64, overrides=overrides)
    assert "\n" not in str(error.value)
    with pytest.raises(BatchError, match="sparse_threshold is nan"):
        Context(model, n_ctx=64, overrides=Overrides(sparse_threshold=float("nan")))


def test_nan_scores_are_an_error(folder: Path) -> None:
    def damage(metadata: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        weights["blk.1.fc2.weight"][3, 0] = np.nan

    (folder / "nan").mkdir()
    model = Model.load(sparse_file(folder / "nan", "bamboo", change=damage))
    context = Context(model, n_ctx=64)
    with pytest.raises(ComputeError) as error:
        context.decode(Batch([5, 6]))
    assert "score" in str(error.value) and "\n" not in str(error.value)
