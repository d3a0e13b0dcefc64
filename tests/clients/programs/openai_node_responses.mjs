// An agent on openai-node: the Responses API with a function and the code interpreter.

import OpenAI from "openai";

const [question, nextQuestion] = process.argv.slice(2);

const client = new OpenAI();
const request = {
  model: "gpt-5",
  instructions: "Answer questions about the weather.",
  tools: [
    {
      type: "function",
      name: "get_weather",
      description: "The weather in a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string" } },
        required: ["city"],
        additionalProperties: false,
      },
      strict: true,
    },
    { type: "code_interpreter", container: { type: "auto" } },
  ],
};

// Ask, call the function as long as the model wants it, and return the answer, the calls and the last response.
async function answer(input, previous, respond) {
  const calls = [];
  for (;;) {
    const response = await respond({ ...request, input, previous_response_id: previous });
    calls.push(...response.output.filter((item) => ["function_call", "code_interpreter_call"].includes(item.type)));
    const functions = response.output.filter((item) => item.type === "function_call");
    if (functions.length === 0) return { text: response.output_text, calls, id: response.id };
    previous = response.id;
    input = functions.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: `21 degrees in ${JSON.parse(call.arguments).city}`,
    }));
  }
}

const deltas = [];
const atOnce = await answer(question, undefined, (body) => client.responses.create(body));
const streamed = await answer(question, undefined, (body) =>
  client.responses
    .stream(body)
    .on("response.output_text.delta", (event) => deltas.push(event.delta))
    .finalResponse(),
);
const nextRun = await answer(nextQuestion, streamed.id, (body) => client.responses.create(body));

console.log(
  JSON.stringify({
    answer: atOnce.text,
    calls: atOnce.calls.map((call) => call.name ?? call.type),
    deltas,
    next_answer: nextRun.text,
  }),
);
