//! What the native API and its clients write alike: typed properties, states of sagas, records of the
//! audit log, base64, times, pages of metrics.
//!
//! Requests, answers and frames are not here: the server's structs refuse what they do not know, a client's ignore it.

pub mod audit;
pub mod exposition;
pub mod nearest;
pub mod saga;
pub mod text;
pub mod value;

pub use value::PropertyMap;
