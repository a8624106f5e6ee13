"""The page of conversations, used in a browser as a person would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ....waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.long]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
LAST = ".message.assistant:last-child"


def say(page: Any, text: str, *, wait: bool = True) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    if wait:
        page.wait_for_selector(".message.assistant:last-child:not(.streaming)")
        page.wait_for_selector("#send:visible")


def settings(page: Any) -> None:
    page.click("#open-settings")
    page.wait_for_selector("#settings[open]")


def reload(page: Any) -> None:
    page.reload()
    page.wait_for_selector("[data-ready]")


def test_an_answer_streams_in(page: Any, server: Any) -> None:
    assert page.inner_text("#model-name") == "fake-1b"
    server.may_end.clear()
    say(page, "Hello there", wait=False)
    page.wait_for_selector(".message.streaming .body p")
    page.wait_for_selector("#rate:has-text('142 tok/s')")
    server.may_end.set()
    page.wait_for_selector("#send:visible")
    text = "You said: Hello there. This is answer 1."
    assert page.inner_text(f"{LAST} .body") == text
    assert page.inner_text("#rate") == ""
    assert "142 tok/s · prompt 62, 12 cached" in page.inner_text(f"{LAST} .stats")
    assert page.inner_text("#title") == "Hello there"
    assert page.get_attribute("#context", "aria-valuetext") == "69 of 4096 tokens"
    body = server.bodies[0]
    assert body["messages"] == [{"role": "user", "content": "Hello there"}]
    assert body["stream"] and body["timings_per_token"] and body["return_progress"]
    assert "temperature" not in body and "logprobs" not in body
    say(page, "More")
    assert [m["role"] for m in server.bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert text in page.inner_text("#announcer") and "End of the answer" in page.inner_text(
        "#announcer"
    )


def test_markdown_becomes_elements(page: Any) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page, "markdown")
    body = page.locator(f"{LAST} .body")
    for selector, text in {
        "strong": "bold", "em": "emphasis", "p code": "code", "del": "nothing",
        "ol > li:first-child": "First", "ol ul li": "nested, with a link",
        "td:nth-child(2) >> nth=0": "12 µs", "blockquote": "A quoted line.",
        ".hl-comment": "# the empty list has no mean", "> p:last-child": "1 < 2 && 3 > 2",
    }.items():  # fmt: skip
        assert body.locator(selector).first.inner_text() == text, selector
    assert body.locator("a").get_attribute("href") == "https://example.org/a?b=1&c=2"
    assert body.locator("a").get_attribute("rel") == "noopener noreferrer"
    body.locator("[aria-label='Copy the python code']").click()
    page.wait_for_selector("#announcer:has-text('Copied')", state="attached")
    assert page.evaluate("navigator.clipboard.readText()").startswith("def mean(values")


def test_text_of_a_model_never_becomes_script(page: Any, server: Any) -> None:
    say(page, "hostile")
    assert page.evaluate("window.pwned") is None
    body = page.locator(f"{LAST} .body")
    assert body.locator("img, script, iframe, svg, object, [onerror], [onload]").count() == 0
    links = body.locator("a").evaluate_all("all => all.map(a => a.href)")
    assert links == ["https://example.org/track.png"]  # a picture is a link, not a request
    assert "<script>window.pwned = 1</script>" in body.inner_text()


def test_stop_keeps_the_text_and_closes_the_stream(page: Any, server: Any) -> None:
    say(page, "a long text", wait=False)
    page.wait_for_selector(".message.streaming .body p")
    page.click("#stop")
    page.wait_for_selector("#send:visible")
    assert page.inner_text(f"{LAST} .body").startswith("word word")
    assert "stopped" in page.inner_text(f"{LAST} .stats")
    until(lambda: server.n_aborted)
    assert server.n_aborted == 1
    page.click(f"{LAST} [aria-label='Continue']")
    page.wait_for_selector(f"{LAST} .body:has-text('And more.')")
    assert [m["role"] for m in server.bodies[1]["messages"]] == ["user", "assistant"]
    assert page.locator("[aria-label='Continue']").count() == 0
    say(page, "a long text", wait=False)
    page.wait_for_selector(".message.streaming .body p")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:visible")


def test_regenerate_and_edit_keep_all_versions(page: Any, server: Any) -> None:
    say(page, "One")
    page.click(f"{LAST} [aria-label='Regenerate']")
    page.wait_for_selector(f"{LAST} .versions")
    assert page.inner_text(f"{LAST} .body").endswith("answer 2.")
    assert page.inner_text(f"{LAST} .versions").strip() == "2 / 2"
    page.click(f"{LAST} [aria-label='Previous version']")
    assert page.inner_text(f"{LAST} .body").endswith("answer 1.")
    page.hover(".message.user")
    page.click(".message.user [aria-label='Edit']")
    page.fill(".edit textarea", "Two")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".message.user .versions")
    page.wait_for_selector("#send:visible")
    assert server.bodies[2]["messages"] == [{"role": "user", "content": "Two"}]
    page.click(".message.user [aria-label='Previous version']")
    assert page.inner_text(".message.user .body") == "One"
    page.fill("#prompt", "")
    page.press("#prompt", "ArrowUp")  # edits the last message
    assert page.input_value(".edit textarea") == "One"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.ariaLabel") == "Edit"
    page.click(f"{LAST} [aria-label='Edit']")
    page.fill(".edit textarea", "My own answer")
    page.click("text=Save")
    assert page.inner_text(f"{LAST} .body") == "My own answer" and len(server.bodies) == 3


def test_conversations_are_kept_renamed_deleted(page: Any) -> None:
    say(page, "First talk")
    page.click("#new-chat")
    assert page.is_visible("#welcome")
    say(page, "Second talk")
    reload(page)
    assert page.locator("#conversations a").all_inner_texts() == ["Second talk", "First talk"]
    assert page.locator(".message").count() == 2  # the address names the conversation
    page.click("text=First talk")
    assert "You said: First talk" in page.inner_text("#messages")
    page.go_back()
    assert "You said: Second talk" in page.inner_text("#messages")
    page.click("[aria-label='Rename “Second talk”']")
    page.keyboard.type("About whales")
    page.keyboard.press("Enter")
    page.wait_for_selector(".message.user:has-text('Second talk')")
    page.click("[aria-label='Delete “About whales”']")
    page.wait_for_selector("#welcome:visible")
    assert page.locator("#conversations li").count() == 1
    page.click("text=Undo")
    page.wait_for_selector(".message.user:has-text('Second talk')")
    page.click("[aria-label='Delete “About whales”']")
    page.wait_for_selector("#welcome:visible")
    reload(page)
    assert page.locator("#conversations a").all_inner_texts() == ["First talk"]


def test_export_and_import(page: Any, tmp_path: Path) -> None:
    say(page, "Keep me")
    with page.expect_download() as download:
        page.click("#export-all")
    path = tmp_path / "kept.json"
    download.value.save_as(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    (kept,) = data["conversations"]
    assert kept["title"] == "Keep me" and len(kept["nodes"]) == 2
    page.click("[aria-label='Delete “Keep me”']")
    page.set_input_files("#import-file", path)
    page.wait_for_selector(".message.assistant")
    assert page.locator("#conversations a").all_inner_texts() == ["Keep me"]
    first, second = kept["nodes"].values()
    first["parent"] = second["id"]  # a cycle
    second["tool_calls"] = [{"function": 3}]
    for bad in ({"format": "other"}, data, [1]):
        path.write_text(json.dumps(bad), encoding="utf-8")
        page.set_input_files("#import-file", path)
        page.wait_for_selector("text=Nothing imported")
        assert page.locator("#conversations li").count() == 1


def test_settings_are_sent_and_kept(page: Any, server: Any) -> None:
    settings(page)
    shown = {name: page.get_attribute(f"#sampler-{name}", "placeholder") for name in
             ("temperature", "top_k", "top_p", "seed", "max_tokens")}  # fmt: skip
    assert shown == {
        "temperature": "0.8", "top_k": "40", "top_p": "0.95", "seed": "random",
        "max_tokens": "no limit",
    }  # fmt: skip
    assert page.locator("#sampler-xtc_probability").count() == 0  # this server has none
    page.fill("#sampler-temperature", "0.2")
    page.fill("#sampler-top_k", "-3")
    page.fill("#system", "Be brief.")
    page.fill("#json-tools", '[{"type": "function", "function": {"name": "f"}}')
    assert "Not JSON yet" in page.inner_text("#json-tools-error")
    page.fill("#json-tools", '[{"type": "function", "function": {"name": "f"}}]')
    assert page.inner_text("#json-tools-error") == ""
    page.click("text=More samplers")
    page.fill("#json-extra", '{"stop": ["\\n"]}')
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-settings"
    say(page, "Hi")
    body = server.bodies[0]
    assert body["temperature"] == 0.2 and "top_k" not in body and body["stop"] == ["\n"]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["tools"][0]["function"]["name"] == "f"
    reload(page)
    settings(page)
    assert page.input_value("#sampler-temperature") == "0.2"
    assert page.input_value("#system") == "Be brief."
    page.click("#reset-samplers")
    page.keyboard.press("Escape")
    say(page, "Again")
    assert "temperature" not in server.bodies[1]


def test_reasoning_is_folded(page: Any, server: Any) -> None:
    say(page, "think")
    thoughts = page.locator(f"{LAST} .reasoning")
    assert thoughts.get_attribute("open") is None
    assert page.inner_text(f"{LAST} .body") == "The answer is 42."
    thoughts.locator("summary").click()
    assert thoughts.locator(".thoughts strong").inner_text() == "question"
    say(page, "on")
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "The answer is 42."}


def test_tool_calls_are_shown_and_answered(page: Any, server: Any) -> None:
    say(page, "weather")
    assert page.inner_text(".call p") == "Calls get_weather"
    assert json.loads(page.inner_text(".call pre")) == {"city": "Berlin"}
    page.fill("[aria-label='Result of get_weather']", "sunny")
    page.click("text=Send the result")
    page.wait_for_selector("text=The tool says: sunny.")
    _, call, result = server.bodies[1]["messages"]
    assert call["tool_calls"][0]["function"] == {
        "name": "get_weather", "arguments": '{"city": "Berlin"}',
    }  # fmt: skip
    assert result == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}


def test_probabilities_of_tokens(page: Any, server: Any) -> None:
    settings(page)
    page.check("#probabilities")
    page.keyboard.press("Escape")
    say(page, "Hi")
    assert server.bodies[0]["logprobs"] and server.bodies[0]["top_logprobs"] == 5
    page.click("[aria-label='Probabilities of tokens']")
    assert page.inner_text(".tokens") == "You said: Hi. This is answer 1."
    page.hover(".token >> nth=0")
    assert page.locator("#alternatives div").all_inner_texts() == ["You␣sa\n50 %", "␣other\n40 %"]
    page.focus(".token >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "id: Hi"
    label = page.evaluate("document.activeElement.ariaLabel")
    assert label == "id:␣Hi, 20 %; instead ␣other 64 %"
    page.keyboard.press("Escape")
    assert page.is_hidden("#alternatives")
    page.click("[aria-label='Probabilities of tokens']")
    assert page.locator(".tokens").count() == 0
    reload(page)
    assert page.locator("[aria-label='Probabilities of tokens']").count() == 1


def test_the_server_panel_is_live(page: Any, server: Any) -> None:
    page.click("#toggle-monitor")
    page.wait_for_selector("#monitor .slots li")
    assert page.locator("#monitor li").first.inner_text().split("\n")[:2] == ["Slot 0", "idle"]
    for text in ("75 %", "800 tok/s", "144 tok/s", "134.5M", "Q4_1"):
        assert page.locator("#monitor dd", has_text=text).count() == 1, text
    server.pause_s = 0.05
    say(page, "a long text", wait=False)
    page.wait_for_selector("#monitor .busy")
    assert "800 reused" in page.inner_text("#monitor .busy")
    meter = page.locator("#monitor [role=meter]").first
    assert meter.get_attribute("aria-valuenow") == "1024"
    page.click("#stop")
    page.click("[aria-label='Close the server panel']")
    assert page.evaluate("document.activeElement.id") == "toggle-monitor"


def test_an_api_key_is_asked_for(page: Any, server: Any) -> None:
    server.key = "secret"
    reload(page)
    page.click("text=Enter the key")
    assert page.evaluate("document.activeElement.id") == "api-key"
    page.keyboard.type("secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("#notice", state="hidden")
    say(page, "Hi")
    assert "You said: Hi" in page.inner_text(LAST)


def test_errors_are_shown_and_can_be_retried(page: Any, server: Any) -> None:
    say(page, "full")
    assert "All slots are busy. Try again in 3 s." in page.inner_text(f"{LAST} .failure")
    say(page, "fail once")
    assert "The model fell over." in page.inner_text(f"{LAST} .failure")
    page.click(f"{LAST} >> text=Try again")
    page.wait_for_selector("text=You said: fail once")
    assert page.locator(".message").count() == 4
    assert [m["content"] for m in server.bodies[-1]["messages"]] == ["full", "fail once"]


def test_a_loading_server_is_waited_for(page: Any, server: Any) -> None:
    server.loading = True
    reload(page)
    page.wait_for_selector("text=Loading model")
    server.loading = False
    page.wait_for_selector("#notice", state="hidden")
    assert page.inner_text("#model-name") == "fake-1b"


def test_a_browser_without_storage_still_talks(page: Any) -> None:
    page.add_init_script("IDBFactory.prototype.open = () => { throw new Error('no storage') }")
    reload(page)
    assert "keeps no data" in page.inner_text("#toast")
    say(page, "Hello")
    assert "You said: Hello" in page.inner_text(LAST)
    assert "Not saved in this browser: no storage" in page.inner_text("#toast")


def test_two_conversations_stream_at_once(page: Any, server: Any) -> None:
    server.pause_s = 0.02
    say(page, "a long text", wait=False)
    page.wait_for_selector(".message.streaming .body p")
    page.click("#new-chat")
    assert page.is_visible("#send") and page.locator("#conversations .dot").count() == 1
    say(page, "Short")
    page.click("#conversations a >> text=a long text")
    assert page.is_visible("#stop") and page.locator(".message.streaming").count() == 1
    page.click("#stop")
    page.wait_for_selector("#send:visible")


def luminance(color: str) -> float:
    parts = [int(x) / 255 for x in color[4:-1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_follow_the_system_and_the_switch(
    open_page: Callable[..., Any], scheme: str
) -> None:
    page = open_page(color_scheme=scheme)
    colors = """() => ["--bg", "--surface", "--raised", "--text", "--quiet", "--accent"].map(v => {
        const e = document.body.appendChild(document.createElement("i"));
        e.style.color = `var(${v})`;
        const color = getComputedStyle(e).color;
        e.remove();
        return color;
    })"""

    def dark() -> bool:
        values = [luminance(color) for color in page.evaluate(colors)]
        grounds, inks = values[:3], values[3:]
        for ground in grounds:
            for ink in inks:
                ratio = (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05)
                assert ratio >= 4.5, (ground, ink)  # WCAG AA for text
        return grounds[0] < 0.5

    assert dark() == (scheme == "dark")
    for theme in ("light", "dark", "system"):
        page.click("#toggle-theme")
        assert page.get_attribute("#toggle-theme", "aria-label") == f"Theme: {theme}"
        assert dark() == ((scheme if theme == "system" else theme) == "dark")
    page.click("#toggle-theme")
    reload(page)
    assert not dark()


def test_a_phone_has_all_of_it(open_page: Callable[..., Any]) -> None:
    page = open_page(**PHONE)
    assert page.evaluate("document.getElementById('sidebar').inert")
    say(page, "markdown")
    wide = "document.documentElement.scrollWidth > innerWidth"
    assert not page.evaluate(wide)
    page.tap("#open-sidebar")
    assert page.is_visible("#new-chat")
    assert page.evaluate("document.activeElement.id") == "new-chat"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "open-sidebar"
    page.tap("#open-sidebar")
    page.tap("#new-chat")
    page.wait_for_selector("#welcome:visible")
    settings(page)
    assert not page.evaluate(wide)
    page.click("#settings [aria-label='Close']")
    page.tap("#toggle-monitor")
    page.wait_for_selector("#monitor .slots li")
    assert not page.evaluate(wide)


def test_everything_has_a_name_and_a_keyboard_way(page: Any, server: Any) -> None:
    page.keyboard.press("Shift+Tab")
    say(page, "markdown")
    settings(page)
    page.keyboard.press("Escape")
    page.click("#toggle-monitor")
    page.wait_for_selector("#monitor .slots li")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input, textarea, select, [role=meter]")]
        .filter(e => e.offsetParent !== null && !(e.ariaLabel || e.textContent.trim() ||
                e.labels?.length || e.disabled))
        .map(e => e.outerHTML)"""
    )
    assert not unnamed
    assert page.locator("h1").count() == 1
    roles = "main, nav[aria-label], aside[aria-label], [role=log], [role=status], article"
    assert page.locator(roles).count() >= 6
    reload(page)
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.type("By keys")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("alone")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=This is answer 2.")
    assert server.bodies[1]["messages"][-1]["content"] == "By keys\nalone"
    page.keyboard.press("Control+Shift+O")
    assert page.is_visible("#welcome")


