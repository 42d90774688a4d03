//! SASL: `PLAIN` authenticates with a shared access key or a user's password; the other mechanisms leave it to `$cbs`.

use std::net::IpAddr;

use malote_model::{AuditProtocol, CallerKind, Principal};
use malote_wire_amqp::connection::UseError;
use malote_wire_amqp::performative::{SaslCode, SaslInit};
use subtle::ConstantTimeEq;

use super::cbs::login;
use crate::Front;
use crate::conn::{Completion, Conn};

pub(crate) enum SaslMechanism {
    /// The client authenticates later, at `$cbs`.
    Anonymous,
    Plain {
        user: String,
        password: String,
    },
}

impl SaslMechanism {
    pub fn of(init: &SaslInit) -> Option<SaslMechanism> {
        match init.mechanism.as_str() {
            "ANONYMOUS" | "EXTERNAL" | "MSSBCBS" => Some(SaslMechanism::Anonymous),
            "PLAIN" => {
                let response = init.initial_response.as_ref()?;
                let mut parts = std::str::from_utf8(response).ok()?.split('\0');
                let (_, user, password) = (parts.next()?, parts.next()?, parts.next()?);
                let (user, password) = (user.to_owned(), password.to_owned());
                parts.next().is_none().then_some(SaslMechanism::Plain { user, password })
            }
            _ => None,
        }
    }
}

/// Verifies a name and password: a shared access key, or a user.
pub(crate) async fn verify_plain(
    front: &Front,
    user: &str,
    password: &str,
    peer: IpAddr,
) -> Option<Principal> {
    if front.keys.is_open() {
        return Some(Principal::anonymous());
    }
    if let Some(key) = front.keys.key(user) {
        let good = bool::from(key.secret.as_bytes().ct_eq(password.as_bytes()));
        return good.then_some(key.principal);
    }
    front.keys.verify_password(user, password, peer).await
}

/// Records a SASL login in the audit log.
pub(crate) fn record_sasl(
    front: &Front,
    peer: IpAddr,
    user: Option<&str>,
    who: Option<&Principal>,
) {
    let audit = front.access.audit();
    match (who, user) {
        (Some(who), _) => audit.signed_in(who, peer, AuditProtocol::ServiceBus),
        (None, Some(user)) => {
            let entry = login(peer).claimed(user, CallerKind::User);
            audit.record(entry.refused("wrong_credentials"));
        }
        (None, None) => audit.record(login(peer).refused("unknown_mechanism")),
    }
}

impl Conn {
    pub(crate) fn authenticate(&mut self, init: &SaslInit) -> Result<(), UseError> {
        match SaslMechanism::of(init) {
            // The client will put a token at `$cbs`.
            Some(SaslMechanism::Anonymous) => self.amqp.sasl_outcome(SaslCode::Ok),
            Some(SaslMechanism::Plain { user, password }) => {
                let (front, peer) = (self.front.clone(), self.peer.address);
                self.start(async move {
                    let who = verify_plain(&front, &user, &password, peer).await;
                    record_sasl(&front, peer, Some(&user), who.as_ref());
                    Completion::Sasl(who)
                });
                Ok(())
            }
            None => {
                record_sasl(&self.front, self.peer.address, None, None);
                self.amqp.sasl_outcome(SaslCode::Auth)
            }
        }
    }
}
