// The panel of the server: its model, slots with their caches, and counters; read every second.

import { metrics, models, slots } from "./api.js";
import { $, h, iconButton, number, short } from "./dom.js";

const PERIOD_MS = 1000;

export class Monitor {
  // model: a function of the chosen model's name, or null where there is one model
  constructor(model) {
    this.model = model;
    this.panel = $("monitor");
    this.button = $("toggle-monitor");
    this.timer = 0;
    this.before = new Map(); // slot -> {task, decoded, time}: for the rate
    this.button.addEventListener("click", () => this.toggle());
    document.addEventListener("visibilitychange", () => this.tick());
  }

  toggle(open = this.panel.hidden) {
    this.panel.hidden = !open;
    this.button.setAttribute("aria-expanded", open);
    if (!open) return clearTimeout(this.timer);
    this.slotList = h("ul", { class: "slots" });
    this.facts = h("dl", { class: "facts" });
    this.counters = h("dl", { class: "facts" });
    const close = () => {
      this.toggle(false);
      this.button.focus();
    };
    this.panel.replaceChildren(
      h("header", {}, h("h2", {}, "Server"), iconButton("close", "Close the server panel", close)),
      h("h3", {}, "Slots"), this.slotList,
      h("h3", {}, "Since the start"), this.counters,
      h("h3", {}, "Model"), this.facts,
    );
    this.panel.querySelector("button").focus();
    this.showModel();
    this.tick();
  }

  async tick() {
    clearTimeout(this.timer);
    if (this.panel.hidden || document.hidden) return;
    await Promise.all([this.showSlots(), this.showCounters()]);
    clearTimeout(this.timer);
    if (!this.panel.hidden) this.timer = setTimeout(() => this.tick(), PERIOD_MS);
  }

  async showSlots() {
    try {
      const found = await slots(this.model());
      const items = found.map((slot) => this.slot(slot));
      this.slotList.replaceChildren(...items);
    } catch (error) {
      this.slotList.replaceChildren(h("li", { class: "note" }, reason(error, "--slots")));
    }
  }

  slot(slot) {
    const next = Array.isArray(slot.next_token) ? slot.next_token[0] : slot.next_token;
    const cached = slot.n_prompt_tokens_cache ?? 0;
    const computed = cached + (slot.n_prompt_tokens_processed ?? 0) + (next?.n_decoded ?? 0);
    const used = Math.max(slot.n_prompt_tokens ?? 0, computed);
    const share = slot.n_ctx ? Math.min(1, used / slot.n_ctx) : 0;
    const meter = {
      class: "bar-of", role: "meter", "aria-label": `Context of slot ${slot.id}`,
      "aria-valuemin": 0, "aria-valuemax": slot.n_ctx, "aria-valuenow": used,
    };
    const bar = h("div", meter, h("i"));
    bar.firstChild.style.width = `${100 * share}%`;
    const rate = this.rate(slot, next?.n_decoded ?? 0);
    const activity = next?.n_decoded ? `writing${rate}` : "reading the prompt";
    const state = slot.is_processing ? activity : "idle";
    const facts = [`${number(used)} of ${number(slot.n_ctx)} tokens`];
    if (slot.is_processing && cached) facts.push(`${number(cached)} reused`);
    return h(
      "li",
      { class: slot.is_processing ? "busy" : "" },
      h("div", {}, h("b", {}, `Slot ${slot.id}`), h("span", {}, state)),
      bar,
      h("small", {}, facts.join(" · ")),
    );
  }

  rate(slot, decoded) {
    const now = performance.now();
    const old = this.before.get(slot.id);
    this.before.set(slot.id, { task: slot.id_task, decoded, time: now });
    if (!slot.is_processing || old?.task !== slot.id_task || decoded <= old.decoded) return "";
    return `, ${number(((decoded - old.decoded) * 1000) / (now - old.time))} tok/s`;
  }

  async showCounters() {
    try {
      const m = await metrics(this.model());
      const cached = m.prompt_tokens_cached_total ?? 0;
      const prompts = (m.prompt_tokens_total ?? 0) + cached;
      const drafted = m.spec_decode_num_draft_tokens_total ?? 0;
      const accepted = (100 * m.spec_decode_num_accepted_tokens_total) / drafted;
      facts(this.counters, [
        ["Running, waiting", `${m.requests_processing ?? 0}, ${m.requests_deferred ?? 0}`],
        ["Prompt tokens", short(prompts)],
        ["Found in the cache", prompts ? `${number((100 * cached) / prompts)} %` : "none"],
        ["Written tokens", short(m.tokens_predicted_total ?? 0)],
        ["Reading", rate(m.prompt_tokens_total, m.prompt_seconds_total)],
        ["Writing", rate(m.tokens_predicted_total, m.tokens_predicted_seconds_total)],
        ["Slots per step", number(m.n_busy_slots_per_decode ?? 0, 1)],
        drafted ? ["Drafted tokens accepted", `${number(accepted)} %`] : null,
      ]);
    } catch (error) {
      this.counters.replaceChildren(h("p", { class: "note" }, reason(error, "--metrics")));
    }
  }

  async showModel() {
    try {
      const { data } = await models();
      const { id, meta } = data.find((one) => one.id === this.model()) ?? data[0];
      facts(this.facts, [
        ["File", id.split(/[\\/]/).at(-1)],
        meta?.n_params ? ["Parameters", short(meta.n_params)] : null,
        meta?.size ? ["Size", `${number(meta.size / 2 ** 20)} MiB`] : null,
        meta?.ftype ? ["Type", meta.ftype] : null,
        meta?.n_vocab ? ["Vocabulary", number(meta.n_vocab)] : null,
        meta?.n_ctx_train ? ["Trained context", number(meta.n_ctx_train)] : null,
      ]);
    } catch (error) {
      this.facts.replaceChildren(h("p", { class: "note" }, error.message));
    }
  }
}

// Of counters: llama-server's own rates are those since the last request for them.
const rate = (tokens, seconds) => (seconds > 0 ? `${number(tokens / seconds)} tok/s` : "none yet");

const reason = (error, option) =>
  error.status === 501 || error.status === 404
    ? `The server was started without ${option}.`
    : error.message;

function facts(list, rows) {
  list.replaceChildren(
    ...rows.filter(Boolean).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}
