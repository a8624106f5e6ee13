"""The process of a model, as the router sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyllama.server.router import process
from pyllama.server.router.process import ChildProcess, start

from ....waiting import WAIT_S

BEGIN = """
import json, os, sys
orders = json.loads(sys.stdin.readline())
def tell(**state): print(json.dumps(state), flush=True)
"""


def run(code: str, use: Callable[[ChildProcess, list[dict[str, Any]]], Any]) -> Any:
    async def main() -> Any:
        told: list[dict[str, Any]] = []
        command = (sys.executable, "-I", "-c", BEGIN + code)
        child = await start(command, "m", dict(os.environ), told.append)
        async with asyncio.timeout(WAIT_S):
            return await use(child, told)

    return asyncio.run(main())


def test_states_and_the_exit_code() -> None:
    async def use(child: ChildProcess, told: list[dict[str, Any]]) -> None:
        assert await child.wait() == 3
        assert child.port == 4711 and len(child.key) > 30
        assert told == [{"state": "loaded", "key": child.key, "name": "m"}]

    run(
        'tell(state="listening", port=4711); print("no JSON", flush=True)\n'
        'tell(state="loaded", **orders); sys.exit(3)',
        use,
    )


def test_what_it_writes_on_stderr(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(process, "_DRAIN_S", WAIT_S)

    async def use(child: ChildProcess, told: Any) -> None:
        assert await child.wait() == 1
        assert child.last_line == "error: \ufffd no such file"

    run(
        'sys.stderr.write("a note\\n{\\"level\\": \\"info\\"}\\n\\n"); sys.stderr.flush()\n'
        'os.write(2, b"error: \\xff no such file"); sys.exit(1)',
        use,
    )
    shown = capsys.readouterr()
    assert shown.err == "[m] a note\n[m] error: \ufffd no such file\n"
    assert shown.out == '{"level": "info"}\n'


def test_orders() -> None:
    async def use(child: ChildProcess, told: Any) -> tuple[int, int]:
        child.ask_exit()
        code = await child.wait()
        child.ask_exit()  # it has ended: nothing happens
        child.kill()
        return code, child.port

    assert run("assert sys.stdin.readline() == 'exit\\n'; sys.exit(5)", use) == (5, 0)

    async def kill(child: ChildProcess, told: Any) -> int:
        child.kill()
        return await child.wait()

    assert run("sys.stdin.readline()", kill) == -9


def test_a_grandchild_that_holds_the_pipes_delays_nothing() -> None:
    async def use(child: ChildProcess, told: Any) -> int:
        try:
            return await child.wait()
        finally:
            os.kill(told[0]["pid"], signal.SIGKILL)

    code = (
        "import subprocess\n"
        "holds = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(600)'],"
        " stdout=subprocess.DEVNULL)\ntell(pid=holds.pid)\nsys.exit(4)"
    )
    assert run(code, use) == 4
