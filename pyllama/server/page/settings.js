// The drawer of settings: system prompt, samplers, display, tools, connection.

import { apiKey, setApiKey } from "./api.js";
import { $, h, iconButton, toast } from "./dom.js";
import { saveSettings } from "./store.js";
import { chosenTheme, setTheme } from "./theme.js";

// name of llama-server's field, label, smallest, largest, step, explanation
const COMMON = [
  ["temperature", "Temperature", 0, 5, "any", "Higher is more varied; 0 takes the likeliest."],
  ["top_p", "Top p", 0, 1, "any", "Keep the likeliest tokens with this sum; 1 is off."],
  ["top_k", "Top k", 0, 1000, 1, "Keep this many of the likeliest tokens; 0 is off."],
  ["min_p", "Min p", 0, 1, "any", "Drop tokens below this share of the likeliest; 0 is off."],
  ["max_tokens", "Longest answer", -1, null, 1, "In tokens; -1 is without limit."],
  ["seed", "Seed", -1, 4294967295, 1, "The same seed gives the same answer; empty is random."],
];
const MORE = [
  ["typical_p", "Typical p", 0, 1, "any", "Locally typical sampling; 1 is off."],
  ["top_n_sigma", "Top n sigma", -1, 10, "any", "Keep logits within n deviations; -1 is off."],
  ["xtc_probability", "XTC probability", 0, 1, "any", "How often likely tokens are removed."],
  ["xtc_threshold", "XTC threshold", 0, 0.5, "any", "Tokens at least this likely may be removed."],
  ["dynatemp_range", "Dynamic temperature", 0, 5, "any", "Its range around the other; 0 is off."],
  ["dynatemp_exponent", "Its exponent", 0, 10, "any", "How entropy maps to temperature."],
  ["repeat_penalty", "Repeat penalty", 0, 5, "any", "Divides logits of recent tokens; 1 is off."],
  ["repeat_last_n", "Recent tokens", -1, null, 1, "Seen by the three penalties; -1 is all."],
  ["presence_penalty", "Presence penalty", -2, 2, "any", "Subtracted for a token that occurred."],
  ["frequency_penalty", "Frequency penalty", -2, 2, "any", "Subtracted for each occurrence."],
  ["dry_multiplier", "DRY multiplier", 0, 10, "any", "Penalty of repeated sequences; 0 is off."],
  ["dry_base", "DRY base", 0, 10, "any", "Growth of the penalty with the length."],
  ["dry_allowed_length", "DRY allowed length", 0, 100, 1, "Longest repetition without penalty."],
  ["dry_penalty_last_n", "DRY recent tokens", -1, null, 1, "How many it looks at; -1 is all."],
  ["mirostat", "Mirostat", 0, 2, 1, "0 is off; 1 and 2 are its versions."],
  ["mirostat_tau", "Mirostat tau", 0, 20, "any", "Target entropy."],
  ["mirostat_eta", "Mirostat eta", 0, 1, "any", "Learning rate."],
];
const EXAMPLE_FIELDS = '{"grammar": "root ::= \\"yes\\" | \\"no\\""}';
const EXAMPLE_TOOLS =
  '[{"type": "function", "function": {"name": "get_weather", "parameters": ' +
  '{"type": "object", "properties": {"city": {"type": "string"}}}}}]';
const NO_SEED = 4294967295;

