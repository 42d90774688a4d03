//! Typed requests and answers. No engine types in what serde sees; every request refuses fields it does not know.
//!
//! The same structs are JSON over HTTP and JSON or MessagePack over the native connection. Two things differ by
//! encoding, and only in [`value`] and [`message`]: bytes are base64 in JSON and `bin` in MessagePack.

pub mod disk;
pub mod message;
pub mod peek;
pub mod queue;
pub mod receive;
pub mod rule;
pub mod saga;
pub mod session;
pub mod settle;
pub mod spec;
pub mod text;
pub mod topic;
pub mod transaction;

pub use malote_wire_native::value;

/// How a native connection writes its frames; HTTP is always JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Text.
    #[default]
    Json,
    /// Binary.
    MessagePack,
}

/// Reads the bytes as every request there is, and forgets what came of it: for fuzzing. Nothing may panic.
pub fn try_every_request(bytes: &[u8]) {
    fn read<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
        crate::extract::from_json(bytes).ok()
    }
    if let Some(spec) = read::<spec::SpecIn>(bytes) {
        let _ = spec.over(malote_model::QueueSpec::default()).map(|spec| spec.check());
    }
    if let Some(message) = read::<message::NewMessage>(bytes) {
        let _ = message.into_message();
    }
    if let Some(batch) = read::<message::Batch>(bytes) {
        batch.messages.into_iter().for_each(|message| drop(message.into_message()));
    }
    if let Some(settle) = read::<settle::SettleIn>(bytes) {
        let _ = settle.read();
    }
    if let Some(receive) = read::<receive::ReceiveIn>(bytes) {
        let _ = receive.check();
    }
    if let Some(subscribe) = read::<topic::SubscribeIn>(bytes) {
        let _ = subscribe.spec.over(malote_model::QueueSpec::default());
        subscribe.rules.into_iter().flatten().for_each(|rule| drop(rule.rule()));
    }
    if let Some(rule) = read::<rule::RuleBody>(bytes) {
        let _ = rule.rule("r".into());
    }
    if let Some(test) = read::<rule::TestIn>(bytes)
        && let Ok((rule, message)) = test.parts()
        && let Ok(mut message) = message.into_message()
    {
        let at = malote_model::Timestamp(0);
        if rule.filter.matches(&malote_model::Facts::new(&message, at)) {
            rule.act(&mut message, at);
        }
    }
    if let Some(spec) = read::<topic::TopicSpecIn>(bytes) {
        let _ = spec.over(malote_model::TopicSpec::default()).check();
    }
    if let Some(work) = read::<transaction::TransactionIn>(bytes) {
        work.send.into_iter().for_each(|message| drop(message.into_message()));
        let items = work.settle.into_iter().flat_map(|of| of.items);
        items.for_each(|item| drop(item.read()));
        work.state.into_iter().for_each(|of| drop(of.change.change()));
    }
    read::<receive::DeferredIn>(bytes);
    read::<receive::CancelIn>(bytes);
    read::<settle::RenewIn>(bytes);
    read::<session::AcceptIn>(bytes);
    read::<session::TokenIn>(bytes);
    read::<peek::RedriveIn>(bytes);
    read::<peek::ResendIn>(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_request_panics() {
        let seeds = [
            r#"{"messages":[{"body":{"a":[1,"x"]},"at":"2030-01-01T00:00:00Z","properties":{"p":{"$type":"uuid","value":"x"}}}]}"#,
            r#"{"leases":["00"],"outcome":"abandon","delay_ms":1,"session_state":{"token":"x","state_base64":"AA=="}}"#,
            r#"{"sessions":["a"],"dead_letter":{"queue":"x"},"failed_max":null,"lock_ms":1}"#,
            r#"{"spec":{"ttl_ms":5},"rules":[{"name":"r","filter":{"sql":{"text":"a > @b","parameters":{"@b":1}}},"action":"SET a = 1"}]}"#,
            r#"{"filter":{"headers":{"match":"any","values":{"a":null}}},"action":"REMOVE a","message":{"properties":{"a":1}}}"#,
            r#"{"send":[{"topic":"t","body":"x"}],"settle":[{"queue":"q","items":[{"leases":["0"],"outcome":"complete"}]}],"state":[{"queue":"q","change":{"token":"0"}}]}"#,
        ];
        let mut state = 88_172_645_463_325_252_u64;
        for round in 0..10_000 {
            let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
            for _ in 0..1 + round % 3 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let at = (state >> 20) as usize % bytes.len();
                match state % 4 {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, (state >> 40) as u8),
                    _ => bytes[at] = (state >> 40) as u8,
                }
            }
            super::try_every_request(&bytes);
        }
    }
}