def test_a_long_answer_keeps_up(page: Any, server: Any) -> None:
    """20,000 characters in 3,334 chunks; blocks that are complete keep their elements."""
    server.pause_s = 0.0
    say(page, "a long text")
    assert len(page.inner_text(f"{LAST} .body")) == len("word " * 4000) - 1
    same = page.evaluate(
        """async () => {
        const { updateMarkdown } = await import("./page/markdown.js");
        const box = document.createElement("div");
        updateMarkdown(box, "# One\\n\\ntext\\n\\n```js\\nlet x");
        const [heading, text] = box.children;
        updateMarkdown(box, "# One\\n\\ntext\\n\\n```js\\nlet x = 1;\\n```\\nmore");
        return [box.children[0] === heading, box.children[1] === text, box.children.length];
    }"""
    )
    assert same == [True, True, 4]


def test_a_router_has_a_choice_of_models(open_page: Callable[..., Any], server: Any) -> None:
    server.names = ["large", "small"]
    page = open_page()
    page.wait_for_selector("#models")
    assert page.locator("#models option").all_inner_texts() == ["large", "small"]
    assert page.get_by_label("Model", exact=True).count() == 1 and not server.loaded
    page.select_option("#models", "small")
    assert not page.is_visible("#notice")
    say(page, "Hello")
    assert server.bodies[-1]["model"] == "small" and server.loaded == {"small"}
    page.wait_for_selector("#context:visible")  # its size is known now
    reload(page)
    page.wait_for_selector("#models")
    assert page.input_value("#models") == "small"
    page.click("text=Model graph")
    page.wait_for_selector("[data-ready]")
    assert server.graph_models == ["small"]


def test_a_router_of_one_model(open_page: Callable[..., Any], server: Any) -> None:
    server.names = ["only"]
    page = open_page()
    page.wait_for_selector("#models")
    say(page, "Hello")
    assert server.bodies[-1]["model"] == "only"
