//! The frames of the native connection, and their bytes.
//!
//! A frame is a map of one entry: `{"send": {"id": 1, "messages": […]}}`. A WebSocket message carries one frame or an
//! array of frames. The same structs are JSON (`malote.v1.json`) and MessagePack (`malote.v1.msgpack`).

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::extract::{json_problem, with_suggestion};
use crate::problem::{Code, Problem};
use crate::wire::Encoding;
use crate::wire::message::{NewMessage, Received};
use crate::wire::receive::Mode;
use crate::wire::settle::{SettleIn, StateIn};
use crate::wire::spec::SpecIn;

/// Frames of one WebSocket message.
pub const FRAMES_MAX: usize = 4096;
/// How deep a frame may nest: properties have their own, smaller bound.
const DEPTH_MAX: usize = 64;

/// What a client asks. `id` is the client's own and comes back in the reply.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Frame {
    /// Sends all or none, to queues and topics.
    Send(SendFrame),
    /// Makes a queue, or finds it just as asked.
    Declare(DeclareFrame),
    /// Begins a transaction.
    Begin(BeginFrame),
    /// Does all of a transaction, or nothing.
    Commit(CommitFrame),
    /// Gives a transaction up.
    Rollback(RollbackFrame),
    /// Starts to consume.
    Attach(AttachFrame),
    /// Adds to a consumer's credit, or replaces it.
    Credit(CreditFrame),
    /// Ends a consumer.
    Detach(DetachFrame),
    /// Deferred messages by their sequences.
    ReceiveDeferred(DeferredFrame),
    /// Ends leases.
    Settle(SettleFrame),
    /// Prolongs leases or holds.
    Renew(RenewFrame),
    /// Holds a session.
    Accept(AcceptFrame),
    /// Lets go of a session.
    Release(ReleaseFrame),
    /// The state of a session.
    GetState(GetStateFrame),
    /// Sets or clears the state of a held session.
    SetState(SetStateFrame),
    /// Sessions of a queue, a page of them.
    ListSessions(ListSessionsFrame),
    /// What a queue holds, for whoever scales workers.
    Depth(DepthFrame),
    /// Takes a lost connection up again; must be the first frame.
    Resume(ResumeFrame),
    /// Asks for a sign of life.
    Ping(PingFrame),
}

macro_rules! frames {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_attr:meta])* $field:ident: $kind:ty,)* })+) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Deserialize)]
            #[serde(deny_unknown_fields)]
            #[allow(missing_docs)]
            pub struct $name {
                pub id: u64,
                $($(#[$field_attr])* pub $field: $kind,)*
            }
        )+
    };
}

fn one() -> u32 {
    1
}

frames! {
    /// Each message names its queue or topic. With a transaction it is only staged.
    SendFrame { messages: Vec<NewMessage>, transaction: Option<u64>, }
    /// Without a name the server gives one, and the queue is exclusive unless its specification says otherwise.
    DeclareFrame { queue: Option<String>, #[serde(default)] spec: SpecIn, }
    /// `transaction` is the client's own number for it.
    BeginFrame { transaction: u64, }
    /// Answered as a send.
    CommitFrame { transaction: u64, }
    /// Nothing of it happens.
    RollbackFrame { transaction: u64, }
    /// `consumer` is the client's own number for it.
    AttachFrame {
        consumer: u64,
        queue: String,
        credit: u32,
        #[serde(default)] mode: Mode,
        lock_ms: Option<u64>,
        session_token: Option<String>,
        #[serde(default = "one")] per_session: u32,
    }
    /// `replace` with 0 stops deliveries.
    CreditFrame { consumer: u64, credit: u32, #[serde(default)] replace: bool, }
    /// What is out stays out.
    DetachFrame { consumer: u64, }
    /// Bound to this connection.
    DeferredFrame {
        queue: String,
        seqs: Vec<u64>,
        session_token: Option<String>,
        #[serde(default)] mode: Mode,
    }
    /// Each item on its own outcome.
    SettleFrame { queue: String, items: Vec<SettleIn>, transaction: Option<u64>, }
    /// Leases or session tokens.
    RenewFrame { queue: String, leases: Vec<String>, lock_ms: Option<u64>, }
    /// By name, or the next that is ready.
    AcceptFrame {
        queue: String,
        session: Option<String>,
        #[serde(default)] wait_ms: u64,
        lock_ms: Option<u64>,
    }
    /// What is out of it comes back uncounted.
    ReleaseFrame { queue: String, token: String, }
    /// Without a token an operator looks.
    GetStateFrame { queue: String, session: String, token: Option<String>, }
    /// Neither `state` nor `state_base64` clears it.
    SetStateFrame { queue: String, change: StateIn, transaction: Option<u64>, }
    /// `after` is the `next` of the page before.
    ListSessionsFrame { queue: String, after: Option<String>, max: Option<u64>, }
    /// Answered with `depth`.
    DepthFrame { queue: String, }
    /// `leases` are those that the client knows of: what else was out to it is delivered again.
    ResumeFrame { connection: u64, secret: String, leases: Option<Vec<String>>, }
    /// Answered at once.
    PingFrame {}
}

/// A frame that cannot be understood. The others of its message can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The client's own, if it can be found.
    pub id: Option<u64>,
    /// What is wrong.
    pub problem: Problem,
}

/// The frames of one WebSocket message. Any bytes will do: nothing panics, nothing grows beyond what is given.
pub fn decode_frame(
    bytes: &[u8],
    encoding: Encoding,
) -> Result<Vec<Result<Frame, Rejected>>, Problem> {
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
                let why = format!("{} bytes stand after the array of frames", rest.len());
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

/// How many items an array announces, and what follows its head.
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

/// Bytes of the first MessagePack item.
fn item_len(bytes: &[u8]) -> Result<usize, Problem> {
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    reader.set_max_depth(DEPTH_MAX);
    IgnoredAny::deserialize(&mut reader).map_err(|e| msgpack_problem(&e))?;
    Ok((reader.position() as usize).min(bytes.len()))
}

fn from_json(bytes: &[u8]) -> Result<Frame, Rejected> {
    serde_json::from_slice(bytes).map_err(|error| {
        let found = serde_json::from_slice::<IdOnly>(bytes).ok();
        let problem = json_problem(&error);
        Rejected { id: found.and_then(|found| found.id()), problem }
    })
}

fn from_msgpack(bytes: &[u8]) -> Result<Frame, Rejected> {
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    reader.set_max_depth(DEPTH_MAX);
    Frame::deserialize(&mut reader).map_err(|error| {
        let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
        reader.set_max_depth(DEPTH_MAX);
        let found = IdOnly::deserialize(&mut reader).ok();
        Rejected { id: found.and_then(|found| found.id()), problem: msgpack_problem(&error) }
    })
}

fn msgpack_problem(error: &rmp_serde::decode::Error) -> Problem {
    let text = error.to_string();
    let code = if text.starts_with("unknown field") { Code::UnknownField } else { Code::BadFrame };
    Problem::new(code, with_suggestion(&text))
}

/// As much of a wrong frame as is needed to say which one it was.
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

/// What the server says.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Says<T> {
    /// First of all, once for each socket.
    Welcome(Welcome),
    /// The answer to one frame.
    Reply(Reply<T>),
    /// Messages for a consumer, within its credit.
    Deliver(Deliver),
    /// A consumer ended by itself: its queue was deleted or its hold was lost.
    Ended(Ended),
}

/// How to come back, and what is allowed.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Welcome {
    pub connection: u64,
    pub secret: String,
    pub reconnect_grace_ms: u64,
    pub limits: WelcomeLimits,
}

