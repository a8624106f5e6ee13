"""Models from the hub, with a local test server."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyllama import Llama
from pyllama.errors import HubError
from pyllama.hub.hub import Hub, choose, hub_model

from ..hub_server import HubServer

pytest.importorskip("huggingface_hub")

BIG = bytes(range(256)) * 2000
PIECE = 1 << 16
FILES = {
    "README.md": b"# model",
    "mmproj-Q4_K_M.gguf": b"no",
    "model-F16.gguf": b"f16",
    "model-Q4_K_M.gguf": BIG,
    "sub/model-IQ2_XS-00002-of-00002.gguf": b"two",
    "sub/model-IQ2_XS-00001-of-00002.gguf": b"one",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({"user/model": FILES, "user/empty": {"README.md": b"x"}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", PIECE)
        yield server


def fetched(server: HubServer) -> list[tuple[str, str | None]]:
    return [
        (p.rpartition("/")[2], r) for m, p, r in server.requests if m == "GET" and "/api/" not in p
    ]


def test_a_model_is_downloaded_once(server: HubServer, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    hub = Hub(cache_dir=tmp_path, progress=lambda file, fraction: seen.append((file, fraction)))
    path = hub_model("user/model", hub=hub)
    assert path.name == "model-Q4_K_M.gguf" and path.read_bytes() == BIG
    assert seen[-1] == ("model-Q4_K_M.gguf", 1.0) and all(0 < f <= 1 for _, f in seen)
    assert hub_model("user/model:q4_k_m", hub=hub) == path
    assert fetched(server) == [("model-Q4_K_M.gguf", None)]


def test_single_and_split_files_by_name(server: HubServer, tmp_path: Path) -> None:
    hub = Hub(cache_dir=tmp_path)
    assert hub_model("user/model", "MODEL-f16.gguf", hub).read_bytes() == b"f16"
    first = hub_model("user/model:iq2_xs", hub=hub)
    assert first.read_bytes() == b"one"
    assert (first.parent / "model-IQ2_XS-00002-of-00002.gguf").read_bytes() == b"two"


def test_files_by_pattern(server: HubServer, tmp_path: Path) -> None:
    hub = Hub(cache_dir=tmp_path)
    assert hub_model("user/model", "*f16.gguf", hub).read_bytes() == b"f16"
    assert hub_model("user/model", "sub/*", hub).read_bytes() == b"one"  # the first split file
    with pytest.raises(HubError, match=r"several files \*\.gguf: model-F16\.gguf, .*; name one"):
        hub_model("user/model", "*.gguf", hub)
    with pytest.raises(HubError, match=r"no file \*Q9\*; it has model-F16\.gguf"):
        hub_model("user/model", "*Q9*", hub)


def test_llama_from_the_hub(server: HubServer, tmp_path: Path) -> None:
    class Given(Llama):
        def __init__(self, model_path: Any, **options: Any) -> None:
            self.given = Path(model_path).read_bytes(), options

    made = Given.from_pretrained("user/model", "*F16.gguf", cache_dir=tmp_path, n_ctx=8)
    assert isinstance(made, Given) and made.given == (b"f16", {"n_ctx": 8})
    local = tmp_path / "here"
    made = Given.from_pretrained(
        "user/model", "*F16.gguf", ["mmproj*", "README.md"], local, "auto", verbose=False
    )
    assert made.given == (b"f16", {"verbose": False})
    assert {p.name for p in local.iterdir() if p.is_file()} == {
        "model-F16.gguf", "mmproj-Q4_K_M.gguf", "README.md",
    }  # fmt: skip
    for pattern, message in (("*.gguf", "several files"), ("*.txt", "no file")):
        with pytest.raises(HubError, match=message):
            Given.from_pretrained("user/model", "*F16.gguf", [pattern], local)


def test_a_broken_download_is_resumed(server: HubServer, tmp_path: Path) -> None:
    server.cut_after = 3 * PIECE + 100
    path = hub_model("user/model", hub=Hub(cache_dir=tmp_path))
    assert path.read_bytes() == BIG
    first, second = [r for _, r in fetched(server)]
    assert first is None
    assert second == f"bytes={3 * PIECE}-"


def test_an_interrupted_download_leaves_no_partial_file(server: HubServer, tmp_path: Path) -> None:
    def stop(file: str, fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub_model("user/model", hub=Hub(cache_dir=tmp_path, progress=stop))
    assert not list(tmp_path.rglob("*.gguf"))
    assert hub_model("user/model", hub=Hub(cache_dir=tmp_path)).read_bytes() == BIG


def test_without_a_network_the_cache_is_used(server: HubServer, tmp_path: Path) -> None:
    path = hub_model("user/model", hub=Hub(cache_dir=tmp_path))
    server.requests.clear()
    offline = Hub(cache_dir=tmp_path, offline=True)
    assert hub_model("user/model", hub=offline) == path
    assert not server.requests
    with pytest.raises(HubError, match="offline"):
        hub_model("user/other", hub=offline)
    with pytest.raises(HubError, match=r"no F16 among its GGUF files; it has model-Q4_K_M\.gguf"):
        hub_model("user/model:F16", hub=offline)
    server.stop()
    assert hub_model("user/model", hub=Hub(cache_dir=tmp_path)) == path
    with pytest.raises(HubError, match="cannot be downloaded"):
        hub_model("user/other", hub=Hub(cache_dir=tmp_path))


def test_full_disk_and_invalid_repository_names(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    def fail(*args: object, **options: object) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.hf_hub_download", fail)
        with pytest.raises(HubError, match=r"gguf cannot be saved: .*No space left.*; set HF_HOME"):
            hub_model("user/model", hub=Hub(cache_dir=tmp_path))
    for name in ("user/-model", "user/a..b", "u/" + "x" * 100):
        with pytest.raises(HubError, match=f"'{name}' is not a repository: ") as error:
            hub_model(name, hub=Hub(cache_dir=tmp_path))
        assert "\n" not in str(error.value) and "network" not in str(error.value)


def test_offline_in_a_fresh_process(tmp_path: Path) -> None:
    """huggingface_hub imports submodules at first use; other tests may hide a missing import."""
    code = "from pyllama.hub.hub import Hub; print(Hub(offline=True).files('user/model'))"
    environ = {**os.environ, "HF_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environ, capture_output=True, text=True
    )
    assert (run.stdout, run.returncode) == ("[]\n", 0), run.stderr


def test_tokens(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.token = "secret"
    with pytest.raises(HubError, match="private one needs a token") as error:
        hub_model("user/model", hub=Hub(cache_dir=tmp_path))
    assert "\n" not in str(error.value)
    assert hub_model("user/model:F16", hub=Hub("secret", cache_dir=tmp_path)).exists()
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert hub_model("user/model:Q4_K_M", hub=Hub(cache_dir=tmp_path)).exists()
    server.gated = True
    with pytest.raises(HubError, match="gated: accept its terms"):
        hub_model("user/model:iq2_xs", hub=Hub(cache_dir=tmp_path))


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("user/none", None, "there is no repository user/none"),
        ("user/model:Q9", None, "no Q9 among its GGUF files; it has model-F16.gguf"),
        ("user/model", "x.gguf", "has no file x.gguf; it has model-F16"),
        ("user/empty", None, "has no GGUF files"),
        ("model", None, "use user/model or user/model:QUANT"),
        ("../../etc/passwd", None, "use user/model or user/model:QUANT"),
    ],
)
def test_missing_repositories_and_files(
    server: HubServer, tmp_path: Path, name: str, file: str | None, message: str
) -> None:
    with pytest.raises(HubError, match=message) as error:
        hub_model(name, file, Hub(cache_dir=tmp_path))
    assert "\n" not in str(error.value)


def test_missing_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HubError, match=r"pip install 'pyggml\[hf\]'"):
        hub_model("user/model")


def test_choice_of_the_file() -> None:
    assert choose("u/m", ["a-Q8_0.gguf", "a-q4_k_m.gguf"]) == "a-q4_k_m.gguf"
    assert choose("u/m", ["a-Q2_K.gguf", "a-Q8_0.gguf"]) == "a-Q8_0.gguf"
    assert choose("u/m", ["a-Q3.gguf", "a-Q2_K.gguf"]) == "a-Q3.gguf"
    assert choose("u/m", ["a-Q3.gguf", "Q2_K/a-Q2_K-00001-of-00002.gguf"], "q2_k").startswith(
        "Q2_K/"
    )
    assert choose("u/m", ["a-Q3.gguf"], "latest") == "a-Q3.gguf"
