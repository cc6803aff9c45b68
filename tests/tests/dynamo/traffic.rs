//! Requests of the kinds that a prefix cache must get right: new, repeated, extended,
//! branching, and of lengths that are whole blocks. The same seed makes the same requests.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::prompts::Tokens;

/// Tokens in a block, at every site here.
pub(crate) const BLOCK: usize = 16;
/// Ids that aren't special in the fixture's vocabulary.
const IDS: std::ops::Range<u32> = 10..2000;
const WORDS: [&str; 12] = [
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "number", "again", "and",
];
/// Conversations that are still extended; older ones are forgotten.
const CONVERSATIONS: usize = 12;

/// What to ask.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    pub(crate) kind: Kind,
}

/// Which kind of request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    New,
    Repeated,
    Extended,
    Branching,
    WholeBlocks,
    Ids,
}

/// How many requests a comparison takes: `KVGRID_REQUESTS`, or so many that it is soon done.
pub(crate) fn requests() -> usize {
    let told = std::env::var("KVGRID_REQUESTS").ok();
    told.map_or(200, |told| {
        told.parse().expect("KVGRID_REQUESTS is a number")
    })
}

/// Makes one request after the other.
pub(crate) struct Traffic<'a> {
    rng: SmallRng,
    /// Counts a question's tokens, to make prompts of whole blocks.
    tokens: &'a Tokens,
    systems: Vec<String>,
    conversations: Vec<Vec<Value>>,
    ids: Vec<u32>,
    last: Option<Question>,
    made: usize,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(seed: u64, tokens: &'a Tokens) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let systems = (0..4).map(|_| words(&mut rng, 40..300)).collect();
        Self {
            rng,
            tokens,
            systems,
            conversations: Vec::new(),
            ids: Vec::new(),
            last: None,
            made: 0,
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Question {
        let question = match (self.made % 9, self.last.clone()) {
            (1 | 6 | 8, Some(last)) => Question {
                kind: Kind::Repeated,
                ..last
            },
            (2 | 3, Some(_)) => self.extend(),
            (4, Some(_)) => self.branch(),
            (5, Some(_)) => self.whole_blocks(),
            (7, Some(_)) => self.token_ids(),
            _ => self.open(),
        };
        self.made += 1;
        self.last = Some(question.clone());
        question
    }

    fn open(&mut self) -> Question {
        let system = self.rng.random_range(0..self.systems.len());
        let messages = vec![
            json!({"role": "system", "content": self.systems[system]}),
            self.user(),
        ];
        self.keep(messages.clone());
        chat(&messages, Kind::New)
    }

    fn extend(&mut self) -> Question {
        let mut messages = self.some_conversation();
        messages.push(json!({"role": "assistant", "content": words(&mut self.rng, 3..40)}));
        messages.push(self.user());
        self.keep(messages.clone());
        chat(&messages, Kind::Extended)
    }

    fn branch(&mut self) -> Question {
        let mut messages = self.some_conversation();
        let turns = messages.len() / 2;
        messages.truncate(2 * self.rng.random_range(0..turns) + 1);
        messages.push(self.user());
        self.keep(messages.clone());
        chat(&messages, Kind::Branching)
    }

    /// Extends a conversation until its prompt ends with a block.
    fn whole_blocks(&mut self) -> Question {
        let mut messages = self.some_conversation();
        loop {
            let last = messages.last_mut().expect("a conversation has messages");
            let longer = format!("{} a", last["content"].as_str().unwrap());
            last["content"] = longer.into();
            let question = chat(&messages, Kind::WholeBlocks);
            if self.tokens.of(&question).len().is_multiple_of(BLOCK) {
                self.keep(messages);
                return question;
            }
        }
    }

    /// A completion of token ids, which shares some blocks with the one before.
    fn token_ids(&mut self) -> Question {
        let shared = self.rng.random_range(0..=self.ids.len() / BLOCK) * BLOCK;
        self.ids.truncate(shared);
        let more = self.rng.random_range(1..20) * BLOCK + self.rng.random_range(0..2);
        for _ in 0..more {
            self.ids.push(self.rng.random_range(IDS));
        }
        Question {
            path: "/v1/completions",
            body: json!({
                "model": "tiny-chat",
                "max_tokens": 2,
                "prompt": self.ids,
                "nvext": {"extra_fields": ["prompt_token_ids", "worker_id"]},
            }),
            kind: Kind::Ids,
        }
    }

    fn user(&mut self) -> Value {
        json!({"role": "user", "content": words(&mut self.rng, 2..80)})
    }

    fn some_conversation(&mut self) -> Vec<Value> {
        let at = self.rng.random_range(0..self.conversations.len());
        self.conversations[at].clone()
    }

    fn keep(&mut self, messages: Vec<Value>) {
        self.conversations.push(messages);
        if self.conversations.len() > CONVERSATIONS {
            self.conversations.remove(0);
        }
    }
}

pub(crate) fn chat(messages: &[Value], kind: Kind) -> Question {
    Question {
        path: "/v1/chat/completions",
        body: json!({
            "model": "tiny-chat",
            "max_tokens": 2,
            "messages": messages,
            "nvext": {"extra_fields": ["prompt_token_ids", "worker_id"]},
        }),
        kind,
    }
}

pub(crate) fn words(rng: &mut SmallRng, count: std::ops::Range<usize>) -> String {
    let count = rng.random_range(count);
    let picked: Vec<&str> = (0..count)
        .map(|_| WORDS[rng.random_range(0..WORDS.len())])
        .collect();
    picked.join(" ")
}
