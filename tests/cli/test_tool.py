"""Flags, suggestions, error lines and exit codes of the command-line tools."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pyggml.errors import Aborted, GGUFError, ShapeError
from pyggml.ops.attention.attention import KV_TYPES
from pyllama.parameters.loading import CACHE_TYPES
from pyllama_cli import differences, unsupported
from pyllama_cli.commands import bench, completion, perplexity, tokenize
from pyllama_cli.commands.inspect import graph
from pyllama_cli.main import pyllama
from pyllama_cli.output import report
from pyllama_cli.programs import COMMANDS
from pyllama_cli.tool import Program, all_flags, ignored_option

from ..pyllama.models import Spec, random_weights, write_model
from ..tiers import some
from ..waiting import WAIT_S

TOOLS = [m.command for m in (bench, completion, graph, perplexity, tokenize)]


def run(command: click.Command, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, args)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("tool", TOOLS, ids=lambda t: t.name)
def test_help_and_version(tool: click.Command) -> None:
    code, out, err = run(tool, "--help")
    assert (code, err) == (0, "")
    assert "-m, --model" in out
    code, out, err = run(tool, "--version")
    assert (code, err) == (0, "")
    assert all(name in out for name in ("pyggml", "numba", "llvmlite", "Python"))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda t: t.name)
def test_no_flag_is_declared_twice(tool: click.Command) -> None:
    flags = [flag for p in tool.params for flag in (*p.opts, *p.secondary_opts)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("--tmep", "--temp"),
        ("-tmep", "--temp"),
        ("--thread", "--threads"),
        ("-no-cmv", "-no-cnv"),
        ("--predcit=3", "--predict"),
        ("-n24", "-n"),
        ("--No-MMAP", "--no-mmap"),
    ],
)
def test_an_unknown_flag_suggests_the_nearest(wrong: str, near: str) -> None:
    code, out, err = run(completion.command, "-p", "hi", wrong, "3")
    assert (code, out) == (2, "")
    name = wrong.partition("=")[0]
    assert err == f"error: no such option {name} (did you mean {near}?)\n"


@pytest.mark.parametrize(
    ("tool", "args", "said"),
    [
        ("completion", ["--mmproj", "x.gguf"], "llama.cpp's --mmproj is not supported: only text"),
        ("completion", ["--usage=x"], "llama.cpp's --usage is not supported: see --help"),
        ("perplexity", ["-fit", "on"], "llama.cpp's -fit is not supported: -ngl auto offloads"),
        ("bench", ["-rpc", "a:1"], "llama.cpp's -rpc is not supported: there is no RPC backend"),
        ("completion", ["-o", "x"], "llama.cpp's -o is not supported: redirect stdout"),
        ("imatrix", ["-o", "x"], None),
        ("convert", ["--dspark"], "llama.cpp's --dspark is not supported: DSpark heads of"),
        ("completion", ["--mtp"], "llama.cpp's --mtp is not supported: files of heads are not"),
        ("lookup", ["--lookahead"], "llama.cpp's --lookahead is not supported: lookahead decoding"),
        ("lookup", ["-md", "x"], "no such option -md in this tool; it belongs to pyllama-cli, "),
        (
            "gguf",
            ["split", "--merge"],
            "llama.cpp's --merge is not supported: splitting is what this command does",
        ),
        (
            "tokenize",
            ["-npl", "3"],
            "no such option -npl in this tool; it belongs to pyllama-batched-bench",
        ),
        (
            "tokenize",
            ["--sha256"],
            "no such option --sha256 in this tool; it belongs to pyllama-gguf hash",
        ),
        (
            "tokenize",
            ["--mlock"],
            "no such option --mlock in this tool; it belongs to pyllama-cli, pyllama-",
        ),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_unsupported_llama_cpp_flags_give_the_reason(
    tool: str, args: list[str], said: str | None
) -> None:
    code, out, err = run(pyllama, tool, *args)
    if said is None:
        assert code != 0 and "is not supported" not in err
    else:
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: {said}")


def test_unsupported_flags_are_not_supported_elsewhere() -> None:
    flags = {program: {*found, "-h", "--help"} for program, found in all_flags()}
    assert {"pyllama-cli", "pyllama-gguf split", "pyllama-convert"} <= flags.keys()
    everywhere = [*chain.from_iterable(unsupported.by_reason().values())]
    assert len(everywhere) == len({*everywhere}) > 150
    for program, supported in flags.items():
        assert not supported & {*everywhere}, program
    tables = {"completion": "cli", "split": "gguf split", "merge": "gguf merge"}
    for name in unsupported.tools():
        supported = flags[f"pyllama-{tables.get(name, name)}"]
        assert not supported & {*chain.from_iterable(unsupported.by_reason(name).values())}, name
    reasons = (unsupported.why_not(None, flag) for flag in everywhere)
    assert all(reason and "\n" not in reason and not reason.endswith(".") for reason in reasons)


def test_differences_page_is_up_to_date() -> None:
    page = (Path(__file__).parents[2] / "docs" / "from-llama-cpp.md").read_text("utf-8")
    assert page.count("<!-- generated: ") == page.count("<!-- end -->") == 2
    assert "`lora_path`" not in re.sub("(?s)<!-- generated.*?<!-- end -->", "", page)
    assert page == differences.with_tables(page), (
        "run: python -m pyllama_cli.differences docs/from-llama-cpp.md"
    )


def test_an_unknown_flag_without_a_near_one_points_to_help() -> None:
    assert run(completion.command, "--xyzzyq")[2] == "error: no such option --xyzzyq (see --help)\n"


def test_a_value_may_look_like_a_flag() -> None:
    @click.command("x", cls=Program)
    @click.option("-p")
    @click.option("-fa", type=click.Choice(["on", "off"]), is_flag=False, flag_value="on")
    @click.option("-no-cnv", "no_cnv", is_flag=True)
    @click.option("-n", type=int)
    def command(**options: object) -> None:
        click.echo(repr(options))

    def options(*args: str) -> str:
        code, out, err = run(command, *args)
        assert code == 0, err
        return out

    assert "'p': '--no-such'" in options("-p", "--no-such", "-no-cnv")
    assert "'n': -1" in options("-fa", "-n", "-1")
    assert "'fa': 'on'" in options("-fa", "-no-cnv")
    assert "'fa': 'off'" in options("-fa", "off", "-n", "1")


@pytest.mark.parametrize(
    "args",
    [
        ("-t", "-2"),
        ("-t", "100000"),
        ("-c", "-1"),
        ("-c", "1e3"),
        ("-b", "0"),
        ("-ub", "0"),
        ("-n", "-5"),
        ("-n",),
        ("--temp", "nan"),
        ("--temp", "inf"),
        ("--top-p", "-0.1"),
        ("--min-p", "1.5"),
        ("--repeat-penalty", "0"),
        ("--repeat-last-n", "-2"),
        ("-s", "4294967296"),
        ("-l", "15043"),
        ("-l", "3+nan"),
        ("-fa", "maybe"),
        ("-lm", "floppy"),
        ("-ctk", "q3_k"),
        ("-ctv", "q4_k"),
        ("-sys", "a", "-sysf", "b"),
        ("--chat-template-kwargs", "x"),
        ("stray",),
        ("-p", "a", "-f", "b"),
    ],
    ids=" ".join,
)
def test_an_invalid_command_line_is_one_line(args: tuple[str, ...]) -> None:
    code, out, err = run(completion.command, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_cache_types_match_attention() -> None:
    assert [t.name.lower() for t in KV_TYPES] == [*CACHE_TYPES]


def test_ignored_flags_give_their_reason_once() -> None:
    @click.command("x", cls=Program)
    @ignored_option("-ngl", "--n-gpu-layers", takes_value=True, why="no GPU")
    @ignored_option("--no-warmup")
    def command() -> None:
        click.echo("ran")

    assert run(command, "-ngl", "99", "--no-warmup") == (0, "ran\n", "-ngl is ignored: no GPU\n")


def test_the_group_lists_and_runs_every_tool() -> None:
    code, out, _ = run(pyllama, "--help")
    assert code == 0
    assert all(f"\n  {name} " in out for table in COMMANDS.values() for name in table)
    code, _, err = run(pyllama, "completion", "--tmep", "0")
    assert (code, err) == (2, "error: no such option --tmep (did you mean --temp?)\n")
    code, _, err = run(pyllama, "bnech")
    assert (code, err) == (2, "error: no such command bnech (did you mean bench?)\n")
    assert run(pyllama) == run(pyllama, "--help")
    assert run(pyllama, "--verison")[2].endswith("(did you mean --version?)\n")
    assert all(isinstance(tool, Program) for tool in TOOLS)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (GGUFError("x.gguf: bad magic\n  got 'GGML'"), 1, "x.gguf: bad magic got 'GGML'"),
        (ShapeError("ne"), 1, "ne"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.gguf"), 1, "x.gguf: No such file"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "free some space"),
        (MemoryError(), 1, "out of memory"),
        (click.UsageError("no"), 2, "no"),
        (click.ClickException("drawing failed"), 1, "drawing failed"),
        (ZeroDivisionError("1/0"), 1, "internal error: ZeroDivisionError: 1/0"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (Aborted("stopped at node 3"), 130, ""),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else "",
)
def test_errors_become_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert err.count("\n") == bool(line)
    assert err.startswith("error: ") or not line


def test_a_traceback_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYLLAMA_TRACEBACK", "1")
    try:
        raise GGUFError("bad")
    except GGUFError as error:
        assert report(error) == 1
    assert "Traceback" in capsys.readouterr().err


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=WAIT_S
    )


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["completion", "--help"], ["bnech"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    done = python(
        "import sys\nfrom pyllama_cli.main import pyllama\n"
        f"try: pyllama({args})\nexcept SystemExit: pass\n"
        "table = ('pyllama', 'pyllama.parameters')\n"
        "roots = ('numba', 'numpy', 'pyggml', 'pyllama')\n"
        "print([m for m in sys.modules if m.partition('.')[0] in roots\n"
        "       and '.'.join(m.split('.')[:2]) not in table])"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


PIPE = """
import click
from pyllama_cli.output import write
from pyllama_cli.tool import Program

