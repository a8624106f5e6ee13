"""The page of the model's graph, used in a browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyllama import Context, Model
from pyllama.server.page.graph_page import GraphQuery, draw_graph, graph_drawing, graph_json

from ...models import Spec, random_weights, write_model

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_the_heat_map(open_page: Callable[..., Any]) -> None:
    page = open_page("graph")
    assert page.inner_text("#title") == "fake.gguf, 1 token"
    assert page.locator("#map thead th span").all_inner_texts() == ["ffn_up", "kqv"]
    assert page.locator("#map tbody tr").count() == 3 and page.is_hidden("#families")
    assert page.locator("#list th").all_inner_texts() == ["result_output", "ffn_up × 3"]
    page.click("text=Measure times")
    page.wait_for_selector("#families:visible")
    assert page.locator("#summary dd").first.inner_text() == "323.0 µs"
    assert page.locator("#families li").all_inner_texts() == ["matmul 80.5 %", "attention 19.5 %"]
    heat = "cells => cells.map(cell => +getComputedStyle(cell).getPropertyValue('--heat'))"
    heats = page.locator("#map td").evaluate_all(heat)
    assert heats == sorted(heats) and heats[-1] == 1
    assert "result_output200.0 µs, 61.9 %" in page.inner_text(".outside").replace("\n", "")
    page.hover("#map tr:nth-child(2) td:nth-child(2)")
    assert page.inner_text("#details h3") == "ffn_up-1"
    assert "20.0 µs, 6.19 %" in page.inner_text("#details")
    page.focus("#map td >> nth=0")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert page.inner_text("#details h3") == "kqv-2"
    page.click("#list >> text=ffn_up")
    assert page.inner_text("#details h3") == "ffn_up-2"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_drawing_of_a_real_model(
    open_page: Callable[..., Any], server: Any, tmp_path: Path, theme: str
) -> None:
    """Its script runs, in a frame that has neither this page's storage nor its key."""
    path = write_model(tmp_path / "x.gguf", Spec(), random_weights(Spec()))
    query = GraphQuery(times=True, depth=8)
    drawn = draw_graph(Context(Model.load(path), n_ctx=64), query)
    server.graph = json.loads(graph_json(drawn, query))
    server.drawing = graph_drawing(drawn)
    page = open_page("graph")
    for _ in range(1 if theme == "light" else 2):
        page.click("#toggle-theme")
    page.click("#tab-drawing")
    frame = page.frame_locator("#frame")
    frame.locator("#search").fill("ffn_swiglu-1")
    frame.locator("#search").press("Enter")
    assert "ffn_swiglu-1" in frame.locator("#details h2").inner_text()
    inside = page.frames[1]
    assert inside.evaluate("document.documentElement.dataset.theme") == theme
    page.click("#toggle-theme")  # dark, or system, which is light here
    other = "dark" if theme == "light" else "light"
    inside.wait_for_function(f"document.documentElement.dataset.theme === '{other}'")
    assert inside.evaluate("try { localStorage.length } catch (error) { error.name }") == (
        "SecurityError"
    )
    page.keyboard.press("Escape")
    page.focus("#tab-drawing")
    page.keyboard.press("ArrowLeft")
    assert page.is_visible("#map") and page.locator("#map tbody tr").count() == 2


def test_on_a_phone(open_page: Callable[..., Any], server: Any) -> None:
    page = open_page("graph", viewport={"width": 390, "height": 844}, has_touch=True)
    page.tap("#map td >> nth=3")
    assert page.inner_text("#details h3") == "kqv-1"
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_a_missing_key_is_said(open_page: Callable[..., Any], server: Any) -> None:
    server.key = "secret"
    page = open_page("graph")
    assert "needs an API key" in page.inner_text("#state")
