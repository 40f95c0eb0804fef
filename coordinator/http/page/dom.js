// Elements and figures. Text is only ever set as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Set only if it has changed: a screen reader reads a status again each time it is set.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function time(seconds) {
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 2 : 0)} ms`;
}

export const count = (number) => Math.round(number).toLocaleString("en");

const parts = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const toSeconds = new Intl.DateTimeFormat("en", parts);
const toMilliseconds = new Intl.DateTimeFormat("en", { ...parts, fractionalSecondDigits: 3 });

// Clock times of the reader's zone, of seconds since 1970.
export const clock = (seconds) => toSeconds.format(new Date(seconds * 1000));
export const exactClock = (seconds) => toMilliseconds.format(new Date(seconds * 1000));
