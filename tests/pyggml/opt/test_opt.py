"""Training loops: bits, micro-batches, resumed runs, limits, errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as ggml
from pyggml import opt
from pyggml.context import Context
from pyggml.dtype import GGMLType
from pyggml.errors import AllocError, ComputeError, GGUFError, PyggmlError, ShapeError
from pyggml.ops.op import OpBuilders
from pyggml.tensor import Tensor

F32 = GGMLType.F32
ROOT = Path(__file__).parents[3]
RNG = np.random.default_rng(5)
CENTRES = RNG.normal(0, 1, (3, 8)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 96).astype(np.int32)
POINTS = (CENTRES[CLASSES] + RNG.normal(0, 0.3, (96, 8))).astype(np.float32)


def trainer(
    n_micro: int = 8, n_threads: int = 2, n_hidden: int = 16, n_out: int = 3, **params: Any
) -> opt.OptContext:
    """Two layers on points of 8 numbers; equal weights each time."""
    rng, backend = np.random.default_rng(1), ggml.init_backend("cpu", n_threads=n_threads)
    static, ctx = Context(no_alloc=True), Context(no_alloc=True)
    shapes = {"a": (8, n_hidden), "bias": (n_hidden,), "b": (n_hidden, n_out)}
    w = {k: static.new_tensor(F32, ne).set_name(k).set_param() for k, ne in shapes.items()}
    ggml.alloc_ctx_tensors(static, backend.buffer_type())
    for tensor in w.values():
        tensor.set(rng.normal(0, 0.5, tensor.shape))
    x = ctx.new_tensor_2d(F32, 8, n_micro)
    y = ggml.add(ctx, ggml.mul_mat(ctx, w["a"], x), w["bias"])
    y = ggml.mul_mat(ctx, w["b"], ggml.silu(ctx, y))
    return opt.OptContext(backend, ctx, x, y, opt.OptParams(**params))


def step_model(name: str, **params: Any) -> opt.OptContext:
    """A parameter of which the result depends by steps only."""
    backend, static, ctx = ggml.init_backend("cpu"), Context(no_alloc=True), Context(no_alloc=True)
    w = static.new_tensor(F32, (8,)).set_name(name).set_param()
    ggml.alloc_ctx_tensors(static, backend.buffer_type())
    x = ctx.new_tensor_2d(F32, 8, 4)
    y = ggml.step(ctx, ggml.mul(ctx, x, w))
    return opt.OptContext(backend, ctx, x, y, opt.OptParams(**params))


def weights(t: opt.OptContext) -> dict[str, Any]:
    return {name: np.array(w.numpy()) for name, w in t.params.items()}


def bits(t: opt.OptContext) -> bytes:
    return b"".join(w.tobytes() for w in weights(t).values())


def points() -> opt.Dataset:
    return opt.Dataset(POINTS, CLASSES)


@pytest.mark.parametrize("optimizer", [opt.AdamW(0.02, wd=0.01), opt.SGD(0.5, wd=1e-3)])
def test_a_model_is_trained_with_equal_bits_on_any_threads(optimizer: opt.Optimizer) -> None:
    runs = []
    for n_threads in (1, 2, 3):
        t = trainer(n_threads=n_threads, optimizer=optimizer)
        train, held_out = points().split(0.25)
        results = opt.fit(t, train, 8, val=held_out, callback=None)
        assert results[-1][1] is not None
        assert results[-1][0].loss < 0.3 * results[0][0].loss
        assert results[-1][1].accuracy >= 0.95 and results[-1][1].n_data == len(held_out) == 24
        runs.append(bits(t))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_micro_batches_are_one_batch(max_norm: float) -> None:
    found = []
    for n_micro in (24, 8):
        t = trainer(n_micro, n_batch=24, max_norm=max_norm, optimizer=opt.SGD(0.5))
        first = opt.fit(t, points(), 2, callback=None)[0][0]
        assert t.step == 8
        found.append((first.loss, weights(t)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, w in found[0][1].items():
        assert found[1][1][name] == pytest.approx(w, rel=1e-6, abs=1e-6)


def test_a_resumed_run_has_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    schedule = opt.warmup_cosine(5, 60)
    whole = trainer(optimizer=opt.AdamW(0.02, schedule=schedule))
    opt.fit(whole, points(), 4, callback=None)
    for n_epoch in (1, 3, 4):
        part = trainer(optimizer=opt.AdamW(0.02, schedule=schedule))
        opt.fit(part, points(), n_epoch, callback=None, checkpoint=tmp_path / "run.gguf")
    assert bits(part) == bits(whole) and part.step == whole.step == 48


def test_a_process_that_is_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL in the third epoch, within a batch."""
    path = tmp_path / "run.gguf"
    optimizer = opt.AdamW(0.02, schedule=opt.warmup_cosine(5, 60))
    killed = textwrap.dedent(f"""
        import os, signal
        from tests.pyggml.opt.test_opt import opt, points, trainer

        calls = []

        def callback(*_):
            calls.append(1)
            if len(calls) == 29:  # of 12 an epoch
                os.kill(os.getpid(), signal.SIGKILL)

        schedule = opt.warmup_cosine(5, 60)
        t = trainer(n_batch=24, optimizer=opt.AdamW(0.02, schedule=schedule))
        opt.fit(t, points(), 4, callback=callback, checkpoint={str(path)!r})
    """)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-P", "-c", killed], env=env, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    again, whole = (trainer(n_batch=24, optimizer=optimizer) for _ in range(2))
    assert len(opt.fit(again, points(), 4, callback=None, checkpoint=path)) == 2
    opt.fit(whole, points(), 4, callback=None)
    assert bits(again) == bits(whole) and again.step == whole.step == 16


