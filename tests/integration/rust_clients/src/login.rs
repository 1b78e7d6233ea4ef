//! rskafka: writes a record to a topic and reads it back, over TLS.
//!
//!     clients login MECHANISM|none BOOTSTRAP TOPIC CA [CERT KEY]
//!
//! User and password (or token) come from SASL_USER and SASL_PASSWORD. The last line of its output
//! is {"read": VALUE}.

use std::collections::BTreeMap;
use std::sync::Arc;

use rskafka::client::partition::{Compression, OffsetAt, UnknownTopicHandling};
use rskafka::client::{ClientBuilder, Credentials, OauthBearerCredentials, SaslConfig};
use rskafka::record::Record;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn certificates(path: &str) -> Outcome<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_file_iter(path)?.collect::<Result<_, _>>()?)
}

fn tls(files: &[String]) -> Outcome<ClientConfig> {
    let mut trusted = RootCertStore::empty();
    for certificate in certificates(&files[0])? {
        trusted.add(certificate)?;
    }
    let builder = ClientConfig::builder().with_root_certificates(trusted);
    Ok(match files {
        [_, certificate, key] => {
            builder.with_client_auth_cert(certificates(certificate)?, PrivateKeyDer::from_pem_file(key)?)?
        }
        _ => builder.with_no_client_auth(),
    })
}

fn sasl(mechanism: &str) -> Option<SaslConfig> {
    let secret = |name| std::env::var(name).expect(name);
    let login = || Credentials::new(secret("SASL_USER"), secret("SASL_PASSWORD"));
    match mechanism {
        "PLAIN" => Some(SaslConfig::Plain(login())),
        "SCRAM-SHA-256" => Some(SaslConfig::ScramSha256(login())),
        "SCRAM-SHA-512" => Some(SaslConfig::ScramSha512(login())),
        "OAUTHBEARER" => Some(SaslConfig::Oauthbearer(OauthBearerCredentials {
            callback: Arc::new(move || Box::pin(async move { Ok(secret("SASL_PASSWORD")) })),
            authz_id: None,
            bearer_kvs: vec![],
        })),
        _ => None,
    }
}

pub async fn login(arguments: &[String]) -> Outcome<()> {
    let [mechanism, bootstrap, topic, files @ ..] = arguments else {
        panic!("usage: clients login MECHANISM|none BOOTSTRAP TOPIC CA [CERT KEY]");
    };
    let mut builder = ClientBuilder::new(vec![bootstrap.clone()]).tls_config(Arc::new(tls(files)?));
    if let Some(config) = sasl(mechanism) {
        builder = builder.sasl_config(config);
    }
    let client = builder.build().await?;
    let partition = client.partition_client(topic.as_str(), 0, UnknownTopicHandling::Retry).await?;
    let record = Record {
        key: None,
        value: Some(b"v".to_vec()),
        headers: BTreeMap::new(),
        timestamp: rskafka::chrono::DateTime::UNIX_EPOCH,
    };
    partition.produce(vec![record], Compression::NoCompression).await?;
    let start = partition.get_offset(OffsetAt::Earliest).await?;
    let (found, _) = partition.fetch_records(start, 1..100_000, 10_000).await?;
    let value = found.into_iter().next().and_then(|at| at.record.value).unwrap_or_default();
    println!("{{\"read\": \"{}\"}}", String::from_utf8(value)?);
    Ok(())
}
