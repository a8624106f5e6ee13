"""The programs in docs/examples run, and their results are right."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.gguf import write_gguf

from .pyggml import digits

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "examples"


def example(name: str) -> dict[str, Any]:
    """The names that an example defines; its main part does not run."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))


SCRIPTS = [p.name for p in sorted(FOLDER.glob("*.py")) if p.stem != "digits"]  # it needs a model


@pytest.mark.parametrize("name", SCRIPTS)
def test_as_a_script(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out


def test_simple_matmul() -> None:
    names = example("simple_matmul")
    assert np.array_equal(names["main"](), names["B"] @ names["A"].T)


def test_custom_op() -> None:
    x = np.random.default_rng(0).standard_normal((50, 7)).astype(np.float32)
    y = (2 * x / (1 + np.exp(-2 * x))) ** 2
    want = np.where(y >= np.sort(y)[:, -2:-1], y, 0)
    np.testing.assert_allclose(example("custom_op")["main"](x), want, rtol=1e-5)


def forward(w: dict[str, Any], tokens: list[int], hp: Any) -> Any:
    """GPT-2 in float64."""
    w = {k: v.astype(np.float64) for k, v in w.items()}

    def norm(x: Any, name: str) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + hp.eps)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    n = len(tokens)
    x = w["token_embd.weight"][tokens] + w["position_embd.weight"][:n]
    for blk in (f"blk.{i}" for i in range(hp.n_layer)):
        qkv = linear(norm(x, f"{blk}.attn_norm"), f"{blk}.attn_qkv")
        q, k, v = qkv.reshape(n, 3, hp.n_head, -1).transpose(1, 2, 0, 3)  # [n_head, n, head]
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        p = np.exp(scores + np.triu(np.full((n, n), -np.inf), 1))
        out = (p / p.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(n, -1)
        x = x + linear(out, f"{blk}.attn_output")
        up = linear(norm(x, f"{blk}.ffn_norm"), f"{blk}.ffn_up")
        up = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3)))
        x = x + linear(up, f"{blk}.ffn_down")
    return norm(x, "output_norm") @ w["token_embd.weight"].T


@pytest.mark.parametrize("n", [1, 5, 64])
def test_gpt2(n: int) -> None:
    names = example("gpt2")
    hp = names["Params"]()
    weights = names["random_weights"](hp)
    tokens = np.random.default_rng(n).integers(0, hp.n_vocab, n).tolist()
    got, want = names["logits"](weights, tokens, hp), forward(weights, tokens, hp)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize(("arch", "train"), [("fc", digits.train_fc), ("cnn", digits.train_cnn)])
def test_digits(
    arch: str, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    images, labels = digits.load()
    order = np.random.default_rng(0).permutation(len(images))
    known, unknown = order[:1300], order[1300:]
    path = tmp_path / f"digits-{arch}.gguf"
    write_gguf(path, {}, train(images[known], labels[known]), arch=f"digits-{arch}")

    found = example("digits")["classify"](path, images[unknown])
    assert np.mean(found == labels[unknown]) > 0.95

    np.save(tmp_path / "images.npy", images[unknown[:4]])
    monkeypatch.setattr(sys, "argv", ["digits.py", str(path), str(tmp_path / "images.npy")])
    runpy.run_path(str(FOLDER / "digits.py"), run_name="__main__")
    assert capsys.readouterr().out.split() == str(found[:4]).split()
