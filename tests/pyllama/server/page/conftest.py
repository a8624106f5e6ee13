"""A headless Chromium and a server of canned answers, or a skip that says what is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="package")  # while it is open, its thread has a running event loop
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="no browser tests: the extra browser-test"
    )
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    with api.sync_playwright() as playwright:
        if path is None and not os.path.exists(playwright.chromium.executable_path):
            pytest.skip(
                "no browser: install Debian's `chromium`, or run `playwright install chromium`"
            )
        arguments = ["--no-sandbox"] * (os.geteuid() == 0)  # root has no sandbox
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[Any]:
    pytest.importorskip("starlette", reason="no server tests: pip install pyggml[server]")
    from .fake_server import FakeServer, running

    fake = FakeServer()
    with running(fake) as fake.url:
        yield fake


@pytest.fixture
def open_page(browser: Any, server: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page in a browser profile of its own; fails on errors and on foreign requests."""
    contexts, wrong = [], []

    def open_page(path: str = "", **options: Any) -> Any:
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "color_scheme": "light", **options}
        )
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if "Content Security" in m.text else None)
        page.on("request", lambda r: None if r.url.startswith(own) else wrong.append(r.url))
        page.goto(server.url + path)
        page.wait_for_selector("[data-ready]")
        return page

    own = (server.url, "about:", "blob:", "data:")
    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()
