//! Brokers that end and begin again while producers and consumers run, which go on by themselves.
//!
//! The scenario says `flowing` on stdout when there is traffic, and waits for a line on stdin: by
//! then the broker was ended and is back.

use crate::world::*;
use danube_client::{ConsumerBuilder, DanubeClient, Producer, SubType};
use danube_core::message::StreamMessage;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, Instant};

/// How many messages show that there is traffic.
const STEPS: usize = 30;

/// How far everybody is, and whether it is enough.
struct Progress {
    counts: Vec<AtomicUsize>,
    is_over: AtomicBool,
    /// Even while the broker is there, odd from the moment on that it may be ended.
    epoch: AtomicUsize,
}

impl Progress {
    fn epoch(&self) -> usize {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Say that the broker may be ended, and wait until it is back.
    async fn outage(&self) -> Outcome {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        println!("flowing");
        wait_for_line().await?;
        self.epoch.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn step(&self, place: usize) {
        self.counts[place].fetch_add(1, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Wait until everybody has come further by some steps.
    async fn flowing(&self) -> Outcome {
        let now = || self.counts.iter().map(|count| count.load(Ordering::SeqCst));
        let wanted: Vec<usize> = now().map(|count| count + STEPS).collect();
        let deadline = Instant::now() + WAIT;
        while now().zip(&wanted).any(|(count, least)| count < *least) {
            if Instant::now() > deadline || self.is_over() {
                return Err(format!(
                    "not all go on: {:?} of {wanted:?}",
                    now().collect::<Vec<_>>()
                )
                .into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }
}

/// What a connection breaks with under a call, which the client does not repeat by itself.
fn is_lost(number: i32) -> bool {
    [CANCELLED, UNKNOWN].contains(&number)
}

/// What a publisher did.
struct Published {
    name: &'static str,
    count: usize,
    repeated: Vec<String>,
}

/// Send one numbered message after the other until it is enough; each is answered before the next.
async fn publish(
    producer: Producer,
    name: &'static str,
    place: usize,
    progress: Arc<Progress>,
    is_calm: bool,
) -> Outcome<Published> {
    let mut repeated = Vec::new();
    let mut count = 0;
    while !progress.is_over() {
        let word = format!("{name}-{count}");
        match producer.send(word.into(), None).await {
            Ok(_) => {
                count += 1;
                progress.step(place);
            }
            Err(error) if !is_calm && is_lost(code(&error)) => repeated.push(error.to_string()),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(Published { name, count, repeated })
}

/// What came on a subscription: the word at each offset of each topic.
type Kept = BTreeMap<(String, u64), String>;

/// A consumer that is opened again where the client gives it up.
///
/// When a connection is lost, this client asks for a stream on it once more; if that fails in the
/// same moment the error is a final one to it, and the queue of messages ends; of a topic in parts
/// the part ends without a sign. An application has to subscribe again then. A broker that ends in
/// order does not let it come to that.
struct Lasting {
    builder: ConsumerBuilder,
    reader: Reader,
    is_calm: bool,
    reopened: usize,
}

impl Lasting {
    async fn open(builder: ConsumerBuilder, is_calm: bool) -> Outcome<Lasting> {
        let reader = Reader::of(builder.clone()).await?;
        Ok(Lasting { builder, reader, is_calm, reopened: 0 })
    }

    /// Return the next message; None if there is none for some time.
    async fn next(&mut self, patience: Duration) -> Outcome<Option<StreamMessage>> {
        loop {
            match timeout(patience, self.reader.queue.recv()).await {
                Ok(Some(message)) => return Ok(Some(message)),
                Err(_) => return Ok(None),
                Ok(None) if self.is_calm => return Err("a consumer gave up".into()),
                Ok(None) => self.reopen().await?,
            }
        }
    }

    async fn reopen(&mut self) -> Outcome {
        self.reopened += 1;
        self.reader.consumer.close().await;
        let deadline = Instant::now() + WAIT;
        loop {
            match Reader::of(self.builder.clone()).await {
                Ok(reader) => {
                    self.reader = reader;
                    return Ok(());
                }
                Err(fault) if Instant::now() > deadline => return Err(fault),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// What a reader has seen.
struct Seen {
    lasting: Lasting,
    kept: Kept,
    /// In which epoch the ack of each was answered.
    acked: BTreeMap<(String, u64), usize>,
    again: usize,
    unanswered: usize,
}

impl Seen {
    /// Note a message; Err if it changed since it came first, or comes out of order.
    fn note(&mut self, message: &StreamMessage, is_ordered: bool, epoch: usize) -> Outcome {
        let id = &message.msg_id;
        let place = (id.topic_name.clone(), id.topic_offset);
        if let Some(before) = self.kept.get(&place) {
            self.again += 1;
            // Unless its copy was on the way while the ack was: that is the same epoch, or an outage.
            let is_late = self.acked.get(&place).is_some_and(|at| at % 2 == 0 && epoch > *at);
            holds("nothing acked before an outage comes after it", !is_late)?;
            return same("what an offset holds", text(message), before.clone());
        }
        let above = place.clone()..=(id.topic_name.clone(), u64::MAX);
        if is_ordered && self.kept.range(above).next().is_some() {
            return Err(format!("{place:?} came late").into());
        }
        self.kept.insert(place, text(message));
        Ok(())
    }
}

/// Take and ack messages until nothing has come for a while after the publishers' end.
async fn consume(
    lasting: Lasting,
    place: usize,
    progress: Arc<Progress>,
    is_ordered: bool,
) -> Outcome<Seen> {
    let is_calm = lasting.is_calm;
    let (kept, acked, again, unanswered) = (Kept::new(), BTreeMap::new(), 0, 0);
    let mut seen = Seen { lasting, kept, acked, again, unanswered };
    let mut is_last = is_calm;
    loop {
        let is_over = progress.is_over();
        let Some(message) = seen.lasting.next(Duration::from_secs(3)).await? else {
            if is_over && is_last {
                return Ok(seen);
            }
            if is_over {
                // It may have given one part up alone, of which its queue tells nothing.
                is_last = true;
                seen.lasting.reopen().await?;
            }
            continue;
        };
        seen.note(&message, is_ordered, progress.epoch())?;
        progress.step(place);
        // Acks are not repeated by the client: the message comes again.
        let answer = seen.lasting.reader.consumer.ack(&message).await;
        if answer.is_ok() {
            let place = (message.msg_id.topic_name.clone(), message.msg_id.topic_offset);
            seen.acked.entry(place).or_insert(progress.epoch());
        }
        if let Err(error) = answer {
            let number = code(&error);
            let is_outage = is_lost(number) || [UNAVAILABLE, INTERNAL].contains(&number);
            holds(&format!("an ack fails by the outage: {error}"), is_outage)?;
            seen.unanswered += 1;
        }
    }
}

/// Every message that was answered is there, and none that nobody sent.
fn is_complete(seen: &Seen, publishers: &[&Published], is_calm: bool) -> Outcome {
    let words: BTreeSet<&String> = seen.kept.values().collect();
    for each in publishers {
        let missing: Vec<String> = numbered(each.name, 0..each.count)
            .into_iter()
            .filter(|word| !words.contains(word))
            .collect();
        same("answered and never delivered", missing, Vec::new())?;
    }
    let count: usize = publishers.iter().map(|each| each.count).sum();
    holds("nothing was made up", words.len() <= count + publishers.len())?;
    // A broker that ends in order answers every send: none is repeated, so none is there twice.
    holds("none was stored twice", !is_calm || seen.kept.len() == words.len())
}

async fn wait_for_line() -> Outcome {
    let mut line = String::new();
    let mut input = BufReader::new(tokio::io::stdin());
    holds("stdin has a line", timeout(2 * WAIT, input.read_line(&mut line)).await?? > 0)
}

async fn patient(
    client: &DanubeClient,
    topic: &str,
    name: &str,
    parts: usize,
) -> Outcome<Producer> {
    let builder = client.new_producer().with_topic(topic).with_name(name);
    let builder = builder.with_reliable_dispatch().with_options(patient_producer());
    let builder = if parts > 0 { builder.with_partitions(parts) } else { builder };
    let mut producer = builder.build()?;
    producer.create().await?;
    Ok(producer)
}

fn patient_reader(
    client: &DanubeClient,
    topic: &str,
    subscription: &str,
    kind: SubType,
) -> ConsumerBuilder {
    let builder = client.new_consumer().with_topic(topic).with_consumer_name("c");
    let builder = builder.with_subscription(subscription).with_subscription_type(kind);
    builder.with_options(patient_consumer())
}

async fn ended<T>(tasks: Vec<JoinHandle<Outcome<T>>>) -> Outcome<Vec<T>> {
    let mut found = Vec::new();
    for task in tasks {
        found.push(task.await??);
    }
    Ok(found)
}

/// Run two producers of a topic, one of parts, and readers of both, while the broker is restarted.
pub async fn survive(client: &DanubeClient, topic: &str, world: &World) -> Outcome {
    let is_calm = world.fact("end")? == "calm";
    let rounds: usize = world.fact("rounds")?.parse()?;
    let parted = format!("{topic}-parted");
    let progress = Arc::new(Progress {
        counts: (0..6).map(|_| AtomicUsize::new(0)).collect(),
        is_over: AtomicBool::new(false),
        epoch: AtomicUsize::new(0),
    });
    let producers = [
        ("first", patient(client, topic, "first", 0).await?),
        ("second", patient(client, topic, "second", 0).await?),
        ("parts", patient(client, &parted, "parts", 2).await?),
    ];
    let readers = [
        (true, patient_reader(client, topic, "exclusive", SubType::Exclusive)),
        (false, patient_reader(client, topic, "shared", SubType::Shared)),
        (true, patient_reader(client, &parted, "exclusive", SubType::Exclusive)),
    ];
    let (mut publishing, mut consuming) = (Vec::new(), Vec::new());
    for (place, (is_ordered, builder)) in readers.into_iter().enumerate() {
        let lasting = Lasting::open(builder, is_calm).await?;
        let task = consume(lasting, 3 + place, Arc::clone(&progress), is_ordered);
        consuming.push(tokio::spawn(task));
    }
    for (place, (name, producer)) in producers.into_iter().enumerate() {
        let task = publish(producer, name, place, Arc::clone(&progress), is_calm);
        publishing.push(tokio::spawn(task));
    }
    let mut went = progress.flowing().await;
    for _ in 0..rounds {
        if went.is_ok() {
            progress.outage().await?;
            went = progress.flowing().await;
        }
    }
    progress.is_over.store(true, Ordering::SeqCst);
    let published = ended(publishing).await?;
    let seen = ended(consuming).await?;
    went?;
    let (first, second, parts) = (&published[0], &published[1], &published[2]);
    is_complete(&seen[0], &[first, second], is_calm)?;
    is_complete(&seen[1], &[first, second], is_calm)?;
    is_complete(&seen[2], &[parts], is_calm)?;
    report(&published, &seen);
    for each in seen {
        each.lasting.reader.close().await;
    }
    let sender = patient(client, topic, "first", 0).await?;
    let kinds = [("exclusive", SubType::Exclusive), ("shared", SubType::Shared)];
    send(&sender, "end").await?;
    for (subscription, kind) in kinds {
        let builder = patient_reader(client, topic, subscription, kind);
        let mut reader = Reader::of(builder).await?;
        reader.expect("nothing acked comes again", "end").await?;
        reader.close().await;
    }
    Ok(())
}

fn report(published: &[Published], seen: &[Seen]) {
    for each in published {
        println!("{} sent {}, repeated {:?}", each.name, each.count, each.repeated);
    }
    for each in seen {
        let (count, reopened) = (each.kept.len(), each.lasting.reopened);
        let (again, unanswered) = (each.again, each.unanswered);
        println!("got {count}, again {again}, acks unanswered {unanswered}, reopened {reopened}");
    }
}

pub async fn under_load(world: &World) -> Outcome {
    survive(&world.client().await?, "/default/rust-outage", world).await
}

/// Clients that did nothing while the broker was away find it when they have something to do.
pub async fn idle(world: &World) -> Outcome {
    let topic = "/default/rust-idle";
    let is_calm = world.fact("end")? == "calm";
    let rounds: usize = world.fact("rounds")?.parse()?;
    let client = world.client().await?;
    let sender = patient(&client, topic, "p", 0).await?;
    let builder = patient_reader(&client, topic, "s", SubType::Exclusive);
    let mut lasting = Lasting::open(builder, is_calm).await?;
    for round in 0..=rounds {
        if round > 0 {
            println!("flowing");
            wait_for_line().await?;
        }
        let word = round.to_string();
        send(&sender, &word).await?;
        let message = lasting.next(WAIT).await?.ok_or("no message came")?;
        same("what was sent", text(&message), word)?;
        lasting.reader.consumer.ack(&message).await?;
    }
    println!("reopened {}", lasting.reopened);
    lasting.reader.close().await;
    Ok(())
}
