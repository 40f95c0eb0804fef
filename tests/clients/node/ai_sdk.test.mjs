// The Vercel AI SDK with createOpenAI(), which speaks the Responses API.

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { KEEP_NOTHING, MODEL, QUESTION, URL } from "./server.mjs";

const openai = createOpenAI({ baseURL: `${URL}/v1`, apiKey: "none" });
const Count = z.object({ n: z.number().int().min(0).max(99), kind: z.enum(["shell", "coin"]) });
const NUMBER = z.number().int().min(0).max(99);
const add = () =>
  tool({
    description: "Adds two numbers.",
    inputSchema: z.object({ a: NUMBER, b: NUMBER }),
    strict: true,
    execute: async ({ a, b }) => a + b,
  });

const asked = { model: openai(MODEL), prompt: QUESTION, temperature: 0, maxRetries: 0 };

test("generateText and streamText give the same", async () => {
  const whole = await generateText(asked);
  assert.equal(whole.finishReason, "stop");
  assert.ok(whole.usage.outputTokens > 5);
  const streamed = streamText(asked);
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal(await streamed.finishReason, "stop");
});

test("a conversation goes on with messages", async () => {
  const messages = [{ role: "user", content: QUESTION }];
  const first = await generateText({ ...asked, prompt: undefined, messages });
  messages.push(...first.response.messages, { role: "user", content: "And with 2 more?" });
  const second = await generateText({ ...asked, prompt: undefined, messages });
  assert.ok(second.text.length > 0);
});

test("an object by its schema, whole and streamed", async () => {
  const output = Output.object({ schema: Count });
  const whole = await generateText({ ...asked, temperature: 1.2, output });
  assert.ok(["shell", "coin"].includes(whole.output.kind));
  const { object } = await generateObject({ ...asked, temperature: 1.2, schema: Count });
  assert.ok(["shell", "coin"].includes(object.kind));
  const streamed = streamText({ ...asked, temperature: 1.2, output });
  for await (const _ of streamed.partialOutputStream);
  assert.ok(Number.isInteger((await streamed.output).n));
});

// Every step but the last calls the tool: the loop is what is tested, not the model.
const loop = (providerOptions) => ({
  ...asked,
  temperature: 1,
  tools: { add: add() },
  stopWhen: stepCountIs(3),
  maxOutputTokens: 200,
  providerOptions,
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber < 2 ? "required" : "none" }),
});

for (const [name, options] of [["items by their ids", {}], ["whole items", KEEP_NOTHING]]) {
  test(`a loop of tools with ${name}`, async () => {
    const found = await generateText(loop(options));
    assert.equal(found.steps.length, 3);
    for (const step of found.steps.slice(0, 2)) {
      const [call] = step.toolCalls;
      assert.equal(step.toolResults[0].output, call.input.a + call.input.b);
    }
  });

  test(`a streamed loop of tools with ${name}`, async () => {
    const streamed = streamText(loop(options));
    const kinds = new Set();
    for await (const part of streamed.fullStream) {
      assert.notEqual(part.type, "error", JSON.stringify(part.error?.message));
      kinds.add(part.type);
    }
    for (const kind of ["tool-input-delta", "tool-call", "tool-result"]) assert.ok(kinds.has(kind));
    assert.equal((await streamed.steps).length, 3);
  });
}

test("a thought, streamed", async () => {
  const streamed = streamText({
    ...asked,
    providerOptions: {
      openai: { forceReasoning: true, reasoningEffort: "low", reasoningSummary: "auto" },
    },
  });
  let thought = "";
  for await (const part of streamed.fullStream) {
    assert.notEqual(part.type, "error", JSON.stringify(part.error?.message));
    if (part.type === "reasoning-delta") thought += part.text;
  }
  assert.ok(thought.length > 0);
});
