// The playground: a conversation, streamed.

import { ApiError, ask, reasonOf } from "./api.js";
import { $, make, time } from "./dom.js";
import { showMarkdown } from "./markdown.js";

const SHOW_EVERY_MS = 40; // tokens come faster than a screen shows them
const NEAR_PX = 60; // of its end, a reader follows the conversation

const conversation = [];
let running = null; // the AbortController of the answer that is coming

function turn(role) {
  const element = make("article", { className: `turn ${role}` });
  element.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  $("welcome").hidden = true;
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
  element.append(thoughts, text, facts);
  element.setAttribute("aria-busy", "true");
  toEnd();
  let [timer, newest] = [0, ["", ""]];
  const draw = () => {
    const follows = isAtEnd();
    const [thoughtText, answer] = newest;
    timer = 0;
    thoughts.hidden = !thoughtText;
    thought.textContent = thoughtText;
    showMarkdown(text, answer);
    if (follows) toEnd();
  };
  const end = (...words) => {
    const follows = isAtEnd();
    clearTimeout(timer);
    draw();
    for (const word of words) element.append(word);
    element.setAttribute("aria-busy", "false");
    if (follows) toEnd();
  };
  return {
    show(thoughtText, answer) {
      newest = [thoughtText, answer];
      timer ||= setTimeout(draw, SHOW_EVERY_MS);
    },
    end(words) {
      facts.textContent = words;
      end();
    },
    fail(reason) {
      end(make("p", { className: "error", role: "alert", textContent: reason }));
    },
  };
}

// The conversation scrolls in its frame, or with the page on a narrow screen.
const scroller = () =>
  (getComputedStyle($("conversation")).overflowY === "auto" ? $("conversation") : null);

function isAtEnd() {
  const frame = scroller();
  if (frame) return frame.scrollHeight - frame.scrollTop - frame.clientHeight < NEAR_PX;
  const composer = $("chat").getBoundingClientRect();
  return $("conversation").getBoundingClientRect().bottom - composer.top < NEAR_PX;
}

function toEnd() {
  const frame = scroller();
  if (frame) frame.scrollTop = frame.scrollHeight;
  else $("playground").scrollIntoView({ block: "end" });
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

function settingsAreWrong() {
  const wrong = [$("temperature"), $("max-tokens")].find((field) => !field.checkValidity());
  if (!wrong) return false;
  $("settings").open = true;
  wrong.reportValidity();
  return true;
}

// Ask ``content``, with more fields of the request.
export async function askQuestion(content, more, answered) {
  if (running) return;
  if (settingsAreWrong()) return;
  const control = (running = new AbortController());
  $("send").disabled = true;
  $("stop").disabled = false;
  conversation.push({ role: "user", content });
  turn("user").append(make("div", { className: "text", textContent: content }));
  const system = $("system").value.trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...conversation];
  const body = { messages, stream: true, stream_options: { include_usage: true }, ...settings(), ...more };
  const said = await answer(body, answerView(), control);
  if (running !== control) return; // a new conversation has begun
  if (said) conversation.push({ role: "assistant", content: said });
  else conversation.pop(); // nothing was answered: the question may be put again
  idle();
  answered();
}

function send(answered) {
  const content = $("message").value.trim();
  if (running || !content || !$("chat").reportValidity()) return;
  if (settingsAreWrong()) return;
  $("message").value = "";
  askQuestion(content, {}, answered);
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
  for (const each of $("conversation").querySelectorAll(".turn")) each.remove();
  $("welcome").hidden = false;
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
