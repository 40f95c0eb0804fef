// The page at /: a playground, the pools, and what became of the last requests.
//
// It looks again and again while somebody can see it. What it cannot renew is dimmed, and says of
// when it is.

import { askJson, keepKey, reasonOf } from "./api.js";
import { $, clock, say } from "./dom.js";
import { startPlayground } from "./playground.js";
import { showStatus } from "./pools.js";
import { showRequests } from "./requests.js";

const LOOK_EVERY_MS = 2000;
const NUM_REQUESTS = 20;

let timer = 0;
const renewed_s = { pools: null, requests: null }; // when each section was, in Unix seconds

async function look() {
  clearTimeout(timer);
  const [status, requests] = await Promise.allSettled([
    askJson("status"), askJson(`v1/requests?limit=${NUM_REQUESTS}`),
  ]);
  if (status.status === "fulfilled") {
    showStatus(status.value);
    if (!$("model").textContent) showModel();
  } else {
    say($("health"), reasonOf(status.reason));
    $("health").className = "bad";
  }
  if (requests.status === "fulfilled") showRequests(requests.value.data);
  note("pools", status, "");
  note("requests", requests, requests.value?.data.length === 0 ? "None yet." : "");
  clearTimeout(timer);
  // Without its key every look is refused alike: a key, or the reader's return, begins anew.
  if (!document.hidden && !status.reason?.wantsKey) timer = setTimeout(look, LOOK_EVERY_MS);
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
  $("model").textContent = models?.data[0]?.id ?? "";
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
