// An agent of the AI SDK with a function, and with the code interpreter where the API has hosted tools.

import { createAnthropic } from "@ai-sdk/anthropic";
import { openai } from "@ai-sdk/openai";
import { ToolLoopAgent, tool } from "ai";
import { z } from "zod";

const [question, nextQuestion, api] = process.argv.slice(2);

const anthropic = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1` });
const settings = {
  responses: { model: openai("gpt-5"), tools: { code_interpreter: openai.tools.codeInterpreter({}) } },
  chat: { model: openai.chat("gpt-5"), tools: {} },
  messages: {
    model: anthropic("claude-sonnet-4-5"),
    tools: { code_execution: anthropic.tools.codeExecution_20250825({}) },
  },
}[api];

const agent = new ToolLoopAgent({
  model: settings.model,
  instructions: "Answer questions about the weather.",
  tools: {
    get_weather: tool({
      description: "The weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `21 degrees in ${city}`,
    }),
    ...settings.tools,
  },
});

const atOnce = await agent.generate({ prompt: question });

const streaming = await agent.stream({ prompt: question });
const deltas = [];
for await (const delta of streaming.textStream) deltas.push(delta);

const history = [{ role: "user", content: question }, ...(await streaming.responseMessages)];
const nextRun = await agent.generate({ messages: [...history, { role: "user", content: nextQuestion }] });

console.log(
  JSON.stringify({
    answer: atOnce.text,
    calls: atOnce.steps.flatMap((step) => step.toolCalls.map((call) => call.toolName)),
    deltas,
    next_answer: nextRun.text,
  }),
);
