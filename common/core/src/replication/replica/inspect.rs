//! What tests want to see and to break.

use super::{Replica, Table};
use crate::block::ChainHash;
use crate::filter::Class;

impl Replica {
    /// Every class that readers can find, in order.
    pub(in crate::replication) fn classes(&self) -> Vec<Class> {
        let Some(table) = &self.current else {
            return Vec::new();
        };
        let chunks = 0..table.writer.geometry().chunks();
        chunks
            .flat_map(|chunk| table.writer.chunk_classes(chunk))
            .collect()
    }

    /// Changes kept for chunks that are to come.
    pub(in crate::replication) fn kept(&self) -> usize {
        let tables = self.current.iter().chain(&self.next);
        tables.map(Table::kept).sum()
    }

    /// How often digests were found to disagree.
    pub(in crate::replication) const fn drifts(&self) -> u32 {
        self.drifts
    }

    /// Changes the table behind the replica's back, as broken memory would.
    pub(in crate::replication) fn corrupt(&mut self, chain: ChainHash) {
        if let Some(table) = &mut self.current {
            let class = table.writer.geometry().class(&table.key, chain);
            if !table.writer.remove(class) {
                let _ = table.writer.insert(class);
            }
        }
    }
}
