//! What the scenarios share: clients, producers, readers, and how a wrong result is told.

use danube_client::errors::DanubeError;
use danube_client::{
    Consumer, ConsumerBuilder, ConsumerOptions, DanubeClient, Producer, ProducerOptions, SubType,
};
use danube_core::message::StreamMessage;
use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout, Instant};

pub type Fault = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome<T = ()> = Result<T, Fault>;

/// What does not come by then will not come.
pub const WAIT: Duration = Duration::from_secs(60);

/// The payload of messages that show that a stream is open.
const WARM_UP: &str = "warm-up";

pub const CANCELLED: i32 = 1;
pub const UNKNOWN: i32 = 2;
pub const INVALID_ARGUMENT: i32 = 3;
pub const NOT_FOUND: i32 = 5;
pub const PERMISSION_DENIED: i32 = 7;
pub const FAILED_PRECONDITION: i32 = 9;
pub const INTERNAL: i32 = 13;
pub const UNAVAILABLE: i32 = 14;
pub const UNAUTHENTICATED: i32 = 16;

/// The broker's address, and what else the command line says.
pub struct World {
    pub url: String,
    facts: HashMap<String, String>,
}

impl World {
    pub fn new(url: &str, pairs: &[String]) -> Self {
        let parted = pairs.iter().filter_map(|pair| pair.split_once('='));
        let facts = parted.map(|(key, value)| (key.into(), value.into()));
        World { url: url.into(), facts: facts.collect() }
    }

    pub fn fact(&self, key: &str) -> Outcome<&str> {
        let found = self.facts.get(key).map(String::as_str);
        found.ok_or_else(|| format!("the command line has no {key}=").into())
    }

    pub async fn client(&self) -> Outcome<DanubeClient> {
        let builder = DanubeClient::builder().service_url(&self.url);
        Ok(builder.build().await?)
    }
}

/// Fail unless two values are the same.
pub fn same<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Outcome {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, wanted {wanted:?}").into())
}

/// Fail unless a fact holds.
pub fn holds(what: &str, fact: bool) -> Outcome {
    if fact {
        return Ok(());
    }
    Err(format!("not so: {what}").into())
}

/// Return the number of an error's status; 0 if it has none.
pub fn code(error: &DanubeError) -> i32 {
    error.extract_status().map_or(0, |status| status.code() as i32)
}

/// Fail unless a call was refused with this status, and a text that has these words.
pub fn refused<T>(what: &str, found: Result<T, DanubeError>, number: i32, words: &str) -> Outcome {
    let Err(error) = found else {
        return Err(format!("{what}: was not refused").into());
    };
    same(&format!("{what}: status of {error}"), code(&error), number)?;
    holds(&format!("{what}: `{words}` in {error}"), error.to_string().contains(words))
}

pub async fn producer(client: &DanubeClient, topic: &str, name: &str) -> Outcome<Producer> {
    let builder = client.new_producer().with_topic(topic).with_name(name);
    let mut producer = builder.with_reliable_dispatch().build()?;
    producer.create().await?;
    Ok(producer)
}

/// Options with which a client waits for a broker as long as the scenarios do.
pub fn patient_producer() -> ProducerOptions {
    ProducerOptions::new(200, 200, 1000)
}

pub fn patient_consumer() -> ConsumerOptions {
    ConsumerOptions::new(200, 200, 1000)
}

pub async fn send(producer: &Producer, text: &str) -> Outcome {
    producer.send(text.into(), None).await?;
    Ok(())
}

pub fn text(message: &StreamMessage) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

pub fn texts(messages: &[StreamMessage]) -> Vec<String> {
    messages.iter().map(text).collect()
}

pub fn offsets(messages: &[StreamMessage]) -> Vec<u64> {
    messages.iter().map(|message| message.msg_id.topic_offset).collect()
}

/// The words `<name>-<number>` for some numbers.
pub fn numbered(name: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("{name}-{number}")).collect()
}

/// A consumer with the queue that its messages come from.
pub struct Reader {
    pub consumer: Consumer,
    pub queue: Receiver<StreamMessage>,
}

impl Reader {
    pub async fn open(
        client: &DanubeClient,
        topic: &str,
        subscription: &str,
        name: &str,
        kind: SubType,
    ) -> Outcome<Reader> {
        let builder = client.new_consumer().with_topic(topic).with_consumer_name(name);
        let builder = builder.with_subscription(subscription);
        Reader::of(builder.with_subscription_type(kind)).await
    }

    pub async fn of(builder: ConsumerBuilder) -> Outcome<Reader> {
        let mut consumer = builder.build()?;
        consumer.subscribe().await?;
        let queue = consumer.receive().await?;
        Ok(Reader { consumer, queue })
    }

    /// Return the next message, which is not acked; those of a warm-up are, and passed over.
    pub async fn next(&mut self) -> Outcome<StreamMessage> {
        loop {
            match timeout(WAIT, self.queue.recv()).await {
                Ok(Some(message)) if text(&message) == WARM_UP => {
                    self.consumer.ack(&message).await?
                }
                Ok(Some(message)) => return Ok(message),
                Ok(None) => return Err("the consumer gave up".into()),
                Err(_) => return Err("no message came".into()),
            }
        }
    }

    pub async fn several(&mut self, count: usize) -> Outcome<Vec<StreamMessage>> {
        let mut found = Vec::new();
        while found.len() < count {
            found.push(self.next().await?);
        }
        Ok(found)
    }

    /// Return the next messages, each of which is acked.
    pub async fn take(&mut self, count: usize) -> Outcome<Vec<StreamMessage>> {
        let mut found = Vec::new();
        while found.len() < count {
            let message = self.next().await?;
            self.consumer.ack(&message).await?;
            found.push(message);
        }
        Ok(found)
    }

    /// Fail unless the very next message is this one; it is acked.
    pub async fn expect(&mut self, what: &str, wanted: &str) -> Outcome {
        let found = self.take(1).await?;
        same(what, text(&found[0]), wanted.into())
    }

    pub async fn close(mut self) {
        self.consumer.close().await;
    }
}

/// Ack whatever comes until so many messages have come in all; return each reader's.
pub async fn gather(readers: &mut [&mut Reader], count: usize) -> Outcome<Vec<Vec<StreamMessage>>> {
    let mut found: Vec<Vec<StreamMessage>> = readers.iter().map(|_| Vec::new()).collect();
    let deadline = Instant::now() + WAIT;
    loop {
        for (reader, kept) in readers.iter_mut().zip(&mut found) {
            while let Ok(message) = reader.queue.try_recv() {
                reader.consumer.ack(&message).await?;
                if text(&message) != WARM_UP {
                    kept.push(message);
                }
            }
        }
        let total: usize = found.iter().map(Vec::len).sum();
        if total >= count {
            same("messages in all", total, count)?;
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{total} of {count} messages came").into());
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Publish until each reader has got something: streams open some time after `receive`.
pub async fn warm_up(producer: &Producer, readers: &mut [&mut Reader]) -> Outcome {
    let mut counts = vec![0; readers.len()];
    let deadline = Instant::now() + WAIT;
    for number in 0.. {
        let key = format!("warm-{number}");
        producer.send_with_key(WARM_UP.into(), None, &key).await?;
        sleep(Duration::from_millis(20)).await;
        for (reader, count) in readers.iter_mut().zip(&mut counts) {
            while let Ok(message) = reader.queue.try_recv() {
                reader.consumer.ack(&message).await?;
                *count += 1;
            }
        }
        if counts.iter().all(|count| *count > 0) {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("some reader got nothing: {counts:?}").into());
        }
    }
    Ok(())
}
