// Talks to the server: llama-server's HTTP API, relative to the address of the page.

const BASE = new URL("./", document.baseURI);

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const apiKey = () => localStorage.getItem("api-key") ?? "";
export const setApiKey = (key) => localStorage.setItem("api-key", key);

async function request(path, { body, signal, query } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  const headers = {};
  if (apiKey()) headers.Authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    const { error } = await response.json();
    if (typeof error?.message === "string") message = error.message;
  } catch {
    // not JSON: the status says enough
  }
  const wait = response.headers.get("Retry-After");
  if (wait !== null) message += ` Try again in ${wait} s.`;
  return new ServerError(response.status, message);
}

const json = async (path, options) => (await request(path, options)).json();
const text = async (path, options) => (await request(path, options)).text();

// To look at a model of a router must not load it; only a message does.
const look = (model) => ({ model, autoload: model ? "false" : null });

export const health = () => json("health");
export const props = (model) => json("props", { query: look(model) });
export const models = () => json("v1/models");
export const slots = (model) => json("slots", { query: look(model) });
export const graphData = (query, signal) => json("graph.json", { query, signal });
export const graphDrawing = (query, signal) => text("graph.html", { query, signal });

// The samples of /metrics without labels: {name without prefix: value}.
export async function metrics(model) {
  const found = {};
  for (const line of (await text("metrics", { query: look(model) })).split("\n")) {
    const match = /^(?:llamacpp:)?([a-z_]+) ([-+.\deE]+|NaN)$/.exec(line);
    if (match) found[match[1]] = Number(match[2]);
  }
  return found;
}

// The lines of "data:" of an event stream. Source: HTML, "Server-sent events".
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value ?? "")).split(/\r\n|\n|\r(?!$)/);
      rest = done ? "" : lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
        else if (line.startsWith("error:")) throw streamError(JSON.parse(line.slice(6)));
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // an early end closes the connection, which frees the slot
  }
}

function streamError(error) {
  return new ServerError(error?.code ?? 500, error?.message ?? "The server stopped with an error.");
}

// The chunks of a streamed chat completion; returning early aborts it.
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", { body, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw streamError(chunk.error);
    yield chunk;
  }
  throw new ServerError(0, "The connection ended before the answer did.");
}
