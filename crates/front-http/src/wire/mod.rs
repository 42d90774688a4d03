//! Typed requests and answers. No engine types in what serde sees; every request refuses fields it does not know.
//!
//! The same structs are JSON over HTTP and JSON or MessagePack over the native connection. Two things differ by
//! encoding, and only in [`value`] and [`message`]: bytes are base64 in JSON and `bin` in MessagePack.

pub mod disk;
pub mod message;
pub mod peek;
pub mod queue;
pub mod receive;
pub mod session;
pub mod settle;
pub mod spec;
pub mod text;
pub mod value;

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
