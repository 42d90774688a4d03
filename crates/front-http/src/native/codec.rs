//! Frames of the native connection as bytes.

use malote_wire_native::frame::{ClientFrame, Encoding, FRAME_DEPTH_MAX, FRAMES_MAX, ServerFrame};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::extract::{json_problem, with_suggestion};
use crate::problem::{Code, Problem};

/// A frame that cannot be read. Other frames of the same message are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The id of the request, if it could be read.
    pub id: Option<u64>,
    /// The reason, as it is sent to the client.
    pub problem: Problem,
}

/// Decodes the frames of one WebSocket message. Invalid bytes are an error, never a panic, and memory use is bounded by
/// the length of the message.
pub fn decode_frame(
    bytes: &[u8],
    encoding: Encoding,
) -> Result<Vec<Result<ClientFrame, Rejected>>, Problem> {
    match encoding {
        Encoding::Json => {
            if bytes.trim_ascii_start().first() != Some(&b'[') {
                return Ok(vec![from_json(bytes)]);
            }
            let all: Vec<&RawValue> =
                serde_json::from_slice(bytes).map_err(|e| json_problem(&e))?;
            check_count(all.len())?;
            Ok(all.into_iter().map(|raw| from_json(raw.get().as_bytes())).collect())
        }
        Encoding::MessagePack => {
            let Some((count, mut rest)) = array_head(bytes) else {
                return Ok(vec![from_msgpack(bytes)]);
            };
            check_count(count)?;
            let mut frames = Vec::with_capacity(count);
            for _ in 0..count {
                let len = item_len(rest)?;
                frames.push(from_msgpack(&rest[..len]));
                rest = &rest[len..];
            }
            if !rest.is_empty() {
                let why = format!("{} bytes follow the array of frames", rest.len());
                return Err(Problem::new(Code::BadFrame, why));
            }
            Ok(frames)
        }
    }
}

fn check_count(count: usize) -> Result<(), Problem> {
    if count <= FRAMES_MAX {
        return Ok(());
    }
    let why = format!("{count} frames in one message; at most {FRAMES_MAX}");
    Err(Problem::new(Code::BatchTooLarge, why))
}

/// The length that an array announces, and the bytes after its head.
fn array_head(bytes: &[u8]) -> Option<(usize, &[u8])> {
    match bytes {
        [head @ 0x90..=0x9f, rest @ ..] => Some((usize::from(head & 0x0f), rest)),
        [0xdc, a, b, rest @ ..] => Some((usize::from(u16::from_be_bytes([*a, *b])), rest)),
        [0xdd, a, b, c, d, rest @ ..] => {
            Some((u32::from_be_bytes([*a, *b, *c, *d]) as usize, rest))
        }
        _ => None,
    }
}

/// The length of the first MessagePack item in bytes.
fn item_len(bytes: &[u8]) -> Result<usize, Problem> {
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    reader.set_max_depth(FRAME_DEPTH_MAX);
    IgnoredAny::deserialize(&mut reader).map_err(|e| msgpack_problem(&e))?;
    Ok((reader.position() as usize).min(bytes.len()))
}

fn from_json(bytes: &[u8]) -> Result<ClientFrame, Rejected> {
    serde_json::from_slice(bytes).map_err(|error| {
        let found = serde_json::from_slice::<IdOnly>(bytes).ok();
        let problem = json_problem(&error);
        Rejected { id: found.and_then(|found| found.id()), problem }
    })
}

fn from_msgpack(bytes: &[u8]) -> Result<ClientFrame, Rejected> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(FRAME_DEPTH_MAX);
    ClientFrame::deserialize(&mut reader).map_err(|error| {
        let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
        reader.set_max_depth(FRAME_DEPTH_MAX);
        let found = IdOnly::deserialize(&mut reader).ok();
        Rejected { id: found.and_then(|found| found.id()), problem: msgpack_problem(&error) }
    })
}

fn msgpack_problem(error: &rmp_serde::decode::Error) -> Problem {
    let text = error.to_string();
    let code = if text.starts_with("unknown field") { Code::UnknownField } else { Code::BadFrame };
    Problem::new(code, with_suggestion(&text))
}

/// The part of a wrong frame that identifies it.
#[derive(Deserialize)]
struct IdOnly(std::collections::HashMap<String, MaybeId>);

#[derive(Deserialize)]
struct MaybeId {
    id: Option<u64>,
}

impl IdOnly {
    fn id(&self) -> Option<u64> {
        if self.0.len() == 1 { self.0.values().next().and_then(|inner| inner.id) } else { None }
    }
}

/// Encodes one frame.
pub fn encode<T: Serialize>(frame: &ServerFrame<T>, encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Json => serde_json::to_vec(frame).unwrap_or_default(),
        Encoding::MessagePack => rmp_serde::to_vec_named(frame).unwrap_or_default(),
    }
}

