"""The options for devices, plans without weights (--dry-run), and runs on devices of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from pyggml.backend import registry
from pyllama import Model
from pyllama.runtime.devices import Offload
from pyllama.sparsity.activation_files import write_activations
from pyllama_cli import loading
from pyllama_cli.commands import batched_bench, bench, completion
from pyllama_cli.offload import PlannedOffload
from pyllama_cli.options.options import OffloadOptions, offload_options
from pyllama_cli.parameters import from_options
from pyllama_cli.tool import Program
from tests.pyggml.sched.fake_device import DeferredDevice, FakeDevice
from tests.tiers import some

from ..pyllama.models import Spec, random_weights, write_model
from ..pyllama.sparsity.files import N_LAYER, sparse_file

WHY = "no toy is plugged in"
RUN = ("-p", "The cat", "-n", "4", "-no-cnv", "--temp", "0", "-c", "64", "-ub", "16")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, whatever it has."""
    hosted = {name: registry._factories[name] for name in registry.HOST_BACKENDS}
    monkeypatch.setattr(registry, "_factories", hosted)
    monkeypatch.setattr(registry, "_missing", {"toy": WHY})
    monkeypatch.setattr(registry, "_discovered", True)


@pytest.fixture
def gpus() -> list[FakeDevice]:
    """Two devices with a little more memory than ``-ngl auto`` leaves free."""
    total = (1 << 30) + (64 << 20)
    found = [FakeDevice(name="gpu0", total_bytes=total)]
    found.append(DeferredDevice(name="gpu1", total_bytes=total))
    registry.register_backend("gpu0", lambda n_threads=None: found[0])
    registry.register_backend("gpu1", lambda n_threads=None: found[1])
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    spec = Spec(n_layer=4)
    return write_model(tmp_path / "x.gguf", spec, random_weights(spec))


def run(command: click.Command, *args: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


def take(*args: str) -> Offload:
    seen: list[Offload] = []

    @click.command("x", cls=Program)
    @offload_options
    def command(**options: Any) -> None:
        seen.append(from_options(OffloadOptions, options).offload())

    result = CliRunner().invoke(command, args)
    assert result.exit_code == 0, result.stderr
    return seen[0]


def test_options_have_llama_cpp_meanings() -> None:
    assert take() == take("-ngl", "auto") == take("--gpu-layers=-1") == Offload("auto")
    assert take("-ngl", "all") == take("--n-gpu-layers", "-2") == Offload(-1)
    assert take("-ngl", "7", "-sm", "none", "-mg", "1") == Offload(7, 1, "none")
    assert take("-ts", "3,1") == take("-ts", "3/1") == Offload("auto", tensor_split=(3.0, 1.0))
    assert take("--vram-budget", "0.5,2").vram_budget == (1 << 29, 2 << 30)
    moved = take("-ot", r"blk\.1\.=gpu1,ffn=CPU", "-ot", "a=b", "-ncmoe", "2", "-ncffn", "1")
    assert moved.override_tensor[:3] == ((r"blk\.1\.", "gpu1"), ("ffn", "CPU"), ("a", "b"))
    assert moved.override_tensor[3][0].startswith(r"blk\.0\.ffn_") or "exps" in str(moved)
    assert {device for _, device in moved.override_tensor[3:]} == {"cpu"}
    assert len(moved.override_tensor) == 6 and len(take("-cmoe").override_tensor) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("-ngl some", "'some' is not a number of layers, auto or all"),
        ("-sm row", "'row' is not supported: weights are not divided between devices"),
        ("-sm rows", "'rows' is none of none, layer"),
        ("-ts 1,-1", "'1,-1' is not a list of numbers of at least 0"),
        ("--vram-budget nan", "'nan' is not a list of numbers"),
        ("-ot ffn", "'ffn' is not REGEX=DEVICE"),
        ("-ot (=cpu", "'(' is not a regular expression"),
        ("-ot ffn=gpu9", "--override-tensor names device 'gpu9', which this model does not use"),
        ("-dev gpu9", "no device named 'gpu9'; use none or one of reference, cpu"),
        ("-sm none -mg 2", "--main-gpu is 2, want 0 to 1: gpu0, gpu1"),
    ],
)
def test_mistakes_are_one_line(
    model: Path, gpus: list[FakeDevice], args: str, message: str
) -> None:
    code, out, err = run(completion.command, "-m", model, *args.split(), *RUN)
    assert code in (1, 2) and not out and message in err and err.count("\n") == 1


