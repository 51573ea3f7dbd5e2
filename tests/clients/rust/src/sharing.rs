//! Several consumers of one subscription: Shared, Failover, KeyShared.

use crate::world::*;
use danube_client::{DanubeClient, SubType};
use danube_core::message::StreamMessage;
use std::collections::{BTreeMap, BTreeSet};

async fn member(client: &DanubeClient, topic: &str, name: &str, kind: SubType) -> Outcome<Reader> {
    Reader::open(client, topic, "s", name, kind).await
}

fn sorted(messages: &[StreamMessage]) -> Vec<u64> {
    let mut found = offsets(messages);
    found.sort_unstable();
    found
}

/// Two consumers divide the messages; what one leaves unacked goes to the other, and only that.
pub async fn shared(world: &World) -> Outcome {
    let topic = "/default/rust-shared";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut first = member(&client, topic, "a", SubType::Shared).await?;
    let mut second = member(&client, topic, "b", SubType::Shared).await?;
    warm_up(&sender, &mut [&mut first, &mut second]).await?;
    for word in numbered("n", 0..40) {
        send(&sender, &word).await?;
    }
    let found = gather(&mut [&mut first, &mut second], 40).await?;
    let all: BTreeSet<String> = found.iter().flat_map(|each| texts(each)).collect();
    same("all came, none twice", all, numbered("n", 0..40).into_iter().collect())?;
    holds("both got some", found.iter().all(|each| each.len() >= 10))?;

    for word in numbered("m", 0..10) {
        send(&sender, &word).await?;
    }
    let kept = first.several(5).await?;
    let acked = second.take(5).await?;
    first.close().await;
    let again = second.take(5).await?;
    same("the unacked go to the other", sorted(&again), sorted(&kept))?;
    let all: BTreeSet<String> = texts(&again).into_iter().chain(texts(&acked)).collect();
    same("all of them", all, numbered("m", 0..10).into_iter().collect())?;
    send(&sender, "end").await?;
    second.expect("none came twice", "end").await?;
    second.close().await;
    Ok(())
}

/// 36 messages to three consumers of a topic that is not stored are exactly twelve each.
pub async fn shared_evenly(world: &World) -> Outcome {
    let topic = "/default/rust-shared-evenly";
    let client = world.client().await?;
    let builder = client.new_producer().with_topic(topic).with_name("p");
    let mut sender = builder.build()?;
    sender.create().await?;
    let mut a = member(&client, topic, "a", SubType::Shared).await?;
    let mut b = member(&client, topic, "b", SubType::Shared).await?;
    let mut c = member(&client, topic, "c", SubType::Shared).await?;
    let mut readers = [&mut a, &mut b, &mut c];
    warm_up(&sender, &mut readers).await?;
    for word in numbered("n", 0..36) {
        send(&sender, &word).await?;
    }
    let found = gather(&mut readers, 36).await?;
    let counts: Vec<usize> = found.iter().map(Vec::len).collect();
    same("each has its share", counts, vec![12; 3])?;
    let all: BTreeSet<String> = found.iter().flat_map(|each| texts(each)).collect();
    same("all came", all, numbered("n", 0..36).into_iter().collect())
}

/// The first consumer gets all; when it leaves, the second goes on with the oldest unacked.
pub async fn failover(world: &World) -> Outcome {
    let topic = "/default/rust-failover";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut first = member(&client, topic, "a", SubType::FailOver).await?;
    let mut second = member(&client, topic, "b", SubType::FailOver).await?;
    for word in numbered("n", 0..30) {
        send(&sender, &word).await?;
    }
    let found = first.take(25).await?;
    same("the first gets all", texts(&found), numbered("n", 0..25))?;
    let kept = first.several(5).await?;
    holds("the second gets nothing yet", second.queue.try_recv().is_err())?;
    first.close().await;
    let again = second.take(5).await?;
    same("the unacked, oldest first", offsets(&again), offsets(&kept))?;
    for word in numbered("n", 30..40) {
        send(&sender, &word).await?;
    }
    let found = second.take(10).await?;
    same("and what comes after them", texts(&found), numbered("n", 30..40))?;

    let mut third = member(&client, topic, "a", SubType::FailOver).await?;
    send(&sender, "one more").await?;
    second.expect("who is active stays so", "one more").await?;
    second.close().await;
    send(&sender, "end").await?;
    third.expect("the next takes over", "end").await?;
    third.close().await;
    Ok(())
}

