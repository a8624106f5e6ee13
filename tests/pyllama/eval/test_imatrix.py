"""Importance matrices against the observed values of a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import ComputeError
from pyllama import Context, Model
from pyllama.convert import convert
from pyllama.errors import PerplexityError
from pyllama.eval.imatrix import Collector, collect_importance
from pyllama.eval.perplexity import perplexity
from pyllama.inspect.observe import observe
from pyllama.quantize import Importance, read_importance, write_importance
from pyllama.quantize.importance import ImportanceEntry

from ..arch.checkpoints import write_checkpoint
from ..conftest import Make

TOKENS = [1, *np.random.default_rng(5).integers(3, 259, 100).tolist()]


def collected(context: Context, **options: bool) -> Importance:
    collector = Collector(context.n_ctx_seq, **options)
    list(collect_importance(context, TOKENS, collector, n_chunks=2))
    return collector.importance


@pytest.mark.parametrize("n_batch", [32, 7])
def test_sums_match_the_observed_inputs(make: Make, n_batch: int) -> None:
    importance = collected(make(n_ctx=32, n_batch=n_batch), process_output=True)
    assert (importance.n_chunks, importance.chunk_size) == (2, 32)
    inputs = {
        "attn_q": "attn_norm-1", "attn_k": "attn_norm-1", "attn_v": "attn_norm-1",
        "ffn_gate": "ffn_norm-1", "ffn_up": "ffn_norm-1", "ffn_down": "ffn_swiglu-1",
        "attn_output": "kqv_out-1",
    }  # fmt: skip
    seen = dict.fromkeys((*inputs.values(), "result_norm"), 0.0)
    for start in (0, 32):
        context = make(n_ctx=32)
        values = observe(context, [1, *TOKENS[start + 1 : start + 32]])
        for name in seen:
            seen[name] = seen[name] + np.square(values[name]).sum(axis=0)
    for matrix, node in inputs.items():
        entry = importance.entries[f"blk.1.{matrix}.weight"]
        assert entry.counts.tolist() == [64]
        np.testing.assert_allclose(entry.sums[0], seen[node], rtol=1e-4)
    tied = importance.entries["token_embd.weight"]
    np.testing.assert_allclose(tied.sums[0], seen["result_norm"], rtol=1e-4)
    assert len(importance.entries) == 3 * 7 + 1


def test_perplexity_equals_the_perplexity_function(make: Make) -> None:
    for n_batch in (32, 9):
        collector = Collector(32)
        got = list(collect_importance(make(n_ctx=32, n_batch=n_batch), TOKENS, collector))
        assert [r.ppl for r in got] == [r.ppl for r in perplexity(make(n_ctx=32), TOKENS)]
        assert not any("token_embd" in name for name in collector.importance.entries)


def test_experts(tmp_path: Path) -> None:
    """Each token counts for the experts that it is routed to."""
    path = convert(write_checkpoint(tmp_path / "m", "mixtral"), tmp_path / "x.gguf", "f32")
    with Model.load(path) as model:
        context = Context(model, n_ctx=32, n_threads=2)
        collector = Collector(32)
        list(collect_importance(context, TOKENS, collector, first_chunk=1, n_chunks=1))
        chunk = [model.tokenizer.bos, *TOKENS[33:64]]
        values = observe(Context(model, n_ctx=32, n_threads=2), chunk, ["ffn_*-0"])
    hp, ids = model.hparams, values["ffn_moe_topk-0"].astype(int)
    x, down = values["ffn_norm-0"], values["ffn_moe_swiglu-0"]
    for part, rows in (("up", x), ("down", down)):
        entry = collector.importance.entries[f"blk.0.ffn_{part}_exps.weight"]
        assert entry.sums.shape == (hp.n_expert, rows.shape[-1])
        for expert in range(hp.n_expert):
            token, used = np.nonzero(ids == expert)
            chosen = rows[token] if part == "up" else rows[token, used]
            assert entry.counts[expert] == len(token)
            want = np.square(chosen).sum(axis=0)
            np.testing.assert_allclose(entry.sums[expert], want, rtol=1e-4)


def test_continuing_from_a_file(make: Make, tmp_path: Path) -> None:
    first = collected(make(n_ctx=32))
    write_importance(tmp_path / "i.gguf", first)
    collector = Collector(32)
    collector.importance.add(read_importance(tmp_path / "i.gguf"))
    list(collect_importance(make(n_ctx=32), TOKENS, collector, n_chunks=1))
    assert collector.importance.n_chunks == 3
    assert collector.importance.entries["blk.0.attn_q.weight"].counts.tolist() == [96]
    other = Collector(32)
    other.importance.entries["blk.0.attn_q.weight"] = ImportanceEntry(
        np.ones((1, 7), np.float32), np.ones(1)
    )
    with pytest.raises(ComputeError, match="it belongs to another model"):
        list(collect_importance(make(n_ctx=32), TOKENS, other))


def test_too_short_texts(make: Make) -> None:
    for tokens, first in ((TOKENS[:20], 0), (TOKENS, 3), (TOKENS, 2**30)):
        with pytest.raises(PerplexityError, match="there is no chunk"):
            collect_importance(make(n_ctx=32), tokens, Collector(32), first)
