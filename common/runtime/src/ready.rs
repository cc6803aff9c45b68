//! The ready file: tells whoever started a node on port 0 where it listens.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::files::write_whole;

/// A JSON file of bound addresses, by the name of what listens there; removed at the end.
#[derive(Debug)]
pub struct ReadyFile(PathBuf);

impl ReadyFile {
    /// Writes it in one step, so that its existence means that the node has started.
    pub fn write(path: &Path, bound: &BTreeMap<&str, SocketAddr>) -> io::Result<Self> {
        // Names are our own identifiers and addresses have no quotes: nothing needs escaping.
        let entries: Vec<_> = bound
            .iter()
            .map(|(name, address)| format!("\"{name}\":\"{address}\""))
            .collect();
        write_whole(path, format!("{{{}}}\n", entries.join(",")).as_bytes())?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        // A stale one would only point at closed ports.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_addresses_and_goes_with_the_node() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ready.json");
        let bound = BTreeMap::from([
            ("quic", "127.0.0.1:1234".parse().unwrap()),
            ("admin", "[::1]:80".parse().unwrap()),
        ]);

        let ready = ReadyFile::write(&path, &bound).unwrap();

        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"admin\":\"[::1]:80\",\"quic\":\"127.0.0.1:1234\"}\n"
        );
        drop(ready);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
