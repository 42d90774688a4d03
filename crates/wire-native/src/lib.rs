//! What the native API and its clients write alike: typed properties, states of sagas, base64 and times.
//!
//! Requests, answers and frames are not here: the server's structs refuse what they do not know, a client's ignore it.

pub mod nearest;
pub mod saga;
pub mod text;
pub mod value;

pub use value::PropertyMap;
