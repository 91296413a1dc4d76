// A three-turn tool loop with the Vercel AI SDK over HTTP. Prints one JSON line: what it saw.
//   node ai_sdk.mjs generate|stream BASE_URL MODEL QUESTION FILES
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, isStepCount, jsonSchema, streamText, tool } from 'ai';

const [how, baseURL, model, question, files] = process.argv.slice(2);
const notes = JSON.parse(files);

function declare(description, argument, execute) {
  const properties = { [argument]: { type: 'string' } };
  const schema = { type: 'object', properties, required: [argument] };
  return tool({ description, inputSchema: jsonSchema(schema), execute });
}

const request = {
  model: createOpenAI({ baseURL, apiKey: 'sk-ai-sdk-test-0123456789' })(model),
  instructions: 'Use the tools.',
  prompt: question,
  tools: {
    read_file: declare('Reads a file.', 'path', ({ path }) => notes[path]),
    word_count: declare('Counts words.', 'text', ({ text }) => String(text.split(/\s+/).length)),
  },
  stopWhen: isStepCount(5),
  maxRetries: 0,
  // By default it counts on the server to have stored its items, and sends references to them.
  providerOptions: { openai: { store: false } },
};

const errors = [];
const result =
  how === 'stream'
    ? streamText({ ...request, onError: ({ error }) => errors.push(String(error)) })
    : await generateText(request);
let streamed = '';
if (how === 'stream') {
  for await (const delta of result.textStream) streamed += delta;
}
const steps = (await result.steps).map((step) => ({
  ended: step.finishReason,
  calls: step.toolCalls.map(({ toolName, input }) => [toolName, input]),
  reasoning: step.reasoningText ?? null,
  text: step.text,
}));
console.log(JSON.stringify({ text: await result.text, streamed, steps, errors }));
