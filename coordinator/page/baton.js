// The page at /: a playground, the pools, and what became of the last requests.
//
// Everything comes from this server's own API; text is only ever set as text, never as markup.

const LOOK_EVERY_MS = 2000;
const ANSWER_WITHIN_MS = 5000;
const NUM_REQUESTS = 20;
const KEY = "baton.api-key";

const $ = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// ---- the API

class ApiError extends Error {}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  if (response.status === 401) $("key-form").hidden = false;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP ${response.status}`;
  const later = response.headers.get("retry-after");
  throw new ApiError(later ? `${message} Try again in ${later} s.` : message);
}

const askJson = async (path) =>
  (await ask(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) })).json();

function reasonOf(error) {
  return error instanceof ApiError ? error.message : "The server does not answer.";
}

// ---- the playground

const conversation = [];
let running = null; // the AbortController of the answer that is coming

function turn(role) {
  const element = make("article", { className: `turn ${role}` });
  element.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  $("conversation").querySelector(".hint")?.remove();
  $("conversation").append(element);
  return element;
}

function settings() {
  return {
    temperature: $("temperature").valueAsNumber,
    max_tokens: $("max-tokens").valueAsNumber,
    chat_template_kwargs: { enable_thinking: $("thinking").checked },
  };
}

// An answer splits at </think>; what comes before it, when thinking was asked for, is the thought.
function split(text, thinking, ended) {
  const end = text.indexOf("</think>");
  if (end >= 0) return [text.slice(0, end).trim(), text.slice(end + 8).trimStart()];
  return thinking && !ended ? [text, ""] : ["", text];
}

function answerView() {
  const element = turn("assistant");
  const thought = make("div", { className: "thought" });
  const thoughts = make("details", { hidden: true }, make("summary", { textContent: "Thinking" }), thought);
  const text = make("div", { className: "text" });
  const facts = make("p", { className: "facts" });
  const log = $("conversation");
  element.append(thoughts, text, facts);
  element.setAttribute("aria-busy", "true");
  return {
    show(thoughtText, answer) {
      thoughts.hidden = !thoughtText;
      thought.textContent = thoughtText;
      text.textContent = answer;
      log.scrollTop = log.scrollHeight;
    },
    end(words) {
      facts.textContent = words;
      log.scrollTop = log.scrollHeight;
      element.setAttribute("aria-busy", "false");
    },
    fail(reason) {
      element.append(make("p", { className: "error", role: "alert", textContent: reason }));
      element.setAttribute("aria-busy", "false");
    },
  };
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError("The answer broke off.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(event.error.message);
      yield event;
    }
  }
}

async function answer(body, view, control) {
  const thinking = body.chat_template_kwargs.enable_thinking;
  const startedAt = performance.now();
  let [text, finish, firstAt, usage] = ["", null, null, null];
  const show = (ended) => view.show(...split(text, thinking, ended));
  try {
    const response = await ask("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal: control.signal,
    });
    for await (const event of events(response)) {
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      text += choice.delta.content ?? "";
      firstAt ??= performance.now();
      show(false);
    }
    show(finish === "stop");
    view.end(facts(usage, finish, firstAt - startedAt, performance.now() - firstAt));
  } catch (error) {
    if (control.signal.aborted) view.end("Stopped.");
    else view.fail(reasonOf(error));
  }
  return split(text, thinking, true)[1];
}

function facts(usage, finish, ttftMs, decodeMs) {
  const words = [`first token after ${time(ttftMs / 1000)}`];
  const tokens = usage?.completion_tokens ?? 0;
  if (tokens) words.unshift(`${tokens} tokens`);
  if (tokens > 1 && decodeMs > 0) words.push(`${Math.round((tokens - 1) / (decodeMs / 1000))} tok/s`);
  if (finish === "length") words.push("cut at max tokens");
  return words.join(" · ");
}

async function send() {
  const content = $("message").value.trim();
  if (running || !content || !$("chat").reportValidity()) return;
  for (const field of [$("temperature"), $("max-tokens")]) {
    if (!field.checkValidity()) {
      $("settings").open = true;
      field.reportValidity();
      return;
    }
  }
  const control = (running = new AbortController());
  $("message").value = "";
  $("send").disabled = true;
  $("stop").disabled = false;
  conversation.push({ role: "user", content });
  turn("user").append(make("div", { className: "text", textContent: content }));
  const system = $("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...conversation];
  const body = { messages, stream: true, stream_options: { include_usage: true }, ...settings() };
  const said = await answer(body, answerView(), control);
  if (running !== control) return; // a new conversation has begun
  if (said) conversation.push({ role: "assistant", content: said });
  else conversation.pop(); // nothing was answered: the question may be put again
  idle();
  look();
}

function idle() {
  running = null;
  $("send").disabled = false;
  $("stop").disabled = true;
}

function clear() {
  running?.abort();
  idle();
  conversation.length = 0;
  $("conversation").replaceChildren();
  $("message").focus();
}

// ---- pools

function worker(found) {
  const used = (all, free) => [all - free, all];
  const meter = (name, [value, max]) => [
    make("dt", { textContent: name }),
    make("dd", {}, make("meter", { max: Math.max(max, 1), value, ariaLabel: `${name} in use` })),
    make("dd", { className: "number", textContent: `${value} / ${max}` }),
  ];
  const facts = [found.device, `${found.running} running`, `${found.waiting} waiting`];
  if (found.gpu_temperature_c !== null) facts.push(`${found.gpu_temperature_c.toFixed(0)} °C`);
  if (found.draining) facts.push("draining");
  return make(
    "div", { className: "worker" },
    make("h3", { textContent: `${found.role} · ${found.instance}` }),
    make("p", { className: "hint", textContent: facts.join(" · ") }),
    make("dl", {},
      ...meter("pages", used(found.num_pages, found.free_pages)),
      ...meter("state slots", used(found.num_state_slots, found.free_state_slots))),
    ...(found.books_error ? [make("p", { className: "error", textContent: found.books_error })] : []),
  );
}

function showStatus(status) {
  const problems = [...status.problems, ...(status.draining ? ["draining"] : [])];
  const state = problems.length ? `not ready: ${problems.join("; ")}` : "ready";
  const redis = status.redis_connected ? "" : " · Redis not connected";
  const health = `${state} · ${status.queued} queued · ${status.running} running${redis}`;
  if ($("health").textContent !== health) $("health").textContent = health;
  $("health").className = problems.length ? "bad" : "good";
  const inOrder = status.workers.toSorted(
    (a, b) => b.role.localeCompare(a.role) || a.instance.localeCompare(b.instance));
  $("pools").replaceChildren(...inOrder.map(worker));
}

// ---- requests

function time(seconds) {
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
}

function bar(request) {
  const spans = request.stages.map((stage) => {
    const span = make("span", {
      className: stage.name.split(" ")[0],
      title: `${stage.name}: ${time(stage.duration_s)}`,
    });
    span.style.flexGrow = String((1000 * stage.duration_s) / Math.max(request.duration_s, 1e-9));
    return span;
  });
  const element = make("span", { className: "bar", role: "img" }, ...spans);
  const words = request.stages.map((stage) => `${stage.name} ${time(stage.duration_s)}`);
  element.setAttribute("aria-label", words.join(", "));
  return element;
}

function stageRow(stage) {
  const parts = Object.entries(stage.parts).map(([name, s]) => `${name.replace("_", " ")} ${time(s)}`);
  return make(
    "tr", {},
    make("th", { scope: "row", textContent: stage.name + (stage.open ? " …" : "") }),
    make("td", { className: "number", textContent: time(stage.duration_s) }),
    make("td", { textContent: [stage.worker, parts.join(", ")].filter(Boolean).join(": ") }),
  );
}

function requestFacts(request) {
  const words = [
    `${request.prompt_tokens} in`, `${request.completion_tokens} out`,
    ...(request.ttft_s === null ? [] : [`first token ${time(request.ttft_s)}`]),
    ...(request.bytes_moved ? [`${(request.bytes_moved / 1e6).toFixed(2)} MB moved`] : []),
    ...(request.attempts > 1 ? [`${request.attempts} attempts`] : []),
    ...(request.failure ? [`${request.failure.code}: ${request.failure.message}`] : []),
  ];
  return words.join(" · ");
}

function fill(item, request) {
  const details = item.querySelector("details");
  const state = make("span", { className: request.state, textContent: request.state });
  details.querySelector("summary").replaceChildren(
    make("span", {}, `${request.id.slice(0, 8)} · `, state,
      ` · ${request.prompt_tokens} in, ${request.completion_tokens} out`),
    make("span", { textContent: time(request.duration_s) }),
    bar(request),
  );
  details.querySelector(".facts").textContent = `${request.id}: ${requestFacts(request)}`;
  details.querySelector("tbody").replaceChildren(...request.stages.map(stageRow));
}

// A row that stays keeps its element, and with it the focus and whether it is open.
function showRequests(requests) {
  const known = new Map([...$("requests").children].map((item) => [item.dataset.id, item]));
  let before = null;
  for (const request of requests) {
    let item = known.get(request.id);
    known.delete(request.id);
    if (!item) {
      item = make("li", {}, make("details", {}, make("summary"),
        make("p", { className: "facts" }), make("table", {}, make("tbody"))));
      item.dataset.id = request.id;
    }
    fill(item, request);
    const place = before ? before.nextElementSibling : $("requests").firstElementChild;
    if (place !== item) $("requests").insertBefore(item, place);
    before = item;
  }
  for (const gone of known.values()) gone.remove();
}

// ---- looking again and again, while somebody can see it

let timer = 0;

async function look() {
  clearTimeout(timer);
  const [status, requests] = await Promise.allSettled([
    askJson("status"), askJson(`v1/requests?limit=${NUM_REQUESTS}`),
  ]);
  if (status.status === "fulfilled") {
    showStatus(status.value);
    if (!$("model").textContent) showModel();
  } else {
    $("health").textContent = reasonOf(status.reason);
    $("health").className = "bad";
  }
  let note = "";
  if (requests.status === "rejected") note = reasonOf(requests.reason);
  else if (!requests.value.data.length) note = "None yet.";
  if ($("requests-note").textContent !== note) $("requests-note").textContent = note;
  if (requests.status === "fulfilled") showRequests(requests.value.data);
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, LOOK_EVERY_MS);
}

async function showModel() {
  const models = await askJson("v1/models").catch(() => null);
  $("model").textContent = models?.data[0]?.id ?? "";
}

// ---- what the user does

$("chat").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", clear);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  $("key-form").hidden = true;
  look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

look();
