//! The credential store as each front end uses it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use malote_front_http::{Authenticate, Authenticated, Credential, Unauthenticated};
use malote_front_servicebus as servicebus;
use malote_model::Principal;

use crate::credentials::{KeyKind, Store};
use crate::net::Tls;

/// Access keys of SQS.
pub(crate) struct AccessKeys(pub Arc<Store>);

impl malote_front_sqs::Keys for AccessKeys {
    fn open(&self) -> bool {
        self.0.is_open()
    }

    fn secret(&self, access_key: &str) -> Option<(Arc<str>, Principal)> {
        let key = self.0.secret_of(KeyKind::Aws, access_key)?;
        Some((key.secret, key.principal))
    }
}

/// Callers of the HTTP API.
pub(crate) struct HttpAuthenticator(pub Arc<Store>);

impl Authenticate for HttpAuthenticator {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: IpAddr) -> Authenticated<'a> {
        Box::pin(async move {
            let wrong = |why: &str| Unauthenticated { why: why.into() };
            match Credential::of(headers)? {
                Credential::None => Ok(Principal::anonymous()),
                Credential::Basic { user, password } => {
                    let found = self.0.verify_password(&user, &password, peer).await;
                    found.ok_or_else(|| wrong("wrong user name or password"))
                }
                Credential::Bearer(token) => {
                    self.0.verify_token(&token).ok_or_else(|| wrong("unknown token"))
                }
            }
        })
    }
}

/// Keys and passwords of Service Bus.
pub(crate) struct ServiceBusKeys {
    pub store: Arc<Store>,
    pub tls: Option<Arc<Tls>>,
}

impl servicebus::Keys for ServiceBusKeys {
    fn is_open(&self) -> bool {
        self.store.is_open()
    }

    fn key(&self, name: &str) -> Option<servicebus::Key> {
        let found = self.store.secret_of(KeyKind::ServiceBus, name)?;
        Some(servicebus::Key { secret: found.secret, principal: found.principal })
    }

    fn verify_password<'a>(
        &'a self,
        user: &'a str,
        password: &'a str,
        peer: IpAddr,
    ) -> servicebus::Verified<'a> {
        Box::pin(self.store.verify_password(user, password, peer))
    }

    fn verify_token(&self, token: &str) -> Option<Principal> {
        self.store.verify_token(token)
    }

    fn is_own_name(&self, name: &str) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_for(name))
    }
}
