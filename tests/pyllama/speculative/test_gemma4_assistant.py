"""Assistants of Gemma 4: what they compute, that texts do not change, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend.interface import Backend
from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Batch, Context, Llama, Model
from pyllama.convert import convert
from pyllama.engine import Engine, Request
from pyllama.engine.generate import generate_many
from pyllama.errors import ModelError
from pyllama.grammar import Grammar
from pyllama.runtime.heads import mtp_head
from pyllama.sampling import SamplingParams
from pyllama.speculative import HeadDrafter, Speculation
from tests.pyggml.sched.fake_device import DeferredDevice, FakeDevice

from ..arch import llama_cpp
from ..arch.checkpoints import DATA, recorded, shapes_of, variants, weights, write_files
from ..arch.gemma4_assistant import Made, head_of
from .counts import check_counts

F32 = {"n_ctx": 128, "type_k": "f32", "type_v": "f32"}
TOKENS = np.random.default_rng(43).integers(3, 500, 200).tolist()
PROMPTS = [TOKENS[:3], TOKENS[10:31], TOKENS[40:42], TOKENS[50:95]]
GREEDY = SamplingParams(temp=0.0)
PARAMS = {"greedy": GREEDY, "drawn": SamplingParams(temp=0.8, seed=7, repeat_penalty=1.1)}


@pytest.mark.parametrize("n", [11, 45])  # within the window, and beyond it
def test_computes_as_transformers(tmp_path: Path, n: int) -> None:
    path = write_pair(tmp_path, *checkpoint("gemma4"))
    with np.load(DATA / "heads" / "gemma4_assistant.npz") as file:
        tokens, logits, states = (file[f"{name}_{n}"] for name in ("tokens", "logits", "hidden"))
    target = Context(Model.load(tmp_path / "target.gguf"), **F32, n_seq_max=2, n_ubatch=16)
    head = mtp_head(target.model, path)
    target.keep_hidden(head.reads)
    target.decode(Batch(tokens[:-1].tolist(), seq_id=1))
    reads = {"target": target, "target_layers": head.target_layers}
    drafted = [int(tokens[-1]), *logits.argmax(1)[:-1].tolist()]
    hidden = np.concatenate([target.kv.hidden(1)[-1:], states[:-1]])
    for n_threads in (1, 2):
        context = Context(head.model, **F32, **reads, n_seq_max=2, n_threads=n_threads)
        context.target_seqs[0] = 1
        context.decode(Batch(drafted, logits="all", hidden=hidden))
        assert np.abs(context.logits - logits).max() < 1e-4
        assert np.abs(context.hidden - states).max() < 1e-4
        all_logits = context.logits.copy()
        context.kv.clear()
        for i, token in enumerate(drafted):  # one at a time: the same bits
            context.decode(Batch([token], hidden=hidden[i : i + 1]))
            assert (context.logits[0] == all_logits[i]).all()


# --- texts ----------------------------------------------------------------------------------------


def predicting(name: str, noise: float) -> tuple[dict[str, Any], Made, tuple[dict[str, Any], Made]]:
    """A target whose next token depends on the last one, and an assistant that tells it.

    No layer of either adds anything to its input, which is the embedding: of the assistant plus
    ``noise`` times the hidden states.
    """
    config, made, (head, of_head) = checkpoint(name)
    zeros = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight",
             "post_per_layer_input_norm.weight")  # fmt: skip
    made |= {x: np.zeros_like(w) for x, w in made.items() if x.endswith(zeros)}
    made |= {x: np.ones_like(w) for x, w in made.items() if x.endswith("layer_scalar")}
    n, n_own = config["hidden_size"], config["hidden_size"] + 16  # llama.cpp refuses equal widths
    head["text_config"] |= {"hidden_size": n_own}
    of_head = {
        x: np.full(tuple(n_own if k == 48 else k for k in w.shape), w.flat[0])
        for x, w in of_head.items()
    }
    of_head |= {x: np.zeros_like(w) for x, w in of_head.items() if x.endswith(zeros)}
    of_head |= {x: np.ones_like(w) for x, w in of_head.items() if x.endswith("layer_scalar")}
    eye, rest = np.eye(n_own, n), ((0, 0), (0, n_own - n))
    of_head |= {
        "pre_projection.weight": np.concatenate([eye, noise * eye], 1),
        "post_projection.weight": np.random.default_rng(3).normal(0, 1 / 8, (n, n_own)),
        "model.norm.weight": np.pad(made["model.norm.weight"], rest[1]),
        "model.embed_tokens.weight": np.pad(made["model.embed_tokens.weight"], rest),
    }
    return config, made, (head, {x: w.astype(np.float32) for x, w in of_head.items()})


RATES = {0.0: (1.0, 1.0), 4.0: (0.1, 0.95), 300.0: (0.0, 0.5)}  # of accepted drafts, greedy


@pytest.mark.parametrize("noise", RATES)
@pytest.mark.parametrize("name", ["gemma4", pytest.param("gemma4_moe", marks=pytest.mark.long)])
def test_texts_do_not_change(tmp_path: Path, name: str, noise: float) -> None:
    path = write_pair(tmp_path, *predicting(name, noise))
    model = Model.load(tmp_path / "target.gguf")
    for n_seq_max, width in ((1, 1), (4, 1), (4, 2)):
        target = Context(model, n_ctx=256, n_seq_max=n_seq_max, n_ubatch=16)
        drafter = HeadDrafter(target, mtp_head(model, path), width=width)
        for key, params in PARAMS.items():
            plain = sorted(generate_many(target, PROMPTS, params, n_predict=16))
            speculation = Speculation(drafter, 4, adaptive=False)
            texts = generate_many(target, PROMPTS, params, n_predict=16, speculation=speculation)
            assert sorted(texts) == plain
            stats = speculation.stats
            assert stats.n_drafted > 40
            if key == "greedy" and width == 1:
                least, most = RATES[noise]
                assert least <= stats.n_accept / stats.n_drafted <= most


def test_grammars_and_earlier_texts(tmp_path: Path) -> None:
    path = write_pair(tmp_path, *predicting("gemma4", 0.0))
    context = Context(Model.load(tmp_path / "target.gguf"), n_ctx=256, n_seq_max=2)
    grammar = Grammar('root ::= ([a-z] " "?)+')
    requests = [
        Request(PROMPTS[3], GREEDY, max_tokens=12),
        Request(PROMPTS[3] + TOKENS[:2], GREEDY, max_tokens=12),  # the cells of the first
        Request(PROMPTS[3][:30] + TOKENS[:2], GREEDY, max_tokens=12),
        *(
            Request(PROMPTS[1], params, max_tokens=12, grammar=grammar)
            for params in PARAMS.values()
        ),
    ]
    texts = []
    drafter = HeadDrafter(context, mtp_head(context.model, path))
    for speculation in (None, Speculation(drafter, 4, adaptive=False)):
        context.reset()
        engine = Engine(context, speculation=speculation)
        texts.append([[t for event in engine.run(r) for t in event.tokens] for r in requests])
    assert texts[0] == texts[1]
    assert speculation is not None and speculation.stats.n_accept >= 24


def test_types_of_caches_and_context_shift(tmp_path: Path) -> None:
    """The head reads rotated caches, and keys whose shift is still pending."""
    path = write_pair(tmp_path, *predicting("gemma4", 0.0))
    model = Model.load(tmp_path / "target.gguf")
    head = mtp_head(model, path)
    for type, unified in (("q8_0", True), ("bf16", False)):
        sizes = {"n_ctx": 96, "type_k": type, "type_v": type, "unified": unified}
        target = Context(model, **sizes, n_seq_max=2, swa_full=True)
        drafter = HeadDrafter(target, head)
        texts = []
        for speculation in (None, Speculation(drafter, 4, adaptive=False)):
            target.reset()
            request = Request(PROMPTS[1], GREEDY, max_tokens=90, n_keep=4)
            engine = Engine(target, speculation=speculation)
            texts.append([t for event in engine.run(request) for t in event.tokens])
        assert texts[0] == texts[1] and len(texts[0]) == 90
        assert speculation is not None
        assert speculation.stats.n_accept == speculation.stats.n_drafted > 40


@pytest.mark.parametrize("device", [FakeDevice, DeferredDevice])
def test_drafts_on_a_device(tmp_path: Path, device: Callable[[], Backend]) -> None:
    path = write_pair(tmp_path, *predicting("gemma4", 0.0))
    texts = []
    for n_gpu_layers in (0, 2, -1):
        model = Model.load(tmp_path / "target.gguf", devices=[device()], n_gpu_layers=n_gpu_layers)
        target = Context(model, n_ctx=256, n_seq_max=2, n_ubatch=16)
        speculation = Speculation(HeadDrafter(target, mtp_head(model, path)), 4, adaptive=False)
        made = generate_many(target, PROMPTS, GREEDY, n_predict=16, speculation=speculation)
        texts.append(sorted(made))
        assert speculation.stats.n_accept == speculation.stats.n_drafted > 40
    assert texts[0] == texts[1] == texts[2]


def test_llama_takes_a_file(tmp_path: Path) -> None:
    path = write_pair(tmp_path, *predicting("gemma4", 0.0))
    texts = []
    for draft in (None, str(path)):
        llm = Llama(str(tmp_path / "target.gguf"), n_ctx=128, draft_model=draft, verbose=False)
        texts.append(llm(PROMPTS[1], max_tokens=24, temperature=0)["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert llm.speculation is not None and isinstance(llm.speculation.drafter, HeadDrafter)


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_llama_cpp_drafts_and_accepts_as_much(tmp_path: Path, noise: float) -> None:
    pytest.importorskip("xllamacpp")
    path = write_pair(tmp_path, *predicting("gemma4", noise))
    files = llama_cpp.plain_words(tmp_path / "target.gguf"), llama_cpp.plain_words(path)
    server = llama_cpp.serve(files[0], draft=(files[1], "DRAFT_MTP", 3))
    target = Context(Model.load(files[0]), **{**F32, "n_ctx": 256})
    drafter = HeadDrafter(target, mtp_head(target.model, files[1]))
    check_counts(server, target, drafter, PROMPTS)


# --- files ----------------------------------------------------------------------------------------


def test_is_converted_as_by_llama_cpp(tmp_path: Path) -> None:
    config, made, (head, of_head) = checkpoint("gemma4")
    head["use_ordered_embeddings"] = True  # as of E2B and E4B
    of_head |= {
        "masked_embedding.token_ordering": np.arange(512),
        "masked_embedding.centroids.weight": np.zeros((8, 48), np.float32),
    }
    ours = llama_cpp.described(write_pair(tmp_path, config, made, (head, of_head)))
    del ours["keys"]["vocab_size"]  # llama.cpp's converter leaves it out of this one
    with np.load(DATA / "heads" / "gemma4_assistant.npz") as file:
        assert ours == json.loads(str(file["gguf"]))


def test_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_pair(tmp_path, *checkpoint("gemma4"))
    target = Model.load(tmp_path / "target.gguf")
    with GGUFFile(path) as file:
        keys = file.typed_metadata()
        tensors: dict[str, Any] = {
            name: (file.tensor_bytes(name).copy(), info.type, info.ne[: info.n_dims])
            for name, info in file.tensors.items()
        }
    wrong = {
        "reads 32 columns, the model .* has 64": {"embedding_length_out": np.uint32(32)},
        "is for 3 tokens, the model .* has 512": {"tokenizer.ggml.tokens": ["a", "b", "c"]},
        "a layer with a window of 8, the model .* has none": {
            "attention.sliding_window": np.uint32(8)
        },
        r"has heads of \(16, 16\) columns, the model .* of \(32, 32\)": {
            f"attention.{name}_length_swa": np.uint32(16) for name in ("key", "value")
        }
        | {"rope.dimension_count_swa": np.uint32(16)},
        "has 3 heads of queries, the model .* 2 of keys": {
            "attention.head_count": np.uint32(3),
            "attention.head_count_kv": np.uint32(1),
        },
    }
    for i, (message, changed) in enumerate(wrong.items()):
        named = {k if k.startswith("t") else f"gemma4-assistant.{k}": v for k, v in changed.items()}
        other = tmp_path / f"{i}.gguf"
        write_gguf(other, keys | named, tensors)
        with pytest.raises(ModelError, match=message) as caught:
            mtp_head(target, other)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="this Gemma 4 assistant is no whole model"):
        Model.load(path)
    llama = write_files(tmp_path / "llama", *llama_checkpoint())
    with pytest.raises(ModelError, match=r"drafts for gemma4, the model .* is llama"):
        mtp_head(Model.load(convert(llama, tmp_path / "llama.gguf", "f32")), path)


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(name: str) -> tuple[dict[str, Any], Made, tuple[dict[str, Any], Made]]:
    """Configurations and weights of a variant and of an assistant for it."""
    record, (_, config) = recorded(name), variants()[name]
    made = weights(config["model_type"], shapes_of(record), float(record["scale"]))
    return config, made, head_of(config)


def write_pair(
    folder: Path, config: dict[str, Any], made: Made, head: tuple[dict[str, Any], Made]
) -> Path:
    """``target.gguf`` and ``head.gguf``; the latter's path."""
    write_files(folder / "target", config, made)
    convert(folder / "target", folder / "target.gguf", "f32")
    write_files(folder / "head", *head)
    return convert(folder / "head", folder / "head.gguf", "f32")


def llama_checkpoint() -> tuple[dict[str, Any], Made]:
    """Configuration and weights of another architecture."""
    record, (_, config) = recorded("llama"), variants()["llama"]
    return config, weights(config["model_type"], shapes_of(record), float(record["scale"]))
