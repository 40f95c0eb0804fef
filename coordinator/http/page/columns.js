// The columns of a pool's table: heading, tooltip, and the cell of a worker.
//
// A cell is text, or an element; null says that the worker has nothing to tell there. A column in
// which no worker of the pool has ever told anything is not shown.

import { count, make } from "./dom.js";

const NEARLY_FULL = 0.9;

function usage(name, all, free) {
  const used = all - free;
  const fill = make("span", { className: used >= NEARLY_FULL * all ? "fill full" : "fill" });
  fill.style.width = `${(100 * used) / Math.max(all, 1)}%`;
  const bar = make("span", { className: "meter", role: "meter", ariaLabel: `${name} in use` }, fill);
  for (const [key, value] of [["min", 0], ["max", all], ["now", used]]) bar.setAttribute(`aria-value${key}`, value);
  return make("span", { className: "usage" }, bar,
    make("span", { className: "used", textContent: `${count(used)}/${count(all)}` }));
}

// Drafts that a step makes for each sequence, and in per cent how many of each position are accepted; "given" by the
// setting of a benchmark, where the model does not decide.
function drafts(found) {
  const given = found.given_acceptance;
  if (!found.drafts && !found.draft_acceptance.length && given === null) return null;
  const shares = found.draft_acceptance.map((share) => (100 * share).toFixed(0));
  const notes = [shares.length && `${shares.join("/")} %`, given !== null && `given ${Number((100 * given).toFixed(1))} %`].filter(Boolean);
  return notes.length ? `${count(found.drafts)} (${notes.join(", ")})` : count(found.drafts);
}

export const total = (workers, name) => workers.reduce((sum, each) => sum + each[name], 0);

// Of the prompt tokens of the last minute, the share that the prefix cache had; "" without prompts.
export function hits(workers) {
  const [queried, reused] = ["queried_tokens", "reused_tokens"].map((name) => total(workers, name));
  return queried ? `${((100 * reused) / queried).toFixed(0)} %` : "";
}

// That share, and how many prefixes are kept, on the device and in the host tier.
function prefixes(found) {
  if (!found.queried_tokens && !found.kept_prefixes && !found.kept_prefixes_host) return null;
  const host = found.kept_prefixes_host ? ` + ${count(found.kept_prefixes_host)}` : "";
  return `${hits([found]) || "–"} (${count(found.kept_prefixes)}${host})`;
}

// Of the last minute: the share of steps that were computed together with others, in a group of how many, and
// how long such a step and a local one took.
function together(found) {
  const { spread } = found;
  if (spread === null) return null;
  if (spread.mode === "left out") return bad(spread.mode);
  if (spread.mode === "alone") return spread.mode;
  const share = spread.share === null ? "–" : `${(100 * spread.share).toFixed(0)} %`;
  const ms = (time) => (time === null ? "–" : time.toFixed(1));
  const cell = make("span", {
    textContent: `${share} of ${spread.members.length} (${ms(spread.step_ms)} / ${ms(spread.local_step_ms)} ms)` });
  const waits = Object.entries(spread.within_ms).map(([name, wait]) => `${name}: waited for ${wait.toFixed(2)} ms a step`);
  const times = spread.table ? [`times of steps: ${spread.table}`] : [];
  cell.title = [spread.members.join(", "), ...waits, `${count(spread.aborted)} aborts`, ...times].join("\n");
  return cell;
}

const bad = (text) => make("span", { className: "bad", textContent: text });
const ifAny = (value, words = count) => (value ? words(value) : null);

// ``always``: the roles whose tables have the column whatever it says; all others hide it if empty.
export const COLUMNS = [
  { name: "running", tip: "Sequences in the batch now.", cell: (w) => count(w.running), always: true },
  { name: "waiting", tip: "Sequences that wait for memory or for their turn.",
    cell: (w) => count(w.waiting), always: true },
  { name: "pages", tip: "Pages of the KV pool in use, of all. Kept prefixes count as free: requests get them.",
    cell: (w) => usage("pages", w.num_pages, w.free_pages), always: true },
  { name: "state slots", tip: "State slots in use, of all. Each sequence has one for its DeltaNet state.",
    cell: (w) => usage("state slots", w.num_state_slots, w.free_state_slots), always: true },
  { name: "tok/s in", tip: "Prompt tokens computed per second.", always: ["prefill", "colocated"],
    cell: (w) => ifAny(w.prompt_tokens_per_s) ?? (w.role === "decode" ? null : "0") },
  { name: "tok/s out", tip: "Tokens generated per second.", always: ["decode", "colocated"],
    cell: (w) => (w.role === "prefill" ? null : count(w.output_tokens_per_s)) },
  { name: "tok/step", tip: "Tokens that a decode step gives a sequence. More than one with drafts.",
    cell: (w) => (w.tokens_per_step === null ? null : w.tokens_per_step.toFixed(2)) },
  { name: "drafts", tip: "Tokens that a step guesses per sequence; in brackets the share of the first, second, … guess that was right.",
    cell: drafts },
  { name: "hits", tip: "Share of the last minute's prompt tokens that the prefix cache had; in brackets the prefixes kept on the device + in host memory.",
    cell: prefixes },
  { name: "spread", tip: "Share of decode steps that the workers of a group compute together; in brackets the time of such a step and of a local one.",
    cell: together },
  { name: "breaker", tip: "open: had too many faults and gets no requests; half-open: one request probes it.",
    cell: (w) => (w.breaker === "closed" ? null : bad(w.breaker)) },
  { name: "GPU", tip: "The GPU's temperature.",
    cell: (w) => (w.gpu_temperature_c === null ? null : `${w.gpu_temperature_c.toFixed(0)} °C`) },
];