def test_checkpoints_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.gguf"
    opt.save_checkpoint(path, trainer())
    before = bits(other := trainer(n_hidden=17))
    with pytest.raises(GGUFError, match=r"tensor 'b' is F32 .* of another model"):
        opt.load_checkpoint(path, other)
    assert bits(other) == before
    with pytest.raises(GGUFError, match="optimizer is adamw, not sgd"):
        opt.load_checkpoint(path, trainer(optimizer=opt.SGD()))
    ggml.gguf.write_gguf(path, {}, {})
    with pytest.raises(GGUFError, match="not a checkpoint"):
        opt.load_checkpoint(path, trainer())
    opt.save_checkpoint(path, trainer())
    with ggml.gguf.GGUFFile(path) as file:
        keys = {k: v for k, v in file.typed_metadata().items() if k != "training.epoch"}
        ggml.gguf.copy_gguf(file, path, keys)
    same = trainer()
    for w in same.params.values():
        w.set(np.zeros(w.shape))
    with pytest.raises(GGUFError, match="epoch"):
        opt.load_checkpoint(path, same)
    assert not any(bits(same))


def test_a_run_with_other_settings_or_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.gguf"

    def fit(data: opt.Dataset, **params: Any) -> opt.OptContext:
        adamw = {"alpha": params.pop("alpha", 0.02)}
        n_micro = params.pop("n_micro", 8)
        t = trainer(n_micro, optimizer=opt.AdamW(**adamw), **params)
        opt.fit(t, data, 1, callback=None, checkpoint=path)
        return t

    fit(points(), n_batch=24)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"alpha": 0.01, "n_batch": 24}, "settings: alpha 0.02, now 0.01. Resume"),
        ({"n_batch": 48}, "settings: n_batch 24, now 48. Resume"),
        ({"n_batch": 24, "n_micro": 24}, "settings: n_micro_batch 8, now 24. Resume"),
        ({"n_batch": 24, "max_norm": 0.5}, "settings: max_norm 0.0, now 0.5. Resume"),
    ]
    for changed, message in cases:
        with pytest.raises(GGUFError, match=rf"run.gguf: .* other {message}"):
            fit(points(), **changed)
    other = POINTS.copy()
    other[95, 7] += 1
    for data in (
        opt.Dataset(other, CLASSES), opt.Dataset(POINTS, CLASSES[::-1]),
        opt.Dataset(POINTS, CLASSES, seed=1), opt.Dataset(POINTS[:72], CLASSES[:72]),
    ):  # fmt: skip
        with pytest.raises(GGUFError, match=r"settings: data [0-9a-f]{12}, now [0-9a-f]{12}\."):
            fit(data, n_batch=24)
    fit(points(), n_batch=24)
    with ggml.gguf.GGUFFile(path) as file:  # of a version that recorded no settings
        old = {k: v for k, v in file.typed_metadata().items() if ".settings." not in k}
        ggml.gguf.copy_gguf(file, path, old)
    fit(points(), n_batch=24, max_norm=0.5)


