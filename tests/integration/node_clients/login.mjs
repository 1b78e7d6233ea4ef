// Enters a secured listener, or asks for the brokers: one program, two client libraries.
//
//   SASL_USER=U SASL_PASSWORD=P node login.mjs LIBRARY MECHANISM HOST:PORT [TOPIC CA [CERT KEY]]
//
// LIBRARY is a package of package.json. MECHANISM is one of SASL, or "none"; for OAUTHBEARER the password is the token. With a topic, it
// writes a record over TLS and reads one. The last line of its output is {"brokers": N} or
// {"read": "..."} or {"error": "..."}.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'

Promise.withResolvers ??= function () {
  const made = {}
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

const load = createRequire(join(process.env.NODE_CLIENTS, 'package.json'))
const [library, mechanism, bootstrap, topic, ...files] = process.argv.slice(2)
const { SASL_USER: username, SASL_PASSWORD: password } = process.env
const [ca, cert, key] = files.map(file => readFileSync(file))
const tls = ca && { ca: [ca], cert, key }

function kafkaJs () {
  const { Kafka, logLevel } = load(library)
  const sasl = mechanism === 'OAUTHBEARER'
    ? { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: password }) }
    : { mechanism: mechanism.toLowerCase(), username, password }
  return new Kafka({
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    sasl: mechanism === 'none' ? undefined : sasl,
    ssl: tls
  })
}

async function withKafkaJs () {
  const admin = kafkaJs().admin()
  await admin.connect()
  const { brokers } = await admin.describeCluster()
  await admin.disconnect()
  return { brokers: brokers.length }
}

async function copyWithKafkaJs () {
  const kafka = kafkaJs()
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ value: 'v' }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: topic })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  return new Promise((resolve, reject) => consumer.run({
    eachMessage: async ({ message }) => resolve({ read: message.value.toString() })
  }).catch(reject))
}

function platformatic () {
  const oauth = { mechanism, token: password }
  const sasl = mechanism === 'OAUTHBEARER' ? oauth : { mechanism, username, password }
  return {
    clientId: 'login', bootstrapBrokers: [bootstrap], sasl: mechanism === 'none' ? undefined : sasl, tls
  }
}

async function withPlatformatic () {
  const { Admin } = load('@platformatic/kafka')
  const admin = new Admin(platformatic())
  const { brokers } = await admin.metadata({ topics: [] })
  await admin.close()
  return { brokers: brokers.size }
}

async function copyWithPlatformatic () {
  const { Consumer, MessagesStreamModes, Producer } = load('@platformatic/kafka')
  const producer = new Producer(platformatic())
  await producer.send({ messages: [{ topic, value: Buffer.from('v') }] })
  await producer.close()
  const consumer = new Consumer({ ...platformatic(), groupId: topic })
  const stream = await consumer.consume({ topics: [topic], mode: MessagesStreamModes.EARLIEST })
  for await (const message of stream) return { read: message.value.toString() }
}

/** All messages of an error and its causes. */
function texts (error) {
  const causes = [error.cause, ...(error.errors ?? [])].filter(Boolean)
  return [error.message, ...causes.flatMap(texts)]
}

const asking = { kafkajs: withKafkaJs, platformatic: withPlatformatic }
const copying = { kafkajs: copyWithKafkaJs, platformatic: copyWithPlatformatic }
const family = library.split('-')[0] // kafkajs-oldest is a version of kafkajs
try {
  console.log(JSON.stringify(await (topic ? copying : asking)[family]()))
} catch (error) {
  console.log(JSON.stringify({ error: texts(error).join('; ') }))
}
process.exit(0)
