"""Heads that draft: what they compute, and that texts do not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Batch, Context, Model
from pyllama.arch import get_arch
from pyllama.convert import ConvertOptions, convert
from pyllama.convert.nextn import nextn_keys
from pyllama.engine import Engine, Request
from pyllama.engine.generate import generate_many
from pyllama.errors import BatchError, ModelError, StateError
from pyllama.grammar import Grammar
from pyllama.kv.memory import HiddenReads
from pyllama.runtime.heads import mtp_head
from pyllama.runtime.state import dump_state, restore_state
from pyllama.sampling import SamplingParams
from pyllama.speculative import HeadDrafter, Speculation

from ..arch import llama_cpp
from ..arch.checkpoints import long_but, write_files
from ..arch.mtp import Made, alone, inputs_of, layer_norm, name_of, text_config, with_mtp
from .counts import check_counts
from .views import Text

VARIANTS = long_but(
    ["qwen35", "qwen35_text", "qwen3next", "qwen35moe", "glm4moe", "deepseek2_v3", "deepseek2_glm",
     "deepseek32", "glm-dsa", "hy_v3", "mimo2", "bailingmoe3", "bailingmoe3_compressed", "step35",
     "cohere2moe", "cohere2moe_shared", "nemotron_h_moe", "nemotron_h_moe_latent"],
    ("qwen35", "qwen3next", "glm4moe", "deepseek2_glm", "mimo2", "step35", "nemotron_h_moe"),
)  # fmt: skip
F32 = {"n_ctx": 64, "type_k": "f32", "type_v": "f32"}
TOKENS = np.random.default_rng(43).integers(3, 500, 200).tolist()


@pytest.mark.parametrize("name", VARIANTS)
def test_computes_the_layer(tmp_path: Path, name: str) -> None:
    config, made = with_mtp(name)
    target = Context(_load(tmp_path / "whole", config, made), **F32)
    head = mtp_head(target.model)
    target.keep_hidden(head.reads)
    target.decode(Batch(TOKENS[:20]))
    hidden, tokens = target.kv.hidden(0), TOKENS[1:21]
    context = Context(head.model, **F32)
    context.decode(Batch(tokens, logits="all", hidden=hidden))
    logits, states = context.logits.copy(), context.hidden.copy()

    plain = alone(config, made, inputs_of(config, made, tokens, hidden))
    expected = Context(_load(tmp_path / "alone", *plain), **F32)
    is_own = name.startswith("nemotron")  # its last norm is no RMS norm
    if is_own or head.model.hparams.hidden != "result_norm":
        expected.keep_hidden(HiddenReads((f"l_out-{int(is_own)}",)))
    expected.decode(Batch(range(20), logits="all", embeddings="all"))
    of_layer, wanted = expected.embeddings, expected.logits
    if is_own:
        weight = made[f"{name_of(config, 'shared_head.norm')}.weight"]
        of_layer = layer_norm(expected.kv.hidden(0), weight, config["layer_norm_epsilon"])
        wanted = of_layer @ made["lm_head.weight"].T
    elif head.model.hparams.hidden != "result_norm":
        of_layer = expected.kv.hidden(0)
    assert np.abs(logits - wanted).max() < 1e-4
    assert np.abs(states - of_layer).max() < 1e-4

    context.kv.clear()
    for i in range(20):  # one at a time: the same bits
        context.decode(Batch(tokens[i : i + 1], hidden=hidden[i : i + 1]))
        assert (context.logits[0] == logits[i]).all() and (context.hidden[0] == states[i]).all()


@pytest.mark.parametrize("name", ["qwen35", "glm4moe"])
def test_keeps_hidden_states_and_no_other_bits(tmp_path: Path, name: str) -> None:
    model = _load(tmp_path / "x", *with_mtp(name))
    plain, keeping = (Context(model, **F32, n_seq_max=2, n_ubatch=7) for _ in range(2))
    keeping.keep_hidden(HiddenReads(("result_norm",)))
    plain.decode(Batch(TOKENS[:20], logits="all", embeddings="all"))
    keeping.decode(Batch(TOKENS[:20], logits="all"))
    assert (keeping.logits == plain.logits).all()
    assert (keeping.kv.hidden(0) == plain.embeddings).all()
    keeping.kv.seq_cp(0, 1)
    plain.kv.seq_cp(0, 1)
    for context in (plain, keeping):
        context.decode_token(5, 1)
    assert (keeping.logits == plain.logits).all()
    assert (keeping.kv.hidden(1)[:20] == keeping.kv.hidden(0)).all()
    assert len(keeping.kv.hidden(1)) == 21
    keeping.keep_hidden(HiddenReads(("result_norm",)))
    with pytest.raises(BatchError, match="hidden states are kept for another head"):
        keeping.keep_hidden(HiddenReads(("l_out-0",)))


def predicting(name: str, noise: float, n: int = 1) -> tuple[dict[str, Any], Made]:
    """A model whose next token depends on the last one, and ``n`` layers that tell it.

    No layer adds anything to the embedding.

    Args:
        noise: of the layers' projections; 0: all their drafts are right.
    """
    config, made = with_mtp(name, n)
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")
    made |= {x: np.zeros_like(w) for x, w in made.items() if x.endswith(ends)}
    n_embd = text_config(config)["hidden_size"]
    one = 0.0 if name.startswith(("qwen", "step")) else 1.0
    for layer in range(n):
        made[f"{name_of(config, 'enorm', layer)}.weight"] = np.full(n_embd, one, np.float32)
        made[f"{name_of(config, 'shared_head.norm', layer)}.weight"] = made["model.norm.weight"]
        project = np.zeros((n_embd, 2 * n_embd))
        if noise:
            project = np.random.default_rng(3 + layer).normal(0, noise, project.shape)
        project[:, :n_embd] += np.eye(n_embd)
        made[f"{name_of(config, 'eh_proj', layer)}.weight"] = project.astype(np.float32)
    return config, made


PROMPTS = [TOKENS[:3], TOKENS[10:31], TOKENS[40:41], TOKENS[50:95]]
GREEDY = SamplingParams(temp=0.0)
PARAMS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(temp=0.8, seed=7, repeat_penalty=1.1),
}
RATES = {0.0: (1.0, 1.0), 0.03: (0.1, 0.9), 10.0: (0.0, 0.05)}  # of accepted drafts, greedy


@pytest.mark.parametrize("noise", RATES)
@pytest.mark.parametrize(
    ("name", "n"),
    [("qwen35", 1), ("mimo2", 3), pytest.param("glm4moe", 1, marks=pytest.mark.long),
     pytest.param("step35", 3, marks=pytest.mark.long),
     *(pytest.param(f"{x}_chosen", 1, marks=pytest.mark.long) for x in ("deepseek32", "glm-dsa"))],
)  # fmt: skip
def test_texts_do_not_change(tmp_path: Path, name: str, n: int, noise: float) -> None:
    model = _load(tmp_path / "x", *predicting(name, noise, n))
    for n_seq_max, width in ((1, 1), (4, 1), (4, 2)):
        target = Context(model, n_ctx=256, n_seq_max=n_seq_max, n_ubatch=16)
        drafter = HeadDrafter(target, mtp_head(model), width=width)
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


@pytest.mark.parametrize("name", ["mimo2", pytest.param("step35", marks=pytest.mark.long)])
def test_each_layer_drafts_a_token(tmp_path: Path, name: str) -> None:
    model = _load(tmp_path / "x", *with_mtp(name, 3))
    target, head = Context(model, **F32), mtp_head(model)
    drafter = HeadDrafter(target, head)
    assert drafter.max_draft == 3 and len(head.later) == 2
    n_read = 0
    for n in (20, 22, 29):  # the context has all but the last token
        target.decode(Batch(TOKENS[n_read : n - 1]))
        n_read, hidden = n - 1, target.kv.hidden(0)
        wanted: list[int] = []
        states = list(hidden)
        for layer in (head.model, *head.later):
            context = Context(layer, **F32)
            context.decode(Batch(TOKENS[1:n] + wanted, hidden=np.stack(states)))
            wanted.append(context.argmax_ith(0))
            states.append(context.hidden[0].copy())
        view = Text(TOKENS[:n], sequence_id=0)
        for most in (1, 3, 8):
            (found,) = drafter.propose([view], [most])
            assert found is not None and found.tokens == wanted[:most]
    # the same text again, after it went on with the drafted tokens
    target.decode(Batch([TOKENS[n - 1], *wanted]))
    drafter.propose([Text([*TOKENS[:n], *wanted, 3], sequence_id=0)], [3])
    drafter.release(view)
    target.kv.seq_rm(0, n - 1)
    (found,) = drafter.propose([Text(TOKENS[:n], id=1, sequence_id=0)], [3])
    assert found is not None and len(found) == 3 and found.tokens[:2] == wanted[:2]


@pytest.mark.long
@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize(("name", "n"), [("glm4moe", 1), ("step35", 2)])
def test_llama_cpp_drafts_and_accepts_as_much(
    tmp_path: Path, name: str, n: int, noise: float
) -> None:
    pytest.importorskip("xllamacpp")
    model = _load(tmp_path / "x", *predicting(name, noise, n))
    path = llama_cpp.plain_words(model.path)
    server = llama_cpp.serve(path, draft=(None, "DRAFT_MTP", 3))
    target = Context(Model.load(path), **{**F32, "n_ctx": 256})
    drafter = HeadDrafter(target, mtp_head(target.model))
    check_counts(server, target, drafter, PROMPTS)


@pytest.mark.parametrize(("name", "n"), [("qwen35", 1), ("mimo2", 3)])
def test_grammars_restored_states_and_earlier_texts(tmp_path: Path, name: str, n: int) -> None:
    model = _load(tmp_path / "x", *predicting(name, 0.0, n))
    context = Context(model, n_ctx=256, n_seq_max=2, n_checkpoints=4)
    drafter = HeadDrafter(context, mtp_head(model))
    grammar = Grammar('root ::= ([a-z] " "?)+')
    requests = [
        Request(PROMPTS[3], GREEDY, max_tokens=12),
        Request(PROMPTS[3] + TOKENS[:2], GREEDY, max_tokens=12),  # the cells of the first
        Request(PROMPTS[3][:30] + TOKENS[:2], GREEDY, max_tokens=12),  # from a checkpoint
        Request(PROMPTS[1], SamplingParams(temp=0.7, seed=5), max_tokens=12, grammar=grammar),
    ]
    texts = []
    for speculation in (None, Speculation(drafter, 4, adaptive=False)):
        context.reset()
        engine = Engine(context, speculation=speculation)
        texts.append([])
        for request in requests:
            texts[-1].append([t for event in engine.run(request) for t in event.tokens])
    assert texts[0] == texts[1]
    stats = speculation.stats
    assert stats.n_accept >= 24  # of the three greedy ones

    context.reset()
    context.decode(Batch(PROMPTS[3]))
    hidden, saved = (
        context.kv.hidden(0).copy(),
        b"".join(x.tobytes() for x in dump_state(context, PROMPTS[3])),
    )
    context.reset()
    assert restore_state(context, saved) == PROMPTS[3]
    assert (context.kv.hidden(0) == hidden).all()
    with pytest.raises(
        StateError, match=r"from a F16/F16 with hidden states .*cache, this one is F1"
    ):
        restore_state(Context(model, n_ctx=256, n_seq_max=2), saved)


def test_is_refused_in_one_line(tmp_path: Path) -> None:
    config, made = with_mtp("qwen35")
    without = Context(_load(tmp_path / "without", config, made, mtp=False), n_ctx=16)
    assert without.hparams.n_layer_nextn == 0
    with pytest.raises(ModelError, match="has no layers of multi-token prediction") as caught:
        mtp_head(without.model)
    assert "\n" not in str(caught.value)
    other = _load(tmp_path / "other", *with_mtp("glm4moe"))
    with pytest.raises(ModelError, match="of a glm4moe model cannot draft for qwen35"):
        mtp_head(without.model, other.path)
    path = _convert(tmp_path / "alone", config, made, mtp_only=True)
    assert path.stat().st_size < without.model.path.stat().st_size
    weights = mtp_head(without.model, path).model.weights  # of two files
    assert weights["token_embd.weight"] is without.model.weights["token_embd.weight"]
    with pytest.raises(ModelError, match="no layers of multi-token prediction that can be loaded"):
        _convert(tmp_path / "no", config, made, mtp=False, mtp_only=True)
    config, made = with_mtp("cohere2moe")
    del config["layer_types"]
    with pytest.raises(ModelError, match=r"config\.json: 'layer_types' is missing"):
        _convert(tmp_path / "kinds", config, made)


def test_arrays_by_layer_get_values_of_the_layers() -> None:
    config = {"num_hidden_layers": 4, "num_attention_heads": 4, "moe_intermediate_size": 96}
    keys = {
        "block_count": 4,
        "rope.dimension_sections": [11, 11, 10, 0],  # as many, but not by layer
        "attention.head_count": 4,
        "attention.head_count_kv": np.array([0, 0, 2, 0], np.int32),
        "feed_forward_length": np.array([0, 96, 0, 96], np.int32),
    }
    found = nextn_keys(keys, 1, config, get_arch("nemotron_h_moe"))
    assert {k: list(v) if isinstance(v, np.ndarray) else v for k, v in found.items()} == {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "attention.head_count_kv": [0, 0, 2, 0, 4],
        "feed_forward_length": [0, 96, 0, 96, 96],
    }
    assert nextn_keys(keys, 0, config, get_arch("nemotron_h_moe")) == {}


def _load(folder: Path, config: dict[str, Any], made: Made, **options: Any) -> Model:
    return Model.load(_convert(folder, config, made, **options))


def _convert(folder: Path, config: dict[str, Any], made: Made, **options: Any) -> Path:
    write_files(folder, config, made)
    return convert(folder, folder.with_suffix(".gguf"), "f32", ConvertOptions(**options))
