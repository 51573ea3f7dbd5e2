//! The registry of schemas, and producers that name a schema.

use crate::world::*;
use danube_client::{CompatibilityMode, DanubeClient, SchemaType, SubType};

const FIRST: &str = r#"{"type": "object", "required": ["id"],
    "properties": {"id": {"type": "integer"}}}"#;
const SECOND: &str = r#"{"type": "object", "required": ["id"],
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}"#;
const OTHER: &str = r#"{"type": "object", "required": ["id", "more"],
    "properties": {"id": {"type": "string"}, "more": {"type": "string"}}}"#;
const AVRO: &str = r#"{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}]}"#;
const AVRO_WIDER: &str = r#"{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": ""}]}"#;
const AVRO_BROKEN: &str = r#"{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}"#;
const PROTO: &str = "syntax = \"proto3\"; message Order { int64 id = 1; }";

type Registered = Result<u64, danube_client::errors::DanubeError>;

async fn register(
    client: &DanubeClient,
    subject: &str,
    kind: SchemaType,
    text: &str,
) -> Registered {
    let registry = client.schema();
    let builder = registry.register_schema(subject).with_type(kind);
    let builder = builder.with_description("an order").with_tags(vec!["a".into()]);
    builder.with_schema_data(text).execute().await
}

/// Versions are counted, repeats are found, what does not fit is refused, and modes decide it.
pub async fn registry(world: &World) -> Outcome {
    let (client, subject) = (world.client().await?, "rust-orders");
    let registry = client.schema();
    let json = SchemaType::JsonSchema;
    let id = register(&client, subject, json, FIRST).await?;
    holds("an id above 0", id > 0)?;
    same("the id of a repeat", register(&client, subject, json, FIRST).await?, id)?;
    same("versions", registry.list_versions(subject).await?, vec![1])?;
    same("the id of the next", register(&client, subject, json, SECOND).await?, id)?;
    same("versions", registry.list_versions(subject).await?, vec![1, 2])?;

    let latest = registry.get_latest_schema(subject).await?;
    same("latest version", (latest.schema_id, latest.version), (id, 2))?;
    same("subject", latest.subject.as_str(), subject)?;
    same("type", latest.schema_type.as_str(), "json_schema")?;
    same("definition", latest.schema_definition_as_string().as_deref(), Some(SECOND))?;
    holds("a fingerprint", latest.fingerprint.starts_with("sha256:"))?;
    same("by id", registry.get_schema_by_id(id).await?.subject.as_str(), subject)?;
    let first = registry.get_schema_version(id, Some(1)).await?;
    same("version 1", first.version, 1)?;
    same("its definition", first.schema_definition_as_string().as_deref(), Some(FIRST))?;
    holds("another fingerprint", first.fingerprint != latest.fingerprint)?;

    let found = registry.check_compatibility(subject, FIRST.into(), json, None).await?;
    holds("a narrower one fits backwards", found.is_compatible)?;
    let found = registry.check_compatibility(subject, OTHER.into(), json, None).await?;
    holds("another type does not fit", !found.is_compatible && !found.errors.is_empty())?;
    let none = Some(CompatibilityMode::None);
    let found = registry.check_compatibility(subject, OTHER.into(), json, none).await?;
    holds("it does without a rule", found.is_compatible)?;
    let found = register(&client, subject, json, OTHER).await;
    refused("what does not fit", found, INTERNAL, "Failed to register schema")?;
    same("versions", registry.list_versions(subject).await?, vec![1, 2])?;

    let found = registry.set_compatibility_mode(subject, CompatibilityMode::None).await?;
    holds("the mode is set", found.success)?;
    same("now it is taken", register(&client, subject, json, OTHER).await?, id)?;
    same("versions", registry.list_versions(subject).await?, vec![1, 2, 3])?;

    let found = registry.get_latest_schema("rust-unknown").await;
    refused("an unknown subject", found, NOT_FOUND, "Schema not found for subject")?;
    let found = registry.list_versions("rust-unknown").await;
    refused("its versions", found, NOT_FOUND, "Subject not found")?;
    let found = registry.get_schema_by_id(id + 1_000_000).await;
    refused("an unknown id", found, NOT_FOUND, "Schema not found for ID")?;
    let found = register(&client, "rust-broken", json, "{").await;
    holds("what is no schema is refused", found.is_err())
}

