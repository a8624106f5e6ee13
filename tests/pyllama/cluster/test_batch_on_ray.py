"""``pyllama-batch`` on Ray: killed and continued, with a worker killed; one line for each row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .local_ray import local_ray, on_ray, until

pytestmark = on_ray
N_PREDICT = 400


def program(name: str, *args: str) -> list[str]:
    code = f"from pyllama_cli.commands.{name} import command; command()"
    return [sys.executable, "-P", "-c", code, *args]


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"id": f"r{i}", "prompt": f"{i} is"} for i in range(48)]
    found[5] = {"id": "none", "text": "not a prompt"}
    found[6] = {"id": "long", "prompt": "x" * 5000}
    found[7] = {"custom_id": "c", "method": "POST", "url": "/v1/completions",
                "body": {"prompt": "7 is", "max_tokens": 3, "temperature": 0}}  # fmt: skip
    return found


def worker_processes() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"BatchWorker" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_killed_run_continues(model_path: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    parts = tmp_path / "out.jsonl.parts"
    with local_ray(n_nodes=1, n_cpus=3) as cluster:
        options = [str(source), str(output), "-m", str(model_path), "-n", str(N_PREDICT), "-t", "1",
                   "--temp", "0", "--ignore-eos", "--part-rows", "4", "-np", "2", "--workers", "2",
                   "--address", cluster.address]  # fmt: skip
        run = subprocess.Popen(program("batch", *options), stderr=subprocess.PIPE, text=True)
        until(lambda: len([*parts.glob("part-*")]) >= 2 or run.poll() is not None, 300)
        assert run.poll() is None
        run.send_signal(signal.SIGKILL)
        run.communicate()
        done = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*")}
        assert 2 <= len(done) < 12 and not output.exists()

        other = subprocess.run(
            program("batch", *options, "--top-k", "3"), capture_output=True, text=True
        )
        assert other.returncode == 1 and "another sampling option" in other.stderr
        until(lambda: not worker_processes(), 60)

        run = subprocess.Popen(program("batch", *options), stderr=subprocess.PIPE, text=True)
        until(lambda: len([*parts.glob("part-*")]) > len(done), 300)
        kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*")}
        assert done.items() <= kept.items()  # they were not computed again
        os.kill(worker_processes()[0], signal.SIGKILL)
        _, messages = run.communicate(timeout=300)
        assert run.returncode == 0, messages
        assert "continuing:" in messages

    found = [json.loads(line) for line in output.read_text().splitlines()]
    ids = [one.get("custom_id") or one["id"] for one in found]
    assert ids == [row.get("custom_id") or row["id"] for row in rows()]
    assert "no prompt" in found[5]["error"] and "exceeds" in found[6]["error"]
    assert found[7]["response"]["body"]["usage"]["completion_tokens"] == 3
    texts = [one for one in found if "text" in one]
    assert len(texts) == 45 and not parts.exists()
    assert {one["completion_tokens"] for one in texts} == {N_PREDICT}
    for i in (0, 40):
        alone = subprocess.run(
            program("completion", "-m", str(model_path), "-p", f"{i} is", "-n", str(N_PREDICT),
                    "--temp", "0", "--ignore-eos", "-no-cnv", "--no-display-prompt", "-t", "1"),
            capture_output=True,
        )  # fmt: skip
        assert alone.stdout.decode().removesuffix("\n") == found[i]["text"]
