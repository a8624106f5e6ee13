"""Record llama-server's responses to the requests of `recorded`, in tests/data/server.

    python -m tests.pyllama.server.record_server LLAMA_SERVER [MODEL] [--only SESSION]

Needs a llama-server (release 11434 was recorded) and the demo model.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyllama.hub.demo import demo_model_path

from .recorded import SESSIONS, Ask, Session, plain

DATA = Path(__file__).resolve().parents[2] / "data" / "server"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


def send(port: int, ask: Ask) -> Any:
    data = None if ask.body is None else json.dumps(ask.body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{ask.path}", data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            status, headers, body = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        status, headers, body = error.code, error.headers, error.read()
    return plain(ask, status, headers.get("Content-Type", ""), body.decode())


def record(server: str, model: str, session: Session) -> dict[str, Any]:
    """The responses of a session by the names of its requests."""
    port = free_port()
    with TemporaryDirectory() as folder:
        flags = [flag.format(folder=folder, model=model) for flag in session.flags]
        command = [server, "-m", model, "--port", str(port), "-t", "1", "--no-ui", *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(port, process)
            return {ask.name: send(port, ask) for ask in session.asks}
        finally:
            process.terminate()
            process.wait(20)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the server does not start: exit status {process.poll()}")


def written(found: dict[str, Any]) -> str:
    """JSON with a line for each event and response."""
    lines = []
    for name, answer in found.items():
        if "events" in answer:
            events = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in answer["events"])
            head = json.dumps({k: v for k, v in answer.items() if k != "events"})[:-1]
            text = f'{head}, "events": [\n  {events}]}}'
        else:
            text = json.dumps(answer, ensure_ascii=False)
        lines.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    model = args.model or str(demo_model_path())
    DATA.mkdir(parents=True, exist_ok=True)
    for session in SESSIONS:
        if not args.only or session.name in args.only:
            text = written(record(args.server, model, session))
            (DATA / f"{session.name.replace(' ', '_')}.json").write_text(text, "utf-8")
            print(session.name, len(text))


if __name__ == "__main__":
    main()
