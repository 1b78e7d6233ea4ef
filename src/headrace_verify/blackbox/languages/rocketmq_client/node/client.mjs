// RocketMQ's official client for Node.js, told what to do as ../client.py: PACKAGES ENDPOINT GROUP.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const [packages, endpoints, group] = process.argv.slice(2);
const require = createRequire(join(packages, 'x.js'));
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const AWAIT_MS = 1_000;
const HELD_MAX = 5_000;
const logger = { info() {}, warn() {}, error() {}, debug() {} };
const config = { endpoints, namespace: '', logger };

// What the producer decides, also when it is asked; what another one has sent is left open.
const decisions = new Map();
const checker = {
  check: async (one) => decisions.get(one.body.toString('base64')) ?? TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

// One of each, by topic: a producer is asked about half messages of its topics.
function byTopic(make) {
  const made = new Map();
  return async (topic) => {
    if (!made.has(topic)) {
      const one = make(topic);
      await one.startup();
      made.set(topic, one);
    }
    return made.get(topic);
  };
}
const producerOf = byTopic((topic) => new Producer({ ...config, topics: [topic], checker }));
const consumerOf = byTopic((topic) => new SimpleConsumer({
  ...config, consumerGroup: group, subscriptions: new Map([[topic, '*']]), awaitDuration: AWAIT_MS,
}));

const held = new Map(); // receipt -> [consumer, message]

async function sendHalf(producer, message, detail) {
  const { COMMIT, ROLLBACK } = TransactionResolution;
  decisions.set(message.body.toString('base64'), detail.endsWith('commit') ? COMMIT : ROLLBACK);
  const begun = producer.beginTransaction();
  await producer.send(message, begun);
  const answer = { what: 'sent', offset: -1 };
  try {
    if (detail === 'commit') await begun.commit();
    if (detail === 'rollback') await begun.rollback();
  } catch (error) {
    return { ...answer, end: 'failed', error: `${error}` };
  }
  return answer;
}

const calls = {
  async send(kind, topic, text, detail) {
    const producer = await producerOf(topic);
    const message = { topic, body: Buffer.from(text, 'base64') };
    if (kind === 'half') return sendHalf(producer, message, detail);
    if (kind === 'ordered') message.messageGroup = detail;
    if (kind === 'delayed') message.deliveryTimestamp = new Date(Number(detail) * 1_000);
    return { what: 'sent', offset: (await producer.send(message)).offset };
  },
  async receive(topic, count, seconds) {
    const consumer = await consumerOf(topic);
    const messages = [];
    for (const one of await consumer.receive(Number(count), Number(seconds) * 1_000)) {
      held.set(one.receiptHandle, [consumer, one]);
      const body = one.body.toString('base64');
      messages.push([one.receiptHandle, one.messageGroup || null, one.keys[0] ?? null, one.deliveryAttempt, body]);
    }
    for (const receipt of [...held.keys()].slice(0, Math.max(held.size - HELD_MAX, 0))) held.delete(receipt);
    return { what: 'received', messages };
  },
  async ack(receipt) {
    const [consumer, message] = held.get(receipt);
    await consumer.ack(message);
    held.delete(receipt);
    return { what: 'settled' };
  },
  async renew(receipt, seconds) {
    const [consumer, message] = held.get(receipt);
    await consumer.changeInvisibleDuration(message, Number(seconds) * 1_000);
    return { what: 'settled' };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...words] = line.split(' ').filter(Boolean);
  const answer = await calls[name](...words).catch((error) => (
    { what: 'failed', code: typeof error.code === 'number' ? error.code : 0, error: `${error}` }));
  console.log(JSON.stringify(answer));
}
process.exit(0); // the library would go on for a while
