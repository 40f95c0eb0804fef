// Markdown as elements: paragraphs, headings, lists, quotes, tables, code and links.
//
// A model's text only ever becomes text nodes of elements made here, never markup: tags in it are
// shown as they are, images are links, and a link leads to http, https or mailto alone.

import { make } from "./dom.js";

const DEEPEST = 6; // lists and quotes within each other; deeper ones are paragraphs
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const DIVIDER = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;
// In this order: code, bold, struck out, italic, link or image, address, escaped character.
const INLINE = new RegExp([
  "(`+)([^]{1,2000}?)(?<!`)\\1(?!`)",
  "\\*\\*(?=\\S)([^]{1,2000}?\\S?)\\*\\*", "~~(?=\\S)([^]{1,2000}?)~~",
  "\\*(?=[^\\s*])([^*]{1,2000})\\*", "(?<!\\w)_(?=[^\\s_])([^_]{1,2000})_(?!\\w)",
  "!?\\[([^\\]\\n]{0,500})\\]\\(\\s*([^\\s()]{1,2000})[^)\\n]{0,200}\\)",
  "(https?:\\/\\/[^\\s<>()\"'`*]{1,2000}[^\\s<>()\"'`*.,;:!?])",
  "\\\\([!-/:-@[-`{-~])",
].join("|"), "g");
const LEADS_TO = /^(https?|mailto):/i;

function link(address, ...children) {
  if (!LEADS_TO.test(address)) return make("span", {}, ...children);
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address }, ...children);
}

function inline(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    found.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    const [, , code, bold, struck, star, bar, label, target, address, escaped] = match;
    if (code !== undefined) found.push(make("code", { textContent: code.replace(/^ (.+) $/, "$1") }));
    else if (bold !== undefined) found.push(make("strong", {}, ...inline(bold)));
    else if (struck !== undefined) found.push(make("s", {}, ...inline(struck)));
    else if (star ?? bar) found.push(make("em", {}, ...inline(star ?? bar)));
    else if (target !== undefined) found.push(link(target, label || target));
    else if (address !== undefined) found.push(link(address, address));
    else found.push(escaped);
  }
  found.push(text.slice(end));
  return found;
}

function code(language, lines) {
  const text = lines.join("\n");
  const box = make("pre", { tabIndex: 0 }, make("code", { textContent: text }));
  box.setAttribute("aria-label", language ? `Code: ${language}` : "Code");
  const bar = make("div", { className: "code-bar" }, make("span", { textContent: language }));
  if (navigator.clipboard) {
    const copy = make("button", { type: "button", textContent: "Copy" });
    copy.addEventListener("click", () => navigator.clipboard.writeText(text).then(
      () => { copy.textContent = "Copied"; }, () => { copy.textContent = "Not allowed"; }));
    bar.append(copy);
  }
  return make("div", { className: "code" }, bar, box);
}

const cellsOf = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/)
  .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines) {
  const row = (tag, line) => make("tr", {}, ...cellsOf(line).map((cell) => make(tag, {}, ...inline(cell))));
  const [head, , ...rest] = lines;
  return make("div", { className: "wide" }, make("table", {},
    make("thead", {}, row("th", head)), make("tbody", {}, ...rest.map((line) => row("td", line)))));
}

function list(lines, depth) {
  const [, , mark] = lines[0].match(ITEM);
  const ordered = /\d/.test(mark);
  const items = [];
  const indent = lines[0].match(ITEM)[1].length;
  let inner = 0;
  for (const line of lines) {
    const item = line.match(ITEM);
    if (item && item[1].length < Math.max(inner, indent + 2)) {
      inner = item[0].length || 2;
      items.push([line.slice(item[0].length)]);
    } else items.at(-1).push(line.slice(Math.min(inner, line.search(/\S|$/))));
  }
  const made = items.map((item) => {
    const blocks = split(item, depth + 1);
    // A short item is its text alone, without a paragraph's margins around it.
    return make("li", {}, ...blocks.flatMap(({ kind, lines: own, build }) =>
      (kind === "text" && blocks[0].lines === own ? inline(own.join("\n")) : [build()])));
  });
  return make(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark, 10) } : {}, ...made);
}

const begins = (line, depth) => FENCE.test(line) || HEADING.test(line) || RULE.test(line)
  || (depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line)));

// The blocks of some lines: of each its kind, its lines, and how its element is built.
function split(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  const take = (goesOn) => {
    const first = at++;
    while (at < lines.length && goesOn(lines[at], at)) at++;
    return lines.slice(first, at);
  };
  const add = (kind, own, build) => blocks.push({ kind, lines: own, build });
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(FENCE);
    if (!line.trim()) at++;
    else if (fence) {
      const closes = (each) => each.trim().startsWith(fence[1]) && !each.trim().slice(fence[1].length).replaceAll(fence[1][0], "");
      const own = take((each) => !closes(each));
      const closed = at < lines.length;
      at++;
      add("code", closed ? [...own, fence[1]] : own, () => code(fence[2], own.slice(1)));
    } else if (HEADING.test(line)) {
      const [, marks, text] = line.match(HEADING);
      add("heading", take(() => false), () => make(`h${Math.min(marks.length + 3, 6)}`, {}, ...inline(text)));
    } else if (RULE.test(line)) add("rule", take(() => false), () => make("hr"));
    else if (depth < DEEPEST && QUOTE.test(line)) {
      const own = take((each) => QUOTE.test(each));
      add("quote", own, () => make("blockquote", {}, ...split(own.map((each) => each.replace(QUOTE, "")), depth + 1).map((b) => b.build())));
    } else if (depth < DEEPEST && ITEM.test(line)) {
      const ordered = /\d/.test(line.match(ITEM)[2]);
      const indent = line.match(ITEM)[1].length;
      const same = (each) => { const item = each.match(ITEM); return item && (item[1].length > indent || /\d/.test(item[2]) === ordered); };
      const own = take((each, i) => (each.trim()
        ? same(each) || /^ {2,}/.test(each) || (!begins(each, depth) && lines[i - 1].trim())
        : i + 1 < lines.length && (same(lines[i + 1]) || /^ {2,}\S/.test(lines[i + 1]))));
      add("list", own, () => list(own, depth));
    } else if (line.includes("|") && DIVIDER.test(lines[at + 1] ?? "")) {
      const own = take((each) => each.includes("|"));
      add("table", own, () => table(own));
    } else {
      const own = take((each) => each.trim() && !begins(each, depth));
      add("text", own, () => make("p", {}, ...inline(own.join("\n"))));
    }
  }
  return blocks;
}

const shown = new WeakMap(); // by element: the source of each block in it

// Show ``source`` in ``element``. Only blocks that changed are built: an answer grows at its end.
export function showMarkdown(element, source) {
  const before = shown.get(element) ?? [];
  const blocks = split(source.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"));
  const sources = blocks.map(({ kind, lines }) => `${kind}\n${lines.join("\n")}`);
  let same = 0;
  while (same < sources.length && sources[same] === before[same]) same++;
  while (element.childNodes.length > same) element.lastChild.remove();
  element.append(...blocks.slice(same).map((block) => block.build()));
  shown.set(element, sources);
}
