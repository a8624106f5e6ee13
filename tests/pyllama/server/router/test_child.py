"""A child's side of the pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from ....waiting import WAIT_S

CODE = """
import sys, time
from pyllama.server.router.child import RouterLink
try:
    link = RouterLink.open()
except ValueError as error:
    sys.exit(str(error))
print("not a report")
sys.stdout.flush()
link.report("loaded", key=link.key, name=link.name)
time.sleep(600)
"""


def start() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-P", "-c", CODE]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_reports_orders_and_the_end_of_the_router() -> None:
    first, second, third = start(), start(), start()
    for child in (first, second):
        assert child.stdin and child.stdout and child.stderr
        child.stdin.write('{"key": "k", "name": "n"}\n')
        child.stdin.flush()
        told = json.loads(child.stdout.readline())
        assert told == {"state": "loaded", "key": "k", "name": "n"}
        assert child.stderr.readline() == "not a report\n"
    assert first.stdin and second.stdin and third.stdin
    first.stdin.write("exit\n")
    first.stdin.flush()
    assert first.wait(WAIT_S) == -signal.SIGTERM
    second.stdin.close()  # as when the router is killed
    assert second.wait(WAIT_S) == 1
    third.stdin.write("hello\n")
    assert "only a router starts a server" in third.communicate(timeout=WAIT_S)[1]
    assert third.returncode == 1
    for child in (first, second):
        for pipe in (child.stdin, child.stdout, child.stderr):
            assert pipe
            pipe.close()