def test_without_a_gpu_flags_give_one_note(model: Path) -> None:
    code, plain, err = run(completion.command, "-m", model, *RUN)
    assert code == 0 and "GPU" not in err
    for args, flags in (("-ngl 99", "-ngl is"), ("-ngl 9 -ts 3,1 --vram-budget 1", "-ngl, -ts, ")):
        code, out, err = run(completion.command, "-m", model, *args.split(), *RUN)
        (line,) = [line for line in err.splitlines() if "GPU" in line]
        assert (code, out) == (0, plain) and line.startswith(
            f"no GPU was found (toy: {WHY}): {flags}"
        )
    assert f"no toy device: {WHY}" in run(completion.command, "--list-devices")[1]


@pytest.mark.parametrize(
    "args", some(["", "-ngl 2", "-dev GPU1 -nkvo", "-ot attn=cpu", "-sm none"], 3)
)
def test_devices_give_the_same_text(model: Path, gpus: list[FakeDevice], args: str) -> None:
    want = run(completion.command, "-m", model, "-dev", "none", *RUN)[1]
    assert not gpus[0].buft.sizes
    code, out, err = run(completion.command, "-m", model, *args.split(), *RUN)
    assert (code, out) == (0, want), err
    used = [bool(sum(gpu.buft.sizes)) for gpu in gpus]
    assert used == {"-dev GPU1 -nkvo": [False, True], "-sm none": [True, False]}.get(
        args, [True, True]
    )


@pytest.mark.parametrize("command", [completion.command, batched_bench.command, bench.command])
def test_a_dry_run_prints_the_plan(
    model: Path, gpus: list[FakeDevice], command: click.Command
) -> None:
    code, out, err = run(command, "-m", model, "--dry-run", "-ts", "1,3", "-ot", "blk.3.ffn=cpu")
    assert (code, err) == (0, "") and not any(gpu.buft.sizes for gpu in gpus)
    lines = out.splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    assert [row[0].strip() for row in rows] == ["device", "-----:", "gpu0", "gpu1", "cpu"]
    strip = next(line for line in lines if line.lstrip().startswith("layers"))
    assert "[██▓·]" in strip  # most of layer 3 is on the CPU
    assert next(line for line in lines if line.startswith("     3 ")).split("; ") == [
        "     3 weights: gpu1, cpu", "KV: gpu1",
    ]  # fmt: skip


def test_a_dry_run_says_what_does_not_fit(model: Path, gpus: list[FakeDevice]) -> None:
    gpus[0].total_bytes = 50_000
    args = ("-m", model, "--dry-run", "-dev", "gpu0", "-c", "64")
    code, out, _ = run(completion.command, *args, "-ngl", "all")
    assert code == 0 and "gpu0 has" in out and "too little" in out
    assert "too little" not in run(completion.command, *args, "--vram-budget", "1")[1]


@pytest.mark.parametrize("gib", some(["0.0003", "0.0006", "0.0007", "1"], 2))
def test_a_budget_places_neurons_of_sparse_models(
    tmp_path: Path, gpus: list[FakeDevice], gib: str
) -> None:
    path = sparse_file(tmp_path, "bamboo")
    n_ff = Model.load(path, vocab_only=True).hparams.n_ff
    activity = np.random.default_rng(0).integers(0, 99, (N_LAYER, n_ff))
    args = ("-m", path, "-dev", "gpu0", "--vram-budget", gib)
    want = run(completion.command, "-m", path, "-dev", "none", *RUN)[1]
    code, out, err = run(completion.command, *args, *RUN)
    assert (code, out) == (0, want) and ("no statistics of neurons" in err) == (gib != "1")
    assert sum(gpus[0].buft.sizes) <= float(gib) * 2**30
    gpus[0].buft.sizes.clear()
    write_activations(tmp_path / "activation", activity)
    code, out, err = run(completion.command, *args, *RUN)
    assert (code, out) == (0, want) and "statistics" not in err
    assert sum(gpus[0].buft.sizes) <= float(gib) * 2**30
    index = tmp_path / f"{path.name}.generated.gpuidx"
    assert index.exists() == (gib in ("0.0006", "0.0007"))
    if index.exists():
        written = index.stat().st_mtime_ns
        run(completion.command, *args, *RUN)
        assert index.stat().st_mtime_ns == written  # it is up to date
        run(completion.command, *args, "--reset-gpu-index", *RUN)
        assert index.stat().st_mtime_ns > written
        listed = tmp_path / "listed.gpuidx"
        index.rename(listed)
        code, out, err = run(completion.command, *args, "--gpu-index", listed, *RUN)
        assert (code, out) == (0, want) and not index.exists()
        n = {
            flag: run(completion.command, *args, *flag.split(), "--dry-run", *RUN)[1].count(
                f"{n_ff}/{n_ff}"
            )
            for flag in ("", "--disable-gpu-index")
        }
        assert n[""] > 0 == n["--disable-gpu-index"]


