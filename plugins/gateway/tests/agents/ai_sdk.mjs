// Vercel's AI SDK: `chat|responses generate|stream|object`.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { readFileSync } from "node:fs";
import { z } from "zod";

const prompt = JSON.parse(readFileSync(0, "utf8")).messages.at(-1).content;
const [, , api, how] = process.argv;
const access = { baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY };
const compatible = { ...access, name: "toolrl", supportsStructuredOutputs: true };
const model = api === "responses" ? createOpenAI(access)("agent") : createOpenAICompatible(compatible)("agent");
const calculate = tool({
  description: "Evaluates an arithmetic expression.",
  inputSchema: z.object({ expression: z.string() }),
  execute: async ({ expression }) => String(Function(`return ${expression}`)()),
});
const asked = { model, prompt, tools: { calculate }, stopWhen: stepCountIs(8) };
if (how === "object") {
  const { object } = await generateObject({ model, prompt, schema: z.object({ value: z.number() }) });
  console.log(object.value);
} else if (how === "stream") {
  let text = "";
  for await (const part of streamText(asked).textStream) text += part;
  console.log(text);
} else console.log((await generateText(asked)).text);
