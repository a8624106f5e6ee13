"""Messages for clients tell names of files, not their folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyggml.errors import GGUFError
from pyllama.errors import EngineDead
from pyllama.server.request.errors import error_of
from pyllama.server.request.paths import without_folders

from .conftest import Serve


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("cannot open /home/me/models/a.gguf: no such file", "cannot open a.gguf: no such file"),
        ("~/a/b.gguf is damaged", "b.gguf is damaged"),
        (r"C:\Users\me\a.gguf is damaged", "a.gguf is damaged"),
        ("see https://a.example/b/c and user/model:Q8_0", None),
        ("POST /v1 or 3/4 of it", None),
        ("'/a/b' and (/c/d/e)", "'b' and (e)"),
    ],
)
def test_messages(message: str, shown: str | None) -> None:
    assert without_folders(message) == (message if shown is None else shown)


def test_known_folders_may_have_spaces() -> None:
    folder = Path("/home/John Doe/my models")
    assert without_folders(f"{folder / 'a b.gguf'}: bad", folder) == "a b.gguf: bad"


def test_the_server_tells_no_path(serve: Serve, tmp_path: Path) -> None:
    client = serve(model_path="/home/me/models/a.gguf", slot_save_path=tmp_path)
    assert client.get("/props").json()["model_path"] == "a.gguf"
    (tmp_path / "bad").write_bytes(b"no state")
    found = client.post("/slots/0?action=restore", json={"filename": "bad"})
    assert found.status_code == 400 and str(tmp_path) not in found.text
    for path in ("/props", "/models", "/slots", "/api/tags"):
        assert "/home" not in client.get(path).text


@pytest.mark.parametrize(("kind", "status"), [(EngineDead, 503), (GGUFError, 500)])
def test_errors_of_files_while_a_text_runs(kind: type[Exception], status: int) -> None:
    """One line that says what is wrong with the file, without its folder."""
    found = error_of(kind("no step: /srv/models/x.gguf: ends within a tensor; fetch it again"))
    assert found.status == status
    assert found.message == "no step: x.gguf: ends within a tensor; fetch it again"
