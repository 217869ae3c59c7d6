// What users of the npm package `openai` do, against a server: `client.mjs URL CASE...` prints what
// the client gave them in each case, as JSON. tests/server/test_npm_client.py says what is right.
import OpenAI, { APIError } from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

const [baseURL, ...names] = process.argv.slice(2);
const { completions } = new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0, timeout: 60_000 }).chat;

const question = {
  model: 'alias',
  messages: [{ role: 'user', content: 'What is the capital of Japan?' }],
  temperature: 0,
  max_tokens: 32,
};
const weather = {
  type: 'function',
  function: {
    name: 'weather',
    parameters: {
      type: 'object',
      properties: { city: { enum: ['Rome', 'Bonn'] } },
      required: ['city'],
      additionalProperties: false,
    },
  },
};
const time = { type: 'function', function: { name: 'time' } };
const withTools = (tool_choice) => ({
  ...question,
  max_tokens: 100,
  tools: [weather, time],
  tool_choice,
  parallel_tool_calls: false,
});

const summary = ({ choices: [{ message, finish_reason }] }) => ({
  content: message.content,
  calls: (message.tool_calls ?? []).map(({ id, type, function: { name, arguments: text } }) => ({
    hasId: id.startsWith('call_'),
    type,
    name,
    arguments: JSON.parse(text),
  })),
  finish_reason,
});

/** What the stream helper ends with, beside what its events and chunks said on the way. */
async function streamed(body) {
  const stream = completions.stream({ ...body, stream_options: { include_usage: true } });
  const pieces = { content: [], arguments: [] };
  const done = [];
  stream.on('content.delta', ({ delta }) => pieces.content.push(delta));
  stream.on('tool_calls.function.arguments.delta', (event) =>
    pieces.arguments.push(event.arguments_delta),
  );
  stream.on('tool_calls.function.arguments.done', (event) =>
    done.push([event.index, event.name, event.arguments]),
  );
  const final = await stream.finalChatCompletion();
  return { ...summary(final), pieces, done, usage: await stream.totalUsage() };
}

const cases = {
  async chat() {
    const completion = await completions.create(question);
    return { ...summary(completion), model: completion.model, usage: completion.usage };
  },
  async chunks() {
    const chunks = [];
    for await (const chunk of await completions.create({ ...question, stream: true })) {
      chunks.push(chunk.choices[0]);
    }
    return {
      content: chunks.map(({ delta }) => delta.content ?? '').join(''),
      finish_reasons: chunks.map(({ finish_reason }) => finish_reason),
    };
  },
  streamed: () => streamed(question),
  auto: async () => summary(await completions.create(withTools('auto'))),
  autoStreamed: () => streamed(withTools('auto')),
  required: async () => summary(await completions.create(withTools('required'))),
  requiredStreamed: () => streamed(withTools('required')),
  named: async () =>
    summary(await completions.create(withTools({ type: 'function', function: { name: 'time' } }))),
  async results() {
    const body = withTools('auto');
    const { message } = (await completions.create(body)).choices[0];
    const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'sun' };
    const messages = [...body.messages, message, result];
    return summary(await completions.create({ ...body, messages, tool_choice: 'none' }));
  },
  async parsed() {
    const Capital = z.object({ city: z.enum(['Tokyo', 'Paris']), is_large: z.boolean() });
    const format = zodResponseFormat(Capital, 'capital');
    const completion = await completions.parse({ ...question, response_format: format });
    return completion.choices[0].message.parsed;
  },
  async error() {
    try {
      await completions.create({ ...question, temperature: -1 });
    } catch (error) {
      const { status, type, param, code, message } = error;
      const classes = [error instanceof OpenAI.BadRequestError, error instanceof APIError];
      return { classes, status, type, param, code, message };
    }
  },
};

console.log(JSON.stringify(await Promise.all(names.map((name) => cases[name]()))));
