"""DFlash heads: what they compute, that texts do not change, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.backend.interface import Backend
from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Batch, Context, Llama, Model
from pyllama.arch import dflash
from pyllama.convert import ConvertOptions, convert
from pyllama.engine import Engine, Request
from pyllama.engine.generate import generate_many
from pyllama.errors import ModelError
from pyllama.grammar import Grammar
from pyllama.runtime.heads import dflash_head
from pyllama.sampling import SamplingParams
from pyllama.speculative import BlockDrafter, Speculation, head_drafter
from tests.pyggml.sched.fake_device import DeferredDevice, FakeDevice

from ..arch import llama_cpp
from ..arch.checkpoints import DATA, recorded, shapes_of, variants, weights, write_files
from ..arch.dflash import BLOCK, DSPARK, KINDS, MASK, Made, copying, head_of
from .counts import check_counts

F32 = {"n_ctx": 128, "type_k": "f32", "type_v": "f32"}
TOKENS = np.random.default_rng(43).integers(4, 500, 200).tolist()
PROMPTS = [TOKENS[:3], TOKENS[10:31], TOKENS[40:42], TOKENS[50:95]]
GREEDY = SamplingParams(temp=0.0)
PARAMS = {"greedy": GREEDY, "drawn": SamplingParams(temp=0.8, seed=7, repeat_penalty=1.1)}


@pytest.mark.parametrize("n", [11, 45])  # within the window, and beyond it
@pytest.mark.parametrize("kind", KINDS)
def test_computes_as_transformers(tmp_path: Path, kind: str, n: int) -> None:
    config, made = checkpoint()
    path = write_pair(tmp_path, config, made, head_of(config, kind))
    with np.load(DATA / "heads" / f"dflash_{kind}.npz") as file:
        tokens, logits = file[f"tokens_{n}"].tolist(), file[f"logits_{n}"]
    target = Context(Model.load(tmp_path / "target.gguf"), **F32)
    head = dflash_head(target.model, path)
    target.keep_hidden(head.reads)
    target.decode(Batch(tokens[:-1]))
    hidden = target.kv.hidden(0)
    block = [tokens[-1], *[MASK] * (BLOCK - 1)]
    found = []
    for n_threads, n_ubatch in ((1, 128), (2, 8)):
        context = Context(head.model, **F32, n_threads=n_threads, n_ubatch=n_ubatch, n_seq_max=2)
        context.decode(Batch(tokens[:-1], seq_id=1, logits="none", hidden=hidden))
        for _ in range(2):
            context.decode(Batch(block, seq_id=1, logits="all"))
            assert np.abs(context.logits[1:] - logits).max() < 1e-4
            found.append(context.logits.copy())
            context.kv.seq_rm(1, n - 1)
    assert all((x == found[0]).all() for x in found)


@pytest.mark.parametrize("kind", DSPARK)
def test_a_markov_head_adds_to_the_logits(tmp_path: Path, kind: str) -> None:
    config, made = checkpoint()
    path = write_pair(tmp_path, config, made, head_of(config, kind))
    target = Context(Model.load(tmp_path / "target.gguf"), **F32)
    head = dflash_head(target.model, path)
    plain = {name: w for name, w in head.model.weights.items() if name != "markov_w1.weight"}
    without = copy.copy(head.model)
    without.weights = plain
    target.keep_hidden(head.reads)
    target.decode(Batch(TOKENS[:20]))
    block = [TOKENS[20], *[MASK] * (BLOCK - 1)]
    first = 0 if kind == "dspark" else 1
    found = []
    for model in (without, head.model):
        context = Context(model, **F32)
        context.decode(Batch(TOKENS[:20], logits="none", hidden=target.kv.hidden(0)))
        flags = [i >= first for i in range(BLOCK)]
        context.decode(Batch(block, logits=flags))
        found.append(context.logits.astype(np.float64))
    of_head = head_of(config, kind)[1]
    w1, w2 = (of_head[f"markov_head.markov_{x}.weight"].astype(np.float64) for x in ("w1", "w2"))
    ids = of_head["d2t"] + np.arange(len(w2)) if kind == "speculator" else np.arange(512)
    expected, before = found[0].copy(), block[0]
    assert (np.isfinite(expected).sum(1) == len(ids)).all()
    for row in expected:
        row[ids] += w2 @ w1[before]
        before = int(row.argmax())
    assert (expected.argmax(1) != found[0].argmax(1)).any()
    drafted = np.isfinite(expected)
    assert np.abs(found[1][drafted] - expected[drafted]).max() < 1e-4
    assert np.isneginf(found[1][~drafted]).all()


# --- texts ----------------------------------------------------------------------------------------

RATES = {  # of accepted drafts, greedy, by the head and whether the target repeats its last token
    (0.0, True): (1.0, 1.0),
    (0.0, False): (0.2, 0.9),
    (4.0, False): (0.0, 0.2),
}


@pytest.mark.parametrize(("noise", "repeats"), RATES)
def test_texts_do_not_change(tmp_path: Path, noise: float, repeats: bool) -> None:
    path = write_pair(tmp_path, *predicting(noise, repeats))
    model = Model.load(tmp_path / "target.gguf")
    for n_seq_max, unified in ((1, True), (4, True), (4, False)):
        sizes = {"n_ctx": 512, "n_seq_max": n_seq_max, "n_ubatch": 16, "unified": unified}
        target = Context(model, **sizes)
        drafter = head_drafter(target, dflash_head(model, path), width=2)
        assert isinstance(drafter, BlockDrafter) and drafter.max_draft == BLOCK - 1
        for key, params in PARAMS.items():
            plain = sorted(generate_many(target, PROMPTS, params, n_predict=16))
            speculation = Speculation(drafter, 8, adaptive=False)
            texts = generate_many(target, PROMPTS, params, n_predict=16, speculation=speculation)
            assert sorted(texts) == plain
            stats = speculation.stats
            assert stats.n_drafted > 40
            if key == "greedy":
                least, most = RATES[noise, repeats]
                assert least <= stats.n_accept / stats.n_drafted <= most


def test_a_markov_head_drafts_what_follows(tmp_path: Path) -> None:
    path = write_pair(tmp_path, *predicting(0.0, False, markov=True))
    model = Model.load(tmp_path / "target.gguf")
    target = Context(model, n_ctx=512, n_seq_max=4, n_ubatch=16)
    drafter = BlockDrafter(target, dflash_head(model, path))
    assert drafter.max_draft == BLOCK
    for params in PARAMS.values():
        plain = sorted(generate_many(target, PROMPTS, params, n_predict=16))
        speculation = Speculation(drafter, 8, adaptive=False)
        texts = generate_many(target, PROMPTS, params, n_predict=16, speculation=speculation)
        assert sorted(texts) == plain
        stats = speculation.stats
        if params is GREEDY:
            assert stats.n_accept == stats.n_drafted > 40
            assert len({token for _, token in plain}) > 10


def test_grammars_earlier_texts_and_distributions(tmp_path: Path) -> None:
    path = write_pair(tmp_path, *predicting(0.0, True))
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
    head = dflash_head(context.model, path)
    drafter = BlockDrafter(context, head)
    for speculation in (None, Speculation(drafter, 4, adaptive=False)):
        context.reset()
        engine = Engine(context, speculation=speculation)
        texts.append([[t for event in engine.run(r) for t in event.tokens] for r in requests])
    assert texts[0] == texts[1]
    assert speculation is not None and speculation.stats.n_accept >= 24

    target = Context(context.model, n_ctx=256)
    sampled = BlockDrafter(target, head, replace(GREEDY, temp=0.8, seed=3))
    sampling = SamplingParams(temp=0.8, seed=1)
    speculation = Speculation(sampled, 4, adaptive=False)
    request = Request(PROMPTS[1], sampling, max_tokens=20)
    made = [t for e in Engine(target, speculation=speculation).run(request) for t in e.tokens]
    assert len(made) == 20 and speculation.stats.n_drafted > 10


@pytest.mark.parametrize("device", [FakeDevice, DeferredDevice])
def test_drafts_on_a_device(tmp_path: Path, device: Callable[[], Backend]) -> None:
    path = write_pair(tmp_path, *predicting(0.0, True))
    texts = []
    for n_gpu_layers in (0, 2, -1):
        model = Model.load(tmp_path / "target.gguf", devices=[device()], n_gpu_layers=n_gpu_layers)
        target = Context(model, n_ctx=256, n_seq_max=2, n_ubatch=16)
        speculation = Speculation(BlockDrafter(target, dflash_head(model, path)), 4, adaptive=False)
        made = generate_many(target, PROMPTS, GREEDY, n_predict=16, speculation=speculation)
        texts.append(sorted(made))
        assert speculation.stats.n_accept == speculation.stats.n_drafted > 40
    assert texts[0] == texts[1] == texts[2]


def test_llama_takes_a_file_and_adapts(tmp_path: Path) -> None:
    path = write_pair(tmp_path, *predicting(0.0, True))
    texts = []
    for draft in (None, str(path)):
        llm = Llama(str(tmp_path / "target.gguf"), n_ctx=128, draft_model=draft, verbose=False)
        texts.append(llm(PROMPTS[1], max_tokens=60, temperature=0)["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert llm.speculation is not None and isinstance(llm.speculation.drafter, BlockDrafter)


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "repeats", "markov"),
    [(0.0, True, False), (0.0, False, False), (1.0, False, False), (0.0, False, True)],
)
def test_llama_cpp_drafts_and_accepts_as_much(
    tmp_path: Path, noise: float, repeats: bool, markov: bool
) -> None:
    pytest.importorskip("xllamacpp")
    path = write_pair(tmp_path, *predicting(noise, repeats, markov))
    files = llama_cpp.plain_words(tmp_path / "target.gguf"), llama_cpp.plain_words(path)
    kind = "DRAFT_DSPARK" if markov else "DRAFT_DFLASH"
    server = llama_cpp.serve(files[0], draft=(files[1], kind, 3), n_ubatch=64)
    target = Context(Model.load(files[0]), **{**F32, "n_ctx": 256})
    drafter = BlockDrafter(target, dflash_head(target.model, files[1]))
    check_counts(server, target, drafter, PROMPTS)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, *DSPARK])
def test_is_converted_as_by_llama_cpp(tmp_path: Path, kind: str) -> None:
    config, made = checkpoint()
    path = write_pair(tmp_path, config, made, head_of(config, kind))
    ours = llama_cpp.described(path)
    with np.load(DATA / "heads" / f"dflash_{kind}.npz") as file:
        theirs = json.loads(str(file["gguf"]))
    theirs["keys"].setdefault("vocab_size", 512)
    assert ours == theirs
    with GGUFFile(path) as head:
        assert head.metadata["tokenizer.ggml.mask_token_id"] == MASK


def test_keys_follow_the_target(tmp_path: Path) -> None:
    """As llama.cpp's converter: rope of sections, the scale of Gemma's embeddings."""
    config, _ = head_of(checkpoint()[0], "dflash")
    target = {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 64,
        "rope_parameters": {"mrope_section": [11, 11, 10]},
    }
    keys = dflash.CONVERT.keys({**config, "target": target, "is_causal": True})
    assert keys["rope.dimension_sections"] == [8, 0, 0, 0]
    assert keys["embedding_scale"] == 8.0 and keys["attention.causal"] is True
    config["dflash_config"] = config["dflash_config"] | {"use_swa": True, "swa_window_size": 32}
    keys = dflash.CONVERT.keys({**config, "target": checkpoint()[0]})
    assert keys["attention.sliding_window"] == 32
    assert keys["attention.sliding_window_pattern"] == [True, True]
    assert not keys.keys() & {"rope.dimension_sections", "embedding_scale", "attention.causal"}
    config["dflash_config"]["conv_kernel_size"] = 4
    with pytest.raises(ModelError, match="conv_kernel_size is of a later kind of head than DFlash"):
        dflash.CONVERT.keys({**config, "target": checkpoint()[0]})


def test_is_refused_in_one_line(tmp_path: Path) -> None:
    config, made = checkpoint()
    path = write_pair(tmp_path, config, made, head_of(config, "dflash"))
    target = Model.load(tmp_path / "target.gguf")
    with GGUFFile(path) as file:
        keys = file.typed_metadata()
        tensors: dict[str, Any] = {
            name: (file.tensor_bytes(name).copy(), info.type, info.ne[: info.n_dims])
            for name, info in file.tensors.items()
        }
    one = np.zeros((1, 1), np.float32)
    wrong: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        r"inputs of layers \[1, 4\], the model .* has layers 1": ({"target_layers": [1, 4]}, {}),
        "reads 128 columns, the model .* has 64": ({"target_layers": [1]}, {}),
        "is for 3 tokens, the model .* has 512": ({"tokenizer.ggml.tokens": ["a", "b", "c"]}, {}),
        "the mask token 600, the model .* has 512": (
            {"tokenizer.ggml.mask_token_id": np.uint32(600)},
            {},
        ),
        "drafts blocks of 1, the model .* needs 2": ({"block_size": np.uint32(1)}, {}),
        "has 32 columns, the model .* has 64": ({"embedding_length": np.uint32(32)}, {}),
        "DFlash 2 is not supported": ({}, {"selector_hidden.weight": one}),
    }
    for i, (message, (changed, added)) in enumerate(wrong.items()):
        named = {k if "." in k else f"dflash.{k}": v for k, v in changed.items()}
        other = tmp_path / f"{i}.gguf"
        write_gguf(other, keys | named, tensors | added)
        with pytest.raises(ModelError, match=message) as caught:
            dflash_head(target, other)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="a llama model is no DFlash head"):
        dflash_head(target, target.path)
    with pytest.raises(ModelError, match="this DFlash head is no whole model"):
        Model.load(path)
    with pytest.raises(ModelError, match="give the folder of this target"):
        convert(tmp_path / "head", tmp_path / "x.gguf")


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint() -> tuple[dict[str, Any], Made]:
    """Configuration and weights of the target."""
    record, (_, config) = recorded("llama"), variants()["llama"]
    return config, weights(config["model_type"], shapes_of(record), float(record["scale"]))


def predicting(
    noise: float, repeats: bool, markov: bool = False
) -> tuple[dict[str, Any], Made, tuple[dict[str, Any], Made]]:
    """A target whose next token depends on the last one, and a head that tells it.

    No layer of the target adds anything to the embedding. If it ``repeats``, the likeliest token
    is the last one again, so all that the head drafts is right; else only the first token is,
    unless it has a ``markov`` head.
    """
    config, made = checkpoint()
    made |= {
        name: np.zeros_like(x)
        for name, x in made.items()
        if name.endswith(("o_proj.weight", "down_proj.weight"))
    }
    embedding = made["model.embed_tokens.weight"].copy()
    embedding[:, 0] = np.abs(embedding[:, 0]) + 0.1
    embedding[MASK] = 0
    embedding[MASK, 0] = -1e-4
    made["model.embed_tokens.weight"] = embedding
    norms = np.sqrt((embedding**2).sum(1, keepdims=True))
    if repeats:
        made["lm_head.weight"] = (embedding / norms * 8).astype(np.float32)
        made["lm_head.weight"][MASK] = 0
    head, of_head = copying(config, "dspark" if markov else "dflash", noise)
    of_head["norm.weight"] = made["model.norm.weight"]
    if repeats:
        made["model.norm.weight"] = of_head["norm.weight"] = np.ones_like(of_head["norm.weight"])
    if markov:
        of_head = {name: x for name, x in of_head.items() if "confidence" not in name}
        rows = embedding / norms * made["model.norm.weight"]
        of_head["markov_head.markov_w1.weight"] = rows.astype(np.float32)
        of_head["markov_head.markov_w2.weight"] = 1e4 * made["lm_head.weight"]
    return config, made, (head, of_head)


def write_pair(
    folder: Path, config: dict[str, Any], made: Made, head: tuple[dict[str, Any], Made]
) -> Path:
    """``target.gguf`` and ``head.gguf``; the latter's path."""
    write_files(folder / "target", config, made)
    convert(folder / "target", folder / "target.gguf", "f32")
    write_files(folder / "head", *head)
    for file in ("tokenizer.model", "vocab.json", "merges.txt"):
        (folder / "head" / file).unlink(missing_ok=True)  # it is the target's
    options = ConvertOptions(target_model=folder / "target")
    return convert(folder / "head", folder / "head.gguf", "f32", options)
