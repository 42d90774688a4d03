//! The frames of the SASL layer (part 5, section 5.3).

use bytes::{Bytes, BytesMut};

use crate::types::{DecodeFault, Decoded, Reader, Str, Symbol};

use super::composite::{Composite, composite, read_descriptor, read_list};
use super::field::{SaslCode, Symbols};

composite! {
    /// The mechanisms of the server.
    SaslMechanisms = "amqp:sasl-mechanisms:list", 0x40, fields_min 0 {
        /// In order of preference.
        required sasl_server_mechanisms: Symbols,
    }
}

composite! {
    /// The mechanism chosen by the client.
    SaslInit = "amqp:sasl-init:list", 0x41, fields_min 0 {
        required mechanism: Symbol,
        /// Initial data of the mechanism.
        optional initial_response: Bytes,
        /// The host that the client connects to.
        optional hostname: Str,
    }
}

composite! {
    /// A challenge of the server.
    SaslChallenge = "amqp:sasl-challenge:list", 0x42, fields_min 0 {
        /// Data of the mechanism.
        required challenge: Bytes,
    }
}

composite! {
    /// The client's response.
    SaslResponse = "amqp:sasl-response:list", 0x43, fields_min 0 {
        /// Data of the mechanism.
        required response: Bytes,
    }
}

composite! {
    SaslOutcome = "amqp:sasl-outcome:list", 0x44, fields_min 2 {
        required code: SaslCode,
        /// Data of the mechanism.
        optional additional_data: Bytes,
    }
}

/// Any SASL frame.
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
            _ => return Err(DecodeFault::UnknownDescriptor.into()),
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
