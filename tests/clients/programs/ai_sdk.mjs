// An agent of the AI SDK with a function and the code interpreter.

import { openai } from "@ai-sdk/openai";
import { ToolLoopAgent, tool } from "ai";
import { z } from "zod";

const [question, nextQuestion] = process.argv.slice(2);

const agent = new ToolLoopAgent({
  model: openai("gpt-5"),
  instructions: "Answer questions about the weather.",
  tools: {
    get_weather: tool({
      description: "The weather in a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `21 degrees in ${city}`,
    }),
    code_interpreter: openai.tools.codeInterpreter({}),
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