export class SettingsDialog {
  // hooks: conversation(), systemChanged(), keyChanged()
  constructor(settings, hooks) {
    this.settings = settings;
    this.hooks = hooks;
    this.dialog = $("settings");
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // its backdrop
    });
  }

  // defaults: params of the server's default_generation_settings; focus: the id of a field
  open(defaults, focus = null) {
    const close = iconButton("close", "Close", () => this.dialog.close());
    this.dialog.replaceChildren(
      h("header", {}, h("h2", { id: "settings-title" }, "Settings"), close),
      h(
        "div",
        { class: "sections" },
        this.systemSection(), this.samplerSection(defaults), this.displaySection(),
        this.toolSection(), this.connectionSection(),
      ),
    );
    this.dialog.showModal();
    if (focus !== null) $(focus).focus();
  }

  changed() {
    saveSettings(this.settings);
  }

  systemSection() {
    const conversation = this.hooks.conversation();
    const placeholder = "Such as: Answer in one sentence.";
    const text = h("textarea", { id: "system", rows: 4, placeholder });
    text.value = conversation.system;
    const keep = h("input", { type: "checkbox", id: "system-default" });
    keep.checked = conversation.system === this.settings.system;
    const update = () => {
      conversation.system = text.value;
      if (keep.checked) this.settings.system = text.value;
      this.changed();
      this.hooks.systemChanged();
    };
    text.addEventListener("change", update);
    keep.addEventListener("change", () => {
      if (!keep.checked) this.settings.system = "";
      update();
    });
    return section(
      "System prompt",
      h("label", { class: "hidden", for: "system" }, "System prompt of this conversation"),
      text,
      h("label", { class: "check" }, keep, "Also for new conversations"),
    );
  }

  samplerSection(defaults) {
    const known = ([name]) => name in defaults || name === "max_tokens";
    const fields = (table) => {
      const rows = table.filter(known).map((row) => this.samplerField(row, defaults));
      return h("div", { class: "grid" }, rows);
    };
    const reset = () => {
      this.settings.samplers = {};
      this.changed();
      for (const input of this.dialog.querySelectorAll(".grid input")) input.value = "";
      toast("Samplers are the server's again.");
    };
    const extra = this.jsonField("extra", "Other fields of the request", EXAMPLE_FIELDS, "{");
    return section(
      "Sampling",
      h("p", { class: "note" }, "An empty field leaves the server's value, which it shows."),
      fields(COMMON),
      h("details", {}, h("summary", {}, "More samplers"), fields(MORE), extra),
      h("button", { type: "button", id: "reset-samplers", click: reset }, "Reset"),
    );
  }

  samplerField([name, label, min, max, step, explanation], defaults) {
    const id = `sampler-${name}`;
    const value = defaults[name];
    const shown = name === "seed" && value === NO_SEED ? "random"
      : name === "max_tokens" && !(value > 0) ? "no limit"
      : Number.isFinite(value) ? String(Number(value.toPrecision(6))) : "";
    const input = h("input", {
      type: "number", id, min, max, step, placeholder: shown, inputmode: "decimal",
      "aria-describedby": `${id}-note`,
    });
    const note = h("small", { id: `${id}-note`, role: "status" }, explanation);
    input.value = this.settings.samplers[name] ?? "";
    input.addEventListener("change", () => {
      const valid = input.checkValidity();
      input.setAttribute("aria-invalid", !valid);
      note.textContent = valid ? explanation : `Not used: ${input.validationMessage}`;
      note.classList.toggle("error", !valid);
      if (!valid) return;
      if (input.value === "") delete this.settings.samplers[name];
      else this.settings.samplers[name] = Number(input.value);
      this.changed();
    });
    return h("div", {}, h("label", { for: id }, label), input, note);
  }

  jsonField(name, label, example, first) {
    const id = `json-${name}`;
    const area = h("textarea", {
      id, rows: 3, placeholder: example, spellcheck: "false", class: "mono",
      "aria-describedby": `${id}-error`,
    });
    const error = h("small", { id: `${id}-error`, class: "error", role: "status" });
    area.value = this.settings[name];
    area.addEventListener("input", () => {
      error.textContent = jsonError(area.value, first);
      area.setAttribute("aria-invalid", error.textContent !== "");
      if (error.textContent) return;
      this.settings[name] = area.value;
      this.changed();
    });
    return h("div", { class: "json" }, h("label", { for: id }, label), area, error);
  }

  displaySection() {
    const show = h("input", { type: "checkbox", id: "probabilities" });
    show.checked = this.settings.probabilities;
    const id = "alternatives-count";
    const count = h("input", { type: "number", id, min: 1, max: 20, step: 1 });
    count.value = this.settings.alternatives;
    const update = () => {
      this.settings.probabilities = show.checked;
      if (count.checkValidity() && count.value) this.settings.alternatives = Number(count.value);
      this.changed();
    };
    show.addEventListener("change", update);
    count.addEventListener("change", update);
    const themes = ["system", "light", "dark"].map((theme) => {
      const change = () => setTheme(theme);
      const radio = h("input", { type: "radio", name: "theme", value: theme, change });
      radio.checked = chosenTheme() === theme;
      return h("label", { class: "check" }, radio, theme[0].toUpperCase() + theme.slice(1));
    });
    const label = h("label", { for: id }, "Alternatives of a token");
    return section(
      "Display",
      h("label", { class: "check" }, show, "Record probabilities of tokens"),
      h("div", { class: "grid" }, h("div", {}, label, count)),
      h("fieldset", { class: "themes" }, h("legend", {}, "Theme"), themes),
    );
  }

  toolSection() {
    const label = "Functions the model may call, in OpenAI's format";
    return section("Tools", this.jsonField("tools", label, EXAMPLE_TOOLS, "["));
  }

  connectionSection() {
    const id = "api-key";
    const key = h("input", { type: "password", id, autocomplete: "off", placeholder: "None" });
    key.value = apiKey();
    key.addEventListener("change", () => {
      setApiKey(key.value.trim());
      this.hooks.keyChanged();
    });
    const submit = (event) => {
      event.preventDefault();
      key.blur(); // which is a change
      this.dialog.close();
    };
    const form = h("form", { submit }, h("label", { for: "api-key" }, "API key"), key);
    const note = h("p", { class: "note" }, "Kept in this browser, sent only to this server.");
    return section("Connection", form, note);
  }
}

const section = (title, ...content) => h("section", {}, h("h3", {}, title), content);

function jsonError(text, first) {
  if (text.trim() === "") return "";
  try {
    const value = JSON.parse(text);
    const isArray = Array.isArray(value);
    if (value === null || typeof value !== "object" || isArray !== (first === "[")) {
      return first === "[" ? "This must be a JSON array." : "This must be a JSON object.";
    }
    return "";
  } catch (error) {
    return `Not JSON yet: ${error.message}`;
  }
}

// The fields of a request that the settings give.
export function requestFields(settings) {
  const read = (text) => {
    const trimmed = text.trim();
    return trimmed && jsonError(trimmed, trimmed[0]) === "" ? JSON.parse(trimmed) : null;
  };
  const fields = { ...settings.samplers, ...read(settings.extra) };
  const tools = read(settings.tools);
  if (tools?.length) fields.tools = tools;
  if (!settings.probabilities) return fields;
  return { ...fields, logprobs: true, top_logprobs: settings.alternatives };
}
