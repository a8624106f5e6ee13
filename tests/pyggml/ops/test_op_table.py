"""The page of ops is generated from the declarations, with the reason for missing ops of ggml."""

from __future__ import annotations

from pathlib import Path

from pyggml.ops.op import OPS
from tests.pyggml.ops import op_table
from tests.pyggml.ops.ggml_ops import GGML_OPS, REASONS

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert page == op_table.page(), "run: python -m tests.pyggml.ops.op_table > docs/ops.md"


def test_only_missing_ops_have_a_reason() -> None:
    assert len(GGML_OPS) == len(set(GGML_OPS)) == 101
    assert set(REASONS) <= set(GGML_OPS)
    stale = set(REASONS) & set(OPS)
    assert not stale, f"remove from REASONS: {stale}"


def test_every_case_can_be_built_without_memory() -> None:
    for op in OPS.values():
        for case in op.cases:
            assert op_table.case_node(op, case).op is op
