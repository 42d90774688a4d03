//! Definitions of RabbitMQ.

use hyper::Method;
use malote_wire_native::problem::ProblemBody;
use serde::Deserialize;

use super::error::ApiError;
use super::path::Path;
use super::{Api, Result};

#[derive(Deserialize)]
struct ImportAnswer {
    skipped: Vec<String>,
}

/// An error of RabbitMQ's management API.
#[derive(Deserialize)]
struct ManagementProblem {
    reason: serde_json::Value,
}

impl Api {
    /// `POST /api/definitions`. Returns what was left alone.
    pub(crate) async fn import_definitions(
        &self,
        vhost: Option<&str>,
        json: Vec<u8>,
    ) -> Result<Vec<String>> {
        let path = Path::root().part("api").part("definitions");
        let path = match vhost {
            Some(vhost) => path.part(vhost),
            None => path,
        };
        let body = Some(("application/json", json.into()));
        let path = path.query("report", true);
        let response = self.client.call_unchecked(Method::POST, path, body).await?;
        if response.status < 300 {
            return Ok(response.json::<ImportAnswer>()?.skipped);
        }
        match response.json::<ManagementProblem>() {
            Ok(problem) => {
                let reason = problem.reason.as_str().map(str::to_owned);
                let reason = reason.unwrap_or_else(|| problem.reason.to_string());
                let status = response.status;
                let code = if status == 401 { "forbidden" } else { "definitions_refused" };
                let problem = ProblemBody {
                    status,
                    code: code.to_owned(),
                    detail: reason,
                    ..ProblemBody::default()
                };
                Err(ApiError::Refused(Box::new(problem)))
            }
            Err(_) => response.checked().map(|_| Vec::new()),
        }
    }
}
