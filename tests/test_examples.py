"""The programs in docs/examples run, and their results are right."""

from __future__ import annotations

import gzip
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "examples"


def example(name: str) -> dict[str, Any]:
    """The names that an example defines; its main part does not run."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))


APART = ("digits", "train_mnist")  # they take arguments, and have tests of their own
SCRIPTS = [p.name for p in sorted(FOLDER.glob("*.py")) if p.stem not in APART]


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


@pytest.mark.parametrize(("name", "least"), [("fc", 97), ("cnn", 98)])
def test_digits_are_learned_and_classified(
    name: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    names, path = example("train_mnist"), tmp_path / "model.gguf"
    names["main"](name, path)
    assert float(capsys.readouterr().out.split()[0]) >= least

    _, held_out = names["digits"]()
    found = example("digits")["classify"](path, held_out.data)
    assert 100 * np.mean(found == held_out.labels) >= least

    np.save(tmp_path / "images.npy", held_out.data[:4])
    monkeypatch.setattr(sys, "argv", ["digits.py", str(path), str(tmp_path / "images.npy")])
    runpy.run_path(str(FOLDER / "digits.py"), run_name="__main__")
    assert capsys.readouterr().out.split() == str(found[:4]).split()


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_files_are_read(packed: bool, tmp_path: Path) -> None:
    rng, suffix = np.random.default_rng(0), ".gz" if packed else ""
    images = rng.integers(0, 256, (3, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        contents = {"images-idx3": bytes(16) + images.tobytes(), "labels-idx1": bytes(8) + b"123"}
        for name, data in contents.items():
            file = tmp_path / f"{part}-{name}-ubyte{suffix}"
            file.write_bytes(gzip.compress(data) if packed else data)
    for data in example("train_mnist")["mnist"](tmp_path):
        assert np.array_equal(data.data, (images / 255).astype(np.float32))
        assert data.labels.tolist() == [49, 50, 51]
