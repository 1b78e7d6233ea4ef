// RocketMQ's official client for Node.js: ENDPOINT LANE TOPIC GROUP; see ../client.py.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { steady } from './steady.mjs';

const require = createRequire(join(process.env.NODE_CLIENTS, 'x.js'));
const { ConsumeResult, FilterExpression, LitePushConsumerImpl, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const [endpoints, lane, topic, group] = process.argv.slice(2);
const WAIT_MS = 40_000;
const INVISIBLE_MS = 15_000;
const logger = { info() {}, warn() {}, error() {}, debug() {} };
const { HEADRACE_ACCESS_KEY: accessKey, HEADRACE_ACCESS_SECRET: accessSecret } = process.env;
const sessionCredentials = accessKey ? { accessKey, accessSecret } : undefined;
const config = { endpoints, namespace: '', logger, sessionCredentials };

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function producer(checker, topics = [topic]) {
  const made = new Producer({ ...config, topics, checker });
  await made.startup();
  return made;
}

const message = (body, more = {}) => ({ topic, body: Buffer.from(body), ...more });

async function consumer(expression = '*', of = topic, consumerGroup = group) {
  const made = new SimpleConsumer({
    ...config, consumerGroup, subscriptions: new Map([[of, expression]]), awaitDuration: 5_000,
  });
  await made.startup();
  return made;
}

async function received(from, count, atOnce = 16) {
  const found = [];
  const end = Date.now() + WAIT_MS;
  while (found.length < count && Date.now() < end) {
    for (const one of await from.receive(atOnce, INVISIBLE_MS)) {
      found.push(one);
      await from.ack(one);
    }
  }
  return found;
}

const bodies = (messages) => messages.map((one) => one.body.toString());
const byGroup = (found) => Object.fromEntries(['a', 'b'].map((name) => [name, found.filter((one) => one[0] === name)]));

async function sendGroups() {
  const sending = await producer();
  for (let number = 0; number < 4; number++) {
    for (const messageGroup of ['a', 'b']) await sending.send(message(messageGroup + number, { messageGroup }));
  }
}

async function pushed(fails) {
  const seen = [];
  const made = new PushConsumer({
    ...config,
    consumerGroup: group,
    subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(one) {
        const body = one.body.toString();
        seen.push([body, one.deliveryAttempt]);
        return fails(body, one.deliveryAttempt) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await made.startup();
  return async (count) => {
    for (const end = Date.now() + WAIT_MS; seen.length < count && Date.now() < end;) await sleep(50);
    return seen.slice(0, count);
  };
}

const failsFirst = (body, attempt) => body === '1' && attempt === 1;

const lanes = {
  steady: () => steady({ producer, consumer, message, topic, TransactionResolution, sleep, INVISIBLE_MS }),

  async normal() {
    const sending = await producer();
    for (let number = 0; number < 10; number++) {
      const properties = new Map([['n', `${number}`]]);
      await sending.send(message(`${number}`, { tag: 't', keys: [`k${number}`], properties }));
    }
    const found = await received(await consumer(), 10);
    const shown = found.filter((one) => !one.corrupted).map((one) => [
      one.body.toString(), one.tag, one.keys[0], one.properties.get('n'), one.deliveryAttempt,
    ]);
    return { messages: shown.sort() };
  },

  async fifo() {
    await sendGroups();
    return byGroup(bodies(await received(await consumer(), 8)));
  },

  async delay() {
    const deliveryTimestamp = new Date(Date.now() + 3_000);
    await (await producer()).send(message('kept', { deliveryTimestamp }));
    const messages = bodies(await received(await consumer(), 1));
    const late = Date.now() - deliveryTimestamp;
    return { messages, is_early: late < 0, is_late: late > 2_000 };
  },

  async recall() {
    const sending = await producer();
    const due = Date.now() + 2_000;
    const recalled = await sending.send(message('recalled', { deliveryTimestamp: new Date(due) }));
    await sending.recallMessage(topic, recalled.recallHandle);
    await sending.send(message('kept', { deliveryTimestamp: new Date(due + 1_000) }));
    return { messages: bodies(await received(await consumer(), 1)) };
  },

  async transaction() {
    const sending = await producer({ check: async () => TransactionResolution.COMMIT });
    for (const body of ['committed', 'rolled back', 'checked']) {
      const begun = sending.beginTransaction();
      await sending.send(message(body), begun);
      if (body === 'committed') await begun.commit();
      if (body === 'rolled back') await begun.rollback();
    }
    return { messages: bodies(await received(await consumer(), 2)).sort() };
  },

  async filters() {
    const sending = await producer();
    for (const [number, tag] of [...'abca'].entries()) await sending.send(message(`${number}`, { tag }));
    return { messages: bodies(await received(await consumer('a || b'), 3)).sort() };
  },

  async sql() {
    const sending = await producer();
    for (let number = 0; number < 4; number++) {
      await sending.send(message(`${number}`, { tag: 't', properties: new Map([['n', `${number}`]]) }));
    }
    const filter = new FilterExpression("n > 1 AND TAGS = 't'", FilterType.SQL);
    return { messages: bodies(await received(await consumer(filter), 2)).sort() };
  },

  async priority() {
    const sending = await producer();
    for (const priority of [1, 5, 9, 3]) await sending.send(message(`${priority}`, { priority }));
    const found = await received(await consumer(), 4, 1);
    return { messages: found.map((one) => [one.body.toString(), one.priority]) };
  },

  async push() {
    const sending = await producer();
    for (let number = 0; number < 3; number++) await sending.send(message(`${number}`));
    return { seen: (await (await pushed(failsFirst))(4)).sort() };
  },

  async push_fifo() {
    await sendGroups();
    const seen = await (await pushed(failsFirst))(8);
    return byGroup(seen.map(([body]) => body));
  },

  async lite() {
    const sending = await producer();
    for (let number = 0; number < 4; number++) {
      for (const liteTopic of ['a', 'b', 'c']) await sending.send(message(liteTopic + number, { liteTopic }));
    }
    const found = [];
    const messageListener = {
      async consume(one) {
        found.push(one.body.toString());
        return ConsumeResult.SUCCESS;
      },
    };
    const consuming = new LitePushConsumerImpl({ ...config, consumerGroup: group, bindTopic: topic, messageListener });
    await consuming.startup();
    const came = async (count) => {
      for (const end = Date.now() + WAIT_MS; found.length < count && Date.now() < end;) await sleep(50);
    };
    for (const name of ['a', 'b']) await consuming.subscribeLite(name);
    await came(8);
    await consuming.unsubscribeLite('b');
    for (const liteTopic of ['b', 'a']) await sending.send(message(`${liteTopic}4`, { liteTopic }));
    await came(9);
    return Object.fromEntries(['a', 'b', 'c'].map((name) => [name, found.filter((one) => one[0] === name)]));
  },

  async dead() {
    await (await producer()).send(message('poison', { tag: 't' }));
    const seen = await (await pushed(() => true))(2);
    let letters = [];
    for (const end = Date.now() + WAIT_MS; !letters.length && Date.now() < end;) {
      try {
        letters = await received(await consumer('*', `%DLQ%${group}`, `${group}-undertaker`), 1);
      } catch {
        await sleep(500); // there is no such topic yet
      }
    }
    return { attempts: seen.map(([, attempt]) => attempt), letters: letters.map((one) => [one.body.toString(), one.tag]) };
  },
};

const shown = JSON.stringify(await lanes[lane]());
// Not before all of it is written; what the client still does would take a while.
process.stdout.write(`${shown}\n`, () => process.exit(0));
