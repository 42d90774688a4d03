//! Methods: a class, a number, and arguments.
//!
//! `definitions.rs` lists all of them as in the specification. This file has the traits, the macro that turns the list
//! into types, and decoding.

mod definitions;

use std::fmt;

use bytes::{Bytes, BytesMut};

use super::arguments::{ArgumentError, ArgumentReader, ArgumentWriter};
use super::error::{Exception, Octets, ReplyCode};
use super::frame::FrameKind;
pub use definitions::{Method, access, basic, channel, confirm, connection, exchange, queue, tx};

/// Class and method, as in a close method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MethodId {
    pub class: u16,
    pub method: u16,
}

impl MethodId {
    /// No method in particular.
    pub const NONE: Self = Self { class: 0, method: 0 };

    /// The first four bytes of a method's payload.
    pub fn of_payload(payload: &[u8]) -> Option<Self> {
        let [c0, c1, m0, m1] = *payload.first_chunk()?;
        let (class, method) = (u16::from_be_bytes([c0, c1]), u16::from_be_bytes([m0, m1]));
        Some(Self { class, method })
    }
}

impl fmt::Display for MethodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.class, self.method)
    }
}

/// A method that can be written.
pub trait EncodeMethod {
    fn id(&self) -> MethodId;

    fn write_arguments(&self, writer: &mut ArgumentWriter<'_>);

    /// Appends the payload of a method frame.
    fn encode(&self, out: &mut BytesMut) {
        let MethodId { class, method } = self.id();
        out.extend_from_slice(&class.to_be_bytes());
        out.extend_from_slice(&method.to_be_bytes());
        self.write_arguments(&mut ArgumentWriter::new(out));
    }
}

/// A method that can be read.
pub trait DecodeMethod: Sized {
    const ID: MethodId;

