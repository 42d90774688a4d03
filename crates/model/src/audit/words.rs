//! The stable identifiers of protocols, actions and callers in the log.

use std::fmt;
use std::str::FromStr;

use super::{CALLER_BYTES_MAX, clean};

/// An unknown identifier, such as an action that a newer version wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not one of: {known}")]
pub struct UnknownWord {
    /// The identifier as written.
    pub text: String,
    /// The known identifiers.
    pub known: String,
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All variants, in the order of the declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The stable identifier.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                $name::ALL.iter().copied().find(|one| one.as_str() == text).ok_or_else(|| {
                    let known: Vec<&str> = $name::ALL.iter().map(|one| one.as_str()).collect();
                    UnknownWord { text: clean(text, CALLER_BYTES_MAX), known: known.join(", ") }
                })
            }
        }
    };
}

words! {
    /// How a caller was authenticated.
    CallerKind {
        /// Not at all.
        Anonymous "anonymous",
        /// With a password.
        User "user",
        /// With a signature by a key.
        Key "key",
        /// With a bearer token.
        Token "token",
        /// As a user of the operating system, on the machine of the data directory.
        OsUser "os_user",
        /// The server itself.
        Server "server",
    }
}

words! {
    /// How an operation reached the server.
    AuditProtocol {
        /// The native HTTP API.
        Http "http",
        /// The native WebSocket connection.
        Native "native",
        /// Amazon SQS: AWS JSON and Query/XML.
        Sqs "sqs",
        /// Service Bus over AMQP 1.0.
        ServiceBus "servicebus",
        /// The administration API of Service Bus.
        ServiceBusAdmin "servicebus_admin",
        /// RabbitMQ's protocol AMQP 0-9-1.
        Rabbitmq "rabbitmq",
        /// The management API of RabbitMQ.
        RabbitmqManagement "rabbitmq_management",
        /// A command that works on the data directory.
        Cli "cli",
        /// The server itself.
        Server "server",
    }
}

words! {
    /// What was done, or refused.
    AuditAction {
        /// A login with a credential.
        Login "login",
        /// Adding a user.
        UserAdd "user_add",
        /// Removing a user with its keys and tokens.
        UserRemove "user_remove",
        /// Changing a user's password.
        PasswordSet "password_set",
        /// Granting a permission.
        Grant "grant",
        /// Revoking a grant.
        Revoke "revoke",
        /// Adding a key.
        KeyAdd "key_add",
        /// Removing a key.
        KeyRemove "key_remove",
        /// Adding a token.
        TokenAdd "token_add",
        /// Removing a token.
        TokenRemove "token_remove",
        /// Allowing anonymous access again.
        Open "open",
        /// Declaring a queue or topic.
        Declare "declare",
        /// Changing settings, tags or the policy of a queue or topic.
        Update "update",
        /// Deleting a queue, topic or subscription.
        Delete "delete",
        /// Deleting messages without receiving them.
        Purge "purge",
        /// Stopping the delivery of a queue.
        Pause "pause",
        /// Resuming the delivery of a queue.
        Resume "resume",
        /// Moving dead letters back.
        Redrive "redrive",
        /// Replacing a dead letter by a corrected message.
        Resend "resend",
        /// Starting a message move task of SQS.
        MoveStart "move_start",
        /// Cancelling a message move task of SQS.
        MoveCancel "move_cancel",
        /// Declaring a subscription.
        Subscribe "subscribe",
        /// Adding or changing a rule.
        Bind "bind",
        /// Removing a rule.
        Unbind "unbind",
        /// Importing RabbitMQ's definitions.
        Import "import",
        /// Exporting RabbitMQ's definitions.
        Export "export",
        /// Taking a session from its holder.
        BreakSession "break_session",
        /// Reading the state of a session without holding it.
        ReadState "read_state",
        /// Reading entities where that needs the manage permission.
        Read "read",
        /// Reading the audit log.
        ReadAudit "read_audit",
        /// Making a backup.
        Backup "backup",
        /// Records that were lost because too many arrived at once.
        Dropped "dropped",
    }
}
