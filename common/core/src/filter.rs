//! The cuckoo filter of a pool's chain hashes.
