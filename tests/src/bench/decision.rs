//! What a decision takes: the search of all sites' filters for a prompt, and the weighing of
//! the sites. Decisions follow each other, but no prompt comes twice, so that of the filters
//! nothing is in the processor's caches. Then the same of whole hashes in place of filters.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use kvgrid_core::block::{BlockHash, ChainHash, HashSeed};
use kvgrid_core::filter::{Form, Geometry, MixKey, Reader, Target, depths};
use kvgrid_core::routing::{Breakers, Chains, Inflight, Local, Policy, RouteRequest, decide};
use kvgrid_core::{Instant, ModelName};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use self::errors::Errors;
use self::peer::Peer;
use self::sites::Sites;
use self::workload::{Group, Kind, Prompt};
use crate::bench::cpu::timed;
use crate::bench::figure::{Figure, median};
use crate::bench::machine::{BLOCKS, Memory, latency_and_line, print_huge_pages};
use crate::bench::transfer::{key, name_of};

mod errors;
mod peer;
mod sites;
mod workload;

const BENCH: &str = "decision";
/// Blocks of a prompt.
const LENGTHS: [u32; 3] = [64, 1_600, 50_000];
/// Bytes that are read between two measurements, so that nothing stays in the caches.
const SWEPT: u64 = 256 << 20;

/// One size of grid.
struct Scale {
    form: Form,
    sites: usize,
    blocks: u64,
    /// Prompts of each length.
    prompts: [usize; 3],
    /// Multiples of C that a decision may take.
    bounds: [f64; 3],
}

pub(super) fn run(quick: bool) -> anyhow::Result<()> {
    measure(Form::Filter, quick)?;
    measure(Form::Exact, quick)
}

fn measure(form: Form, quick: bool) -> anyhow::Result<()> {
    let few = Scale {
        form,
        sites: 13,
        blocks: if quick { BLOCKS / 10 } else { BLOCKS },
        prompts: if quick {
            [512, 64, 6]
        } else {
            [2_048, 256, 24]
        },
        bounds: [30.0, 60.0, 120.0],
    };
    let many = Scale {
        sites: 100,
        // A fifth of what the few have, so that a small machine has room for it.
        blocks: if quick { BLOCKS / 20 } else { BLOCKS / 5 },
        bounds: [45.0, 80.0, 130.0],
        ..few
    };
    few.measure(quick)?;
    many.measure(quick)
}

impl Scale {
    fn measure(&self, quick: bool) -> anyhow::Result<()> {
        let table = Geometry::for_capacity(self.blocks, 0).with_form(self.form);
        let working_set = self.sites as u64 * table.bytes();
        let (c, r) = latency_and_line(working_set, quick);
        Figure::less(BENCH, &self.name("latency"), c, "ns").print()?;
        Figure::less(BENCH, &self.name("line"), r, "ns").print()?;
        if self.sites == 13 && self.form == Form::Filter {
            print_huge_pages(BENCH, working_set)?;
        }
        let groups = self.groups();
        let mut sites = Sites::new(self.form, self.sites, self.blocks, &groups)?;
        let peer = match self.form {
            Form::Filter => Peer::run(self.sites, self.blocks, &groups)?,
            Form::Exact => None,
        };
        let bench = Bench {
            scale: self,
            readers: sites.readers(),
            caches: Memory::new(SWEPT, true),
            c,
        };
        for (at, group) in groups.iter().enumerate() {
            bench.search(group)?;
            bench.search_from_blocks(group, peer.as_ref().and_then(|peer| peer.search_ns(at)))?;
        }
        for group in groups.iter().filter(|group| group.kind == Kind::Shared) {
            bench.decide(group, &sites)?;
        }
        let errors = bench.errors(&groups);
        errors.print(&self.name("still"), peer.as_ref().map(|peer| &peer.still))?;
        let errors = bench.errors_under_churn(&groups, &mut sites, quick)?;
        errors.print(
            &self.name("churning"),
            peer.as_ref().map(|peer| &peer.churning),
        )
    }

    fn groups(&self) -> Vec<Group> {
        let group = |kind, at: usize, seed| {
            let prompts = self.prompts[at];
            Group::new(kind, LENGTHS[at], prompts, self.sites, seed)
        };
        let shared = (0..3).map(|at| group(Kind::Shared, at, 10 + at as u64));
        let scattered = (0..3).map(|at| group(Kind::Scattered, at, 20 + at as u64));
        let cold = [group(Kind::Cold, 1, 30)];
        shared.chain(scattered).chain(cold).collect()
    }

    fn name(&self, figure: &str) -> String {
        name_of(self.form, &format!("{figure}_{}_sites", self.sites))
    }

    /// Names a figure of a group of prompts.
    fn name_of(&self, figure: &str, group: &Group) -> String {
        let kind = match group.kind {
            Kind::Shared => "",
            Kind::Scattered => "_scattered",
            Kind::Cold => "_cold",
        };
        format!("{}{kind}_{}_blocks", self.name(figure), group.length)
    }

    /// The bound of a decision about prompts of this length, by filters.
    fn bound(&self, group: &Group) -> Option<f64> {
        if self.form == Form::Exact {
            return None;
        }
        let at = LENGTHS.iter().position(|length| *length == group.length);
        at.map(|at| self.bounds[at])
    }
}

struct Bench<'a> {
    scale: &'a Scale,
    readers: Vec<Reader>,
    caches: Memory,
    /// Nanoseconds of a load that waits for the one before it.
    c: f64,
}

