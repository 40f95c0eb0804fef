// The playground: a conversation, streamed.

import { ApiError, ask, reasonOf } from "./api.js";
import { $, make, time } from "./dom.js";

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
  const startedAt = performance.now();
  let [thought, text, finish, firstAt, usage] = ["", "", null, null, null];
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
      thought += choice.delta.reasoning_content ?? "";
      text += choice.delta.content ?? "";
      firstAt ??= performance.now();
      view.show(thought, text);
    }
    view.end(facts(usage, finish, firstAt - startedAt, performance.now() - firstAt));
  } catch (error) {
    if (control.signal.aborted) view.end("Stopped.");
    else view.fail(reasonOf(error));
  }
  return text;
}

function facts(usage, finish, ttftMs, decodeMs) {
  const words = [`first token after ${time(ttftMs / 1000)}`];
  const tokens = usage?.completion_tokens ?? 0;
  if (tokens) words.unshift(`${tokens} tokens`);
  if (tokens > 1 && decodeMs > 0) words.push(`${Math.round((tokens - 1) / (decodeMs / 1000))} tok/s`);
  if (finish === "length") words.push("cut at max tokens");
  return words.join(" · ");
}

async function send(answered) {
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
  answered();
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

// ``answered`` is called after each answer.
export function startPlayground(answered) {
  $("chat").addEventListener("submit", (event) => {
    event.preventDefault();
    send(answered);
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(answered);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  $("stop").addEventListener("click", () => running?.abort());
  $("clear").addEventListener("click", clear);
}
