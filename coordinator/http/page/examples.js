// Three things to ask, as buttons: what the bundled tiny model can do, or any other model.

import { $, make, say } from "./dom.js";

const STORY = "Nina has 13 shells. Diana gives Nina 46 shells. She loses 11 of them. How many shells does Nina have now?";
const SCHEMA = {
  type: "object", additionalProperties: false, required: ["equations", "answer"],
  properties: { equations: { type: "array", items: { type: "string" } }, answer: { type: "integer" } },
};
const TINY = {
  abilities: "This is the small model that comes with Baton. It does sums, word problems and JSON, and little else.",
  examples: [
    { label: "A sum", question: "What is 6 times 7?" },
    { label: "A word problem", question: STORY },
    { label: "An answer as JSON", question: STORY,
      more: { response_format: { type: "json_schema", json_schema: { name: "answer", schema: SCHEMA, strict: true } } } },
  ],
};
const OTHER = {
  abilities: "Ask something. The way of each answer through the pools appears under Requests.",
  examples: [
    { label: "Explain", question: "Explain in five sentences why prompts and tokens can be computed on different GPUs." },
    { label: "Code", question: "Write a Python function that merges two sorted lists, with an example." },
    { label: "Table", question: "Compare TCP and UDP in a table with four rows." },
  ],
};

// ``root``: the folder or id of the model's checkpoint. ``ask(question, more)`` sends a question.
export function showExamples(root, ask) {
  const { abilities, examples } = /(^|\/)tiny$/.test(root) ? TINY : OTHER;
  say($("abilities"), abilities);
  $("examples").replaceChildren(...examples.map(({ label, question, more }) => {
    const button = make("button", { type: "button", title: question },
      make("strong", { textContent: label }), make("span", { textContent: question }));
    button.addEventListener("click", () => ask(question, more ?? {}));
    return button;
  }));
}
