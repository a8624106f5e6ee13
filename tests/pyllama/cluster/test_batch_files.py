"""Inputs of batches, finished parts, outputs; no Ray."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from pyllama.cluster import batch_files
from pyllama.cluster.batch_files import PartFolder, read_part, scan
from pyllama.errors import BatchFileError

ROWS: list[dict[str, Any]] = [{"id": f"r{i}", "prompt": f"text {i}"} for i in range(10)]


def write_lines(path: Path, rows: list[dict[str, Any]], blank: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" + blank for row in rows))
    return path


def test_rows_of_parts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", ROWS, blank="  \n")
    source = scan(str(path))
    parts = source.parts(4)
    assert [part.n_rows for part in parts] == [4, 4, 2]
    assert [row for part in parts for row in read_part(str(path), part)] == ROWS
    assert scan(str(path), limit=3).n_rows == 3
    assert scan(str(path)).digest == source.digest != scan(str(path), limit=3).digest


def test_rows_of_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=3)
    source = scan(str(path))
    assert [row for part in source.parts(4) for row in read_part(str(path), part)] == ROWS
    folder = PartFolder(tmp_path / "out.parquet", {})
    with folder.locked():
        for part in folder.unfinished(source, 4):
            rows = [{"id": i, "text": "ä", "prompt_tokens": 3} for i in range(part.n_rows)]
            folder.write(part, [json.dumps(row) for row in rows])
        folder.finish(source)
    found = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert len(found) == 10 and found[1]["id"] == "1" and found[0]["prompt_tokens"] == 3
    assert found[0]["text"] == "ä" and found[0]["error"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', "line 2 is not JSON"),
        ('{"prompt": "a"}\n\n[1]\n', "line 3 is list, not a JSON object"),
        ('{"text": "a", "n": 1}\n', "no column is named prompt, messages or body; .* text, n"),
    ],
)
def test_broken_inputs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    with pytest.raises(BatchFileError, match=message):
        scan(str(path))


def test_a_broken_parquet_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "in.parquet"
    path.write_text("no parquet")
    with pytest.raises(BatchFileError, match="not a parquet file"):
        scan(str(path))


@pytest.fixture
def source(tmp_path: Path) -> batch_files.Source:
    return scan(str(write_lines(tmp_path / "in.jsonl", ROWS)))


def lines(part: batch_files.Part) -> list[str]:
    return [json.dumps({"id": i}) for i in range(part.first, part.first + part.n_rows)]


def test_a_run_continues(tmp_path: Path, source: batch_files.Source) -> None:
    output = tmp_path / "out.jsonl"
    one = PartFolder(output, {"--temp": "0"})
    with one.locked():
        parts = one.unfinished(source, 4)
        one.write(parts[1], lines(parts[1]))
    again = PartFolder(output, {"--temp": "0"})
    with again.locked():
        left = again.unfinished(source, 99)  # the size of the parts is that of the first run
        assert [part.number for part in left] == [0, 2]
        for part in left:
            again.write(part, lines(part))
        assert not again.unfinished(source, 4)
        again.finish(source)
    found = [json.loads(line)["id"] for line in output.read_text().splitlines()]
    assert found == [*range(10)] and not again.folder.exists()


def test_other_options_are_refused(tmp_path: Path, source: batch_files.Source) -> None:
    one = PartFolder(tmp_path / "out", {"--temp": "0", "input": "x"})
    with one.locked():
        one.unfinished(source, 4)
    two = PartFolder(tmp_path / "out", {"--temp": "1", "input": "x"})
    with two.locked():
        with pytest.raises(BatchFileError, match=r"another --temp; give .* or delete the folder"):
            two.unfinished(source, 4)
        two.restart()
        assert len(two.unfinished(source, 4)) == 3


def test_other_files_of_the_folder_stay(tmp_path: Path, source: batch_files.Source) -> None:
    run = PartFolder(tmp_path / "out", {})
    theirs = [run.folder / name for name in ("part-1.jsonl", "notes", "deeper/run.json")]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
    assert not run.begun
    with run.locked():
        for restart in (True, False):
            parts = run.unfinished(source, 4)
            for part in parts:
                run.write(part, lines(part))
            assert run.begun and len(parts) == 3
            if restart:
                run.restart()
        run.finish(source)
    assert not run.begun and {p for p in run.folder.rglob("*") if p.is_file()} == {*theirs}


def test_two_runs_at_once(tmp_path: Path) -> None:
    folder = PartFolder(tmp_path / "out", {})
    with (
        folder.locked(),
        pytest.raises(BatchFileError, match="another run"),
        PartFolder(tmp_path / "out", {}).locked(),
    ):
        pass


def test_a_full_disk_leaves_no_half_part(
    tmp_path: Path, source: batch_files.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PartFolder(tmp_path / "out", {})
    with folder.locked():
        part = folder.unfinished(source, 4)[0]

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            with pytest.raises(OSError, match="No space"):
                folder.write(part, lines(part))
        assert part in folder.unfinished(source, 4)
        assert len([*folder.folder.iterdir()]) == 1


def test_an_input_that_changed(tmp_path: Path, source: batch_files.Source) -> None:
    write_lines(Path(source.path), ROWS[:6])
    with pytest.raises(BatchFileError, match="has changed"):
        read_part(source.path, source.parts(4)[1])
