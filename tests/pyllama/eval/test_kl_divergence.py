"""KL divergence and saved logits against a plain double-precision reference."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest

from pyllama.errors import ContextFull, PerplexityError, SavedLogitsError
from pyllama.eval.kl_divergence import kl_divergence, percentile
from pyllama.eval.perplexity import perplexity
from pyllama.eval.saved_logits import SavedLogits, encode, logits_writer, n_scored

from ..fake_context import BOS, FakeContext, FakeModel

TOKENS = [BOS, *np.random.default_rng(3).integers(3, 259, 80).tolist()]
N_VOCAB = 260


def save(path: Path, text: str = "any text", n_ctx: int = 16) -> FakeContext:
    context = FakeContext(FakeModel(text), n_ctx=n_ctx, n_batch=5)
    list(perplexity(context, TOKENS, logits_file=path))
    return context


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x - np.log(np.exp(x - x.max()).sum()) - x.max()


def test_file_format_matches_llama_cpp(tmp_path: Path) -> None:
    context = save(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    n_chunks, rows = len(TOKENS) // 16, n_scored(16)
    assert data[:8] == b"_logits_" and struct.unpack("<3i", data[8:20]) == (16, N_VOCAB, n_chunks)
    tokens = np.frombuffer(data, "<i4", 16 * n_chunks, 20)
    assert tokens.tolist() == TOKENS[: 16 * n_chunks]
    stride = 2 * (N_VOCAB + 4)
    assert len(data) == 20 + 4 * len(tokens) + n_chunks * rows * stride
    first = data[20 + 4 * len(tokens) :][:stride]
    scale, least = struct.unpack("<2f", first[:8])
    codes = np.frombuffer(first, "<u2", N_VOCAB, 8)
    wanted = log_softmax(context.model.logits(TOKENS[:9]))
    assert codes.max() == 65535
    np.testing.assert_allclose(
        scale * codes + least, np.maximum(wanted, wanted.max() - 16), atol=1.5e-4
    )
    saved = SavedLogits(tmp_path / "x")
    assert (saved.n_ctx, saved.n_chunks, saved.n_vocab) == (16, n_chunks, N_VOCAB)
    np.testing.assert_array_equal(saved.log_probs(0)[:1], saved.log_probs(0, slice(0, 1)))
    np.testing.assert_allclose(saved.log_probs(0)[0], scale * codes + least, atol=1e-6)


def test_encoding_of_flat_and_steep_rows() -> None:
    flat, steep = np.zeros(7, np.float32), np.array([0, -1e4, 5, 4, 3, 2, 1], np.float32)
    rows = encode(np.stack([flat, steep]))
    assert rows.shape == (2, 2 * 4 + 4)
    scale, least = rows[:, :4].copy().view("<f4").T
    assert scale[0] == 0 and least[0] == pytest.approx(-math.log(7))
    assert rows[1, 4:11].tolist()[:3] == [45055, 0, 65535]
    assert least[1] == pytest.approx(log_softmax(steep)[2] - 16)


def test_divergence_of_a_model_from_itself_is_zero(tmp_path: Path) -> None:
    context = save(tmp_path / "x")
    for result in kl_divergence(context, SavedLogits(tmp_path / "x")):
        assert abs(result.mean_kld.value) < 1e-5 and result.kld.max() < 2e-4
        assert result.top_agreement.value == 1
        assert abs(result.mean_p_diff.value) < 1e-4
    assert result.chunk == len(TOKENS) // 16
    ppl = list(perplexity(context, TOKENS))[-1]
    assert result.ppl.value == pytest.approx(ppl.ppl, rel=1e-5)
    assert result.ppl.error == pytest.approx(ppl.error, rel=1e-4)


def test_statistics_match_the_reference(tmp_path: Path) -> None:
    base = save(tmp_path / "x")
    other = FakeContext(FakeModel("another text"), n_ctx=32, n_batch=7)
    result = list(kl_divergence(other, SavedLogits(tmp_path / "x"), n_chunks=3))[-1]
    klds, diffs, nlls, bases, same = [], [], [], [], []
    for start in range(0, 48, 16):
        chunk = [BOS, *TOKENS[start + 1 : start + 16]]
        for i in range(8, 15):
            p = log_softmax(base.model.logits(chunk[: i + 1]))
            q = log_softmax(other.model.logits(chunk[: i + 1]))
            p = np.maximum(p, p.max() - 16)
            seen = p > -16
            klds.append((np.exp(p) * (p - q))[seen].sum())
            token = chunk[i + 1]
            nlls.append(-q[token])
            bases.append(-p[token])
            diffs.append(np.exp(q[token]) - np.exp(p[token]))
            same.append(p.argmax() == q.argmax())
    np.testing.assert_allclose(result.kld, klds, atol=2e-4, rtol=1e-4)
    np.testing.assert_allclose(result.p_diff, diffs, atol=1e-4)
    np.testing.assert_allclose(result.nll, nlls, rtol=1e-5)
    n = len(nlls)
    assert result.top_agreement.value == pytest.approx(np.mean(same))
    assert result.mean_kld.value == pytest.approx(np.mean(klds), rel=1e-3)
    assert result.mean_kld.error == pytest.approx(np.std(klds) / math.sqrt(n - 1), rel=1e-3)
    assert result.rms_p_diff.value == pytest.approx(np.sqrt(np.mean(np.square(diffs))), rel=1e-2)
    assert result.correlation == pytest.approx(np.corrcoef(nlls, bases)[0, 1], abs=1e-2)
    assert result.log_ratio.value == pytest.approx(np.mean(nlls) - np.mean(bases), abs=1e-3)
    apart = np.array(nlls) - np.array(bases)
    assert result.log_ratio.error == pytest.approx(np.std(apart) / math.sqrt(n - 1), rel=1e-2)
    assert percentile(np.arange(101.0), 0.9) == pytest.approx(90)


def test_invalid_comparisons_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    context = save(path)
    with pytest.raises(ContextFull, match="chunks of 16 tokens, the context 8"):
        kl_divergence(FakeContext(FakeModel(), n_ctx=8), SavedLogits(path))
    model = FakeModel()
    model.logits = lambda tokens: np.full(260, np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.raises(PerplexityError, match="not finite"):
        next(kl_divergence(FakeContext(model, n_ctx=16), SavedLogits(path)))
    tokens = np.full((1, 16), 3, np.int32)
    for wrong, n_vocab, message in (
        (tokens, 9, "its model has 9 tokens"),
        (-tokens, 260, "not in the voc"),
    ):
        with logits_writer(path, wrong, n_vocab) as write:
            write(np.zeros((n_scored(16), n_vocab), np.float32))
        with pytest.raises(SavedLogitsError, match=message):
            kl_divergence(context, SavedLogits(path))
    for at, value in ((0, np.inf), (0, np.nan), (0, -1.0), (4, -np.inf), (4, 9.0), (4, -1e30)):
        save(path)
        data = bytearray(path.read_bytes())
        start = 20 + 4 * SavedLogits(path).tokens.size  # of the first scale and minimum
        data[start + at : start + at + 4] = struct.pack("<f", value)
        path.write_bytes(data)
        with pytest.raises(SavedLogitsError, match=r"chunk 1 has a row with the scale .* save it"):
            next(kl_divergence(context, SavedLogits(path)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a file of logits"),
        (b"_logits_" + bytes(5), "is not a file of logits"),
        (b"GGUF" + bytes(60), "is not a file of logits"),
        (b"_logits_" + struct.pack("<3i", 16, 260, 0), "is damaged"),
        (b"_logits_" + struct.pack("<3i", -1, 260, 3), "is damaged"),
        (b"_logits_" + struct.pack("<3i", 16, 2**31 - 1, 2**31 - 1), "is truncated"),
        (b"_logits_" + struct.pack("<3i", 16, 260, 1) + bytes(1000), "is truncated"),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(SavedLogitsError, match=message):
        SavedLogits(tmp_path / "x")


def test_an_interrupted_run_leaves_no_file(tmp_path: Path) -> None:
    context = FakeContext(FakeModel(), n_ctx=16)
    run = perplexity(context, TOKENS, logits_file=tmp_path / "x")
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())
