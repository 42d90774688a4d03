//! The logs of a handler belong to the trace of its message.
//!
//! This test has its own program, because tests in other threads would influence the subscriber.
#![allow(clippy::unwrap_used)] // a test

use std::io::Write;
use std::sync::{Arc, Mutex};

use malote::testing::TestBroker;
use malote::{Meta, QueueSpec, Value, Worker};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Clone, Default)]
struct LogBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LogBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn handle(meta: Meta) {
    assert_eq!(meta.traceparent(), Some(PARENT));
    assert_eq!(meta.tracestate(), Some("a=b"));
    tracing::info!("the handler runs");
}

#[tokio::test]
async fn log_lines_of_a_handler_have_the_trace_of_the_message() {
    let log = LogBuffer::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let broker = TestBroker::new().unwrap();
    broker.malote().declare("q", QueueSpec::default()).await.unwrap();
    let sending = broker.malote().send_text("q", "x").id("m1");
    let sending = sending.property("traceparent", Value::String(PARENT.into()));
    sending.property("tracestate", Value::String("a=b".into())).await.unwrap();
    let report = broker.drain(Worker::new(broker.malote(), "q").handle(handle)).await.unwrap();
    assert_eq!(report.counts.done, 1);
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = log.lines().find(|line| line.contains("the handler runs")).unwrap();
    assert!(line.contains("process{") && line.contains("message_id=\"m1\""), "{line}");
    assert!(line.contains(&format!("traceparent=\"{PARENT}\"")), "{line}");
}
