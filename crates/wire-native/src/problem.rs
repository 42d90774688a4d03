//! Errors: RFC 9457 problems with a stable code and a fix.

use serde::{Deserialize, Serialize};

/// An error of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Problem"))]
#[serde(default)]
pub struct ProblemBody {
    /// The address of a page about the code
    #[serde(rename = "type")]
    pub kind: String,
    /// A title that is the same for every problem with this code
    pub title: String,
    /// The HTTP status
    pub status: u16,
    /// A stable word, for programs
    pub code: String,
    /// What happened to which object
    pub detail: String,
    /// What to do about it
    pub fix: String,
    /// The field in which a declaration differs
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The current value of this field
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is: Option<String>,
    /// The requested value of this field
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// Seconds to wait before trying again
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

/// What a problem code means.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProblemKind {
    /// Stable code of the problem, for programs
    pub code: String,
    /// The HTTP status
    pub status: u16,
    /// Short description of the code
    pub title: String,
    /// What to do about it
    pub fix: String,
}
