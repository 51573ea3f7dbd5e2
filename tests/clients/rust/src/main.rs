//! What programs do with Danube's Rust client, one scenario a word of the command line.
//!
//! `scenarios NAME URL [KEY=VALUE ...]` ends with 0 if all was as it must be, else it says what
//! was wrong and ends with 1. Nothing in here knows which broker answers.

mod delivery;
mod outage;
mod partitions;
mod schemas;
mod security;
mod sharing;
mod world;

use std::process::ExitCode;
use world::{Outcome, World};

async fn run(name: &str, world: &World) -> Outcome {
    match name {
        "reliable" => delivery::reliable(world).await,
        "non-reliable" => delivery::non_reliable(world).await,
        "refusals" => delivery::refusals(world).await,
        "nack" => delivery::nack(world).await,
        "resume" => delivery::resume(world).await,
        "sizes" => delivery::sizes(world).await,
        "in-flight" => delivery::in_flight(world).await,
        "partitions" => partitions::round_robin(world).await,
        "partition-keys" => partitions::keys(world).await,
        "shared" => sharing::shared(world).await,
        "shared-evenly" => sharing::shared_evenly(world).await,
        "failover" => sharing::failover(world).await,
        "key-shared" => sharing::key_shared(world).await,
        "key-filters" => sharing::key_filters(world).await,
        "registry" => schemas::registry(world).await,
        "schema-kinds" => schemas::kinds(world).await,
        "typed" => schemas::typed(world).await,
        "outage" => outage::under_load(world).await,
        "idle-outage" => outage::idle(world).await,
        "tokens" => security::tokens(world).await,
        "supplied-tokens" => security::supplied_tokens(world).await,
        "client-certificates" => security::client_certificates(world).await,
        "token-outage" => security::over_outages(world).await,
        _ => Err(format!("there is no scenario {name}").into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, url, pairs @ ..] = words.as_slice() else {
        eprintln!("usage: scenarios NAME URL [KEY=VALUE ...]");
        return ExitCode::from(2);
    };
    // What the client has to tell stands before what was wrong.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match run(name, &World::new(url, pairs)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{name}: {fault}");
            ExitCode::FAILURE
        }
    }
}