@pytest.mark.parametrize("args", some(["", "-ts 1,2", "-sm none -mg 1"], 1))
def test_neurons_of_a_sparse_model_go_to_all_gpus(
    tmp_path: Path, gpus: list[FakeDevice], args: str
) -> None:
    path = sparse_file(tmp_path, "bamboo")
    n_ff = Model.load(path, vocab_only=True).hparams.n_ff
    write_activations(
        tmp_path / "activation", np.random.default_rng(0).integers(0, 99, (N_LAYER, n_ff))
    )
    want = run(completion.command, "-m", path, "-dev", "none", *RUN)[1]
    budget = 0.0004
    given = ("-m", path, "--vram-budget", budget, *args.split(), *RUN)
    code, out, err = run(completion.command, *given)
    assert (code, out) == (0, want) and "no statistics" not in err
    used = [sum(gpu.buft.sizes) for gpu in gpus]
    assert all(0 < n <= budget * 2**30 for n in used if n) and bool(used[0]) == ("none" not in args)
    assert used[1]
    code, plan, _ = run(completion.command, *given, "--dry-run")
    tables = [line for line in plan.splitlines() if line.startswith(path.name)]
    assert code == 0 and len(tables) == (1 if "none" in args else 2)


DRAFT = ("--draft-max", "3", "-ngld", "all")


@pytest.mark.parametrize("args", ["", "-devd gpu1"])
def test_a_dry_run_plans_the_draft_model_too(
    model: Path, tmp_path: Path, gpus: list[FakeDevice], args: str
) -> None:
    """The target may use what the draft leaves of a budget, and of free memory."""
    small = Spec(n_layer=1)
    draft = write_model(tmp_path / "draft.gguf", small, random_weights(small))
    given = ("-m", model, "-md", draft, *DRAFT, *args.split(), *RUN)
    code, out, err = run(completion.command, *given, "--vram-budget", "1", "--dry-run")
    assert (code, err) == (0, "") and not any(gpu.buft.sizes for gpu in gpus)
    lines = out.splitlines()
    assert lines[0] == "draft model" and lines.count("model") == 1
    assert "draft.gguf" in lines[1] and "x.gguf" in lines[lines.index("model") + 1]
    planned: list[PlannedOffload] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "planned_offload", seen(loading.planned_offload, planned))
        run(completion.command, *given, "--vram-budget", "1", "--dry-run")
        first, target = planned
        used = {use.name: use.used for use in first.uses}
        assert [use.limit for use in target.uses] == [2**30 - used.get(gpu.name, 0) for gpu in gpus]
        planned.clear()
        code, want, _ = run(completion.command, "-m", model, "-dev", "none", *RUN)
        code, out, err = run(completion.command, *given, "--vram-budget", "0.01")
    assert (code, out) == (0, want), err
    for gpu in gpus:
        uses = [use for plan in planned for use in plan.uses if use.name == gpu.name]
        assert sum(gpu.buft.sizes) == sum(use.used for use in uses) <= 0.01 * 2**30
    assert used.get("gpu0", 0) > 0 if not args else used == {"gpu1": used["gpu1"]}


def seen(function: Any, results: list[Any]) -> Any:
    """The function, whose results are kept."""

    def call(*args: Any, **options: Any) -> Any:
        results.append(function(*args, **options))
        return results[-1]

    return call


def test_a_target_leaves_room_for_its_draft(
    model: Path, tmp_path: Path, gpus: list[FakeDevice]
) -> None:
    """Without a budget too: the draft's cache and results are allocated last."""
    draft = write_model(tmp_path / "draft.gguf", Spec(n_layer=4), random_weights(Spec(n_layer=4)))
    for gpu in gpus:
        gpu.total_bytes = (1 << 30) + 600_000
    code, out, err = run(completion.command, "-m", model, "-md", draft, *DRAFT, *RUN)
    assert code == 0, err
    for gpu in gpus:
        assert sum(gpu.buft.sizes) <= 600_000
    want = run(completion.command, "-m", model, "-dev", "none", *RUN)[1]
    assert out == want