fn by_key(messages: &[StreamMessage]) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in messages {
        let key = message.routing_key.clone().unwrap_or_default();
        found.entry(key).or_default().push(text(message));
    }
    found
}

/// Each key has one consumer and its order; when that one leaves, the others have its keys.
pub async fn key_shared(world: &World) -> Outcome {
    let topic = "/default/rust-key-shared";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let mut first = member(&client, topic, "a", SubType::KeyShared).await?;
    let mut second = member(&client, topic, "b", SubType::KeyShared).await?;
    warm_up(&sender, &mut [&mut first, &mut second]).await?;
    let keys = numbered("key", 0..8);
    for number in 0..10 {
        for key in &keys {
            sender.send_with_key(number.to_string().into(), None, key).await?;
        }
    }
    let found = gather(&mut [&mut first, &mut second], 80).await?;
    let (left, right) = (by_key(&found[0]), by_key(&found[1]));
    same("keys in all", left.len() + right.len(), 8)?;
    holds("both have keys", !left.is_empty() && !right.is_empty())?;
    for words in left.values().chain(right.values()) {
        let wanted = (0..10).map(|number| number.to_string()).collect();
        same("order of a key", words.clone(), wanted)?;
    }

    for key in &keys {
        sender.send_with_key(b"kept".to_vec(), None, key).await?;
    }
    let kept: BTreeSet<String> = by_key(&first.several(left.len()).await?).into_keys().collect();
    same("keys stay where they are", kept, left.into_keys().collect())?;
    first.close().await;
    let all: BTreeSet<String> = by_key(&second.take(8).await?).into_keys().collect();
    same("all keys, those left unacked too", all, keys.into_iter().collect())?;
    send(&sender, "end").await?;
    second.expect("none came twice", "end").await?;
    second.close().await;
    Ok(())
}

/// A consumer gets the keys that its filters let through; what nobody wants holds nobody up.
pub async fn key_filters(world: &World) -> Outcome {
    let topic = "/default/rust-key-filters";
    let client = world.client().await?;
    let sender = producer(&client, topic, "p").await?;
    let of = |name: &str, filters: &[&str]| {
        let builder = client.new_consumer().with_topic(topic).with_consumer_name(name);
        let builder = builder.with_subscription("s").with_subscription_type(SubType::KeyShared);
        let filters = filters.iter().map(|filter| filter.to_string());
        builder.with_key_filters(filters.collect())
    };
    let mut first = Reader::of(of("a", &["eu-*", "mars"])).await?;
    let mut second = Reader::of(of("b", &["us-?"])).await?;
    for number in 0..5 {
        for key in ["eu-west", "us-1", "asia", "eu-", "us-22", "mars", "us-2"] {
            sender.send_with_key(number.to_string().into(), None, key).await?;
        }
    }
    let found = gather(&mut [&mut first, &mut second], 25).await?;
    let words: Vec<String> = (0..5).map(|number| number.to_string()).collect();
    for (messages, keys) in found.iter().zip([vec!["eu-", "eu-west", "mars"], vec!["us-1", "us-2"]])
    {
        let wanted = keys.into_iter().map(|key| (key.to_string(), words.clone()));
        same("keys of a consumer", by_key(messages), wanted.collect())?;
    }
    first.close().await;
    second.close().await;
    Ok(())
}
