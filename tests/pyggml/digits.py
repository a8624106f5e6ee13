"""Small digit classifiers, trained with plain NumPy, to test docs/examples/digits.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Weights = dict[str, Array]
Gradients = Callable[[Weights, Array, Array], Weights]


DATA = Path(__file__).parents[1] / "data" / "digits" / "digits.npz"


def load() -> tuple[Array, Array]:
    """1,797 images [image, 8, 8] from 0 to 1, and their digits.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (test set), UCI
    Machine Learning Repository, 1998, CC BY 4.0; as ``sklearn.datasets.load_digits`` gives them.
    """
    with np.load(DATA) as file:
        return (file["images"] / 16).astype(np.float32), file["labels"].astype(np.int64)


def adam(w: Weights, gradients: Gradients, x: Array, y: Array, epochs: int) -> Weights:
    """``w`` after some epochs of minibatches; deterministic."""
    rng = np.random.default_rng(0)
    first, second = ({k: np.zeros_like(v) for k, v in w.items()} for _ in range(2))
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for i in range(0, len(x), 64):
            batch = order[i : i + 64]
            step += 1
            for k, g in gradients(w, x[batch], y[batch]).items():
                first[k] = 0.9 * first[k] + 0.1 * g
                second[k] = 0.999 * second[k] + 0.001 * g * g
                m, v = first[k] / (1 - 0.9**step), second[k] / (1 - 0.999**step)
                w[k] = (w[k] - 0.003 * m / (np.sqrt(v) + 1e-8)).astype(np.float32)
    return w


def loss_gradient(logits: Array, y: Array) -> Array:
    """The gradient of the mean cross entropy with respect to the logits."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p / len(y)


def _random(rng: np.random.Generator, n_out: int, *n_in: int) -> Array:
    return rng.normal(0, np.sqrt(2 / np.prod(n_in)), (n_out, *n_in)).astype(np.float32)


def _fc_gradients(w: Weights, x: Array, y: Array) -> Weights:
    x = x.reshape(len(x), -1)
    hidden = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
    d = loss_gradient(hidden @ w["fc2.weight"].T + w["fc2.bias"], y)
    e = d @ w["fc2.weight"] * (hidden > 0)
    return {
        "fc1.weight": e.T @ x, "fc1.bias": e.sum(0),
        "fc2.weight": d.T @ hidden, "fc2.bias": d.sum(0),
    }  # fmt: skip


def train_fc(x: Array, y: Array) -> Weights:
    """Images [n, 8, 8] to weights of the architecture ``digits-fc``."""
    rng = np.random.default_rng(1)
    w = {
        "fc1.weight": _random(rng, 48, 64), "fc1.bias": np.zeros(48, np.float32),
        "fc2.weight": _random(rng, 10, 48), "fc2.bias": np.zeros(10, np.float32),
    }  # fmt: skip
    return adam(w, _fc_gradients, x, y, 25)


def _seen(x: Array) -> Array:
    """The 3x3 patches (im2col) of padded images [n, c, h, w]: [n, h, w, c * 9]."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(len(x), *x.shape[2:], -1)


def _unseen(d: Array, c: int) -> Array:
    """The gradient with respect to the images, from that of ``_seen``."""
    n, h, w, _ = d.shape
    d = d.reshape(n, h, w, c, 3, 3)
    out = np.zeros((n, c, h + 2, w + 2), d.dtype)
    for ky, kx in np.ndindex(3, 3):
        out[:, :, ky : ky + h, kx : kx + w] += d[..., ky, kx].transpose(0, 3, 1, 2)
    return out[:, :, 1:-1, 1:-1]


def _layer(x: Array, kernel: Array, bias: Array) -> tuple[Array, Callable[[Array], Any]]:
    """Convolution, ReLU and pooling of [n, c, h, w], and its backward pass."""
    seen, flat = _seen(x), kernel.reshape(len(kernel), -1)
    y = np.maximum(seen @ flat.T + bias, 0)  # [n, h, w, oc]
    n, h, w, oc = y.shape
    blocks = y.reshape(n, h // 2, 2, w // 2, 2, oc)
    best = blocks.max(axis=(2, 4), keepdims=True)  # [n, h / 2, 1, w / 2, 1, oc]

    def back(d: Array) -> tuple[Array, Array, Array]:
        d = d.transpose(0, 2, 3, 1)[:, :, None, :, None]
        d = (d * ((blocks == best) & (blocks > 0))).reshape(y.shape)
        by_kernel = np.tensordot(d, seen, ((0, 1, 2), (0, 1, 2))).reshape(kernel.shape)
        return by_kernel, d.sum((0, 1, 2)).reshape(-1), _unseen(d @ flat, x.shape[1])

    return best[:, :, 0, :, 0].transpose(0, 3, 1, 2), back  # [n, oc, h / 2, w / 2]


def _cnn_gradients(w: Weights, x: Array, y: Array) -> Weights:
    a, back_a = _layer(x[:, None], w["conv1.kernel"], w["conv1.bias"].reshape(-1))
    b, back_b = _layer(a, w["conv2.kernel"], w["conv2.bias"].reshape(-1))
    flat = b.reshape(len(b), -1)
    d = loss_gradient(flat @ w["dense.weight"].T + w["dense.bias"], y)
    kernel_b, bias_b, d_a = back_b((d @ w["dense.weight"]).reshape(b.shape))
    kernel_a, bias_a, _ = back_a(d_a)
    return {
        "conv1.kernel": kernel_a, "conv1.bias": bias_a.reshape(w["conv1.bias"].shape),
        "conv2.kernel": kernel_b, "conv2.bias": bias_b.reshape(w["conv2.bias"].shape),
        "dense.weight": d.T @ flat, "dense.bias": d.sum(0),
    }  # fmt: skip


def train_cnn(x: Array, y: Array) -> Weights:
    """Images [n, 8, 8] to weights of the architecture ``digits-cnn``; kernels are float16."""
    rng = np.random.default_rng(2)
    w = {
        "conv1.kernel": _random(rng, 8, 1, 3, 3), "conv1.bias": np.zeros((8, 1, 1), np.float32),
        "conv2.kernel": _random(rng, 16, 8, 3, 3), "conv2.bias": np.zeros((16, 1, 1), np.float32),
        "dense.weight": _random(rng, 10, 64), "dense.bias": np.zeros(10, np.float32),
    }  # fmt: skip
    w = adam(w, _cnn_gradients, x, y, 12)
    return {k: v.astype(np.float16) if "kernel" in k else v for k, v in w.items()}
