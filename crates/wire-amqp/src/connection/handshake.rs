//! Protocol headers and the SASL exchange. The owner implements the mechanisms.

use bytes::Bytes;

use crate::frame::{FrameError, Protocol, take_protocol};
use crate::performative::{
    AmqpError, SaslChallenge, SaslCode, SaslFrame, SaslInit, SaslMechanisms, SaslOutcome,
    SaslResponse, Symbols, condition,
};

use super::{Connection, Event, Phase, ProtocolViolation, Side, UseError, illegal};

impl Connection {
    pub(super) fn step_header(&mut self, expected: Protocol) -> bool {
        if self.input.is_empty() {
            return false;
        }
        match take_protocol(&mut self.input) {
            Ok(None) => return false,
            Ok(Some(found)) if found == expected => self.take_header(found),
            found => {
                // A server replies with the header it supports, and closes the connection (section 2.2).
                if self.side == Side::Server {
                    self.wire.raw(&expected.header());
                }
                let text = match found {
                    Err(FrameError::Header) => "the peer does not use AMQP 1.0",
                    _ => "the peer requested another protocol layer",
                };
                self.phase = Phase::Over;
                let error = AmqpError::new(condition::FRAMING_ERROR, text);
                self.events.push_back(Event::Failed(error));
            }
        }
        true
    }

    fn take_header(&mut self, found: Protocol) {
        if self.side == Side::Server {
            self.wire.raw(&found.header());
        }
        if found != Protocol::Sasl {
            self.phase = Phase::Running;
            return;
        }
        self.phase = Phase::Sasl;
        if self.side == Side::Server {
            let offered = Symbols(self.config.mechanisms.clone());
            let mechanisms = SaslMechanisms { sasl_server_mechanisms: offered };
            self.wire.sasl(&SaslFrame::Mechanisms(mechanisms));
        }
    }

    pub(super) fn take_sasl(&mut self, body: &Bytes) -> Result<(), ProtocolViolation> {
        let frame = SaslFrame::decode(body).map_err(AmqpError::from)?;
        let event = match (self.side, frame) {
            (Side::Server, SaslFrame::Init(init)) => Event::SaslInit(init),
            (Side::Server, SaslFrame::Response(response)) => Event::SaslResponse(response),
            (Side::Client, SaslFrame::Mechanisms(offered)) => Event::SaslMechanisms(offered),
            (Side::Client, SaslFrame::Challenge(challenge)) => Event::SaslChallenge(challenge),
            (Side::Client, SaslFrame::Outcome(outcome)) => {
                self.end_sasl(outcome.code);
                if self.phase == Phase::Header(Protocol::Amqp) {
                    self.wire.raw(&Protocol::Amqp.header());
                }
                self.events.push_back(Event::SaslOutcome(outcome));
                return Ok(());
            }
            _ => return Err(illegal("unexpected SASL frame for this role").into()),
        };
        self.phase = Phase::SaslAnswer;
        self.events.push_back(event);
        Ok(())
    }

    fn end_sasl(&mut self, code: SaslCode) {
        self.phase = match code {
            SaslCode::Ok => Phase::Header(Protocol::Amqp),
            _ => Phase::Over,
        };
    }

    fn answer_sasl(&mut self, side: Side, frame: &SaslFrame) -> Result<(), UseError> {
        if self.side != side || self.phase != Phase::SaslAnswer {
            return Err(UseError::OutOfTurn);
        }
        self.wire.sasl(frame);
        self.phase = Phase::Sasl;
        Ok(())
    }

    /// A client's choice of a mechanism.
    pub fn sasl_init(&mut self, init: SaslInit) -> Result<(), UseError> {
        self.answer_sasl(Side::Client, &SaslFrame::Init(init))
    }

    /// A client's reply to a challenge.
    pub fn sasl_response(&mut self, response: Bytes) -> Result<(), UseError> {
        self.answer_sasl(Side::Client, &SaslFrame::Response(SaslResponse { response }))
    }

    pub fn sasl_challenge(&mut self, challenge: Bytes) -> Result<(), UseError> {
        self.answer_sasl(Side::Server, &SaslFrame::Challenge(SaslChallenge { challenge }))
    }

    /// A server's decision. All codes except [`SaslCode::Ok`] end the connection.
    pub fn sasl_outcome(&mut self, code: SaslCode) -> Result<(), UseError> {
        let outcome = SaslOutcome { code, additional_data: None };
        self.answer_sasl(Side::Server, &SaslFrame::Outcome(outcome))?;
        self.end_sasl(code);
        Ok(())
    }
}
