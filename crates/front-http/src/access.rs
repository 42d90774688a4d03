//! Who calls, and whether they may. The server proves who it is; `Access` (model) says what they may do.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use malote_model::{
    Action, Address, DeadLetterTarget, Principal, QueueName, QueueSpec, Resource, TopicName,
};

use crate::Api;
use crate::problem::{Code, Problem};

/// What [`Authenticate`] promises to become.
pub type Authenticated<'a> =
    Pin<Box<dyn Future<Output = Result<Principal, Unauthenticated>> + Send + 'a>>;

/// Turns the headers of a request into its caller. The server implements it over its credential store.
///
/// No credential at all is [`Principal::anonymous`], not an error: what that caller may do is `Access`'s answer.
/// [`Credential::of`] reads Basic and Bearer.
pub trait Authenticate: Send + Sync {
    /// Verifies what the headers claim, which came from this address.
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: IpAddr) -> Authenticated<'a>;
}

/// A credential was given and is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unauthenticated {
    /// What is wrong with it, without the credential itself.
    pub why: String,
}

/// What a caller shows to prove who it is.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// No `Authorization` header.
    None,
    /// User name and password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A key.
    Bearer(String),
}

impl Credential {
    /// Reads `Authorization`.
    pub fn of(headers: &HeaderMap) -> Result<Self, Unauthenticated> {
        let wrong = |why: &str| Unauthenticated { why: why.into() };
        let mut all = headers.get_all(header::AUTHORIZATION).iter();
        let Some(value) = all.next() else { return Ok(Self::None) };
        if all.next().is_some() {
            return Err(wrong("the request has two Authorization headers"));
        }
        let text = value.to_str().map_err(|_| wrong("Authorization is not ASCII text"))?;
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("bearer") && !rest.trim().is_empty() {
            return Ok(Self::Bearer(rest.trim().into()));
        }
        if scheme.eq_ignore_ascii_case("basic") {
            let bytes = base64::engine::general_purpose::STANDARD.decode(rest.trim());
            let pair = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = pair.as_deref().and_then(|pair| pair.split_once(':'));
            let (user, password) =
                pair.ok_or_else(|| wrong("Basic needs base64 of user:password"))?;
            return Ok(Self::Basic { user: user.into(), password: password.into() });
        }
        Err(wrong("Authorization must be `Basic …` or `Bearer …`"))
    }
}

/// Everyone is anonymous: for a broker without credentials, and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Authenticate for Nobody {
    fn authenticate<'a>(&'a self, _: &'a HeaderMap, _: IpAddr) -> Authenticated<'a> {
        Box::pin(async { Ok(Principal::anonymous()) })
    }
}

impl Api {
    /// Whether the caller may do this to the queue. Dead letters belong to their queue.
    pub(crate) fn allow(
        &self,
        caller: &Principal,
        action: Action,
        queue: &QueueName,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, queue.into())?)
    }

    /// Whether the caller may do this to every queue there is or may ever be: only a grant on `*` says so.
    pub(crate) fn allow_everywhere(
        &self,
        caller: &Principal,
        action: Action,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, Resource::EVERYTHING)?)
    }

    /// Whether the caller may do this to the topic. Topics and queues have one name space, and so do their grants.
    pub(crate) fn allow_topic(
        &self,
        caller: &Principal,
        action: Action,
        topic: &TopicName,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, topic.into())?)
    }

    /// Whether the caller may do this to the queue or topic.
    pub(crate) fn allow_at(
        &self,
        caller: &Principal,
        action: Action,
        at: &Address,
    ) -> Result<(), Problem> {
        Ok(self.access.check(caller, action, at.into())?)
    }

    /// Whether the caller may ask for lists, which then show what it may see. Without credentials, on a server that has
    /// some, it may see nothing: it is told to sign in, since an empty list would look like an answer.
    pub(crate) fn allow_lists(&self, caller: &Principal) -> Result<(), Problem> {
        Ok(self.access.check_lists(caller)?)
    }

    /// Whether the caller may see that the queue exists: any grant on it will do.
    pub(crate) fn allow_look(&self, caller: &Principal, queue: &QueueName) -> Result<(), Problem> {
        self.allow_look_at(caller, &queue.clone().into())
    }

    /// Whether the caller may see that the queue or topic exists: any grant on it will do.
    pub(crate) fn allow_look_at(&self, caller: &Principal, at: &Address) -> Result<(), Problem> {
        let mut last = Ok(());
        for action in [Action::Manage, Action::Send, Action::Receive] {
            last = self.allow_at(caller, action, at);
            if last.is_ok() {
                return Ok(());
            }
        }
        last
    }

    /// Does what may take long, as long as the caller is allowed to: permission is checked again when it may have
    /// changed. What is given up in the middle must not have happened.
    pub(crate) async fn while_allowed<T>(
        &self,
        caller: &Principal,
        action: Action,
        queue: &QueueName,
        work: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        let mut work = std::pin::pin!(work);
        loop {
            let seen = self.access.version();
            self.allow(caller, action, queue)?;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                _ = self.access.changed(seen) => {}
            }
        }
    }

    /// Whether the caller may let messages of a queue go where its new specification sends them: whoever manages one
    /// queue must not reach another through it. What was so before was allowed to somebody.
    pub(crate) fn allow_targets(
        &self,
        caller: &Principal,
        before: &QueueSpec,
        spec: &QueueSpec,
    ) -> Result<(), Problem> {
        let dead_letters = match &spec.dead_letter {
            target if *target == before.dead_letter => None,
            DeadLetterTarget::Queue(queue) => Some(queue.clone().into()),
            DeadLetterTarget::Topic { topic, .. } => Some(topic.clone().into()),
            DeadLetterTarget::Own | DeadLetterTarget::Drop => None,
        };
        let forward_to = spec.forward_to.clone().filter(|_| spec.forward_to != before.forward_to);
        for target in dead_letters.into_iter().chain(forward_to) {
            self.allow_at(caller, Action::Send, &target)?;
        }
        Ok(())
    }
}

impl From<Unauthenticated> for Problem {
    fn from(error: Unauthenticated) -> Self {
        Problem::new(Code::Unauthenticated, error.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Result<Credential, Unauthenticated> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        Credential::of(&headers)
    }

    #[test]
    fn basic_and_bearer_are_read() {
        assert!(Credential::of(&HeaderMap::new()) == Ok(Credential::None));
        let (user, password) = ("ana".to_owned(), "a:b".to_owned());
        assert!(of("Basic YW5hOmE6Yg==") == Ok(Credential::Basic { user, password }));
        assert!(of("bearer k1") == Ok(Credential::Bearer("k1".into())));
        for bad in ["Basic ???", "Basic", "Digest x", "Bearer ", "Basic YW5h"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
