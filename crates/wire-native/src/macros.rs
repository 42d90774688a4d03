//! Macros that keep the declarations of wire types short.

/// A struct of optional fields. Absent fields are not written.
macro_rules! optional_fields {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }) => {
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[$attr])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<$kind>,
            )*
        }
    };
}

/// An enum that is serialized as words, with conversions from and to an enum of the model.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident for $model:ident {
        $($(#[$doc:meta])* $variant:ident $word:literal,)+
    }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] #[allow(missing_docs)] $variant,)+
        }

        impl $name {
            /// The word on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl From<$model> for $name {
            fn from(value: $model) -> Self {
                match value { $($model::$variant => Self::$variant),+ }
            }
        }

        impl From<$name> for $model {
            fn from(word: $name) -> Self {
                match word { $($name::$variant => Self::$variant),+ }
            }
        }
    };
}
