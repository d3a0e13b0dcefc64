// An agent of @openai/agents that hands over to one with a function and the code interpreter. No model is named.
// Chat completions of the SDK have no hosted tools.

import { Agent, codeInterpreterTool, run, setOpenAIAPI, tool } from "@openai/agents";
import { z } from "zod";

const [question, nextQuestion, api] = process.argv.slice(2);

setOpenAIAPI(api === "chat" ? "chat_completions" : "responses");

const getWeather = tool({
  name: "get_weather",
  description: "The weather in a city.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `21 degrees in ${city}`,
});
const forecaster = new Agent({
  name: "forecaster",
  instructions: "Answer questions about the weather.",
  tools: api === "chat" ? [getWeather] : [getWeather, codeInterpreterTool()],
});
const triage = Agent.create({
  name: "triage",
  instructions: "Hand over to an expert.",
  handoffs: [forecaster],
});

const atOnce = await run(triage, question);

const streaming = await run(triage, question, { stream: true });
const deltas = [];
for await (const event of streaming) {
  if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") {
    deltas.push(event.data.delta);
  }
}
await streaming.completed;

const nextRun = await run(streaming.lastAgent, [...streaming.history, { role: "user", content: nextQuestion }]);

console.log(
  JSON.stringify({
    answer: atOnce.finalOutput,
    calls: atOnce.newItems
      .filter((item) => ["handoff_call_item", "tool_call_item"].includes(item.type))
      .map((item) => item.rawItem.name),
    deltas,
    next_answer: nextRun.finalOutput,
  }),
);
