// An agent on openai-node: chat completions with a function, and the code interpreter of the server.

import OpenAI from "openai";

const [question, nextQuestion] = process.argv.slice(2);

const client = new OpenAI();
const request = {
  model: "gpt-5",
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "The weather in a city.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        parse: JSON.parse,
        function: async ({ city }) => `21 degrees in ${city}`,
      },
    },
  ],
  "antwort:tools": [{ type: "code_interpreter", container: { type: "auto" } }],
};
const messages = [
  { role: "system", content: "Answer questions about the weather." },
  { role: "user", content: question },
];

const atOnce = client.chat.completions.runTools({ ...request, messages });
await atOnce.done();

const deltas = [];
const streaming = client.chat.completions.runTools({ ...request, messages, stream: true });
streaming.on("content", (delta) => deltas.push(delta));
await streaming.done();

const history = [...streaming.messages, { role: "user", content: nextQuestion }];
const nextRun = client.chat.completions.runTools({ ...request, messages: history });

console.log(
  JSON.stringify({
    answer: await atOnce.finalContent(),
    calls: atOnce.messages.flatMap((message) => message.tool_calls ?? []).map((call) => call.function.name),
    deltas,
    next_answer: await nextRun.finalContent(),
  }),
);
