// OpenAI's runTools for Node.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { messages } = JSON.parse(readFileSync(0, "utf8"));
const calculate = {
  name: "calculate",
  description: "Evaluates an arithmetic expression.",
  parameters: { type: "object", properties: { expression: { type: "string" } } },
  parse: JSON.parse,
  function: ({ expression }) => String(Function(`return ${expression}`)()),
};
const asked = { model: process.env.OPENAI_MODEL, messages, tools: [{ type: "function", function: calculate }] };
console.log(await new OpenAI().chat.completions.runTools(asked).finalContent());
