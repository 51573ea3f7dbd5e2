//! TLS, tokens and certificates of clients, as far as the client has them.

use crate::outage;
use crate::world::*;
use danube_client::{DanubeClient, DanubeClientBuilder, SchemaType, SubType};
use std::sync::{Arc, Mutex};

const TOPIC: &str = "/default/orders";

fn trusting(world: &World, authority: &str) -> Outcome<DanubeClientBuilder> {
    let builder = DanubeClient::builder().service_url(&world.url);
    Ok(builder.with_tls(world.fact(authority)?)?)
}

async fn exchange(client: &DanubeClient, subscription: &str) -> Outcome {
    let sender = producer(client, TOPIC, "p").await?;
    let mut reader = Reader::open(client, TOPIC, subscription, "c", SubType::Exclusive).await?;
    for word in numbered("n", 0..20) {
        send(&sender, &word).await?;
    }
    same("order", texts(&reader.take(20).await?), numbered("n", 0..20))?;
    reader.close().await;
    Ok(())
}

async fn denied(what: &str, client: DanubeClient, topic: &str, number: i32) -> Outcome {
    let builder = client.new_producer().with_topic(topic).with_name("q");
    let found = builder.with_reliable_dispatch().build()?.create().await;
    refused(what, found, number, "")
}

/// A token opens what is granted to it; without one, with a bad one, or for more, nothing goes.
pub async fn tokens(world: &World) -> Outcome {
    let client = trusting(world, "ca")?.with_token(world.fact("token")?).build().await?;
    exchange(&client, "tokens").await?;
    denied("another topic", client.clone(), "/default/secrets", PERMISSION_DENIED).await?;
    let registry = client.schema();
    let builder = registry.register_schema("secrets").with_type(SchemaType::Bytes);
    let found = builder.with_schema_data("").execute().await;
    refused("a subject without a grant", found, PERMISSION_DENIED, "")?;
    let builder = client.new_consumer().with_topic("/default/secrets");
    let builder = builder.with_consumer_name("c").with_subscription("s");
    holds("a consumer of another topic", builder.build()?.subscribe().await.is_err())?;

    let stranger = trusting(world, "ca")?.with_token(world.fact("stranger")?).build().await?;
    denied("somebody without a grant", stranger, TOPIC, PERMISSION_DENIED).await?;
    let expired = trusting(world, "ca")?.with_token(world.fact("expired")?).build().await?;
    denied("a token that is over", expired, TOPIC, UNAUTHENTICATED).await?;
    let guessing = trusting(world, "ca")?.with_token("guess").build().await?;
    denied("a guess", guessing.clone(), TOPIC, UNAUTHENTICATED).await?;
    let found = guessing.schema().list_versions("orders").await;
    refused("a guess at the registry", found, UNAUTHENTICATED, "")?;
    let nameless = trusting(world, "ca")?.build().await?;
    denied("no token", nameless, TOPIC, UNAUTHENTICATED).await?;
    let internal = trusting(world, "ca")?.with_internal_broker("broker/1").build().await?;
    denied("who says to be a broker", internal, TOPIC, UNAUTHENTICATED).await?;

    let wary = trusting(world, "other_ca")?.with_token(world.fact("token")?).build().await?;
    denied("a broker that is not trusted", wary, TOPIC, 0).await?;
    let plain = DanubeClient::builder().service_url(world.url.replace("https", "http"));
    let plain = plain.build().await?;
    let found = plain.schema().list_versions("orders").await;
    holds("without TLS", found.is_err())
}

/// The supplier is asked for every call: what it gives then is what counts.
pub async fn supplied_tokens(world: &World) -> Outcome {
    let current = Arc::new(Mutex::new(world.fact("token")?.to_string()));
    let given = Arc::clone(&current);
    let builder = trusting(world, "ca")?;
    let supplier = move || given.lock().map(|token| token.clone()).unwrap_or_default();
    let client = builder.with_token_supplier(supplier).build().await?;
    exchange(&client, "supplied").await?;
    let sender = producer(&client, TOPIC, "supplied").await?;
    let put = |token: &str| match current.lock() {
        Ok(mut kept) => *kept = token.into(),
        Err(_) => unreachable!("nobody panics with it"),
    };
    put(world.fact("expired")?);
    let found = sender.send(b"late".to_vec(), None).await;
    refused("a token that is over", found, UNAUTHENTICATED, "")?;
    put(world.fact("token")?);
    send(&sender, "again").await
}

/// Where the broker wants certificates of clients, one is shown; without it nothing goes.
pub async fn client_certificates(world: &World) -> Outcome {
    let builder = DanubeClient::builder().service_url(&world.url);
    let (certificate, key) = (world.fact("certificate")?, world.fact("key")?);
    let builder = builder.with_mtls(world.fact("ca")?, certificate, key)?;
    let client = builder.clone().with_token(world.fact("token")?).build().await?;
    exchange(&client, "certificates").await?;
    let nameless = builder.build().await?;
    denied("a certificate alone", nameless, TOPIC, UNAUTHENTICATED).await?;

    let bare = trusting(world, "ca")?.with_token(world.fact("token")?).build().await?;
    let builder = bare.new_producer().with_topic(TOPIC).with_name("q");
    let found = builder.with_reliable_dispatch().build()?.create().await;
    holds("without a certificate", found.is_err())
}

/// Over TLS and with a token, producers and consumers go on over restarts, too.
pub async fn over_outages(world: &World) -> Outcome {
    let client = trusting(world, "ca")?.with_token(world.fact("token")?).build().await?;
    outage::survive(&client, TOPIC, world).await
}
