// Sends and receives until the standard input ends, as ../java/Steady.java does.
const DELAY_MS = 2_000;
const JOIN_MS = 120_000;

const numberOf = (half) => Number(half.split(' ')[1]);
const isCommitted = (half) => numberOf(half) % 4 === 0 || numberOf(half) % 8 === 2;
const timeOf = (due) => Number(due.split(' ')[2]);

// Only of messages whose send succeeded: another one may have been stored later.
function disorder(first, sent) {
  const last = new Map();
  const wrong = [];
  for (const body of first) {
    if (body.includes(' ') || !sent.has(body)) continue;
    const before = last.get(body % 8) ?? -1;
    if (Number(body) < before) wrong.push(`after ${before}: ${body}`);
    last.set(body % 8, Number(body));
  }
  return wrong;
}

export async function steady({ producer, consumer, message, topic, TransactionResolution, sleep, INVISIBLE_MS }) {
  const mixed = `${topic}-mixed`;
  const errors = { send: [], receive: [], ack: [] };
  const [sent, decided, seen, wrong] = [new Set(), new Set(), new Map(), []];
  const failed = (what, error) => errors[what].push(`${error}`.slice(0, 300));
  let isOver = false;
  let isAllSent = false;

  const check = async (one) => {
    const body = one.body.toString();
    decided.add(body);
    return isCommitted(body) ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
  };
  const sending = await producer({ check }, [topic, mixed]);

  async function sendGroup(number) {
    await sending.send(message(`${number}`, { messageGroup: `g${number % 8}` }));
    sent.add(`${number}`);
  }

  // Of four: one delayed, one committed, one rolled back, and one of which the check decides.
  async function sendMixed(number) {
    if (number % 4 === 3) {
      const body = `due ${number} ${Date.now() + DELAY_MS}`;
      await sending.send(message(body, { topic: mixed, deliveryTimestamp: new Date(timeOf(body)) }));
      sent.add(body);
      return;
    }
    const body = `half ${number}`;
    const begun = sending.beginTransaction();
    await sending.send(message(body, { topic: mixed }), begun);
    if (isCommitted(body)) sent.add(body);
    if (number % 4 === 2) return;
    decided.add(body);
    await (isCommitted(body) ? begun.commit() : begun.rollback());
  }

  async function repeat(step, pauseMs) {
    for (let number = 0; !isOver; number++) {
      await step(number).catch((error) => failed('send', error));
      await sleep(pauseMs);
    }
  }

  function see(body) {
    seen.set(body, (seen.get(body) ?? 0) + 1);
    if (body.startsWith('due') && Date.now() < timeOf(body)) wrong.push(`early: ${body}`);
    if (body.startsWith('half') && !(decided.has(body) && isCommitted(body))) wrong.push(`not committed: ${body}`);
  }

  const missing = () => [...sent].filter((body) => !seen.has(body));

  async function receive(from) {
    while (!isAllSent || missing().length) {
      try {
        for (const one of await from.receive(16, INVISIBLE_MS)) {
          see(one.body.toString());
          await from.ack(one).catch((error) => failed('ack', error));
        }
      } catch (error) {
        failed('receive', error);
        await sleep(100);
      }
    }
  }

  const senders = [repeat(sendGroup, 10), repeat(sendMixed, 50)];
  const receivers = [];
  for (const of of [topic, topic, mixed]) receivers.push(receive(await consumer('*', of)));
  while (seen.size < 100) await sleep(50);
  console.log('going');
  for await (const _ of process.stdin);
  isOver = true;
  await Promise.race([Promise.all(senders), sleep(JOIN_MS)]);
  isAllSent = true;
  await Promise.race([Promise.all(receivers), sleep(JOIN_MS)]);
  wrong.push(...disorder(seen.keys(), sent)); // in the order of their first delivery
  const again = [...seen.values()].reduce((sum, times) => sum + times - 1, 0);
  const committed = [...sent].filter((body) => body.startsWith('half'));
  return { sent: sent.size, missing: missing(), again, committed, wrong, ...errors };
}
