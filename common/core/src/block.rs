//! Token blocks and their hashes, as Dynamo computes them.
