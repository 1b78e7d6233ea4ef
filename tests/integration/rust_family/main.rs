//! What older versions of rskafka can do.
//!
//!     family BOOTSTRAP TOPIC COUNT PLAIN|none [CA [CERT KEY]]
//!
//! It writes COUNT records to partition 0 of the existing topic and reads them: over TLS where a CA
//! is named, as SASL_USER by SASL_PASSWORD where a mechanism is. The last line of its output is "ok".

use std::collections::BTreeMap;
use std::sync::Arc;

use rskafka::client::partition::PartitionClient;
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use rustls::{Certificate, ClientConfig, PrivateKey, RootCertStore};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn pem(path: &str) -> Outcome<std::io::BufReader<std::fs::File>> {
    Ok(std::io::BufReader::new(std::fs::File::open(path)?))
}

fn certificates(path: &str) -> Outcome<Vec<Certificate>> {
    Ok(rustls_pemfile::certs(&mut pem(path)?)?.into_iter().map(Certificate).collect())
}

fn tls(files: &[String]) -> Outcome<ClientConfig> {
    let mut trusted = RootCertStore::empty();
    for certificate in certificates(&files[0])? {
        trusted.add(&certificate)?;
    }
    let builder = ClientConfig::builder().with_safe_defaults().with_root_certificates(trusted);
    let [_, certificate, key] = files else {
        return Ok(builder.with_no_client_auth());
    };
    let key = rustls_pemfile::pkcs8_private_keys(&mut pem(key)?)?.remove(0);
    #[cfg(feature = "oldest")]
    return Ok(builder.with_single_cert(certificates(certificate)?, PrivateKey(key))?);
    #[cfg(not(feature = "oldest"))]
    Ok(builder.with_client_auth_cert(certificates(certificate)?, PrivateKey(key))?)
}

#[cfg(feature = "oldest")]
mod version {
    use super::*;

    /// It knows no SASL.
    pub fn login(_builder: ClientBuilder) -> ClientBuilder {
        panic!("this version has no SASL")
    }

    pub async fn partition(client: &Client, topic: &str) -> Outcome<PartitionClient> {
        Ok(client.partition_client(topic, 0).await?)
    }

    pub fn record(value: Vec<u8>) -> Record {
        let (headers, timestamp) = (BTreeMap::new(), rskafka::time::OffsetDateTime::UNIX_EPOCH);
        Record { key: Vec::new(), value, headers, timestamp }
    }

    pub fn value(record: Record) -> Option<Vec<u8>> {
        Some(record.value)
    }

    pub async fn write(partition: &PartitionClient, records: Vec<Record>) -> Outcome<Vec<i64>> {
        Ok(partition.produce(records).await?)
    }
}

#[cfg(not(feature = "oldest"))]
mod version {
    use super::*;
    use rskafka::client::partition::{Compression, UnknownTopicHandling};
    use rskafka::client::SaslConfig;

    pub fn login(builder: ClientBuilder) -> ClientBuilder {
        let secret = |name| std::env::var(name).expect(name);
        let (username, password) = (secret("SASL_USER"), secret("SASL_PASSWORD"));
        builder.sasl_config(SaslConfig::Plain { username, password })
    }

    pub async fn partition(client: &Client, topic: &str) -> Outcome<PartitionClient> {
        Ok(client.partition_client(topic, 0, UnknownTopicHandling::Retry).await?)
    }

    pub fn record(value: Vec<u8>) -> Record {
        let (headers, timestamp) = (BTreeMap::new(), rskafka::chrono::DateTime::UNIX_EPOCH);
        Record { key: None, value: Some(value), headers, timestamp }
    }

    pub fn value(record: Record) -> Option<Vec<u8>> {
        record.value
    }

    pub async fn write(partition: &PartitionClient, records: Vec<Record>) -> Outcome<Vec<i64>> {
        Ok(partition.produce(records, Compression::NoCompression).await?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, count, mechanism, files @ ..] = &arguments[..] else {
        panic!("usage: family BOOTSTRAP TOPIC COUNT PLAIN|none [CA [CERT KEY]]");
    };
    let mut builder = ClientBuilder::new(vec![bootstrap.clone()]);
    if !files.is_empty() {
        builder = builder.tls_config(Arc::new(tls(files)?));
    }
    if mechanism != "none" {
        builder = version::login(builder);
    }
    let client = builder.build().await?;
    let partition = version::partition(&client, topic).await?;
    let count: i64 = count.parse()?;
    let records = (0..count).map(|i| version::record(i.to_string().into_bytes())).collect();
    assert_eq!(version::write(&partition, records).await?, (0..count).collect::<Vec<_>>());
    let mut next = 0;
    while next < count {
        for found in partition.fetch_records(next, 1..100_000, 1_000).await?.0 {
            assert_eq!(found.offset, next);
            assert_eq!(version::value(found.record), Some(next.to_string().into_bytes()));
            next += 1;
        }
    }
    println!("ok");
    Ok(())
}