def test_a_digest_does_not_depend_on_the_memory_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = points().digest()
    np.save(tmp_path / "x.npy", POINTS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr("pyggml.opt.dataset._CHUNK_BYTES", 100)
    assert opt.Dataset(mapped, CLASSES).digest() == want
    assert opt.Dataset(np.asfortranarray(POINTS), CLASSES).digest() == want


class Penalized(opt.OptContext):
    """``trainer`` with a second loss, a factor times the sum of its first results."""

    def extra_nodes(self, ops: OpBuilders, static: Context) -> list[Tensor]:
        self.factor = static.new_tensor_1d(F32, 1).set_name("factor")
        self.state["factor"] = self.factor
        total = ops.sum(self.outputs)
        self.total = total.set_name("total").set_output()
        return [ops.mul(total, self.factor).set_name("penalty").set_loss()]


def test_auxiliary_losses_and_their_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a second loss is added; micro-batches are means; checkpoints keep state."""
    plain = trainer(24, optimizer=opt.SGD(0.1))
    start = weights(plain)
    monkeypatch.setattr(opt, "OptContext", Penalized)
    changes = []
    for n_micro, factor in ((24, 0.5), (8, 1.5), (24, 0.0)):  # a sum of 8 rows is a third
        t = trainer(n_micro, n_batch=24, optimizer=opt.SGD(0.1))
        assert isinstance(t, Penalized)
        t.factor.set([factor])
        data = opt.Dataset(POINTS[:24], CLASSES[:24])
        result = opt.epoch(t, data, 0)
        assert t.total.numpy().item() != 0
        changes.append((result.loss, {name: w - start[name] for name, w in weights(t).items()}))
    opt.epoch(plain, data, 0)
    for name, w in weights(plain).items():
        none, whole, parts = (changes[i][1][name] for i in (2, 0, 1))
        np.testing.assert_array_equal(none, w - start[name])
        np.testing.assert_allclose(whole, parts, atol=1e-6)
        assert np.abs(whole - none).max() > 1e-3
    assert changes[0][0] == pytest.approx(changes[1][0], rel=1e-6)
    opt.save_checkpoint(tmp_path / "run.gguf", t)
    t.factor.set([7])
    opt.load_checkpoint(tmp_path / "run.gguf", t)
    assert t.factor.numpy().item() == 0


def test_gains_and_biases_may_stay_without_weight_decay() -> None:
    found = {}
    for wd, decay_1d in ((0.0, True), (0.5, True), (0.5, False)):
        t = trainer(96, optimizer=opt.AdamW(0.1, wd=wd, decay_1d=decay_1d))
        opt.epoch(t, points(), 0)
        found[wd, decay_1d] = weights(t)
    some = found[0.5, False]
    np.testing.assert_array_equal(some["bias"], found[0.0, True]["bias"])
    np.testing.assert_array_equal(some["a"], found[0.5, True]["a"])
    for name in ("a", "bias"):
        assert np.abs(found[0.0, True][name] - found[0.5, True][name]).max() > 1e-3


def test_a_parameter_may_have_any_name_beside_moments(tmp_path: Path) -> None:
    def named(seed: int) -> opt.OptContext:
        t = trainer(optimizer=opt.AdamW(0.02))
        t.params = {{"a": "w", "bias": "w.m", "b": "w.v"}[k]: w for k, w in t.params.items()}
        rng = np.random.default_rng(seed)
        for tensor in (*t.params.values(), *(m for pair in t.moments.values() for m in pair)):
            tensor.set(rng.normal(0, 1, tensor.shape))
        return t

    saved, loaded = named(1), named(2)
    opt.save_checkpoint(tmp_path / "run.gguf", saved)
    opt.load_checkpoint(tmp_path / "run.gguf", loaded)
    assert bits(loaded) == bits(saved)
    for w, other in zip(saved.moments.values(), loaded.moments.values(), strict=True):
        assert [m.bytes().tobytes() for m in w] == [m.bytes().tobytes() for m in other]


def test_rows_without_label_are_not_wrong() -> None:
    labels = np.where(np.arange(96) % 3 == 0, np.int32(-1), CLASSES)
    t = trainer(optimizer=opt.AdamW(0.05))
    results = opt.fit(t, opt.Dataset(POINTS, labels), 10, callback=None)[-1][0]
    assert len(results.pred) == 96 and results.n_labels == 64 and results.accuracy > 0.95
    soft = np.eye(3, dtype=np.float32)[CLASSES] * (labels >= 0)[:, None]
    found = opt.epoch(trainer(class_labels=False), opt.Dataset(POINTS, soft.astype(np.float32)))
    want = opt.epoch(trainer(), opt.Dataset(POINTS, labels))
    assert (found.n_correct, found.n_labels) == (want.n_correct, want.n_labels)
    assert want.n_labels == 64 and np.isnan(opt.OptResult(pred=[0, 1]).accuracy)


def test_the_sum_of_an_epoch_is_one_of_all_data() -> None:
    whole = opt.epoch(trainer(96, loss="sum"), opt.Dataset(POINTS))
    parts = opt.epoch(trainer(8, loss="sum", n_batch=24), opt.Dataset(POINTS))
    assert len(parts.losses) == 12 and parts.loss == pytest.approx(whole.loss, rel=1e-5)


def test_gradients_are_limited() -> None:
    t = trainer(n_micro=96, max_norm=0.01, optimizer=opt.SGD(1.0))
    before = weights(t)
    opt.epoch(t, points(), 0)
    assert t.grad_norm is not None and t.grad_norm.numpy().item() > 0.01
    moved = [weights(t)[name] - w for name, w in before.items()]
    assert np.sqrt(sum(np.sum(m**2) for m in moved)) == pytest.approx(0.01, rel=1e-3)


def test_losses() -> None:
    targets = np.sin(POINTS[:, :3]).astype(np.float32)
    soft = np.eye(3, dtype=np.float32)[CLASSES]
    for loss, labels, classes in (
        ("mean_squared_error", targets, True), ("cross_entropy", soft, False),
        ("mean", None, True), ("sum", None, True),
    ):  # fmt: skip
        t = trainer(loss=loss, class_labels=classes, n_batch=16, optimizer=opt.SGD(0.01))
        data = opt.Dataset(POINTS, labels)
        before = opt.epoch(t, data).loss
        opt.epoch(t, data, 0)
        assert opt.epoch(t, data).loss < before
    hard = opt.epoch(trainer(), points()).loss
    assert opt.epoch(trainer(class_labels=False), opt.Dataset(POINTS, soft)).loss == pytest.approx(
        hard, rel=1e-6
    )


def test_rows_without_a_label_change_neither_the_mean_nor_the_step() -> None:
    labels = np.where(RNG.uniform(0, 1, 96) < 0.4, CLASSES, -1).astype(np.int32)
    chosen = labels >= 0
    n = 8 * (np.count_nonzero(chosen) // 8)
    few = opt.Dataset(POINTS[chosen][:n], labels[chosen][:n])
    padded = opt.Dataset(POINTS, np.where(np.cumsum(chosen) <= n, labels, -1))
    steps, losses = [], []
    for data in (few, padded):
        t = trainer(n_batch=len(data) // 8 * 8, optimizer=opt.SGD(0.5), max_norm=0.1)
        losses.append(opt.epoch(t, data).loss)
        opt.epoch(t, data, 0)
        steps.append(weights(t))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, w in steps[0].items():
        np.testing.assert_allclose(w, steps[1][name], atol=1e-6)


def test_evaluation_visits_all_data_and_changes_nothing() -> None:
    t = trainer()
    before = bits(t)
    whole = opt.epoch(trainer(n_micro=61), opt.Dataset(POINTS[:61], CLASSES[:61]))
    found = opt.epoch(t, opt.Dataset(POINTS[:61], CLASSES[:61]))
    assert found.n_data == len(found.pred) == 61
    assert found.pred == whole.pred and found.loss == pytest.approx(whole.loss, rel=1e-6)
    assert bits(t) == before


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_classes_of_any_integers(dtype: type) -> None:
    """61 data points: the last micro-batch of 8 is padded."""
    want = opt.epoch(trainer(), opt.Dataset(POINTS[:61], CLASSES[:61]))
    found = opt.epoch(trainer(), opt.Dataset(POINTS[:61], CLASSES[:61].astype(dtype)))
    assert found == want


@pytest.mark.parametrize("number", [1 << 32, -(1 << 32) + 1])
def test_a_class_does_not_wrap(number: int) -> None:
    labels = CLASSES.astype(np.int64)
    labels[labels == 1] += number
    if number > 0:
        with pytest.raises(ComputeError, match="index"):
            opt.epoch(trainer(), opt.Dataset(POINTS, labels))
    else:
        want = opt.epoch(trainer(), opt.Dataset(POINTS, np.where(labels < 0, -1, labels)))
        assert opt.epoch(trainer(), opt.Dataset(POINTS, labels)) == want


def test_an_epoch_drops_the_micro_batches_of_an_interrupted_one() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    t, whole = trainer(n_batch=24), trainer(n_batch=24)
    with pytest.raises(KeyboardInterrupt):
        opt.epoch(t, points(), 0, interrupt)
    for each in (t, whole):
        opt.epoch(each, points(), 0)
    assert bits(t) == bits(whole)


def test_orders_depend_on_seed_and_epoch() -> None:
    data = points()
    assert sorted(data.order(0)) == list(range(96))
    assert data.order(3).tolist() == points().order(3).tolist() != data.order(4).tolist()
    assert opt.Dataset(POINTS, CLASSES, seed=1).order(3).tolist() != data.order(3).tolist()


def test_schedule() -> None:
    factor = opt.warmup_cosine(4, 20, least=0.1)
    assert [factor(i) for i in range(5)] == [0.25, 0.5, 0.75, 1, 1]
    assert factor(12) == pytest.approx(0.55) and factor(20) == factor(99) == pytest.approx(0.1)


def test_the_progress_bar_is_a_line_an_epoch_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    opt.fit(trainer(), points(), 1, val=points())
    train, test = capsys.readouterr().err.splitlines()
    assert train.startswith("train [####################] 96 data, loss=")
    assert test.startswith("test ") and "accuracy=" in test


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ShapeError, match="empty"):
        opt.Dataset(POINTS[:0])
    with pytest.raises(ShapeError, match="96 data points have 95 labels"):
        opt.Dataset(POINTS, CLASSES[1:])
    for n_batch in (12, -8):
        with pytest.raises(ShapeError, match="multiple of the 8"):
            trainer(n_batch=n_batch)
    with pytest.raises(PyggmlError, match="want one of cross_entropy"):
        trainer(loss="nope")
    for max_norm in (0.0, 1.0):
        with pytest.raises(PyggmlError, match="no parameter has a gradient"):
            step_model("w", loss="sum", max_norm=max_norm)
    with pytest.raises(PyggmlError, match=r"'training.m.0': checkpoints reserve"):
        step_model("training.m.0")
    with pytest.raises(ShapeError, match="7 data points are less than a batch of 8"):
        opt.epoch(trainer(), opt.Dataset(POINTS[:7], CLASSES[:7]), 0)
    with pytest.raises(ShapeError, match="a data point has 7 elements, the model wants 8"):
        opt.epoch(trainer(), opt.Dataset(POINTS[:, 1:], CLASSES))
    with pytest.raises(ShapeError, match="needs labels"):
        opt.epoch(trainer(), opt.Dataset(POINTS))
    with pytest.raises(ShapeError, match="want integers"):
        opt.epoch(trainer(), opt.Dataset(POINTS, CLASSES.astype(np.float32)))
    with pytest.raises(ComputeError, match="index"):
        opt.epoch(trainer(), opt.Dataset(POINTS, CLASSES + 1), 0)
    with pytest.raises(ComputeError, match="the loss is nan after 1 steps: lower the learning"):
        opt.epoch(trainer(), opt.Dataset(np.full_like(POINTS, np.nan), CLASSES), 0)
    with pytest.raises(ComputeError, match="the loss is inf after"):
        huge = np.full((96, 3), 1e30, np.float32)
        opt.epoch(trainer(loss="mean_squared_error"), opt.Dataset(POINTS, huge), 0)


def test_too_little_memory_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyggml.backend.cpu.backend.CpuBackend.memory", lambda self: (1 << 10, 1))
    with pytest.raises(AllocError, match=r"training needs 0.00 GiB .* smaller micro-batch"):
        trainer()
