// The page at /: a playground, the pools, and what became of the last requests.
//
// It looks again and again while somebody can see it, more often while requests run. What it cannot
// renew is dimmed, and says of when it is.

import { askJson, keepKey, reasonOf } from "./api.js";
import { showCharts } from "./charts.js";
import { $, clock, say } from "./dom.js";
import { showExamples } from "./examples.js";
import { askQuestion, startPlayground } from "./playground.js";
import { showHandoff, showStatus } from "./pools.js";
import { showRequests } from "./requests.js";

const LOOK_EVERY_MS = 2000;
const LOOK_WHILE_RUNNING_MS = 1000;
const HISTORY_EVERY_MS = 10_000;
const NUM_REQUESTS = 20;

let timer = 0;
let historyAt = 0; // when the last hour is asked for again
const renewed_s = { pools: null, requests: null }; // when each section was, in Unix seconds

async function look() {
  clearTimeout(timer);
  const [status, requests, history] = await Promise.allSettled([
    askJson("status"), askJson(`v1/requests?limit=${NUM_REQUESTS}`), lastHour(),
  ]);
  if (status.status === "fulfilled") {
    showStatus(status.value);
    if (!$("model").textContent) showModel();
  } else {
    say($("health"), reasonOf(status.reason));
    $("health").className = "bad";
  }
  if (requests.status === "fulfilled") showRequests(requests.value.data);
  if (history.value) {
    showCharts(history.value);
    showHandoff(history.value);
  }
  note("pools", status, "");
  note("requests", requests, requests.value?.data.length === 0 ? "None yet." : "");
  clearTimeout(timer);
  // Without its key every look is refused alike: a key, or the reader's return, begins anew.
  const every_ms = status.value?.running ? LOOK_WHILE_RUNNING_MS : LOOK_EVERY_MS;
  if (!document.hidden && !status.reason?.wantsKey) timer = setTimeout(look, every_ms);
}

// The load of the last hour; null if it was asked for just now.
async function lastHour() {
  if (performance.now() < historyAt) return null;
  const found = await askJson("status/history");
  historyAt = performance.now() + HISTORY_EVERY_MS;
  return found;
}

function note(section, looked, otherwise) {
  const failed = looked.status === "rejected";
  if (!failed) renewed_s[section] = Date.now() / 1000;
  $(`${section}-section`).classList.toggle("stale", failed && renewed_s[section] !== null);
  const of = failed && renewed_s[section] !== null ? ` This is of ${clock(renewed_s[section])}.` : "";
  say($(`${section}-note`), failed ? reasonOf(looked.reason) + of : otherwise);
}

async function showModel() {
  const models = await askJson("v1/models").catch(() => null);
  const model = models?.data[0];
  if (!model) return;
  $("model").textContent = model.id;
  showExamples(model.root, (question, more) => askQuestion(question, more, look));
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey($("key").value.trim());
  $("key").value = "";
  $("key-form").hidden = true;
  look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

startPlayground(look);
look();
