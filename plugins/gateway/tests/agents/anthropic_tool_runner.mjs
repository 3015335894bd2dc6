// Anthropic's tool runner for Node, which by default has the server keep the conversation.
import Anthropic from "@anthropic-ai/sdk";
import { readFileSync } from "node:fs";

const { messages } = JSON.parse(readFileSync(0, "utf8"));
const calculate = {
  name: "calculate",
  description: "Evaluates an arithmetic expression.",
  input_schema: { type: "object", properties: { expression: { type: "string" } } },
  parse: (input) => input,
  run: ({ expression }) => String(Function(`return ${expression}`)()),
};
const asked = { model: process.env.ANTHROPIC_MODEL, max_tokens: 4096, system: "Calculate.", messages };
const last = await new Anthropic().beta.messages.toolRunner({ ...asked, tools: [calculate] }).runUntilDone();
console.log(last.content.map((block) => block.text ?? "").join(""));