@click.command('x', cls=Program)
def command():
    {body}

command([])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
@pytest.mark.parametrize("body", ["while True: write('line\\n')", "print('x' * 10**6)"])
def test_a_closed_pipe_prints_no_traceback(body: str) -> None:
    code = PIPE.format(body=body)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.read(8)
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(WAIT_S) == 1
    child.stderr.close()


CLOSED = ["/bin/sh", "-c", '"$0" "$@" >&-', sys.executable, "-P", "-c"]


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_a_closed_stdout_is_not_an_error() -> None:
    done = subprocess.run(
        [*CLOSED, PIPE.format(body="write('x')")], capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_characters_outside_the_encoding_of_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", PIPE.format(body="write('a\\u20ac\\n')")],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout) == (0, b"a?\n"), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")
@pytest.mark.parametrize("closed", some(["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], 2))
def test_closed_streams_act_as_empty(closed: str) -> None:
    body = (
        "import sys; write('x'); click.echo('y', err=True); "
        "sys.exit(sys.stdin.read() != '' or open('/dev/null').fileno() < 3)"
    )
    shell = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-P", "-c"]
    shell.append(PIPE.format(body=body))
    done = subprocess.run(shell, input="", capture_output=True, text=True, timeout=WAIT_S)
    out, err = ("" if ">&-" in closed.split() else "x"), ("" if "2>&-" in closed else "y\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, out, err)


KILL = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
THRICE = """
    try:
        {kill}
    finally:
        {kill}
        {kill}
"""
DESTRUCTOR = """
    class Thing:
        def __del__(self):
            {kill}
    Thing()
    import time; time.sleep(600)  # a call that only a signal ends
"""
LOST = """
    class Thing:
        def __del__(self):
            {kill}
    Thing()
    raise ValueError("a consequence")
"""
HALF_MADE = """
    class Thing:
        def __init__(self):
            {kill}
            self.open = True
        def __del__(self):
            self.open
    Thing()
"""
SWALLOWED = """
    try:
        {kill}
    except BaseException:
        raise ValueError("a consequence") from None
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    "body",
    some(
        [
            KILL,
            f"import sys; sys.modules['pyggml'] = None; {KILL}",  # a partial import fails
            THRICE.format(kill=KILL),
            DESTRUCTOR.format(kill=KILL),
            LOST.format(kill=KILL),
            HALF_MADE.format(kill=KILL),
            SWALLOWED.format(kill=KILL),
        ],
        3,
    ),
    ids=[
        "once",
        "in an import",
        "thrice",
        "in a destructor",
        "lost",
        "half made",
        "turned into an error",
    ],
)
def test_ctrl_c_is_quiet(body: str) -> None:
    done = python(PIPE.format(body=body))
    assert (done.returncode, done.stderr.strip()) == (130, "")


PROGRAM = """
import os, sys
import pyllama_cli
os.write(1, b"ready")
from pyllama_cli.commands.completion import command
if __name__ == "__main__":
    sys.exit(command())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.long
def test_any_number_of_ctrl_c_at_any_time(tmp_path: Path) -> None:
    """During imports, loading, generation and at exit, several within two ms."""
    spec = Spec(n_layer=1)
    model = write_model(tmp_path / "x.gguf", spec, random_weights(spec))
    script = tmp_path / "pyllama-cli"
    script.write_text(PROGRAM)
    flags = ["-p", "a", "-n", "-1", "--context-shift", "--ignore-eos", "-no-cnv", "--no-perf"]
    for i in range(12):
        with subprocess.Popen(
            [sys.executable, "-P", str(script), "-m", str(model), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as child:  # fmt: skip
            assert child.stdout is not None and child.stderr is not None
            assert child.stdout.read(5) == b"ready"
            time.sleep(0.1 * i)
            for _ in range(1 + i % 5):
                child.send_signal(signal.SIGINT)
                time.sleep(0.0005 * (i % 3))
            err = child.communicate(timeout=WAIT_S)[1]
        assert child.returncode == 130, (i, err)
        assert len(err.splitlines()) <= 1 and b"Traceback" not in err, (i, err)


def test_empty_pythonpath_entries_are_not_the_current_folder(tmp_path: Path) -> None:
    """``PYTHONPATH=$PYTHONPATH:/x`` has an empty entry if the variable was not set."""
    script = tmp_path / "bin" / "pyllama-cli"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    for name in ("numba", "click", "numpy", "pyllama"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from here')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(["", str(tmp_path / "bin"), ""])}
    command = [sys.executable, "-P", str(script), "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_sigterm_leaves_no_partial_file(tmp_path: Path) -> None:
    body = (
        "import os, signal; from pyggml.files import replacing\n"
        f"    with replacing({str(tmp_path / 'x.bin')!r}) as temporary:\n"
        "        temporary.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGTERM)"
    )
    done = python(PIPE.format(body=body))
    assert (done.returncode, done.stderr.strip()) == (143, "")
    assert not list(tmp_path.iterdir())


def test_full_disk_is_one_line() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-c", PIPE.format(body="write('x')")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
