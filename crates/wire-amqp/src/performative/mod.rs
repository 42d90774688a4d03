//! The composite types of transport, messaging, transactions and security, as structs.
//!
//! Each is declared like its table in the specification; see `composite.rs`. Sections of a message are in
//! [`crate::message`].

mod composite;
mod error;
mod field;
mod sasl;
mod state;
mod terminus;
mod transport;

pub use composite::{Composite, Fields};
pub(crate) use composite::{composite, read_described, read_descriptor, write_list};
pub use error::{AmqpError, condition};
pub use field::{Field, ReceiverSettleMode, Role, SaslCode, SenderSettleMode, Symbols, Timestamp};
pub use sasl::{SaslChallenge, SaslFrame, SaslInit, SaslMechanisms, SaslOutcome, SaslResponse};
pub use state::{
    Accepted, Declare, Declared, DeliveryState, Discharge, Modified, Received, Rejected, Released,
    TransactionalState,
};
pub use terminus::{AnyTarget, Coordinator, Source, Target};
pub use transport::{
    Attach, Begin, Close, Detach, Disposition, End, Flow, Open, Performative, Transfer,
};

/// The numeric descriptor of a symbolic one. Symbolic descriptors are rare but valid.
pub(crate) fn code_of(name: &str) -> Option<u64> {
    use crate::message::{
        AMQP_SEQUENCE, AMQP_VALUE, APPLICATION_PROPERTIES, DATA, DELIVERY_ANNOTATIONS, FOOTER,
        Header, MESSAGE_ANNOTATIONS, Properties,
    };
    macro_rules! names {
        ($($type:ty),* $(,)?) => { &[$((<$type>::NAME, <$type>::CODE)),*] };
    }
    let composites: &[(&str, u64)] = names![
        Open,
        Begin,
        Attach,
        Flow,
        Transfer,
        Disposition,
        Detach,
        End,
        Close,
        AmqpError,
        Source,
        Target,
        Coordinator,
        Received,
        Accepted,
        Rejected,
        Released,
        Modified,
        Declare,
        Discharge,
        Declared,
        TransactionalState,
        SaslMechanisms,
        SaslInit,
        SaslChallenge,
        SaslResponse,
        SaslOutcome,
        Header,
        Properties,
    ];
    let sections = [
        ("amqp:delivery-annotations:map", DELIVERY_ANNOTATIONS),
        ("amqp:message-annotations:map", MESSAGE_ANNOTATIONS),
        ("amqp:application-properties:map", APPLICATION_PROPERTIES),
        ("amqp:data:binary", DATA),
        ("amqp:amqp-sequence:list", AMQP_SEQUENCE),
        ("amqp:amqp-value:*", AMQP_VALUE),
        ("amqp:footer:map", FOOTER),
    ];
    composites.iter().chain(&sections).find(|(known, _)| *known == name).map(|(_, code)| *code)
}