/// Every type of the client can be registered and is given back; Avro's rules hold.
pub async fn kinds(world: &World) -> Outcome {
    let client = world.client().await?;
    let registry = client.schema();
    let all = [
        (SchemaType::Bytes, ""),
        (SchemaType::String, ""),
        (SchemaType::Number, ""),
        (SchemaType::Avro, AVRO),
        (SchemaType::JsonSchema, FIRST),
        (SchemaType::Protobuf, PROTO),
    ];
    for (kind, definition) in all {
        let subject = format!("rust-kind-{kind}");
        let id = register(&client, &subject, kind, definition).await?;
        let found = registry.get_latest_schema(&subject).await?;
        same("id", found.schema_id, id)?;
        same("type", found.schema_type.as_str(), kind.as_str())?;
    }
    let (subject, avro) = ("rust-kind-avro", SchemaType::Avro);
    let found = register(&client, subject, avro, AVRO_BROKEN).await;
    refused("a field without a default", found, INTERNAL, "Failed to register")?;
    register(&client, subject, avro, AVRO_WIDER).await?;
    same("versions", registry.list_versions(subject).await?, vec![1, 2])
}

/// Messages of a producer with a schema carry its id and version, whichever way it was named.
pub async fn typed(world: &World) -> Outcome {
    let (topic, subject) = ("/default/rust-typed", "rust-typed");
    let client = world.client().await?;
    let json = SchemaType::JsonSchema;
    let id = register(&client, subject, json, FIRST).await?;
    register(&client, subject, json, SECOND).await?;
    let of = |name: &str| {
        let builder = client.new_producer().with_topic(topic).with_name(name);
        builder.with_reliable_dispatch()
    };
    let mut latest = of("latest").with_schema_subject(subject).build()?;
    latest.create().await?;
    let mut pinned = of("pinned").with_schema_version(subject, 1).build()?;
    pinned.create().await?;
    let mut least = of("least").with_schema_min_version(subject, 2).build()?;
    least.create().await?;

    let found = of("p").with_schema_version(subject, 9).build()?.create().await;
    holds("a version that is not there is refused", found.is_err())?;
    let found = of("p").with_schema_min_version(subject, 9).build()?.create().await;
    holds("a later version than there is is refused", found.is_err())?;
    register(&client, "rust-typed-other", json, FIRST).await?;
    let found = of("p").with_schema_subject("rust-typed-other").build()?.create().await;
    refused("another subject", found, FAILED_PRECONDITION, "cannot use")?;
    let builder = client.new_producer().with_topic("/default/rust-typed-2").with_name("p");
    let found = builder.with_schema_subject("rust-unknown").build()?.create().await;
    holds("an unknown subject", found.is_err_and(|error| error.to_string().contains("not found")))?;

    let mut reader = Reader::open(&client, topic, "s", "c", SubType::Exclusive).await?;
    for sender in [&latest, &pinned, &least] {
        send(sender, r#"{"id": 1}"#).await?;
    }
    let found = reader.take(3).await?;
    let marks: Vec<_> = found.iter().map(|each| (each.schema_id, each.schema_version)).collect();
    let wanted = vec![(Some(id), Some(2)), (Some(id), Some(1)), (Some(id), Some(2))];
    same("ids and versions", marks, wanted)?;
    let schema = client.schema().get_schema_version(id, found[1].schema_version).await?;
    same("the schema of a message", schema.schema_definition_as_string().as_deref(), Some(FIRST))?;
    reader.close().await;
    Ok(())
}
