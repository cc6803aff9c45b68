//! Tests with real Dynamo sites; they take turns, one at a time on the machine.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod alone;
mod prompts;
mod traffic;
