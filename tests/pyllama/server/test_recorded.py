"""Our responses to the requests whose responses of llama-server are recorded.

`record_server` made the files. What is compared is what `recorded.plain` leaves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from pyllama.server.http import listener
from pyllama_cli.commands import serve

from ...waiting import until
from .record_server import DATA
from .recorded import DELIBERATE, SESSIONS, Ask, Session, plain

pytestmark = [pytest.mark.model, pytest.mark.long]


def answers(
    session: Session, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Our responses, of a server with these flags in this process."""
    found: dict[str, Any] = {}

    def serve_here(
        app: Any, where: Any, on_listening: Callable[..., None], drain: Any, leave: Any
    ) -> None:
        on_listening(["http://localhost"], lambda: None)
        with TestClient(app, base_url="http://localhost") as client:
            until(lambda: client.get("/health").status_code != 503)
            found.update({ask.name: send(client, ask) for ask in session.asks})
            if "health" in found:  # with an empty code cache, kernels compile in the background
                found["health"]["body"].pop("compiling", None)

    def left(error: BaseException | None = None) -> None:  # the command would end this process
        raise SystemExit(0 if error is None else 1)

    monkeypatch.setattr(listener, "serve", serve_here)
    monkeypatch.setattr(serve, "_leave", left)
    flags = [flag.format(folder=folder, model=model) for flag in session.flags + session.ours]
    result = CliRunner().invoke(serve.command, ["-m", str(model), "-t", "2", "--no-ui", *flags])
    assert result.exit_code == 0, result.stderr
    return found


def send(client: TestClient, ask: Ask) -> Any:
    method = "GET" if ask.body is None else "POST"
    response = client.request(method, ask.path, json=ask.body)
    return plain(ask, response.status_code, response.headers.get("content-type", ""), response.text)


def differences(theirs: Any, ours: Any, where: str = "") -> Sequence[str]:
    """Where two values differ, one line each."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = []
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            if key not in ours:
                found.append(f"{where}.{key}: missing, {theirs[key]!r:.80}")
            elif key not in theirs:
                found.append(f"{where}.{key}: only ours, {ours[key]!r:.80}")
            else:
                found += differences(theirs[key], ours[key], f"{where}.{key}")
        return found
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = zip(theirs, ours, strict=True)
        return [d for i, (a, b) in enumerate(pairs) for d in differences(a, b, f"{where}[{i}]")]
    if theirs == ours and type(theirs) is type(ours):
        return []
    return [f"{where}: {theirs!r:.200} but ours {ours!r:.200}"]


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_responses(
    session: Session, demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DATA / f"{session.name.replace(' ', '_')}.json"
    theirs = json.loads(file.read_text("utf-8"))
    ours = answers(session, demo_model, tmp_path, monkeypatch)
    lines = [
        f"{session.name} | {name} {line}"
        for name, answer in theirs.items()
        for line in differences(answer, ours.pop(name))
    ]
    assert not [one for one in lines if not any(re.search(known, one) for known in DELIBERATE)]
    assert not ours  # record again after a request was added
