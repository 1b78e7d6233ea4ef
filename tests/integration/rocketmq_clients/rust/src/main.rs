// RocketMQ's official client for Rust: ENDPOINT LANE TOPIC GROUP; see ../../client.py.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};

const WAIT: Duration = Duration::from_secs(40);
const INVISIBLE: Duration = Duration::from_secs(15);
const SHORTEST: Duration = Duration::from_secs(10);

type Shown = Result<Value, Box<dyn Error>>;

/// What the program was asked for.
struct Asked {
    endpoint: String,
    topic: String,
    group: String,
}

impl Asked {
    fn options(&self) -> ClientOption {
        let mut made = ClientOption::default();
        made.set_access_url(&self.endpoint);
        made.set_timeout(WAIT); // a slow machine may need more than 3 s, the default
        let of = |name: &str| std::env::var(name).ok();
        if let (Some(key), Some(secret)) = (of("HEADRACE_ACCESS_KEY"), of("HEADRACE_ACCESS_SECRET")) {
            made.set_access_key(key);
            made.set_secret_key(secret);
        }
        made
    }

    fn of_producer(&self) -> ProducerOption {
        let mut made = ProducerOption::default();
        made.set_topics(vec![&self.topic]);
        made
    }

    async fn producer(&self) -> Result<Producer, Box<dyn Error>> {
        let mut made = Producer::new(self.of_producer(), self.options())?;
        made.start().await?;
        Ok(made)
    }

    fn message(&self, body: &str) -> MessageBuilder {
        MessageBuilder::builder()
            .set_topic(&self.topic)
            .set_body(body.as_bytes().to_vec())
    }

    async fn consumer(&self, topic: &str, group: &str) -> Result<SimpleConsumer, Box<dyn Error>> {
        let mut options = SimpleConsumerOption::default();
        options.set_topics(vec![topic]);
        options.set_consumer_group(group);
        let mut made = SimpleConsumer::new(options, self.options())?;
        made.start().await?;
        Ok(made)
    }

    /// Receive and acknowledge so many messages.
    async fn received(
        &self,
        count: usize,
        filter: &FilterExpression,
    ) -> Result<Vec<MessageView>, Box<dyn Error>> {
        let consumer = self.consumer(&self.topic, &self.group).await?;
        received(&consumer, &self.topic, count, filter).await
    }

    async fn send_groups(&self) -> Result<(), Box<dyn Error>> {
        let sending = self.producer().await?;
        for number in 0..4 {
            for group in ["a", "b"] {
                let made = self.message(&format!("{group}{number}")).set_message_group(group);
                sending.send(made.build()?).await?;
            }
        }
        Ok(())
    }
}

fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

async fn received(
    from: &SimpleConsumer,
    topic: &str,
    count: usize,
    filter: &FilterExpression,
) -> Result<Vec<MessageView>, Box<dyn Error>> {
    let mut found = Vec::new();
    let begun = Instant::now();
    while found.len() < count && begun.elapsed() < WAIT {
        for one in from.receive_with(topic, filter, 16, INVISIBLE).await? {
            from.ack(&one).await?;
            found.push(one);
        }
    }
    Ok(found)
}

fn body(one: &MessageView) -> String {
    String::from_utf8_lossy(one.body()).into_owned()
}

fn sorted(messages: &[MessageView]) -> Vec<String> {
    let mut found: Vec<String> = messages.iter().map(body).collect();
    found.sort();
    found
}

async fn normal(asked: &Asked) -> Shown {
    let sending = asked.producer().await?;
    for number in 0..10 {
        let made = asked
            .message(&number.to_string())
            .set_tag("t")
            .set_keys(vec![format!("k{number}")])
            .set_properties([("n", number.to_string())].into());
        sending.send(made.build()?).await?;
    }
    let mut found = asked.received(10, &all()).await?;
    found.sort_by_key(body);
    let rows: Vec<Value> = found
        .iter()
        .map(|one| json!([body(one), one.tag(), one.keys()[0], one.properties()["n"], one.delivery_attempt()]))
        .collect();
    Ok(json!({ "messages": rows }))
}

async fn batch(asked: &Asked) -> Shown {
    let sending = asked.producer().await?;
    let made: Result<Vec<_>, _> = (0..10).map(|number| asked.message(&number.to_string()).build()).collect();
    let receipts = sending.batch_send(made?).await?;
    let found = asked.received(10, &all()).await?;
    Ok(json!({ "receipts": receipts.len(), "messages": sorted(&found) }))
}

