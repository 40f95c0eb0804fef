// The pools: a row a worker, and what the service says of itself.

import { $, count, make, say } from "./dom.js";

const NUM_COLUMNS = 14;

function usage(name, all, free) {
  const used = all - free;
  return make(
    "td", { className: "number" },
    make("meter", { max: Math.max(all, 1), value: used, ariaLabel: `${name} in use` }),
    make("span", { className: "used", textContent: `${count(used)}/${count(all)}` }),
  );
}

const total = (workers, name) => workers.reduce((sum, each) => sum + each[name], 0);

const number = (text) => make("td", { className: "number", textContent: text });

// Drafts that a step makes for each sequence, and in per cent how many of each position are accepted.
function drafts(found) {
  const shares = found.draft_acceptance.map((share) => (100 * share).toFixed(0));
  return shares.length ? `${found.drafts} (${shares.join("/")} %)` : count(found.drafts);
}

// Of the prompt tokens of the last minute, the share that the prefix cache had; "" without prompts.
function hits(workers) {
  const [queried, reused] = ["queried_tokens", "reused_tokens"].map((name) => total(workers, name));
  return queried ? `${((100 * reused) / queried).toFixed(0)} %` : "";
}

// That share, and how many prefixes are kept, on the device and in the host tier.
function prefixes(found) {
  const host = found.kept_prefixes_host ? ` + ${count(found.kept_prefixes_host)}` : "";
  return `${hits([found]) || "–"} (${count(found.kept_prefixes)}${host})`;
}

// Of the last minute: the share of steps that were computed together with others, in a group of how many, and
// how long such a step and a local one took.
function together(found) {
  const { spread } = found;
  if (spread === null) return number("–");
  const apart = spread.mode === "alone" || spread.mode === "left out";
  if (apart) return make("td", { className: spread.mode === "alone" ? "" : "bad", textContent: spread.mode });
  const share = spread.share === null ? "–" : `${(100 * spread.share).toFixed(0)} %`;
  const ms = (time) => (time === null ? "–" : time.toFixed(1));
  const cell = number(`${share} of ${spread.members.length} (${ms(spread.step_ms)} / ${ms(spread.local_step_ms)} ms)`);
  const waits = Object.entries(spread.within_ms).map(([name, wait]) => `${name}: waited for ${wait.toFixed(2)} ms a step`);
  const times = spread.table ? [`times of steps: ${spread.table}`] : [];
  cell.title = [spread.members.join(", "), ...waits, `${count(spread.aborted)} aborts`, ...times].join("\n");
  return cell;
}

function worker(found) {
  const heat = found.gpu_temperature_c === null ? "–" : `${found.gpu_temperature_c.toFixed(0)} °C`;
  const draining = found.draining ? [" ", make("span", { className: "bad", textContent: "draining" })] : [];
  const row = make(
    "tr", {},
    make("td", { textContent: found.role }),
    make("th", { scope: "row" }, found.instance, ...draining),
    make("td", { textContent: found.device }),
    number(count(found.running)),
    number(count(found.waiting)),
    usage("pages", found.num_pages, found.free_pages),
    usage("state slots", found.num_state_slots, found.free_state_slots),
    number(`${count(found.prompt_tokens_per_s)} / ${count(found.output_tokens_per_s)}`),
    number(found.tokens_per_step === null ? "–" : found.tokens_per_step.toFixed(2)),
    number(drafts(found)),
    number(prefixes(found)),
    together(found),
    make("td", { className: found.breaker === "closed" ? "" : "bad", textContent: found.breaker }),
    number(heat),
  );
  if (!found.accounting_error) return [row];
  const error = make("td", { className: "error", colSpan: NUM_COLUMNS, textContent: found.accounting_error });
  return [row, make("tr", {}, error)];
}

export function showStatus(status) {
  const problems = [...status.problems, ...(status.draining ? ["draining"] : [])];
  const ready = status.ready && !status.draining;
  const state = (ready ? "ready" : "not ready") + (problems.length ? `: ${problems.join("; ")}` : "");
  const redis = status.redis_connected ? "" : " · Redis not connected";
  say($("health"), `${state} · ${status.queued} queued · ${status.running} running${redis}`);
  $("health").className = problems.length ? "bad" : "good";
  const { workers } = status;
  const [prompts, output] = ["prompt_tokens_per_s", "output_tokens_per_s"].map((n) => count(total(workers, n)));
  const found = hits(workers) ? ` · prefix hits ${hits(workers)}` : "";
  say($("speed"), `${workers.length} workers · prompts ${prompts} tok/s · output ${output} tok/s${found}`);
  const inOrder = workers.toSorted(
    (a, b) => b.role.localeCompare(a.role) || a.instance.localeCompare(b.instance));
  $("pools").replaceChildren(...inOrder.flatMap(worker));
}
