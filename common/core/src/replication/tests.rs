//! Publisher and replicas against a plain set, over links that lose, delay, double and reorder.

mod long;
mod model;
mod scenarios;
mod world;