/// Joins encoded frames to one WebSocket message.
pub fn join(frames: Vec<Vec<u8>>, encoding: Encoding) -> Vec<u8> {
    if frames.len() == 1 {
        return frames.into_iter().next().unwrap_or_default();
    }
    let bytes = frames.iter().map(Vec::len).sum::<usize>() + frames.len() + 8;
    let mut all = Vec::with_capacity(bytes);
    match encoding {
        Encoding::Json => {
            all.push(b'[');
            for (at, frame) in frames.iter().enumerate() {
                if at > 0 {
                    all.push(b',');
                }
                all.extend_from_slice(frame);
            }
            all.push(b']');
        }
        Encoding::MessagePack => {
            all.push(0xdd);
            all.extend_from_slice(&(frames.len() as u32).to_be_bytes());
            frames.iter().for_each(|frame| all.extend_from_slice(frame));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use malote_wire_native::frame::{EmptyReply, PingFrame, Reply};

    use super::*;

    fn both(value: &serde_json::Value) -> [Vec<Result<ClientFrame, Rejected>>; 2] {
        [
            decode_frame(&serde_json::to_vec(value).unwrap(), Encoding::Json).unwrap(),
            decode_frame(&rmp_serde::to_vec_named(value).unwrap(), Encoding::MessagePack).unwrap(),
        ]
    }

    #[test]
    fn one_frame_or_an_array() {
        let frame = json!({"ping": {"id": 7}});
        for frames in both(&frame) {
            assert!(matches!(&frames[..], [Ok(ClientFrame::Ping(PingFrame { id: 7 }))]));
        }
        let send = json!({"send": {"id": 8, "messages": [{"queue": "q", "body": "x"}]}});
        for frames in both(&json!([frame, send])) {
            assert!(
                matches!(&frames[..], [Ok(ClientFrame::Ping(_)), Ok(ClientFrame::Send(s))] if s.messages.len() == 1)
            );
        }
        for frames in both(&json!([])) {
            assert!(frames.is_empty());
        }
    }

    #[test]
    fn a_wrong_frame_is_named_and_spares_its_neighbours() {
        let wrong = json!({"ping": {"id": 7, "pong": 1}});
        let fine = json!({"ping": {"id": 8}});
        for frames in both(&json!([wrong, fine])) {
            assert!(matches!(&frames[0], Err(r) if r.id == Some(7)), "{frames:?}");
            assert!(matches!(&frames[1], Ok(ClientFrame::Ping(PingFrame { id: 8 }))));
        }
        for frames in both(&json!({"pong": {"id": 9}})) {
            let Err(rejected) = &frames[0] else { panic!() };
            assert_eq!(rejected.id, Some(9));
            assert!(rejected.problem.detail().contains("pong"), "{rejected:?}");
        }
    }

    #[test]
    fn no_bytes_panic() {
        // A small generator. The fuzzer covers more.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let seeds: Vec<Vec<u8>> = vec![
            br#"[{"send":{"id":1,"messages":[{"queue":"q","body":{"a":[1]},"properties":{"x":{"$type":"i8","value":1}}}]}}]"#.to_vec(),
            rmp_serde::to_vec_named(&json!([{"settle": {"id": 1, "queue": "q", "items": [{"leases": ["x"], "outcome": "complete"}]}}])).unwrap(),
        ];
        for round in 0..10_000 {
            let mut bytes = seeds[round % 2].clone();
            for _ in 0..1 + round % 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 13) as u8;
                if state & 7 == 0 {
                    bytes.truncate(at + 1);
                }
            }
            let _ = decode_frame(&bytes, Encoding::Json);
            let _ = decode_frame(&bytes, Encoding::MessagePack);
        }
        let deep = [0x91].repeat(100_000);
        assert!(decode_frame(&deep, Encoding::MessagePack).is_err());
        let huge = [0xdd, 0xff, 0xff, 0xff, 0xff];
        assert!(decode_frame(&huge, Encoding::MessagePack).is_err());
        let long = [0x91, 0xc6, 0xff, 0xff, 0xff, 0xff, 0];
        assert!(decode_frame(&long, Encoding::MessagePack).is_err());
    }

    #[test]
    fn joined_frames_read_back() {
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let frame = |id| {
                let reply = Reply { id: Some(id), ok: Some(EmptyReply {}), problem: None };
                encode(&ServerFrame::Reply(reply), encoding)
            };
            let all = join(vec![frame(1), frame(2)], encoding);
            let value: serde_json::Value = match encoding {
                Encoding::Json => serde_json::from_slice(&all).unwrap(),
                Encoding::MessagePack => rmp_serde::from_slice(&all).unwrap(),
            };
            assert_eq!(
                value,
                json!([{"reply": {"id": 1, "ok": {}}}, {"reply": {"id": 2, "ok": {}}}])
            );
        }
    }
}
