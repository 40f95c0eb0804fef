// The pools: a block a role with a row a worker, the handoff between them, and the service's state.

import { COLUMNS, hits, total } from "./columns.js";
import { $, count, make, say, time } from "./dom.js";

const ROLES = ["prefill", "decode", "colocated"];
const HANDOFF_PERIODS = 6; // a minute
const blocks = new Map(); // by role: its elements, and the columns that have ever told something
let handoff = null;

function build(role) {
  const title = make("h3", { id: `pool-${role}`, textContent: role[0].toUpperCase() + role.slice(1) });
  const summary = make("p", { className: "hint" });
  const [head, body] = [make("tr"), make("tbody")];
  const table = make("table", {}, make("thead", {}, head), body);
  const scroll = make("div", { className: "wide", role: "region", tabIndex: 0 }, table);
  const element = make("div", { className: `pool ${role}` }, title, summary, scroll);
  scroll.setAttribute("aria-labelledby", title.id);
  return { element, summary, head, body, told: new Set() };
}

function cells(found, columns) {
  const draining = found.draining ? [" ", make("span", { className: "bad", textContent: "draining" })] : [];
  const name = make("th", { scope: "row" }, found.instance, ...draining);
  const rest = columns.map((column) => {
    const cell = make("td", { className: "number" }, column.cell(found) ?? "–");
    cell.dataset.name = column.name;
    return cell;
  });
  return [name, ...rest];
}

function rows(found, columns) {
  const row = make("tr", {}, ...cells(found, columns));
  if (!found.accounting_error) return [row];
  const error = make("td", { className: "error", colSpan: columns.length + 1, textContent: found.accounting_error });
  return [row, make("tr", {}, error)];
}

function showPool(role, workers) {
  const block = blocks.get(role);
  const { told } = block;
  for (const column of COLUMNS) {
    const always = column.always === true || column.always?.includes(role);
    if (always || workers.some((each) => column.cell(each) !== null)) told.add(column);
  }
  const columns = COLUMNS.filter((column) => told.has(column));
  const heads = columns.map(({ name, tip }) =>
    make("th", { scope: "col", className: "number", textContent: name, title: tip }));
  block.head.replaceChildren(make("th", { scope: "col", textContent: "worker", title: "The process, one per GPU." }), ...heads);
  block.body.replaceChildren(...workers.flatMap((each) => rows(each, columns)));
  const devices = [...new Set(workers.map((each) => each.device))].join(", ");
  say(block.summary, `${workers.length} × ${devices}`);
}

// The prefill pool, the handoff, the decode pool, colocated workers; a role without workers has no block.
function arrange(roles) {
  handoff ??= make("p", { id: "handoff" }, make("span", { className: "arrow", ariaHidden: "true" }), make("span", { className: "what" }));
  const wanted = roles.flatMap((role) => {
    if (!blocks.has(role)) blocks.set(role, build(role));
    const between = role === "prefill" && roles.includes("decode");
    return between ? [blocks.get(role).element, handoff] : [blocks.get(role).element];
  });
  const shown = [...$("pools").children];
  if (shown.length !== wanted.length || wanted.some((each, i) => each !== shown[i])) $("pools").replaceChildren(...wanted);
}

// What the handoffs of the last minute were.
export function showHandoff({ points, period_s }) {
  if (handoff === null) return;
  const some = points.slice(-HANDOFF_PERIODS);
  const mean = (name) => total(some, name) / Math.max(some.length, 1);
  const handedOff = (each) => each.handoff_p50_s !== null;
  const newest = some.findLast(handedOff);
  const bytes = mean("handoff_bytes_per_s");
  const speed = bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB/s` : `${(bytes / 1e6).toFixed(1)} MB/s`;
  handoff.title = "From a request's first token, which prefill sends, to its second, which decode sends; over the last minute.";
  const often = mean("handoffs_per_s");
  const rate = often < 1 ? `${Math.round(total(some, "handoffs_per_s") * period_s)} in the last minute` : `${often.toFixed(1)} per second`;
  say(handoff.querySelector(".what"), newest
    ? `handoff: ${rate} · p50 ${time(newest.handoff_p50_s)} · ${speed}`
    : points.some(handedOff) ? "handoff: none in the last minute" : "no handoff yet");
}

export function showStatus(status) {
  const problems = [...status.problems, ...(status.draining ? ["draining"] : [])];
  const ready = status.ready && !status.draining;
  const state = (ready ? "ready" : "not ready") + (problems.length ? `: ${problems.join("; ")}` : "");
  const redis = status.redis_connected ? "" : " · Redis not connected";
  say($("health"), `${state} · ${status.queued} queued · ${status.running} running${redis}`);
  $("health").className = problems.length ? "bad" : "good";
  say($("pools-why"), status.pools_why ? `last change: ${status.pools_why}` : "");
  const { workers } = status;
  const [prompts, output] = ["prompt_tokens_per_s", "output_tokens_per_s"].map((n) => count(total(workers, n)));
  const found = hits(workers) ? ` · prefix hits ${hits(workers)}` : "";
  const moves = status.moves_last_minute ? ` · ${status.moves_last_minute} moves in the last minute` : "";
  say($("speed"), `${workers.length} workers · prompts ${prompts} tok/s · output ${output} tok/s${found}${moves}`);
  const others = [...new Set(workers.map((each) => each.role))].filter((role) => !ROLES.includes(role));
  const roles = [...ROLES, ...others].filter((role) => workers.some((each) => each.role === role));
  arrange(roles);
  for (const role of roles) {
    const its = workers.filter((each) => each.role === role);
    showPool(role, its.toSorted((a, b) => a.instance.localeCompare(b.instance)));
  }
}
