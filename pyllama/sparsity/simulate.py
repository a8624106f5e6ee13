"""Predicts the tokens per second of a placement from memory bandwidths.

    machine = Machine(cpu_bandwidth=60e9, gpu_bandwidth=900e9, pcie_bandwidth=25e9)
    predict(needs, placed, activity, machine).tokens_per_second

Single-token decoding is memory-bound, so the model is simple:

- time of a part = bytes read / bandwidth of their memory;
- parts run one after the other, except that GPU and CPU compute their neurons of a layer in
  parallel: the slower one counts;
- if a part runs on another device than the previous one, its input crosses PCIe: bytes / bandwidth
  + ``latency``. A layer with neurons on both devices crosses twice: input and scores, then the
  partial result.

A neuron's rows are read by the share of tokens for which it is computed, the KV cache up to
``depth``. Kernel launches, sampling and CPU caches are ignored, so the result is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .inventory import ATTENTION, FFN_IO, KV, OUTPUT, SCORES, Inventory, NeuronRows
from .placement import Activity, NeuronSplit, Placement

_F32 = 4


@dataclass(frozen=True)
class Machine:
    """Bandwidths in bytes per second; ``latency`` of a transfer in seconds."""

    cpu_bandwidth: float
    gpu_bandwidth: float
    pcie_bandwidth: float
    latency: float = 10e-6


@dataclass(frozen=True)
class Prediction:
    """Seconds of one token by part (``ffn``: of the slower device), and bytes read per device."""

    attention: float
    scores: float
    ffn: float
    output: float
    pcie: float
    cpu_bytes: float
    gpu_bytes: float

    @property
    def seconds(self) -> float:
        """The time of one token."""
        return self.attention + self.scores + self.ffn + self.output + self.pcie

    @property
    def tokens_per_second(self) -> float:
        """The speed of single-sequence decoding."""
        return 1 / self.seconds


@dataclass(frozen=True)
class Work:
    """The simulated token.

    Attributes:
        depth: tokens in the KV cache before it.
        n_ctx: size of the KV cache.
        n_embd, n_vocab: sizes of a hidden state and of the logits.
    """

    depth: int
    n_ctx: int
    n_embd: int
    n_vocab: int


def predict(
    needs: Inventory, placed: Placement, activity: Activity, machine: Machine, work: Work
) -> Prediction:
    """Return the predicted time of one token.

    Args:
        activity: [n_layer, n_ff], the share of tokens for which a neuron is computed.
    """
    run = _SimulatedStep(placed, machine, work)
    for i in range(len(placed.ffn_bytes)):
        run.dense(ATTENTION, i)
        run.dense(SCORES, i)
        run.dense(FFN_IO, i)
        run.neurons(needs.rows, i, activity[i])
    run.dense(OUTPUT, -1)
    if run.at_gpu:
        run.cross(_F32 * work.n_vocab)
    s = run.seconds
    return Prediction(s[ATTENTION], s[SCORES], s["ffn"] + s[FFN_IO], s[OUTPUT], run.pcie, *run.read)


def shares(activity: Activity) -> Activity:
    """Return counts as shares of tokens; the number of tokens is taken to be the maximum count."""
    maximum = activity.max()
    return activity / maximum if maximum > 1 else activity


class _SimulatedStep:
    """The accumulated time, and the device that has the hidden state."""

    def __init__(self, placed: Placement, machine: Machine, work: Work) -> None:
        self.placed, self.machine, self.work = placed, machine, work
        self.seconds = dict.fromkeys((ATTENTION, SCORES, FFN_IO, "ffn", OUTPUT), 0.0)
        self.pcie, self.at_gpu = 0.0, False
        self.read = [0.0, 0.0]  # by the CPU, by the GPU
        items = (*placed.on_cpu, *placed.on_gpu)
        self._bytes = {(item.level, item.layer): item.nbytes for item in items}
        self._here = {(item.level, item.layer) for item in placed.on_gpu}

    def cross(self, nbytes: float) -> None:
        """Add the time of a transfer between the devices."""
        self.pcie += nbytes / self.machine.pcie_bandwidth + self.machine.latency

    def dense(self, level: str, layer: int) -> None:
        """Add a part on one device; attention also reads its KV cache."""
        parts = [((level, layer), 1.0)]
        if level == ATTENTION:
            parts.append(((KV, layer), self.work.depth / self.work.n_ctx))
        for part, share in parts:
            if part in self._bytes:
                self._go(part in self._here)
                self.seconds[level] += self._time(part in self._here, share * self._bytes[part])

    def neurons(self, rows: NeuronRows, i: int, active: Activity) -> None:
        """Add a layer's neurons, on one device or both."""
        split, hidden = self.placed.split, _F32 * self.work.n_embd
        times = [
            self._time(bool(gpu), nbytes)
            for gpu, nbytes in enumerate(_neuron_bytes(rows, i, active, split))
        ]
        ids = {len(split.up[i]), len(split.down[i])}
        if ids == {0} or ids == {split.n_ff}:
            self._go(ids != {0})
        else:
            self.cross(hidden + _F32 * split.n_ff)
            if not np.array_equal(split.up[i], split.down[i]):  # partial results of up are merged
                self.cross(2 * _F32 * split.n_ff)
            self.cross(hidden)
        self.seconds["ffn"] += max(times)

    def _go(self, gpu: bool) -> None:
        if gpu != self.at_gpu:
            self.cross(_F32 * self.work.n_embd)
            self.at_gpu = gpu

    def _time(self, gpu: bool, nbytes: float) -> float:
        self.read[gpu] += nbytes
        machine = self.machine
        return nbytes / (machine.gpu_bandwidth if gpu else machine.cpu_bandwidth)


def _neuron_bytes(
    rows: NeuronRows, i: int, active: Activity, split: NeuronSplit
) -> tuple[float, float]:
    """Return the bytes of a layer's rows that CPU and GPU read for one token."""
    cpu = gpu = 0.0
    for size, ids in ((sum(rows.up[i]), split.up[i]), (rows.down[i], split.down[i])):
        here = float(active[ids].sum())
        gpu += size * here
        cpu += size * (float(active.sum()) - here)
    return cpu, gpu
