// The last requests: a bar a request on one time scale, and what each stage was.

import { $, clock, exactClock, make, say, time } from "./dom.js";

function bar(request, longest_s) {
  const spans = request.stages.map((stage) => {
    const span = make("span", {
      className: stage.name.split(" ")[0],
      title: `${stage.name}: ${time(stage.duration_s)}`,
    });
    span.style.flexGrow = String((1000 * stage.duration_s) / Math.max(request.duration_s, 1e-9));
    return span;
  });
  const element = make("span", { className: "bar", role: "img" }, ...spans);
  element.style.width = `${(100 * request.duration_s) / Math.max(longest_s, 1e-9)}%`;
  const words = request.stages.map((stage) => `${stage.name} ${time(stage.duration_s)}`);
  element.setAttribute("aria-label", words.join(", "));
  return element;
}

function stageRow(stage, received_at) {
  const parts = Object.entries(stage.parts).map(([name, s]) => `${name.replaceAll("_", " ")} ${time(s)}`);
  return make(
    "tr", {},
    make("th", { scope: "row", textContent: stage.name + (stage.open ? " …" : "") }),
    make("td", { className: "number", textContent: exactClock(received_at + stage.start_s) }),
    make("td", { className: "number", textContent: time(stage.duration_s) }),
    make("td", { textContent: stage.worker ?? "" }),
    make("td", { textContent: parts.join(", ") }),
  );
}

function endRow(request) {
  return make(
    "tr", {},
    make("th", { scope: "row", textContent: request.state }),
    make("td", { className: "number", textContent: exactClock(request.ended_at) }),
    make("td", { className: "number", textContent: time(request.duration_s) }),
    make("td"),
    make("td", { textContent: request.finish_reason ?? "" }),
  );
}

// How much of the prompt came from the prefix cache, if any did.
const cached = (request, where = "") =>
  (request.cached_tokens ? `, ${request.cached_tokens} cached${where}` : "");

function facts(request) {
  const words = [
    new Date(request.received_at * 1000).toLocaleDateString(),
    `${request.prompt_tokens} in${cached(request, ` (${request.reused})`)}`, `${request.completion_tokens} out`,
    ...(request.ttft_s === null ? [] : [`first token ${time(request.ttft_s)}`]),
    ...(request.bytes_moved ? [`${(request.bytes_moved / 1e6).toFixed(2)} MB moved`] : []),
    ...(request.drafts_verified ? [`${request.drafts_accepted} of ${request.drafts_verified} drafts accepted`] : []),
    ...(request.attempts > 1 ? [`${request.attempts} attempts`] : []),
    ...(request.failure ? [`${request.failure.code}: ${request.failure.message}`] : []),
  ];
  return words.join(" · ");
}

function fill(item, request, longest_s) {
  const details = item.querySelector("details");
  const state = make("span", { className: request.state, textContent: request.state });
  details.querySelector("summary").replaceChildren(
    make("span", {}, `${clock(request.received_at)} · ${request.id.slice(0, 8)} · `, state,
      ` · ${request.prompt_tokens} in${cached(request)}, ${request.completion_tokens} out`),
    make("span", { textContent: time(request.duration_s) }),
    bar(request, longest_s),
  );
  details.querySelector(".facts").textContent = `${request.id}: ${facts(request)}`;
  const rows = request.stages.map((stage) => stageRow(stage, request.received_at));
  if (request.ended_at !== null) rows.push(endRow(request));
  details.querySelector("tbody").replaceChildren(...rows);
}

// A row that stays keeps its element, and with it the focus and whether it is open.
export function showRequests(requests) {
  const longest_s = Math.max(0, ...requests.map((request) => request.duration_s));
  say($("scale"), requests.length ? `full width: ${time(longest_s)}` : "");
  const known = new Map([...$("requests").children].map((item) => [item.dataset.id, item]));
  let before = null;
  for (const request of requests) {
    let item = known.get(request.id);
    known.delete(request.id);
    if (!item) {
      item = make("li", {}, make("details", {}, make("summary"),
        make("p", { className: "facts" }),
        make("div", { className: "wide" }, make("table", {}, make("tbody")))));
      item.dataset.id = request.id;
    }
    fill(item, request, longest_s);
    const place = before ? before.nextElementSibling : $("requests").firstElementChild;
    if (place !== item) $("requests").insertBefore(item, place);
    before = item;
  }
  for (const gone of known.values()) gone.remove();
}
