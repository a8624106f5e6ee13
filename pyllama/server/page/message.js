// One message on the page: its text, reasoning, tool calls, tokens and buttons.
//
//   const view = new MessageView(node, actions);
//   view.update({ streaming: true });           // after the node has changed

import { copyButton, h, icon, iconButton, number } from "./dom.js";
import { updateMarkdown } from "./markdown.js";
import { probabilitiesView } from "./probabilities.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Result of a tool" };

export class MessageView {
  // actions: edit(node, text), regenerate(node), continueAnswer(node), retry(node), show(id),
  // versions(node), isLast(node), answerTools(node, results)
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.tokensShown = false;
    this.body = h("div", { class: "body" });
    this.reasoning = null;
    this.tools = h("div", { class: "tools" });
    this.progress = h("p", { class: "progress" });
    this.failure = h("div", { class: "failure" });
    this.footer = h("div", { class: "actions" });
    this.article = h(
      "article",
      {},
      h("h2", { class: "hidden" }, NAMES[node.role]),
      this.body, this.tools, this.progress, this.failure, this.footer,
    );
    this.element = h("li", { class: `message ${node.role}`, "data-id": node.id }, this.article);
    this.update({});
  }

  update({ streaming = false, progress = "" }) {
    const node = this.node;
    this.element.classList.toggle("streaming", streaming);
    this.article.setAttribute("aria-busy", streaming);
    this.showReasoning(streaming);
    if (this.tokensShown && !streaming) {
      this.body.replaceChildren(probabilitiesView(node.probabilities));
      this.body.blocks = [];
    } else if (node.role === "assistant") updateMarkdown(this.body, node.content);
    else this.body.textContent = node.content;
    this.body.hidden = node.content === "" && !streaming;
    this.progress.textContent = progress;
    this.progress.hidden = progress === "";
    this.showTools(streaming);
    this.failure.replaceChildren();
    if (node.error && !streaming) {
      const retry = () => this.actions.retry(node);
      this.failure.append(
        h("span", {}, node.error),
        h("button", { type: "button", click: retry }, icon("again"), "Try again"),
      );
    }
    if (!streaming) this.showActions();
    else this.footer.replaceChildren();
  }

  showReasoning(streaming) {
    const { reasoning, thought_ms: ms, content } = this.node;
    if (!reasoning) return;
    if (this.reasoning === null) {
      const summary = h("summary");
      this.thoughts = h("div", { class: "thoughts" });
      this.reasoning = h("details", { class: "reasoning" }, summary, this.thoughts);
      this.body.before(this.reasoning);
    }
    const thinking = streaming && content === "";
    this.reasoning.firstChild.textContent = thinking ? "Thinking…"
      : ms >= 500 ? `Thought for ${number(ms / 1000)} s` : "Thoughts";
    updateMarkdown(this.thoughts, reasoning);
  }

  showTools(streaming) {
    const calls = this.node.tool_calls ?? [];
    const cards = calls.map((call) => {
      let text = call.function.arguments;
      try {
        text = JSON.stringify(JSON.parse(text), null, 2);
      } catch {
        // still streaming, or not JSON: as it came
      }
      const name = h("p", {}, "Calls ", h("code", {}, call.function.name));
      return h("div", { class: "call" }, name, h("pre", { tabindex: 0 }, h("code", {}, text)));
    });
    const isOpen = calls.length > 0 && !streaming && this.actions.isLast(this.node);
    if (isOpen) cards.push(this.resultsForm(calls));
    this.tools.replaceChildren(...cards);
  }

  resultsForm(calls) {
    const fields = calls.map((call) => {
      const label = `Result of ${call.function.name}`;
      return h("textarea", { rows: 2, "aria-label": label, placeholder: label });
    });
    const submit = (event) => {
      event.preventDefault();
      this.actions.answerTools(this.node, fields.map((field) => field.value));
    };
    const button = h("button", { type: "submit", class: "main" }, "Send the result");
    return h("form", { class: "results", submit }, fields, button);
  }

  showActions() {
    const node = this.node;
    const parts = [];
    const versions = this.actions.versions(node);
    const here = versions.indexOf(node);
    if (versions.length > 1) {
      const go = (step) => () => this.actions.show(versions[here + step].id);
      parts.push(
        h(
          "span",
          { class: "versions", role: "group", "aria-label": "Versions" },
          iconButton("left", "Previous version", go(-1), { disabled: here === 0 }),
          h("span", {}, `${here + 1} / ${versions.length}`),
          iconButton("right", "Next version", go(1), { disabled: here === versions.length - 1 }),
        ),
      );
    }
    if (node.content) parts.push(copyButton("Copy the message", () => node.content));
    if (node.role !== "tool") parts.push(iconButton("pencil", "Edit", () => this.edit()));
    if (node.role === "assistant") {
      parts.push(iconButton("again", "Regenerate", () => this.actions.regenerate(node)));
      if (this.canContinue()) {
        parts.push(iconButton("forward", "Continue", () => this.actions.continueAnswer(node)));
      }
      if (node.probabilities?.length) parts.push(this.tokensButton());
      const stats = statistics(node);
      if (stats) parts.push(h("span", { class: "stats" }, stats));
    }
    this.footer.replaceChildren(...parts);
  }

  canContinue() {
    const { content, finish, tool_calls: calls } = this.node;
    const wasCut = finish === "length" || finish === "stopped";
    return wasCut && content !== "" && !calls && this.actions.isLast(this.node);
  }

  tokensButton() {
    const toggle = () => {
      this.tokensShown = !this.tokensShown;
      this.body.replaceChildren();
      this.update({});
      this.footer.querySelector("[aria-pressed]").focus();
    };
    const pressed = { "aria-pressed": String(this.tokensShown) };
    return iconButton("bars", "Probabilities of tokens", toggle, pressed);
  }

  edit() {
    const field = h("textarea", { "aria-label": "Edited message", rows: 3 });
    field.value = this.node.content;
    const close = () => {
      form.replaceWith(this.article);
      this.footer.querySelector('[aria-label="Edit"]').focus();
    };
    const save = (event) => {
      event.preventDefault();
      this.actions.edit(this.node, field.value);
    };
    const isUser = this.node.role === "user";
    const form = h(
      "form",
      { class: "edit", submit: save },
      field,
      h(
        "div",
        {},
        h("button", { type: "button", click: close }, "Cancel"),
        h("button", { type: "submit", class: "main" }, isUser ? "Send" : "Save"),
      ),
    );
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    this.article.replaceWith(form);
    field.style.height = `${Math.min(field.scrollHeight + 4, innerHeight / 2)}px`;
    field.focus();
  }
}

// "87 tokens, 142 per second; prompt of 44, 12 from the cache"
function statistics({ timings, finish }) {
  if (!timings?.predicted_n) return finish === "stopped" ? "Stopped" : "";
  const rate = timings.predicted_per_second;
  const prompt = timings.prompt_n + (timings.cache_n ?? 0);
  const parts = [`${number(timings.predicted_n)} tokens`];
  if (rate > 0 && timings.predicted_n > 1) parts.push(`${number(rate, rate < 10 ? 1 : 0)} tok/s`);
  const cached = timings.cache_n ? `, ${number(timings.cache_n)} cached` : "";
  if (prompt) parts.push(`prompt ${number(prompt)}${cached}`);
  if (finish === "length") parts.push("cut at the limit");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}
