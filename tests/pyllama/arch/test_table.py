"""The page of architectures is up to date with their files."""

from __future__ import annotations

from . import table
from .checkpoints import DATA, variants

PAGE = DATA.parents[1] / "docs" / "architectures.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == table.page(), (
        "run: python -m tests.pyllama.arch.table > docs/architectures.md"
    )


def test_every_variant_is_recorded_and_only_they() -> None:
    assert {path.stem for path in (DATA / "arch").glob("*.npz")} == set(variants())
    assert set(table.LLAMA_CPP) <= set(variants())
