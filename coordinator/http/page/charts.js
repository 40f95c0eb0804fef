// Sparklines of the last hour: tokens per second, TTFT, TPOT, queue.

import { $, clock, count, make, say, time } from "./dom.js";

const [WIDTH, HEIGHT] = [300, 40];
const SHORTEST_SPAN_S = 300; // a server that has just started gets a line, not a dot
const SVG = "http://www.w3.org/2000/svg";

const perSecond = (value) => `${count(value)} tok/s`;
const CHARTS = [
  { title: "Output", tip: "Tokens sent to clients per second, over all workers.",
    lines: [["output_tokens_per_s", ""]], say: perSecond },
  { title: "TTFT", tip: "Time to first token: from the request's arrival to its first token.",
    lines: [["ttft_p50_s", "p50"], ["ttft_p99_s", "p99"]], say: time },
  { title: "TPOT", tip: "Time per output token after the first, per finished request.",
    lines: [["tpot_p50_s", "p50"], ["tpot_p99_s", "p99"]], say: time },
  { title: "Queue", tip: "The most prompts that waited at once, at the coordinator or at a worker.",
    lines: [["queued", ""]], say: count },
];

function vector(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A line through the values, which a missing value breaks; values between two missing ones are dots.
function paths(values, x, y) {
  let [line, dots] = ["", ""];
  values.forEach((value, i) => {
    if (value === null) return;
    const before = (values[i - 1] ?? null) !== null;
    const place = `${x(i)} ${y(value)}`;
    if (before || (values[i + 1] ?? null) !== null) line += (before ? "L" : "M") + place;
    else dots += `M${place}h0`;
  });
  return [[line, ""], [dots, " dots"]];
}

// The value of each line at a point, as words; with several lines each has its name and colour.
function words(chart, points, i) {
  return chart.lines.map(([name, label]) => {
    const value = points[i]?.[name] ?? null;
    const text = value === null ? "–" : chart.say(value);
    return make("span", { className: label || "only", textContent: label ? `${label} ${text}` : text });
  });
}

const text = (spans) => spans.map((span) => span.textContent).join(", ");

function build(chart) {
  const value = make("span", { className: "value" });
  const title = make("span", { className: "title", textContent: chart.title });
  const top = make("span", { className: "top" });
  const drawing = vector("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const span = make("span", { className: "span" });
  const caption = make("figcaption", { title: chart.tip }, title, value);
  const figure = make("figure", {}, caption, drawing, make("div", { className: "axis" }, span, top));
  const parts = { chart, value, drawing, top, span, series: null, span_points: 1 };
  drawing.addEventListener("pointermove", (event) => point(parts, event));
  drawing.addEventListener("pointerleave", () => newest(parts));
  $("charts").append(figure);
  return parts;
}

function point(parts, event) {
  const { series, drawing, chart, value } = parts;
  if (!series?.points.length) return;
  const share = event.offsetX / drawing.clientWidth;
  const i = Math.ceil(share * parts.span_points) - 1 - (parts.span_points - series.points.length);
  if (i < 0 || i >= series.points.length) return;
  const at = clock(series.started_at + series.period_s * (i + 1));
  value.replaceChildren(...words(chart, series.points, i), make("span", { className: "at", textContent: at }));
}

function newest({ chart, series, value }) {
  value.replaceChildren(...words(chart, series.points, series.points.length - 1));
}

function draw(parts, series) {
  const { chart, drawing, top, span } = parts;
  const { points, period_s } = series;
  parts.series = series;
  parts.span_points = Math.max(points.length, SHORTEST_SPAN_S / period_s);
  const first = parts.span_points - points.length;
  const highest = Math.max(0, ...chart.lines.flatMap(([name]) => points.map((p) => p[name] ?? 0)));
  const x = (i) => (((first + i + 1) / parts.span_points) * (WIDTH - 4) + 2).toFixed(1);
  const y = (v) => (HEIGHT - 3 - (highest ? v / highest : 0) * (HEIGHT - 6)).toFixed(1);
  drawing.replaceChildren(...chart.lines.toReversed().flatMap(([name, label]) => (
    paths(points.map((p) => p[name]), x, y).map(([d, kind]) => vector("path", {
      class: (label || "only") + kind, d, "vector-effect": "non-scaling-stroke",
    })))));
  const minutes = Math.round((parts.span_points * period_s) / 60);
  say(span, `${minutes} min`);
  say(top, highest ? `max ${chart.say(highest)}` : "");
  drawing.setAttribute("aria-label",
    `${chart.title}, last ${span.textContent}: ${text(words(chart, points, points.length - 1))}; ${top.textContent}`);
  newest(parts);
}

let charts = null;

export function showCharts(series) {
  charts ??= CHARTS.map(build);
  for (const parts of charts) draw(parts, series);
}
