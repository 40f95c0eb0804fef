// openai-node: responses and chats, whole and streamed, with tools and schemas.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { MODEL, QUESTION, URL } from "./server.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "none", maxRetries: 0 });
const NUMBER = { type: "integer", minimum: 0, maximum: 99 };
const ADD = {
  type: "function",
  name: "add",
  description: "Adds two numbers.",
  strict: true,
  parameters: {
    type: "object",
    properties: { a: NUMBER, b: NUMBER },
    required: ["a", "b"],
    additionalProperties: false,
  },
};

test("a response whole, streamed and by the helper", async () => {
  const asked = { model: MODEL, input: QUESTION, temperature: 0 };
  const whole = await client.responses.create(asked);
  assert.equal(whole.status, "completed");
  assert.ok(whole.output_text.length > 10);
  let text = "";
  let last;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(text, whole.output_text);
  assert.equal(last.type, "response.completed");
  for (const name of ["input_tokens", "output_tokens", "total_tokens"]) {
    assert.equal(last.response.usage[name], whole.usage[name]); // cached tokens may differ
  }
  const helped = await client.responses.stream(asked).finalResponse();
  assert.equal(helped.output_text, whole.output_text);
});

test("a loop of tools by ids", async () => {
  let response = await client.responses.create({
    model: MODEL, input: "Add.", tools: [ADD], tool_choice: "required", parallel_tool_calls: false,
  });
  for (const choice of ["required", "none"]) {
    const [call] = response.output;
    assert.equal(call.type, "function_call");
    const { a, b } = JSON.parse(call.arguments);
    response = await client.responses.create({
      model: MODEL,
      previous_response_id: response.id,
      input: [{ type: "function_call_output", call_id: call.call_id, output: String(a + b) }],
      tools: [ADD],
      tool_choice: choice,
      max_output_tokens: 120, parallel_tool_calls: false,
    });
  }
  assert.equal((await client.responses.retrieve(response.id)).id, response.id);
  await client.responses.delete(response.id);
  await assert.rejects(client.responses.retrieve(response.id), OpenAI.NotFoundError);
});

test("a parsed response", async () => {
  const Count = z.object({ n: z.number().int(), kind: z.enum(["shell", "coin"]) });
  const response = await client.responses.parse({
    model: MODEL, input: QUESTION, temperature: 1.2,
    text: { format: zodTextFormat(Count, "count") },
  });
  assert.ok(["shell", "coin"].includes(response.output_parsed.kind));
});

test("a thought as its summary, streamed", async () => {
  let summary = "";
  const stream = await client.responses.create({
    model: MODEL, input: QUESTION, stream: true, temperature: 0,
    reasoning: { effort: "low", summary: "auto" }, thinking_token_budget: 8,
  });
  for await (const event of stream) {
    if (event.type === "response.reasoning_summary_text.delta") summary += event.delta;
    if (event.type === "response.completed") {
      assert.equal(event.response.output[0].summary[0].text, summary);
    }
  }
  assert.ok(summary.length > 0);
});

test("a chat whole and streamed", async () => {
  const asked = {
    model: MODEL, messages: [{ role: "user", content: QUESTION }], temperature: 0,
  };
  const whole = await client.chat.completions.create(asked);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
});

test("a response in the background", async () => {
  const asked = { model: MODEL, input: QUESTION, temperature: 0 };
  const whole = await client.responses.create(asked);
  let response = await client.responses.create({ ...asked, background: true });
  const end = Date.now() + 30_000;
  while (["queued", "in_progress"].includes(response.status)) {
    assert.ok(Date.now() < end, `${response.status} after 30 s`);
    response = await client.responses.retrieve(response.id);
  }
  assert.equal(response.status, "completed");
  assert.equal(response.output_text, whole.output_text);
});

test("errors have their types", async () => {
  await assert.rejects(
    client.responses.create({ model: MODEL, input: "Hi", conversation: "conv_1" }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "conversation",
  );
});
