//! Logging to standard error: readable on a terminal, JSON otherwise.
//!
//! Fields have fixed names: `queue session message_id seq lease attempt conn front`. Bodies and secrets are never
//! logged.

use crate::settings::{Environment, LogFormat, LogSettings};
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry};

/// Starts logging for the whole process. Fails if logging was already started.
pub fn start(settings: &LogSettings, env: &Environment) -> Result<(), TryInitError> {
    let terminal = std::io::stderr().is_terminal();
    let json = match settings.format {
        LogFormat::Auto => !terminal,
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let colour = match (env.get("CLICOLOR_FORCE"), env.get("NO_COLOR")) {
        (Some(force), _) if force != "0" => true,
        (_, Some(_)) => false,
        _ => terminal,
    };
    subscriber(&settings.filter, json, colour, std::io::stderr).try_init()
}

fn subscriber<W>(filter: &str, json: bool, colour: bool, writer: W) -> impl tracing::Subscriber
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The settings refuse an invalid filter, so only tests use the fallback.
    let filter = filter
        .parse::<Targets>()
        .unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let format = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match json {
        true => {
            format.json().flatten_event(true).with_current_span(false).with_filter(filter).boxed()
        }
        false => format.with_ansi(colour).with_filter(filter).boxed(),
    };
    Registry::default().with(layer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io::Write;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(filter: &str, json: bool) -> String {
        let lines = CapturedOutput::default();
        let writer = lines.clone();
        let subscriber = subscriber(filter, json, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "malote_engine", queue = "orders", attempt = 2, "sent");
            tracing::debug!(target: "malote_engine", "noise");
        });
        String::from_utf8(lines.0.lock().clone()).unwrap()
    }

    #[test]
    fn json_lines_carry_the_fields_flat() {
        let text = logged("info", true);
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains(r#""queue":"orders""#), "{text}");
        assert!(text.contains(r#""attempt":2"#), "{text}");
    }

    #[test]
    fn human_lines_are_plain_without_a_terminal() {
        let text = logged("malote=debug", false);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains(r#"queue="orders""#) && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn the_filter_names_targets() {
        assert_eq!(logged("warn,malote_server=debug", true), "");
    }
}