async fn fifo(asked: &Asked) -> Shown {
    asked.send_groups().await?;
    let found: Vec<String> = asked.received(8, &all()).await?.iter().map(body).collect();
    let of = |group: &str| found.iter().filter(|one| one.starts_with(group)).collect::<Vec<_>>();
    Ok(json!({ "a": of("a"), "b": of("b") }))
}

async fn delay(asked: &Asked) -> Shown {
    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).map(|time| time.as_secs_f64());
    let due_s = now_s()?.floor() + 3.0;
    let made = asked.message("kept").set_delivery_timestamp(due_s as i64);
    asked.producer().await?.send(made.build()?).await?;
    let found = sorted(&asked.received(1, &all()).await?);
    let at_s = now_s()?;
    Ok(json!({ "messages": found, "is_early": at_s < due_s, "is_late": at_s > due_s + 2.0 }))
}

async fn transaction(asked: &Asked) -> Shown {
    let commits = Box::new(|_id: String, _message: MessageView| TransactionResolution::COMMIT);
    let mut sending = Producer::new_transaction_producer(asked.of_producer(), asked.options(), commits)?;
    sending.start().await?;
    for text in ["committed", "rolled back", "checked"] {
        let made = MessageBuilder::transaction_message_builder(&asked.topic, text.as_bytes().to_vec());
        let begun = sending.send_transaction_message(made.build()?).await?;
        match text {
            "committed" => begun.commit().await?,
            "rolled back" => begun.rollback().await?,
            _ => (),
        }
    }
    Ok(json!({ "messages": sorted(&asked.received(2, &all()).await?) }))
}

async fn filters(asked: &Asked) -> Shown {
    let sending = asked.producer().await?;
    for (number, tag) in ["a", "b", "c", "a"].into_iter().enumerate() {
        sending.send(asked.message(&number.to_string()).set_tag(tag).build()?).await?;
    }
    let filter = FilterExpression::new(FilterType::Tag, "a || b");
    Ok(json!({ "messages": sorted(&asked.received(3, &filter).await?) }))
}

async fn sql(asked: &Asked) -> Shown {
    let sending = asked.producer().await?;
    for number in 0..4 {
        let text = number.to_string();
        let made = asked.message(&text).set_tag("t").set_properties([("n", text)].into());
        sending.send(made.build()?).await?;
    }
    let filter = FilterExpression::new(FilterType::Sql, "n > 1 AND TAGS = 't'");
    Ok(json!({ "messages": sorted(&asked.received(2, &filter).await?) }))
}

/// The group gives a message up after two attempts; this client has no push consumer.
async fn dead(asked: &Asked) -> Shown {
    asked.producer().await?.send(asked.message("poison").set_tag("t").build()?).await?;
    let consumer = asked.consumer(&asked.topic, &asked.group).await?;
    let mut attempts = Vec::new();
    while attempts.len() < 2 {
        let found = consumer.receive_with(&asked.topic, &all(), 16, SHORTEST).await?;
        attempts.extend(found.iter().map(|one| one.delivery_attempt()));
    }
    let topic = format!("%DLQ%{}", asked.group);
    let undertaker = loop {
        match asked.consumer(&topic, &format!("{}-undertaker", asked.group)).await {
            Ok(made) => break made,
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await, // there is no such topic yet
        }
    };
    let letters = received(&undertaker, &topic, 1, &all()).await?;
    let shown: Vec<Value> = letters.iter().map(|one| json!([body(one), one.tag()])).collect();
    Ok(json!({ "attempts": attempts, "letters": shown }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: ENDPOINT LANE TOPIC GROUP");
    let (endpoint, lane) = (next()?, next()?);
    let asked = Asked { endpoint, topic: next()?, group: next()? };
    let shown = match lane.as_str() {
        "normal" => normal(&asked).await,
        "batch" => batch(&asked).await,
        "fifo" => fifo(&asked).await,
        "delay" => delay(&asked).await,
        "transaction" => transaction(&asked).await,
        "filters" => filters(&asked).await,
        "sql" => sql(&asked).await,
        "dead" => dead(&asked).await,
        _ => Err(format!("no lane {lane}").into()),
    };
    println!("{}", shown?);
    std::process::exit(0) // what the client still does would take a while
}
