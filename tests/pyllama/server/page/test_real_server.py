"""The pages on the server itself, with a tiny model."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama import Model

from ..conftest import listening, make_served

pytestmark = [pytest.mark.browser, pytest.mark.long]


@pytest.mark.parametrize("prefix", ["", "/deep/prefix"])
def test_the_pages_work_on_the_server(browser: Any, model: Model, prefix: str) -> None:
    served = make_served(model, api_prefix=prefix, endpoint_metrics=True, n_predict=24)
    with listening(served) as port:
        context = browser.new_context()
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}{prefix}/")
        page.wait_for_selector("[data-ready]")
        page.click("#toggle-monitor")
        page.click("#open-settings")
        page.check("#probabilities")
        page.keyboard.press("Escape")
        page.fill("#prompt", "Hello")
        page.press("#prompt", "Enter")
        page.wait_for_selector(".message.assistant:not(.streaming) .stats")
        assert "tok/s" in page.inner_text(".message.assistant .stats")
        page.click("[aria-label='Probabilities of tokens']")
        assert page.locator(".token").count() > 1
        assert page.locator("#monitor .slots li").count() == 2
        page.wait_for_selector("#monitor dd:has-text('tok/s')")
        page.click("text=Model graph")
        page.wait_for_selector("[data-ready]")
        page.click("text=Measure times")
        page.wait_for_selector("#families:visible")
        page.click("#tab-drawing")
        page.frame_locator("#frame").locator("#search").wait_for()
        context.close()
        assert not errors
