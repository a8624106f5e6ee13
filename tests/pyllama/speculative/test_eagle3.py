"""EAGLE-3 heads: what they compute, that texts do not change, and what is refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyllama import Batch, Context, Llama, Model
from pyllama.convert import ConvertOptions, convert
from pyllama.engine import Engine, Request
from pyllama.engine.generate import generate_many
from pyllama.errors import ModelError
from pyllama.grammar import Grammar
from pyllama.kv.memory import HiddenReads
from pyllama.runtime.heads import eagle3_head
from pyllama.sampling import SamplingParams
from pyllama.speculative import HeadDrafter, Speculation

from ..arch import llama_cpp
from ..arch.checkpoints import N_VOCAB, recorded, shapes_of, variants, weights, write_files
from ..arch.eagle3 import KINDS, N_DRAFTED, Made, computed, head_of, vocabulary
from .counts import check_counts

F32 = {"n_ctx": 64, "type_k": "f32", "type_v": "f32"}
TOKENS = np.random.default_rng(43).integers(3, 500, 200).tolist()
PROMPTS = [TOKENS[:3], TOKENS[10:31], TOKENS[40:41], TOKENS[50:95]]
GREEDY = SamplingParams(temp=0.0)
PARAMS = {"greedy": GREEDY, "drawn": SamplingParams(temp=0.8, seed=7, repeat_penalty=1.1)}


@pytest.mark.parametrize("kind", KINDS)
def test_computes_the_head(tmp_path: Path, kind: str) -> None:
    config, made = checkpoint("llama")
    path, (head_config, of_head) = write_pair(tmp_path, config, made, head_of(config, kind))
    target = Context(Model.load(tmp_path / "target.gguf"), **F32)
    head = eagle3_head(target.model, path)
    target.keep_hidden(head.reads)
    target.decode(Batch(TOKENS[:20], logits="all"))
    fused, tokens = target.kv.hidden(0).copy(), TOKENS[1:21]
    context = Context(head.model, **F32)
    context.decode(Batch(tokens, logits="all", hidden=fused))
    logits, states = context.logits.copy(), context.hidden.copy()

    inputs = []  # of the layers that the head reads, one after the other
    for layer in head_config["eagle_aux_hidden_state_layer_ids"]:
        plain = Context(target.model, **F32)
        plain.keep_hidden(HiddenReads((f"l_out-{layer - 1}",)))
        plain.decode(Batch(TOKENS[:20], logits="all"))
        assert (plain.logits == target.logits).all()
        inputs.append(plain.kv.hidden(0).astype(np.float64))
    x = np.concatenate(inputs, 1)
    if head_config.get("norm_before_fc"):
        x *= of_head["input_norm.weight"] / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    x = x @ of_head["fc.weight"].T
    assert np.abs(fused - x).max() < 1e-4
    whole = {name: w for name, w in made.items() if name.startswith(("model.embed", "lm_head"))}
    if kind == "speculator":
        whole = {}
    expected = computed(head_config, whole | of_head, tokens, fused)
    assert (np.isinf(logits) == np.isinf(expected[0])).all()
    drafted = np.isfinite(logits)
    assert np.abs(logits[drafted] - expected[0][drafted]).max() < 1e-4
    assert np.abs(states - expected[1]).max() < 1e-4
    assert drafted[0].sum() == head_config["draft_vocab_size"]

    context.kv.clear()
    for i in range(20):  # one at a time: the same bits
        context.decode(Batch(tokens[i : i + 1], hidden=fused[i : i + 1]))
        assert (context.logits[0] == logits[i]).all() and (context.hidden[0] == states[i]).all()
        assert context.argmax_ith(0) == logits[i].argmax()


# --- texts ----------------------------------------------------------------------------------------


def predicting(name: str, noise: float, kind: str) -> tuple[dict[str, Any], Made, Any]:
    """A target whose next token depends on the last one, and a head that tells it.

    No layer of the target adds anything to the embedding. The head's attention copies the
    embedding of the token itself, and its residual is ``noise`` times the normed hidden states.
    """
    config, made = checkpoint(name)
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    made |= {x: np.zeros_like(w) for x, w in made.items() if x.endswith(ends)}
    n = config["hidden_size"]
    head, _ = head_of(config, kind)
    head |= {"norm_before_residual": True, "num_attention_heads": 4, "num_key_value_heads": 4}
    head |= {"head_dim": n // 4, "rms_norm_eps": config["rms_norm_eps"]}
    prefix = {"shared": "model.layers.0", "authors": "midlayer"}[kind]
    copies = np.concatenate([np.eye(n), np.zeros((n, n))], 1)
    tensors = {
        f"{prefix}.input_layernorm.weight": np.ones(n),
        f"{prefix}.hidden_norm.weight": np.full(n, noise),
        f"{prefix}.self_attn.q_proj.weight": 30 * copies,  # so large that only the token itself
        f"{prefix}.self_attn.k_proj.weight": 30 * copies,  # is attended to
        f"{prefix}.self_attn.v_proj.weight": copies,
        f"{prefix}.self_attn.o_proj.weight": np.eye(n),
        f"{prefix}.post_attention_layernorm.weight": np.ones(n),
        f"{prefix}.mlp.gate_proj.weight": np.zeros((96, n)),
        f"{prefix}.mlp.up_proj.weight": np.zeros((96, n)),
        f"{prefix}.mlp.down_proj.weight": np.zeros((n, 96)),
        "fc.weight": np.random.default_rng(3).normal(0, 1 / 8, (n, 3 * n)),
        "norm.weight": made["model.norm.weight"] + float(name.startswith("qwen35")),
    }
    if kind == "authors":
        x = made["model.embed_tokens.weight"].astype(np.float64)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + head["rms_norm_eps"])
        following = (x * tensors["norm.weight"] @ made["lm_head.weight"].T).argmax(-1)
        ids = np.unique(following)
        tensors |= vocabulary(ids) | {"lm_head.weight": made["lm_head.weight"][ids]}
        head["draft_vocab_size"] = len(ids)
        assert len(ids) < 400
    integers = {"d2t": np.int64, "t2d": bool}
    of_head = {x: w.astype(integers.get(x, np.float32)) for x, w in tensors.items()}
    return config, made, (head, of_head)


RATES = {0.0: (1.0, 1.0), 0.5: (0.1, 0.95), 30.0: (0.0, 0.05)}  # of accepted drafts, greedy


@pytest.mark.parametrize("noise", RATES)
@pytest.mark.parametrize(
    ("name", "kind", "unit"),  # of noise
    [("llama", "authors", 1), pytest.param("qwen35_text", "shared", 4, marks=pytest.mark.long)],
)
def test_texts_do_not_change(tmp_path: Path, name: str, kind: str, unit: int, noise: float) -> None:
    path, _ = write_pair(tmp_path, *predicting(name, unit * noise, kind))
    model = Model.load(tmp_path / "target.gguf")
    for n_seq_max, width in ((1, 1), (4, 1), (4, 2)):
        target = Context(model, n_ctx=256, n_seq_max=n_seq_max, n_ubatch=16)
        drafter = HeadDrafter(target, eagle3_head(model, path), width=width)
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


def test_grammars_earlier_texts_and_distributions(tmp_path: Path) -> None:
    """Also a grammar whose tokens the head cannot draft."""
    path, (_, of_head) = write_pair(tmp_path, *predicting("llama", 0.0, "authors"))
    context = Context(Model.load(tmp_path / "target.gguf"), n_ctx=256, n_seq_max=2)
    pieces = [context.model.tokenizer.token_to_piece(i) for i in range(N_VOCAB)]
    drafted = set((of_head["d2t"] + np.arange(len(of_head["d2t"]))).tolist())
    letters = {p.decode() for p in pieces if len(p) == 1 and p.isalpha()}
    never = sorted(c for c in letters if not any(c.encode() in pieces[i] for i in drafted))
    grammars = ['root ::= ([a-z] " "?)+', f"root ::= [{''.join(never)}]+"]
    assert never
    requests = [
        Request(PROMPTS[3], GREEDY, max_tokens=12),
        Request(PROMPTS[3] + TOKENS[:2], GREEDY, max_tokens=12),  # the cells of the first
        Request(PROMPTS[3][:30] + TOKENS[:2], GREEDY, max_tokens=12),
        *(
            Request(PROMPTS[1], params, max_tokens=12, grammar=Grammar(grammar))
            for grammar in grammars
            for params in PARAMS.values()
        ),
    ]
    head = eagle3_head(context.model, path)
    drafter = HeadDrafter(context, head)
    texts = []
    for speculation in (None, Speculation(drafter, 4, adaptive=False)):
        context.reset()
        engine = Engine(context, speculation=speculation)
        texts.append([[t for event in engine.run(r) for t in event.tokens] for r in requests])
    assert texts[0] == texts[1]
    assert speculation is not None and speculation.stats.n_accept >= 24

    sampled = HeadDrafter(
        Context(context.model, n_ctx=256), head, replace(GREEDY, temp=0.8, seed=3), width=3
    )
    assert len(generate_with(sampled._target, sampled, PROMPTS[1])) == 20


def generate_with(target: Context, drafter: Any, prompt: list[int]) -> list[int]:
    speculation = Speculation(drafter, 6, adaptive=False)
    request = Request(prompt, SamplingParams(temp=0.8, seed=1), max_tokens=20)
    return [t for e in Engine(target, speculation=speculation).run(request) for t in e.tokens]


# --- files ----------------------------------------------------------------------------------------

KEYS = {  # that llama.cpp's converter writes for the checkpoint "speculator"
    "block_count": 1,
    "context_length": 256,
    "embedding_length": 48,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "norm_before_fc": True,
    "norm_before_residual": True,
    "rope.dimension_count": 16,
    "rope.freq_base": 10000.0,
    "target_hidden_size": 64,
    "target_layers": [3, 1, 2],
    "vocab_size": 512,
}
TENSORS = {
    "blk.0.attn_norm.weight": [48],
    "blk.0.attn_norm_2.weight": [48],
    "blk.0.attn_q.weight": [96, 64],
    "blk.0.attn_k.weight": [96, 32],
    "blk.0.attn_v.weight": [96, 32],
    "blk.0.attn_output.weight": [64, 48],
    "blk.0.ffn_norm.weight": [48],
    "blk.0.ffn_gate.weight": [48, 96],
    "blk.0.ffn_up.weight": [48, 96],
    "blk.0.ffn_down.weight": [96, 48],
    "d2t": [N_DRAFTED],
    "enc.output_norm.weight": [192],
    "fc.weight": [192, 48],
    "output.weight": [48, N_DRAFTED],
    "output_norm.weight": [48],
    "token_embd.weight": [48, 512],
}


def test_is_converted_as_by_llama_cpp(tmp_path: Path) -> None:
    config, made = checkpoint("llama")
    path, (_, of_head) = write_pair(tmp_path, config, made, head_of(config, "speculator"))
    described = llama_cpp.described(path)
    assert described == {"architecture": "eagle3", "keys": KEYS, "tensors": TENSORS}
    with GGUFFile(path) as head, GGUFFile(tmp_path / "target.gguf") as target:
        ids = head.tensor_bytes("d2t").view(np.int64)
        assert head.tensors["d2t"].type is GGMLType.I64
        assert (ids == of_head["d2t"] + np.arange(N_DRAFTED)).all()
        tokens = "tokenizer.ggml.tokens"
        assert list(head.metadata[tokens]) == list(target.metadata[tokens])
    # without ids of layers, those of the authors; the width of the target's layers is its own
    config["num_hidden_layers"] = 12
    shared, of_head = head_of(config, "shared")
    del shared["eagle_aux_hidden_state_layer_ids"]
    write_files(tmp_path / "deep", config, {})
    write_files(tmp_path / "plain", shared, of_head)
    options = ConvertOptions(target_model=tmp_path / "deep")
    found = llama_cpp.described(convert(tmp_path / "plain", tmp_path / "p.gguf", "f32", options))
    assert found["keys"]["target_layers"] == [2, 6, 9]
    assert found["keys"]["target_hidden_size"] == 64
    assert "output.weight" not in found["tensors"] and "d2t" not in found["tensors"]


@pytest.mark.skipif("LLAMA_CPP_SOURCES" not in os.environ, reason="needs llama.cpp's sources")
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_converts_the_same(tmp_path: Path, kind: str) -> None:
    config, made = checkpoint("llama")
    path, _ = write_pair(tmp_path, config, made, head_of(config, kind))
    theirs = llama_cpp.convert(tmp_path / "head", tmp_path / "theirs.gguf", tmp_path / "target")
    assert llama_cpp.described(path) == llama_cpp.described(theirs)
    with GGUFFile(path) as ours, GGUFFile(theirs) as other:
        for name in ours.tensors:
            assert (ours.tensor_bytes(name) == other.tensor_bytes(name)).all(), name


def test_is_refused_in_one_line(tmp_path: Path) -> None:
    config, made = checkpoint("llama")
    path, (_, of_head) = write_pair(tmp_path, config, made, head_of(config, "speculator"))
    target = Model.load(tmp_path / "target.gguf")
    with GGUFFile(path) as file:
        keys = file.typed_metadata()
        tensors: dict[str, Any] = {
            name: (file.tensor_bytes(name).copy(), info.type, info.ne[: info.n_dims])
            for name, info in file.tensors.items()
        }
    ids = tensors["d2t"][0].view(np.int64)

    def of_ids(changed: np.ndarray) -> dict[str, Any]:
        return {"d2t": (changed.view(np.uint8), GGMLType.I64, changed.shape)}

    wrong: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "reads 32 columns of a layer, the model .* has 64": ({"target_hidden_size": 32}, {}),
        r"inputs of layers \[1, 2, 4\], the model .* has layers 1": (
            {"target_layers": [1, 2, 4]},
            {},
        ),
        r"inputs of layers \[1, 2\], ": ({"target_layers": [1, 2]}, {}),
        r"inputs of layers \[0, 2, 3\], ": ({"target_layers": [0, 2, 3]}, {}),
        "is for 3 tokens, the model .* has 512": ({"tokenizer.ggml.tokens": ["a", "b", "c"]}, {}),
        "drafts other tokens": ({}, of_ids(ids + 300)),
        r"drafts other tokens \(": ({}, of_ids(ids * 0)),
        "drafts other tokens .'d": ({}, of_ids(ids - 512)),
        "drafts other tokens .'d2": ({}, of_ids(ids[:0])),
        "lacks 'token_embd.weight' and has 48 columns": ({}, {"token_embd.weight": None}),
        "has 200 outputs for 512 tokens": ({}, {"d2t": None}),
        "'fc.weight' is missing": ({}, {"fc.weight": None}),
        "'d2t' is F32": ({}, {"d2t": np.zeros(N_DRAFTED, np.float32)}),
    }
    for i, (message, (changed, of_file)) in enumerate(wrong.items()):
        named = {k if "." in k else f"eagle3.{k}": v for k, v in changed.items()}
        other = tmp_path / f"{i}.gguf"
        left = {name: x for name, x in (tensors | of_file).items() if x is not None}
        write_gguf(other, keys | named, left)
        with pytest.raises(ModelError, match=message) as caught:
            eagle3_head(target, other)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="a llama model is no EAGLE-3 head"):
        eagle3_head(target, target.path)
    with pytest.raises(ModelError, match="this EAGLE-3 head is no whole model"):
        Model.load(path)
    with pytest.raises(ModelError, match="give the folder of this target"):
        convert(tmp_path / "head", tmp_path / "x.gguf")
    with pytest.raises(ModelError, match="leave `target_model` out"):
        options = ConvertOptions(target_model=tmp_path / "target")
        convert(tmp_path / "target", tmp_path / "x.gguf", options=options)
    of_head["d2t"][3] -= 1
    write_files(tmp_path / "twice", head_of(config, "speculator")[0], of_head)
    with pytest.raises(ModelError, match="the ids must differ"):
        convert(tmp_path / "twice", tmp_path / "x.gguf", "f32", options)


def test_llama_takes_a_file(tmp_path: Path) -> None:
    path, _ = write_pair(tmp_path, *predicting("llama", 0.0, "authors"))
    texts = []
    for draft in (None, str(path)):
        llm = Llama(str(tmp_path / "target.gguf"), n_ctx=128, draft_model=draft, verbose=False)
        texts.append(llm(PROMPTS[1], max_tokens=24, temperature=0)["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert llm.speculation is not None and isinstance(llm.speculation.drafter, HeadDrafter)


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_llama_cpp_drafts_and_accepts_as_much(tmp_path: Path, noise: float) -> None:
    pytest.importorskip("xllamacpp")
    config, made, head = predicting("llama", noise, "authors")
    # llama.cpp's graph of LLaMA does not give the output of the last layer
    head[0]["eagle_aux_hidden_state_layer_ids"] = [2, 1, 2]
    path, _ = write_pair(tmp_path, config, made, head)
    files = llama_cpp.plain_words(tmp_path / "target.gguf"), llama_cpp.plain_words(path)
    server = llama_cpp.serve(files[0], draft=(files[1], "DRAFT_EAGLE3", 3))
    target = Context(Model.load(files[0]), **{**F32, "n_ctx": 256})
    drafter = HeadDrafter(target, eagle3_head(target.model, files[1]))
    check_counts(server, target, drafter, PROMPTS)


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(name: str) -> tuple[dict[str, Any], Made]:
    """Configuration and weights of a variant."""
    _, config = variants()[name]
    record = recorded(name)
    return config, weights(config["model_type"], shapes_of(record), float(record["scale"]))


def write_pair(
    folder: Path, config: dict[str, Any], made: Made, head: tuple[dict[str, Any], Made]
) -> tuple[Path, tuple[dict[str, Any], Made]]:
    """``target.gguf`` and ``head.gguf``; the latter's path, and its configuration and weights."""
    write_files(folder / "target", config, made)
    convert(folder / "target", folder / "target.gguf", "f32")
    write_files(folder / "head", *head)
    for file in ("tokenizer.model", "vocab.json", "merges.txt"):
        (folder / "head" / file).unlink(missing_ok=True)  # it is the target's
    options = ConvertOptions(target_model=folder / "target")
    return convert(folder / "head", folder / "head.gguf", "f32", options), head
