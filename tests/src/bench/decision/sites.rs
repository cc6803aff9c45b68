//! Sites' filters, full of other blocks beside those of some prompts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvgrid_core::block::ChainHash;
use kvgrid_core::filter::{Class, Form, Geometry, MixKey, Reader, Writer};
use kvgrid_core::replication::{ReplicaFilter, ReplicaState, ReplicaView};
use kvgrid_core::view::{GridView, PoolView, RelayView, SiteView};
use kvgrid_core::{ModelName, RelayId, SiteId};
use kvgrid_proto::v1::{HashFormat, Model, Pool, Tier};
use kvgrid_proto::{model_from_wire, pool_from_wire};

use super::workload::{BLOCK, Group};
use crate::bench::transfer::{key, scattered};

/// Changes that are made together.
const BATCH: u64 = 10_000;

/// All sites' tables.
pub(super) struct Sites {
    key: Arc<MixKey>,
    tables: Vec<Table>,
}

struct Table {
    writer: Writer,
    /// Where this site's other blocks are numbered from.
    first: u64,
    /// The oldest and the next of the other blocks.
    others: (u64, u64),
}

impl Sites {
    /// So many sites, each of so many blocks at its table's soft load.
    pub(super) fn new(
        form: Form,
        sites: usize,
        blocks: u64,
        groups: &[Group],
    ) -> anyhow::Result<Self> {
        let key = key();
        let geometry = Geometry::for_capacity(blocks, key.id()).with_form(form);
        let mut tables = Vec::new();
        for site in 0..sites {
            let mut table = Table {
                writer: Writer::new(geometry),
                first: scattered(site as u64),
                others: (0, 0),
            };
            for prompt in groups.iter().flat_map(|group| &group.prompts) {
                let held = &prompt.chain[..prompt.depths[site] as usize];
                let classes = held.iter().map(|block| geometry.class(&key, *block));
                table.writer.insert_all(&classes.collect::<Vec<_>>())?;
            }
            while table.writer.len() < blocks {
                table.add((blocks - table.writer.len()).min(BATCH), &key)?;
            }
            tables.push(table);
        }
        Ok(Self { key, tables })
    }

    /// What searches look into.
    pub(super) fn readers(&self) -> Vec<Reader> {
        let readers = self.tables.iter().map(|table| table.writer.reader());
        readers.collect()
    }

    /// Replaces other blocks at all sites, over and over, until told to stop; how many.
    pub(super) fn churn(&mut self, stop: &AtomicBool) -> anyhow::Result<u64> {
        let mut replaced = 0;
        while !stop.load(Ordering::Relaxed) {
            for table in &mut self.tables {
                table.drop_oldest(BATCH / 10, &self.key);
                table.add(BATCH / 10, &self.key)?;
                replaced += BATCH / 10;
            }
        }
        Ok(replaced)
    }

    /// All sites as an edge knows them.
    pub(super) fn view(&self, model: &ModelName) -> anyhow::Result<GridView> {
        let sites = self.tables.iter().enumerate();
        let sites = sites.map(|(at, table)| self.site(at, &table.writer, model));
        Ok(GridView::new(sites.collect::<anyhow::Result<_>>()?))
    }

    fn site(&self, at: usize, writer: &Writer, model: &ModelName) -> anyhow::Result<SiteView> {
        let served = model_from_wire(&Model {
            name: model.as_str().into(),
            ready: true,
            card_digest: vec![1; 32].into(),
            block_size: BLOCK.get(),
            hash_format: HashFormat::Standard.into(),
            ..Model::default()
        })?;
        let listed = pool_from_wire(&Pool {
            pool_id: 1,
            model_id: model.id().0,
            source: "engines".into(),
            block_size: BLOCK.get(),
            hash_format: HashFormat::Standard.into(),
            tier: Tier::Device.into(),
            closed: true,
            ..Pool::default()
        })?;
        let pool = PoolView {
            replica: ReplicaView {
                state: ReplicaState::Live,
                blocks: writer.len(),
                filter: Some(ReplicaFilter {
                    reader: writer.reader(),
                    key: Arc::clone(&self.key),
                }),
                ..ReplicaView::default()
            },
            ..listed
        };
        let relay = RelayView {
            id: RelayId::new(&format!("relay-{at:03}"))?,
            connected: true,
            draining: false,
            serves: vec![model.id()],
            rtt: Duration::from_millis(4 + 2 * at as u64),
            path_rate: Some(1e8),
            window: Some(1 << 20),
        };
        Ok(SiteView {
            site: SiteId::new(&format!("site-{at:03}"))?,
            region: None,
            labels: kvgrid_core::label::Labels::new(),
            alive: true,
            relays: vec![relay],
            models: vec![served],
            known_by: None,
            pools: vec![pool],
            load: kvgrid_core::load::SiteLoad::default(),
        })
    }
}

impl Table {
    fn add(&mut self, count: u64, key: &MixKey) -> anyhow::Result<()> {
        let (_, next) = self.others;
        self.writer
            .insert_all(&self.classes(next, next + count, key))?;
        self.others.1 += count;
        Ok(())
    }

    fn drop_oldest(&mut self, count: u64, key: &MixKey) {
        let (oldest, _) = self.others;
        let classes = self.classes(oldest, oldest + count, key);
        self.writer.remove_all(&classes);
        self.others.0 += count;
    }

    fn classes(&self, from: u64, to: u64, key: &MixKey) -> Vec<Class> {
        let geometry = self.writer.geometry();
        let block = |number| ChainHash(scattered(self.first.wrapping_add(number)));
        let class = |number| geometry.class(key, block(number));
        (from..to).map(class).collect()
    }
}
