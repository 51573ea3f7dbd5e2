//! One producer, one consumer: order, acks, nacks, refusals, sizes, many sends at once.

use crate::world::*;
use danube_client::{DanubeClient, SubType};
use std::collections::HashMap;

/// What is published behind the subscription comes once, in order, with all that was sent along.
pub async fn reliable(world: &World) -> Outcome {
    let topic = "/default/rust-reliable";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    send(&sender, "before").await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for word in numbered("n", 0..100) {
        let attributes = HashMap::from([("word".to_string(), word.clone())]);
        sender.send(word.into(), Some(attributes)).await?;
    }
    sender.send_with_key(b"last".to_vec(), None, "the key").await?;
    let found = reader.take(101).await?;
    same("order", texts(&found)[..100].to_vec(), numbered("n", 0..100))?;
    same("offsets", offsets(&found), (1..102).collect())?;
    let message = &found[7];
    same("topic", message.msg_id.topic_name.as_str(), topic)?;
    same("attribute", message.attributes["word"].as_str(), "n-7")?;
    same("producer", message.producer_name.as_str(), "p")?;
    same("subscription", message.subscription_name.as_deref(), Some("s"))?;
    same("no key", message.routing_key.as_deref(), None)?;
    same("no schema", message.schema_id, None)?;
    holds("a time of publishing", message.publish_time > 0)?;
    same("key", found[100].routing_key.as_deref(), Some("the key"))?;
    reader.close().await;
    Ok(())
}

/// Two subscriptions of a topic that is not stored get a burst complete, with offset 0.
pub async fn non_reliable(world: &World) -> Outcome {
    let topic = "/default/rust-non-reliable";
    let client = world.client().await?;
    let builder = client.new_producer().with_topic(topic).with_name("p");
    let mut sender = builder.build()?;
    sender.create().await?;
    let mut first = Reader::open(&client, topic, "s1", "c", SubType::Exclusive).await?;
    let mut second = Reader::open(&client, topic, "s2", "c", SubType::Exclusive).await?;
    warm_up(&sender, &mut [&mut first, &mut second]).await?;
    for word in numbered("n", 0..50) {
        send(&sender, &word).await?;
    }
    for reader in [&mut first, &mut second] {
        let found = reader.take(50).await?;
        same("order", texts(&found), numbered("n", 0..50))?;
        same("offsets", offsets(&found), vec![0; 50])?;
    }
    first.close().await;
    second.close().await;
    Ok(())
}

/// What cannot be is refused with the protocol's statuses and texts, and changes nothing.
pub async fn refusals(world: &World) -> Outcome {
    let topic = "/default/rust-refusals";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;

    let builder = client.new_consumer().with_topic(topic).with_consumer_name("other");
    let builder = builder.with_subscription("s").with_subscription_type(SubType::Exclusive);
    let found = builder.build()?.subscribe().await;
    refused("a second exclusive consumer", found, PERMISSION_DENIED, "can't be shared")?;

    let builder = client.new_producer().with_topic(topic).with_name("q");
    let found = builder.build()?.create().await;
    let words = "does not match topic strategy";
    refused("another strategy", found, FAILED_PRECONDITION, words)?;

    let builder = client.new_producer().with_topic("no-namespace").with_name("q");
    let found = builder.build()?.create().await;
    refused("a bad name", found, INVALID_ARGUMENT, "invalid format")?;

    let builder = client.new_consumer().with_topic("/default/rust-nobody-made-it");
    let builder = builder.with_consumer_name("c").with_subscription("s");
    let found = builder.build()?.subscribe().await;
    refused("an unknown topic", found, 0, "No topics found")?;

    let address = client.resolve_topic_broker(topic).await?;
    same("look-up", address.connect_url.to_string(), format!("{}/", world.url))?;
    same("no proxy", address.proxy, false)?;
    let found = client.resolve_topic_broker("/default/rust-nobody-made-it").await;
    refused("look-up of an unknown topic", found, NOT_FOUND, "Unable to find")?;

    send(&sender, "after").await?;
    reader.expect("what comes after the refusals", "after").await?;
    reader.close().await;
    Ok(())
}

