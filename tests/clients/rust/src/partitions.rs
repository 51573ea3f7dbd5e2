//! Topics in parts: the client makes the parts, chooses one, and consumes them all.

use crate::world::*;
use danube_client::{DanubeClient, Producer, SubType};
use danube_core::message::StreamMessage;
use std::collections::{BTreeMap, BTreeSet};

async fn parted(client: &DanubeClient, topic: &str, count: usize) -> Outcome<Producer> {
    let builder = client.new_producer().with_topic(topic).with_name("p");
    let builder = builder.with_reliable_dispatch().with_partitions(count);
    let mut producer = builder.build()?;
    producer.create().await?;
    Ok(producer)
}

fn by_part(messages: &[StreamMessage]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in messages {
        let kept = found.entry(message.msg_id.topic_name.clone()).or_default();
        kept.push(text(message));
    }
    found
}

/// Messages go to the parts in turn; a consumer of the whole gets each part's in order, and resumes.
pub async fn round_robin(world: &World) -> Outcome {
    let topic = "/default/rust-parts";
    let client = world.client().await?;
    // Their names begin alike, but they are no parts of it.
    producer(&client, "/default/rust-parts-and-more", "p").await?;
    producer(&client, "/default/rust-parts2", "p").await?;
    let sender = parted(&client, topic, 3).await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for word in numbered("n", 0..30) {
        send(&sender, &word).await?;
    }
    let found = by_part(&reader.take(30).await?);
    let mut wanted = BTreeMap::new();
    for part in 0..3 {
        let words = (0..10).map(|turn| format!("n-{}", 3 * turn + part)).collect();
        wanted.insert(format!("{topic}-part-{part}"), words);
    }
    same("what the parts have", found, wanted)?;
    reader.close().await;

    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for word in numbered("n", 30..33) {
        send(&sender, &word).await?;
    }
    let found: BTreeSet<String> = texts(&reader.take(3).await?).into_iter().collect();
    let wanted = numbered("n", 30..33).into_iter().collect();
    same("acks of all parts are kept", found, wanted)?;
    reader.close().await;
    Ok(())
}

/// All messages of a key are in one part, in order, with their key.
pub async fn keys(world: &World) -> Outcome {
    let topic = "/default/rust-part-keys";
    let client = world.client().await?;
    let sender = parted(&client, topic, 4).await?;
    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Shared).await?;
    for number in 0..10 {
        for key in numbered("key", 0..12) {
            let word = format!("{key} {number}");
            sender.send_with_key(word.into(), None, &key).await?;
        }
    }
    let found = reader.take(120).await?;
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut words: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in &found {
        let key = message.routing_key.clone().ok_or("a message has no key")?;
        let place = message.msg_id.topic_name.clone();
        places.entry(key.clone()).or_default().insert(place);
        words.entry(key).or_default().push(text(message));
    }
    same("keys", places.len(), 12)?;
    for (key, parts) in &places {
        same(&format!("parts of {key}"), parts.len(), 1)?;
        let wanted = (0..10).map(|number| format!("{key} {number}")).collect();
        same("order of a key", words[key].clone(), wanted)?;
    }
    let used: BTreeSet<&String> = places.values().flatten().collect();
    holds("several parts are used", used.len() > 1)?;
    reader.close().await;
    Ok(())
}
