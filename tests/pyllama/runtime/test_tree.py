"""Trees of drafted tokens: each node has the bits of its branch decoded alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.dtype import GGMLType
from pyggml.errors import Aborted
from pyllama import Batch, Context, Model
from pyllama.convert import convert
from pyllama.errors import BatchError, ContextFull
from pyllama.kv.table import MAX_BRANCHES
from tests.pyggml.sched.fake_device import FakeDevice
from tests.tiers import some

from ..arch.checkpoints import write_checkpoint
from ..conftest import Make
from ..models import Spec, random_weights, rows, state, write_model

TOKENS = np.random.default_rng(9).integers(0, 261, 1400).tolist()
Q8_0, Q4_0, F16 = GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.F16
FORKED = [-1, 0, 0, 1, 1, 2, 5, 6, 7, 8, -1]
PATH = [0, 2, 5, 6, 7]


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from a root to ``node``."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def filled(context: Context, n_prefix: int, seq: int = 0) -> Context:
    """A context whose sequence holds the first tokens."""
    if n_prefix:
        rows(context, TOKENS[:n_prefix], seq=seq)
    return context


def alone(context: Context, n_prefix: int, tokens: list[int]) -> np.ndarray:
    """Logits of tokens after the prefix, decoded one by one in sequence 0."""
    context.kv.rewind(0, n_prefix)
    if context.kv.length(0) < n_prefix:
        filled(context, n_prefix)
    out = []
    for token in tokens:
        context.decode_token(token)
        out.append(context.logits[0].copy())
    return np.array(out)


def check(
    tree: Context, single: Context, n_prefix: int, parents: list[int], path: list[int], seq: int = 0
) -> None:
    """Compare all nodes of a tree, then the tokens after one of its paths, with single steps."""
    n = len(parents)
    drafted = TOKENS[700 : 700 + n]
    before = state(tree)
    tree.decode(Batch(drafted, seq_id=seq, parent=parents, logits="all"))
    got = tree.logits.copy()
    leaves = set(range(n)) - set(parents)
    for leaf in leaves:
        nodes = path_to(leaf, parents)
        wanted = alone(single, n_prefix, [drafted[i] for i in nodes])
        assert np.array_equal(got[nodes], wanted), (n_prefix, parents, leaf)
    assert state(tree)[1] == before[1] and tree.kv.n_used == before[0] + n
    tree.kv.commit_tree(seq, path)
    assert tree.kv.length(seq) == n_prefix + len(path) and tree.kv.n_used == before[0] + len(path)
    wanted = alone(single, n_prefix, [drafted[i] for i in path] + TOKENS[800:803])[len(path) :]
    assert np.array_equal(rows(tree, TOKENS[800:803], seq=seq), wanted)


trees = st.integers(1, 24).flatmap(
    lambda n: st.tuples(*(st.integers(max(-1, i - 6), i - 1) for i in range(n)))
)
prefixes = st.one_of(st.integers(0, 20), st.integers(240, 260), st.integers(500, 514))


@pytest.fixture(scope="module")
def pair(model: Model) -> tuple[Context, Context]:
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_seq_max": 2}
    return Context(model, n_threads=2, **sizes), Context(model, n_threads=1, **sizes)


@given(prefixes, trees, st.data())
@settings(max_examples=30, deadline=None)
def test_a_random_tree_has_the_bits_of_its_branches(
    pair: tuple[Context, Context], n_prefix: int, parents: tuple[int, ...], data: st.DataObject
) -> None:
    path = path_to(data.draw(st.integers(0, len(parents) - 1)), parents)
    seq = data.draw(st.integers(0, 1))
    for context in pair:
        context.kv.clear()
    check(filled(pair[0], n_prefix, seq), pair[1], n_prefix, list(parents), path, seq)


@pytest.mark.parametrize("n_prefix", [0, 250, 300])
@pytest.mark.parametrize(
    "options",
    [
        {"type_k": Q8_0, "type_v": Q8_0},
        {"type_k": Q4_0, "type_v": F16},
        {"unified": False, "n_seq_max": 2},
    ],
    ids=str,
)
def test_types_and_streams(tmp_path: Path, n_prefix: int, options: dict[str, Any]) -> None:
    spec = Spec(head_dim=32, n_embd=64, n_ctx=1024)
    model = Model.load(write_model(tmp_path / "x.gguf", spec, random_weights(spec)))
    made = [Context(model, n_ctx=1024, n_threads=n, **options) for n in (2, 1)]
    check(filled(made[0], n_prefix), made[1], n_prefix, FORKED, PATH)


@pytest.mark.parametrize("swa_full", [False, True])
@pytest.mark.parametrize("n_prefix", [10, 250, 600])
def test_windows(windowed: Make, n_prefix: int, swa_full: bool) -> None:
    made = [windowed(n_ubatch=64, swa_full=swa_full, n_threads=n) for n in (2, 1)]
    chain = list(range(-1, 29))  # longer than the window of 20
    for parents, path in ((FORKED, PATH), ([*chain, 3, 3], [0, 1, 2, 3, 30])):
        for context in made:
            context.kv.clear()
        check(filled(made[0], n_prefix), made[1], n_prefix, parents, path)


@pytest.mark.parametrize(
    "name", some(["bloom", "opt", "gpt2", "falcon_7b", "falcon_rw", "gemma3"], 2)
)
def test_positions_of_other_architectures(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / name, name)
    model = Model.load(convert(folder, folder / "x.gguf", "f32"))
    made = [Context(model, n_ctx=256, n_threads=n) for n in (2, 1)]
    check(filled(made[0], 30), made[1], 30, FORKED, PATH)


@pytest.mark.parametrize("device", ["reference", "fake"])
def test_other_devices(model_path: Path, device: str) -> None:
    there = Model.load(model_path, devices=[FakeDevice() if device == "fake" else device])
    tree, single = (Context(there, n_ctx=320, n_threads=1) for _ in range(2))
    drafted = TOKENS[700:711]
    filled(tree, 254).decode(Batch(drafted, parent=FORKED, logits="all"))
    got = tree.logits.copy()
    for leaf in (3, 9, 10):
        nodes = path_to(leaf, FORKED)
        wanted = alone(single, 254, [drafted[i] for i in nodes])
        assert np.abs(got[nodes] - wanted).max() < 1e-4 * np.abs(wanted).max()
    tree.kv.commit_tree(0, PATH)
    wanted = alone(single, 254, [drafted[i] for i in PATH] + TOKENS[:2])[-1]
    assert np.abs(rows(tree, TOKENS[:2])[-1] - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_trees_and_chains_of_several_sequences_in_one_batch(make: Make) -> None:
    context, single = (make(n_ctx=1024, n_seq_max=n) for n in (3, 1))
    lengths = (3, 250, 40)
    for seq, n in enumerate(lengths):
        filled(context, n, seq)
    parents, seqs = [-1, -1, 0, 1, 1, -1, 3, 2, 5], [0, 1, 0, 1, 1, 2, 1, 0, 2]
    drafted = TOKENS[700:709]
    context.decode(Batch(drafted, seq_id=seqs, parent=parents, logits="all"))
    got = context.logits.copy()
    for leaf in (4, 6, 7, 8):
        nodes = path_to(leaf, parents)
        wanted = alone(single, lengths[seqs[leaf]], [drafted[i] for i in nodes])
        assert np.array_equal(got[nodes], wanted)
        single.kv.clear()
    context.kv.commit_tree(1, [0, 1, 3])  # tokens 1, 3 and 6 of the batch
    context.kv.commit_tree(0, [])
    context.decode(Batch(TOKENS[:2], seq_id=2))  # drops the nodes of sequence 2
    assert [context.kv.length(s) for s in range(3)] == [3, 253, 42]
    assert context.kv.n_used == 3 + 253 + 42
    wanted = alone(single, 250, [drafted[i] for i in (1, 3, 6)] + [7])[-1]
    assert np.array_equal(rows(context, [7], seq=1)[0], wanted)


@pytest.mark.parametrize(
    "operation",
    [
        lambda kv: kv.seq_rm(0, 20),
        lambda kv: kv.seq_cp(1, 0),
        lambda kv: kv.seq_add(0, 5, -1, 3),
        lambda kv: kv.seq_div(0, 5, -1, 1),
        lambda kv: kv.seq_keep(1),
        lambda kv: kv.drop_tree(0),
        lambda kv: kv.clear(),
    ],
)
def test_a_changed_sequence_has_no_tree(windowed: Make, operation: Any) -> None:
    context = filled(windowed(n_seq_max=2), 20)
    context.decode(Batch(TOKENS[:3], parent=[-1, 0, 0]))
    operation(context.kv)
    assert context.kv.n_used == len({int(c) for s in (0, 1) for c in entries(context, s)})
    with pytest.raises(BatchError, match="sequence 0 has no tree: decode a tree of tokens"):
        context.kv.commit_tree(0, [0])


def entries(context: Context, seq: int) -> list[int]:
    """The cells of a sequence."""
    cells: list[int] = context.kv.caches[0].entries(seq)[:, 0].tolist()
    return cells


def test_a_snapshot_holds_the_tree(make: Make) -> None:
    context = filled(make(), 5)
    context.decode(Batch(TOKENS[:3], parent=[-1, 0, 0]))
    cache = context.kv.caches[0]
    taken = cache.snapshot()
    context.kv.commit_tree(0, [0, 2])
    after = rows(context, [9])
    cache.restore(taken)
    context.kv.commit_tree(0, [0, 2])
    assert np.array_equal(rows(context, [9]), after) and context.kv.n_used == 8


def test_trees_that_are_refused(make: Make) -> None:
    context = filled(make(n_seq_max=2, n_ubatch=16), 40)
    before = state(context)
    wide = [-1, *[0] * (MAX_BRANCHES + 1)]
    for options, message in (
        ({"parent": [-1, 2, 0]}, "token 1 of the batch: parent 2, want -1 or an earlier token"),
        ({"parent": [-1, -2, 0]}, "token 1 of the batch: parent -2, want -1"),
        ({"parent": [-1, 0, 0], "seq_id": [0, 1, 0]}, "token 1 .* parent 0, want -1 .* sequence 1"),
        ({"parent": [-1, 0, 0], "seq_id": [0, (0, 1), 0]}, "token 1 .* sequences .0, 1., a tree"),
        ({"parent": [-1, 0]}, "3 tokens but 2 values of parent"),
        ({"parent": [-1, 0, 0], "pos": [1, 2, 2]}, "positions follow from parents"),
    ):
        with pytest.raises(BatchError, match=message):
            context.decode(Batch(TOKENS[:3], **options))
    with pytest.raises(BatchError, match="a batch of 17 tokens: want 1 to n_ubatch = 16"):
        context.decode(Batch(TOKENS[:17], parent=[-1] * 17))
    with pytest.raises(ContextFull, match="5 tokens to store, 4 of 64 cells free"):
        filled(context, 20, 1).decode(Batch(TOKENS[:5], parent=[-1] * 5))
    context.kv.seq_rm(1)
    assert state(context) == before
    for path in ([1], [0, 0], [0, 3], [0, -1], [0, 1, 2]):
        context.decode(Batch(TOKENS[:3], parent=[-1, 0, 0]))
        with pytest.raises(BatchError, match=r"is no path in the tree of sequence 0"):
            context.kv.commit_tree(0, path)
        context.kv.commit_tree(0, [])
    assert state(context) == before
    many = make(n_ctx=256, n_ubatch=128)
    with pytest.raises(BatchError, match=r"have 65 branches besides .* want at most 64"):
        many.decode(Batch(TOKENS[: len(wide) + 1], parent=[*wide, 0]))
    assert many.kv.n_used == 0
    many.decode(Batch(TOKENS[: len(wide)], parent=wide))


def test_nothing_of_a_tree_stays_after_an_error(
    windowed: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = filled(windowed(), 30)
    before = state(context)

    def stopped() -> None:
        raise Aborted("stopped")

    context.decode(Batch(TOKENS[:4], parent=[-1, 0, 0, 1]))
    monkeypatch.setattr(context.last_graph.schedule, "run", stopped)
    with pytest.raises(Aborted):
        context.decode(Batch(TOKENS[:4], parent=[-1, 0, 0, 1]))
    assert state(context) == before and len(context.logits) == 0
    with pytest.raises(BatchError, match="has no tree"):
        context.kv.commit_tree(0, [0])


@pytest.mark.parametrize("fixture", ["make", "windowed"])
def test_a_decode_uses_the_cells_of_a_dropped_tree(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    context = filled(request.getfixturevalue(fixture)(n_ctx=64), 50)
    context.decode(Batch(TOKENS[:10], parent=[-1] * 10))
    assert context.kv.n_used == 60
    context.decode(Batch(TOKENS[50:62]))
    assert context.kv.n_used == context.kv.length(0) == 62