/// A nacked message comes again as it was; an acked one never does.
pub async fn nack(world: &World) -> Outcome {
    let topic = "/default/rust-nack";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for word in numbered("n", 0..4) {
        send(&sender, &word).await?;
    }
    let first = reader.next().await?;
    let reason = Some("not today".to_string());
    reader.consumer.nack(&first, Some(50), reason).await?;
    let mut found = reader.take(4).await?;
    found.sort_by_key(|message| message.msg_id.topic_offset);
    same("all and the nacked one", texts(&found), numbered("n", 0..4))?;
    same("offsets", offsets(&found), (0..4).collect())?;

    send(&sender, "again").await?;
    let message = reader.next().await?;
    same("what follows", text(&message), "again".into())?;
    for _ in 0..2 {
        reader.consumer.nack(&message, None, None).await?;
        let again = reader.next().await?;
        same("the same offset", again.msg_id.topic_offset, message.msg_id.topic_offset)?;
        same("the same payload", text(&again), "again".into())?;
    }
    reader.consumer.ack(&message).await?;
    reader.consumer.nack(&message, None, None).await?;
    send(&sender, "end").await?;
    reader.expect("nothing acked comes again", "end").await?;
    reader.close().await;
    Ok(())
}

/// A subscription goes on where its acks end: nothing acked comes again, nothing else is missing.
pub async fn resume(world: &World) -> Outcome {
    let topic = "/default/rust-resume";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for word in numbered("n", 0..10) {
        send(&sender, &word).await?;
    }
    let found = reader.several(10).await?;
    for number in [4, 0, 7, 2, 1] {
        reader.consumer.ack(&found[number]).await?;
    }
    reader.close().await;

    let other = world.client().await?;
    let mut reader = Reader::open(&other, topic, "s", "c", SubType::Exclusive).await?;
    let found = reader.several(5).await?;
    same("the unacked, oldest first", offsets(&found), vec![3, 5, 6, 8, 9])?;
    reader.close().await;

    for word in numbered("n", 10..13) {
        send(&sender, &word).await?;
    }
    let mut reader = Reader::open(&client, topic, "s", "d", SubType::Exclusive).await?;
    let found = reader.take(8).await?;
    let wanted = vec![3, 5, 6, 8, 9, 10, 11, 12];
    same("by another consumer", offsets(&found), wanted)?;
    reader.close().await;

    let mut reader = Reader::open(&client, topic, "s", "e", SubType::Exclusive).await?;
    send(&sender, "end").await?;
    reader.expect("all was acked", "end").await?;
    reader.close().await;
    Ok(())
}

/// Payloads of any size up to the limit come whole; one beyond it is refused, and all goes on.
pub async fn sizes(world: &World) -> Outcome {
    let topic = "/default/rust-sizes";
    let limit: usize = world.fact("bytes_max")?.parse()?;
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for (number, size) in [0, 1, 16_384, 65_535, 65_536, limit - 4096].into_iter().enumerate() {
        let payload: Vec<u8> = (0..size).map(|at| (at * 31 + number) as u8).collect();
        sender.send(payload.clone(), None).await?;
        let found = reader.take(1).await?;
        holds(&format!("{size} bytes came as they were"), found[0].payload == payload)?;
    }
    let found = sender.send(vec![7; limit + 1], None).await;
    refused("beyond the limit", found, INVALID_ARGUMENT, "")?;
    send(&sender, "after").await?;
    reader.expect("after a refusal", "after").await?;
    reader.close().await;
    Ok(())
}

/// Send one after the other; the client has no more than one send of a producer in flight.
async fn send_all(client: DanubeClient, topic: &'static str, name: String) -> Outcome {
    let sender = producer(&client, topic, &name).await?;
    for word in numbered(&name, 0..40) {
        send(&sender, &word).await?;
    }
    Ok(())
}

/// 64 producers over four connections send at once; all comes once, each producer's in order.
pub async fn in_flight(world: &World) -> Outcome {
    let topic = "/default/rust-in-flight";
    let client = world.client().await?;
    producer(&client, topic, "first").await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = world.client().await?;
        for _ in 0..16 {
            let name = format!("p{}", tasks.len());
            tasks.push(tokio::spawn(send_all(client.clone(), topic, name)));
        }
    }
    let found = reader.take(64 * 40).await?;
    for task in tasks {
        task.await??;
    }
    same("offsets", offsets(&found), (0..64 * 40).collect())?;
    let mut of_producer: HashMap<String, Vec<String>> = HashMap::new();
    for message in &found {
        let kept = of_producer.entry(message.producer_name.clone()).or_default();
        kept.push(text(message));
    }
    same("producers", of_producer.len(), 64)?;
    for (name, words) in of_producer {
        same("a producer's order", words, numbered(&name, 0..40))?;
    }
    send(&producer(&client, topic, "first").await?, "end").await?;
    reader.expect("each came once", "end").await?;
    reader.close().await;
    Ok(())
}
