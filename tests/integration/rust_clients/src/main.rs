//! rskafka: creates a topic, copies another into it and removes part of what it wrote.
//!
//!     clients BOOTSTRAP IN OUT none|gzip|snappy DELETE_BEFORE
//!
//! It copies partition 0 of IN from its start to the end that the broker reports. The last line of
//! its output is {"copied": N, "start": OFFSET, "end": OFFSET}, of OUT. With `login` as the first
//! argument it does what login.rs says.

mod login;

use rskafka::client::error::Result;
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};

const TIMEOUT_MS: i32 = 30_000;
const FETCH_BYTES_MAX: i32 = 100_000;

async fn partition(client: &Client, topic: &str) -> Result<PartitionClient> {
    client.partition_client(topic, 0, UnknownTopicHandling::Retry).await
}

async fn copy(source: &PartitionClient, target: &PartitionClient, codec: Compression) -> Result<usize> {
    let mut next = source.get_offset(OffsetAt::Earliest).await?;
    let end = source.get_offset(OffsetAt::Latest).await?;
    let mut copied = 0;
    while next < end {
        let (found, _) = source.fetch_records(next, 1..FETCH_BYTES_MAX, 1_000).await?;
        let Some(last) = found.last() else { continue };
        next = last.offset + 1;
        copied += found.len();
        let records = found.into_iter().map(|at| at.record).collect();
        target.produce(records, codec).await?;
    }
    Ok(copied)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "login") {
        return login::login(&arguments[1..]).await;
    }
    let [bootstrap, from, to, codec, delete_before] = &arguments[..] else {
        panic!("usage: clients BOOTSTRAP IN OUT none|gzip|snappy DELETE_BEFORE");
    };
    let codec = match codec.as_str() {
        "gzip" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        _ => Compression::NoCompression,
    };
    let client = ClientBuilder::new(vec![bootstrap.clone()]).build().await?;
    let controller = client.controller_client()?;
    controller.create_topic(to.as_str(), 1, 1, TIMEOUT_MS).await?;
    let target = partition(&client, to).await?;
    let copied = copy(&partition(&client, from).await?, &target, codec).await?;
    let first_kept = delete_before.parse().expect("an offset");
    target.delete_records(first_kept, TIMEOUT_MS).await?;
    let start = target.get_offset(OffsetAt::Earliest).await?;
    let end = target.get_offset(OffsetAt::Latest).await?;
    println!("{{\"copied\": {copied}, \"start\": {start}, \"end\": {end}}}");
    Ok(())
}
