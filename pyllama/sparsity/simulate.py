"""How many tokens a second a placement would give, from bandwidths alone.

    machine = Machine(cpu_bandwidth=60e9, gpu_bandwidth=900e9, pcie_bandwidth=25e9)
    predict(needs, placed, activity, machine).tokens_per_second

One token at a time is bound by memory, so the model is short:

- a part takes the bytes that it reads, divided by the bandwidth of the memory that they lie in;
- parts follow each other, but the CPU's and the GPU's neurons of a layer are computed at the same
  time: the slower side counts;
- where a part runs on another device than the one before, its input crosses PCIe, which takes its
  bytes divided by that bandwidth, and ``latency``; a layer whose neurons are on both sides crosses
  twice: its input and scores, and its partial result.

Of a neuron's rows the share of tokens that need it is read; of the KV cache, what ``depth`` tokens
have filled. Launches, sampling and caches of the CPU are not in the model, so it is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .inventory import ATTENTION, FFN_IO, KV, OUTPUT, SCORES, Inventory, NeuronRows
from .placement import Activity, NeuronSplit, Placement

_F32 = 4


@dataclass(frozen=True)
class Machine:
    """Bandwidths in bytes a second; ``latency`` of a crossing in seconds."""

    cpu_bandwidth: float
    gpu_bandwidth: float
    pcie_bandwidth: float
    latency: float = 10e-6


@dataclass(frozen=True)
class Prediction:
    """Seconds of one token by part; ``ffn`` is the slower side's; bytes that each memory gives."""

    attention: float
    scores: float
    ffn: float
    output: float
    pcie: float
    cpu_bytes: float
    gpu_bytes: float

    @property
    def seconds(self) -> float:
        """One token."""
        return self.attention + self.scores + self.ffn + self.output + self.pcie

    @property
    def tokens_per_second(self) -> float:
        """One after the other."""
        return 1 / self.seconds


@dataclass(frozen=True)
class Work:
    """What a token does.

    Attributes:
        depth: tokens before it, of the ``n_ctx`` that the cache is for.
        n_embd, n_vocab: elements of a hidden state, and of the logits.
    """

    depth: int
    n_ctx: int
    n_embd: int
    n_vocab: int


def predict(
    needs: Inventory, placed: Placement, activity: Activity, machine: Machine, work: Work
) -> Prediction:
    """The time of one token.

    Args:
        activity: [n_layer, n_ff], the share of tokens that compute a neuron.
    """
    run = _Run(placed, machine, work)
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
    """Counts as shares of tokens; where nobody wrote down how many there were, the most active
    neuron counts as active for all."""
    most = activity.max()
    return activity / most if most > 1 else activity


class _Run:
    """The time so far, and where the hidden state is."""

    def __init__(self, placed: Placement, machine: Machine, work: Work) -> None:
        self.placed, self.machine, self.work = placed, machine, work
        self.seconds = dict.fromkeys((ATTENTION, SCORES, FFN_IO, "ffn", OUTPUT), 0.0)
        self.pcie, self.at_gpu = 0.0, False
        self.read = [0.0, 0.0]  # by the CPU, by the GPU
        items = (*placed.on_cpu, *placed.on_gpu)
        self._bytes = {(item.level, item.layer): item.nbytes for item in items}
        self._here = {(item.level, item.layer) for item in placed.on_gpu}

    def cross(self, nbytes: float) -> None:
        """Move so much from one device to the other."""
        self.pcie += nbytes / self.machine.pcie_bandwidth + self.machine.latency

    def dense(self, level: str, layer: int) -> None:
        """A part that is on one device; attention goes where its cache is."""
        parts = [((level, layer), 1.0)]
        if level == ATTENTION:
            parts.append(((KV, layer), self.work.depth / self.work.n_ctx))
        for part, share in parts:
            if part in self._bytes:
                self._go(part in self._here)
                self.seconds[level] += self._time(part in self._here, share * self._bytes[part])

    def neurons(self, rows: NeuronRows, i: int, active: Activity) -> None:
        """A layer's neurons, on either side or on both."""
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
            if not np.array_equal(split.up[i], split.down[i]):  # partial results of up meet
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
    """What the CPU and the GPU read of a layer's rows for one token."""
    cpu = gpu = 0.0
    for size, ids in ((sum(rows.up[i]), split.up[i]), (rows.down[i], split.down[i])):
        here = float(active[ids].sum())
        gpu += size * here
        cpu += size * (float(active.sum()) - here)
    return cpu, gpu
