//! What a connection has authenticated as: by SASL, and by tokens put at `$cbs`.

use std::net::IpAddr;
use std::sync::Arc;

use malote_model::{
    Action, AuditAction, AuditEntry, AuditPending, AuditProtocol, Denied, Principal, Resource,
    Timestamp,
};
use malote_wire_amqp::performative::AmqpError;

use super::resolve::Entity;
use crate::Front;
use crate::refusal::denied_error;
use crate::wire::address::EntityPath;
use crate::wire::sas::TokenScope;

/// The credentials of a connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Claims {
    pub(super) peer: IpAddr,
    signed_in: Option<Principal>,
    pub(super) tokens: Arc<Vec<Claim>>,
}

/// A verified token.
#[derive(Clone)]
pub(super) struct Claim {
    pub scope: TokenScope,
    pub who: Principal,
    pub expires: Timestamp,
}

impl Claims {
    /// A connection that has not authenticated.
    pub fn of(peer: IpAddr) -> Claims {
        Claims { peer, signed_in: None, tokens: Arc::default() }
    }

    /// Begins the audit of an administrative operation on an entity that needs this permission.
    pub fn begin_audit(
        &self,
        front: &Front,
        (action, needs): (AuditAction, Action),
        entity: &Entity,
        detail: &str,
    ) -> AuditPending {
        let who = self.who(&entity.path(), front.engine.now());
        let entry = AuditEntry::new(AuditProtocol::ServiceBus, action).from(self.peer);
        let object = entity.resource().name().unwrap_or_default();
        AuditPending::begin(&front.access, (&who, needs), entry.detail(detail), object)
    }

    pub fn signed_in(&mut self, who: Option<Principal>) {
        self.signed_in = who;
    }

    /// The principal for operations on an entity: that of the most specific token that covers it.
    fn who(&self, path: &EntityPath, now: Timestamp) -> Principal {
        let name = path.to_string();
        let covers = |claim: &&Claim| claim.expires > now && claim.scope.covers(&name);
        let closest = self.tokens.iter().filter(covers).max_by_key(|claim| claim.scope.len());
        let who = closest.map(|claim| claim.who.clone()).or_else(|| self.signed_in.clone());
        who.unwrap_or(Principal::anonymous())
    }

    /// When the next token expires.
    pub fn earliest_expiry(&self) -> Option<Timestamp> {
        let ends = self.tokens.iter().map(|claim| claim.expires);
        ends.min().filter(|end| *end < Timestamp(u64::MAX))
    }

    pub fn remove_expired(&mut self, now: Timestamp) {
        Arc::make_mut(&mut self.tokens).retain(|claim| claim.expires > now);
    }

    /// Whether the caller has logged in or put a token that is still valid.
    pub fn is_authenticated(&self, front: &Front) -> bool {
        let now = front.engine.now();
        let tokens = self.tokens.iter().filter(|claim| claim.expires > now);
        front.keys.is_open()
            || self
                .signed_in
                .iter()
                .chain(tokens.map(|claim| &claim.who))
                .any(|who| !who.is_anonymous() && front.access.knows(who))
    }

    /// Checks a permission on an entity.
    pub fn check(&self, front: &Front, action: Action, entity: &Entity) -> Result<(), AmqpError> {
        self.check_any(front, &[action], entity)
    }

    /// Checks that the caller has at least one of the permissions on an entity.
    pub fn check_any(
        &self,
        front: &Front,
        actions: &[Action],
        entity: &Entity,
    ) -> Result<(), AmqpError> {
        let may = self.may_any(front, actions, &entity.path(), entity.resource());
        may.map_err(|denied| denied_error(&denied))
    }

    /// Like [`Claims::check_any`], for a resource with another spelling than the address.
    pub fn may_any(
        &self,
        front: &Front,
        actions: &[Action],
        path: &EntityPath,
        on: Resource<'_>,
    ) -> Result<(), Denied> {
        let who = self.who(path, front.engine.now());
        let mut last = Ok(());
        for action in actions {
            last = front.access.check(&who, *action, on);
            if last.is_ok() {
                break;
            }
        }
        last
    }
}
