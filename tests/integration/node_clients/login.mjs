// Logs in by SASL and asks for the brokers: one program, two client libraries.
//
//   SASL_USER=U SASL_PASSWORD=P node login.mjs LIBRARY MECHANISM HOST:PORT
//
// The last line of its output is {"brokers": N} or {"error": "..."}.
import { createRequire } from 'node:module'
import { join } from 'node:path'

Promise.withResolvers ??= function () {
  const made = {}
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }))
  return made
}

const load = createRequire(join(process.env.NODE_CLIENTS, 'package.json'))
const [library, mechanism, bootstrap] = process.argv.slice(2)
const { SASL_USER: username, SASL_PASSWORD: password } = process.env

async function withKafkaJs () {
  const { Kafka, logLevel } = load('kafkajs')
  const kafka = new Kafka({
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    sasl: { mechanism: mechanism.toLowerCase(), username, password }
  })
  const admin = kafka.admin()
  await admin.connect()
  const { brokers } = await admin.describeCluster()
  await admin.disconnect()
  return brokers.length
}

async function withPlatformatic () {
  const { Admin } = load('@platformatic/kafka')
  const admin = new Admin({
    clientId: 'login', bootstrapBrokers: [bootstrap], sasl: { mechanism, username, password }
  })
  const { brokers } = await admin.metadata({ topics: [] })
  await admin.close()
  return brokers.size
}

/** All messages of an error and its causes. */
function texts (error) {
  const causes = [error.cause, ...(error.errors ?? [])].filter(Boolean)
  return [error.message, ...causes.flatMap(texts)]
}

try {
  console.log(JSON.stringify({ brokers: await ({ kafkajs: withKafkaJs, platformatic: withPlatformatic })[library]() }))
} catch (error) {
  console.log(JSON.stringify({ error: texts(error).join('; ') }))
}
process.exit(0)
