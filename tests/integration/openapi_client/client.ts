// A client whose types are generated from /openapi.json: it sends, receives and settles messages.
//
//   node client.js HOST:PORT
//
// The compiler checks each path, body and answer against the document. The last line of its output is
// {"values": [...], "settled": N, "problem": {...}}.
import createClient from 'openapi-fetch'
import type { components, paths } from './headrace.js'

declare const process: { argv: string[] }

const client = createClient<paths>({ baseUrl: `http://${process.argv[2]}` })

type Message = components['schemas']['ReceivedMessage']

async function main(): Promise<void> {
  const created = await client.POST('/v1/topics', { body: { name: 'typed', partitions: 2 } })
  if (created.error) throw new Error(created.error.detail)
  const path = { topic: 'typed', group: 'typed-group' }
  // A new group begins at the end of the topic.
  const empty = await client.POST('/v1/queues/{topic}/{group}/receive', { params: { path } })
  if (empty.error) throw new Error(empty.error.detail)
  const sent = await client.POST('/v1/topics/{topic}/records', {
    params: { path: { topic: 'typed' } },
    body: { records: [{ key: 'a', value: 'one' }, { key: 'b', value: 'two', headers: [['h', '1']] }] },
  })
  if (!sent.data?.results.every((result) => result.ok)) throw new Error(JSON.stringify(sent))
  const messages: Message[] = []
  let settled = 0
  while (messages.length < 2) {
    const received = await client.POST('/v1/queues/{topic}/{group}/receive', {
      params: { path },
      body: { max: 10, wait_ms: 1000 },
    })
    if (!received.data) throw new Error(received.error.detail)
    messages.push(...received.data.messages)
    if (received.data.messages.length === 0) continue
    const done = await client.POST('/v1/queues/{topic}/{group}/settle', {
      params: { path },
      body: { ack: received.data.messages.map((message) => message.receipt) },
    })
    settled += done.data?.results.filter((result) => result.ok).length ?? 0
  }
  const missing = await client.GET('/v1/topics/{topic}', { params: { path: { topic: 'none' } } })
  const values = messages.map((message) => message.value).sort()
  console.log(JSON.stringify({ values, settled, problem: missing.error }))
}

await main()