/// What is allowed on this connection.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct WelcomeLimits {
    pub frame_bytes_max: u64,
    pub frames_max: u64,
    pub requests_max: u64,
    pub sends_max: u64,
    pub send_bytes_max: u64,
    pub consumers_max: u64,
    pub transactions_max: u64,
    pub staged_bytes_max: u64,
    pub ping_every_ms: u64,
    pub silence_max_ms: u64,
}

/// `ok` or `problem`; `id` is absent when the frame could not be read so far.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Reply<T> {
    pub id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Messages for a consumer.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Deliver {
    pub consumer: u64,
    pub messages: Vec<Received>,
}

/// The end of a consumer.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Ended {
    pub consumer: u64,
    pub problem: Problem,
}

/// An answer without content.
#[derive(Debug, Serialize)]
pub struct Nothing {}

/// One frame as bytes.
pub fn encode<T: Serialize>(says: &Says<T>, encoding: Encoding) -> Vec<u8> {
    match encoding {
        Encoding::Json => serde_json::to_vec(says).unwrap_or_default(),
        Encoding::MessagePack => rmp_serde::to_vec_named(says).unwrap_or_default(),
    }
}

/// Several encoded frames as one message.
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

    use super::*;

    fn both(value: &serde_json::Value) -> [Vec<Result<Frame, Rejected>>; 2] {
        [
            decode_frame(&serde_json::to_vec(value).unwrap(), Encoding::Json).unwrap(),
            decode_frame(&rmp_serde::to_vec_named(value).unwrap(), Encoding::MessagePack).unwrap(),
        ]
    }

    #[test]
    fn one_frame_or_an_array() {
        let frame = json!({"ping": {"id": 7}});
        for frames in both(&frame) {
            assert!(matches!(&frames[..], [Ok(Frame::Ping(PingFrame { id: 7 }))]));
        }
        let send = json!({"send": {"id": 8, "messages": [{"queue": "q", "body": "x"}]}});
        for frames in both(&json!([frame, send])) {
            assert!(
                matches!(&frames[..], [Ok(Frame::Ping(_)), Ok(Frame::Send(s))] if s.messages.len() == 1)
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
            assert!(matches!(&frames[1], Ok(Frame::Ping(PingFrame { id: 8 }))));
        }
        for frames in both(&json!({"pong": {"id": 9}})) {
            let Err(rejected) = &frames[0] else { panic!() };
            assert_eq!(rejected.id, Some(9));
            assert!(rejected.problem.detail().contains("pong"), "{rejected:?}");
        }
    }

    #[test]
    fn no_bytes_panic() {
        // A small generator: the fuzzer does the rest.
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
                let reply = Reply { id: Some(id), ok: Some(Nothing {}), problem: None };
                encode(&Says::Reply(reply), encoding)
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