    fn read_arguments(reader: &mut ArgumentReader<'_>) -> Result<Self, ArgumentError>;
}

impl Method {
    /// Reads the payload of a method frame. An exception names the method if its numbers could be read.
    pub fn decode(payload: &Bytes) -> Result<Self, Exception> {
        let Some(id) = MethodId::of_payload(payload) else {
            let kind = FrameKind::Method as u8;
            return Err(Exception::bad_frame(kind, payload, "unknown_frame"));
        };
        let mut reader = ArgumentReader::new(payload, size_of::<u32>());
        let arguments = || &payload[size_of::<u32>()..];
        let method = match Self::read_arguments(id, &mut reader) {
            Ok(Some(method)) if reader.is_at_end() => Ok(method),
            Ok(Some(_)) | Err(ArgumentError::Truncated) => Err(Exception::new(
                ReplyCode::FrameError,
                // Only the beginning fits the reply text; the rest is not worth formatting.
                format!("cannot decode {}", Octets(&arguments()[..arguments().len().min(128)])),
            )),
            Ok(None) => Err(Exception::new(ReplyCode::FrameError, format!("unknown method {id}"))),
            Err(ArgumentError::NotUtf8) => {
                Err(Exception::new(ReplyCode::FrameError, "Malformed UTF-8 in shortstr"))
            }
            Err(ArgumentError::Table(error)) => {
                Err(Exception::new(ReplyCode::SyntaxError, error.to_string()))
            }
        };
        method.map_err(|exception| exception.caused_by(id))
    }
}

/// Turns the list of methods into a module for each class with a struct for each method, and the enum of them all.
macro_rules! methods {
    ($(
        $(#[$class_doc:meta])*
        $module:ident = $class:literal {
            $(
                $(#[$doc:meta])*
                $name:ident as $variant:ident = $id:literal { $($field:ident: $type:ty,)* }
            )*
        }
    )*) => {
        $(
            $(#[$class_doc])*
            pub mod $module {
                #[allow(unused_imports, reason = "not every class has every type of argument")]
                use super::{Argument as _, Bytes, FieldTable, Reserved, ShortString};
                use super::{
                    ArgumentError, ArgumentReader, ArgumentWriter, DecodeMethod, EncodeMethod,
                    MethodId,
                };

                $(
                    $(#[$doc])*
                    #[derive(Debug, Clone, Default, PartialEq, Eq)]
                    pub struct $name { $(pub $field: $type,)* }

                    impl EncodeMethod for $name {
                        fn id(&self) -> MethodId {
                            Self::ID
                        }

                        #[allow(unused_variables, reason = "some methods have no arguments")]
                        fn write_arguments(&self, writer: &mut ArgumentWriter<'_>) {
                            $(self.$field.write(writer);)*
                        }
                    }

                    impl DecodeMethod for $name {
                        const ID: MethodId = MethodId { class: $class, method: $id };

                        #[allow(unused_variables, reason = "some methods have no arguments")]
                        fn read_arguments(
                            reader: &mut ArgumentReader<'_>,
                        ) -> Result<Self, ArgumentError> {
                            Ok(Self { $($field: <$type>::read(reader)?,)* })
                        }
                    }

                    impl From<$name> for super::Method {
                        fn from(method: $name) -> Self {
                            Self::$variant(method)
                        }
                    }
                )*
            }
        )*

        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Method { $($( $variant($module::$name), )*)* }

        impl Method {
            /// None if there is no such method.
            pub(super) fn read_arguments(
                id: MethodId,
                reader: &mut ArgumentReader<'_>,
            ) -> Result<Option<Self>, ArgumentError> {
                Ok(Some(match (id.class, id.method) {
                    $($( ($class, $id) => {
                        Self::$variant(DecodeMethod::read_arguments(reader)?)
                    } )*)*
                    _ => return Ok(None),
                }))
            }
        }

        impl EncodeMethod for Method {
            fn id(&self) -> MethodId {
                match self { $($( Self::$variant(method) => method.id(), )*)* }
            }

            fn write_arguments(&self, writer: &mut ArgumentWriter<'_>) {
                match self { $($( Self::$variant(method) => method.write_arguments(writer), )*)* }
            }
        }
    };
}
use methods;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::text::ShortString;
    use expect_test::expect;

    fn refused(payload: &'static [u8]) -> (String, MethodId) {
        let exception = Method::decode(&Bytes::from_static(payload)).expect_err("it is malformed");
        (exception.to_string(), exception.method)
    }

    #[test]
    fn malformed_methods_are_refused_by_name() {
        let publish = MethodId { class: 60, method: 40 };
        let truncated = refused(&[0, 60, 0, 40, 0, 0, 5, 97, 98]);
        assert_eq!(truncated, ("FRAME_ERROR - cannot decode <<0,0,5,97,98>>".into(), publish));
        let trailing = refused(&[0, 60, 0, 70, 0, 0, 1, 113, 0, 122]);
        assert_eq!(trailing.0, "FRAME_ERROR - cannot decode <<0,0,1,113,0,122>>");
        let unknown = refused(&[0, 60, 0, 99]);
        let id = MethodId { class: 60, method: 99 };
        assert_eq!(unknown, ("FRAME_ERROR - unknown method 60.99".into(), id));
        assert_eq!(refused(&[0, 61, 0, 10]).0, "FRAME_ERROR - unknown method 61.10");
        let (short, cause) = refused(&[0, 60]);
        assert_eq!(short, "FRAME_ERROR - type 1, all octets = <<0,60>>: unknown_frame");
        assert_eq!(cause, MethodId::NONE);
        let not_utf8 = refused(&[0, 60, 0, 40, 0, 0, 1, 0xff, 0, 0]);
        assert_eq!(not_utf8, ("FRAME_ERROR - Malformed UTF-8 in shortstr".into(), publish));
        let table = refused(&[0, 50, 0, 10, 0, 0, 1, b'q', 0, 0, 0, 0, 3, 1, b'a', b'Z']);
        assert_eq!(table.0, "SYNTAX_ERROR - a field table has a value of unknown type 'Z'");
    }

    #[test]
    fn long_arguments_are_shown_in_part() {
        let mut payload = vec![0, 60, 0, 40];
        payload.extend([100; 100_000]);
        let exception =
            Method::decode(&payload.into()).expect_err("much follows the last argument");
        assert!(exception.detail.len() < 600, "{}", exception.detail.len());
        assert_eq!(exception.reply_text().len(), 255);
    }

    #[test]
    fn reserved_arguments_are_ignored() {
        let ticket = Bytes::from_static(&[0, 60, 0, 70, 0xab, 0xcd, 1, b'q', 1]);
        let method = Method::decode(&ticket).unwrap();
        let expected = basic::Get {
            queue: ShortString::from_static("q"),
            no_ack: true,
            ..basic::Get::default()
        };
        assert_eq!(method, Method::BasicGet(expected));
        let mut out = BytesMut::new();
        method.encode(&mut out);
        assert_eq!(out[..], [0, 60, 0, 70, 0, 0, 1, b'q', 1]);
        expect![[r#"
            BasicGet(
                Get {
                    ticket: Reserved(
                        PhantomData<u16>,
                    ),
                    queue: "q",
                    no_ack: true,
                },
            )
        "#]]
        .assert_debug_eq(&method);
    }

    /// Strings point into the payload: nothing is copied.
    #[test]
    fn strings_share_the_payload() {
        let payload = Bytes::from(b"\0\x3c\0\x28\0\0\x02ex\x03key\x01".to_vec());
        let Ok(Method::BasicPublish(publish)) = Method::decode(&payload) else {
            panic!("a publish");
        };
        assert_eq!((&*publish.exchange, &*publish.routing_key), ("ex", "key"));
        assert!(publish.mandatory && !publish.immediate);
        assert_eq!(publish.routing_key.as_bytes().as_ptr(), payload[10..].as_ptr());
    }
}
