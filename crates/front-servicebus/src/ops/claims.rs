//! Who calls: SASL, and tokens put at `$cbs`.

use std::net::IpAddr;
use std::sync::Arc;

use malote_model::{
    Action, AuditAction, AuditEntry, AuditPending, AuditProtocol, Denied, Principal, Resource,
    Timestamp,
};
use malote_wire_amqp::performative::AmqpError;

use super::resolve::Entity;
use crate::Front;
use crate::refusal::of_denied;
use crate::wire::address::Path;
use crate::wire::sas::Scope;

/// What a connection has shown so far. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Claims {
    /// From where.
    pub(super) peer: IpAddr,
    signed_in: Option<Principal>,
    pub(super) tokens: Arc<Vec<Claim>>,
}

/// A token that was believed.
#[derive(Clone)]
pub(super) struct Claim {
    pub scope: Scope,
    pub who: Principal,
    pub expires: Timestamp,
}

impl Claims {
    /// A connection from there, which has shown nothing yet.
    pub fn of(peer: IpAddr) -> Claims {
        Claims { peer, signed_in: None, tokens: Arc::default() }
    }

    /// Begins an administrative operation on an entity, which needs this permission.
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

    /// Who calls, when it is about this entity: by the token that is closest to it.
    fn who(&self, path: &Path, now: Timestamp) -> Principal {
        let name = path.to_string();
        let covers = |claim: &&Claim| claim.expires > now && claim.scope.covers(&name);
        let closest = self.tokens.iter().filter(covers).max_by_key(|claim| claim.scope.len());
        let who = closest.map(|claim| claim.who.clone()).or_else(|| self.signed_in.clone());
        who.unwrap_or(Principal::anonymous())
    }

    /// When the first of the tokens runs out.
    pub fn first_end(&self) -> Option<Timestamp> {
        let ends = self.tokens.iter().map(|claim| claim.expires);
        ends.min().filter(|end| *end < Timestamp(u64::MAX))
    }

    /// Forgets tokens that have run out.
    pub fn forget_ended(&mut self, now: Timestamp) {
        Arc::make_mut(&mut self.tokens).retain(|claim| claim.expires > now);
    }

    /// Whether somebody has signed in or put a token that is valid now.
    pub fn is_known(&self, front: &Front) -> bool {
        let now = front.engine.now();
        let tokens = self.tokens.iter().filter(|claim| claim.expires > now);
        front.keys.is_open()
            || self
                .signed_in
                .iter()
                .chain(tokens.map(|claim| &claim.who))
                .any(|who| !who.is_anonymous() && front.access.knows(who))
    }

    /// Whether the caller may do this to the entity.
    pub fn check(&self, front: &Front, action: Action, entity: &Entity) -> Result<(), AmqpError> {
        self.check_any(front, &[action], entity)
    }

    /// Whether the caller may do any of these to the entity.
    pub fn check_any(
        &self,
        front: &Front,
        actions: &[Action],
        entity: &Entity,
    ) -> Result<(), AmqpError> {
        let may = self.may_any(front, actions, &entity.path(), entity.resource());
        may.map_err(|denied| of_denied(&denied))
    }

    /// Whether the caller, as it is known at this address, may do any of these to that resource.
    pub fn may_any(
        &self,
        front: &Front,
        actions: &[Action],
        path: &Path,
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
