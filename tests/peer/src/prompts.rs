//! The file of prompts: words of eight bytes, low end first.

use dynamo_kv_router::protocols::LocalBlockHash;

/// Prompts, and how large the sites' filters are to be.
pub struct Prompts {
    pub sites: usize,
    /// Blocks of a site.
    pub blocks: u64,
    pub groups: Vec<Group>,
}

/// Prompts that are timed together.
pub struct Group {
    pub length: u64,
    pub prompts: Vec<Prompt>,
}

/// The blocks of a prompt, and how many of them each site holds.
pub struct Prompt {
    pub blocks: Vec<LocalBlockHash>,
    pub depths: Vec<u64>,
}

impl Prompts {
    /// Reads a file; `None` if it ends early.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map(|word| {
            let word: [u8; 8] = word.try_into().unwrap_or_default();
            u64::from_le_bytes(word)
        });
        let sites = usize::try_from(words.next()?).ok()?;
        let blocks = words.next()?;
        let groups = words.next()?;
        let groups = (0..groups).map(|_| Group::read(&mut words, sites));
        Some(Self {
            sites,
            blocks,
            groups: groups.collect::<Option<_>>()?,
        })
    }

    /// Blocks of prompts that the fullest site holds.
    pub fn held(&self) -> u64 {
        let held = |site: usize| {
            let prompts = self.groups.iter().flat_map(|group| &group.prompts);
            prompts.map(|prompt| prompt.depths[site]).sum()
        };
        (0..self.sites).map(held).max().unwrap_or(0)
    }
}

impl Group {
    fn read(words: &mut impl Iterator<Item = u64>, sites: usize) -> Option<Self> {
        let length = words.next()?;
        let prompts = words.next()?;
        let mut some = |count: usize| words.take(count).collect::<Vec<_>>();
        let prompt = |_| {
            let blocks = some(usize::try_from(length).ok()?);
            let depths = some(sites);
            Some(Prompt {
                blocks: blocks.into_iter().map(LocalBlockHash).collect(),
                depths: Some(depths).filter(|depths| depths.len() == sites)?,
            })
        };
        Some(Self {
            length,
            prompts: (0..prompts).map(prompt).collect::<Option<_>>()?,
        })
    }
}
