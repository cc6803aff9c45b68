//! Real Dynamo sites for tests.
