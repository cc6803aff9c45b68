//! The API over real sockets, a real router and sites that do as they are told.

mod canaries;
mod clients;
mod failures;
mod fake;
mod parity;
mod prompts;
mod requests;
mod streams;
