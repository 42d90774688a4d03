//! The frames of the SASL layer (part 5, section 5.3).

use bytes::{Bytes, BytesMut};

use crate::types::{Decoded, Fault, Reader, Str, Symbol};

use super::composite::{Composite, composite, read_descriptor, read_list};
use super::field::{SaslCode, Symbols};

composite! {
    /// What the server offers.
    SaslMechanisms = "amqp:sasl-mechanisms:list", 0x40, fields_min 0 {
        /// Names, best first.
        required sasl_server_mechanisms: Symbols,
    }
}

composite! {
    /// What the client has chosen.
    SaslInit = "amqp:sasl-init:list", 0x41, fields_min 0 {
        /// One of those offered.
        required mechanism: Symbol,
        /// What the mechanism begins with.
        optional initial_response: Bytes,
        /// The host the client means.
        optional hostname: Str,
    }
}

composite! {
    /// The server asks.
    SaslChallenge = "amqp:sasl-challenge:list", 0x42, fields_min 0 {
        /// The mechanism's own bytes.
        required challenge: Bytes,
    }
}

composite! {
    /// The client answers.
    SaslResponse = "amqp:sasl-response:list", 0x43, fields_min 0 {
        /// The mechanism's own bytes.
        required response: Bytes,
    }
}

composite! {
    /// How it ended.
    SaslOutcome = "amqp:sasl-outcome:list", 0x44, fields_min 2 {
        /// Whether the client is who it says.
        required code: SaslCode,
        /// The mechanism's own bytes.
        optional additional_data: Bytes,
    }
}

/// Any of them.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named after the types they hold")]
pub enum SaslFrame {
    Mechanisms(SaslMechanisms),
    Init(SaslInit),
    Challenge(SaslChallenge),
    Response(SaslResponse),
    Outcome(SaslOutcome),
}

impl SaslFrame {
    /// Reads the body of a SASL frame.
    pub fn decode(body: &Bytes) -> Decoded<SaslFrame> {
        let reader = &mut Reader::new(body);
        let code = reader.u8()?;
        let frame = match read_descriptor(code, reader)? {
            SaslMechanisms::CODE => SaslFrame::Mechanisms(read_list(reader)?),
            SaslInit::CODE => SaslFrame::Init(read_list(reader)?),
            SaslChallenge::CODE => SaslFrame::Challenge(read_list(reader)?),
            SaslResponse::CODE => SaslFrame::Response(read_list(reader)?),
            SaslOutcome::CODE => SaslFrame::Outcome(read_list(reader)?),
            _ => return Err(Fault::UnknownDescriptor.into()),
        };
        reader.expect_end()?;
        Ok(frame)
    }

    /// Writes the body of a SASL frame.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            SaslFrame::Mechanisms(frame) => frame.encode(out),
            SaslFrame::Init(frame) => frame.encode(out),
            SaslFrame::Challenge(frame) => frame.encode(out),
            SaslFrame::Response(frame) => frame.encode(out),
            SaslFrame::Outcome(frame) => frame.encode(out),
        }
    }
}
