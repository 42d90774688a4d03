//! The program of docs/guide/workers.md. `tests/guide.rs` checks that both are the same, and runs it.

include!("program.rs");
