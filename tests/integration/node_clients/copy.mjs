// Consume, transform, produce in transactions: one program, two client libraries.
//
//   node copy.mjs LIBRARY --bootstrap HOST:PORT --in TOPIC --out TOPIC --group G --id TRANSACTIONAL_ID
//
// It copies until it has committed --ends records whose value is "end". Each transaction takes at
// most --batch records; each --abort-every-th is aborted, and its records are copied by the next
// one. The last line of its output is {"commits": N, "aborts": N}.
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { parseArgs } from 'node:util'

// Node.js 22 has it; @platformatic/kafka needs nothing else of 22 here.
Promise.withResolvers ??= function () {
  const made = {}
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

// The packages are in a cache, not beside this file.
const load = createRequire(join(process.env.NODE_CLIENTS, 'package.json'))

const { values: flags, positionals: [library] } = parseArgs({
  allowPositionals: true,
  options: {
    bootstrap: { type: 'string' }, in: { type: 'string' }, out: { type: 'string' },
    group: { type: 'string' }, id: { type: 'string' },
    batch: { type: 'string', default: '10' },
    'abort-every': { type: 'string', default: '0' },
    ends: { type: 'string', default: '2' },
  },
})
const [batchSize, abortEvery, endsWanted] = ['batch', 'abort-every', 'ends'].map(name => Number(flags[name]))
// A member that is killed holds its partitions for this long.
const session = { sessionTimeout: 6000, heartbeatInterval: 1500, rebalanceTimeout: 10_000 }
const done = { commits: 0, aborts: 0 }
let endsCommitted = 0
const allCommitted = Promise.withResolvers()

/** Copies a batch with `attempt(records, commit)`, after aborting it first where that is due. */
async function copy (records, attempt) {
  if (abortEvery > 0 && (done.commits + done.aborts + 1) % abortEvery === 0) {
    await attempt(records, false)
    done.aborts++
  }
  await attempt(records, true)
  done.commits++
  endsCommitted += records.filter(({ value }) => String(value) === 'end').length
  if (endsCommitted >= endsWanted) allCommitted.resolve()
}

async function withKafkaJs () {
  const { Kafka, logLevel } = load('kafkajs')
  const kafka = new Kafka({ brokers: [flags.bootstrap], logLevel: logLevel.ERROR })
  const producer = kafka.producer({ transactionalId: flags.id, idempotent: true, maxInFlightRequests: 1 })
  const consumer = kafka.consumer({ groupId: flags.group, readUncommitted: false, ...session })
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topic: flags.in, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      try {
        for (let at = 0; at < batch.messages.length && isRunning() && !isStale(); at += batchSize) {
          const records = batch.messages.slice(at, at + batchSize)
          const next = String(BigInt(records.at(-1).offset) + 1n)
          await copy(records, async (records, commit) => {
            const transaction = await producer.transaction()
            await transaction.send({ topic: flags.out, messages: records.map(({ key, value }) => ({ key, value })) })
            await transaction.sendOffsets({
              consumerGroupId: flags.group,
              topics: [{ topic: batch.topic, partitions: [{ partition: batch.partition, offset: next }] }],
            })
            await (commit ? transaction.commit() : transaction.abort())
          })
          resolveOffset(records.at(-1).offset)
          await heartbeat()
        }
      } catch (error) {
        allCommitted.reject(error)
        throw error
      }
    },
  })
  await allCommitted.promise
  await consumer.disconnect()
  await producer.disconnect()
}

async function withPlatformatic () {
  const { Consumer, Producer } = load('@platformatic/kafka')
  const shared = { clientId: flags.id, bootstrapBrokers: [flags.bootstrap] }
  const producer = new Producer({ ...shared, idempotent: true, transactionalId: flags.id })
  const consumer = new Consumer({ ...shared, groupId: flags.group, isolationLevel: 'READ_COMMITTED', ...session })
  await consumer.joinGroup()
  const stream = await consumer.consume({
    topics: [flags.in], mode: 'committed', fallbackMode: 'earliest', autocommit: false, maxWaitTime: 100,
  })
  const waiting = []
  let ending = false
  stream.on('error', allCommitted.reject)
  stream.on('data', message => { waiting.push(message) })
  const copied = (async () => {
    while (!ending) {
      const records = waiting.splice(0, batchSize)
      if (records.length === 0) {
        await new Promise(resolve => setTimeout(resolve, 20))
        continue
      }
      await copy(records, async (records, commit) => {
        const transaction = await producer.beginTransaction()
        await transaction.addConsumer(consumer)
        await transaction.send({ messages: records.map(({ key, value }) => ({ topic: flags.out, key, value })) })
        const latest = new Map(records.map(record => [record.partition, record]))
        for (const record of latest.values()) await transaction.addOffset(record)
        await (commit ? transaction.commit() : transaction.abort())
      })
    }
  })().catch(allCommitted.reject)
  await allCommitted.promise
  ending = true
  await copied
  await stream.close()
  await consumer.close(true)
  await producer.close()
}

const libraries = { kafkajs: withKafkaJs, platformatic: withPlatformatic }
try {
  await libraries[library]()
  console.log(JSON.stringify(done))
  process.exit(0)
} catch (error) {
  console.error(error)
  process.exit(1)
}
