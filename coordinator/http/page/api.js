// This server's own API: all that the page knows comes from it.

import { $ } from "./dom.js";

const ANSWER_WITHIN_MS = 5000;
const KEY = "baton.api-key";

// What the server says of a request that it refused.
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.wantsKey = status === 401;
  }
}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

export async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  if (response.status === 401) $("key-form").hidden = false;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `HTTP ${response.status}`;
  const later = response.headers.get("retry-after");
  throw new ApiError(later ? `${message} Try again in ${later} s.` : message, response.status);
}

export const askJson = async (path) =>
  (await ask(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) })).json();

export function reasonOf(error) {
  return error instanceof ApiError ? error.message : "The server does not answer.";
}