impl Bench<'_> {
    /// The search alone, of a prompt that is hashed already.
    fn search(&self, group: &Group) -> anyhow::Result<()> {
        let key = key();
        let targets = self.targets(&key);
        let ns = self.median_ns(group, |prompt| {
            black_box(depths(&targets, &prompt.chain));
        });
        let (name, name_c) = ("search", "search_in_c");
        Figure::less(BENCH, &self.scale.name_of(name, group), ns, "ns").print()?;
        let name = self.scale.name_of(name_c, group);
        Figure::less(BENCH, &name, ns / self.c, "C").print()
    }

    /// The search of a prompt whose blocks are yet to be chained, which is what a peer is given.
    fn search_from_blocks(&self, group: &Group, peer: Option<f64>) -> anyhow::Result<()> {
        let key = key();
        let targets = self.targets(&key);
        let ns = self.median_ns(group, |prompt| {
            black_box(depths(&targets, &chained(&prompt.blocks)));
        });
        let name = self.scale.name_of("search_from_blocks", group);
        Figure {
            peer,
            ..Figure::less(BENCH, &name, ns, "ns")
        }
        .print()
    }

    /// The whole decision about a request, by a prompt that is hashed already.
    fn decide(&self, group: &Group, sites: &Sites) -> anyhow::Result<()> {
        let model = ModelName::new("model")?;
        let view = sites.view(&model)?;
        let hashed = |prompt: &Prompt| {
            let seed = HashSeed::new(None, None);
            let mut chains = Chains::of_every_site(prompt.tokens.clone(), seed);
            chains.hash_for(&view, model.id());
            chains
        };
        let (policy, inflight) = (Policy::default(), Inflight::default());
        let local = Local {
            policy: &policy,
            inflight: &inflight,
            breakers: &Breakers::default(),
            predicted: None,
        };
        let mut rng = SmallRng::seed_from_u64(1);
        let mut each = Vec::new();
        self.caches.sweep();
        for prompts in group.prompts.chunks(batch(group)) {
            let chains: Vec<_> = prompts.iter().map(hashed).collect();
            let decide_all = || {
                for chains in &chains {
                    let request = request(&model, chains);
                    black_box(decide(&view, &request, &local, Instant::ZERO, &mut rng));
                }
            };
            each.push(timed(decide_all).0 / prompts.len() as f64);
        }
        let ns = median(&mut each);
        Figure::less(BENCH, &self.scale.name_of("decision", group), ns, "ns").print()?;
        let name = self.scale.name_of("decision_in_c", group);
        let figure = Figure::less(BENCH, &name, ns / self.c, "C");
        match self.scale.bound(group) {
            Some(bound) => figure.within(bound).print(),
            None => figure.print(),
        }
    }

    /// What a search looks into.
    fn targets<'a>(&'a self, key: &'a MixKey) -> Vec<Target<'a>> {
        let target = |reader| Target {
            reader,
            key,
            closed: true,
        };
        self.readers.iter().map(target).collect()
    }

    /// The middle of the nanoseconds that some work takes for a prompt.
    fn median_ns(&self, group: &Group, mut work: impl FnMut(&Prompt)) -> f64 {
        let mut each = Vec::new();
        self.caches.sweep();
        for prompts in group.prompts.chunks(batch(group)) {
            // Hashing comes right before a search, and leaves the hashes in the caches.
            black_box(prompts.iter().map(Prompt::touch).fold(0, u64::wrapping_add));
            let (ns, ()) = timed(|| prompts.iter().for_each(&mut work));
            each.push(ns / prompts.len() as f64);
        }
        median(&mut each)
    }

    fn errors(&self, groups: &[Group]) -> Errors {
        let key = key();
        let targets = self.targets(&key);
        let mut errors = Errors::default();
        for prompt in groups.iter().flat_map(|group| &group.prompts) {
            let found = depths(&targets, &prompt.chain);
            errors.add(&found, &prompt.depths);
        }
        errors
    }

    /// Errors while other blocks come and go as fast as one thread can replace them.
    fn errors_under_churn(
        &self,
        groups: &[Group],
        sites: &mut Sites,
        quick: bool,
    ) -> anyhow::Result<Errors> {
        let stop = AtomicBool::new(false);
        let rounds = if quick { 2 } else { 20 };
        std::thread::scope(|scope| {
            let churning = scope.spawn(|| sites.churn(&stop));
            let mut errors = Errors::default();
            for _ in 0..rounds {
                errors.merge(&self.errors(groups));
            }
            stop.store(true, Ordering::Relaxed);
            let replaced = churning.join();
            let replaced = replaced.map_err(|_| anyhow::anyhow!("the writer panicked"))??;
            let name = self.scale.name("blocks_replaced");
            Figure::more(BENCH, &name, replaced as f64, "blocks").print()?;
            Ok(errors)
        })
    }
}

/// Prompts that are timed together, so that reading the clock doesn't count.
fn batch(group: &Group) -> usize {
    (8_192 / group.length as usize).clamp(2, 32)
}

fn chained(blocks: &[BlockHash]) -> Vec<ChainHash> {
    let mut chain = Vec::with_capacity(blocks.len());
    let mut last: Option<ChainHash> = None;
    for block in blocks {
        let next = last.map_or(ChainHash::root(*block), |last| last.child(*block));
        chain.push(next);
        last = Some(next);
    }
    chain
}

fn request<'a>(model: &'a ModelName, chains: &'a Chains) -> RouteRequest<'a> {
    RouteRequest {
        model,
        chains,
        body_bytes: 100_000,
        affinity: None,
        exclude: &[],
        exclude_relays: &[],
        rules: &[],
        aside: &[],
    }
}
