// A three-turn tool loop with openai-node over WebSocket. Prints one JSON line: what it saw.
//   node tool_loop.mjs BASE_URL MODEL QUESTION FILES
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [baseURL, model, question, files] = process.argv.slice(2);
const notes = JSON.parse(files);
const tools = [
  { name: 'read_file', properties: { path: { type: 'string' } } },
  { name: 'word_count', properties: { text: { type: 'string' } } },
].map(({ name, properties }) => ({
  type: 'function',
  name,
  strict: false,
  parameters: { type: 'object', properties, required: Object.keys(properties) },
}));
const run = {
  read_file: ({ path }) => notes[path] ?? `no such file: ${path}`,
  word_count: ({ text }) => String(text.split(/\s+/).filter(Boolean).length),
};

const ws = new ResponsesWS(new OpenAI({ baseURL, apiKey: 'sk-node-test-0123456789' }));
const seen = { turns: [], events: [], errors: [] };
let streamed = '';

ws.on('error', (error) => {
  seen.errors.push(String(error));
  ws.close({ code: 1000, reason: 'failed' });
});
ws.on('event', (event) => seen.events.push(event.type));
ws.on('response.output_text.delta', (event) => (streamed += event.delta));
ws.on('response.completed', ({ response }) => {
  const calls = response.output.filter((item) => item.type === 'function_call');
  seen.turns.push({
    id: response.id,
    previous: response.previous_response_id,
    calls: calls.map(({ name, arguments: raw }) => [name, JSON.parse(raw)]),
    streamed,
    input_tokens: response.usage.input_tokens,
  });
  streamed = '';
  if (calls.length === 0) {
    ws.close({ code: 1000, reason: 'done' });
    return;
  }
  create({
    previous_response_id: response.id,
    input: calls.map((call) => ({
      type: 'function_call_output',
      call_id: call.call_id,
      output: run[call.name](JSON.parse(call.arguments)),
    })),
  });
});
ws.on('close', () => {
  console.log(JSON.stringify(seen));
});

function create(turn) {
  // Instructions are not inherited: a client that leaves them out once has changed its prompt.
  const instructions = 'Use the tools.';
  ws.send({ type: 'response.create', model, tools, instructions, store: false, ...turn });
}

create({ input: [{ role: 'user', content: question }] });
